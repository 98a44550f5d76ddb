"""Idempotent processing: what was handled before is left out, whoever sent it again."""

import asyncio
from dataclasses import dataclass
from pathlib import Path

import pytest

from headrace.listeners.app import App
from headrace.listeners.core.headers import failure_of
from headrace.listeners.core.retry import ListenerRefused, Retry
from headrace.listeners.idempotence import MemoryStore, SqliteStore, Store, TopicStore
from headrace.listeners.runner import ListenerFailed
from tests.unit.listeners.support import run


@dataclass
class Payment:
    id: int
    amount: int = 1


@pytest.mark.parametrize("kind", ["memory", "sqlite", "topic"])
def test_idempotent_processing_ignores_a_duplicate(kind: str, tmp_path: Path) -> None:
    """A producer that repeats without being idempotent has doubled a record: it is paid once all the same."""
    stores: dict[str, Store] = {
        "memory": MemoryStore(),
        "sqlite": SqliteStore(tmp_path / "handled.db"),
        "topic": TopicStore("handled"),
    }
    app, paid = App("payments"), []

    @app.listener("payments", concurrency=4)
    @app.idempotent(store=stores[kind], id=lambda payment: payment.id)
    async def pay(payment: Payment) -> None:
        await asyncio.sleep(0)
        paid.append(payment.id)

    async def test() -> None:
        async with app.test() as world:
            for i in (1, 2, 1, 3, 3, 2):
                world.send("payments", {"id": i}, key=str(i))
            world.send("payments", {"id": 1}, key="another key")
            await world.settled()
            assert world.committed("payments") == 7

    run(test())
    assert sorted(paid) == [1, 2, 3]
    assert app.listeners[0].counters.duplicates == 4


def test_ids_outlive_the_process_in_a_file(tmp_path: Path) -> None:
    paid = []
    for _ in range(2):
        app = App("payments")

        @app.listener("payments")
        @app.idempotent(store=SqliteStore(tmp_path / "handled.db"), id="event-id")
        def pay(payment: Payment) -> None:
            paid.append(payment.id)

        async def test(app: App = app) -> None:
            async with app.test() as world:
                world.send("payments", {"id": 1}, headers={"event-id": "a"})
                await world.settled()

        run(test())
    assert paid == [1]


def test_a_record_that_failed_is_not_remembered() -> None:
    app, tried = App("payments"), []

    @app.listener("payments", retry=Retry(attempts=3))
    @app.idempotent(id=lambda payment: payment.id)
    def pay(payment: Payment) -> None:
        tried.append(payment.id)
        if len(tried) < 3:
            raise ConnectionError("the bank is away")

    async def test() -> None:
        async with app.test() as world:
            world.send("payments", {"id": 1})
            world.send("payments", {"id": 1})
            await world.settled()

    run(test())
    assert tried == [1, 1, 1]


def test_a_record_without_an_id_is_no_duplicate_but_a_dead_letter() -> None:
    app = App("payments")

    @app.listener("payments", dead_letter="dlq")
    @app.idempotent(id="event-id")
    def pay(payment: Payment) -> None:
        raise AssertionError

    async def test() -> None:
        async with app.test() as world:
            world.send("payments", {"id": 1})
            await world.settled()
            assert "has no header 'event-id'" in failure_of(world.records("dlq")[0].headers).message

    run(test())


def test_old_ids_are_forgotten(tmp_path: Path) -> None:
    async def test() -> None:
        memory = MemoryStore(ids_max=2)
        for one in "abc":
            await memory.add(one)
        assert [await memory.has(one) for one in "abc"] == [False, True, True]
        store = SqliteStore(tmp_path / "handled.db", kept_s=-1)
        for expected in (True, False):
            await store.start()
            if expected:
                await store.add("a")
            assert await store.has("a") is expected
            await store.close()

    run(test())


def test_what_cannot_work_says_what_to_do(tmp_path: Path) -> None:
    app = App("payments")

    def pay(payment: Payment) -> None: ...

    def batch(payments: list[Payment]) -> None: ...

    app.listener("payments")(pay)
    with pytest.raises(ListenerRefused, match="next to the function"):
        app.idempotent()(pay)
    with pytest.raises(ListenerRefused, match="take one, not a list"):
        app.listener("payments")(app.idempotent()(batch))

    other = App("payments")

    @other.listener("payments")
    @other.idempotent(store=SqliteStore(tmp_path / "no" / "such" / "folder"))
    def pay_too(payment: Payment) -> None: ...

    async def test() -> None:
        with pytest.raises(ListenerFailed, match="cannot be opened"):
            async with other.test() as world:
                await world.settled()

    run(test())
