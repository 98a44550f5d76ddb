"""Records and whole batches to any number of partitions, each exactly once and in order within one producer's life.

Records are collected into batches, or whole batches come in; they get a producer id and a sequence, and go to their
leaders, several in flight per partition. A partition whose batch failed waits until all it has in flight is answered,
looks its leader up again, and sends the rest again in order under the same sequences, so that a broker takes each once.
Works against Apache Kafka as well.
"""

import asyncio
import logging
import random
from collections.abc import Coroutine, Iterable
from types import TracebackType
from typing import Any, Self

from headrace.client.errors import (
    ClientError,
    ConnectionLost,
    NotKafka,
    RequestFailed,
    RequestTimedOut,
    SecurityFailed,
    err_of,
)
from headrace.client.net.cluster import BACKOFF_S_MAX, BACKOFF_S_MIN, Cluster
from headrace.client.net.connection import Connection
from headrace.client.produce import limits
from headrace.client.produce.answers import Posted
from headrace.client.produce.deliveries import RECORD_OVERHEAD_MAX, OpenBatch
from headrace.client.produce.lingering import Lingering
from headrace.client.produce.outgoing import OutgoingBatch as OutgoingBatch, Sender
from headrace.client.produce.partition_queue import NO_PRODUCER, PartitionQueue, ProducerId, QueuedBatch, Written
from headrace.client.produce.request import (
    Taken,
    idle_way,
    leader_problem,
    new_producer_id,
    produce_request,
    stay_informed,
)
from headrace.client.produce.topics import TopicFinder
from headrace.client.produce.transactions import ProducerTransactions
from headrace.client.produce.verdicts import FORGOTTEN, TOO_LARGE, ends_all, explained, may_retry
from headrace.errors import Err
from headrace.protocol import messages as m
from headrace.protocol.api import ApiKey
from headrace.records.compression import Codec
from headrace.records.reader import Headers

log = logging.getLogger(__name__)


class ProducerCore:
    """`async with ProducerCore(cluster) as producer: await producer.send(...); await producer.flush()`.

    Records that are appended one by one are told what became of them, each for itself. A whole batch that fails is the
    end: every call raises it, and what was not acknowledged may or may not be written. With `transactions`, whole
    batches have to be marked as transactional, and all is written in the transaction that is open there.
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        acks: int = limits.ALL,
        idempotent: bool = True,
        retries: int = limits.RETRIES_MAX,
        in_flight_max: int = limits.IN_FLIGHT_MAX,
        request_bytes_max: int = limits.REQUEST_BYTES_MAX,
        buffer_bytes_max: int = limits.BUFFER_BYTES_MAX,
        batch_bytes: int = limits.BATCH_BYTES,
        linger_s: float = 0.0,
        codec: int = Codec.NONE,
        level: int | None = None,
        delivery_timeout_s: float = limits.DELIVERY_TIMEOUT_S,
        produce_timeout_ms: int = limits.PRODUCE_TIMEOUT_MS,
        metadata_max_age_s: float = limits.METADATA_MAX_AGE_S,
        transactions: ProducerTransactions | None = None,
    ) -> None:
        assert 1 <= in_flight_max <= limits.IN_FLIGHT_MAX or not idempotent, "more in flight than a broker remembers"
        self.cluster = cluster
        self.acks = acks
        self.idempotent = idempotent
        self.retries = retries
        self.in_flight_max = in_flight_max
        self.request_bytes_max = request_bytes_max
        self.buffer_bytes_max = buffer_bytes_max
        self.batch_bytes = batch_bytes
        self.codec = int(codec)
        self.level = level
        self.delivery_timeout_s = delivery_timeout_s
        self.produce_timeout_ms = produce_timeout_ms
        self.metadata_max_age_s = metadata_max_age_s
        self.transactions = transactions
        self._may_hurry = linger_s == 0 and acks != 0 and transactions is None
        self.producer = NO_PRODUCER
        self.failed: list[OpenBatch] = []
        """Batches of records that failed; who looks through them empties the list."""
        self._queues: dict[tuple[str, int], PartitionQueue] = {}
        self._lingering = Lingering(linger_s, self._be_due)
        self._unfinished: set[OpenBatch] = set()
        self._senders: dict[int, Sender] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._posted: set[Posted] = set()
        self._topics = TopicFinder(cluster)
        self._buffered_bytes = 0
        self._moved = asyncio.Event()
        """Set when room came free, or all failed."""
        self._failure: BaseException | None = None

    async def __aenter__(self) -> Self:
        if self.idempotent:
            self.producer = await self._new_producer_id()
        self._spawn(stay_informed(self.cluster, self.metadata_max_age_s))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """End at once; `flush` first if everything is to arrive."""
        self.end(ClientError("the producer is closed"))
        self._topics.close()
        tasks = [*self._tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # -- for callers

    async def partition_count(self, topic: str) -> int:
        """How many partitions a topic has. One that is missing is made if the broker makes topics by itself."""
        found = self.cluster.topics.get(topic) or await self._topics.find(topic)
        return len(found.partitions)

    @property
    def is_full(self) -> bool:
        """Whether as much is buffered as may be: `room` waits until less is."""
        return self._buffered_bytes >= self.buffer_bytes_max

    async def room(self) -> None:
        while self._buffered_bytes >= self.buffer_bytes_max and self._failure is None:
            self.send_open()  # what waits for more records keeps out the very ones it waits for
            await self._movement()
        self.check()

    def check(self) -> None:
        """Raise what ended the producer, if anything did."""
        if self._failure is not None:
            raise self._failure

    def append(
        self, topic: str, partition: int, timestamp: int, key: bytes | None, value: bytes | None, headers: Headers
    ) -> OpenBatch:
        """Put one record into its partition's open batch and return that; the record is its last."""
        queue = self._queues.get((topic, partition))
        if queue is None:
            queue = self._new_queue(topic, partition)
        batch = queue.open
        if batch is not None:
            size = (len(key) if key is not None else 0) + (len(value) if value is not None else 0)
            if batch.size_bytes + size + RECORD_OVERHEAD_MAX > self.batch_bytes:
                self._close_open(queue)
                self._offer(queue)
                batch = None
        if batch is None:
            batch = self._open_batch(queue)
        self._buffered_bytes += batch.append(timestamp, key, value, headers)
        return batch

    def hurry(self, topic: str, partition: int) -> None:
        """Somebody waits for the record that was appended last. If it is alone, and nothing else is on its way to its
        broker, it is sent in this very turn; else it goes with those that come in the same turn."""
        queue = self._queues[topic, partition]
        if not self._may_hurry or queue.open is None or queue.open.count != 1:
            return
        way = idle_way(self.cluster, self._senders, queue)
        if way is None:
            return
        sender, connection = way
        queue.leader, queue.is_due = sender.node_id, True
        self._close_open(queue)
        batch = queue.pending.popleft()
        batch.attempts += 1
        queue.in_flight += 1
        sender.in_flight += 1
        taken = {(queue.topic, queue.partition): (queue, batch)}
        try:
            self._post(sender, taken, connection)
        except ClientError as error:
            self.lost(sender, taken, error)

    async def send(self, batches: Iterable[OutgoingBatch]) -> None:
        """Queue batches, waiting for room where there is none. Raises what made an earlier one fail."""
        for batch in batches:
            await self.room()
            self._enqueue(batch)

    async def flush(self) -> dict[tuple[str, int], Written]:
        """Wait until every batch is acknowledged by all in-sync replicas; what each partition has taken."""
        self.send_open()
        while self._buffered_bytes and self._failure is None:
            await self._movement()
        self.check()
        return {key: queue.written for key, queue in self._queues.items()}

    def send_open(self) -> None:
        """Send what is collected without waiting for more."""
        self._lingering.end_all()

    async def settled(self) -> bool:
        """Wait until it is known what became of every record that was appended before; whether more came meanwhile."""
        self.send_open()
        for batch in [*self._unfinished]:
            if not batch.is_done:
                await batch.waiter()
        return bool(self._unfinished)

    # -- transactions

    def mark(self) -> None:
        """A transaction begins here; `rewind` comes back if it ends before anything of it was sent."""
        for queue in self._queues.values():
            queue.first_sequence = queue.next_sequence

    def rewind(self) -> None:
        for queue in self._queues.values():
            queue.rewind()

    async def abandon(self, error: ClientError) -> None:
        """Send nothing more of what is collected, and wait until all that was sent is answered: an abort is next."""
        is_open = True
        while is_open:
            for queue in self._queues.values():
                if queue.open is not None:
                    self._close_open(queue)
                for batch in queue.drop_pending():
                    self._resolve(batch, -1, -1, error)
            is_open = await self.settled()

    def renew(self, producer: ProducerId) -> None:
        """Go on as another producer, or in another epoch; nothing may be on its way."""
        if producer != self.producer:
            self.producer = producer
            for queue in self._queues.values():
                queue.start_afresh(producer)

    # -- collecting

    def _new_queue(self, topic: str, partition: int) -> PartitionQueue:
        queue = PartitionQueue(topic, partition, self.producer, BACKOFF_S_MIN)
        self._queues[topic, partition] = queue
        return queue

    def _open_batch(self, queue: PartitionQueue) -> OpenBatch:
        self.check()
        now = asyncio.get_running_loop().time()
        batch = OpenBatch(queue.topic, queue.partition, now + self.delivery_timeout_s)
        queue.open, queue.is_due = batch, False
        self._buffered_bytes += batch.size_bytes
        self._unfinished.add(batch)
        self._lingering.add(queue, now)
        return batch

    def _be_due(self, queue: PartitionQueue) -> None:
        queue.is_due = True
        self._offer(queue)

    def _close_open(self, queue: PartitionQueue) -> None:
        """Make the open batch one that is pending. Others may be taken before it is full: the next is opened then."""
        batch = queue.open
        assert batch is not None
        queue.open = None
        self._lingering.discard(queue)
        view = batch.close(self.codec, self.level, self.transactions is not None)
        self._buffered_bytes += len(view) - batch.size_bytes
        queue.append(view, batch.count, batch.deadline, batch)

    # -- queueing

    def _enqueue(self, batch: OutgoingBatch) -> None:
        key = batch.topic, batch.partition
        queue = self._queues.get(key) or self._new_queue(*key)
        if queue.open is not None:
            self._close_open(queue)
        deadline = asyncio.get_running_loop().time() + self.delivery_timeout_s
        queue.append(batch.view, batch.count, deadline, batch.source)
        if batch.source is not None:
            self._unfinished.add(batch.source)
        self._buffered_bytes += len(batch.view)
        self._offer(queue)

    def _offer(self, queue: PartitionQueue) -> None:
        """Put a queue with something to send into the queue of its leader."""
        in_flight_max = self.in_flight_max if not queue.retries and (queue.is_known or not self.idempotent) else 1
        if queue.recovering or queue.waiting or queue.in_flight >= in_flight_max or not queue.has_something:
            return
        topic = self.cluster.topics.get(queue.topic)
        partition = topic.partitions.get(queue.partition) if topic is not None else None
        if partition is None or partition.leader < 0:
            self._recover(queue, RequestFailed(queue.name, Err.LEADER_NOT_AVAILABLE))
            return
        if queue.in_flight and partition.leader != queue.leader:
            return  # the last answer of the old leader, or its failure, offers the queue again
        queue.leader = partition.leader
        sender = self._senders.get(partition.leader)
        if sender is None:
            sender = self._senders[partition.leader] = Sender(partition.leader)
            self._spawn(self._serve(sender))
        queue.waiting = True
        sender.ready.append(queue)
        sender.wake.set()

    # -- sending

    async def _serve(self, sender: Sender) -> None:
        """One broker's requests, written one after the other: what leaves out of order comes back refused."""
        while True:
            while not sender.ready or sender.in_flight >= self.in_flight_max:
                sender.wake.clear()
                await sender.wake.wait()
            taken = self._take(sender)
            if taken:
                sender.in_flight += 1
                await self._send(sender, taken)

    def _take(self, sender: Sender) -> Taken:
        """At most one batch of each queue that waits, up to the size of a request."""
        taken: Taken = {}
        size_bytes = 0
        for _ in range(len(sender.ready)):
            queue = sender.ready[0]
            if queue.recovering or not queue.has_something:
                sender.ready.popleft().waiting = False
                continue
            if not queue.pending:
                self._close_open(queue)
            size_bytes += len(queue.pending[0].view)
            if taken and size_bytes > self.request_bytes_max:
                break
            sender.ready.popleft().waiting = False
            batch = queue.pending.popleft()
            batch.attempts += 1
            taken[queue.topic, queue.partition] = queue, batch
            queue.in_flight += 1
        for queue, _ in taken.values():
            self._offer(queue)
        return taken

    async def _send(self, sender: Sender, taken: Taken) -> None:
        try:
            connection = await self.cluster.broker_connection(sender.node_id)
            if self.transactions is not None:
                await self.transactions.add(taken)
            if self.acks == 0:
                request, version_max, _ = self._request(taken)
                await connection.send(ApiKey.PRODUCE, request, version_max=version_max)
                self._unanswered(sender, taken)
                return
            await connection.writable()
            self.check()
            self._post(sender, taken, connection)
        except NotKafka as error:
            # It was a broker a moment ago: one that stops or starts hangs up at the first request, too.
            self.lost(sender, taken, ConnectionLost(str(error)))
        except ClientError as error:
            self.lost(sender, taken, error)

    def _request(self, taken: Taken) -> tuple[m.ProduceRequest, int | None, dict[bytes, str]]:
        return produce_request(
            self.cluster, taken, self.transactions, acks=self.acks, timeout_ms=self.produce_timeout_ms
        )

    def _post(self, sender: Sender, taken: Taken, connection: Connection) -> None:
        request, version_max, names = self._request(taken)
        limit_s = self.produce_timeout_ms / 1000 + self.cluster.request_timeout_s
        posted = Posted(self, sender, taken, names, connection, limit_s, self._posted)
        try:
            connection.post_now(ApiKey.PRODUCE, request, posted, version_max=version_max)
        except BaseException:
            posted.drop()
            raise

    # -- answers

    def answered(self, request: Posted, response: m.ProduceResponse) -> None:
        """See Requester."""
        self._freed(request.sender)
        for queue, batch, row in request.rows(response):
            if row is None:
                peer = request.connection.peer
                self._refused(queue, batch, NotKafka(f"{peer} answered Produce without a word about {queue.name}"))
            else:
                self._judge_row(queue, batch, row)
        self._moved.set()

    def _unanswered(self, sender: Sender, taken: Taken) -> None:
        """With acks=0, what was given to the network counts as sent."""
        self._freed(sender)
        for queue, batch in taken.values():
            self._acknowledged(queue, batch, -1, -1)
        self._moved.set()

    def lost(self, sender: Sender, taken: Taken, error: ClientError) -> None:
        """No answer to a whole request."""
        self._freed(sender)
        for queue, batch in taken.values():
            self._refused(queue, batch, error)
        self._moved.set()

    def _freed(self, sender: Sender) -> None:
        sender.in_flight -= 1
        if sender.ready:
            sender.wake.set()

    # -- outcomes

    def _judge_row(
        self, queue: PartitionQueue, batch: QueuedBatch, row: m.ProduceResponse.PartitionProduceResponse
    ) -> None:
        if row.error_code == 0:
            self._acknowledged(queue, batch, row.base_offset, row.log_append_time_ms)
        elif row.error_code == Err.DUPLICATE_SEQUENCE_NUMBER:
            self._acknowledged(queue, batch, -1, -1)
        else:
            error = RequestFailed(f"produce to {queue.name}", err_of(row.error_code), row.error_message)
            self._refused(queue, batch, error)

    def _acknowledged(self, queue: PartitionQueue, batch: QueuedBatch, base_offset: int, append_time_ms: int) -> None:
        queue.acknowledge(batch, base_offset)
        self._resolve(batch, base_offset, append_time_ms)
        if not queue.recovering:
            queue.pause_s = BACKOFF_S_MIN
            self._offer(queue)
        elif not queue.in_flight:
            self._spawn(self._resume(queue))

    def _resolve(
        self, batch: QueuedBatch, base_offset: int, append_time_ms: int, error: ClientError | None = None
    ) -> None:
        """The end of a batch, good or bad: its bytes are no longer held, and whose records they are is told."""
        self._buffered_bytes -= len(batch.view)
        if error is not None and self.transactions is not None:
            self.transactions.steps.spoil(error)
        batch.resolve(base_offset, append_time_ms, error)
        source = batch.source
        if source is not None and source.is_done:
            self._unfinished.discard(source)
            self._keep_failed(source)

    def _keep_failed(self, source: OpenBatch) -> None:
        if source.unseen_failure is not None and len(self.failed) < limits.FAILED_KEPT_MAX:
            self.failed.append(source)

    def _refused(self, queue: PartitionQueue, batch: QueuedBatch, error: ClientError) -> None:
        """A batch that was not acknowledged: to be sent again after those before it, or the end."""
        queue.fail(batch, error)
        if self._failure is not None:
            return
        transactions = self.transactions
        if not may_retry(batch, error, retries=self.retries, idempotent=self.idempotent, transactions=transactions):
            error = explained(error, f"produce to {queue.name}", batch)
            if batch.source is None or ends_all(error, transactions):
                self.end(error)
                return
            batch.refusal = error
        self._recover(queue, error)

    def _recover(self, queue: PartitionQueue, error: ClientError) -> None:
        """Hold a queue back until all it has in flight is answered."""
        if not queue.recovering:
            queue.recovering = True
            queue.error = error
        if not queue.in_flight:
            self._spawn(self._resume(queue))

    async def _resume(self, queue: PartitionQueue) -> None:
        """All answers are in. Put what failed back in front, find the leader, and go on."""
        if self._failure is not None:
            return
        queue.put_back_failed()
        error = queue.error
        assert queue.recovering and error is not None
        if self._drop_refused(queue):
            pass  # those behind it go on at once; a gap in sequences is noticed, and mended, when they are refused
        elif (code := error.error if isinstance(error, RequestFailed) else None) in TOO_LARGE:
            self._buffered_bytes += queue.split_first()
        elif code in FORGOTTEN:
            await self._start_afresh(queue, error)
        else:
            await self._wait_for_leader(queue, error)
        queue.recovering = False
        queue.error = None
        self._offer(queue)
        self._moved.set()

    def _drop_refused(self, queue: PartitionQueue) -> bool:
        """Give up the batches that no retry can help, and tell so; whether there were any."""
        refused = [batch for batch in queue.pending if batch.refusal is not None]
        for batch in refused:
            queue.drop(batch)
            self._resolve(batch, -1, -1, batch.refusal)
        return bool(refused)

    def _drop_expired(self, queue: PartitionQueue, now: float, error: ClientError) -> None:
        """Give up what waits for longer than the delivery timeout. Raises that for a whole batch."""
        while queue.deadline <= now:
            if not queue.pending:
                self._close_open(queue)
            late = RequestTimedOut(
                f"{queue.name} took no record for {self.delivery_timeout_s:g} s; the last reason: {error}"
            )
            if queue.pending[0].source is None:
                raise late
            batch = queue.pending[0]
            queue.drop(batch)
            self._resolve(batch, -1, -1, late)
        self._moved.set()

    async def _wait_for_leader(self, queue: PartitionQueue, error: ClientError) -> None:
        loop = asyncio.get_running_loop()
        start = loop.time()
        while True:
            self._drop_expired(queue, loop.time() + queue.pause_s, error)
            if not queue.has_something:
                return
            # Queues that fail together must not come back together.
            await asyncio.sleep(queue.pause_s * random.uniform(0.8, 1.2))
            queue.pause_s = min(queue.pause_s * 2, BACKOFF_S_MAX)
            try:
                await self._topics.refresh(topic for topic, _ in self._queues)
            except SecurityFailed:
                raise
            except ClientError as failure:
                error = failure
                continue
            problem = leader_problem(self.cluster, queue)
            if problem is None:
                return
            error = problem
            if queue.topic not in self.cluster.topics and loop.time() - start > limits.TOPIC_GONE_S:
                self._give_up(queue, error)
                return

    def _give_up(self, queue: PartitionQueue, error: ClientError) -> None:
        """Nothing of a queue can be sent any more. Raises for whole batches."""
        if queue.open is not None:
            self._close_open(queue)
        if any(batch.source is None for batch in queue.pending):
            raise error
        for batch in [*queue.pending]:
            queue.drop(batch)
            self._resolve(batch, -1, -1, error)
        self.cluster.topics.pop(queue.topic, None)

    async def _start_afresh(self, queue: PartitionQueue, error: ClientError) -> None:
        """Number on from 0. In a higher epoch, what may still be under way in the old one comes too late (KIP-360)."""
        queue.fresh_starts += 1
        if queue.fresh_starts > limits.FRESH_STARTS_MAX:
            self._give_up(queue, error)
            return
        log.warning("%s: %s; going on in another producer epoch", queue.name, error)
        queue.start_afresh(queue.producer.next_epoch or await self._new_producer_id())

    async def _new_producer_id(self) -> ProducerId:
        return await (new_producer_id(self.cluster) if self.transactions is None else self.transactions.init())

    # -- inside

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.end(error)

    def end(self, error: BaseException) -> None:
        """The end of the producer: nothing more is sent, and whoever waits for a record is told why."""
        if self._failure is None:
            self._failure = error
            self._lingering.close()
            reason = error if isinstance(error, ClientError) else ClientError(f"the producer failed: {error!r}")
            for queue in self._queues.values():
                queue.clear()
            for posted in [*self._posted]:
                posted.drop()
            unfinished, self._unfinished = self._unfinished, set()
            for batch in unfinished:
                batch.abandon(reason)
                self._keep_failed(batch)
        self._moved.set()

    async def _movement(self) -> None:
        self._moved.clear()
        await self._moved.wait()
