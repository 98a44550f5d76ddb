"""Brokers that owe an answer and are gone, and brokers that are just slow."""

import asyncio
from typing import Any

import pytest

from headrace.client.errors import ConnectionLost
from headrace.client.net import watch
from headrace.client.net.cluster import Cluster
from headrace.protocol import messages as m
from headrace.protocol.api import ApiKey
from tests.unit.client.fake import SILENT, FakeBroker

LIMIT_S = 10.0


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "LOOK_S", 0.02)
    monkeypatch.setattr(watch, "SUSPICIOUS_S", 0.1)


def list_brokers(one: FakeBroker, *listed: FakeBroker) -> None:
    kind = m.MetadataResponse
    rows = [kind.MetadataResponseBroker(node_id=b.node_id, host=b.host, port=b.port) for b in listed]
    one.handlers[ApiKey.METADATA] = lambda request, version: kind(brokers=rows, cluster_id="fake", controller_id=2)


async def owed_answer(cluster: Cluster) -> "asyncio.Task[Any]":
    """A request to the first broker that is not answered."""
    connection = await cluster.broker_connection(1)
    return asyncio.create_task(connection.request(ApiKey.LIST_GROUPS, m.ListGroupsRequest(), timeout_s=60))


def test_one_that_the_others_no_longer_list_is_given_up() -> None:
    async def play() -> None:
        async with FakeBroker(node_id=1) as frozen, FakeBroker(node_id=2) as other:
            for one in (frozen, other):
                list_brokers(one, frozen, other)
            frozen.handlers[ApiKey.LIST_GROUPS] = lambda request, version: SILENT
            async with Cluster(frozen.address) as cluster:
                waiting = await owed_answer(cluster)
                await other.received(ApiKey.METADATA, 3)
                assert not waiting.done(), "it is slow, but its cluster lists it"
                list_brokers(other, other)
                with pytest.raises(ConnectionLost, match="its cluster says it is gone"):
                    await waiting

    asyncio.run(asyncio.wait_for(play(), LIMIT_S))


def test_nobody_is_asked_while_answers_come() -> None:
    async def play() -> None:
        async with FakeBroker(node_id=1) as quick, FakeBroker(node_id=2) as other:
            for one in (quick, other):
                list_brokers(one, quick, other)
            quick.handlers[ApiKey.LIST_GROUPS] = lambda request, version: m.ListGroupsResponse()
            async with Cluster(quick.address) as cluster:
                connection = await cluster.broker_connection(1)
                end = asyncio.get_running_loop().time() + 5 * watch.SUSPICIOUS_S
                while asyncio.get_running_loop().time() < end:
                    await connection.request(ApiKey.LIST_GROUPS, m.ListGroupsRequest())
            assert other.connections == 0

    asyncio.run(asyncio.wait_for(play(), LIMIT_S))


def test_an_address_that_no_broker_advertises_says_nothing() -> None:
    """A bootstrap server may be a name or a proxy that brokers know nothing of."""

    async def play() -> None:
        async with FakeBroker(node_id=1) as front, FakeBroker(node_id=2) as other:
            for one in (front, other):
                list_brokers(one, other)
            front.handlers[ApiKey.LIST_GROUPS] = lambda request, version: SILENT
            async with Cluster(front.address) as cluster:
                connection = await cluster.any_connection()
                waiting = asyncio.create_task(
                    connection.request(ApiKey.LIST_GROUPS, m.ListGroupsRequest(), timeout_s=60)
                )
                await other.received(ApiKey.METADATA, 2)
                assert not waiting.done()
                waiting.cancel()

    asyncio.run(asyncio.wait_for(play(), LIMIT_S))


def test_a_broker_that_does_not_list_itself_has_no_say() -> None:
    """It is starting, or nobody hears its heartbeats: it may know of none of those that serve."""

    async def play() -> None:
        async with FakeBroker(node_id=1) as slow, FakeBroker(node_id=2) as other:
            list_brokers(slow, slow, other)
            list_brokers(other)
            slow.handlers[ApiKey.LIST_GROUPS] = lambda request, version: SILENT
            async with Cluster(slow.address) as cluster:
                waiting = await owed_answer(cluster)
                await other.received(ApiKey.METADATA, 3)
                assert not waiting.done()
                waiting.cancel()

    asyncio.run(asyncio.wait_for(play(), LIMIT_S))


def test_one_that_was_closed_before_it_asked_asks_again_later() -> None:
    async def play() -> None:
        async with FakeBroker(node_id=1) as frozen, FakeBroker(node_id=2) as other:
            list_brokers(frozen, frozen, other)
            list_brokers(other, other)
            frozen.handlers[ApiKey.LIST_GROUPS] = lambda request, version: SILENT
            async with Cluster(frozen.address) as cluster:
                watched = cluster._watch
                waiting = await owed_answer(cluster)
                while watched._asking is None:
                    await asyncio.sleep(watch.LOOK_S / 4)
                    if watched._timer is not None:
                        watched._timer.cancel()
                    watched._look()
                watched.close()
                watched.begin()
                with pytest.raises(ConnectionLost, match="its cluster says it is gone"):
                    await waiting

    asyncio.run(asyncio.wait_for(play(), LIMIT_S))
