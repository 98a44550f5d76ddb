"""Routing: metadata, leaders, retries, and words for addresses that cannot be reached."""

import asyncio

import pytest

from headrace.client.admin.admin import Admin
from headrace.client.errors import BrokerUnreachable, ConnectionLost, RequestFailed
from headrace.client.net.cluster import Cluster
from headrace.client.raw import fetch, produce
from headrace.errors import Err
from headrace.protocol import messages as m
from headrace.protocol.api import API, ApiKey
from headrace.records.batch import Record, build_batch
from tests.reference.apache import free_ports
from tests.unit.client.fake import HANG_UP, TOPIC_ID, FakeBroker, Handler
from tests.waiting import run

BATCH = build_batch([Record(0, 1000, b"k", b"v")])
IDEMPOTENT = build_batch([Record(0, 1000, b"k", b"v")], producer_id=7, producer_epoch=0, base_sequence=0)


def produced(error: int = Err.NONE, offset: int = 0) -> m.ProduceResponse:
    kind = m.ProduceResponse
    row = kind.PartitionProduceResponse(index=0, error_code=error, base_offset=offset)
    return kind(responses=[kind.TopicProduceResponse(topic_id=TOPIC_ID, partition_responses=[row])])


def in_turn(*answers: object) -> Handler:
    """A handler that gives each answer once and then the last for ever."""
    left = list(answers)
    return lambda request, version: left.pop(0) if len(left) > 1 else left[0]


async def with_topic(broker: FakeBroker, name: str = "t", partitions: int = 1) -> Cluster:
    broker.add_topic(name, partitions)
    return await Cluster(broker.address, retry_timeout_s=2).__aenter__()


def test_a_moved_leader_is_looked_up_again() -> None:
    async def play() -> None:
        async with FakeBroker() as broker:
            cluster = await with_topic(broker)
            broker.handlers[ApiKey.PRODUCE] = in_turn(produced(Err.NOT_LEADER_OR_FOLLOWER), produced(offset=42))
            looked_up = broker.count(ApiKey.METADATA)
            assert (await produce(cluster, "t", 0, BATCH)).base_offset == 42
            assert broker.count(ApiKey.METADATA) >= looked_up + 2
            cluster.close()

    run(play())


@pytest.mark.parametrize("error", [Err.REQUEST_TIMED_OUT, Err.NOT_ENOUGH_REPLICAS_AFTER_APPEND])
def test_a_batch_that_may_be_written_is_sent_again_only_with_a_producer_id(error: Err) -> None:
    async def play() -> None:
        async with FakeBroker() as broker:
            cluster = await with_topic(broker)
            broker.handlers[ApiKey.PRODUCE] = in_turn(produced(error), produced(offset=3))
            with pytest.raises(RequestFailed, match=error.name):
                await produce(cluster, "t", 0, BATCH)
            broker.handlers[ApiKey.PRODUCE] = in_turn(produced(error), produced(offset=3))
            assert (await produce(cluster, "t", 0, IDEMPOTENT)).base_offset == 3
            cluster.close()

    run(play())


def test_a_lost_answer_is_the_callers_to_judge_without_a_producer_id() -> None:
    async def play() -> None:
        async with FakeBroker() as broker:
            cluster = await with_topic(broker)
            broker.handlers[ApiKey.PRODUCE] = in_turn(HANG_UP, produced(offset=3))
            with pytest.raises(ConnectionLost):
                await produce(cluster, "t", 0, BATCH)
            assert broker.count(ApiKey.PRODUCE) == 1
            broker.handlers[ApiKey.PRODUCE] = in_turn(HANG_UP, produced(offset=3))
            assert (await produce(cluster, "t", 0, IDEMPOTENT)).base_offset == 3
            cluster.close()

    run(play())


def test_a_final_refusal_is_not_tried_again() -> None:
    async def play() -> None:
        async with FakeBroker() as broker:
            cluster = await with_topic(broker)
            broker.handlers[ApiKey.PRODUCE] = in_turn(produced(Err.MESSAGE_TOO_LARGE))
            with pytest.raises(RequestFailed, match=r"produce to t-0: .*\[MESSAGE_TOO_LARGE\]") as caught:
                await produce(cluster, "t", 0, BATCH)
            assert caught.value.error is Err.MESSAGE_TOO_LARGE
            assert broker.count(ApiKey.PRODUCE) == 1
            cluster.close()

    run(play())


def test_produce_without_acks_has_no_answer() -> None:
    async def play() -> None:
        async with FakeBroker() as broker:
            cluster = await with_topic(broker)
            broker.handlers[ApiKey.PRODUCE] = in_turn(b"")
            assert (await produce(cluster, "t", 0, BATCH, acks=0)).base_offset == -1
            cluster.close()

    run(play())


@pytest.mark.parametrize("metadata_version", [9, 13])
def test_topics_without_ids_are_named(metadata_version: int) -> None:
    """Metadata tells ids from version 10 on; without one, versions that need it cannot be used."""
    versions = {key: (api.min_version, api.latest_stable) for key, api in API.items()}
    versions[ApiKey.METADATA] = (0, metadata_version)

    async def play() -> None:
        async with FakeBroker(versions=versions) as broker:
            cluster = await with_topic(broker)
            broker.handlers[ApiKey.PRODUCE] = in_turn(produced())
            await produce(cluster, "t", 0, BATCH)
            _, version, request = broker.seen[-1]
            sent = request.topic_data[0]
            assert (version, sent.name, sent.topic_id) == (
                (12, "t", bytes(16)) if metadata_version < 10 else (13, "", TOPIC_ID)
            )
            cluster.close()

    run(play())


def test_a_new_topic_is_waited_for_and_a_misspelt_one_not_for_long() -> None:
    async def play() -> None:
        async with FakeBroker() as broker:
            cluster = await Cluster(broker.address, retry_timeout_s=0.3).__aenter__()
            broker.handlers[ApiKey.PRODUCE] = in_turn(produced(offset=1))
            asyncio.get_running_loop().call_later(0.05, broker.add_topic, "new")
            assert (await produce(cluster, "new", 0, BATCH)).base_offset == 1
            with pytest.raises(RequestFailed, match="topic 'nwe': there is no topic of this name"):
                await produce(cluster, "nwe", 0, BATCH)
            with pytest.raises(RequestFailed, match="the topic has 1 partition, number 0"):
                await produce(cluster, "new", 1, BATCH)
            cluster.close()

    run(play())


def test_a_partition_without_a_leader_is_waited_for() -> None:
    async def play() -> None:
        async with FakeBroker() as broker:
            cluster = await Cluster(broker.address, retry_timeout_s=2).__aenter__()
            broker.add_topic("t", leader=-1)
            broker.handlers[ApiKey.PRODUCE] = in_turn(produced(offset=1))
            asyncio.get_running_loop().call_later(0.05, broker.add_topic, "t")
            assert (await produce(cluster, "t", 0, BATCH)).base_offset == 1
            cluster.close()

    run(play())


def test_fetch_tells_what_the_partition_says() -> None:
    def fetched(error: Err = Err.NONE) -> m.FetchResponse:
        kind = m.FetchResponse
        row = kind.PartitionData(
            partition_index=0,
            error_code=error,
            high_watermark=9,
            last_stable_offset=8,
            log_start_offset=1,
            aborted_transactions=[kind.AbortedTransaction(producer_id=7, first_offset=2)],
            records=BATCH,
        )
        return kind(responses=[kind.FetchableTopicResponse(topic_id=TOPIC_ID, partitions=[row])])

    async def play() -> None:
        async with FakeBroker() as broker:
            cluster = await with_topic(broker)
            broker.handlers[ApiKey.FETCH] = in_turn(fetched(Err.NOT_LEADER_OR_FOLLOWER), fetched())
            got = await fetch(cluster, "t", 0, 5, read_committed=True)
            assert (bytes(got.records), got.high_watermark, got.last_stable_offset) == (BATCH, 9, 8)
            assert (got.log_start_offset, got.aborted) == (1, ((7, 2),))
            asked = broker.seen[-1][2]
            assert asked.isolation_level == 1
            assert asked.topics[0].partitions[0].current_leader_epoch == 5
            broker.handlers[ApiKey.FETCH] = in_turn(fetched(Err.OFFSET_OUT_OF_RANGE))
            with pytest.raises(RequestFailed, match=r"fetch from t-0 at offset 99: .*\[OFFSET_OUT_OF_RANGE\]"):
                await fetch(cluster, "t", 0, 99)
            cluster.close()

    run(play())


def test_an_advertised_address_that_leads_nowhere_is_explained() -> None:
    (nowhere,) = free_ports(1)

    async def play() -> None:
        async with FakeBroker() as broker:
            broker.advertised = "127.0.0.1", nowhere
            cluster = await with_topic(broker)
            with pytest.raises(
                BrokerUnreachable, match=rf"127.0.0.1:{nowhere}.*broker 1 advertises.*advertised.listeners"
            ):
                await produce(cluster, "t", 0, BATCH)
            cluster.close()

    run(play())


def test_a_leader_that_is_gone_is_looked_for_among_the_others() -> None:
    (nowhere,) = free_ports(1)

    async def play() -> None:
        async with FakeBroker() as broker:
            kind = m.MetadataResponse

            def metadata(request: m.MetadataRequest, version: int) -> m.MetadataResponse:
                answer = broker._metadata(request, version)
                answer.brokers.append(kind.MetadataResponseBroker(node_id=2, host="127.0.0.1", port=nowhere))
                return answer

            broker.handlers[ApiKey.METADATA] = metadata
            broker.handlers[ApiKey.PRODUCE] = in_turn(produced(offset=3))
            broker.add_topic("t", leader=2)
            cluster = await Cluster(broker.address, retry_timeout_s=5).__aenter__()
            asyncio.get_running_loop().call_later(0.1, broker.add_topic, "t")
            assert (await produce(cluster, "t", 0, BATCH)).base_offset == 3
            cluster.close()

    run(play())


def test_the_second_bootstrap_address_serves_if_the_first_is_down() -> None:
    (nowhere,) = free_ports(1)

    async def play() -> None:
        async with FakeBroker() as broker, Cluster([f"127.0.0.1:{nowhere}", broker.address]) as cluster:
            assert cluster.cluster_id == "fake"
        down = free_ports(2)
        with pytest.raises(BrokerUnreachable, match=f"no broker can be reached: .*{down[0]}.*; .*{down[1]}"):
            await Cluster([f"127.0.0.1:{port}" for port in down]).__aenter__()

    run(play())


def test_a_connection_that_died_unnoticed_is_replaced() -> None:
    async def play() -> None:
        async with FakeBroker() as broker, Admin(broker.address) as admin:
            broker.add_topic("t")
            broker.drop_all()
            assert [topic.name for topic in await admin.list_topics()] == ["t"]
            assert broker.connections == 2

    run(play())


def test_one_connection_is_opened_however_many_ask_for_it() -> None:
    async def play() -> None:
        async with FakeBroker() as broker:
            cluster = Cluster(broker.address)
            connections = await asyncio.gather(*(cluster.connect(broker.host, broker.port) for _ in range(20)))
            assert len(set(map(id, connections))) == 1 == broker.connections
            cluster.close()

    run(play())


def test_an_unknown_error_code_is_shown_by_its_number() -> None:
    async def play() -> None:
        async with FakeBroker() as broker:
            cluster = await with_topic(broker)
            broker.handlers[ApiKey.PRODUCE] = in_turn(produced(9999))
            with pytest.raises(RequestFailed, match="error code 9999") as caught:
                await produce(cluster, "t", 0, BATCH)
            assert caught.value.error is Err.UNKNOWN_SERVER_ERROR
            cluster.close()

    run(play())


def test_the_controller_is_asked_again_when_it_moved() -> None:
    kind = m.CreateTopicsResponse

    def created(error: Err) -> m.CreateTopicsResponse:
        return kind(
            topics=[
                kind.CreatableTopicResult(
                    name="t", topic_id=TOPIC_ID, error_code=error, num_partitions=3, replication_factor=1
                )
            ]
        )

    async def play() -> None:
        async with FakeBroker() as broker, Admin(broker.address) as admin:
            broker.handlers[ApiKey.CREATE_TOPICS] = in_turn(created(Err.NOT_CONTROLLER), created(Err.NONE))
            assert (await admin.create_topic("t", 3)).partitions == 3
            broker.handlers[ApiKey.CREATE_TOPICS] = in_turn(created(Err.TOPIC_ALREADY_EXISTS))
            with pytest.raises(RequestFailed, match="topic 't' was not created: A topic of this name exists already"):
                await admin.create_topic("t", 3)

    run(play())
