"""Produce: what is appended, what is refused and how, and what an idempotent producer may repeat."""

import gzip
import struct
import time
from collections.abc import Mapping
from typing import Any

import cramjam

from tests.compat.cases import Talk, case
from tests.compat.cases.metadata import NO_SUCH_ID
from tests.compat.raw import FIXED_MS, Rec, batch, encode_records, encode_request, sized, varint

GZIP, SNAPPY, LZ4, ZSTD = 1, 2, 3, 4
APPEND_TIME, TRANSACTIONAL, CONTROL = 8, 16, 32


def entry(t: Talk, label: str, **partitions: Any) -> dict[str, Any]:
    """One topic of a request, by name or id as the version wants: entry(t, "t", p0=records, p1=...)."""
    data = [{"index": int(p[1:]), "records": records} for p, records in partitions.items()]
    if t.version >= 13:
        known = f"<id of ${label}>" in t.ids.values()
        return {"topic_id": t.id_of(label) if known else NO_SUCH_ID, "partition_data": data}
    return {"name": t.name(label), "partition_data": data}


def send(t: Talk, *topics: dict[str, Any], acks: int = -1, **fields: Any) -> Any:
    return t.ask("Produce", acks=acks, timeout_ms=5000, topic_data=list(topics), **fields)


def put(t: Talk, records: bytes | None, label: str = "t", acks: int = -1) -> Any:
    """These bytes to partition 0, at the talk's version when it is one of Produce's, else at 12."""
    return send(t, entry(t, label, p0=records), acks=acks)


@case("Produce")
def appended(t: Talk) -> None:
    t.topic(partitions=2)
    put(t, batch(b"a", b"b"))
    put(t, batch(b"c"), acks=1)
    send(t, entry(t, "t", p0=batch(b"d"), p1=batch(b"e")))
    send(t)
    send(t, entry(t, "t"))


@case("Produce")
def unknown_places(t: Talk) -> None:
    t.topic()
    put(t, batch(b"a"), "nowhere")
    send(t, entry(t, "t", p7=batch(b"a"), p0=batch(b"b")))
    parts = [{"index": -1, "records": batch(b"a")}]
    send(t, entry(t, "t") | {"partition_data": parts})
    if t.version >= 13:
        send(t, {"topic_id": bytes(16), "partition_data": [{"index": 0, "records": batch(b"a")}]})


@case("Produce")
def topics_named_twice(t: Talk) -> None:
    t.topic(partitions=2)
    send(t, entry(t, "t", p0=batch(b"c")), entry(t, "t", p1=batch(b"d")))


@case("Produce")
def partitions_named_twice(t: Talk) -> None:
    t.topic()
    same = [{"index": 0, "records": batch(b"a")}, {"index": 0, "records": batch(b"b")}]
    send(t, entry(t, "t") | {"partition_data": same})
    send(t, entry(t, "t", p0=batch(b"e")), entry(t, "t", p0=batch(b"f")))
    fetch_all(t)


@case("Produce")
def acks(t: Talk) -> None:
    t.topic()
    for number in (2, -2, 32767):
        t.note(f"acks {number}")
        put(t, batch(b"a"), acks=number)
    t.ask(
        "ListOffsets",
        1,
        replica_id=-1,
        topics=[{"name": t.name(), "partitions": [{"partition_index": 0, "timestamp": -1}]}],
    )


@case("Produce")
def no_acks_no_answer(t: Talk) -> None:
    t.topic()
    fields = {"acks": 0, "timeout_ms": 5000, "topic_data": [entry(t, "t", p0=batch(b"a"))]}
    t.connection.send(encode_request("Produce", t.version, fields))
    where = [{"name": t.name(), "partitions": [{"partition_index": 0, "timestamp": -1}]}]
    t.ask("ListOffsets", 1, replica_id=-1, topics=where)
    t.note("an error without acks closes the connection")
    fields["topic_data"] = [entry(t, "t", p0=batch(b"a", crc_error=1))]
    t.connection.send(encode_request("Produce", t.version, fields))
    t.outcome()


def broken_batches() -> dict[str, bytes]:
    # Null records are left out: Apache Kafka 4.3.1 never answers them.
    good = batch(b"a", b"b")
    with_old_magic = struct.pack(">qiIbb", 0, 22, 0, 1, 0) + struct.pack(">qii", FIXED_MS, -1, -1)
    return {
        "empty": b"",
        "crc": batch(b"a", crc_error=0x55),
        "magic 0": batch(b"a", magic=0),
        "magic 1": batch(b"a", magic=1),
        "magic 3": batch(b"a", magic=3),
        "magic -1": batch(b"a", magic=-1),
        "a message set of magic 1": with_old_magic,
        "control": batch(Rec(b"\0\0\0\0\0\0", b"\0\0\0\1"), attributes=CONTROL),
        "control and transactional": batch(
            Rec(b"x", b"\0\0\0\1"), attributes=CONTROL | TRANSACTIONAL, producer=(1, 0, -1)
        ),
        "transactional without a producer": batch(b"a", attributes=TRANSACTIONAL),
        "two batches": good + good,
        "batch and a piece": good + good[:20],
        "truncated header": good[:40],
        "truncated records": good[:-3],
        "11 bytes": good[:11],
        "length too large": batch(b"a", length_error=10),
        "length too small": batch(b"a", length_error=-1),
        "length 0": struct.pack(">qi", 0, 0) + good[12:],
        "length negative": struct.pack(">qi", 0, -5) + good[12:],
        "length huge": struct.pack(">qi", 0, 2147483647) + good[12:],
        "count too large": batch(b"a", count=2),
        "count too small": batch(b"a", b"b", count=1),
        "count 0": batch(count=0),
        "count negative": batch(b"a", count=-1, last_delta=0),
        "count huge": batch(b"a", count=2147483647, last_delta=2147483646),
        "delta not count - 1": batch(b"a", b"b", last_delta=5),
        "delta negative": batch(b"a", last_delta=-1),
        "base offset": batch(b"a", base_offset=100),
        "base offset negative": batch(b"a", base_offset=-1),
        "leader epoch": batch(b"a", leader_epoch=9),
        "codec 5": batch(b"a", attributes=5),
        "codec 7": batch(b"a", attributes=7),
        "append time bit": batch(b"a", attributes=APPEND_TIME),
        "delete horizon bit": batch(b"a", attributes=64),
        "unknown attribute bits": batch(b"a", attributes=128),
        "max timestamp below base": batch(b"a", max_timestamp=FIXED_MS - 1),
        "max timestamp wrong": batch(b"a", max_timestamp=FIXED_MS + 5),
        "no timestamp": batch(b"a", base_timestamp=-1),
        "timestamp negative": batch(b"a", base_timestamp=-5),
        "no records in the payload": batch(b"a", payload=b""),
        "junk after the records": batch(b"a", payload=encode_records([Rec(b"a")]) + b"junk"),
        "record longer than the batch": batch(b"a", payload=b"\x7e" + encode_records([Rec(b"a")])[1:]),
    }


def each_alone(t: Talk, shapes: Mapping[str, bytes], **configs: str) -> None:
    """Every shape to a partition of its own, so that what happens to one moves no other's offsets."""
    t.topic(partitions=len(shapes), **configs)
    for number, (what, data) in enumerate(shapes.items()):
        t.note(what)
        send(t, entry(t, "t", **{f"p{number}": data}))


@case("Produce")
def broken(t: Talk) -> None:
    each_alone(t, broken_batches())


def packed(codec: int, data: bytes) -> bytes:
    if codec == GZIP:
        return gzip.compress(data, mtime=0)
    if codec == SNAPPY:
        block = bytes(cramjam.snappy.compress_raw(data))
        return b"\x82SNAPPY\0" + struct.pack(">iii", 1, 1, len(block)) + block
    if codec == LZ4:
        # A frame of independent blocks of 64 KB, the only kind Kafka reads; the last byte of the head is its checksum.
        assert len(data) <= 1 << 16
        block = bytes(cramjam.lz4.compress_block(data, store_size=False))
        return bytes.fromhex("04224d18604082") + struct.pack("<I", len(block)) + block + bytes(4)
    return bytes(cramjam.zstd.compress(data))


@case("Produce", versions=[3, 6, 7, 9, 13])
def compressed(t: Talk) -> None:
    t.topic()
    records = [Rec(b"value %d" % i, b"key") for i in range(20)]
    for codec in (GZIP, SNAPPY, LZ4, ZSTD):
        t.note(f"codec {codec}")
        data = packed(codec, encode_records(records))
        put(t, batch(*records, attributes=codec, payload=data))


@case("Produce", versions=[13])
def large_when_unpacked(t: Talk) -> None:
    t.topic()
    zeros = [Rec(bytes(20 << 20))]
    put(t, batch(*zeros, attributes=GZIP, payload=packed(GZIP, encode_records(zeros))))


@case("Produce", versions=[3, 7, 8, 13])
def oversized(t: Talk) -> None:
    t.topic(max_message_bytes="1000")
    put(t, batch(bytes(1000 - 61 - 9)))
    put(t, batch(bytes(1000)))
    send(t, entry(t, "t", p0=batch(bytes(100_000))))


@case("Produce", versions=[3, 8, 13])
def limits_of_size(t: Talk) -> None:
    large = [Rec(b"x" * 1000)]
    t.note("small as sent, large as stored")
    t.topic("plain", max_message_bytes="200", compression_type="uncompressed")
    put(t, batch(*large, attributes=GZIP, payload=packed(GZIP, encode_records(large))), "plain")
    t.note("large as sent, small as stored")
    t.topic("gzip", max_message_bytes="200", compression_type="gzip")
    put(t, batch(*large), "gzip")
    t.note("nothing may be stored")
    t.topic("nothing", max_message_bytes="0")
    put(t, batch(b""), "nothing")
    t.note("just so, one byte more, a piece behind it, another behind it")
    t.topic("exact", max_message_bytes=str(len(batch(b"abc"))))
    for data in (batch(b"abc"), batch(b"abcd"), batch(b"abc") + batch(b"abc")[:50], batch(b"abc") * 2):
        put(t, data, "exact")
    t.note("larger than a segment")
    t.topic("segments", segment_bytes="1048576", max_message_bytes="3000000")
    put(t, batch(bytes(1_100_000)), "segments")
    put(t, batch(bytes(1_100_000), crc_error=1), "segments")


@case("Produce", versions=[3, 7, 8, 13])
def compacted_topics_need_keys(t: Talk) -> None:
    t.topic(cleanup_policy="compact")
    put(t, batch(Rec(b"v", b"k"), Rec(None, b"k")))
    put(t, batch(Rec(b"v", b"k"), Rec(b"no key"), Rec(b"none again")))
    put(t, batch(Rec(b"v", b"")))
    keyless = [Rec(b"x")]
    put(t, batch(*keyless, attributes=GZIP, payload=packed(GZIP, encode_records(keyless))))


@case("Produce", versions=[3, 8, 13])
def compacted_topics_walk_every_record(t: Talk) -> None:
    """Where each record is read anyway, lies inside a batch are found by both brokers."""
    keyed = [Rec(b"v", b"k"), Rec(b"w", b"l")]
    good = encode_records(keyed)
    shapes = {
        "good": batch(*keyed),
        "junk": batch(*keyed, payload=good + b"junk"),
        "fewer": batch(*keyed, payload=encode_records(keyed[:1])),
        "more": batch(*keyed[:1], payload=good),
        "length": batch(*keyed, payload=b"\x7e" + good[1:]),
        "gzip broken": batch(*keyed, attributes=GZIP, payload=packed(GZIP, good)[:-9]),
        "gzip is not": batch(*keyed, attributes=GZIP, payload=good),
        "zstd is not": batch(*keyed, attributes=ZSTD, payload=good),
        "lz4 is not": batch(*keyed, attributes=LZ4, payload=good),
        "snappy is not": batch(*keyed, attributes=SNAPPY, payload=good),
    }
    each_alone(t, shapes, cleanup_policy="compact")


@case("Produce", versions=[3, 8, 13])
def offsets_that_lie(t: Talk) -> None:
    """Two records that both say they are the first of their batch."""
    keyed = [Rec(b"v", b"k"), Rec(b"w", b"l")]
    first = encode_records(keyed[:1])
    each_alone(t, {"twice the first": batch(*keyed, payload=first * 2)}, cleanup_policy="compact")


@case("Produce", versions=[3, 8, 13])
def append_time(t: Talk) -> None:
    t.topic(message_timestamp_type="LogAppendTime")
    put(t, batch(Rec(b"a"), Rec(b"b", None, 5)))
    records = [Rec(b"a"), Rec(b"b")]
    put(t, batch(*records, attributes=GZIP, payload=packed(GZIP, encode_records(records))))
    fetch_all(t)


@case("Produce", versions=[3, 8, 13])
def append_time_for_odd_batches(t: Talk) -> None:
    t.topic(message_timestamp_type="LogAppendTime")
    put(t, batch(b"a", b"b", attributes=APPEND_TIME))
    for when in (-1, 1 << 60, 5):
        put(t, batch(b"a", base_timestamp=when))
    me = new_producer(t)
    put(t, batch(b"a", producer=(me, 0, 0)))
    put(t, batch(b"a", producer=(me, 0, 0)))
    fetch_all(t)
    t.topic("lz4", message_timestamp_type="LogAppendTime", compression_type="lz4")
    put(t, batch(Rec(b"a", b"k", 0, [(b"h", b"v"), (b"n", None)]), Rec(None, None, 7)), "lz4")
    fetch_all(t, "lz4")


@case("Produce", versions=[3, 8, 13])
def timestamps_of_all_sorts(t: Talk) -> None:
    t.topic()
    for when in (0, 1, -1, -2, 1 << 40, 1 << 62):
        t.note(f"timestamp {when}")
        put(t, batch(b"a", base_timestamp=when))
    t.note("back in time")
    put(t, batch(Rec(b"a", None, 5), Rec(b"b", None, -5)))
    fetch_all(t)


@case("Produce", versions=[3, 13])
def attributes_of_all_sorts(t: Talk) -> None:
    t.topic()
    for attributes in (0x40, 0x80, 0x100, 0x4000, -0x8000, APPEND_TIME, 0x80 | APPEND_TIME):
        t.note(f"attributes {attributes}")
        put(t, batch(b"a", attributes=attributes))
    put(t, batch(b"a", attributes=0x80, max_timestamp=FIXED_MS + 5))
    put(t, batch(b"a", attributes=APPEND_TIME, base_timestamp=-1))
    fetch_all(t)


@case("Produce", versions=[3, 13])
def records_that_lie(t: Talk) -> None:
    start, key, value = b"\0" + varint(0) + varint(0), sized(b"k"), sized(b"v")
    plain = start + key + value
    records = {
        "headers of all sorts": plain
        + varint(3)
        + sized(b"h")
        + sized(b"v")
        + sized(b"")
        + sized(None)
        + sized(b"\xff") * 2,
        "null header key": plain + varint(1) + sized(None) + sized(b"v"),
        "negative header count": plain + varint(-1),
        "header count too large": plain + varint(5) + sized(b"a") + sized(b"b"),
        "header value too long": plain + varint(1) + sized(b"a") + varint(99),
        "key length -2": start + varint(-2) + value + varint(0),
        "value length -2": start + key + varint(-2) + varint(0),
        "record attributes": b"\xff" + plain[1:] + varint(0),
        "varint too long": b"\0" + b"\x80" * 10 + b"\1" + plain[2:] + varint(0),
        "no bytes at all": b"",
    }
    shapes = {what: batch(b"x", payload=sized(body)) for what, body in records.items()}
    for what, body in records.items():
        shapes[what + ", gzip"] = batch(b"x", attributes=GZIP, payload=packed(GZIP, sized(body)))
    each_alone(t, shapes)


@case("Produce", versions=[3, 8, 13])
def timestamps_out_of_bounds(t: Talk) -> None:
    now = int(time.time() * 1000)
    t.topic(message_timestamp_before_max_ms="100000", message_timestamp_after_max_ms="100000")
    for what, when in (("old", now - 200_000), ("future", now + 200_000), ("now", now), ("none", -1)):
        t.note(what)
        put(t, batch(b"a", b"b", base_timestamp=when))
    t.note("only the second record")
    put(t, batch(Rec(b"a"), Rec(b"b", None, 300_000), base_timestamp=now))


@case("Produce", versions=[3, 13])
def recompressed_by_the_topic(t: Talk) -> None:
    records = [Rec(b"same " * 50, b"k")] * 5
    for codec in ("gzip", "zstd", "lz4", "snappy", "uncompressed"):
        t.topic(codec, compression_type=codec)
        put(t, batch(*records), codec)
        put(t, batch(*records, attributes=GZIP, payload=packed(GZIP, encode_records(records))), codec)
        fetch_all(t, codec)


def fetch_all(t: Talk, label: str = "t") -> None:
    parts = [{"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}]
    t.ask(
        "Fetch",
        11,
        max_wait_ms=0,
        min_bytes=1,
        max_bytes=1 << 20,
        topics=[{"topic": t.name(label), "partitions": parts}],
    )


# Idempotent producers


def new_producer(t: Talk) -> int:
    t.until_producer_ids()
    answer = t.call("InitProducerId", 4, transactional_id=None, transaction_timeout_ms=60_000)
    assert answer.error_code == 0, answer
    return int(answer.producer_id)


@case("Produce")
def repeated_batches(t: Talk) -> None:
    t.topic()
    me = new_producer(t)
    for sequence in (0, 2, 4, 6, 8, 10, 12):
        put(t, batch(b"a", b"b", producer=(me, 0, sequence)))
    t.note("the last five are remembered")
    for sequence in (12, 10, 8, 6, 4):
        put(t, batch(b"a", b"b", producer=(me, 0, sequence)))
    t.note("older ones are not")
    put(t, batch(b"a", b"b", producer=(me, 0, 2)))
    t.note("a part of a remembered one")
    put(t, batch(b"a", producer=(me, 0, 12)))
    put(t, batch(b"b", producer=(me, 0, 13)))
    t.note("and on it goes")
    put(t, batch(b"c", producer=(me, 0, 14)))


@case("Produce")
def sequences_out_of_order(t: Talk) -> None:
    t.topic()
    me = new_producer(t)
    t.note("a new producer begins in the middle")
    put(t, batch(b"a", producer=(me, 0, 5)))
    other = new_producer(t)
    put(t, batch(b"a", producer=(other, 0, 0)))
    for what, epoch, sequence in (
        ("gap", 0, 2),
        ("no sequence", 0, -1),
        ("older epoch", -1, 1),
        ("newer epoch in the middle", 1, 3),
        ("newer epoch from zero", 2, 0),
        ("back to the older epoch", 0, 1),
        ("next", 2, 1),
    ):
        t.note(what)
        put(t, batch(b"b", producer=(other, epoch, sequence)))


@case("Produce", versions=[3, 13])
def sequences_wrap_around(t: Talk) -> None:
    t.topic()
    me = new_producer(t)
    last = 2147483647
    put(t, batch(b"a", producer=(me, 0, last)))
    put(t, batch(b"b", producer=(me, 0, 0)))
    other = new_producer(t)
    put(t, batch(b"a", b"b", producer=(other, 0, last)))
    put(t, batch(b"c", producer=(other, 0, 1)))


@case("Produce", versions=[3, 9, 13])
def producers_whose_records_are_gone(t: Talk) -> None:
    topic = t.topic()
    me = new_producer(t)
    for sequence in (0, 1, 2):
        put(t, batch(b"a", producer=(me, 0, sequence)))
    where = [{"name": topic, "partitions": [{"partition_index": 0, "offset": 3}]}]
    t.call("DeleteRecords", topics=where, timeout_ms=5000)
    for sequence in (2, 3, 7):
        t.note(f"sequence {sequence}")
        put(t, batch(b"a", producer=(me, 0, sequence)))
    t.ask("DescribeProducers", 0, topics=[{"name": topic, "partition_indexes": [0]}])


@case("Produce", versions=[3, 9, 13])
def epochs_of_producers(t: Talk) -> None:
    t.topic()
    me = new_producer(t)
    for epoch, sequence in ((5, 0), (5, 1), (5, 0), (6, 1), (6, 0), (5, 2), (32767, 0), (32767, 1), (32767, 3)):
        t.note(f"epoch {epoch} sequence {sequence}")
        put(t, batch(b"a", producer=(me, epoch, sequence)))


@case("Produce", versions=[3, 13])
def odd_producers(t: Talk) -> None:
    producers = {
        "negative sequence": (5_000_000, 0, -1),
        "negative epoch": (5_000_001, -1, 0),
        "nobody's id": (5_000_002, 0, 0),
        "id -2": (-2, 0, 0),
        "epoch without id": (-1, 3, 0),
        "sequence without id": (-1, -1, 7),
    }
    each_alone(t, {what: batch(b"a", producer=producer) for what, producer in producers.items()})


@case("DescribeProducers")
def active_producers(t: Talk) -> None:
    topic = t.topic(partitions=2)
    me = new_producer(t)
    t.produced(topic, batch(b"a", b"b", producer=(me, 0, 0)))
    t.produced(topic, batch(b"c", producer=(me, 0, 2)))
    t.ask(topics=[{"name": topic, "partition_indexes": [0, 1, 5]}])
    t.ask(topics=[{"name": t.name("nowhere"), "partition_indexes": [0]}])
    t.ask(topics=[{"name": topic, "partition_indexes": []}])
    t.ask(topics=[{"name": "a b", "partition_indexes": [0]}])
    t.ask(topics=[])
