"""Readers of committed records see no aborted one, whatever part of the log is damaged, missing or back again."""

import random
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

import pytest

from headrace.config import LogConfig
from headrace.errors import Err, KafkaError
from headrace.records.control import Marker, decode_marker, encode_marker
from headrace.records.layout import HEADER, BatchHeader, iter_headers
from headrace.storage.log import Log
from headrace.storage.mending import begin_mending
from headrace.storage.salvage import Part, salvage
from headrace.storage.segment_writer import SegmentWriter
from headrace.testing.simulator.disk import MemoryDisk

from .helpers import FOLDER, Files, batch, files_of, open_log, restored

CONFIG = LogConfig(segment_bytes=900, index_interval_bytes=150)
PRODUCERS = 3


class Written(NamedTuple):
    files: Files
    batches: list[bytes]
    committed: frozenset[int]
    """Offsets of data batches."""
    end_offset: int


@cache
def written(seed: int) -> Written:
    """Transactions of several producers, most of them over several segments; all have ended."""
    dice = random.Random(seed)
    disk = MemoryDisk()
    log = open_log(disk, config=CONFIG)
    batches: list[bytes] = []
    committed: set[int] = set()
    pending: dict[int, list[int]] = {}
    ids = dict.fromkeys(range(PRODUCERS), 0)
    """How often each was replaced by another, who writes under an id of its own."""

    def append(data: bytes) -> None:
        batches.append(data)
        log.append_batches(data, 1000)

    def end(producer: int, commit: bool) -> None:
        if commit:
            committed.update(pending[producer])
        del pending[producer]
        append(
            encode_marker(
                Marker(commit, 0),
                producer_id=100 * producer + ids[producer],
                producer_epoch=0,
                timestamp=1000,
                base_offset=log.end_offset,
            )
        )
        ids[producer] += dice.random() < 0.5

    for _ in range(90):
        producer = dice.randrange(PRODUCERS + 1)
        if producer == PRODUCERS:
            committed.add(log.end_offset)
            append(batch(log.end_offset, dice.randint(1, 3), size=20))
        elif producer in pending and dice.random() < 0.15:
            end(producer, dice.random() < 0.4)
        else:
            pending.setdefault(producer, []).append(log.end_offset)
            count = dice.randint(1, 2)
            producer_id = 100 * producer + ids[producer]
            append(batch(log.end_offset, count, size=20, transactional=True, producer_id=producer_id, producer_epoch=0))
    for producer in sorted(pending):
        end(producer, dice.random() < 0.5)
    committed.add(log.end_offset)
    append(batch(log.end_offset, 1))
    assert len(log.segments) > 8
    log.close()
    return Written(files_of(disk), batches, frozenset(committed), log.end_offset)


def reopened(disk: MemoryDisk, end_offset: int, *, clean: bool) -> Log:
    point = end_offset if clean else 0
    return open_log(disk, config=CONFIG, clean=clean, recovery_point=point, committed=end_offset, manifest_trusted=True)


def told(log: Log, offset: int, max_bytes: int) -> Iterator[tuple[int, bool]]:
    """(offset, whether it is committed) of each batch of records that a reader gets from `offset` on."""
    piece = log.read(offset, max_bytes, log.end_offset)
    assert piece is not None
    try:
        aborted = sorted(log.aborted_transactions(offset, log.offset_behind(offset, piece)), key=lambda one: one[1])
        data = piece.read()
    finally:
        piece.release()
    skipped: set[int] = set()
    for position, header in iter_headers(data):
        while aborted and aborted[0][1] <= header.last_offset:
            skipped.add(aborted.pop(0)[0])
        if header.is_control:
            marker = decode_marker(data, position, header)
            if marker is not None and not marker.committed:
                skipped.discard(header.producer_id)
        else:
            yield header.base_offset, header.producer_id not in skipped


def check(log: Log, truth: Written, context: str) -> set[int]:
    """Whatever is told is true. Returns the offsets of which something was told."""
    found = set()
    for offset in range(log.end_offset):
        for max_bytes in (1, 700):
            try:
                rows = list(told(log, offset, max_bytes))
            except KafkaError as error:
                assert error.error is Err.KAFKA_STORAGE_ERROR
                continue
            for base, is_committed in rows:
                assert is_committed == (base in truth.committed), f"{base}, read from {offset}: {context}"
                found.add(base)
    return found


def data_offsets(truth: Written) -> set[int]:
    headers = [BatchHeader._make(HEADER.unpack_from(data)) for data in truth.batches]
    return {header.base_offset for header in headers if not header.is_control}


def mend(log: Log) -> None:
    """What a broker does with every hole whose file was set aside."""
    for hole in list(log.holes):
        for part in salvage(log.disk, hole.path, hole.start_offset, hole.end_offset, 150, False):
            mending = begin_mending(log, hole, part)
            assert mending is not None
            mending.run()
            mending.finish()


def fill(log: Log, batches: list[bytes], count: int) -> None:
    """What a follower does with the batches that it fetches, for some of its holes."""
    for hole in sorted(log.holes, key=lambda hole: hole.start_offset)[:count]:
        writer = SegmentWriter(log.disk, log.path, hole.start_offset, 150, aborted_known=False)
        for data in batches:
            header = BatchHeader._make(HEADER.unpack_from(data))
            if hole.start_offset <= header.base_offset < hole.end_offset:
                writer.append(header, data)
        size = writer.finish()
        writer.close()
        log.disk.sync_dir(log.path)
        mending = begin_mending(log, hole, Part(hole.start_offset, hole.end_offset, size))
        assert mending is not None
        mending.run()
        mending.finish()


def damage(disk: MemoryDisk, log: Log, number: int, dice: random.Random) -> None:
    path = log.segments[number].handle.path
    batches = list(iter_headers(disk.read_bytes(path)))
    for position, header in dice.sample(batches, dice.randint(1, 2)):
        disk.flip(path, position + header.size - 1)


class Steps:
    """After each step of a repair: look, perhaps restart, and look again."""

    def __init__(self, disk: MemoryDisk, truth: Written, restarts: str) -> None:
        self._disk = disk
        self._truth = truth
        self._restarts = restarts

    def __call__(self, log: Log) -> tuple[Log, set[int]]:
        disk, truth, restarts = self._disk, self._truth, self._restarts
        found = check(log, truth, restarts)
        if restarts == "none":
            return log, found
        if restarts == "clean":
            log.close()
            disk.sync_all()
        else:
            log.flush()
            log.abandon()
        if restarts in ("crash without snapshots", "then clean"):
            for name in disk.list(FOLDER):
                if name.endswith(".snapshot"):
                    disk.remove(f"{FOLDER}/{name}")
        log = reopened(disk, truth.end_offset, clean=restarts == "clean")
        if restarts == "then clean":
            self._restarts = "clean"
        return log, check(log, truth, f"{restarts}, restarted")


@pytest.mark.parametrize("restarts", ["none", "clean", "crash", "crash without snapshots", "then clean"])
@pytest.mark.parametrize("seed", range(3))
def test_no_aborted_record_counts_as_committed_while_a_segment_is_damaged_and_mended(seed: int, restarts: str) -> None:
    """At every step of a repair, with a restart after each: set aside, what is left of it served again, the rest
    fetched. In the end everything is told as before."""
    truth = written(seed)
    dice = random.Random(seed)
    for number in (1, 3, 6):
        disk = restored(truth.files)
        log = reopened(disk, truth.end_offset, clean=True)
        step = Steps(disk, truth, restarts)
        assert check(log, truth, "whole") == data_offsets(truth)
        damage(disk, log, number, dice)
        log.set_aside(log.segments[number], "found by the test")
        log, lost = step(log)
        mend(log)
        log, mended = step(log)
        assert len(mended) >= len(lost)
        fill(log, truth.batches, 1)
        log, _ = step(log)
        fill(log, truth.batches, 9)
        assert not log.holes
        assert check(log, truth, "filled") == data_offsets(truth), "all is told again"
        log, everything = step(log)
        assert everything == data_offsets(truth)
        assert log.producers.first_undecided_offset is None, "all have ended"
        log.close()


def test_readers_before_a_hole_are_refused_only_for_transactions_that_may_have_ended_in_it() -> None:
    disk = MemoryDisk()
    log = open_log(disk, config=CONFIG)
    # 0: committed at once. 1, 2: a transaction that is aborted in a later segment.
    log.append_batches(batch(0, 1, size=20), 1000)
    for offset in (1, 2):
        options = {"producer_id": 7, "producer_epoch": 0, "base_sequence": offset - 1}
        log.append_batches(batch(offset, 1, size=20, transactional=True, **options), 1000)
    log.roll(1000)
    log.append_batches(batch(3, 1, size=20), 1000)
    marker = encode_marker(Marker(False, 0), producer_id=7, producer_epoch=0, timestamp=1000, base_offset=4)
    log.append_batches(marker, 1000)
    log.roll(1000)
    log.append_batches(batch(5, 1, size=20), 1000)
    assert log.aborted_transactions(1, 3) == [(7, 1)]
    log.set_aside(log.segments[1], "found by the test")
    assert log.aborted_transactions(0, 1) == []
    with pytest.raises(KafkaError, match="may be of a transaction that was aborted in offsets 3 to 5") as refused:
        log.aborted_transactions(0, 2)
    assert refused.value.error is Err.KAFKA_STORAGE_ERROR
    assert log.aborted_transactions(5, 6) == []
    log.close()
    log = open_log(disk, config=CONFIG, clean=True)
    assert log.aborted_transactions(0, 1) == []
    with pytest.raises(KafkaError):
        log.aborted_transactions(0, 2)


def test_readers_before_a_hole_read_on_where_no_transaction_was_open() -> None:
    log = open_log(MemoryDisk(), config=CONFIG)
    for offset in range(3):
        log.append_batches(batch(offset, 1, size=20), 1000)
        log.roll(1000)
    log.append_batches(batch(3, 1, size=20), 1000)
    log.set_aside(log.segments[1], "found by the test")
    # A slice of the first segment may be said to end where the segment behind the hole begins.
    assert log.aborted_transactions(0, 2) == []


def test_damage_elsewhere_that_nobody_has_found_yet_is_no_end_of_the_broker() -> None:
    """What is put back has ends of transactions in it: which of them were aborted, the log before it tells."""
    truth = written(0)
    disk = restored(truth.files)
    log = reopened(disk, truth.end_offset, clean=True)
    log.set_aside(next(one for one in log.segments[2:] if one.aborted), "found by the test")
    for offset in log.snapshots.offsets[:]:
        log.snapshots.remove(offset)
    before, hole = log.segments[1], log.holes[0]
    disk.flip(before.handle.path, 16)
    fill(log, truth.batches, 1)
    assert not log.holes and log.failed is None
    with pytest.raises(KafkaError) as refused:
        log.aborted_transactions(hole.start_offset, hole.start_offset + 1)
    assert refused.value.error is Err.KAFKA_STORAGE_ERROR
    assert [one.start_offset for one in log.holes] == [before.base_offset], "found, and set aside"
    assert log.failed is None


class CountingDisk(MemoryDisk):
    """Notes which files beside the log somebody asks for."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []

    def exists(self, path: str) -> bool:
        self._note(path)
        return super().exists(path)

    def read_bytes(self, path: str) -> bytes:
        self._note(path)
        return super().read_bytes(path)

    def _note(self, path: str) -> None:
        if path.endswith((".txnindex", ".snapshot")):
            self.asked.append(path)


def test_a_reader_looks_no_further_for_aborted_transactions_than_to_where_none_is_open() -> None:
    """A log of many segments, in which one transaction was aborted long ago: a fetch asks for the index of its own
    segment and for one snapshot, and the next fetch for nothing."""
    disk = CountingDisk()
    log = open_log(disk, config=CONFIG)
    log.append_batches(batch(0, 1, transactional=True, producer_id=7, producer_epoch=0), 1000)
    log.append_batches(
        encode_marker(Marker(False, 0), producer_id=7, producer_epoch=0, timestamp=1000, base_offset=1), 1000
    )
    for _ in range(60):
        log.roll(1000)
        for _ in range(3):
            log.append_batches(batch(log.end_offset, 1), 1000)
    far = log.segments[50].base_offset
    log.append_batches(batch(log.end_offset, 1, transactional=True, producer_id=8, producer_epoch=0), 1000)
    log.close()

    log = open_log(disk, config=CONFIG, clean=True)
    for offset in (0, log.segments[10].base_offset, log.segments[30].base_offset):
        at = 2 if offset else 0
        disk.asked.clear()
        assert log.aborted_transactions(offset, offset + at) == []
        assert len(disk.asked) <= 3, "the index of its segment and the snapshot of the next"
        disk.asked.clear()
        assert log.aborted_transactions(offset, offset + at) == []
        assert disk.asked == []
    # One that is open for long is looked for up to its end, and no further.
    data = batch(log.end_offset, 1, transactional=True, producer_id=9, producer_epoch=0)
    start = log.end_offset
    log.append_batches(data, 1000)
    for _ in range(5):
        log.roll(1000)
        log.append_batches(batch(log.end_offset, 1), 1000)
    for producer_id in (8, 9):
        options = {"producer_id": producer_id, "producer_epoch": 0, "timestamp": 1000, "base_offset": log.end_offset}
        log.append_batches(encode_marker(Marker(False, 0), **options), 1000)
    for _ in range(20):
        log.roll(1000)
        log.append_batches(batch(log.end_offset, 1), 1000)
    log.close()
    log = open_log(disk, config=CONFIG, clean=True)
    disk.asked.clear()
    assert log.aborted_transactions(start, start + 1) == [(8, start - 1), (9, start)]
    assert len(disk.asked) <= 20, "five segments of twenty-five"
    disk.asked.clear()
    assert log.aborted_transactions(far, far + 1) == []
    assert len(disk.asked) <= 3
