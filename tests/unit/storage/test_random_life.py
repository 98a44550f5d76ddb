"""A log's life at random: whatever it is put through, nothing healthy is taken for lost, and nothing durable is.

Appends, rolls, syncs, truncations, deletions, compactions, stops, kills, power cuts in the middle of these, copies of
the folder with new times, and a clock that goes back. Repeat a seed with `Life(17).live()`.
"""

import random
from collections.abc import Callable

import pytest

from headrace.config import LogConfig
from headrace.records.builder import build_batch
from headrace.records.layout import iter_headers
from headrace.records.reader import Record, iter_records
from headrace.storage.compaction import compact, dirty_range, plan
from headrace.storage.log import Log
from headrace.storage.manager import LogManager
from headrace.storage.swap import begin_swap
from headrace.testing.simulator.disk import MemoryDisk
from headrace.testing.simulator.faults import PowerCut
from headrace.testing.simulator.pages import CrashMode
from tests.simulation.harness import seeds_within

KEY = ("t", 0)
FOLDER = "/data/t-0"
BEFORE_A_CUT = (
    "append",
    "append",
    "append",
    "sync",
    "checkpoint",
    "truncate",
    "retain",
    "compact",
    "roll",
    "delete_records",
)
ANY = (
    *("append",) * 8,
    "sync",
    "sync",
    *BEFORE_A_CUT[4:],
    "forget_deleted",
    "new_epoch",
    "stop",
    "kill",
    "power_cut",
    "copy",
)


class Life:
    """One log on a disk that forgets what was not synced, and what must still be there."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.compacted = self.dice.random() < 0.4
        self.config = LogConfig(
            segment_bytes=500, index_interval_bytes=120, compact=self.compacted, delete=not self.compacted
        )
        self.time_ms = 0
        self.disk = MemoryDisk(now_ms=self._now_ms)
        self.manager = self._started()
        self.log: Log = self.manager.create(*KEY, bytes(15) + b"\1", 1000)
        self.manager.checkpoint_plan({KEY: 0}).run()
        self.values: dict[int, bytes] = {}
        self.durable = self.high_watermark = self.deleted_below = self.epoch = 0
        self.leftovers: list[tuple[Log, list[str]]] = []

    def live(self) -> None:
        for _ in range(self.dice.randint(20, 150)):
            self._do(ANY)
        self._check()

    def _now_ms(self) -> int:
        self.time_ms += self.dice.choice((0, 0, 1, 1, -5))
        return max(0, self.time_ms)

    def _do(self, kinds: tuple[str, ...]) -> None:
        step: Callable[[], None] = getattr(self, f"_{self.dice.choice(kinds)}")
        step()

    # -- a log's work

    def _append(self) -> None:
        base = self.log.end_offset
        records = [
            Record(base + i, 1000, b"k%d" % self.dice.randrange(6), b"v%d-%d" % (base + i, self.dice.randrange(99)))
            for i in range(self.dice.randint(1, 3))
        ]
        self.values.update((record.offset, record.value or b"") for record in records)
        batch = build_batch(records, base_offset=base, leader_epoch=self.epoch)
        self.log.append(bytearray(batch), base, base + len(records) - 1, self.epoch, 1000, 1000)

    def _new_epoch(self) -> None:
        self.epoch += 1

    def _sync(self) -> None:
        self.log.flush()
        self.durable = self.log.durable_end
        self.high_watermark = max(self.high_watermark, self.dice.choice((self.high_watermark, self.durable)))

    def _checkpoint(self) -> None:
        self.manager.checkpoint_plan({KEY: self.high_watermark}).run()

    def _roll(self) -> None:
        self.log.roll(1000)

    def _truncate(self) -> None:
        starts = [header.base_offset for segment in self.log.segments for _, header in segment.walk(0, segment.size)]
        above = [start for start in starts if self.high_watermark <= start < self.log.end_offset]
        if above:
            offset = self.dice.choice(above)
            self.durable = min(self.durable, offset)
            self.values = {at: value for at, value in self.values.items() if at < offset}
            self.manager.truncate_to({self.log: offset}).run()
            self.durable = min(self.durable, self.log.end_offset)
            self.epoch += 1

    def _delete_records(self) -> None:
        if not self.compacted:
            start = self.log.log_start_offset
            self.deleted_below = max(self.deleted_below, self.dice.randint(start, max(self.high_watermark, start)))
            self.log.advance_log_start(self.deleted_below)

    def _retain(self) -> None:
        committed = sum(segment.base_offset <= self.high_watermark for segment in self.log.segments[1:])
        if committed and not self.compacted:
            count = self.dice.randint(1, committed)
            self.deleted_below = max(self.deleted_below, self.log.segments[count].base_offset)
            self.leftovers.append((self.log, self.log.delete_segments(count, 1000)))

    def _forget_deleted(self) -> None:
        if self.leftovers:
            log, paths = self.leftovers.pop(0)
            log.forget_deleted(paths)

    def _compact(self) -> None:
        if not self.compacted:
            return
        self._checkpoint()
        job = plan(self.log, dirty_range(self.log, None, self.high_watermark, 1000), now_ms=1000)
        for cleaned in compact(self.disk, job) if job is not None else ():
            swap = begin_swap(self.log, cleaned)
            if swap is None:
                return
            swap.run()
            self.leftovers.append((self.log, swap.finish()))

    # -- its ends and beginnings

    def _stop(self) -> None:
        self._close()
        self._start(clean=True)

    def _kill(self) -> None:
        self.disk.kill()
        self._start()

    def _copy(self) -> None:
        """As the guide says that a broker is moved: every file is another, and younger."""
        self._close()
        for name in self.disk.list(FOLDER):
            data = self.disk.read_bytes(f"{FOLDER}/{name}")
            self.disk.remove(f"{FOLDER}/{name}")
            file = self.disk.open(f"{FOLDER}/{name}", create=True)
            if data:
                file.append(data)
            file.sync()
            file.close()
        self.disk.sync_dir(FOLDER)
        self._start(clean=True)

    def _power_cut(self) -> None:
        self.disk.cut_after(self.dice.randrange(40))
        try:
            for _ in range(6):
                self._do(BEFORE_A_CUT)
            self.disk.cut_after(0)
            self.log.flush()
        except PowerCut:
            pass
        self.disk.crash(random.Random(self.dice.random()), self.dice.choice(list(CrashMode)))
        self._start()

    def _close(self) -> None:
        self.high_watermark = self.durable = self.log.end_offset
        self.manager.close(high_watermarks={KEY: self.log.end_offset})

    def _started(self) -> LogManager:
        manager = LogManager(self.disk, ["/data"], node_id=1, config_of=lambda topic: self.config)
        manager.open()
        list(manager.load(1000))
        return manager

    def _start(self, *, clean: bool = False) -> None:
        self.leftovers.clear()
        manager = self.manager = self._started()
        log = manager.get(*KEY)
        assert log is not None, (manager.offline, manager.missing, manager.notes)
        assert not log.holes and not manager.lost, manager.notes
        assert log.end_offset >= self.durable, (log.end_offset, self.durable, manager.notes)
        self.log = log
        self.values = {at: value for at, value in self.values.items() if at < log.end_offset}
        self.high_watermark = min(self.high_watermark, self.durable)
        found = self._check()
        if not clean:
            # Of what was not durable, whatever is there now is the truth from here on.
            self.values = {at: value for at, value in self.values.items() if at < self.durable}
            self.values.update((at, value) for at, value in found.items() if at >= self.durable)

    def _check(self) -> dict[int, bytes]:
        found: dict[int, bytes] = {}
        offset = self.log.log_start_offset
        while (
            offset < self.log.end_offset and (part := self.log.read(offset, 1 << 20, self.log.end_offset)) is not None
        ):
            data = part.read()
            part.release()
            for position, header in iter_headers(data):
                found.update((r.offset, r.value or b"") for r in iter_records(data[position : position + header.size]))
                offset = header.end_offset
        for at in range(max(self.deleted_below, self.log.log_start_offset), self.durable):
            if at in found:
                assert found[at] == self.values[at], at
            else:
                assert self.compacted, f"{at} is gone: {self.manager.notes}"
        return found


def live_many(seeds: range, box_s: float, at_least: int) -> None:
    bad = []
    for seed in seeds_within(box_s, seeds, at_least):
        try:
            Life(seed).live()
        except Exception as error:
            bad.append(f"seed {seed}: {error!r}")
    assert not bad, "\n".join(bad)


def test_nothing_healthy_is_taken_for_lost() -> None:
    live_many(range(300), 4.0, 40)


@pytest.mark.parametrize("seed", [6355, 7009])
def test_a_power_cut_while_segments_are_replaced_by_an_empty_one_loses_nothing(seed: int) -> None:
    Life(seed).live()


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_nothing_healthy_is_taken_for_lost_in_thousands_of_lives() -> None:
    live_many(range(300, 20_000), 600.0, 1000)
