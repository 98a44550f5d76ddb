"""What runs is finished and committed before an app ends, and before partitions go to another member."""

import asyncio

import pytest

from headrace.listeners.app import App
from tests.unit.listeners.support import Order, run


class TestShutdown:
    def test_finishes_and_commits_what_runs_and_starts_nothing_more(self) -> None:
        app, started, done = App("billing"), asyncio.Event(), []

        @app.listener("orders")
        async def bill(order: Order) -> None:
            started.set()
            await asyncio.sleep(0.05)
            done.append(order.id)

        async def test() -> None:
            async with app.test() as world:
                for i in range(100):
                    world.send("orders", {"id": i}, key=str(i))
                await started.wait()
            assert done == [0] and world.committed("orders") == 1
            assert len(asyncio.all_tasks()) == 1

        run(test())

    def test_is_bounded_when_a_handler_hangs(self, caplog: pytest.LogCaptureFixture) -> None:
        app, started = App("billing", shutdown_timeout_s=0.05), asyncio.Event()

        @app.listener("orders")
        async def bill(order: Order) -> None:
            started.set()
            await asyncio.Event().wait()

        async def test() -> None:
            async with app.test() as world:
                world.send("orders", {"id": 0})
                await started.wait()
            assert world.committed("orders") is None
            assert len(asyncio.all_tasks()) == 1

        run(test())
        assert "1 handlers still run at the end" in caplog.text


class TestRebalance:
    """Partitions that are taken away, as the consumer tells it inside of `poll`."""

    def test_what_runs_is_finished_and_committed_before_partitions_are_given_up(self) -> None:
        app, started, done = App("billing"), asyncio.Event(), []

        @app.listener("orders", concurrency=2, commit_interval_s=60)
        async def bill(order: Order) -> None:
            started.set()
            await asyncio.sleep(0.02)
            done.append(order.id)

        async def test() -> None:
            async with app.test() as world:
                for i in range(10):
                    world.send("orders", {"id": i}, key=str(i))
                await started.wait()
                runner = app.listeners[0].runner
                assert runner is not None
                await runner._on_revoked(frozenset({("orders", 0)}))
                assert sorted(done) == [0, 1] and world.committed("orders") == 2
                assert runner.schedule.records == 0 and runner.assignment == set()

        run(test())
        assert sorted(done) == [0, 1]

    def test_what_was_lost_is_stopped_and_never_committed(self) -> None:
        app, started, ends = App("billing"), asyncio.Event(), []

        @app.listener("orders")
        async def bill(order: Order) -> None:
            started.set()
            try:
                await asyncio.sleep(60 if order.id == 0 else 0)
            except asyncio.CancelledError:
                ends.append("cancelled")
                raise
            ends.append(f"handled {order.id}")

        async def test() -> None:
            async with app.test(partitions=2) as world:
                world.send("orders", {"id": 0}, partition=0)
                await started.wait()
                runner = app.listeners[0].runner
                assert runner is not None
                await runner._on_lost(frozenset({("orders", 0)}))
                world.send("orders", {"id": 1}, partition=1)
                await world.settled()
                assert world.committed("orders", 0) is None and world.committed("orders", 1) == 1
                assert app.health().ok

        run(test())
        assert ends == ["cancelled", "handled 1"]
