"""Record batches to any number of partitions, each exactly once and in order within one producer's life.

The idempotent producer without the batching: whole batches come in, get a producer id and a sequence, and go to their
leaders, several in flight per partition. A partition whose batch failed waits until all it has in flight is answered,
looks its leader up again, and sends the rest again in order under the same sequences, so that a broker takes each once.
Works against Apache Kafka as well.
"""

import asyncio
import logging
import random
from collections import deque
from collections.abc import Coroutine, Iterable
from types import TracebackType
from typing import Any, Self

import msgspec

from headrace.client.errors import (
    BrokerUnreachable,
    ClientError,
    ConnectionLost,
    NotKafka,
    RequestFailed,
    RequestTimedOut,
    SecurityFailed,
    check,
    err_of,
)
from headrace.client.net.cluster import (
    BACKOFF_S_MAX,
    BACKOFF_S_MIN,
    NO_TOPIC,
    NO_TOPIC_ID,
    UNKNOWN_TOPIC_WAIT_S,
    Cluster,
    Topic,
    may_pass,
)
from headrace.client.net.connection import Connection
from headrace.client.produce.partition_queue import PartitionQueue, ProducerId, QueuedBatch, Written
from headrace.client.produce.transactions import ProducerTransactions
from headrace.client.raw import PRODUCE_VERSION_WITH_NAMES
from headrace.errors import Err
from headrace.protocol import messages as m
from headrace.protocol.api import ApiKey

log = logging.getLogger(__name__)

IN_FLIGHT_MAX = 5
"""Batches per partition and requests per broker; a broker remembers a producer's last five batches, never more."""
REQUEST_BYTES_MAX = 4 << 20
BUFFER_BYTES_MAX = 32 << 20
DELIVERY_TIMEOUT_S = 120.0
PRODUCE_TIMEOUT_MS = 30_000
FRESH_STARTS_MAX = 3
"""New producer ids for one partition before giving up on a broker that keeps forgetting them."""

TOPIC_GONE_S = 15.0
"""How long a topic may be missing before it counts as deleted rather than moved."""

TOO_LARGE = frozenset({Err.MESSAGE_TOO_LARGE, Err.RECORD_LIST_TOO_LARGE})
FORGOTTEN = frozenset({Err.UNKNOWN_PRODUCER_ID, Err.INVALID_PRODUCER_ID_MAPPING, Err.OUT_OF_ORDER_SEQUENCE_NUMBER})
"""At the head of a partition's queue: the broker no longer knows what this producer has written."""
CURABLE = TOO_LARGE | FORGOTTEN | {Err.BROKER_NOT_AVAILABLE}


class OutgoingBatch(msgspec.Struct):
    """One batch for one partition, whole and writable; producer, sequence and CRC are filled in when it is queued."""

    topic: str
    partition: int
    view: memoryview
    count: int


class _Sender:
    """What waits for one broker, and how many requests it has not answered yet."""

    __slots__ = ("in_flight", "node_id", "ready", "wake")

    def __init__(self, node_id: int) -> None:
        self.node_id = node_id
        self.ready: deque[PartitionQueue] = deque()
        self.in_flight = 0
        self.wake = asyncio.Event()


Taken = dict[tuple[str, int], tuple[PartitionQueue, QueuedBatch]]
"""What one request carries: a batch of each of some queues, by topic and partition."""


class ProducerCore:
    """`async with ProducerCore(cluster) as producer: await producer.send(...); await producer.flush()`.

    After a failure every call raises it: what was not acknowledged may or may not be written. With `transactions`,
    batches have to be marked as transactional, and are written in the transaction that is open there.
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        in_flight_max: int = IN_FLIGHT_MAX,
        request_bytes_max: int = REQUEST_BYTES_MAX,
        buffer_bytes_max: int = BUFFER_BYTES_MAX,
        delivery_timeout_s: float = DELIVERY_TIMEOUT_S,
        produce_timeout_ms: int = PRODUCE_TIMEOUT_MS,
        transactions: ProducerTransactions | None = None,
    ) -> None:
        assert 1 <= in_flight_max <= IN_FLIGHT_MAX, "more in flight than a broker remembers could double or reorder"
        self.cluster = cluster
        self.in_flight_max = in_flight_max
        self.request_bytes_max = request_bytes_max
        self.buffer_bytes_max = buffer_bytes_max
        self.delivery_timeout_s = delivery_timeout_s
        self.produce_timeout_ms = produce_timeout_ms
        self.transactions = transactions
        self.producer = ProducerId(-1, -1)
        self._queues: dict[tuple[str, int], PartitionQueue] = {}
        self._senders: dict[int, _Sender] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._refreshing: asyncio.Task[None] | None = None
        self._buffered_bytes = 0
        self._moved = asyncio.Event()
        """Set when room came free, or all failed."""
        self._failure: BaseException | None = None

    async def __aenter__(self) -> Self:
        self.producer = await self._new_producer_id()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """End at once; `flush` first if everything is to arrive."""
        self._failure = self._failure or ClientError("the producer is closed")
        tasks = [*self._tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # -- for callers

    async def partition_count(self, topic: str) -> int:
        """How many partitions a topic has. One that is missing is made if the broker makes topics by itself."""
        found = self.cluster.topics.get(topic)
        if found is None:
            found = await self.cluster.retrying(
                lambda: self._find(topic), can_retry=may_pass, unknown_topic_wait_s=UNKNOWN_TOPIC_WAIT_S
            )
        return len(found.partitions)

    async def send(self, batches: Iterable[OutgoingBatch]) -> None:
        """Queue batches, waiting for room where there is none. Raises what made an earlier one fail."""
        for batch in batches:
            while self._buffered_bytes >= self.buffer_bytes_max and self._failure is None:
                await self._movement()
            self._raise_failure()
            self._enqueue(batch)

    async def flush(self) -> dict[tuple[str, int], Written]:
        """Wait until every batch is acknowledged by all in-sync replicas; what each partition has taken."""
        while self._buffered_bytes and self._failure is None:
            await self._movement()
        self._raise_failure()
        return {key: queue.written for key, queue in self._queues.items()}

    # -- queueing

    def _enqueue(self, batch: OutgoingBatch) -> None:
        key = batch.topic, batch.partition
        queue = self._queues.get(key)
        if queue is None:
            queue = self._queues[key] = PartitionQueue(batch.topic, batch.partition, self.producer, BACKOFF_S_MIN)
        queue.append(batch.view, batch.count, asyncio.get_running_loop().time() + self.delivery_timeout_s)
        self._buffered_bytes += len(batch.view)
        self._offer(queue)

    def _offer(self, queue: PartitionQueue) -> None:
        """Put a queue with something to send into the queue of its leader."""
        in_flight_max = self.in_flight_max if queue.is_known and not queue.retries else 1
        if queue.recovering or queue.waiting or not queue.pending or queue.in_flight >= in_flight_max:
            return
        topic = self.cluster.topics.get(queue.topic)
        partition = topic.partitions.get(queue.partition) if topic is not None else None
        if partition is None or partition.leader < 0:
            self._recover(queue, RequestFailed(queue.name, Err.LEADER_NOT_AVAILABLE))
            return
        sender = self._senders.get(partition.leader)
        if sender is None:
            sender = self._senders[partition.leader] = _Sender(partition.leader)
            self._spawn(self._serve(sender))
        queue.waiting = True
        sender.ready.append(queue)
        sender.wake.set()

    # -- sending

    async def _serve(self, sender: _Sender) -> None:
        """One broker's requests, written one after the other: what leaves out of order comes back refused."""
        while True:
            while not sender.ready or sender.in_flight >= self.in_flight_max:
                sender.wake.clear()
                await sender.wake.wait()
            taken = self._take(sender)
            if taken:
                sender.in_flight += 1
                await self._send(sender, taken)

    def _take(self, sender: _Sender) -> Taken:
        """At most one batch of each queue that waits, up to the size of a request."""
        taken: Taken = {}
        size_bytes = 0
        for _ in range(len(sender.ready)):
            queue = sender.ready[0]
            if queue.recovering or not queue.pending:
                sender.ready.popleft().waiting = False
                continue
            size_bytes += len(queue.pending[0].view)
            if taken and size_bytes > self.request_bytes_max:
                break
            sender.ready.popleft().waiting = False
            taken[queue.topic, queue.partition] = queue, queue.pending.popleft()
            queue.in_flight += 1
        for queue, _ in taken.values():
            self._offer(queue)
        return taken

    async def _send(self, sender: _Sender, taken: Taken) -> None:
        try:
            connection = await self.cluster.broker_connection(sender.node_id)
            if self.transactions is not None:
                await self.transactions.add(taken)
            request, version_max, names = self._request(taken)
            answer = await connection.post(ApiKey.PRODUCE, request, version_max=version_max)
        except NotKafka as error:
            # It was a broker a moment ago: one that stops or starts hangs up at the first request, too.
            self._lost(sender, taken, ConnectionLost(str(error)))
        except ClientError as error:
            self._lost(sender, taken, error)
        else:
            self._spawn(self._receive(sender, taken, names, connection, answer))

    def _request(self, taken: Taken) -> tuple[m.ProduceRequest, int | None, dict[bytes, str]]:
        """The request, the highest version that can name its topics, and the names behind the topic ids."""
        kind = m.ProduceRequest
        by_topic: dict[str, list[m.ProduceRequest.PartitionProduceData]] = {}
        for (topic, partition), (_, batch) in taken.items():
            by_topic.setdefault(topic, []).append(kind.PartitionProduceData(index=partition, records=batch.view))
        rows, names = [], {}
        transactions = self.transactions
        version_max = None if transactions is None else transactions.produce_version_max
        for name, partitions in by_topic.items():
            found = self.cluster.topics.get(name)
            topic_id = found.topic_id if found is not None else NO_TOPIC_ID
            if topic_id == NO_TOPIC_ID:
                version_max = min(PRODUCE_VERSION_WITH_NAMES, version_max or PRODUCE_VERSION_WITH_NAMES)
            names[topic_id] = name
            rows.append(kind.TopicProduceData(name=name, topic_id=topic_id, partition_data=partitions))
        request = kind(acks=-1, timeout_ms=self.produce_timeout_ms, topic_data=rows)
        if transactions is not None:
            request.transactional_id = transactions.transactional_id
        return request, version_max, names

    async def _receive(
        self,
        sender: _Sender,
        taken: Taken,
        names: dict[bytes, str],
        connection: Connection,
        answer: "asyncio.Future[m.ProduceResponse]",
    ) -> None:
        limit_s = self.produce_timeout_ms / 1000 + self.cluster.request_timeout_s
        try:
            async with asyncio.timeout(limit_s):
                response = await answer
        except TimeoutError:
            connection.close()
            self._lost(sender, taken, RequestTimedOut(f"{connection.peer} did not answer Produce within {limit_s:g} s"))
            return
        except ClientError as error:
            self._lost(sender, taken, error)
            return
        self._freed(sender)
        left = dict(taken)
        for topic in response.responses:
            name = topic.name or names.get(topic.topic_id, "")
            for row in topic.partition_responses:
                queue, batch = left.pop((name, row.index), (None, None))
                if queue is not None and batch is not None:
                    self._judge_row(queue, batch, row)
        for queue, batch in left.values():
            self._refused(
                queue, batch, NotKafka(f"{connection.peer} answered Produce without a word about {queue.name}")
            )
        self._moved.set()

    def _lost(self, sender: _Sender, taken: Taken, error: ClientError) -> None:
        """No answer to a whole request."""
        self._freed(sender)
        for queue, batch in taken.values():
            self._refused(queue, batch, error)
        self._moved.set()

    def _freed(self, sender: _Sender) -> None:
        sender.in_flight -= 1
        sender.wake.set()

    # -- outcomes

    def _judge_row(
        self, queue: PartitionQueue, batch: QueuedBatch, row: m.ProduceResponse.PartitionProduceResponse
    ) -> None:
        if row.error_code == 0 or row.error_code == Err.DUPLICATE_SEQUENCE_NUMBER:
            self._acknowledged(queue, batch, row.base_offset if row.error_code == 0 else -1)
        else:
            error = RequestFailed(f"produce to {queue.name}", err_of(row.error_code), row.error_message)
            self._refused(queue, batch, error)

    def _acknowledged(self, queue: PartitionQueue, batch: QueuedBatch, base_offset: int) -> None:
        queue.acknowledge(batch, base_offset)
        self._buffered_bytes -= len(batch.view)
        if not queue.recovering:
            queue.pause_s = BACKOFF_S_MIN
            self._offer(queue)
        elif not queue.in_flight:
            self._spawn(self._resume(queue))

    def _refused(self, queue: PartitionQueue, batch: QueuedBatch, error: ClientError) -> None:
        """A batch that was not acknowledged: to be sent again after those before it, or the end."""
        queue.in_flight -= 1
        queue.failed.append(batch)
        if not self._is_curable(error):
            self._fail(error)
            return
        self._recover(queue, error)

    def _is_curable(self, error: ClientError) -> bool:
        if isinstance(error, RequestFailed):
            if self.transactions is not None and error.error in FORGOTTEN:
                # Under another producer id it would not be in the transaction.
                return False
            return error.error.retriable or error.error in CURABLE
        return isinstance(error, ConnectionLost | RequestTimedOut | BrokerUnreachable)

    def _recover(self, queue: PartitionQueue, error: ClientError) -> None:
        """Hold a queue back until all it has in flight is answered."""
        if not queue.recovering:
            queue.recovering = True
            queue.error = error
        if not queue.in_flight:
            self._spawn(self._resume(queue))

    async def _resume(self, queue: PartitionQueue) -> None:
        """All answers are in. Put what failed back in front, find the leader, and go on."""
        error = queue.error
        assert queue.recovering and not queue.in_flight and error is not None
        queue.put_back_failed()
        code = error.error if isinstance(error, RequestFailed) else None
        if code in TOO_LARGE:
            self._buffered_bytes += queue.split_first(error)
        elif code in FORGOTTEN:
            await self._start_afresh(queue, error)
        else:
            await self._wait_for_leader(queue, error)
        queue.recovering = False
        queue.error = None
        self._offer(queue)

    async def _wait_for_leader(self, queue: PartitionQueue, error: ClientError) -> None:
        loop = asyncio.get_running_loop()
        start = loop.time()
        while True:
            if queue.pending and loop.time() + queue.pause_s > queue.pending[0].deadline:
                raise RequestTimedOut(
                    f"{queue.name} took no record for {self.delivery_timeout_s:g} s; the last reason: {error}"
                )
            # Queues that fail together must not come back together.
            await asyncio.sleep(queue.pause_s * random.uniform(0.8, 1.2))
            queue.pause_s = min(queue.pause_s * 2, BACKOFF_S_MAX)
            try:
                await self._refresh()
            except SecurityFailed:
                raise
            except ClientError as failure:
                error = failure
                continue
            topic = self.cluster.topics.get(queue.topic)
            if topic is None:
                error = RequestFailed(f"topic {queue.topic!r}", Err.UNKNOWN_TOPIC_OR_PARTITION, "the topic is gone")
                if loop.time() - start > TOPIC_GONE_S:
                    raise error
                continue
            partition = topic.partitions.get(queue.partition)
            if partition is not None and partition.leader >= 0:
                return
            error = RequestFailed(queue.name, Err.LEADER_NOT_AVAILABLE)

    async def _refresh(self) -> None:
        """Ask who leads what, once for all queues that wait to know."""
        if self._refreshing is None or self._refreshing.done():
            names = {queue.topic for queue in self._queues.values()}
            self._refreshing = asyncio.ensure_future(self.cluster.refresh(names))
        await asyncio.shield(self._refreshing)

    async def _start_afresh(self, queue: PartitionQueue, error: ClientError) -> None:
        queue.fresh_starts += 1
        if queue.fresh_starts > FRESH_STARTS_MAX:
            raise error
        log.warning("%s: %s; going on under a new producer id", queue.name, error)
        queue.start_afresh(await self._new_producer_id())

    # -- requests of its own

    async def _new_producer_id(self) -> ProducerId:
        if self.transactions is not None:
            return await self.transactions.init()

        async def attempt() -> ProducerId:
            request = m.InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
            answer: m.InitProducerIdResponse = await self.cluster.to_any(ApiKey.INIT_PRODUCER_ID, request)
            check(answer.error_code, "producer id")
            return ProducerId(answer.producer_id, answer.producer_epoch)

        return await self.cluster.retrying(attempt, can_retry=may_pass)

    async def _find(self, topic: str) -> Topic:
        await self.cluster.refresh([topic])
        found = self.cluster.topics.get(topic)
        if found is None:
            request = m.MetadataRequest(
                topics=[m.MetadataRequest.MetadataRequestTopic(name=topic)], allow_auto_topic_creation=True
            )
            await self.cluster.to_any(ApiKey.METADATA, request)
            await self.cluster.refresh([topic])
            found = self.cluster.topics.get(topic)
        if found is None:
            raise RequestFailed(f"topic {topic!r}", Err.UNKNOWN_TOPIC_OR_PARTITION, NO_TOPIC)
        return found

    # -- inside

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        if self._failure is None:
            self._failure = error
        self._moved.set()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    async def _movement(self) -> None:
        self._moved.clear()
        await self._moved.wait()
