"""Topics that a producer meets for the first time: asked for together, or all at once, and each told for itself."""

import asyncio

import pytest

from headrace.client.errors import ClientError, RequestFailed
from headrace.client.net.cluster import Cluster
from headrace.client.produce.topics import IN_A_ROW, TopicFinder
from headrace.errors import Err
from headrace.protocol.api import ApiKey
from tests.unit.client.fake import SILENT, FakeBroker
from tests.waiting import until

NAMES = [f"t{number}" for number in range(60)]


def looks(broker: FakeBroker) -> list[int]:
    """How many topics each Metadata asked for; -1: for all."""
    asked = [body for key, _, body in broker.seen if key is ApiKey.METADATA]
    return [-1 if body.topics is None else len(body.topics) for body in asked]


def test_topics_wanted_together_are_asked_for_together() -> None:
    async def run() -> None:
        async with FakeBroker() as broker, Cluster(f"127.0.0.1:{broker.port}") as cluster:
            for name in NAMES:
                broker.add_topic(name)
            broker.seen.clear()
            finder = TopicFinder(cluster)
            found = await asyncio.gather(*(finder.find(name) for name in NAMES))
            assert [topic.name for topic in found] == NAMES
            assert looks(broker) == [len(NAMES)]
            finder.close()

    asyncio.run(run())


def test_after_a_few_one_by_one_all_are_asked_for_once() -> None:
    async def run() -> None:
        async with FakeBroker() as broker, Cluster(f"127.0.0.1:{broker.port}") as cluster:
            for name in NAMES:
                broker.add_topic(name)
            broker.seen.clear()
            finder = TopicFinder(cluster)
            for name in NAMES:
                assert (await finder.find(name)).name == name and name in cluster.topics
            assert looks(broker) == [1] * IN_A_ROW + [-1]
            finder.close()

    asyncio.run(run())


def test_a_missing_topic_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.client.produce.topics.UNKNOWN_TOPIC_WAIT_S", 0.0)

    async def run() -> None:
        async with FakeBroker() as broker, Cluster(f"127.0.0.1:{broker.port}") as cluster:
            broker.add_topic("here")
            finder = TopicFinder(cluster)
            here, gone = await asyncio.gather(finder.find("here"), finder.find("gone"), return_exceptions=True)
            assert not isinstance(here, BaseException) and here.name == "here"
            assert isinstance(gone, RequestFailed) and gone.error is Err.UNKNOWN_TOPIC_OR_PARTITION
            finder.close()

    asyncio.run(run())


def test_who_waits_is_told_that_the_producer_is_closed() -> None:
    async def run() -> None:
        async with FakeBroker() as broker, Cluster(f"127.0.0.1:{broker.port}") as cluster:
            broker.handlers[ApiKey.METADATA] = lambda request, version: SILENT
            broker.seen.clear()
            finder = TopicFinder(cluster)
            waiting = asyncio.create_task(finder.find("t"))
            await until(lambda: looks(broker)[-1:] == [1], "the broker is asked")
            finder.close()
            with pytest.raises(ClientError, match="closed"):
                await waiting

    asyncio.run(run())
