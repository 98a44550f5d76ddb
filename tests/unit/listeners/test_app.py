"""Listeners without a broker: what handlers get, what becomes of their failures, how they end."""

import asyncio
import json
import threading
from typing import Any

import msgspec
import pytest

from headrace.client.api.types import Record
from headrace.client.errors import ClientError
from headrace.client.options import OptionRefused
from headrace.listeners.app import App, Restart
from headrace.listeners.core.headers import failure_of
from headrace.listeners.core.retry import BatchFailed, Fatal, ListenerRefused, Retry, Skip
from headrace.listeners.handlers import Ack, Send
from headrace.listeners.runner import ListenerFailed
from headrace.listeners.world import Cluster
from tests.unit.listeners.support import LIMIT_S, Order, run


class Paid(msgspec.Struct):
    id: int


def test_an_app_takes_kafkas_names_for_all_its_clients() -> None:
    config = {"bootstrap.servers": "b:1", "security.protocol": "SSL", "request.timeout.ms": "1500"}
    world = App("billing", config=config).world
    assert isinstance(world, Cluster)
    options = world._options
    assert (options["bootstrap"], options["client_id"], options["request_timeout_ms"]) == ("b:1", "billing", 1500)
    assert options["security"].tls is not None
    assert App("billing", config=config, client_id="mine").world._options["client_id"] == "mine"  # type: ignore[attr-defined]
    with pytest.raises(ClientError, match=r"did you mean 'security\.protocol'"):
        App("billing", config={"security.protocoll": "SSL"})


class TestValues:
    @pytest.mark.parametrize(
        ("kind", "value", "expected"),
        [
            (bytes, b"x", b"x"),
            (str, "é", "é"),
            (dict[str, int], {"id": 1}, {"id": 1}),
            (Order, {"id": 1, "item": "tea"}, Order(1, "tea")),
            (Paid, {"id": 1}, Paid(1)),
            (Order | None, None, None),
        ],
    )
    def test_have_the_type_of_the_annotation(self, kind: Any, value: Any, expected: Any) -> None:
        app, seen = App("billing"), []

        async def handle(order) -> None:  # type: ignore[no-untyped-def]
            seen.append(order)

        handle.__annotations__["order"] = kind
        app.listener("orders")(handle)

        async def test() -> None:
            async with app.test() as world:
                world.send("orders", value)
                await world.settled()
                assert world.committed("orders") == 1

        run(test())
        assert seen == [expected]

    def test_whole_records_come_beside_them_or_instead(self) -> None:
        app, seen = App("billing"), []

        @app.listener("orders", name="beside")
        def beside(order: Order, record: Record) -> None:
            seen.append((order.id, record.key))

        @app.listener("orders", group="other", name="instead")
        def instead(record: Record) -> None:
            seen.append((record.value, record.header("trace")))

        async def test() -> None:
            async with app.test() as world:
                world.send("orders", b'{"id":1}', key="a", headers={"trace": "t"})
                await world.settled()

        run(test())
        assert sorted(seen, key=str) == [(1, b"a"), (b'{"id":1}', b"t")]

    def test_what_cannot_be_read_goes_to_the_dead_letters_at_once(self) -> None:
        app, seen = App("billing"), []

        @app.listener("orders", dead_letter="orders.dlq")
        def bill(order: Order) -> None:
            seen.append(order.id)

        async def test() -> None:
            async with app.test() as world:
                world.send("orders", "no json", key="a")
                world.send("orders", None, key="a")
                world.send("orders", {"id": 2}, key="a")
                await world.settled()
                dead = [failure_of(record.headers) for record in world.records("orders.dlq")]
                assert [one.attempts for one in dead] == [1, 1]
                assert "offset 0 is no Order" in dead[0].message and "tombstone" in dead[1].message
                assert world.committed("orders") == 3

        run(test())
        assert seen == [2]


def test_poll_loop_is_hidden_behind_handler_functions() -> None:
    """The function is all that the developer writes: reading, order and commits happen around it."""
    app, seen = App("billing"), []

    @app.listener("orders", concurrency=4)
    async def bill(order: Order) -> None:
        await asyncio.sleep(0)
        seen.append(order.id)

    async def test() -> None:
        async with app.test(partitions=3) as world:
            for i in range(300):
                world.send("orders", {"id": i}, key=str(i % 7))
            await world.settled()
            assert sum(world.committed("orders", i) or 0 for i in range(3)) == 300

    run(test())
    assert sorted(seen) == list(range(300))
    for key in range(7):
        mine = [i for i in seen if i % 7 == key]
        assert mine == sorted(mine)


class TestFailures:
    def test_a_failed_record_blocks_its_key_only_and_no_commit_passes_it(self) -> None:
        app, seen, committed = App("billing"), [], []

        @app.listener("orders", concurrency=2, retry=Retry(attempts=3, delay_s=10), dead_letter="orders.dlq")
        async def bill(order: Order) -> None:
            seen.append(order.id)
            committed.append(world.committed("orders"))
            if order.item == "bad":
                raise ValueError("no such table")

        world = app.test()

        async def test() -> None:
            async with world:
                world.send("orders", {"id": 0, "item": "bad"}, key="a")
                world.send("orders", {"id": 1}, key="a")
                world.send("orders", {"id": 2}, key="b")
                await world.settled()
                assert world.committed("orders") == 3
                (dead,) = world.records("orders.dlq")
                told = failure_of(dead.headers)
                assert told.origin is not None and told.origin[:3] == ("orders", 0, 0)
                assert (told.attempts, told.exception, dead.key) == (3, "builtins.ValueError", b"a")
                assert "no such table" in told.stacktrace

        run(test())
        assert sorted(seen[:2]) == [0, 2] and seen[2:] == [0, 0, 1]
        assert committed == [None] * 5, "committed past a record that had not been dealt with"

    def test_order_by_partition_lets_nothing_pass(self) -> None:
        app, seen = App("billing"), []

        @app.listener("orders", concurrency=4, order="partition", retry=Retry(delay_s=1))
        async def bill(order: Order) -> None:
            seen.append(order.id)
            if seen == [0]:
                raise ValueError("once")

        async def test() -> None:
            async with app.test() as world:
                for i in range(4):
                    world.send("orders", {"id": i}, key=str(i))
                await world.settled()

        run(test())
        assert seen == [0, 0, 1, 2, 3]

    def test_with_nowhere_to_put_a_record_the_listener_ends_loudly(self, caplog: pytest.LogCaptureFixture) -> None:
        app = App("billing")

        @app.listener("orders", retry=Retry(attempts=1))
        def bill(order: Order) -> None:
            raise ValueError("no such table")

        async def test() -> None:
            with pytest.raises(ListenerFailed, match="'bill' has failed: no such table"):
                async with app.test() as world:
                    world.send("orders", {"id": 0})
                    await world.settled()
            assert world.committed("orders") is None
            health = app.health()
            assert not health.ok and health.listeners[0].state == "failed"

        run(test())
        assert "nowhere to put it aside" in caplog.text

    def test_a_failure_ends_the_block_that_the_app_runs_beside(self) -> None:
        app = App("billing")

        @app.listener("orders", retry=Retry(attempts=1))
        async def bill(order: Order) -> None:
            raise ValueError("no such table")

        async def test() -> None:
            world = app.test()
            app.world = world
            with pytest.raises(ListenerFailed, match="no such table"):
                async with app:
                    world.send("orders", {"id": 0})
                    await asyncio.sleep(LIMIT_S)
            task = asyncio.current_task()
            assert task is not None and task.cancelling() == 0
            assert len(asyncio.all_tasks()) == 1

        run(test())

    def test_a_handler_that_is_cancelled_from_within_has_failed(self) -> None:
        app, seen = App("billing"), []

        @app.listener("orders", dead_letter="dlq", retry=Retry(attempts=2))
        async def bill(order: Order) -> None:
            seen.append(order.id)
            if order.id == 0:
                raise asyncio.CancelledError

        async def test() -> None:
            async with app.test() as world:
                world.send("orders", {"id": 0}, key="a")
                world.send("orders", {"id": 1}, key="a")
                await world.settled()
                assert "CancelledError" in failure_of(world.records("dlq")[0].headers).message
                assert world.committed("orders") == 2

        run(test())
        assert seen == [0, 0, 1]

    def test_a_listener_is_restarted_by_policy_and_goes_on_where_it_committed(self) -> None:
        app, seen = App("billing", restart=Restart(times=1, delay_s=0.01)), []

        @app.listener("orders", retry=Retry(attempts=1))
        def bill(order: Order) -> None:
            seen.append(order.id)
            if seen == [0, 1]:
                raise ValueError("once")

        async def test() -> None:
            async with app.test() as world:
                for i in range(3):
                    world.send("orders", {"id": i})
                while len(seen) < 4:
                    await asyncio.sleep(0.001)
                await world.settled()
                assert world.committed("orders") == 3
                assert app.listeners[0].counters.restarts == 1

        run(test())
        assert seen == [0, 1, 1, 2]

    def test_skipped_and_fatal_records_are_not_tried_again(self) -> None:
        app, seen = App("billing"), []

        @app.listener("orders", dead_letter="dlq")
        def bill(order: Order) -> None:
            seen.append(order.id)
            if order.id == 0:
                raise Skip
            raise Fatal("never")

        async def test() -> None:
            async with app.test() as world:
                world.send("orders", {"id": 0})
                world.send("orders", {"id": 1})
                await world.settled()
                assert [record.value for record in world.records("dlq")] == [b'{"id":1}']

        run(test())
        assert seen == [0, 1]

    def test_retry_topics_let_the_key_go_on_and_bring_the_record_back(self) -> None:
        app, seen = App("billing"), []

        @app.listener("orders", retry=Retry(attempts=1, topics=("10s", "5m")), dead_letter="dlq")
        async def bill(order: Order) -> None:
            seen.append((order.id, world.now()))
            if order.id == 0:
                raise ValueError("no such table")

        world = app.test()

        async def test() -> None:
            async with world:
                world.send("orders", {"id": 0}, key="a")
                world.send("orders", {"id": 1}, key="a")
                await world.settled()
                told = failure_of(world.records("dlq")[0].headers)
                assert told.attempts == 3 and told.origin is not None and told.origin.topic == "orders"
                assert len(world.records("orders.billing.retry-10s")) == 1
                assert len(world.records("orders.billing.retry-5m")) == 1

        run(test())
        assert seen == [(0, 0.0), (1, 0.0), (0, 10.0), (0, 310.0)]


class TestBatches:
    def test_come_in_order_and_are_committed_as_a_whole(self) -> None:
        app, seen = App("billing"), []

        @app.listener("orders", order="partition", batch_records=4)
        async def bill(orders: list[Order]) -> None:
            seen.append([order.id for order in orders])

        async def test() -> None:
            async with app.test() as world:
                for i in range(10):
                    world.send("orders", {"id": i}, key=str(i))
                await world.settled()
                assert world.committed("orders") == 10

        run(test())
        assert [i for batch in seen for i in batch] == list(range(10)) and max(map(len, seen)) == 4

    def test_a_failed_one_of_them_is_put_aside_and_the_rest_run_again(self) -> None:
        app, done = App("billing"), []

        @app.listener("orders", order="partition", retry=Retry(attempts=2, delay_s=1), dead_letter="dlq")
        async def bill(orders: list[Order]) -> None:
            for index, order in enumerate(orders):
                if order.id == 2:
                    raise BatchFailed(index, "no such table")
                done.append(order.id)

        async def test() -> None:
            async with app.test() as world:
                for i in range(5):
                    world.send("orders", {"id": i})
                await world.settled()
                assert [record.value for record in world.records("dlq")] == [b'{"id":2}']
                assert world.committed("orders") == 5

        run(test())
        assert done == [0, 1, 3, 4]


class TestAcks:
    def test_manual_acks_hold_the_commit_until_they_are_given(self) -> None:
        app = App("billing")
        acks: dict[int, Ack] = {}

        @app.listener("orders", ack="manual")
        def bill(order: Order, ack: Ack) -> None:
            acks[order.id] = ack

        async def test() -> None:
            async with app.test() as world:
                for i in range(3):
                    world.send("orders", {"id": i})
                await world.settled()
                assert sorted(acks) == [0, 1, 2] and world.committed("orders") is None
                await asyncio.to_thread(acks[1])
                await world.settled()
                assert world.committed("orders") is None
                acks[0]()
                acks[0]()
                await asyncio.sleep(0)
                await world.settled()
                assert world.committed("orders") == 2

        run(test())

    def test_record_acks_commit_each(self) -> None:
        app = App("billing")
        committed: list[int | None] = []

        @app.listener("orders", ack="record")
        async def bill(order: Order) -> None:
            while (world.committed("orders") or 0) != order.id:
                await asyncio.sleep(0)
            committed.append(world.committed("orders"))

        world = app.test()

        async def test() -> None:
            async with world:
                for i in range(3):
                    world.send("orders", {"id": i})
                await world.settled()

        run(test())
        assert committed == [None, 1, 2]


def test_results_are_sent_before_their_record_is_committed() -> None:
    app = App("billing")

    @app.listener("orders", send_to="bills")
    def bill(order: Order) -> list[Any]:
        return [Paid(order.id), Send(topic="audit", value=f"billed {order.id}", key="k")]

    async def test() -> None:
        async with app.test() as world:
            world.send("orders", {"id": 7}, key="a")
            await world.settled()
            (billed,), (audit,) = world.records("bills"), world.records("audit")
            assert (billed.value, billed.key) == (b'{"id":7}', b"a")
            assert (audit.value, audit.key) == (b"billed 7", b"k")

    run(test())


def test_exactly_once_sends_results_and_dead_letters_with_the_commit_of_their_record() -> None:
    app, sent_at_call = App("billing"), []

    @app.listener("orders", exactly_once=True, send_to="bills", dead_letter="dlq", retry=Retry(attempts=1))
    async def bill(order: Order) -> Paid:
        sent_at_call.append(len(world.records("bills")))
        if order.id == 1:
            raise ValueError("no such table")
        return Paid(order.id)

    world = app.test()

    async def test() -> None:
        async with world:
            for i in range(3):
                world.send("orders", {"id": i}, key="a")
            await world.settled()
            assert [record.value for record in world.records("bills")] == [b'{"id":0}', b'{"id":2}']
            assert [record.value for record in world.records("dlq")] == [b'{"id":1}']
            assert world.committed("orders") == 3

    run(test())
    assert sent_at_call == [0, 0, 0], "sent before the commit"


def test_plain_functions_run_in_threads_and_async_ones_on_the_loop() -> None:
    app, threads = App("billing"), []

    @app.listener("orders", name="plain")
    def plain(value: bytes) -> None:
        threads.append(threading.current_thread() is threading.main_thread())

    @app.listener("orders", group="other", name="loop")
    async def on_loop(value: bytes) -> None:
        threads.append(threading.current_thread() is threading.main_thread())

    async def test() -> None:
        async with app.test() as world:
            world.send("orders", b"x")
            await world.settled()

    run(test())
    assert sorted(threads) == [False, True]


def test_memory_is_bounded_while_a_handler_is_slow() -> None:
    app, peak, go = App("billing"), 0, asyncio.Event()

    @app.listener("orders", order="none", buffer_records=100, consumer={})
    async def bill(order: Order) -> None:
        nonlocal peak
        runner = app.listeners[0].runner
        assert runner is not None
        peak = max(peak, runner.schedule.records)
        await go.wait()

    async def test() -> None:
        async with app.test() as world:
            for i in range(5_000):
                world.send("orders", {"id": i})
            runner = app.listeners[0].runner
            while runner is None or runner.schedule.records < 500:
                runner = app.listeners[0].runner
                await asyncio.sleep(0)
            polls = runner.polled_at
            await asyncio.sleep(0.05)
            assert polls is not None and runner.schedule.records == 500, "read on although nothing was handled"
            go.set()
            while (world.committed("orders") or 0) < 5_000:
                await asyncio.sleep(0.001)

    run(test())
    assert peak <= 600


class TestRefusals:
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"concurrency": 0}, "concurrency is 1 to"),
            ({"order": "random"}, "write one of partition, key, none"),
            ({"ack": "never"}, "write one of record, batch, manual"),
            ({"ack": "manual"}, "takes an Ack"),
            ({"dead_letter": "orders"}, "dead letters cannot go"),
            ({"transactional_id": "x"}, "is for exactly_once"),
            ({"on_failure": "explode"}, "write stop or skip"),
            ({"consumer": {"auto_commit": True}}, "auto_commit cannot be set"),
        ],
    )
    def test_options_that_cannot_work_say_what_to_do(self, options: dict[str, Any], message: str) -> None:
        def bill(order: Order) -> None: ...

        with pytest.raises(ListenerRefused, match=message):
            App("billing").listener("orders", **options)(bill)

    def test_functions_that_cannot_be_called_say_what_to_do(self) -> None:
        app = App("billing")

        def nothing() -> None: ...

        def strange(order: Order, table: int) -> None: ...

        with pytest.raises(ListenerRefused, match="as a function of the value"):
            app.listener("orders")(nothing)
        with pytest.raises(ListenerRefused, match="annotated as Record or Ack"):
            app.listener("orders")(strange)
        with pytest.raises(ListenerRefused, match="no listeners"):
            asyncio.run(App("billing").start())


class TestKeywords:
    def test_an_option_of_the_consumer_is_sent_to_its_place(self) -> None:
        app = App("billing")
        with pytest.raises(ListenerRefused, match=r"consumer=\{'auto_offset_reset': \.\.\.\}"):
            app.listener("orders", auto_offset_reset="latest")
        options: dict[str, Any] = {"auto_offset_reset": "latest"}
        with pytest.raises(ListenerRefused, match=r"@app\.listener\(\.\.\., consumer="):
            App("billing", **options)

    def test_a_name_that_is_nearly_right_gets_the_right_one(self) -> None:
        with pytest.raises(ListenerRefused, match="no option 'dead_leter': did you mean 'dead_letter'"):
            App("billing").listener("orders", dead_leter="orders.dlq")
        options: dict[str, Any] = {"request_timeout": 5}
        with pytest.raises(OptionRefused, match="did you mean 'request_timeout_ms'"):
            App("billing", **options)


def test_health_is_an_object_with_names_for_whoever_makes_json_of_it() -> None:
    app = App("billing")
    app.listener("orders", name="bill")(lambda order: None)
    found = json.loads(msgspec.json.encode(app.health()))
    assert not found["ok"] and found["listeners"][0]["name"] == "bill"
    assert set(found["listeners"][0]) == {"name", "state", "error", "partitions", "polled_s_ago", "waiting"}
