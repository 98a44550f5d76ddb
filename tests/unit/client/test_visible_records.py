"""What a consumer sees of fetched batches: no control records, no aborted transactions, nothing below its position."""

from typing import Any

import pytest

from headrace.client.consume.fetcher import Fetcher, Place, visible_records
from headrace.client.errors import RequestFailed
from headrace.client.net.cluster import Cluster
from headrace.errors import Err, KafkaError
from headrace.records.batch import BatchBuilder
from headrace.records.control import Marker, encode_marker


def batch(base: int, count: int, producer_id: int = -1, *, transactional: bool = False) -> bytes:
    numbers: dict[str, Any] = (
        {"producer_id": producer_id, "producer_epoch": 0, "base_sequence": 0} if producer_id >= 0 else {}
    )
    builder = BatchBuilder(base_offset=base, leader_epoch=3, transactional=transactional, **numbers)
    for number in range(count):
        builder.append(1, None, b"%d" % (base + number))
    return builder.build()


def marker(base: int, producer_id: int, committed: bool) -> bytes:
    return encode_marker(Marker(committed, 0), producer_id=producer_id, producer_epoch=0, timestamp=1, base_offset=base)


def offsets(records: bytes, position: int = 0, aborted: tuple[tuple[int, int], ...] = ()) -> list[int]:
    found = list(visible_records(records, position, aborted))
    assert all(epoch == 3 and record.value == b"%d" % record.offset for epoch, record in found)
    return [record.offset for _, record in found]


def test_records_below_the_position_are_passed_over() -> None:
    assert offsets(batch(0, 5) + batch(5, 5), position=3) == list(range(3, 10))


def test_a_batch_that_is_cut_off_is_left_for_the_next_fetch() -> None:
    assert offsets(batch(0, 5) + batch(5, 5)[:-1]) == list(range(5))


def test_an_aborted_transaction_is_not_seen_and_one_after_it_is() -> None:
    log = batch(0, 2, 7, transactional=True) + batch(2, 2, 8, transactional=True) + marker(4, 7, committed=False)
    log += (
        batch(5, 2, 7, transactional=True) + marker(7, 7, committed=True) + marker(8, 8, committed=True) + batch(9, 1)
    )
    assert offsets(log, aborted=((7, 0),)) == [2, 3, 5, 6, 9]


def test_a_transaction_aborted_later_hides_only_what_it_wrote() -> None:
    log = batch(0, 2, 7, transactional=True) + marker(2, 7, committed=True) + batch(3, 2, 7, transactional=True)
    assert offsets(log, aborted=((7, 3),)) == [0, 1]


def test_damage_is_noticed() -> None:
    damaged = bytearray(batch(0, 3))
    damaged[-1] ^= 1
    with pytest.raises(KafkaError) as found:
        offsets(bytes(damaged))
    assert found.value.error is Err.CORRUPT_MESSAGE


def test_a_place_moves_over_what_nobody_sees() -> None:
    place = Place(0, bytes(16))
    place.waiting, place.waiting_end = visible_records(batch(0, 2) + marker(2, 7, committed=True), 0, ()), 3
    assert [record.offset for record in place.take(1)] == [0] and place.position == 1
    assert [record.offset for record in place.take(5)] == [1] and place.position == 3 and place.waiting is None


def damaged_after(good: int) -> bytes:
    """A sound batch with so many records, one that is damaged, and a sound one behind it."""
    middle = bytearray(batch(good, 2))
    middle[-1] ^= 1
    return batch(0, good) + bytes(middle) + batch(good + 2, 2)


def test_damage_loses_neither_what_was_before_it_nor_what_is_behind_it() -> None:
    place = Place(0, bytes(16))
    place.waiting, place.waiting_end = visible_records(damaged_after(3), 0, ()), 7
    assert [record.offset for record in place.take(9)] == [0, 1, 2]
    assert place.position == 3 and place.waiting is None, "to be fetched again"
    for _ in range(2):
        place.waiting = visible_records(damaged_after(3), place.position, ())
        with pytest.raises(KafkaError):
            place.take(9)
        assert place.position == 3 and place.waiting is None


def test_damage_in_one_partition_keeps_back_no_record_of_another() -> None:
    fetcher = Fetcher(
        Cluster("127.0.0.1:1"), lambda: None, reset="none", read_committed=False, fetch_bytes_max=1, max_wait_ms=1
    )
    sound, bad = fetcher.places["t", 0], fetcher.places["t", 1] = Place(0, bytes(16)), Place(0, bytes(16))
    seen, failures = [], 0
    for _ in range(4):
        # As after a fetch of everything that is asked for again.
        if sound.waiting is None and sound.position < 8:
            sound.waiting, sound.waiting_end = visible_records(batch(0, 8), sound.position, ()), 8
        if bad.waiting is None:
            bad.waiting, bad.waiting_end = visible_records(damaged_after(2), bad.position, ()), 6
        try:
            seen += [(record.partition, record.offset) for record in fetcher.take(100)]
        except RequestFailed as error:
            assert error.error is Err.CORRUPT_MESSAGE and "t-1" in str(error)
            failures += 1
    assert sorted(seen) == [*((0, offset) for offset in range(8)), (1, 0), (1, 1)]
    assert failures and bad.position == 2
