"""Clients with transactions, in both of Kafka's protocols, and readers of what is committed, for the checkers.

Producers die in the middle of a transaction and come back under the same transactional id, at once or when it has timed
out. What they leave behind may still speak: a batch that comes late, a commit that nobody waits for any more.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from random import Random
from typing import Any

from headrace.client import raw
from headrace.client.consume.records import visible_batches
from headrace.client.errors import ClientError, RequestFailed, check
from headrace.client.net.cluster import Cluster
from headrace.client.net.connection import Connection
from headrace.client.net.coordinators import GROUP, TRANSACTION, Coordinators
from headrace.clock import Clock
from headrace.errors import Err
from headrace.protocol import messages as m
from headrace.protocol.api import ApiKey
from headrace.records.builder import build_batch
from headrace.records.layout import iter_headers
from headrace.records.reader import Record
from headrace.testing.simulator.checkers import Anomaly, EndTransaction, History, Log, Outcome, Poll, Send
from headrace.testing.simulator.workload import Options, Workload

IN_FLIGHT = 5
BATCHES_MAX = 7
"""More than are in flight at once."""
TIMEOUTS_MS = (2_000, 6_000)
SETTLE_S = 60.0
"""How long after all is well the last transaction may be open."""
CLASSIC = {ApiKey.PRODUCE: 11, ApiKey.END_TXN: 4, ApiKey.TXN_OFFSET_COMMIT: 4}
"""The last versions of the classic protocol. Later ones add partitions and raise epochs by themselves."""
ADD_PARTITIONS_VERSION = 3
"""Later ones are for brokers."""
NOT_COMMITTED = {
    Err.PRODUCER_FENCED,
    Err.INVALID_PRODUCER_EPOCH,
    Err.INVALID_PRODUCER_ID_MAPPING,
    Err.INVALID_TXN_STATE,
    Err.TRANSACTION_ABORTABLE,
}
"""As answers to the only EndTxn of a transaction."""


class TransactionalWorkload(Workload):
    """Transactors and readers of one topic."""

    def __init__(self, bootstrap: str, random: Random, clock: Clock, options: Options | None = None) -> None:
        super().__init__(bootstrap, random, clock, options)
        self.transactors: list[Transactor] = []
        self.leftovers: set[asyncio.Task[None]] = set()
        self.refusals: list[str] = []
        """Why transactions of living clients failed. Without faults none does."""

    def transactor(self, transactional_id: str, *, classic: bool) -> "Transactor":
        """A client to run, in the classic protocol or in that of transaction version 2."""
        transactor = Transactor(self, transactional_id, classic)
        self.transactors.append(transactor)
        return transactor

    def leave_behind(self, work: Callable[[], Awaitable[object]], delay_s: float) -> None:
        """Something that a dead client has sent, and that arrives later."""

        async def later() -> None:
            await asyncio.sleep(delay_s)
            with suppress(ClientError):
                await work()

        task = asyncio.create_task(later())
        self.leftovers.add(task)
        task.add_done_callback(self.leftovers.discard)

    # ---- reading

    async def _poll(self, cluster: Cluster, name: str, partition: int, position: int) -> int:
        topic = self.options.topic
        max_bytes = self.random.choice((500, 5_000, 1 << 20))
        fetched = await raw.fetch(cluster, topic, partition, position, max_bytes=max_bytes, read_committed=True)
        leader_epoch = cluster.topics[topic].partitions[partition].leader_epoch
        records, end_offset = decode_committed(fetched, position)
        self.history.operations.append(
            Poll(
                name, partition, records, fetched.last_stable_offset,
                leader_epoch=leader_epoch, high_watermark=fetched.high_watermark,
            )
        )  # fmt: skip
        return end_offset

    async def _read_log(self, partition: int) -> Log:
        log: list[tuple[int, bytes]] = []
        position = 0
        cluster = self.cluster()
        deadline = asyncio.get_running_loop().time() + SETTLE_S
        try:
            while True:
                fetched = await raw.fetch(cluster, self.options.topic, partition, position, read_committed=True)
                records, end_offset = decode_committed(fetched, position)
                log.extend(records)
                if end_offset == position and position >= fetched.high_watermark:
                    return log
                if asyncio.get_running_loop().time() > deadline:
                    end = fetched.high_watermark
                    raise Hanging(f"readers of {partition} wait at {position}, and it ends at {end}")
                position = end_offset
        finally:
            cluster.close()

    # ---- groups

    async def check_offsets(self) -> list[Anomaly]:
        """When all is calm: each group stands where its last committed transaction left it."""
        found: list[Anomaly] = []
        cluster = self.cluster()
        try:
            for transactor in self.transactors:
                transactor.offsets.append(await self._settled_offset(cluster, transactor.group))
                found += wrong_offsets(transactor, self.history)
        finally:
            cluster.close()
        return found

    async def _settled_offset(self, cluster: Cluster, group: str) -> int:
        """A client may have died when it had committed offsets and written nothing yet: its time-out ends that."""
        deadline = asyncio.get_running_loop().time() + SETTLE_S
        while True:
            try:
                return await stable_offset(cluster, group, self.options)
            except RequestFailed as error:
                if error.error is not Err.UNSTABLE_OFFSET_COMMIT:
                    raise
                if asyncio.get_running_loop().time() > deadline:
                    raise Hanging(f"the offsets of {group} stay pending") from error
            await asyncio.sleep(0.1)


class Hanging(Exception):
    """A transaction that nobody ends."""


class _Batch:
    """Records on their way to one partition."""

    def __init__(self, partition: int, values: list[bytes], data: bytes) -> None:
        self.partition = partition
        self.values = values
        self.data = data
        self.outcome = Outcome.UNKNOWN
        self.base_offset = -1


class _Died(Exception):
    """The client is gone; the next one has nothing of it but its transactional id."""


class Transactor:
    """One client after the other with the same transactional id."""

    def __init__(self, workload: TransactionalWorkload, transactional_id: str, classic: bool) -> None:
        self.id = transactional_id
        self.classic = classic
        self.group = f"group of {transactional_id}"
        self.offsets: list[int] = []
        """What the group was told, in this order: the number of the last transaction that counts."""
        self.with_offsets: set[int] = set()
        """Transactions that have committed offsets as their part."""
        self._workload = workload
        self._options = workload.options
        self._dice = workload.random
        self._history = workload.history
        self._cluster = workload.cluster()
        self._transactions = Coordinators(self._cluster, TRANSACTION, "transactional id")
        self._groups = Coordinators(self._cluster, GROUP, "group")
        self._number = 0
        self._producer = (-1, -1)
        self._sequences: dict[int, int] = {}
        self._ended: tuple[int, int] | None = None
        """The producer id and epoch of the last transaction, whose markers may be on their way."""
        self._complete: tuple[int, int] | None = None
        """Of the one before, which is complete. Only with an epoch for each transaction can the two be told apart."""

    async def run(self) -> None:
        """Transactions for ever, through whatever happens to the cluster."""
        try:
            while True:
                try:
                    await self._begin(None)
                    while True:
                        await self._transaction()
                        if self._dice.random() < 0.5:
                            await asyncio.sleep(self._dice.random() * self._options.pause_s_max)
                except ClientError:
                    await asyncio.sleep(0.1)
                except _Died:
                    await asyncio.sleep(self._dice.choice((0.0, 0.1, 1.0, 5.0)) * self._dice.random())
                    self._cluster.close()
        finally:
            self._cluster.close()

    async def watch_offsets(self) -> None:
        """What the group is told, for ever."""
        cluster = self._workload.cluster()
        try:
            while True:
                with suppress(ClientError):
                    self.offsets.append(await stable_offset(cluster, self.group, self._options))
                await asyncio.sleep(0.1)
        finally:
            cluster.close()

    # ---- one transaction

    async def _transaction(self) -> None:
        self._number += 1
        name = (self.id, self._number)
        batches: list[_Batch] = []
        outcome = Outcome.FAILED  # as long as nobody has asked for a commit
        try:
            try:
                await self._write(batches)
            except RequestFailed as error:
                self._workload.refusals.append(str(error))
                await self._give_up()
                return
            end = self._dice.random()
            if end < 0.6:
                outcome = Outcome.UNKNOWN
                outcome = await self._commit()
                if outcome is Outcome.FAILED:
                    await self._give_up()
                elif self._dice.random() < 0.5:
                    self._leave_marker()
            elif end < 0.75:
                await self._end(False)
            else:
                if self._leave_something(name) == "commit":
                    outcome = Outcome.UNKNOWN
                raise _Died
        finally:
            for batch in batches:
                self._note(batch, name)
            self._history.operations.append(EndTransaction(self.id, name, outcome))

    async def _write(self, batches: list[_Batch]) -> None:
        count = min(self._options.partitions, self._dice.randint(1, 3))
        partitions = self._dice.sample(range(self._options.partitions), count)
        if self.classic:
            await self._add_partitions(partitions)
        queues = []
        for partition in partitions:
            queue = [self._batch(partition) for _ in range(self._dice.randint(1, BATCHES_MAX))]
            batches += queue
            queues.append(queue)
        if self._dice.random() < 0.5:
            self.with_offsets.add(self._number)
            await self._commit_offsets()
        for failed in await asyncio.gather(*map(self._send, queues), return_exceptions=True):
            if failed is not None:
                raise failed

    async def _give_up(self) -> None:
        """After an error: abort and go on with another epoch, as clients do, or die."""
        if self._dice.random() < 0.5:
            raise _Died
        producer = self._producer
        await self._end(False)
        if self.classic:
            # What was sent may still be on its way (KIP-360).
            await self._begin(producer)

    def _leave_something(self, name: tuple[str, int]) -> str:
        kind = self._dice.choice(("nothing", "batch", "batch", "commit"))
        delay_s = self._dice.choice((0.1, 1.0, 5.0)) * self._dice.random()
        if kind == "batch":
            batch = self._batch(self._dice.randrange(self._options.partitions))
            self._note(batch, name)
            self._workload.leave_behind(lambda: self._send_alone(batch), delay_s)
        if kind == "commit":
            producer = self._producer
            self._workload.leave_behind(lambda: self._end(True, producer), delay_s)
        return kind

    def _leave_marker(self) -> None:
        """The abort of a transaction that is long complete, as a coordinator or an administrator may have sent it."""
        if self._complete is None:
            return
        kind, (producer_id, epoch) = m.WriteTxnMarkersRequest, self._complete
        partition = self._dice.randrange(self._options.partitions)
        topics = [kind.WritableTxnMarkerTopic(name=self._options.topic, partition_indexes=[partition])]
        marker = kind.WritableTxnMarker(
            producer_id=producer_id, producer_epoch=epoch, topics=topics, coordinator_epoch=0
        )

        async def write() -> None:
            cluster = self._workload.cluster()
            try:
                _, _, connection = await cluster.leader(self._options.topic, partition)
                await connection.request(ApiKey.WRITE_TXN_MARKERS, kind(markers=[marker]))
            finally:
                cluster.close()

        self._workload.leave_behind(write, 2 * self._dice.random() * self._options.pause_s_max)

    def _note(self, batch: _Batch, name: tuple[str, int]) -> None:
        for index, value in enumerate(batch.values):
            offset = batch.base_offset + index if batch.base_offset >= 0 else -1
            self._history.operations.append(Send(self.id, batch.partition, value, batch.outcome, offset, name))

    def _batch(self, partition: int) -> _Batch:
        values = [self._workload._new_value(self.id) for _ in range(self._dice.randint(1, 3))]
        sequence = self._sequences.get(partition, 0)
        self._sequences[partition] = sequence + len(values)
        now_ms = self._workload.clock.wall_ms()
        data = build_batch(
            [Record(0, now_ms, b"key", value) for value in values],
            producer_id=self._producer[0], producer_epoch=self._producer[1], base_sequence=sequence,
            transactional=True,
        )  # fmt: skip
        return _Batch(partition, values, bytes(data))

    # ---- batches

    async def _send(self, queue: list[_Batch]) -> None:
        """Up to five at a time without waiting for answers, and all that have none again, in order."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._options.retry_timeout_s
        while queue:
            error = await self._send_once(self._cluster, queue[:IN_FLIGHT])
            queue = [batch for batch in queue if batch.outcome is not Outcome.OK]
            if error is None:
                continue
            if loop.time() > deadline or (isinstance(error, RequestFailed) and not error.error.retriable):
                raise error if isinstance(error, RequestFailed) else RequestFailed("produce", Err.REQUEST_TIMED_OUT)
            await asyncio.sleep(0.05)
            try:
                await self._cluster.refresh([self._options.topic])
            except ClientError:
                continue

    async def _send_once(self, cluster: Cluster, batches: Sequence[_Batch]) -> ClientError | None:
        """The error of the first that was not taken. What comes behind it cannot have been taken either."""
        answers: list[asyncio.Future[m.ProduceResponse]] = []
        try:
            topic, _, connection = await cluster.leader(self._options.topic, batches[0].partition)
            for batch in batches:
                request = self._produce(topic.topic_id, batch)
                answer = await connection.post(ApiKey.PRODUCE, request, version_max=self._version_max(ApiKey.PRODUCE))
                answer.add_done_callback(lambda one: one.cancelled() or one.exception())  # nobody may be left to ask
                answers.append(answer)
            await asyncio.wait(answers, timeout=self._options.request_timeout_s)
            if not all(answer.done() for answer in answers):
                connection.close()
        except ClientError as error:
            await asyncio.gather(*answers, return_exceptions=True)
            return error
        found = await asyncio.gather(*answers, return_exceptions=True)
        for batch, got in zip(batches, found):
            if isinstance(got, ClientError):
                return got
            assert not isinstance(got, BaseException), got
            row = got.responses[0].partition_responses[0]
            if row.error_code not in (Err.NONE, Err.DUPLICATE_SEQUENCE_NUMBER):
                return RequestFailed(f"produce to {batch.partition}", Err(row.error_code), row.error_message)
            batch.outcome, batch.base_offset = Outcome.OK, row.base_offset
        return None

    async def _send_alone(self, batch: _Batch) -> None:
        cluster = self._workload.cluster()
        try:
            await self._send_once(cluster, [batch])
        finally:
            cluster.close()

    def _produce(self, topic_id: bytes, batch: _Batch) -> m.ProduceRequest:
        kind = m.ProduceRequest
        rows = [kind.PartitionProduceData(index=batch.partition, records=batch.data)]
        return kind(
            transactional_id=self.id,
            acks=-1,
            timeout_ms=int(self._options.request_timeout_s * 1000),
            topic_data=[kind.TopicProduceData(name=self._options.topic, topic_id=topic_id, partition_data=rows)],
        )

    # ---- coordinators

    async def _begin(self, expected: tuple[int, int] | None) -> None:
        """A new epoch: for a new client, or for one that goes on after an error."""
        request = m.InitProducerIdRequest(
            transactional_id=self.id, transaction_timeout_ms=self._dice.choice(TIMEOUTS_MS)
        )
        if expected is not None:
            request.producer_id, request.producer_epoch = expected
        answer: m.InitProducerIdResponse = await self._ask(ApiKey.INIT_PRODUCER_ID, request)
        self._become(answer.producer_id, answer.producer_epoch)

    def _become(self, producer_id: int, epoch: int) -> None:
        if (producer_id, epoch) != self._producer:
            self._producer = producer_id, epoch
            self._sequences.clear()

    async def _add_partitions(self, partitions: Iterable[int]) -> None:
        kind = m.AddPartitionsToTxnRequest
        request = kind(
            v3_and_below_transactional_id=self.id,
            v3_and_below_producer_id=self._producer[0],
            v3_and_below_producer_epoch=self._producer[1],
            v3_and_below_topics=[kind.AddPartitionsToTxnTopic(name=self._options.topic, partitions=list(partitions))],
        )
        await self._ask(ApiKey.ADD_PARTITIONS_TO_TXN, request, ADD_PARTITIONS_VERSION)

    async def _commit_offsets(self) -> None:
        producer_id, epoch = self._producer
        if self.classic:
            added = m.AddOffsetsToTxnRequest(
                transactional_id=self.id, producer_id=producer_id, producer_epoch=epoch, group_id=self.group
            )
            await self._ask(ApiKey.ADD_OFFSETS_TO_TXN, added)
        kind = m.TxnOffsetCommitRequest
        row = kind.TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=self._number)
        request = kind(
            transactional_id=self.id, group_id=self.group, producer_id=producer_id, producer_epoch=epoch,
            topics=[kind.TxnOffsetCommitRequestTopic(name=self._options.topic, partitions=[row])],
        )  # fmt: skip
        await self._ask(ApiKey.TXN_OFFSET_COMMIT, request, of=self._groups)

    async def _commit(self) -> Outcome:
        attempts = 0

        def asked() -> None:
            nonlocal attempts
            attempts += 1

        try:
            await self._end(True, asked=asked)
        except RequestFailed as error:
            if error.error not in NOT_COMMITTED or attempts > 1:
                raise  # An attempt before may have been heard.
            self._workload.refusals.append(str(error))
            return Outcome.FAILED
        return Outcome.OK

    async def _end(
        self, committed: bool, producer: tuple[int, int] | None = None, asked: Callable[[], None] = lambda: None
    ) -> None:
        producer_id, epoch = producer or self._producer
        request = m.EndTxnRequest(
            transactional_id=self.id, producer_id=producer_id, producer_epoch=epoch, committed=committed
        )
        answer: m.EndTxnResponse = await self._ask(ApiKey.END_TXN, request, asked=asked)
        if not self.classic and producer is None:
            self._complete, self._ended = self._ended, self._producer
            self._become(answer.producer_id, answer.producer_epoch)

    async def _ask(
        self,
        key: ApiKey,
        request: Any,
        version_max: int | None = None,
        of: Coordinators | None = None,
        asked: Callable[[], None] = lambda: None,
    ) -> Any:
        async def ask(connection: Connection) -> Any:
            asked()
            answer = await connection.request(
                key, request, version_max=version_max or self._version_max(key),
                timeout_s=self._options.request_timeout_s,
            )  # fmt: skip
            for code in _codes(answer):
                check(code, key.name)
            return answer

        coordinators = of or self._transactions
        return await coordinators.ask(self.id if of is None else self.group, ask)

    def _version_max(self, key: ApiKey) -> int | None:
        return CLASSIC.get(key) if self.classic else None


def _codes(answer: Any) -> Iterable[int]:
    """The error codes of an answer about one transaction."""
    if isinstance(answer, m.AddPartitionsToTxnResponse):
        rows = [row for topic in answer.results_by_topic_v3_and_below for row in topic.results_by_partition]
        return [row.partition_error_code for row in rows]
    if isinstance(answer, m.TxnOffsetCommitResponse):
        return [row.error_code for topic in answer.topics for row in topic.partitions]
    return [answer.error_code]


def decode_committed(fetched: raw.Fetched, position: int) -> tuple[tuple[tuple[int, bytes], ...], int]:
    """(offset, value) of committed records at `position` and above, and where to go on."""
    batches = visible_batches(fetched.records, "", 0, position, fetched.aborted)
    found = tuple((one.offset, one.value) for _, records in batches for one in records if one.value is not None)
    return found, max((header.end_offset for _, header in iter_headers(fetched.records)), default=position)


async def stable_offset(cluster: Cluster, group: str, options: Options) -> int:
    """What the group has committed, none of it pending; -1: nothing."""
    kind = m.OffsetFetchRequest
    request = kind(
        groups=[
            kind.OffsetFetchRequestGroup(
                group_id=group,
                topics=[kind.OffsetFetchRequestTopics(name=options.topic, partition_indexes=[0])],
            )
        ],
        require_stable=True,
    )

    async def ask(connection: Connection) -> int:
        answer: m.OffsetFetchResponse = await connection.request(
            ApiKey.OFFSET_FETCH, request, version_max=9, timeout_s=options.request_timeout_s
        )
        check(answer.groups[0].error_code, "OffsetFetch")
        row = answer.groups[0].topics[0].partitions[0]
        check(row.error_code, "OffsetFetch")
        return row.committed_offset

    return await Coordinators(cluster, GROUP, "group").ask(group, ask)


def wrong_offsets(transactor: Transactor, history: History) -> Iterable[Anomaly]:
    """Offsets that go back, that were aborted, or that are not those of the last committed transaction."""
    assert history.final is not None
    outcomes = history.transaction_outcomes()
    kept = {value for log in history.final.values() for _, value in log}
    committed = {
        send.transaction[1]
        for send in history.sends()
        if isinstance(send.transaction, tuple) and send.transaction[0] == transactor.id and send.value in kept
    }
    before = -1
    for offset in transactor.offsets:
        if offset < before:
            yield Anomaly("offsets-backward", transactor.group, f"{offset} after {before}")
        if offset >= 0 and outcomes.get((transactor.id, offset)) is Outcome.FAILED:
            yield Anomaly("aborted-offsets", transactor.group, f"{offset} was aborted")
        before = max(before, offset)
    expected = max(committed & transactor.with_offsets, default=-1)
    if transactor.offsets[-1] != expected:
        text = f"{transactor.offsets[-1]} instead of {expected}"
        yield Anomaly("torn-offsets", transactor.group, text)
