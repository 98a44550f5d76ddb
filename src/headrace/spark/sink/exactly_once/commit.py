"""Carries out what `decisions` says, on the driver: reads and writes the decision, ends transactions, sweeps."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, TypeVar

from headrace.client.admin.admin import Admin
from headrace.client.admin.transactions import Transactions
from headrace.client.errors import ClientError, RequestFailed
from headrace.client.net.connection import Connection
from headrace.client.net.coordinators import TRANSACTION, Coordinators
from headrace.client.produce.partition_queue import ProducerId
from headrace.client.produce.transactions import FEATURE, VERSION_2, end_transaction
from headrace.errors import Err
from headrace.spark.sink.exactly_once.decision_log import DecisionLog, ensure_topic
from headrace.spark.sink.exactly_once.decisions import (
    AbortAll,
    CommitAll,
    Effect,
    Outcome,
    ReadDecision,
    Steps,
    Sweep,
    TaskTransaction,
    WriteDecision,
    abort_batch,
    commit_batch,
    sweep_prefix,
)

T = TypeVar("T")
R = TypeVar("R")

log = logging.getLogger(__name__)

AT_ONCE_MAX = 64
"""Transactions that are being ended at the same time."""
OPEN = "Ongoing"
LOST = frozenset({Err.INVALID_TXN_STATE, Err.PRODUCER_FENCED, Err.INVALID_PRODUCER_EPOCH})
"""What a coordinator says to the commit of a transaction that it has aborted: the first in version 2, the others in the
classic protocol, where an abort that was not the producer's own raises the epoch."""


class Committer:
    """One query or named write on one cluster."""

    def __init__(self, admin: Admin, identity: str) -> None:
        self._admin = admin
        self._identity = identity
        self._decisions = DecisionLog(admin, identity)
        self._coordinators = Coordinators(admin.cluster, TRANSACTION, "transactional id")
        self._transactions = Transactions(admin)

    async def commit(self, batch: int, run: str, tasks: Sequence[TaskTransaction]) -> None:
        """Raises BatchRefused, or ClientError when brokers cannot be asked: then the batch has to be run again."""
        await ensure_topic(self._admin)
        await self.carry_out(commit_batch(batch, run, tasks, time.time_ns() // 1_000_000))

    async def abort(self, tasks: Sequence[TaskTransaction]) -> None:
        await ensure_topic(self._admin)
        await self.carry_out(abort_batch(tasks))

    async def carry_out(self, steps: Steps) -> None:
        result = None
        while True:
            try:
                effect = steps.send(result)
            except StopIteration:
                return
            result = await self._perform(effect)

    async def _perform(self, effect: Effect) -> Any:
        match effect:
            case ReadDecision():
                return await self._decisions.read()
            case WriteDecision(decision):
                return await self._decisions.write(decision)
            case CommitAll(tasks):
                return await _at_once(self._commit, tasks)
            case AbortAll(tasks):
                await _at_once(self._abort, tasks)
            case Sweep(keep, run):
                await self._sweep(keep, run)
        return None

    async def _commit(self, task: TaskTransaction) -> Outcome:
        try:
            await self._end(task, committed=True)
        except RequestFailed as error:
            if error.error in LOST:
                return Outcome.LOST
            if error.error is Err.INVALID_PRODUCER_ID_MAPPING:
                return Outcome.UNKNOWN
            raise
        return Outcome.COMMITTED

    async def _abort(self, task: TaskTransaction) -> None:
        try:
            await self._end(task, committed=False)
        except RequestFailed as error:
            log.info("%s was not aborted: %s", task.transactional_id, error)

    async def _end(self, task: TaskTransaction, *, committed: bool) -> None:
        await end_transaction(
            self._coordinators,
            task.transactional_id,
            ProducerId(task.producer_id, task.epoch),
            committed=committed,
            is_version_2=task.is_version_2,
        )

    async def _sweep(self, keep: frozenset[str], run: str | None) -> None:
        """What is left open can do no more harm than to hold readers back, so trouble with it fails no batch."""
        prefix = sweep_prefix(self._identity)
        try:
            listed = await self._transactions.list_transactions([OPEN])
            names = [one.transactional_id for one in listed if one.transactional_id.startswith(prefix)]
            await _at_once(lambda name: self._abort_leftover(name, run), [name for name in names if name not in keep])
        except ClientError as error:
            log.warning("transactions left open by tasks that failed could not all be aborted: %s", error)

    async def _abort_leftover(self, name: str, run: str | None) -> None:
        """By EndTxn with the epoch of what is open, and never by InitProducerId: that wipes out a commit, too.

        1. The coordinator says that the transaction is open. Another driver decides on it and commits it.
        2. The abort comes with the epoch from before the commit, so it is refused, and the commit can be asked for.

        In version 2 an abort raises the epoch, and a task that is still writing is fenced. In the classic protocol it
        does not: the task would go on in another transaction with the same epoch, without the rows from before. So
        there only those of this driver's own run are aborted, on which no other driver decides; the rest times out.
        """
        try:
            is_version_2 = await self._coordinators.ask(name, _speaks_version_2)
            if not is_version_2 and (run is None or not name.startswith(sweep_prefix(self._identity, run))):
                return
            found = await self._transactions.describe(name)
            if found.state != OPEN:
                return
            await end_transaction(
                self._coordinators,
                name,
                ProducerId(found.producer_id, found.producer_epoch),
                committed=False,
                is_version_2=is_version_2,
            )
        except RequestFailed as error:
            log.info("%s was not aborted: %s", name, error)


async def _speaks_version_2(connection: Connection) -> bool:
    return connection.features.get(FEATURE, 0) >= VERSION_2


async def _at_once(work: Callable[[T], Awaitable[R]], things: Iterable[T]) -> list[R]:
    """The results in order; the first failure is raised when all have ended."""
    turns = asyncio.Semaphore(AT_ONCE_MAX)

    async def one(thing: T) -> R:
        async with turns:
            return await work(thing)

    found = await asyncio.gather(*map(one, things), return_exceptions=True)
    for result in found:
        if isinstance(result, BaseException):
            raise result
    return [result for result in found if not isinstance(result, BaseException)]
