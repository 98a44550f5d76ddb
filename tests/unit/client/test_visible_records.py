"""What a consumer sees of fetched batches: no control records, no aborted transactions, nothing below its position."""

from typing import Any

import pytest

from headrace.client.consume.fetcher import Fetcher, FetchOptions
from headrace.client.consume.places import Chunk, Place
from headrace.client.consume.records import visible_batches
from headrace.client.consume.resets import read_reset
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
    found = []
    for epoch, batch_of_records in visible_batches(records, "t", 0, position, aborted):
        assert epoch == 3 and batch_of_records
        assert all(record.value == b"%d" % record.offset for record in batch_of_records)
        found += [record.offset for record in batch_of_records]
    return found


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


def chunk(records: bytes, start: int, end: int) -> Chunk:
    return Chunk(visible_batches(records, "t", 0, start, ()), start, end, len(records))


def taken(place: Place, limit: int) -> list[int]:
    return [record.offset for record in place.take(limit)[0]]


def test_a_place_moves_over_what_nobody_sees() -> None:
    place = Place("t", 0, 0, bytes(16))
    place.keep(chunk(batch(0, 2) + marker(2, 7, committed=True), 0, 3))
    assert taken(place, 1) == [0] and place.position == 1
    assert taken(place, 5) == [1] and place.position == 2
    assert taken(place, 5) == [] and place.position == 3 and not place.has_records


def damaged_after(good: int) -> bytes:
    """A sound batch with so many records, one that is damaged, and a sound one behind it."""
    middle = bytearray(batch(good, 2))
    middle[-1] ^= 1
    return batch(0, good) + bytes(middle) + batch(good + 2, 2)


def test_damage_loses_neither_what_was_before_it_nor_what_is_behind_it() -> None:
    place = Place("t", 0, 0, bytes(16))
    place.keep(chunk(damaged_after(3), 0, 7))
    assert taken(place, 9) == [0, 1, 2]
    for _ in range(2):
        with pytest.raises(KafkaError):
            place.take(9)
        assert place.position == place.fetch_offset == 3 and not place.has_records, "to be fetched again"
        place.keep(chunk(damaged_after(3), place.position, 7))


def test_damage_in_one_partition_keeps_back_no_record_of_another() -> None:
    fetcher = Fetcher(Cluster("127.0.0.1:1"), lambda: None, FetchOptions(reset=read_reset("none")))
    sound, bad = Place("t", 0, 0, bytes(16)), Place("t", 1, 0, bytes(16))
    fetcher.add(sound)
    fetcher.add(bad)
    seen, failures = [], 0
    for _ in range(6):
        # As after a fetch of everything that is asked for again.
        if not sound.has_records and sound.position < 8:
            sound.keep(chunk(batch(0, 8), sound.position, 8))
            fetcher._enqueue(sound)
        if not bad.has_records:
            bad.keep(chunk(damaged_after(2), bad.position, 6))
            fetcher._enqueue(bad)
        try:
            found = fetcher.take(100)
            assert found is not None
            seen += [(found[0].partition, record.offset) for record in found[1]]
        except RequestFailed as error:
            assert error.error is Err.CORRUPT_MESSAGE and "t-1" in str(error)
            failures += 1
    assert sorted(seen) == [*((0, offset) for offset in range(8)), (1, 0), (1, 1)]
    assert failures and bad.position == 2
