"""When the loop stays awake, and that it falls asleep again."""

import asyncio
from collections.abc import Callable
from typing import Any, cast

from headrace.broker.idle_poll import BUSY_TURNS, MOST, NEEDED, POLL_S, IdlePoll

SHORT_S, LONG_S = POLL_S / 4, POLL_S * 2


class World:
    """A loop of callbacks and a clock, both moved by hand."""

    def __init__(self) -> None:
        self.now = 100.0
        self.due: list[Callable[[], Any]] = []
        self.poll = IdlePoll(cast(asyncio.AbstractEventLoop, self), lambda: self.now)

    def call_soon(self, callback: Callable[[], Any]) -> None:
        self.due.append(callback)

    def turn(self) -> None:
        """What the loop does once."""
        due, self.due = self.due, []
        for callback in due:
            callback()

    @property
    def is_awake(self) -> bool:
        return bool(self.due)

    def serve(self, pause_s: float, small: bool = True) -> None:
        self.now += pause_s
        self.turn()
        self.poll.served(self.now, small)

    def warm_up(self) -> None:
        for _ in range(NEEDED + 1):
            self.serve(SHORT_S)
        assert self.is_awake


def test_stays_awake_once_requests_follow_closely() -> None:
    world = World()
    world.serve(LONG_S)
    for _ in range(NEEDED - 1):
        world.serve(SHORT_S)
        assert not world.is_awake
    world.serve(SHORT_S)
    assert world.is_awake


def test_falls_asleep_when_nothing_comes() -> None:
    world = World()
    world.warm_up()
    turns = 0
    while world.is_awake:
        world.now += POLL_S / 10
        world.turn()
        turns += 1
    assert 8 <= turns <= 12


def test_long_pauses_keep_it_asleep_also_with_short_ones_between() -> None:
    world = World()
    for _ in range(100):
        world.serve(LONG_S)
        world.serve(SHORT_S)
        world.serve(SHORT_S)
        assert not world.is_awake


def test_one_long_pause_after_many_short_ones_is_forgiven() -> None:
    world = World()
    for _ in range(2 * MOST):
        world.serve(SHORT_S)
    world.serve(LONG_S)
    assert world.is_awake


def test_large_requests_let_it_sleep() -> None:
    world = World()
    world.warm_up()
    world.serve(SHORT_S, small=False)
    world.turn()
    assert not world.is_awake


def test_many_connections_keep_the_loop_awake_by_themselves() -> None:
    world = World()
    world.warm_up()
    for _ in range(BUSY_TURNS):
        world.poll.served(world.now, True)
    world.turn()
    assert not world.is_awake
    world.serve(SHORT_S)
    assert not world.is_awake


def test_who_spoke_twice_in_a_row_is_asked_in_every_turn_until_it_sleeps() -> None:
    world = World()
    asked: list[str] = []

    class Peer:
        def __init__(self, name: str) -> None:
            self.name = name

        def receive_now(self) -> None:
            asked.append(self.name)

    first, second = Peer("first"), Peer("second")
    world.warm_up()
    for peer in (first, second, first, second, second):
        world.poll.served(world.now, True, peer)
        world.turn()
    world.turn()
    assert asked == ["second", "second"]
    world.now += 2 * POLL_S
    world.turn()
    assert not world.is_awake and len(asked) == 2
    assert world.poll._source is world.poll._asked is None, "a connection that is gone must not be kept"


def test_what_comes_early_may_be_served_within_the_turn() -> None:
    world = World()
    served = 0

    class Peer:
        def receive_now(self) -> None:
            nonlocal served
            served += 1
            world.poll.served(world.now, True, self)

    world.warm_up()
    peer = Peer()
    for _ in range(2):
        world.turn()
        world.poll.served(world.now, True, peer)
    for _ in range(20):
        world.now += SHORT_S
        world.turn()
    assert served == 20 and len(world.due) == 1, "one poll is due, however many are served"


def test_a_real_loop_sleeps_again() -> None:
    async def main() -> tuple[bool, bool]:
        loop = asyncio.get_running_loop()
        poll = IdlePoll(loop, loop.time)
        for _ in range(NEEDED + 2):
            poll.served(loop.time(), True)
        awake = poll._polling
        while poll._polling:
            await asyncio.sleep(0)
        return awake, poll._polling

    assert asyncio.run(main()) == (True, False)
