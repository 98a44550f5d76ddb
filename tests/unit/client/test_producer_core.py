"""The idempotent producer against a broker that fails in every way a broker may: nothing lost, doubled or reordered."""

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest

from headrace.client.api.producer import Producer
from headrace.client.errors import ClientError, ConnectionLost, RequestFailed, RequestTimedOut
from headrace.client.net.cluster import Cluster
from headrace.client.produce import OutgoingBatch, ProducerCore, Written, producer as producer_core
from headrace.client.produce.partition_queue import PartitionQueue, ProducerId
from headrace.errors import Err
from headrace.protocol import messages as m
from headrace.protocol.api import ApiKey
from headrace.records.batch import Record, build_batch
from tests.unit.client.fake import HANG_UP, SILENT, TOPIC_ID, FakeBroker
from tests.unit.client.partition_log import PartitionLog
from tests.waiting import run


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producer_core, "BACKOFF_S_MIN", 0.001)
    monkeypatch.setattr(producer_core, "BACKOFF_S_MAX", 0.01)


def batch_of(*numbers: int, topic: str = "t", partition: int = 0, size: int = 0) -> OutgoingBatch:
    records = [Record(0, 1000, None, b"%d" % number + b" " * size) for number in numbers]
    return OutgoingBatch(topic, partition, memoryview(bytearray(build_batch(records))), len(records))


class Broker(FakeBroker):
    """A fake that keeps what it takes. `trouble(partition)` may give an error before or after it has written."""

    def __init__(self, partitions: int = 1, trouble: Callable[[int], Any] | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.add_topic("t", partitions)
        self.partitions = [PartitionLog() for _ in range(partitions)]
        self.trouble = trouble or (lambda index: None)
        self.producer_ids = 0
        self.handlers[ApiKey.PRODUCE] = self.produce
        self.handlers[ApiKey.INIT_PRODUCER_ID] = self.init

    def init(self, request: Any, version: int) -> m.InitProducerIdResponse:
        self.producer_ids += 1
        return m.InitProducerIdResponse(producer_id=100 + self.producer_ids, producer_epoch=0)

    async def produce(self, request: m.ProduceRequest, version: int) -> Any:
        kind = m.ProduceResponse
        rows = []
        for part in request.topic_data[0].partition_data:
            what = self.trouble(part.index)
            if what is HANG_UP or what is SILENT:
                return what
            if isinstance(what, tuple):
                self.partitions[part.index].append(part.records or b"")
                (what,) = what
                if what is HANG_UP:
                    return what
                error, offset = what, -1
            elif what is not None:
                error, offset = what, -1
            else:
                error, offset = self.partitions[part.index].append(part.records or b"")
            rows.append(kind.PartitionProduceResponse(index=part.index, error_code=error, base_offset=offset))
        return kind(responses=[kind.TopicProduceResponse(name="t", topic_id=TOPIC_ID, partition_responses=rows)])


async def session(broker: Broker, batches: list[OutgoingBatch], **options: Any) -> dict[tuple[str, int], Written]:
    async with (
        broker,
        Cluster(broker.address, request_timeout_s=1) as cluster,
        ProducerCore(cluster, **options) as producer,
    ):
        await producer.partition_count("t")
        await producer.send(batches)
        return await producer.flush()


def test_batches_arrive_in_order_several_in_flight() -> None:
    async def play() -> None:
        broker = Broker(partitions=2)
        batches = [batch_of(2 * n, 2 * n + 1, partition=n % 2) for n in range(50)]
        written = await session(broker, batches)
        assert broker.partitions[0].values == [n for n in range(100) if n % 4 < 2]
        assert written["t", 0].records == 50 and written["t", 0].first_offset == 0 and written["t", 0].last_offset == 49

    run(play())


def test_no_more_than_allowed_is_in_flight() -> None:
    async def play() -> None:
        most, now = 0, 0

        async def slow(request: Any, version: int) -> Any:
            nonlocal most, now
            now += 1
            most = max(most, now)
            await asyncio.sleep(0.01)
            now -= 1
            return await Broker.produce(broker, request, version)

        broker = Broker()
        broker.handlers[ApiKey.PRODUCE] = slow
        await session(broker, [batch_of(n) for n in range(20)], in_flight_max=3)
        # The fake answers one request of a connection at a time: what counts is that all came, in order.
        assert broker.partitions[0].values == list(range(20)) and most <= 3

    run(play())


@pytest.mark.parametrize("seed", range(40))
def test_no_trouble_loses_doubles_or_reorders(seed: int) -> None:
    rng = random.Random(seed)
    kinds = [
        None,
        Err.NOT_LEADER_OR_FOLLOWER,
        Err.NOT_ENOUGH_REPLICAS,
        Err.KAFKA_STORAGE_ERROR,
        HANG_UP,
        (Err.NOT_ENOUGH_REPLICAS_AFTER_APPEND,),
        (Err.REQUEST_TIMED_OUT,),
        (HANG_UP,),
    ]

    def trouble(index: int) -> Any:
        return rng.choice(kinds) if rng.random() < 0.3 else None

    async def play() -> None:
        broker = Broker(partitions=3, trouble=trouble)
        batches: list[OutgoingBatch] = []
        expected: list[list[int]] = [[], [], []]
        number = 0
        for _ in range(60):
            partition, count = rng.randrange(3), rng.randint(1, 4)
            numbers = list(range(number, number + count))
            number += count
            batches.append(batch_of(*numbers, partition=partition))
            expected[partition] += numbers
        written = await session(broker, batches, in_flight_max=rng.randint(1, 5))
        assert [partition.values for partition in broker.partitions] == expected
        assert sum(one.records for one in written.values()) == number

    run(play())


def test_a_silent_broker_is_given_up_on_and_tried_again() -> None:
    answers = iter([SILENT, None])

    async def play() -> None:
        broker = Broker(trouble=lambda index: next(answers, None))
        await session(broker, [batch_of(n) for n in range(8)], produce_timeout_ms=10)
        assert broker.partitions[0].values == list(range(8)) and broker.connections >= 2

    run(play())


def test_too_large_batches_are_split_and_keep_their_order() -> None:
    async def play() -> None:
        broker = Broker()
        broker.partitions[0].refuse_above = 400
        batches = [batch_of(*range(start, start + 20), size=30) for start in range(0, 200, 20)]
        await session(broker, batches)
        assert broker.partitions[0].values == list(range(200))
        assert max(broker.partitions[0].sizes) <= 400

    run(play())


def test_one_record_too_large_is_said_with_the_option_to_raise() -> None:
    async def play() -> None:
        broker = Broker()
        broker.partitions[0].refuse_above = 100
        with pytest.raises(RequestFailed, match=r"max\.message\.bytes"):
            await session(broker, [batch_of(1, size=500)])

    run(play())


def test_with_a_broker_that_lost_records_a_producer_goes_on_in_another_epoch() -> None:
    async def play() -> None:
        broker = Broker()
        async with broker, Cluster(broker.address) as cluster, ProducerCore(cluster) as producer:
            await producer.partition_count("t")
            await producer.send([batch_of(0), batch_of(1)])
            await producer.flush()
            # As after an unclean election: the last batch is gone, from the log and from memory.
            broker.partitions[0].values.pop()
            broker.partitions[0].producers[101].pop()
            await producer.send([batch_of(n) for n in range(2, 10)])
            await producer.flush()
            assert broker.partitions[0].values == [0, *range(2, 10)] and broker.producer_ids == 1
            assert broker.partitions[0].epochs == {101: 1}

    run(play())


def test_an_error_that_no_retry_cures_reaches_every_caller() -> None:
    async def play() -> None:
        broker = Broker(trouble=lambda index: Err.TOPIC_AUTHORIZATION_FAILED)
        async with broker, Cluster(broker.address) as cluster, ProducerCore(cluster) as producer:
            await producer.partition_count("t")
            await producer.send([batch_of(0)])
            with pytest.raises(RequestFailed) as caught:
                await producer.flush()
            assert caught.value.error is Err.TOPIC_AUTHORIZATION_FAILED and "t-0" in str(caught.value)
            with pytest.raises(RequestFailed):
                await producer.send([batch_of(1)])

    run(play())


def test_time_runs_out_with_the_last_reason() -> None:
    async def play() -> None:
        broker = Broker(trouble=lambda index: Err.NOT_ENOUGH_REPLICAS)
        with pytest.raises(RequestTimedOut, match=r"t-0 took no record for 0\.3 s; .*NOT_ENOUGH_REPLICAS"):
            await session(broker, [batch_of(0)], delivery_timeout_s=0.3)

    run(play())


def test_a_full_buffer_holds_callers_back() -> None:
    async def play() -> None:
        broker = Broker()
        gate = asyncio.Event()

        async def gated(request: Any, version: int) -> Any:
            await gate.wait()
            return await Broker.produce(broker, request, version)

        broker.handlers[ApiKey.PRODUCE] = gated
        async with (
            broker,
            Cluster(broker.address) as cluster,
            ProducerCore(cluster, buffer_bytes_max=1000) as producer,
        ):
            await producer.partition_count("t")
            sending = asyncio.ensure_future(producer.send([batch_of(n, size=300) for n in range(10)]))
            done, _ = await asyncio.wait([sending], timeout=0.2)
            assert not done
            gate.set()
            await sending
            await producer.flush()
            assert broker.partitions[0].values == list(range(10))

    run(play())


def test_a_missing_topic_is_named() -> None:
    async def play() -> None:
        broker = Broker()
        async with broker, Cluster(broker.address) as cluster, ProducerCore(cluster) as producer:
            with pytest.raises(ClientError, match="'nope': there is no topic of this name"):
                await producer.partition_count("nope")

    run(play())


def test_the_leader_is_found_when_there_is_none_at_first() -> None:
    async def play() -> None:
        broker = Broker()
        broker.add_topic("t", 1, leader=-1)
        async with broker, Cluster(broker.address) as cluster, ProducerCore(cluster) as producer:
            await producer.partition_count("t")
            await producer.send([batch_of(n) for n in range(3)])
            asked = broker.count(ApiKey.METADATA)
            await broker.received(ApiKey.METADATA, asked + 2)
            broker.add_topic("t", 1)
            await producer.flush()
            assert broker.partitions[0].values == [0, 1, 2]

    run(play())


def two_brokers(leaders: list[int]) -> tuple[Broker, Broker]:
    """Brokers 1 and 2 of one cluster, which share their logs and name those that lead at the time they are asked."""
    kind = m.MetadataResponse
    brokers = Broker(partitions=2, node_id=1), Broker(partitions=2, node_id=2)
    brokers[1].partitions = brokers[0].partitions

    def metadata(request: m.MetadataRequest, version: int) -> m.MetadataResponse:
        rows = [
            kind.MetadataResponsePartition(partition_index=index, leader_id=leader, leader_epoch=5)
            for index, leader in enumerate(leaders)
        ]
        return kind(
            brokers=[kind.MetadataResponseBroker(node_id=one.node_id, host=one.host, port=one.port) for one in brokers],
            cluster_id="fake",
            controller_id=1,
            topics=[kind.MetadataResponseTopic(name="t", topic_id=TOPIC_ID, partitions=rows)],
        )

    for broker in brokers:
        broker.handlers[ApiKey.METADATA] = metadata
    return brokers


def test_a_new_leader_gets_nothing_while_the_old_one_owes_answers() -> None:
    async def play() -> None:
        leaders = [1, 2]
        old, new = two_brokers(leaders)
        log = old.partitions[0]
        async with old, new, Cluster(old.address) as cluster, ProducerCore(cluster) as producer:
            await producer.partition_count("t")
            await producer.send([batch_of(0)])
            await producer.flush()

            # 1. The old leader freezes: batch 1 is written and replicated, batch 2 is not, and neither is answered.
            def frozen(request: m.ProduceRequest, version: int) -> Any:
                if old.count(ApiKey.PRODUCE) == 2:
                    log.append(request.topic_data[0].partition_data[0].records or b"")
                return SILENT

            old.handlers[ApiKey.PRODUCE] = frozen
            await producer.send([batch_of(1), batch_of(2)])
            await old.received(ApiKey.PRODUCE, 3)
            # 2. The producer hears of the new leader. Batch 3 would be out of order there.
            leaders[0] = 2
            await cluster.refresh({"t"})
            # The first request of partition 1 is answered before its second leaves, and batch 3 would be in the first.
            await producer.send([batch_of(3), batch_of(10, partition=1), batch_of(11, partition=1)])
            await new.received(ApiKey.PRODUCE, 2)
            indexes = [
                part.index
                for key, _, request in new.seen
                if key == ApiKey.PRODUCE
                for part in request.topic_data[0].partition_data
            ]
            # 3. The old leader dies. All goes to the new one from the head, which knows batch 1 again.
            old.drop_all()
            await producer.flush()
            assert log.values == [0, 1, 2, 3] and log.epochs == {101: 0}
            assert indexes == [1, 1]

    run(play())


def test_batches_go_to_a_new_leader_once_the_old_one_has_answered() -> None:
    async def play() -> None:
        leaders = [1, 2]
        old, new = two_brokers(leaders)
        gate = asyncio.Event()

        async def gated(request: Any, version: int) -> Any:
            await gate.wait()
            return await Broker.produce(old, request, version)

        async with old, new, Cluster(new.address) as cluster, ProducerCore(cluster) as producer:
            await producer.partition_count("t")
            await producer.send([batch_of(0)])
            await producer.flush()
            old.handlers[ApiKey.PRODUCE] = gated
            await producer.send([batch_of(1), batch_of(2)])
            await old.received(ApiKey.PRODUCE, 2)
            leaders[0] = 2
            await cluster.refresh({"t"})
            await producer.send([batch_of(3), batch_of(4)])
            gate.set()
            await producer.flush()
            assert old.partitions[0].values == [0, 1, 2, 3, 4] and new.count(ApiKey.PRODUCE) > 0

    run(play())


def test_a_queue_is_cured_of_what_its_head_failed_of_whichever_failure_came_first() -> None:
    queue = PartitionQueue("t", 0, ProducerId(7, 0), 0.1)
    for number in range(3):
        batch = batch_of(number)
        queue.append(batch.view, batch.count, 1.0)
    first, second = queue.pending.popleft(), queue.pending.popleft()
    queue.in_flight = 2
    queue.fail(second, RequestFailed("produce", Err.OUT_OF_ORDER_SEQUENCE_NUMBER))
    lost = ConnectionLost("gone")
    queue.fail(first, lost)
    queue.put_back_failed()
    assert queue.error is lost and [batch.order for batch in queue.pending] == [0, 1, 2] and queue.in_flight == 0


def test_an_abort_of_what_was_never_sent_leaves_no_gap_in_sequences() -> None:
    async def play() -> None:
        broker = Broker()
        added = iter([Err.NONE, Err.TOPIC_AUTHORIZATION_FAILED, Err.NONE])

        def coordinator(request: m.FindCoordinatorRequest, version: int) -> m.FindCoordinatorResponse:
            kind = m.FindCoordinatorResponse
            row = kind.Coordinator(key="x", node_id=broker.node_id, host=broker.host, port=broker.port)
            return kind(coordinators=[row])

        def add(request: m.AddPartitionsToTxnRequest, version: int) -> m.AddPartitionsToTxnResponse:
            kind = m.AddPartitionsToTxnResponse
            row = kind.AddPartitionsToTxnPartitionResult(partition_index=0, partition_error_code=next(added))
            topic = kind.AddPartitionsToTxnTopicResult(name="t", results_by_partition=[row])
            return kind(results_by_topic_v3_and_below=[topic])

        broker.handlers[ApiKey.FIND_COORDINATOR] = coordinator
        broker.handlers[ApiKey.ADD_PARTITIONS_TO_TXN] = add
        broker.handlers[ApiKey.END_TXN] = lambda request, version: m.EndTxnResponse()
        async with broker, Producer(broker.address, transactional_id="x") as producer:
            async with producer.transaction():
                await producer.send("t", b"0")
            with pytest.raises(RequestFailed, match="TOPIC_AUTHORIZATION_FAILED"):
                async with producer.transaction():
                    await producer.send("t", b"1")
            async with producer.transaction():
                await producer.send("t", b"2")
        assert broker.partitions[0].values == [0, 2] and broker.producer_ids == 1

    run(play())
