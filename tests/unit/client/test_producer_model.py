"""Whole sequences of what callers, brokers and time do to a producer, against what it promises.

Of each partition every record that was accepted is delivered or failed exactly once, and what is written is in the
order of the calls; as much is buffered as is allowed; nobody waits for ever; after `close` nothing is left.
"""

import asyncio
from collections import defaultdict, deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from random import Random
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings, strategies as st

from headrace.client.api.producer import Producer
from headrace.client.api.transaction import Transaction
from headrace.client.errors import ClientError, RequestFailed
from headrace.client.produce.deliveries import Delivery
from headrace.errors import Err
from headrace.protocol import messages as m
from headrace.protocol.api import ApiKey
from headrace.records.batch import read_header
from headrace.records.layout import HEADER_BYTES
from headrace.testing.simulator.loop import SimLoop
from tests.unit.client.fake import HANG_UP, TOPIC_ID, FakeBroker
from tests.unit.client.partition_log import PartitionLog
from tests.waiting import until

PARTITIONS, BROKERS = 2, 2
LARGE = 700
"""Bytes of a batch that brokers refuse; of two records they have to be sent by themselves."""
SIZES = (10, 60, 300)
DELIVERY_S = 10.0
FATE_S = 60.0
"""Within this all must be known of a record: the delivery timeout, and the requests and connections that go before."""
REFUSED = frozenset({Err.INVALID_RECORD, Err.MESSAGE_TOO_LARGE, Err.TOPIC_AUTHORIZATION_FAILED})
"""Nothing of a batch with such an answer is written."""
WRITTEN, WRITTEN_AND_GONE = "written, and not said so", "written, and the connection lost"
TROUBLE = (
    Err.NOT_LEADER_OR_FOLLOWER, Err.NOT_ENOUGH_REPLICAS, Err.KAFKA_STORAGE_ERROR, Err.INVALID_RECORD,
    Err.TOPIC_AUTHORIZATION_FAILED, WRITTEN, WRITTEN_AND_GONE, HANG_UP, Err.CLUSTER_AUTHORIZATION_FAILED,
)  # fmt: skip


class Step(NamedTuple):
    """One line of a play."""

    what: str
    partition: int = 0
    value: Any = None


def steps(what: str, values: st.SearchStrategy[Any]) -> st.SearchStrategy[Step]:
    return st.builds(Step, st.just(what), st.integers(0, PARTITIONS - 1), values)


SENDS = steps("send", st.sampled_from(SIZES)) | steps("send and wait", st.sampled_from(SIZES))
CALLERS = st.sampled_from([Step("flush"), Step("cancel")])
TIME = steps("sleep", st.sampled_from([0.0, 0.004, 0.5, 3.0, DELIVERY_S]))
BROKER = (
    steps("trouble", st.sampled_from(TROUBLE))
    | steps("move", st.sampled_from([-1, 1, 2]))
    | steps("freeze", st.sampled_from([0.3, 3.0, 2 * DELIVERY_S]))
    | st.just(Step("hang up"))
)
ENDS = st.sampled_from([Step("commit"), Step("abort")])
PLAY = st.lists(SENDS | SENDS | SENDS | TIME | CALLERS | BROKER, max_size=40)
OPTIONS = st.fixed_dictionaries(
    {
        "linger_ms": st.sampled_from([0, 5, 1_000]),
        "batch_bytes": st.sampled_from([100, 500, 5_000]),
        "buffer_bytes": st.sampled_from([600, 20_000]),
        "max_in_flight": st.sampled_from([1, 2, 5]),
    }
)


class World:
    """Two brokers that share their logs, and what goes wrong there."""

    def __init__(self, loop: SimLoop) -> None:
        self.loop = loop
        self.logs = [PartitionLog(refuse_above=LARGE) for _ in range(PARTITIONS)]
        self.leaders = [1 + index % BROKERS for index in range(PARTITIONS)]
        self.epochs = [5] * PARTITIONS
        self.trouble: dict[int, deque[Any]] = defaultdict(deque)
        self.thaws_at: dict[int, float] = {}
        self.refused: dict[tuple[int, int, int], Err] = {}
        """By producer, epoch and sequence. What was refused once is refused again, whichever request comes first."""
        self.brokers = [SharedBroker(self, node_id) for node_id in range(1, BROKERS + 1)]
        self.producer_ids = 0

    def move(self, partition: int, leader: int) -> None:
        self.leaders[partition] = leader
        self.epochs[partition] += 1

    def heal(self) -> None:
        self.trouble.clear()
        self.thaws_at.clear()
        for partition, leader in enumerate(self.leaders):
            if leader < 0:
                self.move(partition, 1)

    def refusal(self, what: Any, records: bytes | bytearray | memoryview) -> Err | None:
        header = read_header(records)
        batch = header.producer_id, header.producer_epoch, header.base_sequence
        if what in REFUSED and header.has_producer_id:
            self.refused.setdefault(batch, what)
        return self.refused.get(batch, what if isinstance(what, Err) else None)

    async def thawed(self, node_id: int) -> None:
        while (left_s := self.thaws_at.get(node_id, 0.0) - self.loop.time()) > 0:
            await asyncio.sleep(min(left_s, 0.1))


class SharedBroker(FakeBroker):
    def __init__(self, world: World, node_id: int) -> None:
        super().__init__(node_id=node_id)
        self.port = 9092 + node_id
        self.world = world
        self.handlers |= {
            ApiKey.PRODUCE: self.produce,
            ApiKey.METADATA: self.metadata,
            ApiKey.INIT_PRODUCER_ID: self.init,
            ApiKey.FIND_COORDINATOR: self.coordinator,
            ApiKey.ADD_PARTITIONS_TO_TXN: self.add,
            ApiKey.END_TXN: lambda request, version: m.EndTxnResponse(),
        }

    async def metadata(self, request: m.MetadataRequest, version: int) -> m.MetadataResponse:
        world, kind = self.world, m.MetadataResponse
        await world.thawed(self.node_id)
        rows = [
            kind.MetadataResponsePartition(partition_index=index, leader_id=leader, leader_epoch=world.epochs[index])
            for index, leader in enumerate(world.leaders)
        ]
        return kind(
            brokers=[
                kind.MetadataResponseBroker(node_id=one.node_id, host=one.host, port=one.port) for one in world.brokers
            ],
            cluster_id="fake",
            controller_id=1,
            topics=[kind.MetadataResponseTopic(name="t", topic_id=TOPIC_ID, partitions=rows)],
        )

    async def produce(self, request: m.ProduceRequest, version: int) -> Any:
        world, kind = self.world, m.ProduceResponse
        await world.thawed(self.node_id)
        rows = []
        for part in request.topic_data[0].partition_data:
            log, records = world.logs[part.index], part.records or b""
            what = world.trouble[part.index].popleft() if world.trouble[part.index] else None
            error, offset = Err.NONE, -1
            if what is HANG_UP:
                return HANG_UP
            if world.leaders[part.index] != self.node_id:
                error = Err.NOT_LEADER_OR_FOLLOWER
            elif (refusal := world.refusal(what, records)) is not None and not log.knows(records):
                error = refusal
            else:
                error, offset = log.append(records)
                if what == WRITTEN_AND_GONE:
                    return HANG_UP
                if what == WRITTEN and error is Err.NONE:
                    error, offset = Err.NOT_ENOUGH_REPLICAS_AFTER_APPEND, -1
            rows.append(kind.PartitionProduceResponse(index=part.index, error_code=error, base_offset=offset))
        return kind(responses=[kind.TopicProduceResponse(name="t", topic_id=TOPIC_ID, partition_responses=rows)])

    def init(self, request: m.InitProducerIdRequest, version: int) -> m.InitProducerIdResponse:
        if request.producer_id >= 0:  # after an abort
            return m.InitProducerIdResponse(producer_id=request.producer_id, producer_epoch=request.producer_epoch + 1)
        self.world.producer_ids += 1
        return m.InitProducerIdResponse(producer_id=100 + self.world.producer_ids, producer_epoch=0)

    def coordinator(self, request: m.FindCoordinatorRequest, version: int) -> m.FindCoordinatorResponse:
        kind = m.FindCoordinatorResponse
        return kind(coordinators=[kind.Coordinator(key="x", node_id=self.node_id, host=self.host, port=self.port)])

    def add(self, request: m.AddPartitionsToTxnRequest, version: int) -> m.AddPartitionsToTxnResponse:
        kind = m.AddPartitionsToTxnResponse
        topics = [
            kind.AddPartitionsToTxnTopicResult(
                name=topic.name,
                results_by_partition=[
                    kind.AddPartitionsToTxnPartitionResult(partition_index=index, partition_error_code=0)
                    for index in topic.partitions
                ],
            )
            for topic in request.v3_and_below_topics
        ]
        return kind(results_by_topic_v3_and_below=topics)


class Sent:
    """A record that the producer has accepted, and what it said of it since."""

    def __init__(self, number: int, partition: int, delivery: Delivery, now: float) -> None:
        self.number = number
        self.partition = partition
        self.since = now
        self.told: list[tuple[int, ClientError | None]] = []
        self.told_at = 0.0
        delivery.notify(self._tell)

    def _tell(self, delivery: Delivery) -> None:
        self.told.append(delivery.outcome)
        self.told_at = asyncio.get_running_loop().time()

    @property
    def error(self) -> ClientError | None:
        return self.told[0][1]


class Play:
    """One sequence, and what its callers have seen."""

    def __init__(self, loop: SimLoop, options: dict[str, Any]) -> None:
        self.loop = loop
        self.world = World(loop)
        self.options = options
        self.producer = Producer(
            "127.0.0.1:9093,127.0.0.1:9094",
            delivery_timeout_ms=int(DELIVERY_S * 1000),
            request_timeout_ms=2_000,
            max_block_ms=5_000,
            **options,
        )
        self.sent: list[list[Sent]] = [[] for _ in range(PARTITIONS)]
        self.callers: list[asyncio.Task[None]] = []
        self.numbers = 0
        self.knocking = 0
        """Sends that are not accepted yet."""
        self.complaints = 0
        """How often a failure that nobody had looked at was raised."""

    @property
    def all_sent(self) -> list[Sent]:
        return [one for of in self.sent for one in of]

    async def perform(self, lines: list[Step], *, flush: bool) -> None:
        brokers = self.world.brokers
        async with brokers[0], brokers[1]:
            await self.producer.start()
            for line in lines:
                await self.act(line)
                self.check_memory()
            self.world.heal()
            await self.end(flush=flush)
            self.check_nothing_is_left()

    async def act(self, line: Step) -> None:
        world = self.world
        match line.what:
            case "send" | "send and wait":
                self.numbers += 1
                self.call(self.send(self.numbers, line.partition, line.value, waits=line.what != "send"))
            case "flush":
                self.call(self.flush())
            case "cancel":
                for caller in self.callers[-3:]:
                    caller.cancel()
            case "sleep":
                await asyncio.sleep(line.value)
            case "trouble":
                world.trouble[line.partition].append(line.value)
            case "move":
                world.move(line.partition, line.value)
            case "freeze":
                world.thaws_at[world.brokers[line.partition].node_id] = self.loop.time() + line.value
            case "hang up":
                for broker in world.brokers:
                    broker.drop_all()

    def call(self, work: Coroutine[Any, Any, None]) -> None:
        self.callers.append(self.loop.create_task(work, name="caller"))

    async def send(self, number: int, partition: int, size: int, *, waits: bool) -> None:
        self.knocking += 1
        try:
            delivery = await self.producer.send_soon("t", b"%d" % number + b" " * size, partition=partition)
        except ClientError:
            return  # not accepted: there was no room, or the producer has come to its end
        finally:
            self.knocking -= 1
        self.sent[partition].append(Sent(number, partition, delivery, self.loop.time()))
        if waits:
            assert self.producer._core is not None
            self.producer._core.hurry("t", partition)
            try:
                assert (await delivery).partition == partition
            except ClientError:
                self.complaints += 1

    async def flush(self) -> None:
        before = self.all_sent
        try:
            await self.producer.flush()
        except ClientError:
            self.complaints += 1
        assert all(one.told for one in before), "flush returns while records are open"

    async def end(self, *, flush: bool) -> None:
        if flush:
            async with asyncio.timeout(FATE_S):
                await asyncio.gather(*self.callers, return_exceptions=True)
        try:
            async with asyncio.timeout(FATE_S):
                await self.producer.close(flush=flush)
        except ClientError:
            self.complaints += 1
        # Whoever still waits is told by the end of the producer.
        async with asyncio.timeout(1):
            outcomes = await asyncio.gather(*self.callers, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, Exception):
                raise outcome
        assert all(len(one.told) == 1 for one in self.all_sent), "delivered or failed, once"
        if flush:
            assert self.complaints or not any(one.error for one in self.all_sent), "a failure that nobody is told of"

    # -- what must hold

    def check_memory(self) -> None:
        core = self.producer._core
        if core is not None:
            # A record more than allowed may be there, and what the headers of split batches take.
            assert core._buffered_bytes <= self.options["buffer_bytes"] + max(SIZES) + 8 * HEADER_BYTES

    def check_nothing_is_left(self) -> None:
        left = [task for task in asyncio.all_tasks(self.loop) if not _is_ours(task)]
        assert left == [], left

    def check_logs(self, *, once: bool) -> None:
        for partition, log in enumerate(self.world.logs):
            sent = self.sent[partition]
            place = {one.number: n for n, one in enumerate(sent)}
            assert set(log.values) <= set(place), "written, and was never accepted"
            for one in sent:
                ((offset, error),) = one.told
                assert one.told_at - one.since <= FATE_S
                if error is None:
                    assert log.values[offset] == one.number
                elif once and isinstance(error, RequestFailed) and error.error in REFUSED:
                    assert one.number not in log.values, error
            if once:
                order = [place[number] for number in log.values]
                assert order == sorted(set(order)), "in order, and once"


class TransactionalPlay(Play):
    """The same within transactions, one after the other."""

    transaction: Transaction
    first = 0
    """The records before this one, in the order of acceptance, belong to earlier transactions."""

    async def act(self, line: Step) -> None:
        if line.what in ("commit", "abort"):
            await self.end_transaction(commits=line.what == "commit")
        if not hasattr(self, "transaction") or line.what in ("commit", "abort"):
            self.transaction = self.producer.transaction()
            with suppress(ClientError):  # of one that has come to its end
                await self.transaction.__aenter__()
        if line.what not in ("commit", "abort"):
            await super().act(line)

    async def end(self, *, flush: bool) -> None:
        await self.end_transaction(commits=flush)
        await super().end(flush=flush)

    async def end_transaction(self, *, commits: bool) -> None:
        await asyncio.sleep(0)  # so that all who were called have begun
        while self.knocking:
            await asyncio.sleep(0.01)
        if not hasattr(self, "transaction"):
            return
        try:
            async with asyncio.timeout(4 * FATE_S):
                await (self.transaction.commit() if commits else self.transaction.abort())
        except ClientError:
            self.complaints += 1
            commits = False
            with suppress(ClientError):
                await self.transaction.abort()
        mine = sorted(self.all_sent, key=lambda one: one.since)[self.first :]
        self.first += len(mine)
        assert all(one.told for one in mine), "the transaction is over while records are open"
        assert not commits or all(one.error is None for one in mine), "committed without some of its records"
        self.complaints += not commits


def _is_ours(task: "asyncio.Task[Any]") -> bool:
    """Of the test itself, or of a broker."""
    if task is asyncio.current_task():
        return True
    name = getattr(task.get_coro(), "__qualname__", "")
    return name.startswith("FakeBroker.") or task.cancelling() > 0


def in_virtual_time(seed: int, work: Callable[[SimLoop], Coroutine[Any, Any, None]]) -> None:
    loop = SimLoop(Random(seed))

    async def whole() -> None:
        await work(loop)
        await until(lambda: len(asyncio.all_tasks()) == 1, "brokers see that they are left")

    try:
        loop.run_until_complete(whole())
    finally:
        loop.close()
    assert loop.errors == []


def perform(
    seed: int,
    options: dict[str, Any],
    lines: list[Step],
    *,
    flush: bool = True,
    once: bool = True,
    kind: type[Play] = Play,
) -> None:
    async def work(loop: SimLoop) -> None:
        play = kind(loop, options)
        await play.perform(lines, flush=flush)
        play.check_logs(once=once)

    in_virtual_time(seed, work)


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 1 << 16), OPTIONS, PLAY, st.booleans())
def test_an_idempotent_producer_delivers_or_fails_each_record_once_and_in_order(
    seed: int, options: dict[str, Any], lines: list[Step], flush: bool
) -> None:
    perform(seed, options, lines, flush=flush)


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 1 << 16), OPTIONS, PLAY)
def test_a_plain_producer_says_once_what_became_of_each_record(
    seed: int, options: dict[str, Any], lines: list[Step]
) -> None:
    perform(seed, {**options, "idempotence": False}, lines, once=False)


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 1 << 16), OPTIONS, st.lists(SENDS | SENDS | TIME | BROKER | ENDS, max_size=40), st.booleans())
def test_a_transaction_is_over_when_all_its_records_are_told_and_commits_none_that_failed(
    seed: int, options: dict[str, Any], lines: list[Step], flush: bool
) -> None:
    perform(seed, {**options, "transactional_id": "x"}, lines, flush=flush, kind=TransactionalPlay)


@pytest.mark.parametrize("linger_ms", [0, 1_000])
def test_after_a_fatal_answer_nobody_waits_for_ever_and_flush_says_why(linger_ms: int) -> None:
    async def work(loop: SimLoop) -> None:
        world = World(loop)
        async with world.brokers[0], world.brokers[1]:
            producer = Producer("127.0.0.1:9093", linger_ms=linger_ms)
            await producer.start()
            # 1. Partition 1 is slow to answer, and partition 0 gets an answer that ends the producer.
            world.trouble[0].append(Err.CLUSTER_AUTHORIZATION_FAILED)
            world.thaws_at[2] = loop.time() + 3
            first, second = [await producer.send_soon("t", b"%d" % n, partition=n) for n in (0, 1)]
            outcomes: list[tuple[int, ClientError | None]] = []
            for delivery in (first, second):
                delivery.notify(lambda done: outcomes.append(done.outcome))
            async with asyncio.timeout(60):
                with pytest.raises(RequestFailed, match="CLUSTER_AUTHORIZATION_FAILED"):
                    await producer.flush()
            # 2. The late answer of partition 1 changes nothing of what was told.
            await asyncio.sleep(10)
            assert len(outcomes) == 2 and all(isinstance(error, RequestFailed) for _, error in outcomes)
            assert second.done() and second.exception() is outcomes[1][1]
            # 3. Whoever goes on is told at once, and nothing of it is sent.
            for _ in range(3):
                async with asyncio.timeout(1):
                    with pytest.raises(RequestFailed, match="CLUSTER_AUTHORIZATION_FAILED"):
                        await producer.send("t", b"9", partition=0)
            assert 9 not in world.logs[0].values
            await producer.close()

    in_virtual_time(1, work)


def test_a_full_buffer_does_not_wait_for_batches_that_wait_for_more_records() -> None:
    async def work(loop: SimLoop) -> None:
        world = World(loop)
        producer = Producer("127.0.0.1:9093", linger_ms=60_000, buffer_bytes=1_000)
        async with world.brokers[0], world.brokers[1], producer:
            for number in range(30):
                await producer.send_soon("t", b"%d" % number + b" " * 60, partition=number % PARTITIONS)
            assert loop.time() < 10

    in_virtual_time(1, work)


def test_what_other_tasks_send_during_a_commit_belongs_to_the_transaction() -> None:
    async def work(loop: SimLoop) -> None:
        world = World(loop)
        producer = Producer("127.0.0.1:9093", transactional_id="x")
        async with world.brokers[0], world.brokers[1], producer:
            async with producer.transaction():
                world.thaws_at[1] = loop.time() + 1
                await producer.send_soon("t", b"1", partition=0)

                async def late() -> Delivery:
                    await asyncio.sleep(0.5)
                    return await producer.send_soon("t", b"2", partition=0)

                other = asyncio.create_task(late())
            assert (await other).result().offset == 1 and world.logs[0].values == [1, 2]

    in_virtual_time(1, work)


def test_a_failure_is_raised_by_flush_if_whoever_awaited_the_record_was_cancelled() -> None:
    async def work(loop: SimLoop) -> None:
        world = World(loop)
        async with world.brokers[0], world.brokers[1], Producer("127.0.0.1:9093") as producer:
            world.trouble[0].append(Err.INVALID_RECORD)
            world.thaws_at[1] = loop.time() + 2
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(1):
                    await producer.send("t", b"1", partition=0)
            with pytest.raises(RequestFailed, match="INVALID_RECORD"):
                await producer.flush()

    in_virtual_time(1, work)
