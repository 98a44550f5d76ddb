"""Control batches, with bytes that Apache Kafka 4.3.1 wrote as the other side."""

import pytest
from tests.reference.apache import Unavailable, run_java

from headrace.errors import Err, KafkaError
from headrace.protocol import messages as m
from headrace.records.batch import Record, build_batch, check_stored, read_header
from headrace.records.control import (
    ControlType,
    Marker,
    decode_control,
    decode_marker,
    encode_control,
    encode_marker,
)


@pytest.mark.parametrize("committed", [True, False])
def test_markers(committed: bool) -> None:
    marker = Marker(committed, coordinator_epoch=17)
    batch = encode_marker(marker, producer_id=9, producer_epoch=3, timestamp=1_000, base_offset=40, leader_epoch=2)
    header = check_stored(memoryview(batch), 0, len(batch))
    assert header.is_control
    assert header.is_transactional
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (9, 3, -1)
    assert (header.base_offset, header.leader_epoch, header.max_timestamp) == (40, 2, 1_000)
    assert decode_marker(batch, 0, header) == marker


def test_markers_of_later_versions_are_read_as_far_as_known() -> None:
    batch = build_batch(
        [Record(0, 1, b"\0\1\0\1more", b"\0\1\0\0\0\x07more")],
        control=True,
        transactional=True,
        producer_id=1,
    )
    assert decode_marker(batch, 0, read_header(batch)) == Marker(True, 7)


@pytest.mark.parametrize(
    "record",
    [
        Record(0, 1, None, b"\0\0\0\0\0\1"),
        Record(0, 1, b"\0\0", b"\0\0\0\0\0\1"),
        Record(0, 1, b"\0\0\0\0", None),
        Record(0, 1, b"\0\0\0\0", b"\0\0"),
        Record(0, 1, b"\xff\xff\0\0", b"\0\0\0\0\0\1"),
        Record(0, 1, b"\0\0\0\0", b"\xff\xff\0\0\0\1"),
    ],
)
def test_damaged_markers(record: Record) -> None:
    batch = build_batch([record], control=True)
    with pytest.raises(KafkaError) as raised:
        decode_marker(batch, 0, read_header(batch))
    assert raised.value.error == Err.CORRUPT_MESSAGE


def messages() -> list[tuple[ControlType, object]]:
    voter = m.LeaderChangeMessage.Voter(voter_id=1)
    return [
        (
            ControlType.LEADER_CHANGE,
            m.LeaderChangeMessage(leader_id=1, voters=[voter], granting_voters=[voter]),
        ),
        (ControlType.SNAPSHOT_HEADER, m.SnapshotHeaderRecord(last_contained_log_timestamp=77)),
        (ControlType.KRAFT_VERSION, m.KRaftVersionRecord(k_raft_version=1)),
        (
            ControlType.KRAFT_VOTERS,
            m.VotersRecord(
                voters=[
                    m.VotersRecord.Voter(
                        voter_id=1,
                        voter_directory_id=bytes(range(16)),
                        endpoints=[m.VotersRecord.Endpoint(name="CONTROLLER", host="h", port=9093)],
                        k_raft_version_feature=m.VotersRecord.KRaftVersionFeature(
                            min_supported_version=0, max_supported_version=1
                        ),
                    )
                ]
            ),
        ),
        (ControlType.SNAPSHOT_FOOTER, m.SnapshotFooterRecord()),
    ]


def test_quorum_records_round_trip() -> None:
    batch = encode_control(messages(), timestamp=5, base_offset=100, leader_epoch=4)
    header = check_stored(memoryview(batch), 0, len(batch))
    assert header.is_control
    assert not header.is_transactional
    decoded = decode_control(batch, 0, header)
    assert [(record.type, record.message) for record in decoded] == messages()
    assert [record.offset for record in decoded] == [100, 101, 102, 103, 104]


def test_unknown_types_are_kept_by_number() -> None:
    batch = build_batch([Record(0, 1, b"\0\0\0\x63", b"?")], control=True)
    [record] = decode_control(batch, 0, read_header(batch))
    assert (record.type, record.message) == (99, None)
    assert decode_marker(batch, 0, read_header(batch)) is None


def test_damaged_messages() -> None:
    batch = build_batch([Record(0, 1, b"\0\0\0\x02", b"\0\0\0")], control=True)
    with pytest.raises(KafkaError) as raised:
        decode_control(batch, 0, read_header(batch))
    assert raised.value.error == Err.CORRUPT_MESSAGE


JAVA = """
import java.nio.ByteBuffer;
import java.util.*;
import org.apache.kafka.common.message.*;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.record.internal.*;

public class Main {
    static void print(MemoryRecords records) {
        ByteBuffer buffer = records.buffer();
        byte[] bytes = new byte[buffer.remaining()];
        buffer.get(bytes);
        System.out.println(HexFormat.of().formatHex(bytes));
    }
    public static void main(String[] args) {
        print(MemoryRecords.withEndTransactionMarker(40L, 1000L, 2, 9L, (short) 3, new EndTransactionMarker(ControlRecordType.COMMIT, 17)));
        print(MemoryRecords.withEndTransactionMarker(40L, 1000L, 2, 9L, (short) 3, new EndTransactionMarker(ControlRecordType.ABORT, 17)));
        var voter = new LeaderChangeMessage.Voter().setVoterId(1);
        print(MemoryRecords.withLeaderChangeMessage(100L, 5L, 4, ByteBuffer.allocate(1000),
            new LeaderChangeMessage().setLeaderId(1).setVoters(List.of(voter)).setGrantingVoters(List.of(voter))));
        print(MemoryRecords.withSnapshotHeaderRecord(100L, 5L, 4, ByteBuffer.allocate(1000),
            new SnapshotHeaderRecord().setLastContainedLogTimestamp(77)));
        print(MemoryRecords.withKRaftVersionRecord(100L, 5L, 4, ByteBuffer.allocate(1000),
            new KRaftVersionRecord().setKRaftVersion((short) 1)));
        byte[] id = HexFormat.of().parseHex("000102030405060708090a0b0c0d0e0f");
        ByteBuffer uuid = ByteBuffer.wrap(id);
        var endpoints = new VotersRecord.EndpointCollection();
        endpoints.add(new VotersRecord.Endpoint().setName("CONTROLLER").setHost("h").setPort(9093));
        print(MemoryRecords.withVotersRecord(100L, 5L, 4, ByteBuffer.allocate(1000),
            new VotersRecord().setVoters(List.of(new VotersRecord.Voter().setVoterId(1)
                .setVoterDirectoryId(new Uuid(uuid.getLong(), uuid.getLong())).setEndpoints(endpoints)
                .setKRaftVersionFeature(new VotersRecord.KRaftVersionFeature().setMaxSupportedVersion((short) 1))))));
        print(MemoryRecords.withSnapshotFooterRecord(100L, 5L, 4, ByteBuffer.allocate(1000), new SnapshotFooterRecord()));
    }
}
"""


@pytest.mark.reference
def test_bytes_are_those_of_apache_kafka() -> None:
    try:
        theirs = [bytes.fromhex(line) for line in run_java(JAVA).split()]
    except Unavailable as missing:
        pytest.skip(str(missing))
    ours = [
        encode_marker(
            Marker(committed, 17),
            producer_id=9,
            producer_epoch=3,
            timestamp=1_000,
            base_offset=40,
            leader_epoch=2,
        )
        for committed in (True, False)
    ]
    ours += [encode_control([message], timestamp=5, base_offset=100, leader_epoch=4) for message in messages()]
    assert ours == theirs
