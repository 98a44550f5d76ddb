"""Batches from a leader: only what comes next, whole and of its epoch, is taken."""

import pytest
from hypothesis import given, strategies as st

from headrace.errors import Err, KafkaError
from headrace.records.batch import check_incoming
from headrace.records.builder import build_batch
from headrace.records.reader import Record


def batch(offset: int, count: int = 1, epoch: int = 5) -> bytes:
    records = [Record(offset + at, 1000, None, b"value") for at in range(count)]
    return build_batch(records, base_offset=offset, leader_epoch=epoch)


def offsets(data: bytes, next_offset: int, epoch: int = 5) -> list[int]:
    return [header.base_offset for _, header in check_incoming(memoryview(data), next_offset, epoch)]


def test_what_comes_next_is_taken_up_to_a_piece_of_a_batch() -> None:
    data = batch(10, 2) + batch(12) + batch(13, 3)
    assert offsets(data, 10) == [10, 12, 13]
    assert offsets(data[:-1], 10) == [10, 12]
    assert offsets(b"", 10) == offsets(data[:20], 10) == []


def test_gaps_of_compaction_are_no_fault() -> None:
    assert offsets(batch(10) + batch(20) + batch(30), 9) == [10, 20, 30]


def test_what_is_there_already_is_left_out() -> None:
    data = batch(10, 2) + batch(12) + batch(13)
    assert offsets(data, 12) == [12, 13]
    assert offsets(data, 14) == []


@pytest.mark.parametrize("data", [batch(10, 4), batch(14) + batch(13), batch(12, 2) + batch(12, 2)])
def test_what_goes_back_is_refused(data: bytes) -> None:
    with pytest.raises(KafkaError) as refused:
        offsets(data, 12)
    assert refused.value.error is Err.CORRUPT_MESSAGE


def test_a_batch_of_a_later_leader_is_not_this_leaders_to_give() -> None:
    assert offsets(batch(10, epoch=4) + batch(11, epoch=6) + batch(12, epoch=5), 10) == [10]
    assert offsets(batch(10, epoch=-1), 10) == [10], "written before there were epochs"


@given(at=st.integers(0, 10_000), bit=st.integers(0, 7))
def test_no_flipped_bit_is_taken_for_a_record(at: int, bit: int) -> None:
    data = bytearray(batch(10, 3) + batch(13, 3))
    at %= len(data)
    data[at] ^= 1 << bit
    size = len(batch(10, 3))
    try:
        found = check_incoming(memoryview(data), 10, 5)
    except KafkaError as error:
        assert error.error is Err.CORRUPT_MESSAGE
        return
    for position, header in found:
        here = position % size
        # Outside the CRC are only the offset, which must still follow on, and the epoch, which must not be a later one.
        assert at // size != position // size or at % size < here + 8 or 12 <= at % size < 16
        assert header.base_offset >= 10 and header.leader_epoch <= 5
