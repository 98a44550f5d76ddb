"""The same bad batches sent to Apache Kafka: `validate` and `validate_records` must answer with its error codes."""

import socket
import struct
import uuid
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from crc32c import crc32c
from tests.reference.apache import ApacheKafka

from headrace.errors import Err, KafkaError
from headrace.records.batch import (
    HEADER,
    HEADER_BYTES,
    BatchHeader,
    InvalidRecords,
    Record,
    build_batch,
    validate,
    validate_records,
)

pytestmark = pytest.mark.reference

NOW_MS = 1_700_000_000_000
HOUR_MS = 3_600_000
RECORDS = [Record(0, NOW_MS, b"k", b"v"), Record(0, NOW_MS + 5, b"k", b"w")]
KEYLESS = [Record(0, NOW_MS, b"k", b"v"), Record(0, NOW_MS, None, b"w"), Record(0, NOW_MS, None, None)]
FUTURE = [Record(0, NOW_MS, b"k", b"v"), Record(0, NOW_MS * 2, b"k", b"w"), Record(0, NOW_MS, None, b"")]

Answer = tuple[Err, list[int]]
"""Error code, and the indexes in record_errors."""


def patched(batch: bytes, **fields: int) -> bytes:
    header = BatchHeader._make(HEADER.unpack_from(batch))._replace(**fields)
    changed = bytearray(HEADER.pack(*header) + batch[HEADER_BYTES:])
    if "crc" not in fields:
        struct.pack_into(">I", changed, 17, crc32c(memoryview(changed)[21:]))
    return bytes(changed)


def body_patched(batch: bytes, at: int, byte: int) -> bytes:
    changed = bytearray(batch)
    changed[HEADER_BYTES + at] = byte
    return patched(bytes(changed))


PLAIN = build_batch(RECORDS)
GZIPPED = build_batch(RECORDS, compression=1)
HEADER_CASES = {
    "good": PLAIN,
    "good-gzip": GZIPPED,
    "nothing": b"",
    "short": PLAIN[:11],
    "cut-in-header": PLAIN[:30],
    "cut-in-body": PLAIN[:-1],
    "magic-0": patched(PLAIN, magic=0),
    "magic-1": patched(PLAIN, magic=1),
    "magic-3": patched(PLAIN, magic=3),
    "length-13": patched(PLAIN, length=13),
    "length-48": patched(PLAIN, length=48)[:60],
    "length-negative": patched(PLAIN, length=-5),
    "length-beyond": patched(PLAIN, length=5_000),
    "two-batches": PLAIN + PLAIN,
    "base-offset-1": patched(PLAIN, base_offset=1),
    "crc": patched(PLAIN, crc=12345),
    "codec-5": patched(PLAIN, attributes=5),
    "codec-7": patched(PLAIN, attributes=7),
    "count-0": patched(PLAIN, count=0, last_offset_delta=-1),
    "count-3": patched(PLAIN, count=3),
    "delta-5": patched(PLAIN, last_offset_delta=5),
    "count-huge": patched(PLAIN, count=1 << 24, last_offset_delta=(1 << 24) - 1),
    "control": patched(PLAIN, attributes=0x20),
    "no-max-timestamp": patched(PLAIN, max_timestamp=-1),
    "no-max-timestamp-gzip": patched(GZIPPED, max_timestamp=-1),
    "append-time": patched(PLAIN, attributes=0x08),
    "append-time-gzip": patched(GZIPPED, attributes=0x09),
    "delete-horizon": patched(PLAIN, attributes=0x40),
    "unknown-attribute": patched(PLAIN, attributes=0x80),
    "piece-behind": PLAIN + PLAIN[:40],
    "byte-behind": PLAIN + b"x",
    "zeros-behind": PLAIN + bytes(20),
    "producer-epoch-negative": patched(PLAIN, producer_id=9_001, producer_epoch=-1, base_sequence=0),
    "no-sequence": patched(PLAIN, producer_id=9_000, producer_epoch=0),
}
RECORD_CASES = {
    "record-length": body_patched(PLAIN, 0, 0x7E),
    "record-length-short": body_patched(PLAIN, 0, 0x0A),
    "key-length": body_patched(PLAIN, 4, 0x7E),
    "header-count": body_patched(PLAIN, 8, 0x0E),
    "header-count-negative": body_patched(PLAIN, 8, 0x01),
    "bytes-left": patched(PLAIN + b"\0", length=len(PLAIN) - 11),
    "gzip-bytes-left": patched(build_batch([*RECORDS, RECORDS[0]], compression=1), count=2, last_offset_delta=1),
    "future": build_batch(FUTURE),
    "future-gzip": build_batch(FUTURE, compression=1),
}
# Kafka fails on these with an exception it has no code for; a damaged batch deserves a better name than that.
OUR_OWN_CODE = {"codec-5", "codec-7", "damaged-gzip", "damaged-zstd", "damaged-lz4", "damaged-snappy"}
for number, name in enumerate(("gzip", "snappy", "lz4", "zstd"), 1):
    good = build_batch(RECORDS, compression=number)
    RECORD_CASES[f"damaged-{name}"] = body_patched(good, 0, 0x7F)


class Producer:
    """Produce v8 by hand: clients would not send what these tests send."""

    def __init__(self, broker: ApacheKafka) -> None:
        host, port = broker.bootstrap.split(":")
        self._socket = socket.create_connection((host, int(port)), timeout=20)

    def send(self, topic: str, records: bytes) -> Answer:
        name = topic.encode()
        body = struct.pack(">hhihhhiih", 0, 8, 1, -1, -1, -1, 10_000, 1, len(name)) + name
        body += struct.pack(">iii", 1, 0, len(records)) + records
        self._socket.sendall(struct.pack(">i", len(body)) + body)
        answer = self._read(struct.unpack(">i", self._read(4))[0])
        at = 4 + 4 + 2 + len(name) + 4 + 4
        error, _, _, _, count = struct.unpack_from(">hqqqi", answer, at)
        at += 30
        indexes = []
        for _ in range(count):
            index, length = struct.unpack_from(">ih", answer, at)
            indexes.append(index)
            at += 6 + max(length, 0)
        return Err(error), indexes

    def _read(self, length: int) -> bytes:
        data = b""
        while len(data) < length:
            piece = self._socket.recv(length - len(data))
            assert piece, "Kafka closed the connection"
            data += piece
        return data

    def close(self) -> None:
        self._socket.close()


@pytest.fixture(scope="module")
def ask(apache: ApacheKafka) -> Iterator[Callable[[str, bytes], Answer]]:
    suffix = uuid.uuid4().hex[:8]
    topics = [
        NewTopic(f"plain-{suffix}", 1, 1),
        NewTopic(f"compact-{suffix}", 1, 1, config={"cleanup.policy": "compact"}),
    ]
    admin = AdminClient({"bootstrap.servers": apache.bootstrap})
    for created in admin.create_topics(topics).values():
        created.result(20)
    producer = Producer(apache)
    for topic in topics:
        # The broker learns of its leadership a moment after the controller has answered.
        while producer.send(topic.topic, PLAIN)[0] != Err.NONE:
            pass
    yield lambda kind, records: producer.send(f"{kind}-{suffix}", records)
    producer.close()


def ours(records: bytes, *, compacted: bool = False, walk: bool = False) -> Answer:
    buf = bytearray(records)
    try:
        header = BatchHeader._make(validate(buf, memoryview(buf), 0, len(buf)))
        if walk:
            validate_records(buf, 0, header, now_ms=NOW_MS, compacted=compacted, after_max_ms=HOUR_MS)
    except InvalidRecords as error:
        return error.error, [index for index, _ in error.record_errors]
    except KafkaError as error:
        return error.error, []
    return Err.NONE, []


@pytest.mark.parametrize("name", HEADER_CASES)
def test_headers(ask: Callable[[str, bytes], Answer], name: str) -> None:
    theirs, own = ask("plain", HEADER_CASES[name]), ours(HEADER_CASES[name])
    if name in OUR_OWN_CODE:
        assert theirs[0] == Err.UNKNOWN_SERVER_ERROR
        assert own[0] == Err.UNSUPPORTED_COMPRESSION_TYPE
    else:
        assert own == theirs


@pytest.mark.parametrize("name", RECORD_CASES)
def test_records(ask: Callable[[str, bytes], Answer], name: str) -> None:
    theirs, own = ask("plain", RECORD_CASES[name]), ours(RECORD_CASES[name], walk=True)
    if name in OUR_OWN_CODE:
        assert theirs[0] == Err.UNKNOWN_SERVER_ERROR
        assert own[0] == Err.INVALID_RECORD
    else:
        assert own == theirs


@pytest.mark.parametrize("records", [KEYLESS, FUTURE, RECORDS], ids=["keyless", "future", "good"])
@pytest.mark.parametrize("compression", range(5))
def test_compacted_topics(ask: Callable[[str, bytes], Answer], records: list[Record], compression: int) -> None:
    batch = build_batch(records, compression=compression)
    assert ours(batch, compacted=True, walk=True) == ask("compact", batch)
