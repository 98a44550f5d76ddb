"""Framing of metadata records, against bytes that Kafka wrote."""

import pytest

from headrace.metadata.records import decode_record, decode_records, encode_record, encode_records
from headrace.protocol import messages as m
from headrace.protocol.primitives import ProtocolError

# The value of the first record in a bootstrap.checkpoint of Kafka 4.3.1.
METADATA_VERSION_30 = bytes.fromhex("010c00116d657461646174612e76657273696f6e001e00")


def test_bytes_are_kafkas() -> None:
    record = m.FeatureLevelRecord(name="metadata.version", feature_level=30)
    assert encode_record(record, 0) == METADATA_VERSION_30
    assert decode_record(METADATA_VERSION_30) == (record, 0)


def test_lists() -> None:
    records = [
        (m.TopicRecord(name="t", topic_id=bytes(range(16))), 0),
        (m.PartitionRecord(partition_id=3, topic_id=bytes(16), replicas=[1], directories=[bytes(16)]), 2),
        (m.RegisterBrokerRecord(broker_id=4, log_dirs=[bytes(16)], cordoned_log_dirs=[]), 4),
    ]
    assert decode_records(encode_records(records)) == records


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (b"\x02" + METADATA_VERSION_30[1:], "frame version 2"),
        (b"\x01\x63\x00", "unknown type 99"),
        (b"\x01\x0c\x07" + METADATA_VERSION_30[3:], "version 7"),
        (METADATA_VERSION_30[:-1], "."),
        (METADATA_VERSION_30 + b"\x00", "."),
        (b"", "."),
    ],
)
def test_what_is_not_known_is_refused(value: bytes, why: str) -> None:
    with pytest.raises(ProtocolError, match=why):
        decode_record(value)


def test_a_version_that_does_not_exist_is_our_bug() -> None:
    with pytest.raises(ValueError, match="no version 9"):
        encode_record(m.TopicRecord(), 9)
