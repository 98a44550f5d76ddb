"""Headers, validation of a client's batch, and stamping; the other Kafka clients' builders are the oracles."""

import struct
from typing import Any

import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder as AioBuilder
from crc32c import crc32c
from hypothesis import given, settings, strategies as st

from headrace.errors import Err, KafkaError
from headrace.records.batch import (
    HEADER,
    HEADER_BYTES,
    BatchBuilder,
    BatchHeader,
    Record,
    build_batch,
    check_stored,
    iter_headers,
    next_sequence,
    read_header,
    set_max_timestamp,
    stamp,
    validate,
)

RECORDS = [Record(0, 1_000, b"k", b"v"), Record(0, 1_005, None, b"w"), Record(0, 990, b"", None)]


def check(batch: bytes) -> BatchHeader:
    buf = bytearray(b"frame" + batch + b"rest")
    with memoryview(buf) as view:
        return BatchHeader._make(validate(buf, view, 5, 5 + len(batch)))


def with_fields(batch: bytes, *, good_crc: bool = True, **fields: Any) -> bytes:
    """The batch with header fields overwritten and, unless told otherwise, a CRC that fits."""
    header = BatchHeader._make(HEADER.unpack_from(batch))._replace(**fields)
    changed = bytearray(HEADER.pack(*header) + batch[HEADER_BYTES:])
    if good_crc:
        struct.pack_into(">I", changed, 17, crc32c(memoryview(changed)[21:]))
    return bytes(changed)


def refusal(batch: bytes) -> Err:
    with pytest.raises(KafkaError) as raised:
        check(batch)
    return raised.value.error


def test_a_batch_of_another_client_passes() -> None:
    builder = AioBuilder(2, 0, 1, 7, 3, 40, 1 << 20)
    builder.append(0, 1_000, b"k", b"v", [("h", b"x")])
    builder.append(1, 2_000, None, None, [])
    header = check(bytes(builder.build()))
    assert header.count == 2
    assert header.last_offset_delta == 1
    assert (header.base_timestamp, header.max_timestamp) == (1_000, 2_000)
    assert (header.producer_id, header.producer_epoch, header.base_sequence, header.last_sequence) == (
        7,
        3,
        40,
        41,
    )
    assert header.is_transactional
    assert not header.is_control


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"magic": 1}, Err.INVALID_RECORD),
        ({"magic": 0}, Err.INVALID_RECORD),
        ({"magic": 3}, Err.CORRUPT_MESSAGE),
        ({"magic": -1}, Err.CORRUPT_MESSAGE),
        ({"length": 13}, Err.CORRUPT_MESSAGE),
        ({"length": -1}, Err.CORRUPT_MESSAGE),
        ({"length": 1 << 30}, Err.INVALID_RECORD),
        ({"length": 60}, Err.CORRUPT_MESSAGE),
        ({"base_offset": 1}, Err.INVALID_RECORD),
        ({"count": 0, "last_offset_delta": -1}, Err.INVALID_RECORD),
        ({"count": -5, "last_offset_delta": -6}, Err.INVALID_RECORD),
        ({"count": 2}, Err.INVALID_RECORD),
        ({"last_offset_delta": 7}, Err.INVALID_RECORD),
        ({"count": 1 << 20, "last_offset_delta": (1 << 20) - 1}, Err.INVALID_RECORD),
        ({"attributes": 0x20}, Err.INVALID_RECORD),
        ({"attributes": 0x10}, Err.INVALID_RECORD),
        ({"attributes": 5}, Err.UNSUPPORTED_COMPRESSION_TYPE),
        ({"attributes": 7}, Err.UNSUPPORTED_COMPRESSION_TYPE),
        ({"producer_id": 9, "producer_epoch": 0, "base_sequence": -1}, Err.INVALID_RECORD),
    ],
)
def test_refused_headers(fields: dict[str, Any], error: Err) -> None:
    assert refusal(with_fields(build_batch(RECORDS), **fields)) == error


def test_wrong_crc_is_corrupt() -> None:
    assert refusal(with_fields(build_batch(RECORDS), good_crc=False, crc=1)) == Err.CORRUPT_MESSAGE


@pytest.mark.parametrize("cut", range(len(build_batch(RECORDS))))
def test_every_truncation_is_refused_by_name(cut: int) -> None:
    assert refusal(build_batch(RECORDS)[:cut]) in (Err.INVALID_RECORD, Err.CORRUPT_MESSAGE)


def test_two_batches_are_refused() -> None:
    assert refusal(build_batch(RECORDS) * 2) == Err.INVALID_RECORD


@given(st.integers(0, len(build_batch(RECORDS)) - 1), st.integers(1, 255))
def test_a_flipped_byte_passes_only_outside_the_crc(at: int, flip: int) -> None:
    batch = bytearray(build_batch(RECORDS))
    batch[at] ^= flip
    try:
        check(bytes(batch))
    except KafkaError:
        return
    assert 12 <= at < 16, "only the leader epoch is neither checked nor under the CRC"


def test_a_piece_behind_the_batch_is_left_to_the_caller() -> None:
    batch = build_batch(RECORDS)
    for cut in (1, 11, 17, len(batch) - 1):
        assert BatchHeader._make(check(batch + batch[:cut])) == read_header(batch)
    assert refusal(batch + b"\0" * 12) == Err.CORRUPT_MESSAGE, "a length that no batch can have"


def test_what_kafka_does_not_mind() -> None:
    harmless: tuple[dict[str, Any], ...] = (
        {"attributes": 0x40},
        {"attributes": 0x80},
        {"producer_id": 9, "producer_epoch": -1, "base_sequence": 0},
    )
    for fields in harmless:
        assert read_header(with_fields(build_batch(RECORDS), **fields))._replace(crc=0) == BatchHeader._make(
            check(with_fields(build_batch(RECORDS), **fields))
        )._replace(crc=0)


@pytest.mark.parametrize("codec", range(5))
def test_the_bit_for_append_time_is_cleared(codec: int) -> None:
    good = build_batch(RECORDS, compression=codec)
    buf = bytearray(with_fields(good, attributes=codec | 8))
    assert BatchHeader._make(validate(buf, memoryview(buf), 0, len(buf))) == read_header(good)
    assert buf == good


@pytest.mark.parametrize("codec", range(5))
def test_an_unset_maximum_timestamp_is_mended_in_place(codec: int) -> None:
    good = build_batch(RECORDS, compression=codec)
    buf = bytearray(with_fields(good, max_timestamp=-1))
    assert BatchHeader._make(validate(buf, memoryview(buf), 0, len(buf))) == read_header(good)
    assert buf == good


def test_mending_looks_at_the_records() -> None:
    batch = bytearray(build_batch(RECORDS))
    batch[HEADER_BYTES] = 0x7E
    assert refusal(with_fields(bytes(batch), max_timestamp=-1)) == Err.INVALID_RECORD


def test_attribute_bits_without_a_meaning_are_let_through() -> None:
    assert check(with_fields(build_batch(RECORDS), attributes=0x100)).attributes == 0x100


def test_stamp_leaves_the_crc_valid() -> None:
    buf = bytearray(b"xx" + build_batch(RECORDS))
    stamp(buf, 2, 1 << 40, read_header(buf, 2).length, 17)
    header = check_stored(memoryview(buf), 2, len(buf))
    assert (header.base_offset, header.leader_epoch) == (1 << 40, 17)
    assert header.last_offset == (1 << 40) + 2
    assert header.end_offset == (1 << 40) + 3


def test_stored_batches_may_have_gaps_or_nothing_at_all() -> None:
    builder = BatchBuilder(base_offset=100, producer_id=5, producer_epoch=0, base_sequence=10)
    builder.append(1, b"k", b"v", offset=103)
    sparse = builder.build(last_offset=109)
    empty = BatchBuilder(base_offset=110, producer_id=5, producer_epoch=0, base_sequence=20).build(
        last_offset=119, max_timestamp=77
    )
    both = memoryview(sparse + empty)
    first = check_stored(both, 0, len(both))
    second = check_stored(both, first.size, len(both))
    assert (first.last_offset, first.count, first.last_sequence) == (109, 1, 19)
    assert (second.base_offset, second.last_offset, second.count) == (110, 119, 0)
    assert (second.base_timestamp, second.max_timestamp, second.last_sequence) == (-1, 77, 29)
    assert [position for position, _ in iter_headers(both)] == [0, first.size]


def test_delete_horizon_is_the_base_timestamp() -> None:
    header = read_header(build_batch(RECORDS, delete_horizon_ms=5_000))
    assert header.delete_horizon_ms == 5_000
    assert header.max_timestamp == 1_005
    assert read_header(build_batch(RECORDS)).delete_horizon_ms is None


@pytest.mark.parametrize(
    "damage",
    [{"crc": 1}, {"magic": 1}, {"length": 10}, {"length": 10_000}, {"count": -1}, {"last_offset_delta": -2}],
)
def test_damaged_stored_batches(damage: dict[str, int]) -> None:
    batch = with_fields(build_batch(RECORDS), good_crc="crc" not in damage, **damage)
    with pytest.raises(KafkaError) as raised:
        check_stored(memoryview(batch), 0, len(batch))
    assert raised.value.error == Err.CORRUPT_MESSAGE


def test_iteration_stops_at_an_incomplete_tail() -> None:
    batch = build_batch(RECORDS)
    for cut in range(len(batch)):
        assert [position for position, _ in iter_headers(batch + batch[:cut])] == [0]


def test_max_timestamp_can_change_in_place() -> None:
    buf = bytearray(build_batch(RECORDS))
    view = memoryview(buf)
    set_max_timestamp(buf, 0, read_header(buf), 123_456, log_append_time=True)
    header = check_stored(view, 0, len(buf))
    assert header.is_log_append_time
    assert header.max_timestamp == 123_456
    set_max_timestamp(buf, 0, header, 1_005, log_append_time=False)
    assert bytes(buf) == build_batch(RECORDS)


@settings(max_examples=300)
@given(st.binary(max_size=200))
def test_noise_is_refused_by_name(noise: bytes) -> None:
    assert refusal(noise) in (Err.INVALID_RECORD, Err.CORRUPT_MESSAGE)
    try:
        list(iter_headers(noise))
        read_header(noise)
    except KafkaError as error:
        assert error.error == Err.CORRUPT_MESSAGE


def test_sequences_wrap_to_zero() -> None:
    assert next_sequence(0x7FFFFFFF) == 0
    assert next_sequence(0x7FFFFFFE, 3) == 1
    assert next_sequence(5) == 6
