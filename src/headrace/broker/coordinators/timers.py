"""Timers of coordinator shards: sessions, rebalances, assignments. Thousands are pushed back by every heartbeat.

Pushing a deadline back costs a dictionary look-up: the heap keeps the earlier one and looks again when it is due.
"""

import logging
from collections.abc import Callable, Hashable
from heapq import heapify, heappop, heappush
from itertools import count

from headrace.clock import Cancellable, Schedule

logger = logging.getLogger("headrace.coordinator")

TURN_SECONDS = 0.01
"""Timers that are due together are called for so long before others get their turn."""
LATE_MS = 1_000
"""A turn this late means that the broker itself stood still, and the silence of members proves nothing."""
GRACE_MS_MAX = 10_000
SWEEP_AT = 256
"""Few, since what was cancelled holds the names of groups and members that may be gone."""


class Timer:
    """One armed key of one owner. In the heap at `queued_ms`, which is never later than `deadline_ms`."""

    __slots__ = ("deadline_ms", "is_armed", "key", "owner", "queued_ms")

    def __init__(self, owner: "TimerSet", key: Hashable) -> None:
        self.owner = owner
        self.key = key
        self.deadline_ms = 0
        self.queued_ms = -1
        self.is_armed = False


class TimerSet:
    """The timers of one shard; they end together."""

    __slots__ = ("_by_key", "_fire", "_timers")

    def __init__(self, timers: "Timers", fire: Callable[[Hashable], None]) -> None:
        self._timers = timers
        self._fire = fire
        self._by_key: dict[Hashable, Timer] = {}

    def __len__(self) -> int:
        return sum(timer.is_armed for timer in self._by_key.values())

    def arm(self, key: Hashable, delay_ms: int) -> None:
        """Fire in `delay_ms`; a timer with the same key is replaced."""
        timer = self._by_key.get(key)
        if timer is None:
            timer = self._by_key[key] = Timer(self, key)
        timer.is_armed = True
        timer.deadline_ms = deadline_ms = self._timers.now_ms() + delay_ms
        if timer.queued_ms < 0 or deadline_ms < timer.queued_ms:
            self._timers.queue(timer)

    def cancel(self, key: Hashable) -> None:
        timer = self._by_key.get(key)
        if timer is not None:
            timer.is_armed = False

    def clear(self) -> None:
        for timer in self._by_key.values():
            timer.is_armed = False
        self._by_key.clear()

    def due(self, timer: Timer) -> None:
        self._by_key.pop(timer.key, None)
        timer.is_armed = False
        self._fire(timer.key)

    def forget(self, timer: Timer) -> None:
        if self._by_key.get(timer.key) is timer:
            del self._by_key[timer.key]


class Timers:
    """One heap and one timer of the loop for all shards of a broker."""

    def __init__(self, schedule: Schedule, perf_counter: Callable[[], float]) -> None:
        self._call_later = schedule.call_later
        self._perf_counter = perf_counter
        self.now_ms = schedule.monotonic_ms
        self._heap: list[tuple[int, int, Timer]] = []
        self._order = count()
        self._handle: Cancellable | None = None
        self._handle_ms = 0
        self._handle_due = 0.0  # by the performance counter
        self._sweep_at = SWEEP_AT

    def queue(self, timer: Timer) -> None:
        if len(self._heap) >= self._sweep_at:
            self._sweep()
        timer.queued_ms = timer.deadline_ms
        heappush(self._heap, (timer.queued_ms, next(self._order), timer))
        if self._handle is None or timer.queued_ms < self._handle_ms:
            self._schedule(timer.queued_ms)

    def _sweep(self) -> None:
        """Drop what was cancelled or queued anew, so that the heap is no larger than twice what is armed."""
        kept = []
        for entry in self._heap:
            timer = entry[2]
            if timer.is_armed and timer.queued_ms == entry[0]:
                kept.append(entry)
            elif not timer.is_armed:
                timer.queued_ms = -1
                timer.owner.forget(timer)
        self._heap = kept
        heapify(kept)
        self._sweep_at = max(SWEEP_AT, 2 * len(kept))

    def _schedule(self, at_ms: int) -> None:
        if self._handle is not None:
            self._handle.cancel()
        self._handle_ms = at_ms
        delay_s = max(0, at_ms - self.now_ms()) / 1000
        self._handle_due = self._perf_counter() + delay_s
        self._handle = self._call_later(delay_s, self._turn)

    def _turn(self) -> None:
        self._handle = None
        now_ms = self.now_ms()
        # By the time that has really passed: a test that advances the clock wants silence to count.
        late_ms = round((self._perf_counter() - self._handle_due) * 1000)
        if late_ms > LATE_MS:
            logger.warning("the broker stood still for %d ms: members get as long to be heard", late_ms)
            self._schedule(now_ms + min(late_ms, GRACE_MS_MAX))
            return
        heap = self._heap
        stop = self._perf_counter() + TURN_SECONDS
        while heap and heap[0][0] <= now_ms:
            queued_ms, _, timer = heappop(heap)
            if timer.queued_ms != queued_ms:
                continue  # it was queued again, earlier
            timer.queued_ms = -1
            if not timer.is_armed:
                timer.owner.forget(timer)
            elif timer.deadline_ms > now_ms:
                self.queue(timer)
                heap = self._heap
            else:
                timer.owner.due(timer)
                heap = self._heap
                if self._perf_counter() > stop:
                    break
        if heap and (self._handle is None or heap[0][0] < self._handle_ms):
            # What is overdue because this turn was long is not late: no grace for it.
            self._schedule(max(heap[0][0], now_ms))

    def close(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        self._heap.clear()
