"""Which records may run now, in which order, and how far each partition may be committed.

Records are put into *lanes*: one for each key, or for each partition. A lane runs one unit of work at a time, in the
order of offsets, and stands still while its first record waits to be tried again. A partition is committed up to its
first record that is not finished, whatever was finished behind it. Nothing here starts or commits anything.
"""

import heapq
from collections import deque
from collections.abc import Hashable, Iterable
from enum import StrEnum
from typing import Any, Generic, NamedTuple, TypeVar

R = TypeVar("R")

At = tuple[str, int]
"""A topic and a partition of it."""


class Order(StrEnum):
    """What keeps its order while several records are worked on."""

    PARTITION = "partition"
    KEY = "key"
    """Records of one key, and all records of a partition that have no key."""
    NONE = "none"


class Entry(Generic[R]):
    """A record from when it was read until it is finished and committed."""

    __slots__ = ("due", "is_finished", "offset", "outputs", "partition", "record", "size")

    def __init__(self, partition: "_Partition[R]", offset: int, record: R, size: int, due: float) -> None:
        self.partition = partition
        self.offset = offset
        self.record = record
        self.size = size
        self.due = due
        """Not to be worked on before."""
        self.is_finished = False
        self.outputs: tuple[Any, ...] = ()
        """What its commit has to carry: kept until it is part of the committed prefix."""


class Unit(Generic[R]):
    """Consecutive records of a lane that a handler gets together; one, unless the listener takes batches."""

    __slots__ = ("attempt", "entries", "is_dropped", "lane")

    def __init__(self, lane: "_Lane[R]", entries: list[Entry[R]]) -> None:
        self.lane = lane
        self.entries = entries
        self.attempt = 1
        """Which attempt is running or comes next."""
        self.is_dropped = False
        """The partition belongs to somebody else by now: whatever comes of this is of no consequence."""

    @property
    def at(self) -> At:
        return self.lane.partition.at


class _Lane(Generic[R]):
    __slots__ = ("due", "is_running", "key", "partition", "unit", "waiting")

    def __init__(self, partition: "_Partition[R]", key: Hashable) -> None:
        self.partition = partition
        self.key = key
        self.waiting: deque[Entry[R]] = deque()
        self.unit: Unit[R] | None = None
        """Running, or failed and to be tried again: nothing behind it goes before."""
        self.is_running = False
        self.due = 0.0


class _Partition(Generic[R]):
    __slots__ = ("at", "entries", "is_dropped", "is_held", "is_paused", "lanes", "next_offset", "outputs", "running")

    def __init__(self, at: At) -> None:
        self.at = at
        self.entries: deque[Entry[R]] = deque()
        """In the order of offsets. The first is never finished: finished ones at the front are cut off at once."""
        self.lanes: dict[Hashable, _Lane[R]] = {}
        self.next_offset: int | None = None
        """Where the finished prefix ends, if that is not committed yet."""
        self.outputs: list[Any] = []
        self.running = 0
        self.is_held = False
        self.is_paused = False
        self.is_dropped = False


class Prefix(NamedTuple):
    """What may be committed of a partition: up to `next_offset`, and with it what its records have to send."""

    next_offset: int
    outputs: tuple[Any, ...]


class Flow(NamedTuple):
    """Partitions to stop reading for now, and those to go on with."""

    pause: list[At]
    resume: list[At]


class Schedule(Generic[R]):
    """The records that one listener has read and not committed."""

    def __init__(
        self,
        order: Order = Order.KEY,
        *,
        batch_records: int = 1,
        partition_records_max: int = 10_000,
        bytes_max: int = 64 << 20,
    ) -> None:
        assert batch_records >= 1 and partition_records_max >= 1 and bytes_max >= 1
        self._order = order
        self._batch_records = batch_records
        self._partition_records_max = partition_records_max
        self._bytes_max = bytes_max
        self._partitions: dict[At, _Partition[R]] = {}
        self._ready: deque[_Lane[R]] = deque()
        self._later: list[tuple[float, int, _Lane[R]]] = []
        """A heap of lanes that stand still until a time; the number keeps lanes from being compared."""
        self._turn = 0
        self._is_full = False
        self.bytes = 0
        """Of records that are not finished."""
        self.records = 0
        """Records that are not finished, running ones included."""
        self.running = 0
        """Units that are running."""

    # -- records in

    def add(self, at: At, offset: int, key: Hashable, record: R, size: int, *, due: float = 0.0) -> None:
        """A record was read. Offsets of a partition go up; those that are known already are passed over."""
        partition = self._partitions.get(at)
        if partition is None:
            partition = self._partitions[at] = _Partition(at)
        if partition.entries and offset <= partition.entries[-1].offset:
            return
        entry = Entry(partition, offset, record, size, due)
        partition.entries.append(entry)
        self.bytes += size
        self.records += 1
        lane_key = self._lane_key(key, offset)
        lane = partition.lanes.get(lane_key)
        if lane is None:
            lane = partition.lanes[lane_key] = _Lane(partition, lane_key)
            self._ready.append(lane)
        lane.waiting.append(entry)

    def _lane_key(self, key: Hashable, offset: int) -> Hashable:
        if self._order is Order.KEY:
            return key
        return None if self._order is Order.PARTITION else offset

    # -- work out

    def take(self, now: float) -> Unit[R] | None:
        """A unit that may run now, which it does from here on; None if there is none."""
        while self._later and self._later[0][0] <= now:
            self._ready.append(heapq.heappop(self._later)[2])
        while self._ready:
            lane = self._ready.popleft()
            if lane.partition.is_held or lane.partition.is_dropped:
                continue
            due = lane.due if lane.unit is not None else lane.waiting[0].due
            if due > now:
                self._stand_still(lane, due)
                continue
            if lane.unit is None:
                lane.unit = Unit(lane, self._next_entries(lane, now))
            lane.is_running = True
            lane.partition.running += 1
            self.running += 1
            return lane.unit
        return None

    def _next_entries(self, lane: _Lane[R], now: float) -> list[Entry[R]]:
        found = [lane.waiting.popleft()]
        while lane.waiting and len(found) < self._batch_records and lane.waiting[0].due <= now:
            found.append(lane.waiting.popleft())
        return found

    def next_due(self) -> float | None:
        """When a lane that stands still goes on, if nothing else happens before."""
        return self._later[0][0] if self._later else None

    def _stand_still(self, lane: _Lane[R], due: float) -> None:
        self._turn += 1
        heapq.heappush(self._later, (due, self._turn, lane))

    # -- what became of it

    def finish(self, unit: Unit[R], outputs: Iterable[Any] = ()) -> None:
        """All of its records are done with. `outputs` have to be sent with the commit of the last of them."""
        self.stop(unit)
        if unit.is_dropped:
            return
        unit.entries[-1].outputs = tuple(outputs)
        for entry in unit.entries:
            self._finish(entry)
        self._cut(unit.lane.partition)

    def pass_on(self, unit: Unit[R]) -> None:
        """The handler has returned, and its records are finished later, by `acknowledge`: the lane goes on."""
        self.stop(unit)

    def acknowledge(self, entries: Iterable[Entry[R]]) -> None:
        """Records whose handler has returned are done with."""
        for entry in entries:
            if not entry.partition.is_dropped:
                self._finish(entry)
                self._cut(entry.partition)

    def retry(self, unit: Unit[R], due: float, *, finished: int = 0, outputs: Iterable[Any] = ()) -> None:
        """It failed and runs again, not before `due`; meanwhile its lane stands still. The first `finished` of its
        records are done with and do not run again; `outputs` have to be sent with their commit."""
        self._halt(unit)
        if unit.is_dropped:
            return
        assert 0 <= finished < len(unit.entries)
        if finished:
            unit.entries[finished - 1].outputs = tuple(outputs)
        for entry in unit.entries[:finished]:
            self._finish(entry)
        del unit.entries[:finished]
        unit.attempt = 1 if finished else unit.attempt + 1
        unit.lane.due = due
        self._stand_still(unit.lane, due)
        self._cut(unit.lane.partition)

    def stop(self, unit: Unit[R]) -> None:
        """It runs no more; what is behind it in its lane may."""
        self._halt(unit)
        lane = unit.lane
        lane.unit = None
        if lane.waiting:
            self._ready.append(lane)
        else:
            lane.partition.lanes.pop(lane.key, None)

    def _halt(self, unit: Unit[R]) -> None:
        assert unit.lane.unit is unit and unit.lane.is_running
        unit.lane.is_running = False
        unit.lane.partition.running -= 1
        self.running -= 1

    def _finish(self, entry: Entry[R]) -> None:
        if not entry.is_finished:
            entry.is_finished = True
            self.bytes -= entry.size
            self.records -= 1

    def _cut(self, partition: _Partition[R]) -> None:
        entries = partition.entries
        while entries and entries[0].is_finished:
            entry = entries.popleft()
            partition.next_offset = entry.offset + 1
            partition.outputs += entry.outputs

    # -- committing

    def committable(self) -> dict[At, Prefix]:
        """How far each partition is finished without a gap, where that is further than committed."""
        return {
            at: Prefix(found.next_offset, tuple(found.outputs))
            for at, found in self._partitions.items()
            if found.next_offset is not None
        }

    def committed(self, prefixes: Iterable[tuple[At, Prefix]]) -> None:
        """What `committable` said has been committed."""
        for at, prefix in prefixes:
            partition = self._partitions.get(at)
            if partition is None:
                continue
            del partition.outputs[: len(prefix.outputs)]
            if partition.next_offset == prefix.next_offset:
                partition.next_offset = None

    # -- partitions that come and go

    def hold(self, partitions: Iterable[At]) -> None:
        """Start nothing more of these, as they are about to be given up."""
        for at in partitions:
            if at in self._partitions:
                self._partitions[at].is_held = True

    def hold_all(self) -> None:
        """Start nothing more at all."""
        self.hold(self._partitions)

    def running_in(self, partitions: Iterable[At]) -> int:
        """How many units of these partitions are running."""
        return sum(self._partitions[at].running for at in partitions if at in self._partitions)

    def drop(self, partitions: Iterable[At]) -> list[Unit[R]]:
        """These are no longer ours: forget their records. Returns the units of them that are running still."""
        left = []
        for at in partitions:
            partition = self._partitions.pop(at, None)
            if partition is None:
                continue
            partition.is_dropped = True
            for entry in partition.entries:
                self._finish(entry)
            for lane in partition.lanes.values():
                lane.waiting.clear()
                if lane.unit is not None:
                    lane.unit.is_dropped = True
                    if lane.is_running:
                        left.append(lane.unit)
        self._later = [one for one in self._later if not one[2].partition.is_dropped]
        heapq.heapify(self._later)
        return left

    # -- back-pressure

    def flow(self) -> Flow:
        """Which partitions to pause and which to resume, now that so much is waiting; said once for each change."""
        if self.bytes >= self._bytes_max:
            self._is_full = True
        elif self.bytes <= self._bytes_max // 2:
            self._is_full = False
        found = Flow([], [])
        for at, partition in self._partitions.items():
            count = len(partition.entries)
            if self._is_full or count >= self._partition_records_max:
                wanted = True
            elif count <= self._partition_records_max // 2:
                wanted = False
            else:
                continue
            if wanted != partition.is_paused:
                partition.is_paused = wanted
                (found.pause if wanted else found.resume).append(at)
        return found
