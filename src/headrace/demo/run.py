"""The demo from setting up to verdict. What it starts it ends, whatever happens in between."""

import asyncio
import os
import platform
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Protocol

from headrace.client.admin.admin import Admin
from headrace.demo import job, spark_process
from headrace.demo.check import (
    Check,
    check_group,
    check_rejects,
    check_windows,
    read_topic,
    windows_in_parquet,
    windows_in_topic,
)
from headrace.demo.events import Shop, replay
from headrace.demo.expected import WATERMARK_MS, WINDOW_MS, Expected, expect
from headrace.demo.feed import Feed
from headrace.demo.groups import Group
from headrace.demo.spark_process import SparkProcess
from headrace.demo.status import GroupState, NodeState, Status
from headrace.demo.watch import sample, watch_lag, watch_windows

EVENTS, SALES, REJECTS = "shop-events", "shop-revenue", "shop-rejects"
PARTITIONS = 4
QUEUE, SUBSCRIBERS = "order-queue", ("audit-log", "recommender")
QUEUE_WORKERS = 2

UNBOUNDED_ACT_S = 60.0
"""Where nothing says when the demo ends, it acts as if this were its length: a worker comes, a broker is killed."""
DOWN_S = 2.0
"""How long a killed broker stays away."""
STILL_LIMIT_S = 240.0
"""How long everything may stand still before what is missing counts as lost: a first micro-batch takes its time."""


class DemoFailed(Exception):
    """Something that must work did not; the message says what."""


class Brokers(Protocol):
    """One broker or several, as processes. All calls block."""

    @property
    def bootstrap(self) -> str: ...
    @property
    def replication_factor(self) -> int: ...
    def start(self) -> str: ...
    def nodes(self) -> list[NodeState]: ...
    def kill9(self, node_id: int) -> None: ...
    def revive(self, node_id: int) -> None: ...
    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Options:
    limit_s: float | None = None
    rate: float = 1_000.0
    seed: int = 42
    spark: bool = True


class Run:
    """`await whole()` gives the checks of a bounded run; an unbounded one ends by being cancelled."""

    def __init__(self, options: Options, brokers: Brokers, folder: Path, status: Status) -> None:
        self.options = options
        self.brokers = brokers
        self.folder = folder
        self.status = status
        self.feed: Feed | None = None
        self.groups: list[Group] = []
        self.spark: SparkProcess | None = None
        self.facts: list[tuple[str, str]] = []
        self._watchers: list[asyncio.Task[None]] = []
        self._feeding: asyncio.Task[None] | None = None
        self._killing = asyncio.Lock()
        self._killing_spark = asyncio.Lock()
        self._acts: set[asyncio.Task[None]] = set()

    async def whole(self) -> list[Check]:
        try:
            await self.set_up()
            await self.play()
            expected = await self.drain()
            return await self.judge(expected)
        except asyncio.CancelledError:
            # All that Spark has written goes with the folder: there is nothing for it to finish.
            if self.spark is not None:
                self.spark.kill()
            raise
        finally:
            await self.tear_down()

    # -- before

    async def set_up(self) -> None:
        status, brokers = self.status, self.brokers
        status.groups += [GroupState(QUEUE, "queue"), *(GroupState(name, "pub/sub") for name in SUBSCRIBERS)]
        # Spark takes longest: it starts while the brokers do.
        if not self.options.spark:
            status.spark = "left out (--no-spark)"
        elif not spark_process.is_installed():
            status.spark = spark_process.MISSING
        else:
            await self._start_spark()
        status.note(f"Spark: {status.spark}")
        status.phase = "starting brokers"
        # Not cancelled in the middle: a process that is just being started would be forgotten.
        starting = asyncio.create_task(asyncio.to_thread(brokers.start))
        status.note(await _to_its_end(starting))
        status.bootstrap = brokers.bootstrap
        self._look_at_brokers()
        status.phase = "making topics"
        async with Admin(brokers.bootstrap) as admin:
            for topic in (EVENTS, SALES, REJECTS):
                await admin.create_topic(topic, PARTITIONS, brokers.replication_factor)
        status.note(
            f"topics {EVENTS}, {SALES}, {REJECTS}: {PARTITIONS} partitions, {_copies(brokers.replication_factor)}"
        )
        if self.spark is not None:
            topics = {"events": EVENTS, "sales": SALES, "rejects": REJECTS}
            place = {"bootstrap": brokers.bootstrap, "table": str(self.table), "rate": self.options.rate}
            self.spark.order(topics | place)
        self._start_groups()
        status.begin()
        started_ms = int((time.time() - status.age_s) * 1000)
        shop = Shop(self.options.seed, opened_ms(started_ms), self.options.rate)
        self.feed = Feed(brokers.bootstrap, EVENTS, PARTITIONS, shop)
        self._feeding = asyncio.create_task(self.feed.run(), name="feed")
        self._watch(sample(status, self.feed, self.groups))
        queries = [job.group_of(job.SELL)] if self.spark is not None else []
        self._watch(watch_lag(status, brokers.bootstrap, EVENTS, (QUEUE, *SUBSCRIBERS), queries))
        self._watch(watch_windows(status, brokers.bootstrap, SALES))

    async def _start_spark(self) -> None:
        scratch = self.folder / "scratch"
        scratch.mkdir()
        options = {"folder": str(self.folder), "scratch": str(scratch)}
        targets = {job.SELL: "Parquet", job.PUBLISH: SALES}
        self.spark = SparkProcess(options, self.folder, self.status, targets)
        self.status.groups.append(GroupState(job.group_of(job.SELL), "Spark"))
        await self.spark.start()

    @property
    def table(self) -> Path:
        return self.folder / "sales.parquet"

    def _start_groups(self) -> None:
        for name in (QUEUE, *SUBSCRIBERS):
            group = Group(self.brokers.bootstrap, name, EVENTS, PARTITIONS)
            self.groups.append(group)
            for _ in range(QUEUE_WORKERS if name == QUEUE else 1):
                group.hire()

    def _watch(self, work: Coroutine[Any, Any, None]) -> None:
        self._watchers.append(asyncio.create_task(work))

    # -- while it runs

    async def play(self) -> None:
        """Until the time is up; a worker joins, a broker is killed, and Spark's driver too, on the way."""
        status, limit_s = self.status, self.options.limit_s
        status.phase = "running"
        act_s = limit_s or UNBOUNDED_ACT_S
        acts = [(act_s / 4, self.hire), (act_s / 2, self.kill_broker), (act_s * 3 / 4, self.kill_spark)]
        while limit_s is None or status.elapsed_s < limit_s:
            self._check()
            while acts and status.elapsed_s >= acts[0][0]:
                self.act(acts.pop(0)[1])
            await asyncio.sleep(0.1)

    def act(self, what: Callable[[], Awaitable[None]]) -> None:
        """Do something beside everything else."""

        async def do() -> None:
            await what()

        task = asyncio.create_task(do())
        self._acts.add(task)
        task.add_done_callback(self._acts.discard)

    async def hire(self) -> None:
        worker = self.groups[0].hire()
        self.status.note(f"{worker.name} joins: the queue's partitions are shared anew")

    async def dismiss(self) -> None:
        if len(self.groups[0].workers) > 1:
            worker = await self.groups[0].dismiss()
            self.status.note(f"{worker.name} leaves after {worker.got:,} records: the others take its partitions")

    async def kill_broker(self) -> None:
        """kill -9, a while without it, and back."""
        if self._killing.locked():
            return
        async with self._killing:
            async with Admin(self.brokers.bootstrap) as admin:
                topic = await admin.describe_topic(EVENTS)
            node_id = topic.partitions[0].leader
            killed_s = time.monotonic()
            await _to_its_end(asyncio.create_task(asyncio.to_thread(self.brokers.kill9, node_id)))
            led = [str(index) for index, row in topic.partitions.items() if row.leader == node_id]
            self.status.note(
                f"kill -9 of broker {node_id}, the leader of partition{'s' * (len(led) > 1)} {', '.join(led)}"
            )
            self._look_at_brokers()
            async with asyncio.TaskGroup() as both:
                both.create_task(self._note_recovery(killed_s, [int(index) for index in led]))
                both.create_task(self._revive(node_id))

    async def kill_spark(self) -> None:
        """kill -9 of the pipeline, driver and all, in the middle of its work; another goes on from its checkpoints."""
        spark, status = self.spark, self.status
        if spark is None or self._killing_spark.locked():
            return
        async with self._killing_spark:
            # It should have something to lose: windows that are out, and a batch under way.
            deadline = time.monotonic() + STILL_LIMIT_S
            while not (status.first_window_s is not None and any(state.now for state in status.queries.values())):
                if spark.failure is not None or time.monotonic() > deadline:
                    return
                await asyncio.sleep(0.02)
            await spark.kill9()
            status.note("kill -9 of Spark's driver, in the middle of a batch")
            # Not cancelled in the middle, as with the brokers.
            await _to_its_end(asyncio.create_task(spark.revive()))

    async def _revive(self, node_id: int) -> None:
        await asyncio.sleep(DOWN_S)
        began_s = time.monotonic()
        await _to_its_end(asyncio.create_task(asyncio.to_thread(self.brokers.revive, node_id)))
        self._look_at_brokers()
        self.status.note(f"broker {node_id} is back, {time.monotonic() - began_s:.1f} s after its start")

    async def _note_recovery(self, killed_s: float, led: list[int]) -> None:
        """Until what was sent after the kill is acknowledged, wherever the broker had led; or the feed ends."""
        assert self.feed is not None and self._feeding is not None
        while not all(self.feed.sent_s[index] > killed_s for index in led):
            if self._feeding.done():
                return
            await asyncio.sleep(0.01)
        took_s = time.monotonic() - killed_s
        self.status.recoveries_s.append(took_s)
        self.status.note(f"events are acknowledged again everywhere, {took_s:.1f} s after the kill")

    def _look_at_brokers(self) -> None:
        self.status.nodes = self.brokers.nodes()

    def _check(self) -> None:
        """Raise what has ended before its time."""
        for task in (self._feeding, *self._watchers, *self._acts):
            if task is not None and task.done() and not task.cancelled() and (error := task.exception()) is not None:
                raise DemoFailed(f"{task.get_name()}: {error}") from error
        if self.spark is not None and self.spark.failure is not None:
            raise DemoFailed(f"the pipeline: {self.spark.failure}")

    # -- after

    async def drain(self) -> Expected:
        """Let everything that was sent come out."""
        status = self.status
        assert self.feed is not None and self._feeding is not None
        status.phase = "draining"
        await asyncio.gather(*self._acts)
        self.feed.stop()
        await self._feeding
        status.fed_s = status.elapsed_s
        status.note(f"the feed ends: {self.feed.acknowledged:,} events acknowledged")
        ends = self.feed.ledger.ends
        await self._until(lambda: all(group.has_all(ends) for group in self.groups), "the groups have read everything")
        shop = self.feed.shop
        expected = expect(replay(self.options.seed, shop.start_ms, shop.rate, self.feed.ticks))
        if self.spark is not None:
            await self._until(lambda: self._spark_has(ends), "the pipeline has read everything")
            await self.feed.close_windows(self.feed.last_ms + WINDOW_MS + WATERMARK_MS + 1_000)
            status.note("one last event tells the pipeline that all windows have ended")
            await self._until(lambda: self._windows_are_out(expected), "every window has come out")
            await self.spark.stop()
        ends = self.feed.ledger.ends
        await self._until(
            lambda: all(group.has_all(ends) for group in self.groups), "the groups have read the last event"
        )
        await asyncio.gather(*(group.leave() for group in self.groups))
        return expected

    async def _until(self, ready: Callable[[], bool], what: str) -> None:
        """Wait for it as long as anything moves: what is still missing then is for the verdict to say."""
        moved: tuple[int, ...] = ()
        deadline = 0.0
        while not ready():
            self._check()
            now = self._movement()
            if now != moved:
                moved, deadline = now, time.monotonic() + STILL_LIMIT_S
            elif time.monotonic() > deadline:
                self.status.note(f"given up, since nothing has moved for {STILL_LIMIT_S:.0f} s: {what}")
                return
            await asyncio.sleep(0.2)

    def _movement(self) -> tuple[int, ...]:
        queries = self.status.queries.values()
        return (
            *(group.book.total for group in self.groups),
            *(query.batches for query in queries),
            len(self.status.windows),
            len(self.status.notes),
        )

    def _spark_has(self, ends: list[int]) -> bool:
        sales = self.status.queries.get(job.SELL)
        done = sales.ends.get(EVENTS, {}) if sales is not None else {}
        return all(done.get(str(index), 0) >= end for index, end in enumerate(ends))

    def _windows_are_out(self, expected: Expected) -> bool:
        wanted = len(expected.windows)
        if sum(map(len, self.status.windows.values())) < wanted:
            return False
        return (
            self._spark_has(self.feed.ledger.ends if self.feed else [])
            and len(windows_in_parquet(self.table)) >= wanted
        )

    async def judge(self, expected: Expected) -> list[Check]:
        status = self.status
        assert self.feed is not None
        status.phase = "checking"
        ledger = self.feed.ledger
        checks = []
        for group in self.groups:
            promise = "the queue's workers, each event by one of them" if group.name == QUEUE else "the subscriber"
            checks.append(check_group(group.name, promise, ledger, group.book, group.expulsions))
        if self.spark is not None:
            async with Admin(self.brokers.bootstrap) as admin:
                in_topic = windows_in_topic(await read_topic(admin, SALES))
                rejected = await read_topic(admin, REJECTS)
            checks.append(
                check_windows(
                    f"windows in the topic {SALES}, exactly once", expected.windows, in_topic, exactly_once=True
                )
            )
            in_parquet = await asyncio.to_thread(windows_in_parquet, self.table)
            checks.append(
                check_windows("windows in Parquet, exactly once", expected.windows, in_parquet, exactly_once=True)
            )
            checks.append(check_rejects(expected, ledger, rejected))
        self.facts = self._facts(expected)
        return checks

    def _facts(self, expected: Expected) -> list[tuple[str, str]]:
        assert self.feed is not None
        late = sum(query.late_rows for query in self.status.queries.values())
        return [
            ("seed and rate", f"{self.options.seed}, {self.options.rate:,.0f} events/s on average"),
            ("brokers", ", ".join(node.address for node in self.status.nodes)),
            ("copies", _copies(self.brokers.replication_factor)),
            ("longest wait for an acknowledgement", f"{self.feed.slowest_s * 1000:,.0f} ms"),
            ("events sent twice", f"{expected.duplicates:,}"),
            ("events that were too old to count", f"{expected.stale:,}"),
            *self._facts_of_spark(),
            ("rows that came after the watermark", f"{late:,}"),
            ("queries started again", f"{self.status.restarts:,}"),
            ("processors", f"{os.cpu_count()} x {platform.machine()}"),
        ]

    def _facts_of_spark(self) -> list[tuple[str, str]]:
        status, sales = self.status, self.status.queries.get(job.SELL)
        if sales is None or status.first_window_s is None:
            return []
        steady_s = median(took_s for _, took_s in sales.durations[len(sales.durations) // 3 :])
        return [
            ("first window", f"{status.first_window_s:.1f} s after the start"),
            ("a micro-batch, once warm", f"{steady_s:.1f} s (median)"),
        ]

    async def tear_down(self) -> None:
        """End everything, in the order that loses nothing; killed if it must be."""
        self.status.phase = "stopping"
        for task in (self._feeding, *self._watchers, *self._acts):
            if task is not None:
                task.cancel()
        await asyncio.gather(*(group.cancel() for group in self.groups))
        await asyncio.gather(*(t for t in (self._feeding, *self._watchers, *self._acts) if t), return_exceptions=True)
        try:
            if self.spark is not None:
                await self.spark.stop()
        finally:
            await asyncio.to_thread(self.brokers.close)


def opened_ms(started_ms: int) -> int:
    """When the shop has opened, for a demo that was started at this time: a whole window before the one of its start.

    The feed begins with what the shop did until now, faster than time, and Spark's first batch can end a window: it
    need not wait for the clock.
    """
    return started_ms // WINDOW_MS * WINDOW_MS - WINDOW_MS


async def _to_its_end(task: "asyncio.Task[Any]") -> Any:
    """Await a task that must not be left half done, also when the wait for it is cancelled."""
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise


def _copies(factor: int) -> str:
    return "one copy of everything" if factor == 1 else f"{factor} copies of everything"
