"""Record batches as Arrow: the kernels against plain Python and against the record reader, and what both refuse."""

import os
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from crc32c import crc32c
from hypothesis import given, settings, strategies as st

from headrace.client.columnar import kernels, native
from headrace.client.columnar.decode import COLUMNS, ROWS_MAX, Decoder, decode_batches
from headrace.errors import Err, KafkaError
from headrace.records import layout
from headrace.records.batch import BatchBuilder, Record, build_batch, iter_records
from headrace.records.compression import Codec
from headrace.records.control import Marker, encode_marker
from headrace.records.layout import CRC_AT, CRC_FROM, HEADER, HEADER_BYTES

EVERYTHING = 1 << 62
BOTH_WAYS = [pytest.param(True, id="native"), pytest.param(False, id="python")]

blobs = st.none() | st.binary(max_size=200)
header_lists = st.lists(st.tuples(st.text(max_size=8), blobs), max_size=4).map(tuple)
records = st.builds(
    Record,
    offset=st.just(0),
    timestamp=st.integers(-(1 << 62), 1 << 62),
    key=blobs,
    value=blobs,
    headers=header_lists,
)


@st.composite
def batches(draw: st.DrawFn) -> bytes:
    """Batches one behind the other, with gaps inside and between them as compaction leaves."""
    out = []
    offset = draw(st.integers(0, 1 << 40))
    for _ in range(draw(st.integers(1, 4))):
        rows = []
        base = offset
        for record in draw(st.lists(records, min_size=1, max_size=8)):
            offset += draw(st.sampled_from([0, 0, 0, 1, 7, 300]))
            rows.append(Record(offset, record.timestamp, record.key, record.value, record.headers))
            offset += 1
        out.append(
            build_batch(
                rows,
                base_offset=base,
                keep_offsets=True,
                compression=draw(st.sampled_from(list(Codec))),
                log_append_time_ms=draw(st.none() | st.integers(0, 1 << 42)),
            )
        )
    return b"".join(out)


def rows_of(batch: pa.RecordBatch) -> list[tuple[Any, ...]]:
    return [tuple(row[name] for name in ("key", "value", "offset", "headers")) for row in batch.to_pylist()]


def plain(batch: pa.RecordBatch) -> Any:
    """As numbers: times beyond a datetime's range cannot be shown otherwise."""
    at = batch.schema.get_field_index("timestamp")
    return batch.set_column(at, "timestamp", batch["timestamp"].cast(pa.int64())) if at >= 0 else batch


@given(data=batches(), cut=st.tuples(st.integers(0, 40), st.integers(0, 40)), torn=st.integers(0, 30))
@settings(max_examples=60, deadline=None)
def test_kernels_and_plain_python_agree_with_the_record_reader(data: bytes, cut: tuple[int, int], torn: int) -> None:
    whole = list(iter_records(data))
    start, end = whole[0].offset + cut[0], whole[-1].offset + 1 - cut[1]
    # The last batch may come torn, as a Fetch ends.
    sent = data[: len(data) - torn]
    arrived = [record for record in iter_records(sent) if start <= record.offset < end]
    both = [decode_batches(sent, start, end, topic="t", partition=3, use_native=way) for way in (True, False)]
    first, second = (plain(one.batch) for one in both)
    assert first.equals(second)
    assert both[0].next_offset == both[1].next_offset
    assert rows_of(first.select(["key", "value", "offset", "headers"])) == [
        (r.key, r.value, r.offset, [{"key": k, "value": v} for k, v in r.headers] or None) for r in arrived
    ]
    clip = ((1 << 63) - 1) // 1000
    assert first["timestamp"].to_pylist() == [max(-clip, min(clip, r.timestamp)) * 1000 for r in arrived]
    first.validate(full=True)


@given(data=batches(), at=st.integers(0, 4000), byte=st.integers(1, 255), fix_crc=st.booleans())
@settings(max_examples=80, deadline=None)
def test_damaged_bytes_give_the_same_answer_both_ways_and_nothing_but_kafka_errors(
    data: bytes, at: int, byte: int, fix_crc: bool
) -> None:
    damaged = bytearray(data)
    damaged[at % len(damaged)] ^= byte
    if fix_crc:
        _fix_crcs(damaged)
    outcomes = []
    for way in (True, False):
        try:
            outcomes.append(plain(decode_batches(damaged, 0, EVERYTHING, use_native=way, check_crc=True).batch))
        except KafkaError as error:
            outcomes.append((error.error, error.message))
    native_outcome, python_outcome = outcomes
    if isinstance(native_outcome, tuple) or isinstance(python_outcome, tuple):
        assert native_outcome == python_outcome
    else:
        assert native_outcome.equals(python_outcome)


def _fix_crcs(data: bytearray) -> None:
    """Let what is inside be looked at at all."""
    pos = 0
    while len(data) - pos >= HEADER_BYTES:
        (length,) = struct.unpack_from(">i", data, pos + 8)
        end = pos + 12 + length
        if length < 49 or end > len(data):
            return
        struct.pack_into(">I", data, pos + CRC_AT, crc32c(memoryview(data)[pos + CRC_FROM : end]))
        pos = end


@pytest.mark.parametrize("use_native", BOTH_WAYS)
def test_a_flipped_bit_is_noticed(use_native: bool) -> None:
    good = build_batch([Record(0, 5, b"k", b"v" * 50)], base_offset=0)
    bad = bytearray(build_batch([Record(0, 5, b"k", b"v" * 50)], base_offset=1))
    bad[-3] ^= 1
    decoder = Decoder("t", 0, ["value"], use_native=use_native)
    with pytest.raises(KafkaError, match="offset 1: CRC") as caught:
        list(decoder.decode(good + bytes(bad), 0, EVERYTHING))
    assert caught.value.error is Err.CORRUPT_MESSAGE
    unchecked = Decoder("t", 0, ["value"], use_native=use_native, check_crc=False)
    assert sum(batch.num_rows for batch in unchecked.decode(good + bytes(bad), 0, EVERYTHING)) == 2


@pytest.mark.parametrize("use_native", BOTH_WAYS)
def test_what_comes_before_damage_is_given_whatever_it_lies_among(use_native: bool) -> None:
    """Plain batches, compressed ones, markers: each kind goes its own way, and none may be lost or come twice."""
    marker = encode_marker(Marker(True, 0), producer_id=9, producer_epoch=0, timestamp=1, base_offset=2)
    kinds: list[Codec | bytes] = [Codec.NONE, Codec.NONE, marker, Codec.NONE, Codec.ZSTD, Codec.NONE, Codec.NONE]
    parts = [
        one
        if isinstance(one, bytes)
        else build_batch([Record(0, 1, None, b"%d" % at)], base_offset=at, compression=one)
        for at, one in enumerate(kinds)
    ]
    for bad in range(1, len(parts)):
        damaged = bytearray(parts[bad])
        damaged[-1] ^= 1
        given, decoder = [], Decoder("t", 0, ["offset"], use_native=use_native)
        with pytest.raises(KafkaError, match=f"offset {bad}: CRC"):
            for batch in decoder.decode(b"".join([*parts[:bad], damaged, *parts[bad + 1 :]]), 1, EVERYTHING):
                given += batch["offset"].to_pylist()
        # Of compressed batches, and of all in plain Python, only what fills an Arrow batch is given before.
        assert given == ([at for at in range(1, min(bad, 4)) if at != 2] if use_native else [])
    decoder = Decoder("t", 0, ["offset"], use_native=use_native)
    assert [o for batch in decoder.decode(b"".join(parts), 1, 6) for o in batch["offset"].to_pylist()] == [1, 3, 4, 5]
    assert decoder.next_offset == 6


def test_kernels_know_the_layout() -> None:
    same = [
        "HEADER_BYTES",
        "LOG_OVERHEAD",
        "RECORD_BYTES_MIN",
        "MAGIC_AT",
        "CRC_AT",
        "ATTRIBUTES_AT",
        "CODEC_MASK",
        "LOG_APPEND_TIME",
        "CONTROL",
    ]
    assert {name: getattr(kernels, name) for name in same} == {name: getattr(layout, name) for name in same}
    places = [
        kernels.LENGTH_AT,
        kernels.LAST_DELTA_AT,
        kernels.BASE_TIMESTAMP_AT,
        kernels.MAX_TIMESTAMP_AT,
        kernels.COUNT_AT,
    ]
    widths = ["i", "i", "q", "q", "i"]
    data = HEADER.pack(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13)
    assert [struct.unpack_from(f">{width}", data, at)[0] for at, width in zip(places, widths)] == [2, 7, 8, 9, 13]


@pytest.mark.parametrize("use_native", BOTH_WAYS)
def test_a_count_that_lies_is_refused_before_room_is_made_for_it(use_native: bool) -> None:
    batch = bytearray(build_batch([Record(0, 5, None, b"v")]))
    struct.pack_into(">i", batch, HEADER_BYTES - 4, 1 << 30)
    _fix_crcs(batch)
    with pytest.raises(KafkaError, match="do not fit") as caught:
        decode_batches(batch, 0, EVERYTHING, use_native=use_native)
    assert caught.value.error is Err.INVALID_RECORD


@pytest.mark.parametrize("use_native", BOTH_WAYS)
def test_control_batches_and_emptied_ones_give_no_rows_but_count_as_read(use_native: bool) -> None:
    marker = encode_marker(Marker(True, 0), producer_id=9, producer_epoch=0, timestamp=1, base_offset=1)
    emptied = BatchBuilder(base_offset=2, compression=Codec.LZ4).build(last_offset=8)
    data = (
        build_batch([Record(0, 1, None, b"a")])
        + marker
        + emptied
        + build_batch([Record(0, 1, None, b"b")], base_offset=9)
    )
    found = decode_batches(data, 0, EVERYTHING, columns=["value", "offset"], use_native=use_native)
    assert found.batch.to_pylist() == [{"value": b"a", "offset": 0}, {"value": b"b", "offset": 9}]
    assert found.next_offset == 10


@pytest.mark.parametrize("use_native", BOTH_WAYS)
def test_read_committed_leaves_out_exactly_the_aborted_transactions(use_native: bool) -> None:
    def txn(offset: int, producer: int, value: bytes) -> bytes:
        return build_batch(
            [Record(0, 1, None, value)], base_offset=offset, producer_id=producer, producer_epoch=0,
            base_sequence=offset, transactional=True,
        )  # fmt: skip

    def end(offset: int, producer: int, committed: bool) -> bytes:
        return encode_marker(
            Marker(committed, 0), producer_id=producer, producer_epoch=0, timestamp=1, base_offset=offset
        )

    idempotent = build_batch(
        [Record(0, 1, None, b"plain")], base_offset=4, producer_id=1, producer_epoch=0, base_sequence=0
    )
    data = (
        txn(0, 1, b"aborted") + txn(1, 2, b"committed") + txn(2, 1, b"aborted too") + end(3, 1, False) + idempotent
        + end(5, 2, True) + txn(6, 1, b"second life") + end(7, 1, True) + txn(8, 2, b"aborted later") + end(9, 2, False)
    )  # fmt: skip
    aborted = [(2, 8), (1, 0)]
    found = decode_batches(data, 0, 10, columns=["value"], aborted=aborted, read_committed=True, use_native=use_native)
    assert found.batch["value"].to_pylist() == [b"committed", b"plain", b"second life"]
    assert found.next_offset == 10
    committed = decode_batches(
        data, 0, 10, columns=["offset"], aborted=aborted, read_committed=True, use_native=use_native
    )
    offsets = committed.batch["offset"].to_pylist()
    assert 6 in offsets and 0 not in offsets and 8 not in offsets
    # Also from the middle of it, as when an index leads to a place before the first record that is wanted.
    for start in range(10):
        rest = decode_batches(
            data, start, 10, columns=["offset"], aborted=aborted, read_committed=True, use_native=use_native
        )
        assert rest.batch["offset"].to_pylist() == [offset for offset in offsets if offset >= start]
    everything = decode_batches(data, 0, 10, columns=["value"], aborted=aborted, use_native=use_native)
    assert everything.batch.num_rows == 6


@pytest.mark.parametrize("use_native", BOTH_WAYS)
def test_bounds_cut_inside_a_batch(use_native: bool) -> None:
    data = build_batch([Record(0, i, None, b"%d" % i, (("h", b"%d" % i),)) for i in range(100)], base_offset=50)
    found = decode_batches(data, 60, 70, use_native=use_native).batch
    assert found["offset"].to_pylist() == list(range(60, 70))
    assert found["headers"].to_pylist()[0] == [{"key": "h", "value": b"10"}]


@pytest.mark.parametrize("use_native", BOTH_WAYS)
def test_log_append_time_stands_for_every_record(use_native: bool) -> None:
    data = build_batch([Record(0, 5, None, b"a"), Record(0, 9, None, b"b")], log_append_time_ms=1_700_000_000_123)
    data += build_batch([Record(0, 7, None, b"c")], base_offset=2)
    found = plain(
        decode_batches(data, 0, EVERYTHING, columns=["timestamp", "timestampType"], use_native=use_native).batch
    )
    assert found["timestamp"].to_pylist() == [1_700_000_000_123_000] * 2 + [7000]
    assert found["timestampType"].to_pylist() == [1, 1, 0]


@pytest.mark.parametrize("use_native", BOTH_WAYS)
def test_header_names_that_are_no_utf8_are_shown_as_java_shows_them(use_native: bool) -> None:
    data = build_batch([Record(0, 1, None, b"v", (("caf\udce9", b"x"),))])
    found = decode_batches(data, 0, EVERYTHING, columns=["headers"], use_native=use_native).batch
    assert found["headers"].to_pylist() == [[{"key": "caf�", "value": b"x"}]]


def test_large_batches_come_in_pieces_of_bounded_size() -> None:
    one = build_batch([Record(0, 1, None, b"v") for _ in range(ROWS_MAX + 10)])
    data = one + b"".join(
        build_batch([Record(0, 1, None, b"v") for _ in range(100)], base_offset=ROWS_MAX + 10 + 100 * i)
        for i in range(400)
    )
    decoder = Decoder("t", 0, ["offset", "topic", "partition"])
    found = list(decoder.decode(data, 0, EVERYTHING))
    assert all(batch.num_rows <= ROWS_MAX for batch in found)
    assert [o for batch in found for o in batch["offset"].to_pylist()] == list(range(ROWS_MAX + 10 + 40_000))
    assert set(found[0]["topic"].to_pylist()) == {"t"}


@pytest.mark.parametrize("use_native", BOTH_WAYS)
@pytest.mark.parametrize("codec", list(Codec))
def test_a_bomb_is_not_blown_up(use_native: bool, codec: Codec) -> None:
    data = build_batch([Record(0, 1, None, bytes(1 << 20))], compression=codec)
    decoder = Decoder("t", 0, ["value"], limit_bytes=1 << 16, use_native=use_native)
    if codec is Codec.NONE:
        assert next(decoder.decode(data, 0, EVERYTHING)).num_rows == 1
        return
    with pytest.raises(KafkaError, match="more than the"):
        list(decoder.decode(data, 0, EVERYTHING))


def test_old_magic_is_named() -> None:
    data = bytearray(build_batch([Record(0, 1, None, b"v")]))
    data[16] = 1
    with pytest.raises(KafkaError, match="magic 1"):
        decode_batches(data, 0, EVERYTHING)


def test_compiled_code_is_kept_and_runs_without_numba(tmp_path: Path) -> None:
    assert native.load() is not None, "numba is part of the development environment"
    program = (
        "import sys; sys.modules['numba'] = None\n"
        "from headrace.client.columnar import native\n"
        "from headrace.client.columnar.decode import decode_batches\n"
        "from headrace.records.batch import BatchBuilder, Record, build_batch\n"
        "data = build_batch([Record(0, 1, b'k', b'v', (('h', b'x'),))])\n"
        "assert native.load() is not None\n"
        "print(decode_batches(data, 0, 9, use_native=True).batch.num_rows)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "1"
    # Neither kept code nor numba: plain Python, and no complaint. A kept file that was damaged is not run.
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    kept = native._path(__import__("llvmlite.binding").binding)
    assert kept is not None
    (tmp_path / "headrace").mkdir()
    (tmp_path / "headrace" / kept.name).write_bytes(kept.read_bytes()[:-100])
    program = program.replace("assert native.load() is not None\n", "assert native.load() is None\n")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.strip() == "1"


def test_columns_are_those_of_sparks_kafka_source() -> None:
    from pyspark.sql.pandas.types import to_arrow_schema

    from headrace.spark.options import SOURCE, read_options
    from headrace.spark.source.schema import default_schema

    values = read_options({"kafka.bootstrap.servers": "x", "includeHeaders": "true"}, SOURCE)
    schema = to_arrow_schema(default_schema(values), timezone="UTC")
    assert schema.equals(pa.schema(list(COLUMNS.items())))


@pytest.mark.skipif(native.load() is None, reason="needs numba")
def test_memory_is_used_again_but_never_under_rows_that_someone_holds() -> None:
    def answer(number: int) -> bytes:
        return build_batch([Record(0, 0, b"k%06d" % row, bytes([number]) * 1000) for row in range(1000)])

    decoder = Decoder("t", 0, ["key", "value"], use_native=True)
    held = [batch for number in range(6) for batch in decoder.decode(answer(number), 0, EVERYTHING)]
    for number, batch in enumerate(held):
        assert set(batch.column(1).to_pylist()) == {bytes([number]) * 1000}
    del batch, held
    addresses = set()
    for number in range(20):
        for batch in decoder.decode(answer(number), 0, EVERYTHING):
            addresses.add(batch.column(1).buffers()[2].address)
            assert batch.column(1)[-1].as_py() == bytes([number]) * 1000
    # One is filled while the last is still held.
    assert len(addresses) <= 2
