"""Virtual time: asyncio's order, no waiting, one seed one history, and a deadlock that says so."""

import asyncio
import itertools
import time
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from headrace.clock import Clock
from headrace.testing.simulator.loop import DeadlockError, SimClock, SimLoop
from headrace.testing.simulator.process import CURRENT, Process


@pytest.fixture
def loop() -> Iterator[Any]:
    loop = SimLoop(Random(1))
    yield loop
    loop.close()


def test_hours_pass_in_no_time(loop: SimLoop) -> None:
    started = time.monotonic()
    loop.run_until_complete(asyncio.sleep(100_000))
    assert 100_000 <= loop.time() < 100_001
    assert time.monotonic() - started < 5


def test_ready_callbacks_run_in_order_and_timers_by_time(loop: SimLoop) -> None:
    seen: list[str] = []

    async def main() -> None:
        loop.call_later(0.2, seen.append, "later")
        loop.call_later(0.1, seen.append, "sooner")
        for name in "abc":
            loop.call_soon(seen.append, name)
        loop.call_later(0.15, seen.append, "never").cancel()
        await asyncio.sleep(1)

    loop.run_until_complete(main())
    assert seen == ["a", "b", "c", "sooner", "later"]


def test_tasks_locks_queues_and_timeouts_work(loop: SimLoop) -> None:
    async def main() -> list[object]:
        queue: asyncio.Queue[int] = asyncio.Queue(1)
        got: list[object] = []

        async def consume() -> None:
            while len(got) < 3:
                got.append(await queue.get())

        async with asyncio.TaskGroup() as group:
            group.create_task(consume())
            for number in range(3):
                await queue.put(number)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5):
                await asyncio.Event().wait()
        got.append(round(loop.time()))
        return got

    assert loop.run_until_complete(main()) == [0, 1, 2, 5]


def test_nothing_scheduled_is_a_clear_error(loop: SimLoop) -> None:
    async def stuck() -> None:
        await asyncio.Event().wait()

    with pytest.raises(DeadlockError, match=r"stuck line \d+"):
        loop.run_until_complete(stuck())


def test_code_that_only_calls_itself_does_not_stop_time(loop: SimLoop) -> None:
    async def spin() -> None:
        async with asyncio.timeout(0.01):
            for _ in itertools.count():
                await asyncio.sleep(0)

    with pytest.raises(TimeoutError):
        loop.run_until_complete(spin())


def test_thread_work_happens_between_the_call_and_its_result(loop: SimLoop) -> None:
    loop.work_s = (0.010, 0.010)
    events: list[tuple[str, float]] = []

    async def main() -> None:
        def work(number: int) -> int:
            events.append(("work", round(loop.time(), 4)))
            return number + 1

        assert await loop.run_in_executor(None, work, 1) == 2
        events.append(("result", round(loop.time(), 4)))
        with pytest.raises(ZeroDivisionError):
            await asyncio.to_thread(lambda: 1 // 0)

    loop.run_until_complete(main())
    assert events == [("work", 0.005), ("result", 0.01)]


def test_two_threads_finish_in_either_order() -> None:
    orders = set()
    for seed in range(20):
        loop = SimLoop(Random(seed))
        order: list[str] = []

        async def main(loop: SimLoop = loop, order: list[str] = order) -> None:
            await asyncio.gather(*(loop.run_in_executor(None, order.append, name) for name in "ab"))

        loop.run_until_complete(main())
        loop.close()
        orders.add("".join(order))
    assert orders == {"ab", "ba"}


def test_jitter_makes_timers_late_never_early_and_repeats_by_seed() -> None:
    def history(seed: int) -> list[float]:
        loop = SimLoop(Random(seed), timer_jitter_s=0.05)
        seen: list[float] = []

        async def main() -> None:
            for _ in range(5):
                before = loop.time()
                await asyncio.sleep(0.1)
                seen.append(loop.time() - before)

        loop.run_until_complete(main())
        loop.close()
        return seen

    assert all(0.1 <= wait < 0.1501 for wait in history(3))
    assert history(3) == history(3) != history(4)


def test_clocks_differ_by_node_and_follow_the_loop(loop: SimLoop) -> None:
    clock: Clock = SimClock(loop)
    skewed = SimClock(loop, skew_ms=-3_600_000, boot_ms=5)
    wall_ms, monotonic_ms = clock.wall_ms(), skewed.monotonic_ms()
    loop.run_until_complete(asyncio.sleep(1.5))
    assert clock.wall_ms() - wall_ms == skewed.monotonic_ms() - monotonic_ms == 1500
    assert clock.wall_ms() - skewed.wall_ms() == 3_600_000
    skewed.skew_ms = 0
    assert skewed.wall_ms() == clock.wall_ms()


def test_killed_process_never_runs_again_and_paused_one_catches_up(loop: SimLoop) -> None:
    ticks: dict[str, list[float]] = {"stopped": [], "killed": []}
    unwound: list[str] = []
    born_dead: list[asyncio.Task[None]] = []

    async def tick(name: str) -> None:
        assert CURRENT.get() is not None
        try:
            while True:
                await asyncio.sleep(1)
                ticks[name].append(loop.time())
        finally:
            unwound.append(name)
            loop.call_soon(ticks[name].append, -1.0)
            born_dead.append(asyncio.create_task(asyncio.sleep(0)))

    stopped, killed = Process("stopped", "h1"), Process("killed", "h2")
    for process in (stopped, killed):
        loop.create_task(tick(process.name), context=process.context.copy())

    async def main() -> None:
        await asyncio.sleep(2.5)
        loop.pause(stopped)
        loop.kill(killed)
        killed.bury()
        await asyncio.sleep(10)
        loop.resume(stopped)
        await asyncio.sleep(1.9)
        loop.kill(stopped)
        stopped.bury()

    loop.run_until_complete(main())
    loop.run_until_complete(asyncio.sleep(5))
    assert [round(at) for at in ticks["killed"]] == [1, 2]
    assert [round(at, 1) for at in ticks["stopped"]] == [1.0, 2.0, 12.5, 13.5]
    assert unwound == ["killed", "stopped"]


def test_unhandled_errors_are_kept(loop: SimLoop) -> None:
    loop.call_soon(lambda: 1 // 0)
    loop.run_until_complete(asyncio.sleep(0))
    assert isinstance(loop.errors[0]["exception"], ZeroDivisionError)
