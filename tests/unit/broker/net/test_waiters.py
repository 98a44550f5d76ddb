"""The timer wheel: nobody waits longer than asked, whoever leaves is forgotten, one failure stops nobody else."""

import logging
from collections.abc import Callable
from random import Random
from sys import getsizeof

import pytest

from headrace.broker.net import waiters
from headrace.broker.net.waiters import TICK_MS, Bucket, TimerWheel
from headrace.testing.simulator.loop import SimClock, SimLoop


class Probe:
    """Notes when it expired, and then does what a test wants done."""

    def __init__(self, world: "Wheel", name: str = "") -> None:
        self.bucket: Bucket | None = None
        self.world = world
        self.name = name
        self.expired_ms: int | None = None
        self.then: Callable[[], object] = lambda: None

    def expire(self) -> None:
        assert self.expired_ms is None, "expired twice"
        self.expired_ms = self.world.now_ms
        self.world.expired.append(self)
        self.then()


class Wheel:
    """A wheel on virtual time."""

    def __init__(self) -> None:
        self.loop = SimLoop()
        self.clock = SimClock(self.loop, boot_ms=0)
        self.wheel = TimerWheel(self.loop, self.clock)
        self.expired: list[Probe] = []

    @property
    def now_ms(self) -> int:
        return self.clock.monotonic_ms()

    def park(self, wait_ms: int, name: str = "") -> Probe:
        probe = Probe(self, name)
        self.wheel.add(probe, wait_ms)
        return probe

    def run_ms(self, duration_ms: float) -> None:
        self.loop.call_later(duration_ms / 1000, self.loop.stop)
        self.loop.run_forever()


def test_nobody_expires_early_or_more_than_a_tick_late() -> None:
    world = Wheel()
    dice = Random(1)
    parked = []
    for _ in range(500):
        world.run_ms(dice.random() * 7)
        wait_ms = dice.choice([0, 1, 9, 10, 11, 100, 500, 3000])
        parked.append((world.now_ms, wait_ms, world.park(wait_ms)))
    world.run_ms(4000)
    for since_ms, wait_ms, probe in parked:
        assert probe.expired_ms is not None
        assert wait_ms <= probe.expired_ms - since_ms <= wait_ms + 2 * TICK_MS
    assert len(world.wheel) == 0


def test_parking_while_others_expire_does_not_delay_those_that_wait() -> None:
    """A connection that goes on after an expiry may park for a day: the next in line still has its own deadline."""
    world = Wheel()
    first, soon = world.park(20), world.park(100)
    first.then = lambda: world.wheel.add(Probe(world), 86_400_000)
    world.run_ms(150)
    assert soon.expired_ms is not None and soon.expired_ms <= 120


def test_removed_waiters_never_expire_even_by_the_expiry_of_a_neighbour() -> None:
    world = Wheel()
    alone, first, second = world.park(50), world.park(200), world.park(200)
    world.wheel.remove(alone)
    first.then = lambda: TimerWheel.remove(second)
    world.run_ms(1000)
    assert world.expired == [first]
    assert alone.bucket is None and second.bucket is None


def test_expiry_is_in_order_of_arrival() -> None:
    """Sets would make it depend on addresses in memory, and a simulated history on more than its seed."""
    world = Wheel()
    parked = [world.park(100, str(number)) for number in range(50)]
    world.run_ms(200)
    assert world.expired == parked


def test_a_waiter_that_fails_keeps_nobody_else_waiting(caplog: pytest.LogCaptureFixture) -> None:
    world = Wheel()

    def fail() -> None:
        raise OSError("the disk is gone")

    bad, neighbour, later = world.park(50), world.park(50), world.park(300)
    bad.then = fail
    with caplog.at_level(logging.CRITICAL, "headrace.waiters"):
        world.run_ms(400)
    assert neighbour.expired_ms is not None and later.expired_ms is not None


def test_long_waits_that_end_early_leave_nothing_behind() -> None:
    """A producer with a timeout of a day, acknowledged every 10 ms, must not leave 8 million buckets."""
    world = Wheel()
    staying = world.park(500_000)
    for _ in range(5_000):
        probe = world.park(86_400_000)
        world.run_ms(TICK_MS)
        TimerWheel.remove(probe)
    assert len(world.wheel._buckets) <= waiters.BUCKETS_KEPT
    assert len(world.wheel._order) == len(world.wheel._buckets)
    assert sum(map(getsizeof, world.wheel._buckets.values())) < 100_000
    world.run_ms(500_000)
    assert world.expired == [staying]


def test_closed_wheel_expires_nobody() -> None:
    world = Wheel()
    world.park(10)
    world.wheel.close()
    world.run_ms(100)
    assert world.expired == []
