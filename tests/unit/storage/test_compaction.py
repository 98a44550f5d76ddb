"""Compaction by its rules."""

import msgspec
import pytest

from headrace.records.batch import BatchBuilder, iter_headers
from headrace.storage.compaction import (
    CompactionFailed,
    begin_swap,
    compact,
    dirty_range,
)
from headrace.testing.simulator.disk import MemoryDisk
from tests.unit.storage.compacted import CONFIG, DAY_MS, FOLDER, Writer, batches, reopen, values


class TestKeys:
    def test_the_last_record_of_each_key_stays_where_it_was(self) -> None:
        writer = Writer()
        writer.put((b"a", b"1"), (b"b", b"1"))
        writer.put((b"a", b"2"), (b"c", b"1"))
        writer.put((b"c", b"2"))
        writer.roll()
        writer.put((b"a", b"active"))
        [cleaned] = writer.compact()
        assert values(writer.log) == [(1, b"b", b"1"), (2, b"a", b"2"), (4, b"c", b"2"), (5, b"a", b"active")]
        assert (cleaned.records_read, cleaned.records_kept, cleaned.clean_until) == (5, 3, 5)

    @pytest.mark.parametrize("codec", range(5))
    def test_batches_keep_their_place_codec_and_epoch(self, codec: int) -> None:
        writer = Writer()
        pairs = [(b"k%d" % n, b"v" * 50) for n in range(5)]
        writer.put(*pairs, compression=codec, producer_id=7, producer_epoch=1, base_sequence=40)
        writer.put((b"k1", b"new"), (b"k4", b"new"))
        writer.roll()
        writer.compact()
        header, records = batches(writer.log)[0]
        assert [record.offset for record in records] == [0, 2, 3]
        assert (header.base_offset, header.last_offset, header.count, header.codec) == (0, 4, 3, codec)
        assert (header.leader_epoch, header.base_sequence, header.last_sequence) == (3, 40, 44)

    def test_long_keys_and_records_without_a_key(self) -> None:
        writer = Writer()
        writer.put((b"x" * 100, b"1"), (None, b"no key"), (b"x" * 101, b"1"), (b"x" * 100, b"2"))
        writer.roll()
        writer.compact()
        assert [(offset, value) for offset, _, value in values(writer.log)] == [(2, b"1"), (3, b"2")]

    def test_a_batch_larger_than_a_read(self) -> None:
        writer = Writer(config=msgspec.structs.replace(CONFIG, segment_bytes=1 << 30))
        writer.put((b"a", b"x" * 3_000_000), (b"b", b"1"))
        writer.put((b"a", b"2"))
        writer.roll()
        writer.compact()
        assert values(writer.log) == [(1, b"b", b"1"), (2, b"a", b"2")]

    def test_the_end_of_the_round_stays_even_if_empty(self) -> None:
        writer = Writer()
        writer.put((b"a", b"1"))
        writer.roll()
        writer.put((None, b"x"))
        writer.roll()
        writer.put((b"a", b"3"))
        writer.roll()
        writer.compact()
        assert values(writer.log) == [(2, b"a", b"3")]
        writer.put((None, b"y"))
        writer.roll()
        writer.compact()
        last, records = batches(writer.log)[-1]
        assert (last.last_offset, last.count, records) == (3, 0, [])

    def test_a_small_map_takes_several_rounds(self) -> None:
        writer = Writer()
        for n in range(60):
            writer.put((b"k%d" % (n % 20), b"%d" % n))
        writer.roll()
        first_dirty, rounds = 0, 0
        while True:
            done = writer.compact(first_dirty, dedupe_bytes=2_000)
            if not done:
                break
            assert done[-1].clean_until > first_dirty, "every round must get further"
            first_dirty = done[-1].clean_until
            rounds += 1
        assert rounds > 3
        assert values(writer.log) == [(n, b"k%d" % (n % 20), b"%d" % n) for n in range(40, 60)]

    def test_small_segments_are_joined_up_to_the_size_of_one(self) -> None:
        writer = Writer()
        for n in range(40):
            writer.put((b"k%d" % n, b"v" * 60))
        writer.roll()
        before = len(writer.log.segments)
        writer.compact()
        assert len(writer.log.segments) == before, "nothing to remove and no two fit into one"
        for n in range(40):
            writer.put((b"k%d" % n, b"w"))
        writer.roll()
        # Groups go by the sizes before: the round after joins what this one left small.
        writer.compact()
        writer.compact()
        assert len(writer.log.segments) < before
        assert all(segment.size <= CONFIG.segment_bytes for segment in writer.log.segments)

    def test_reads_from_every_offset_after_most_is_gone(self) -> None:
        writer = Writer()
        for n in range(100):
            writer.put((b"k%d" % (n % 3), b"v%d" % n))
        writer.roll()
        writer.compact()
        log = writer.log
        kept = [offset for offset, _, _ in values(log)]
        for offset in range(log.end_offset):
            piece = log.read(offset, 1, log.end_offset)
            assert piece is not None
            header = next(iter_headers(piece.read()))[1]
            piece.release()
            assert header.last_offset == min(k for k in kept if k >= offset)


class TestTombstones:
    def test_they_stay_for_delete_retention_and_then_go(self) -> None:
        writer = Writer()
        writer.put((b"a", b"1"), (b"b", b"1"))
        writer.put((b"a", None), (b"c", b"1"))
        writer.roll()
        writer.put((b"z", b"active"))
        writer.compact()
        assert (2, b"a", None) in values(writer.log)
        header = next(header for header, records in batches(writer.log) if header.base_offset == 2)
        assert header.delete_horizon_ms == writer.now_ms + DAY_MS
        timestamps = [record.timestamp for _, records in batches(writer.log) for record in records]
        assert timestamps == [1_000_000] * 4
        writer.now_ms += DAY_MS - 1
        writer.compact()
        assert (2, b"a", None) in values(writer.log)
        writer.now_ms += 1
        writer.compact()
        assert values(writer.log) == [(1, b"b", b"1"), (3, b"c", b"1"), (4, b"z", b"active")]

    def test_a_horizon_once_set_does_not_move(self) -> None:
        writer = Writer()
        writer.put((b"a", None), (b"b", b"1"))
        writer.put((b"q", b"1"))
        writer.roll()
        writer.compact()
        first = batches(writer.log)[0][0].delete_horizon_ms
        writer.now_ms += 1_000
        writer.put((b"b", b"2"))
        writer.roll()
        writer.compact()
        assert batches(writer.log)[0][0].delete_horizon_ms == first

    def test_timestamps_beyond_any_horizon_do_no_harm(self) -> None:
        writer = Writer()
        builder = BatchBuilder(base_offset=0)
        builder.append(-(1 << 63), b"a", None)
        writer.append(builder.build())
        writer.roll()
        writer.compact()
        [(header, records)] = batches(writer.log)
        assert (header.delete_horizon_ms, records[0].timestamp) == (None, -(1 << 63))


class TestProducers:
    def test_the_last_batch_of_a_producer_stays_for_its_sequence(self) -> None:
        writer = Writer()
        for n in range(3):
            writer.put((b"a", b"%d" % n), producer_id=7, producer_epoch=1, base_sequence=n)
        writer.put((b"a", b"last"))
        writer.put((b"b", b"x"))
        writer.roll()
        writer.compact()
        assert [(h.base_offset, h.count) for h, _ in batches(writer.log)] == [(2, 0), (3, 1), (4, 1)]
        writer.log.snapshots.remove_outside(1 << 60, 0)
        log = reopen(writer, clean=False)
        assert log.producers.last_records() == {7: (2, 1)}
        assert log.producers.check(7, 1, 3, 0) is None

    def test_an_expired_producer_is_not_kept(self) -> None:
        writer = Writer()
        writer.put((b"a", b"1"), producer_id=7, producer_epoch=1, base_sequence=0)
        writer.put((b"a", b"2"))
        writer.roll()
        writer.compact(producers={})
        assert [h.base_offset for h, _ in batches(writer.log)] == [1]


class TestTransactions:
    def test_aborted_records_go_and_their_marker_follows(self) -> None:
        writer = Writer()
        t = {"producer_id": 7, "producer_epoch": 1, "transactional": True}
        writer.put((b"a", b"good"))
        writer.put((b"a", b"bad"), (b"b", b"bad"), base_sequence=0, **t)
        marker = writer.end(7, 1, committed=False)
        writer.put((b"z", b"1"), producer_id=7, producer_epoch=1, base_sequence=2)
        writer.roll()
        writer.put((b"y", b"active"))
        writer.compact()
        assert values(writer.log) == [(0, b"a", b"good"), (4, b"z", b"1"), (5, b"y", b"active")]
        assert writer.log.aborted_transactions(0, 10) == [(7, 1)], "a reader in the middle may still need it"
        assert marker in [h.base_offset for h, _ in batches(writer.log) if h.is_control]
        writer.compact()
        assert writer.log.aborted_transactions(0, 10) == []
        control = [h for h, _ in batches(writer.log) if h.is_control]
        assert [h.delete_horizon_ms for h in control] == [writer.now_ms + DAY_MS]
        writer.now_ms += DAY_MS
        writer.compact()
        assert [h for h, _ in batches(writer.log) if h.is_control] == []
        assert values(writer.log) == [(0, b"a", b"good"), (4, b"z", b"1"), (5, b"y", b"active")]

    def test_a_commit_marker_stays_as_long_as_its_records(self) -> None:
        writer = Writer()
        t = {"producer_id": 7, "producer_epoch": 1, "transactional": True}
        writer.put((b"a", b"1"), base_sequence=0, **t)
        writer.end(7, 1, committed=True)
        writer.put((b"q", b"1"), producer_id=7, producer_epoch=1, base_sequence=1)
        writer.roll()
        writer.compact()
        assert [h.delete_horizon_ms for h, _ in batches(writer.log) if h.is_control] == [None]
        writer.put((b"a", b"2"))
        writer.roll()
        writer.compact()
        writer.compact()
        assert [h.delete_horizon_ms for h, _ in batches(writer.log) if h.is_control] == [writer.now_ms + DAY_MS]
        writer.now_ms += DAY_MS
        writer.compact()
        assert [h for h, _ in batches(writer.log) if h.is_control] == []

    def test_the_last_marker_keeps_the_epoch_of_a_fenced_producer(self) -> None:
        writer = Writer()
        writer.put((b"a", b"1"), producer_id=7, producer_epoch=1, base_sequence=0, transactional=True)
        writer.end(7, 2, committed=False)
        writer.put((b"b", b"1"))
        writer.roll()
        for _ in range(4):
            writer.compact()
            writer.now_ms += DAY_MS
        log = reopen(writer, clean=False)
        assert log.producers.last_records() == {7: (-1, 2)}
        assert [(h.base_offset, h.is_control) for h, _ in batches(log)] == [(1, True), (2, False)]

    def test_nothing_at_or_above_an_open_transaction(self) -> None:
        writer = Writer()
        writer.put((b"a", b"1"))
        writer.roll()
        writer.put((b"a", b"2"), producer_id=7, producer_epoch=1, base_sequence=0, transactional=True)
        writer.put((b"a", b"3"))
        writer.roll()
        writer.put((b"a", b"4"))
        writer.compact()
        assert values(writer.log)[0] == (0, b"a", b"1")

    def test_a_transaction_across_groups(self) -> None:
        writer = Writer()
        t = {"producer_id": 7, "producer_epoch": 1, "transactional": True}
        writer.put((b"a", b"x" * 400), base_sequence=0, **t)
        writer.roll()
        writer.put((b"b", b"y" * 400))
        writer.roll()
        writer.end(7, 1, committed=False)
        writer.put((b"c", b"z" * 400))
        writer.roll()
        assert len(writer.compact()) > 1
        assert [key for _, key, _ in values(writer.log)] == [b"b", b"c"]
        assert writer.log.aborted_transactions(0, 10) == [(7, 0)]


class TestDirty:
    def filled(self, **config: object) -> Writer:
        writer = Writer(config=msgspec.structs.replace(CONFIG, **config))
        for n in range(20):
            writer.now_ms = 1_000_000 + 1_000 * n
            writer.put((b"k", b"v" * 100))
        writer.roll()
        return writer

    def test_from_the_start_to_the_active_segment(self) -> None:
        log = self.filled().log
        dirty = dirty_range(log, None, log.end_offset, 2_000_000)
        assert (dirty.first_dirty_offset, dirty.end_offset) == (0, 20)
        assert (dirty.clean_bytes, dirty.dirty_bytes, dirty.ratio) == (0, log.size, 1.0)

    def test_the_last_stable_offset_stops_it_at_a_segment(self) -> None:
        log = self.filled().log
        bases = [segment.base_offset for segment in log.segments]
        assert dirty_range(log, None, bases[2] + 1, 2_000_000).end_offset == bases[2]
        assert dirty_range(log, None, bases[2], 2_000_000).end_offset == bases[2]
        assert dirty_range(log, None, bases[2] - 1, 2_000_000).end_offset == bases[1]

    def test_min_compaction_lag(self) -> None:
        log = self.filled(min_compaction_lag_ms=5_000).log
        dirty = dirty_range(log, None, log.end_offset, 1_019_000)
        [first_young] = [s.base_offset for s in log.segments if s.base_offset <= 15][-1:]
        assert dirty.end_offset == first_young

    def test_max_compaction_lag_makes_it_due_whatever_the_ratio(self) -> None:
        log = self.filled(max_compaction_lag_ms=10_000, min_cleanable_dirty_ratio=1.0, segment_ms=10**9).log
        assert not dirty_range(log, None, log.end_offset, 1_010_000).is_due(1.0)
        dirty = dirty_range(log, None, log.end_offset, 1_010_001)
        assert dirty.overdue_ms == 1
        assert dirty.is_due(1.0)

    def test_the_ratio(self) -> None:
        log = self.filled().log
        middle = log.segments[len(log.segments) // 2].base_offset
        dirty = dirty_range(log, middle, log.end_offset, 2_000_000)
        assert 0 < dirty.ratio < 1
        assert dirty.is_due(dirty.ratio - 0.01)
        assert not dirty.is_due(dirty.ratio)

    @pytest.mark.parametrize("checkpoint", [-1, 999])
    def test_a_wrong_checkpoint(self, checkpoint: int) -> None:
        log = self.filled().log
        dirty = dirty_range(log, checkpoint, log.end_offset, 2_000_000)
        assert dirty.checkpoint_was_wrong
        assert dirty.first_dirty_offset == 0

    def test_segments_that_are_not_durable_wait(self) -> None:
        writer = self.filled()
        bases = [segment.base_offset for segment in writer.log.segments]
        writer.log.segments[1].synced = False
        assert dirty_range(writer.log, None, 20, 2_000_000).end_offset == bases[1]

    def test_nothing_to_do(self) -> None:
        writer = self.filled()
        assert writer.job(20) is None


class TestChanges:
    def test_a_log_that_changed_is_left_alone(self) -> None:
        writer = Writer()
        for n in range(20):
            writer.put((b"k", b"%d" % n))
        writer.roll()
        job = writer.job()
        assert job is not None
        cleaned = next(compact(writer.disk, job))
        writer.log.truncate_fully(100)
        assert begin_swap(writer.log, cleaned) is None
        assert not [name for name in writer.disk.list(FOLDER) if name.endswith(".cleaned")]

    def test_a_segment_removed_under_way(self) -> None:
        writer = Writer()
        for n in range(20):
            writer.put((b"k", b"%d" % n))
        writer.roll()
        job = writer.job()
        assert job is not None
        writer.disk.remove(f"{FOLDER}/{job.segments[-1][0]:020d}.log")
        with pytest.raises(CompactionFailed):
            list(compact(writer.disk, job))

    def test_damage_is_not_copied(self) -> None:
        disk = MemoryDisk()
        writer = Writer(disk)
        for n in range(20):
            writer.put((b"k", b"%d" % n))
        writer.roll()
        before = disk.tree()
        disk.flip(f"{FOLDER}/{0:020d}.log", 70)
        job = writer.job()
        assert job is not None
        with pytest.raises(CompactionFailed):
            list(compact(disk, job))
        assert {path for path in disk.tree() if path.endswith(".log")} == {p for p in before if p.endswith(".log")}

    def test_readers_keep_the_old_segment_while_files_change_names(self) -> None:
        writer = Writer()
        writer.put((b"k", b"old"))
        writer.put((b"k", b"new"))
        writer.roll()
        job = writer.job()
        assert job is not None
        log = writer.log
        piece = log.read(0, 1 << 20, log.end_offset)
        assert piece is not None
        swap = begin_swap(log, next(compact(writer.disk, job)))
        assert swap is not None
        swap.run()
        assert values(log) == [(0, b"k", b"old"), (1, b"k", b"new")]
        swap.finish()
        assert values(log) == [(1, b"k", b"new")]
        assert [h.base_offset for _, h in iter_headers(piece.read())] == [0, 1]
        piece.release()

    def test_a_failed_rename_fails_the_log(self) -> None:
        disk = MemoryDisk()
        writer = Writer(disk)
        writer.put((b"k", b"old"))
        writer.put((b"k", b"new"))
        writer.roll()
        job = writer.job()
        assert job is not None
        swap = begin_swap(writer.log, next(compact(disk, job)))
        assert swap is not None
        disk.fail("rename", skip=4)
        with pytest.raises(OSError):
            swap.run()
        with pytest.raises(OSError):
            swap.finish()
        assert writer.log.failed is not None
