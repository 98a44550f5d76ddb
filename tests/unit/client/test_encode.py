"""Columns to batches: the kernels, the pure fallback and the records package must write the same bytes."""

from collections.abc import Sequence
from random import Random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st

from headrace.client.columnar import native
from headrace.client.columnar.columns import BinaryColumn, RecordColumns
from headrace.client.columnar.encode import encode_batches, encode_rows, partitions_of
from headrace.client.columnar.encode_native import encode_rows_native
from headrace.client.columnar.encode_python import encode_rows_python, partitions_python
from headrace.client.columnar.rows import HEADERS_TYPE
from headrace.client.produce.partitioner import Sticky, murmur2, partition_for_key
from headrace.records.batch import Record, build_batch, iter_records, read_header, validate
from headrace.records.compression import Codec
from headrace.records.layout import HEADER_BYTES

content = st.none() | st.binary(max_size=300)
header = st.tuples(st.text(max_size=8), content)
Row = tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]] | None, int]
row = st.tuples(content, content, st.none() | st.lists(header, max_size=3), st.integers(0, 1 << 41))


def columns_of(rows: Sequence[Row], lead: int = 0) -> RecordColumns:
    """Rows as columns that begin in the middle of their buffers, as Arrow's slices do."""
    padding = [(b"before", b"it", [("x", b"y")], 7)] * lead
    keys, values, headers, times = zip(*(padding + list(rows)))
    lists = [None if one is None else [{"key": k, "value": v} for k, v in one] for one in headers]
    return RecordColumns.of(
        pa.array(values, pa.binary())[lead:],
        key=pa.array(keys, pa.binary())[lead:],
        headers=pa.array(lists, HEADERS_TYPE)[lead:],
        timestamps=np.array(times[lead:], np.int64),
    )


def plain(rows: Sequence[Row]) -> list[Record]:
    return [
        Record(index, time, key, value, tuple(headers or ())) for index, (key, value, headers, time) in enumerate(rows)
    ]


@pytest.fixture
def without_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "load", lambda: None)


def needs_kernels() -> None:
    if native.load() is None:
        pytest.skip("numba is not installed")


@given(st.lists(row, min_size=1, max_size=30), st.integers(0, 3))
@settings(max_examples=200, deadline=None)
def test_one_batch_is_what_the_builder_makes(rows: list[Row], lead: int) -> None:
    needs_kernels()
    expected = build_batch(plain(rows), producer_id=9, producer_epoch=2, base_sequence=5)
    columns = columns_of(rows, lead)
    (batch,) = encode_batches(columns, batch_bytes_max=1 << 20, producer_id=9, producer_epoch=2, base_sequence=5)
    assert bytes(batch) == expected


@given(st.lists(row, min_size=1, max_size=40), st.integers(70, 2000), st.randoms(use_true_random=False))
@settings(max_examples=200, deadline=None)
def test_kernels_and_fallback_cut_and_write_alike(
    rows: list[Row],
    batch_bytes_max: int,
    rng: Random,
) -> None:
    needs_kernels()
    columns = columns_of(rows, 1)
    chosen = np.array([index for index in range(len(rows)) if rng.random() < 0.7] or [0], np.int64)
    kernels = native.load()
    assert kernels is not None
    out, found = encode_rows_native(kernels, columns, chosen, batch_bytes_max)
    slow_out, slow_found = encode_rows_python(columns, chosen, batch_bytes_max, HEADER_BYTES)
    assert [f[:] for f in found] == slow_found
    for start, end, *_ in found:
        assert bytes(out[start + HEADER_BYTES : end]) == bytes(slow_out[start + HEADER_BYTES : end])
    assert [count for _, _, _, count, _, _ in found] and sum(f[3] for f in found) == len(chosen)
    for start, end, _, count, _, _ in found:
        assert count == 1 or end - start <= batch_bytes_max


def test_small_batches_of_one_record_each_find_room_whatever_their_times() -> None:
    count = 3000
    times = np.where(np.arange(count) % 2, 1_700_000_000_000, 0)
    columns = RecordColumns.of(pa.array([b"x" * 471] * count, pa.binary()), timestamps=times)
    batches = encode_rows(columns, batch_bytes_max=1024)
    assert sum(batch.count for batch in batches) == count and len(batches) > count * 0.99


@pytest.mark.parametrize("codec", list(Codec))
def test_a_broker_takes_every_codec(codec: Codec) -> None:
    rows = [
        (b"k%d" % i, b"value" * (i % 50), [("h", b"1"), ("h", None)] if i % 3 else None, 1_700_000_000_000 + i)
        for i in range(500)
    ]
    batches = encode_batches(
        columns_of(rows), codec=codec, batch_bytes_max=8 << 10, producer_id=1, producer_epoch=0, base_sequence=0
    )
    assert len(batches) > 3
    found, sequence = [], 0
    for batch in batches:
        header = read_header(batch)
        validate(bytearray(batch), memoryview(bytearray(batch)), 0, len(batch))
        assert header.codec == codec and header.base_sequence == sequence
        sequence += header.count
        found += [(r.key, r.value, r.headers, r.timestamp) for r in iter_records(batch)]
    assert found == [(key, value, tuple(headers or ()), time) for key, value, headers, time in rows]


def test_no_rows_make_no_batch() -> None:
    assert encode_rows(columns_of([(b"k", b"v", None, 1)]), np.array([], np.int64)) == []


def test_strings_and_large_types_are_taken(without_kernels: None) -> None:
    columns = RecordColumns.of(pa.array(["ä", None], pa.large_string()), key=pa.array(["k", "l"]), timestamps=5)
    (batch,) = encode_batches(columns)
    assert [(r.key, r.value, r.timestamp) for r in iter_records(batch)] == [(b"k", "ä".encode(), 5), (b"l", None, 5)]


def test_a_header_needs_a_key() -> None:
    headers = pa.array([[{"key": None, "value": b"v"}]], HEADERS_TYPE)
    with pytest.raises(ValueError, match="without a key"):
        RecordColumns.of(pa.array([b"v"]), headers=headers, timestamps=0)


def test_murmur2_is_kafkas() -> None:
    # From Kafka's own UtilsTest, as signed numbers.
    known = {
        b"21": -973932308,
        b"foobar": -790332482,
        b"a-little-bit-long-string": -985981536,
        b"a-little-bit-longer-string": -1486304829,
        b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
        b"abc": 479470107,
    }
    for key, signed in known.items():
        assert murmur2(key) == signed & 0xFFFFFFFF


@given(st.lists(st.none() | st.binary(max_size=40), min_size=1, max_size=40), st.integers(1, 100))
@settings(max_examples=100, deadline=None)
def test_partitions_by_kernel_and_by_hand(keys: list[bytes | None], partitions: int) -> None:
    needs_kernels()
    column = BinaryColumn(pa.array([b"skipped", *keys], pa.binary())[1:])
    expected = [-1 if key is None else partition_for_key(key, partitions) for key in keys]
    assert partitions_of(column, partitions).tolist() == expected == partitions_python(column, partitions).tolist()


@given(st.lists(st.integers(0, 500), min_size=1, max_size=200), st.integers(1, 5), st.integers(1, 3))
@settings(max_examples=100, deadline=None)
def test_sticky_fills_one_partition_before_it_moves(sizes: list[int], partitions: int, calls: int) -> None:
    sticky = Sticky(1000)
    for _ in range(calls):
        runs = sticky.runs(np.cumsum(sizes), partitions)
        assert runs[-1][0] == len(sizes)
        start = 0
        for index, (end, partition) in enumerate(runs):
            assert 0 <= partition < partitions and end > start
            if 0 < index < len(runs) - 1:
                assert sum(sizes[start:end]) >= 1000 > sum(sizes[start : end - 1])
            if index and partitions > 1:
                assert partition != runs[index - 1][1]
            start = end
