"""Records in and out of batches, with kafka-python and aiokafka as the other side."""

from collections.abc import Callable
from typing import ClassVar

import pytest
from aiokafka.record.default_records import DefaultRecordBatch as AioBatch, DefaultRecordBatchBuilder as AioBuilder
from hypothesis import given, settings, strategies as st
from kafka.record.default_records import DefaultRecordBatch as KpBatch, DefaultRecordBatchBuilder as KpBuilder

from headrace.config import LogConfig
from headrace.errors import Err, KafkaError
from headrace.records.batch import (
    BatchHeader,
    InvalidRecords,
    Record,
    build_batch,
    check_stored,
    iter_records,
    read_header,
    read_records,
    rewrite,
    set_max_timestamp,
    validate,
    validate_records,
)
from headrace.records.builder import varint
from headrace.records.reader import iter_raw, iter_spans, read_body, read_varint
from headrace.records.validation import Prepared, Rules, prepare

content = st.none() | st.binary(max_size=300)
headers = st.lists(st.tuples(st.text(max_size=10), st.none() | st.binary(max_size=20)), max_size=3).map(tuple)
records = st.lists(
    st.builds(Record, st.just(0), st.integers(0, 1 << 50), content, content, headers), min_size=1, max_size=30
)
codecs = st.integers(0, 4)


def placed(originals: list[Record], base_offset: int) -> list[Record]:
    return [
        Record(base_offset + index, record.timestamp, record.key, record.value, record.headers)
        for index, record in enumerate(originals)
    ]


@pytest.mark.parametrize("size", [0, 1, 63, 64, 1998, 1999, 2000, 2001, 2040, 2048, 5000])
def test_records_around_the_sizes_of_their_varints(size: int) -> None:
    originals = [Record(0, 100 + size * place, b"k", bytes(size - 1 if size else 0), ()) for place in range(3)]
    originals.append(Record(0, 50, b"", b"", ()))  # earlier than the first
    batch = build_batch(originals, base_offset=7)
    assert list(iter_records(batch)) == placed(originals, 7)
    gaps = [Record(offset, 0, b"k", b"v", ()) for offset in (0, 1, 1999, 2000, 2001, 70_000)]
    assert list(iter_records(build_batch(gaps, keep_offsets=True))) == gaps


@settings(max_examples=60, deadline=None)
@given(records, codecs, st.integers(0, 1 << 60), st.booleans())
def test_round_trip(originals: list[Record], codec: int, base_offset: int, transactional: bool) -> None:
    batch = build_batch(
        originals,
        base_offset=base_offset,
        compression=codec,
        producer_id=77,
        producer_epoch=3,
        base_sequence=0x7FFFFFFF,
        transactional=transactional,
        leader_epoch=12,
    )
    header = check_stored(memoryview(batch), 0, len(batch))
    assert list(iter_records(batch)) == placed(originals, base_offset)
    assert (header.base_offset, header.leader_epoch, header.codec) == (base_offset, 12, codec)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (77, 3, 0x7FFFFFFF)
    assert header.is_transactional == transactional
    assert header.base_timestamp == originals[0].timestamp
    assert header.max_timestamp == max(record.timestamp for record in originals)
    assert header.last_sequence == (0x7FFFFFFF + len(originals) - 1) % (1 << 31)


@settings(max_examples=60, deadline=None)
@given(records, codecs)
def test_others_read_what_we_build(originals: list[Record], codec: int) -> None:
    batch = build_batch(originals, base_offset=500, compression=codec)
    for theirs in (AioBatch(bytearray(batch)), KpBatch(batch)):
        assert theirs.validate_crc()
        assert [
            Record(r.offset, r.timestamp, r.key, r.value, tuple((name, value) for name, value in r.headers))
            for r in theirs
        ] == placed(originals, 500)


@settings(max_examples=60, deadline=None)
@given(records, codecs)
def test_we_read_what_others_build(originals: list[Record], codec: int) -> None:
    aio = AioBuilder(2, codec, 0, -1, -1, -1, 1 << 24)
    kp = KpBuilder(2, codec, False, -1, -1, -1, 1 << 24)
    for index, record in enumerate(originals):
        aio.append(index, record.timestamp, record.key, record.value, list(record.headers))
        kp.append(index, record.timestamp, record.key, record.value, list(record.headers))
    for batch in (bytearray(aio.build()), bytearray(kp.build())):
        validate(batch, memoryview(batch), 0, len(batch))
        assert list(iter_records(batch)) == placed(originals, 0)


def test_uncompressed_bytes_are_those_of_others() -> None:
    originals = [Record(0, 10, b"k", b"v", (("h", b"1"), ("n", None))), Record(0, 7, None, b"x" * 5_000)]
    theirs = KpBuilder(2, 0, False, -1, -1, -1, 1 << 20)
    for index, record in enumerate(originals):
        theirs.append(index, record.timestamp, record.key, record.value, list(record.headers))
    ours = build_batch(originals)
    # kafka-python leaves the leader epoch 0; everything under the CRC must be the same.
    assert ours[16:] == bytes(theirs.build())[16:]


def test_offsets_may_have_gaps() -> None:
    sparse = [Record(105, 3, b"a", b"1"), Record(109, 4, b"b", None)]
    batch = build_batch(sparse, base_offset=100, keep_offsets=True, compression=4)
    assert list(iter_records(batch)) == sparse
    header = read_header(batch)
    assert (header.base_offset, header.last_offset, header.count) == (100, 109, 2)


def test_log_append_time_stands_for_every_timestamp() -> None:
    batch = build_batch([Record(0, 3, b"a", b"1"), Record(0, 4, b"b", b"2")], log_append_time_ms=999)
    assert [record.timestamp for record in iter_records(batch)] == [999, 999]
    assert read_header(batch).is_log_append_time


def test_a_delete_horizon_keeps_timestamps() -> None:
    originals = [Record(0, 3, b"a", None), Record(1, 400, b"b", b"2")]
    batch = build_batch(originals, delete_horizon_ms=100)
    assert list(iter_records(batch)) == originals
    assert read_header(batch).delete_horizon_ms == 100


def test_header_names_that_are_not_utf8_survive() -> None:
    batch = bytearray(build_batch([Record(0, 0, b"k", b"v", (("ab", b"x"),))]))
    at = bytes(batch).index(b"ab")
    batch[at : at + 2] = b"\xff\xfe"
    again = build_batch(iter_records(batch))
    assert b"\xff\xfe" in again
    assert list(iter_records(again)) == list(iter_records(batch))


def test_empty_batches_have_no_records_whatever_their_codec() -> None:
    header = BatchHeader(0, 49, 0, 2, 0, 4, 9, -1, 5, 1, 0, 0, 0)
    assert read_records(bytes(61), 0, header) == []


@settings(max_examples=300, deadline=None)
@given(st.data(), codecs)
def test_damage_inside_is_refused_by_name(data: st.DataObject, codec: int) -> None:
    batch = bytearray(
        build_batch([Record(0, 5, b"key", b"value", (("h", b"x"),)), Record(0, 6, None, b"v")] * 3, compression=codec)
    )
    for _ in range(data.draw(st.integers(1, 4))):
        batch[data.draw(st.integers(61, len(batch) - 1))] = data.draw(st.integers(0, 255))
    try:
        list(iter_records(batch))
        validate_records(batch, 0, read_header(batch), now_ms=0, compacted=True, after_max_ms=1)
    except KafkaError as error:
        assert error.error in (Err.INVALID_RECORD, Err.CORRUPT_MESSAGE, Err.INVALID_TIMESTAMP)


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_walks_agree(data: st.DataObject) -> None:
    """Three walks read records, each with its own short cuts: on any bytes they must say the same."""
    originals = data.draw(records)
    body = bytearray(read_body(build_batch(originals), 0, read_header(build_batch(originals))))
    for _ in range(data.draw(st.integers(0, 2))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    header = read_header(build_batch(originals))

    def outcome(walk: Callable[[], object]) -> object:
        try:
            return walk()
        except KafkaError as error:
            assert error.error == Err.INVALID_RECORD
            return None

    raw = outcome(lambda: list(iter_raw(bytes(body), header.count)))
    spans = outcome(lambda: list(iter_spans(bytes(body), header.count)))
    summary = outcome(lambda: validate_records(bytes(61) + bytes(body), 0, header, now_ms=0))
    if raw is not None:
        assert isinstance(raw, list) and isinstance(spans, list), "spans look at less, so they accept at least as much"
        assert [(s[4], s[3], s[5], s[6]) for s in spans] == [(r[0], r[1], r[2], r[3] is not None) for r in raw]
        in_order = [r[0] for r in raw] == list(range(len(raw)))
        in_range = all(-(1 << 63) <= header.base_timestamp + r[1] < 1 << 63 for r in raw)
        assert (summary is not None) == (in_order and in_range)
    else:
        assert summary is None


@given(st.integers(-(1 << 63), (1 << 63) - 1))
def test_varints(number: int) -> None:
    assert read_varint(varint(number) + b"\x80", 0) == (number, len(varint(number)))


@pytest.mark.parametrize("bad", [b"\xff" * 10 + b"\x01", b"\xff" * 9 + b"\x7f"])
def test_varints_past_64_bits(bad: bytes) -> None:
    with pytest.raises(KafkaError):
        read_varint(bad, 0)


class TestValidateRecords:
    NOW = 1_000_000

    def run(self, batch: bytes, **options: int | bool) -> int:
        return validate_records(batch, 0, read_header(batch), now_ms=self.NOW, **options).max_timestamp  # type: ignore[arg-type]

    def test_the_true_maximum_timestamp(self) -> None:
        assert self.run(build_batch([Record(0, 5, None, b""), Record(0, 9, None, b""), Record(0, 2, None, b"")])) == 9

    def test_missing_keys_are_listed(self) -> None:
        batch = build_batch([Record(0, 5, None, b""), Record(0, 9, b"", b""), Record(0, 2, None, b"")])
        with pytest.raises(InvalidRecords) as raised:
            self.run(batch, compacted=True)
        assert raised.value.error == Err.INVALID_RECORD
        assert [index for index, _ in raised.value.record_errors] == [0, 2]

    @pytest.mark.parametrize(
        ("timestamp", "ok"), [(900, True), (899, False), (1_050, True), (1_051, False), (-1, True)]
    )
    def test_timestamp_bounds(self, timestamp: int, ok: bool) -> None:
        batch = build_batch([Record(0, 1_000, b"k", b""), Record(0, timestamp, b"k", b"")])
        header = read_header(batch)
        if ok:
            validate_records(batch, 0, header, now_ms=1_000, before_max_ms=100, after_max_ms=50)
        else:
            with pytest.raises(InvalidRecords) as raised:
                validate_records(batch, 0, header, now_ms=1_000, before_max_ms=100, after_max_ms=50)
            assert raised.value.error == Err.INVALID_TIMESTAMP
            assert [index for index, _ in raised.value.record_errors] == [1]
        # LogAppendTime replaces the timestamps, so their bounds do not matter.
        validate_records(batch, 0, header, now_ms=1_000, before_max_ms=100, after_max_ms=50, log_append_time=True)

    def test_offset_deltas_count_from_zero(self) -> None:
        batch = build_batch([Record(1, 5, b"k", b""), Record(2, 9, b"k", b"")], keep_offsets=True)
        with pytest.raises(KafkaError) as raised:
            self.run(batch)
        assert raised.value.error == Err.INVALID_RECORD

    @pytest.mark.parametrize("codec", range(5))
    def test_rewrite(self, codec: int) -> None:
        originals = [Record(0, 5, b"k", b"v" * 100), Record(1, 9, b"k", None)]
        batch = build_batch(originals, compression=1, producer_id=4, producer_epoch=1, base_sequence=6)
        header = read_header(batch)
        summary = validate_records(batch, 0, header, now_ms=0)
        again = rewrite(header, summary.body, max_timestamp=9, log_append_time=False, compression=codec)
        assert check_stored(memoryview(again), 0, len(again)).codec == codec
        assert list(iter_records(again)) == originals
        timed = rewrite(header, summary.body, max_timestamp=50, log_append_time=True, compression=codec)
        new_header = check_stored(memoryview(timed), 0, len(timed))
        assert [record.timestamp for record in iter_records(timed)] == [50, 50]
        assert (new_header.producer_id, new_header.base_sequence, new_header.count) == (4, 6, 2)


class TestPrepare:
    RECORDS: ClassVar = [Record(0, 5, b"k", b"v" * 100), Record(1, 9, b"k", None), Record(2, 7, b"l", b"")]

    def test_an_ordinary_batch_stays_as_it_is(self) -> None:
        batch = bytearray(build_batch(self.RECORDS))
        assert prepare(memoryview(batch), Rules(), now_ms=50) == Prepared(None, 9)
        assert batch == build_batch(self.RECORDS)

    def test_log_append_time_is_written_in_place(self) -> None:
        batch = bytearray(build_batch(self.RECORDS, compression=4))
        assert prepare(memoryview(batch), Rules(log_append_time=True), now_ms=50) == Prepared(None, 50)
        check_stored(memoryview(batch), 0, len(batch))
        assert [record.timestamp for record in iter_records(batch)] == [50, 50, 50]

    def test_a_wrong_maximum_timestamp_is_corrected(self) -> None:
        batch = bytearray(build_batch(self.RECORDS))
        set_max_timestamp(batch, 0, read_header(batch), 1_000, log_append_time=False)
        assert prepare(memoryview(batch), Rules(), now_ms=50) == Prepared(None, 9)
        assert batch == build_batch(self.RECORDS)

    @pytest.mark.parametrize("source", range(5))
    @pytest.mark.parametrize("target", range(5))
    def test_compression(self, source: int, target: int) -> None:
        batch = bytearray(build_batch(self.RECORDS, compression=source))
        prepared = prepare(memoryview(batch), Rules(compression=target, compression_level=1), now_ms=50)
        assert (prepared.data is None) == (source == target)
        stored = prepared.data or bytes(batch)
        assert check_stored(memoryview(stored), 0, len(stored)).codec == target
        assert list(iter_records(stored)) == self.RECORDS

    def test_rules_come_from_the_topic(self) -> None:
        rules = Rules.of(LogConfig(compact=True, message_timestamp_after_max_ms=7, compression=2, compression_level=3))
        assert rules == Rules(compacted=True, after_max_ms=7, compression=2, compression_level=3)
        with pytest.raises(InvalidRecords):
            prepare(memoryview(bytearray(build_batch(self.RECORDS))), rules, now_ms=0)
