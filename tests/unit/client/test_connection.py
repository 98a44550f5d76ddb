"""One connection: versions agreed on, requests in flight, and everything that the other side can do wrong."""

import asyncio
import socket
from typing import Any

import pytest

from headrace.client.errors import (
    BrokerUnreachable,
    ConnectionLost,
    ConnectionRefused,
    HostUnknown,
    NotKafka,
    RequestTimedOut,
    SecurityFailed,
    UnsupportedApi,
)
from headrace.client.net.cluster import Broker, Cluster
from headrace.client.net.connection import Connection
from headrace.protocol import messages as m
from headrace.protocol.api import API, ApiKey
from tests.unit.client.fake import HANG_UP, SILENT, FakeBroker
from tests.waiting import run

METADATA = m.MetadataRequest(topics=[])


async def connect(broker: FakeBroker, **options: Any) -> Connection:
    return await Connection.open(broker.host, broker.port, **options)


def test_agrees_on_versions_and_asks() -> None:
    async def play() -> None:
        async with FakeBroker(versions={ApiKey.API_VERSIONS: (0, 4), ApiKey.METADATA: (2, 7)}) as broker:
            connection = await connect(broker)
            assert connection.version_of(ApiKey.METADATA) == 7
            assert connection.version_of(ApiKey.METADATA, 5) == 5
            answer = await connection.request(ApiKey.METADATA, METADATA)
            assert answer.cluster_id == "fake"
            assert broker.seen[-1][:2] == (ApiKey.METADATA, 7)
            connection.close()

    run(play())


def test_an_older_broker_is_asked_again_in_a_version_it_knows() -> None:
    async def play() -> None:
        async with FakeBroker(versions={ApiKey.API_VERSIONS: (0, 2), ApiKey.METADATA: (0, 4)}) as broker:
            connection = await connect(broker)
            asked = [version for key, version, _ in broker.seen if key == ApiKey.API_VERSIONS]
            assert asked == [API[ApiKey.API_VERSIONS].latest_stable, 2]
            assert connection.versions[ApiKey.METADATA] == (0, 4)
            connection.close()

    run(play())


@pytest.mark.parametrize(
    ("served", "words"), [(None, "does not serve Metadata"), ((90, 95), "serves Metadata in versions 90 to 95")]
)
def test_an_api_that_cannot_be_agreed_on_is_named(served: tuple[int, int] | None, words: str) -> None:
    versions: dict[int, tuple[int, int]] = {ApiKey.API_VERSIONS: (0, 4)}
    if served:
        versions[ApiKey.METADATA] = served

    async def play() -> None:
        async with FakeBroker(versions=versions) as broker:
            connection = await connect(broker)
            with pytest.raises(UnsupportedApi, match=words):
                await connection.request(ApiKey.METADATA, METADATA)
            assert connection.is_open
            connection.close()

    run(play())


def test_many_requests_share_a_connection() -> None:
    async def play() -> None:
        async with FakeBroker() as broker:
            connection = await connect(broker)
            for name in ("a", "b", "c"):
                broker.add_topic(name)

            def ask(name: str) -> Any:
                return connection.request(
                    ApiKey.METADATA, m.MetadataRequest(topics=[m.MetadataRequest.MetadataRequestTopic(name=name)])
                )

            answers = await asyncio.gather(*(ask(name) for name in "abcabc" * 50))
            assert [answer.topics[0].name for answer in answers] == list("abcabc" * 50)
            assert broker.connections == 1
            connection.close()

    run(play())


def test_large_answers_arrive_whole_between_small_ones() -> None:
    records = bytes(range(256)) * 4096

    def fetch(request: Any, version: int) -> Any:
        kind = m.FetchResponse
        size = request.max_bytes
        part = kind.PartitionData(partition_index=0, records=records[:size])
        return kind(responses=[kind.FetchableTopicResponse(partitions=[part])])

    async def play() -> None:
        async with FakeBroker() as broker:
            broker.handlers[ApiKey.FETCH] = fetch
            connection = await connect(broker)
            # Sizes around the read buffer, where a frame is cut between buffers.
            sizes = [1, 65_000, 65_536, 65_537, 3, 131_072, len(records), 0, 7, 65_450]
            answers = await asyncio.gather(
                *(connection.request(ApiKey.FETCH, m.FetchRequest(max_bytes=size)) for size in sizes)
            )
            for size, answer in zip(sizes, answers):
                assert bytes(answer.responses[0].partitions[0].records) == records[:size]
            connection.close()

    run(play())


def test_a_lost_connection_fails_everything_that_waits_on_it() -> None:
    async def play() -> None:
        async with FakeBroker() as broker:
            broker.handlers[ApiKey.METADATA] = lambda request, version: SILENT
            connection = await connect(broker)
            waiting = [asyncio.ensure_future(connection.request(ApiKey.METADATA, METADATA)) for _ in range(3)]
            await broker.received(ApiKey.METADATA, 3)
            broker.drop_all()
            results = await asyncio.gather(*waiting, return_exceptions=True)
            assert all(isinstance(result, ConnectionLost) for result in results)
            assert not connection.is_open
            with pytest.raises(ConnectionLost):
                await connection.request(ApiKey.METADATA, METADATA)

    run(play())


def test_a_late_answer_closes_the_connection() -> None:
    async def play() -> None:
        async with FakeBroker() as broker:
            broker.handlers[ApiKey.METADATA] = lambda request, version: SILENT
            connection = await connect(broker)
            with pytest.raises(RequestTimedOut, match=r"did not answer Metadata within 0\.05 s"):
                await connection.request(ApiKey.METADATA, METADATA, timeout_s=0.05)
            assert not connection.is_open

    run(play())


def test_the_answer_to_a_cancelled_request_is_passed_over() -> None:
    async def play() -> None:
        async with FakeBroker() as broker:
            gate = asyncio.Event()

            async def slow(request: Any, version: int) -> Any:
                await gate.wait()
                return m.MetadataResponse(cluster_id="late")

            broker.handlers[ApiKey.METADATA] = slow
            connection = await connect(broker)
            abandoned = asyncio.ensure_future(connection.request(ApiKey.METADATA, METADATA))
            await broker.received(ApiKey.METADATA)
            abandoned.cancel()
            await asyncio.gather(abandoned, return_exceptions=True)
            gate.set()
            assert (await connection.request(ApiKey.METADATA, METADATA)).cluster_id == "late"
            connection.close()

    run(play())


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "is an HTTP server"),
        (b"\x15\x03\x03\x00\x02\x02\x28", "speaks TLS"),
        (b"\x7f\xff\xff\xff", "announced an answer of 2147483647 bytes"),
        (b"\x00\x00\x00\x01\x00", "announced an answer of 1 bytes"),
        (b"\xff\xff\xff\xff", "announced an answer of -1 bytes"),
        (b"\x00\x00\x00\x04\x00\x00\x30\x39", "answered a request that was never sent"),
        (b"\x00\x00\x00\x07\x00\x00\x00\x00\x00\x00\x00", "cannot be read"),
    ],
)
def test_what_is_not_kafka_is_told(sent: bytes, words: str) -> None:
    async def play() -> None:
        async with FakeBroker() as broker:
            broker.handlers[ApiKey.API_VERSIONS] = lambda request, version: sent
            with pytest.raises(SecurityFailed if "TLS" in words else NotKafka, match=words):
                await connect(broker)

    run(play())


def test_a_frame_above_the_limit_is_refused_before_it_is_read() -> None:
    async def play() -> None:
        async with FakeBroker() as broker:
            connection = await connect(broker, frame_bytes_max=100_000)
            broker.handlers[ApiKey.METADATA] = lambda request, version: (100_001).to_bytes(4, "big")
            with pytest.raises(NotKafka, match="100001"):
                await connection.request(ApiKey.METADATA, METADATA)

    run(play())


def test_one_that_hangs_up_or_says_nothing_is_no_broker() -> None:
    async def play() -> None:
        async with FakeBroker() as broker:
            broker.handlers[ApiKey.API_VERSIONS] = lambda request, version: HANG_UP
            with pytest.raises(NotKafka, match="closed the connection at the first request"):
                await connect(broker)
            broker.handlers[ApiKey.API_VERSIONS] = lambda request, version: SILENT
            with pytest.raises(NotKafka, match=r"did not answer a Kafka request within 0.05 s"):
                await connect(broker, timeout_s=0.05)

    run(play())


def test_a_refused_connection_says_so() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        with pytest.raises(BrokerUnreachable, match=f"cannot connect to 127.0.0.1:{port}: connection refused"):
            run(Connection.open("127.0.0.1", port))


def test_a_name_that_does_not_resolve_says_so() -> None:
    with pytest.raises(BrokerUnreachable, match=r"cannot connect to no-such-host.invalid:9092: \w+"):
        run(Connection.open("no-such-host.invalid", 9092))


def test_what_has_no_answer_does_not_wait_for_one() -> None:
    async def play() -> None:
        async with FakeBroker() as broker:
            broker.handlers[ApiKey.PRODUCE] = lambda request, version: SILENT
            connection = await connect(broker)
            await connection.send(ApiKey.PRODUCE, m.ProduceRequest(acks=0))
            await connection.request(ApiKey.METADATA, METADATA)
            assert [key for key, _, _ in broker.seen[-2:]] == [ApiKey.PRODUCE, ApiKey.METADATA]
            connection.close()

    run(play())


def test_a_name_that_cannot_be_resolved_is_named_with_what_to_do() -> None:
    async def go() -> None:
        with pytest.raises(HostUnknown) as failed:
            await Connection.open("no-such-host.invalid", 9092)
        text = str(failed.value)
        assert "cannot resolve the name 'no-such-host.invalid'" in text and "/etc/hosts" in text

    run(go())


def test_an_advertised_name_that_cannot_be_resolved_leads_to_advertised_listeners() -> None:
    async def go() -> None:
        async with FakeBroker() as broker, Cluster(broker.address) as cluster:
            cluster.brokers[1] = Broker(1, "no-such-host.invalid", 9092, None)
            with pytest.raises(
                HostUnknown, match=r"'no-such-host.invalid'.*broker 1 advertises.*advertised\.listeners"
            ):
                await cluster.broker_connection(1)

    run(go())


def test_a_port_where_nobody_listens_is_told_by_type() -> None:
    async def go() -> None:
        with socket.socket() as nobody:
            nobody.bind(("127.0.0.1", 0))
            with pytest.raises(ConnectionRefused, match="connection refused"):
                await Connection.open("127.0.0.1", nobody.getsockname()[1])

    run(go())
