"""Requests that must wait, and the clock that ends their waiting.

Most waits end early (an fsync takes a millisecond, the timeout is thirty seconds), so adding and removing are O(1):
a wheel of coarse buckets instead of a heap that would fill with the dead.
"""

import logging
from asyncio import AbstractEventLoop, TimerHandle
from heapq import heapify, heappop, heappush
from typing import Protocol

from headrace.clock import Clock

logger = logging.getLogger("headrace.waiters")

TICK_MS = 10
BUCKETS_KEPT = 256
"""Buckets may stay until their time although their last waiter left; beyond so many, empty ones are swept out.

A sweep costs less than making what it sweeps; an empty bucket is a third of a kilobyte."""

Bucket = dict["Waiter", None]
"""In order of arrival, so that a replay expires in the same order."""


class Waiter(Protocol):
    """Something parked. `bucket` belongs to the wheel."""

    bucket: "Bucket | None"

    def expire(self) -> None:
        """Its time is up: answer with what there is."""
        ...


class TimerWheel:
    """Calls `expire` on every waiter whose deadline has passed."""

    def __init__(self, loop: AbstractEventLoop, clock: Clock) -> None:
        self._loop = loop
        self._clock = clock
        self._buckets: dict[int, Bucket] = {}
        self._order: list[int] = []  # heap of bucket numbers
        self._sweep_at = BUCKETS_KEPT
        self._timer: TimerHandle | None = None
        self._timer_bucket = 0

    def add(self, waiter: Waiter, wait_ms: int) -> None:
        """Park `waiter` for at most `wait_ms` (and a tick)."""
        number = (self._clock.monotonic_ms() + wait_ms) // TICK_MS + 1
        bucket = self._buckets.get(number)
        if bucket is None:
            if len(self._order) >= self._sweep_at:
                self._sweep()
            bucket = self._buckets[number] = {}
            heappush(self._order, number)
            if self._timer is None or number < self._timer_bucket:
                self._arm(number)
        bucket[waiter] = None
        waiter.bucket = bucket

    @staticmethod
    def remove(waiter: Waiter) -> None:
        """The wait is over for another reason."""
        bucket = waiter.bucket
        if bucket is not None:
            waiter.bucket = None
            bucket.pop(waiter, None)

    def __len__(self) -> int:
        return sum(map(len, self._buckets.values()))

    def _sweep(self) -> None:
        """Waits of a day that end after a millisecond would otherwise leave a bucket per tick for a day."""
        self._buckets = {number: bucket for number, bucket in self._buckets.items() if bucket}
        self._order = list(self._buckets)
        heapify(self._order)
        self._sweep_at = max(BUCKETS_KEPT, 2 * len(self._order))

    def _arm(self, number: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_bucket = number
        delay_ms = max(0, number * TICK_MS - self._clock.monotonic_ms())
        self._timer = self._loop.call_later(delay_ms / 1000, self._turn)

    def _turn(self) -> None:
        self._timer = None
        current = self._clock.monotonic_ms() // TICK_MS
        while self._order and self._order[0] <= current:
            bucket = self._buckets.pop(heappop(self._order))
            for waiter in list(bucket):
                if waiter.bucket is bucket:  # not removed by the expiry of another
                    waiter.bucket = None
                    try:
                        waiter.expire()
                    except Exception:
                        # One that cannot be answered must not keep all the others waiting for ever.
                        logger.exception("a request whose time was up could not be answered")
        # Expiry lets connections go on, and what they park may have armed the timer for later than what is left.
        if self._order and (self._timer is None or self._order[0] < self._timer_bucket):
            self._arm(self._order[0])

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._buckets.clear()
        self._order.clear()
