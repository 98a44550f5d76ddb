"""One listener at work: reads, hands records to its function, commits what is finished.

    poll ──> Schedule.add ──> workers: take, call, finish or fail ──> committer: commit the finished prefix

All of it runs on one event loop; plain functions run in threads. The schedule decides (`core/schedule.py`), here is
what happens around it. Polling never waits for a handler: partitions that are too far ahead are paused.
"""

import asyncio
import contextvars
import logging
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from headrace.client.api.types import Record
from headrace.client.errors import BrokerUnreachable, ClientError, ConnectionLost, RequestFailed, RequestTimedOut
from headrace.errors import Err
from headrace.listeners.core import headers as failure
from headrace.listeners.core.retry import (
    Again,
    BatchFailed,
    DeadLetter,
    Decision,
    Leave,
    Stop,
    ToRetryTopic,
    decide,
    delay_of,
    retry_topic,
)
from headrace.listeners.core.schedule import At, Entry, Prefix, Schedule, Unit
from headrace.listeners.counters import Counters
from headrace.listeners.handlers import Ack, Send, sends_of, when_ready, where
from headrace.listeners.outbox import Outbox
from headrace.listeners.ports import Callbacks, ConsumerPort, Partitions, World
from headrace.listeners.spec import ListenerSpec

log = logging.getLogger("headrace.listeners")

POLL_S = 0.5
YIELD_S = 0.005
"""A worker whose handler never waits lets the event loop turn after so long."""
SEND_AGAIN_S = 5.0
GROUP_WENT_ON = frozenset(
    {
        Err.FENCED_MEMBER_EPOCH,
        Err.UNKNOWN_MEMBER_ID,
        Err.STALE_MEMBER_EPOCH,
        Err.ILLEGAL_GENERATION,
        Err.REBALANCE_IN_PROGRESS,
    }
)
"""A commit that came too late: whoever has the partitions now reads the records again."""


class ListenerFailed(ClientError):
    """A listener has ended, because of a record that it could neither handle nor put aside, or of its consumer."""


class Runner:
    """`await run()` until `stop()`; raises ListenerFailed when it cannot go on."""

    def __init__(self, spec: ListenerSpec, world: World, counters: Counters, shutdown_timeout_s: float) -> None:
        self.spec = spec
        self.counters = counters
        self._world = world
        self._shutdown_timeout_s = shutdown_timeout_s
        self.schedule: Schedule[Record] = Schedule(
            spec.order,
            batch_records=spec.batch_records if spec.handler.is_batch else 1,
            partition_records_max=spec.buffer_records,
            bytes_max=spec.buffer_bytes,
        )
        callbacks = Callbacks(self._on_assigned, self._on_revoked, self._on_lost)
        self.consumer: ConsumerPort = world.consumer(spec.all_topics, spec.group, callbacks, spec.consumer_options)
        self._outbox = Outbox(spec, world)
        self._idempotence = spec.handler.idempotence
        if self._idempotence is not None:
            self._idempotence = self._idempotence.remembering_in(world.store(self._idempotence.store))
        self.assignment: set[At] = set()
        self.polled_at: float | None = None
        self._idle: deque[asyncio.Future[None]] = deque()
        self._at_work: dict[asyncio.Task[None], Unit[Record]] = {}
        self._pool = None if spec.handler.is_async else ThreadPoolExecutor(spec.concurrency, f"listener {spec.name}")
        self._stage_of = {
            retry_topic(topic, spec.group, delay): stage
            for topic in spec.topics
            for stage, delay in enumerate(spec.retry.topics, start=1)
        }
        self._origin_of = spec.retry_topics
        self._cancel_timer: Callable[[], None] | None = None
        self._timer_due = 0.0
        self._to_commit = asyncio.Event()
        self._committing = asyncio.Lock()
        self._stopping = asyncio.Event()
        self._unit_ended = asyncio.Event()
        self._failure: BaseException | None = None

    # -- life

    def stop(self) -> None:
        """Finish what runs, commit and leave; `run` returns when that is done."""
        self._stopping.set()

    async def run(self) -> None:
        """Work until `stop`, or until something cannot be cured."""
        try:
            await self._outbox.start()
            if self._idempotence is not None:
                await self._idempotence.store.start()
            await self._world.make_topics(self.spec.made_topics)
            await self.consumer.start()
            await self._run_started()
        except ClientError as error:
            self._fail(error)
        finally:
            await self._close()
        if self._failure is not None:
            raise ListenerFailed(f"listener {self.spec.name!r} has failed: {self._failure}") from self._failure

    @property
    def is_at_rest(self) -> bool:
        """Whether nothing runs and nothing may: all that is left waits for a time, for an ack or for a commit."""
        return len(self._idle) == self.spec.concurrency

    async def _run_started(self) -> None:
        tasks = [asyncio.create_task(self._poll_loop(), name=f"poll of {self.spec.name}")]
        tasks += [
            asyncio.create_task(self._work(), name=f"worker {i} of {self.spec.name}")
            for i in range(self.spec.concurrency)
        ]
        committer = asyncio.create_task(self._commit_loop(), name=f"commits of {self.spec.name}")
        for task in (*tasks, committer):
            task.add_done_callback(self._ended)
        try:
            await self._stopping.wait()
            tasks[0].cancel()
            await asyncio.wait([tasks[0]])
            await self._drain()
        finally:
            for task in (*tasks, committer):
                task.cancel()
            await asyncio.gather(*tasks, committer, return_exceptions=True)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Nothing of a listener ends without being noticed."""
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)
        elif not self._stopping.is_set():
            self._fail(RuntimeError(f"{task.get_name()} has ended"))

    def _fail(self, error: BaseException) -> None:
        if self._failure is None:
            self._failure = error
        self._stopping.set()

    async def _drain(self) -> None:
        """Let what runs finish, within limits, and commit what is finished."""
        self.schedule.hold_all()
        await self._wait_for_units(self.assignment, self._shutdown_timeout_s, "at the end")
        try:
            await self._commit_now()
        except ClientError as error:
            self._fail(error)

    async def _close(self) -> None:
        if self._cancel_timer is not None:
            self._cancel_timer()
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
        closes = [self.consumer.close, self._outbox.close]
        if self._idempotence is not None:
            closes.append(self._idempotence.store.close)
        for close in closes:
            try:
                await close()
            except ClientError as error:
                log.warning("listener %r: closing: %s", self.spec.name, error)

    async def _wait_for_units(self, partitions: Iterable[At], limit_s: float, when: str) -> None:
        """For running handlers of some partitions; those that take longer are told to end, if they can be."""
        partitions = list(partitions)
        try:
            async with asyncio.timeout(limit_s):
                while self.schedule.running_in(partitions):
                    self._unit_ended.clear()
                    await self._unit_ended.wait()
        except TimeoutError:
            count = self.schedule.running_in(partitions)
            log.error("listener %r: %d handlers still run %s after %g s: their records are read again by whoever gets "
                      "the partitions", self.spec.name, count, when, limit_s)  # fmt: skip

    # -- reading

    async def _poll_loop(self) -> None:
        while True:
            records = await self.consumer.poll(POLL_S)
            self.polled_at = self._world.now()
            if records:
                self._add(records)
                self._wake()
            self._direct_flow()

    def _add(self, records: list[Record]) -> None:
        add, stages = self.schedule.add, self._stage_of
        for record in records:
            size = (len(record.value) if record.value is not None else 0) + (len(record.key) if record.key else 0)
            due = self._due(record) if stages and record.topic in stages else 0.0
            add((record.topic, record.partition), record.offset, record.key, record, size, due=due)
        self.counters.received += len(records)

    def _due(self, record: Record) -> float:
        """When a record of a retry topic is due, by this clock. At most its delay from now: clocks may differ."""
        wait_s = (failure.due_ms_of(record.headers) - self._world.wall_ms()) / 1000
        return self._world.now() + min(
            max(wait_s, 0.0), delay_of(self.spec.retry.topics[self._stage_of[record.topic] - 1])
        )

    def _direct_flow(self) -> None:
        """Pause what is too far ahead and resume what has caught up."""
        flow = self.schedule.flow()
        for partitions, change in ((flow.pause, self.consumer.pause), (flow.resume, self.consumer.resume)):
            for at in partitions:  # one by one: one that fails must not leave the others paused
                try:
                    change(at)
                except ClientError:
                    # It was lost and `_on_lost` has not been called yet: what is lost needs neither.
                    log.debug("listener %r: %s-%d is lost", self.spec.name, *at, exc_info=True)

    # -- partitions that come and go

    async def _on_assigned(self, partitions: Partitions) -> None:
        self.assignment.update(partitions)
        if self._idempotence is not None:
            await self._idempotence.store.refresh()
        log.info("listener %r: reads %s", self.spec.name, _names(partitions))

    async def _on_revoked(self, partitions: Partitions) -> None:
        """Still ours: what runs may finish and be committed, so that nobody does it again."""
        self.schedule.hold(partitions)
        if not self._stopping.is_set():
            await self._wait_for_units(partitions, self.spec.revoke_timeout_s, "when their partitions are taken away")
            await self._commit_now()
        self._give_up(partitions)

    async def _on_lost(self, partitions: Partitions) -> None:
        """Somebody else's already: what runs must not go on as if it were ours."""
        log.warning(
            "listener %r: the group went on without it and has given away %s", self.spec.name, _names(partitions)
        )
        self._give_up(partitions)

    def _give_up(self, partitions: Partitions) -> None:
        self.assignment.difference_update(partitions)
        dropped = self.schedule.drop(partitions)
        for task, unit in self._at_work.items():
            if unit in dropped and self.spec.handler.is_async:
                task.cancel()

    # -- working

    async def _work(self) -> None:
        world, schedule, loop = self._world, self.schedule, asyncio.get_running_loop()
        task = asyncio.current_task()
        assert task is not None
        turn_ends = loop.time() + YIELD_S
        while True:
            unit = schedule.take(world.now())
            if unit is None:
                await self._rest()
                turn_ends = loop.time() + YIELD_S
                continue
            self._at_work[task] = unit
            try:
                await self._attempt(unit)
            except asyncio.CancelledError:
                if unit.is_dropped:
                    task.uncancel()
                    schedule.stop(unit)
                elif task.cancelling():
                    raise
                else:
                    await self._failed(unit, RuntimeError("the handler let a CancelledError through"))
            finally:
                del self._at_work[task]
                self._unit_ended.set()
            if loop.time() > turn_ends:
                await asyncio.sleep(0)
                turn_ends = loop.time() + YIELD_S

    async def _rest(self) -> None:
        """Until there may be something to do. Reading that has paused goes on now, not when the poll ends."""
        self._direct_flow()
        if self.spec.ack != "manual" and not self.schedule.running:
            self._to_commit.set()
        due = self.schedule.next_due()
        if due is not None and (self._cancel_timer is None or due < self._timer_due):
            if self._cancel_timer is not None:
                self._cancel_timer()
            self._timer_due = due
            self._cancel_timer = self._world.call_at(due, self._on_timer)
        future = asyncio.get_running_loop().create_future()
        self._idle.append(future)
        await future

    def _on_timer(self) -> None:
        self._cancel_timer = None
        self._wake()

    def _wake(self) -> None:
        while self._idle:
            future = self._idle.popleft()
            if not future.done():
                future.set_result(None)

    async def _attempt(self, unit: Unit[Record]) -> None:
        """Call the handler once, and do what its result or its failure asks for."""
        started = self._world.now()
        ack = self._ack_of(unit.entries) if self.spec.ack == "manual" else None
        records = [entry.record for entry in unit.entries]
        try:
            outputs = await self._handle_once(records, ack)
        except Exception as error:
            self.counters.failures += 1
            if not unit.is_dropped:
                await self._failed(unit, error)
            else:
                self.schedule.stop(unit)
            return
        self.counters.handled(len(records), self._world.now() - started)
        if ack is None or unit.is_dropped:
            self.schedule.finish(unit, outputs)
        else:
            self.schedule.pass_on(unit)
        self._finished()

    async def _handle_once(self, records: list[Record], ack: Ack | None) -> list[Send]:
        """Handle records, unless the listener is idempotent and this one was handled before. What has to be sent with
        the commit is returned."""
        if self._idempotence is None:
            return await self._handle(records, ack)
        identity = await when_ready(partial(self.spec.handler.identity_of, records[0]))
        async with self._idempotence.once(identity) as is_new:
            if is_new:
                return await self._handle(records, ack)
        self.counters.duplicates += 1
        log.info("listener %r: %s was handled before and is left out", self.spec.name, where(records[0]))
        if ack is not None:
            ack()
        return []

    async def _handle(self, records: list[Record], ack: Ack | None) -> list[Send]:
        telemetry = self.spec.telemetry
        if telemetry is None:
            return await self._handle_plainly(records, ack)
        with telemetry.process(records, group=self.spec.group):
            return await self._handle_plainly(records, ack)

    async def _handle_plainly(self, records: list[Record], ack: Ack | None) -> list[Send]:
        outputs = sends_of(await self._call(records, ack), records, self.spec.send_to, self.spec.name)
        await self._outbox.check(outputs)
        if self.spec.exactly_once:
            return outputs
        if outputs:
            await self._outbox.send(outputs)
        return []

    async def _call(self, records: list[Record], ack: Ack | None) -> Any:
        handler = self.spec.handler
        arguments = await when_ready(partial(handler.arguments, records, ack))
        if self._pool is None:
            return await handler.function(*arguments)
        call = partial(contextvars.copy_context().run, handler.function, *arguments)
        return await asyncio.get_running_loop().run_in_executor(self._pool, call)

    def _finished(self) -> None:
        if self.spec.ack == "record":
            self._to_commit.set()

    def _ack_of(self, entries: list[Entry[Record]]) -> Ack:
        loop, entries = asyncio.get_running_loop(), list(entries)

        def acknowledge() -> None:
            self.schedule.acknowledge(entries)
            self._to_commit.set()

        return Ack(partial(loop.call_soon_threadsafe, acknowledge))

    # -- failing

    async def _failed(self, unit: Unit[Record], error: Exception) -> None:
        spec, finished, failed = self.spec, 0, unit.entries
        if isinstance(error, BatchFailed) and 0 <= error.index < len(unit.entries):
            # Those before it are done with, those behind it have not been tried.
            finished, failed = error.index, unit.entries[error.index : error.index + 1]
            if isinstance(error.__cause__, Exception):
                error = error.__cause__
        record = failed[0].record
        attempt = 1 if finished else unit.attempt
        decision = decide(
            error,
            spec.retry,
            attempt=attempt,
            stage=self._stage_of.get(record.topic, 0),
            dead_letter=spec.dead_letter is not None,
            skip=spec.on_failure == "skip",
        )
        self._tell(decision, error, record, attempt)
        if isinstance(decision, Again):
            self.counters.retries += 1
            self.schedule.retry(unit, self._world.now() + decision.delay_s, finished=finished)
        elif isinstance(decision, Stop):
            self._fail(error)
            self.schedule.retry(unit, self._world.now() + SEND_AGAIN_S, finished=finished)
        else:
            await self._put_aside(unit, failed, finished, decision, error, attempt)

    async def _put_aside(
        self,
        unit: Unit[Record],
        failed: list[Entry[Record]],
        finished: int,
        decision: ToRetryTopic | DeadLetter | Leave,
        error: Exception,
        attempt: int,
    ) -> None:
        """Send the failed records elsewhere, and only then go on behind them."""
        outputs = [self._elsewhere(entry.record, decision, error, attempt) for entry in failed]
        sends = [send for send in outputs if send is not None]
        if sends and not self.spec.exactly_once:
            try:
                await self._outbox.send(sends)
            except ClientError as why:
                log.error("listener %r: %s cannot be put aside and holds up its key: %s", self.spec.name,
                          where(failed[0].record), why)  # fmt: skip
                self.schedule.retry(unit, self._world.now() + SEND_AGAIN_S, finished=finished)
                return
            sends = []
        self.counters.put_aside(decision, len(failed))
        done = finished + len(failed)
        if done < len(unit.entries):
            # The rest of a batch runs again, without those that are done with or put aside.
            self.schedule.retry(unit, self._world.now(), finished=done, outputs=sends)
            self._wake()
        else:
            self.schedule.finish(unit, sends)
        self._finished()

    def _elsewhere(self, record: Record, decision: Decision, error: Exception, attempt: int) -> Send | None:
        if isinstance(decision, Leave):
            return None
        spec, stage, due_ms = self.spec, 0, 0
        topic = spec.dead_letter or ""
        if isinstance(decision, ToRetryTopic):
            stage, due_ms = decision.stage, self._world.wall_ms() + int(decision.delay_s * 1000)
            source = self._origin_of.get(record.topic, record.topic)
            topic = retry_topic(source, spec.group, spec.retry.topics[stage - 1])
        told = failure.failure_headers(
            record.headers,
            failure.Origin(record.topic, record.partition, record.offset, record.timestamp, spec.group),
            error,
            listener=spec.name,
            attempts=failure.attempts_of(record.headers) + attempt,
            stage=stage,
            due_ms=due_ms,
        )
        return Send(
            topic=topic,
            value=record.value,
            key=record.key,
            headers=told,
            timestamp=max(record.timestamp, 0),
            partition=record.partition,
        )

    def _tell(self, decision: Decision, error: Exception, record: Record, attempt: int) -> None:
        name, place = self.spec.name, where(record)
        if isinstance(decision, Again):
            log.warning("listener %r: %s failed at attempt %d, again in %g s: %r", name, place, attempt,
                        decision.delay_s, error)  # fmt: skip
        elif isinstance(decision, ToRetryTopic):
            log.warning("listener %r: %s goes to a retry topic for %g s: %r", name, place, decision.delay_s, error)
        elif isinstance(decision, DeadLetter):
            log.error("listener %r: %s goes to the dead letters in %s: %r", name, place, self.spec.dead_letter, error,
                      exc_info=error)  # fmt: skip
        elif isinstance(decision, Stop):
            log.critical("listener %r: %s failed and there is nowhere to put it aside (dead_letter=): the listener "
                         "ends", name, place, exc_info=error)  # fmt: skip
        elif self.spec.on_failure == "skip":
            log.error("listener %r: %s is skipped: %r", name, place, error)

    # -- committing

    async def _commit_loop(self) -> None:
        while True:
            try:
                async with asyncio.timeout(self.spec.commit_interval_s):
                    await self._to_commit.wait()
            except TimeoutError:
                pass
            self._to_commit.clear()
            await self._commit_now()

    async def _commit_now(self) -> None:
        """Commit how far partitions are finished. A broker that is away is asked again, at the next turn."""
        async with self._committing:
            prefixes = self.schedule.committable()
            if not prefixes:
                return
            try:
                await self._commit(prefixes)
            except ClientError as error:
                self.counters.commit_failures += 1
                if not is_curable(error, exactly_once=self.spec.exactly_once):
                    raise
                log.warning("listener %r: a commit failed and is tried again: %s", self.spec.name, error)
                return
            self.schedule.committed(prefixes.items())
            self.counters.commits += 1

    async def _commit(self, prefixes: dict[At, Prefix]) -> None:
        offsets = {at: prefix.next_offset for at, prefix in prefixes.items()}
        if self.spec.exactly_once:
            await self._outbox.transact(self.consumer, offsets, [one for p in prefixes.values() for one in p.outputs])
        else:
            await self.consumer.commit(offsets)


def is_curable(error: ClientError, *, exactly_once: bool) -> bool:
    """Whether a commit may work later, or has become somebody else's. How a transaction ended that was cut off is not
    known here, so that it is never sent again: the next start asks for what was committed."""
    if isinstance(error, RequestFailed):
        return error.error in GROUP_WENT_ON or (error.error.retriable and not exactly_once)
    return not exactly_once and isinstance(error, BrokerUnreachable | ConnectionLost | RequestTimedOut)


def _names(partitions: Partitions) -> str:
    return ", ".join(f"{topic}-{index}" for topic, index in sorted(partitions)) or "nothing"
