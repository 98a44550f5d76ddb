"""What clients are told in the moment between the death of a leader and the choice of the next."""

import asyncio
from types import SimpleNamespace
from typing import Any

from headrace.broker.cluster.isolation import Isolation
from headrace.broker.cluster.lost_brokers import DOUBT_MS, LINGER_MS
from headrace.protocol import messages as m
from headrace.protocol.api import ApiKey
from tests.unit.broker.controlled import Node, Stranger, in_world


async def ask(node: Node, *topics: str) -> Any:
    client = await node.client()
    rows = [m.MetadataRequest.MetadataRequestTopic(name=name) for name in topics]
    answer = await client.request(ApiKey.METADATA, m.MetadataRequest(topics=rows, allow_auto_topic_creation=False))
    client.close()
    return answer


def leader(answer: Any) -> int:
    return int(answer.topics[0].partitions[0].leader_id)


def now_ms(node: Node) -> int:
    return int(node.broker.runtime.clock.monotonic_ms())


def test_an_answer_about_a_leader_that_was_just_lost_waits_for_the_next_one() -> None:
    async def main(node: Node) -> None:
        two = await Stranger(node, 2).join()
        await node.create("t", [2, 1])
        await node.create("u", [1])
        node.broker.lost_brokers.lost(2)
        began = now_ms(node)
        asked = asyncio.create_task(ask(node, "t"))
        assert leader(await ask(node, "u")) == 1
        assert now_ms(node) - began < 100, "who is led by another need not wait"
        assert not asked.done()
        two.connection.close()  # and nobody listens on its port: the controller fences it
        answer = await asked
        assert leader(answer) == 1
        assert now_ms(node) - began < DOUBT_MS

    in_world(main)


def test_doubt_ends_when_the_leader_is_found_again_or_after_a_while() -> None:
    async def main(node: Node) -> None:
        two = await Stranger(node, 2).join()
        await node.create("t", [2, 1])
        node.broker.lost_brokers.lost(2)
        began = now_ms(node)
        asked = asyncio.create_task(ask(node, "t"))
        await asyncio.sleep(0.2)
        node.broker.lost_brokers.found(2)
        assert leader(await asked) == 2
        assert now_ms(node) - began < 300
        node.broker.lost_brokers.lost(2)
        began = now_ms(node)
        beating = asyncio.create_task(_beat(two))
        assert leader(await ask(node, "t")) == 2
        assert DOUBT_MS <= now_ms(node) - began < DOUBT_MS + 200
        beating.cancel()

    in_world(main)


async def _beat(stranger: Stranger) -> None:
    while True:
        await stranger.beat()
        await asyncio.sleep(0.3)


def test_a_broker_that_was_just_fenced_is_still_listed_for_a_while_and_leads_nothing() -> None:
    async def main(node: Node) -> None:
        two = await Stranger(node, 2).join()
        await node.create("t", [2, 1])
        two.connection.close()
        await asyncio.sleep(1)
        assert two.fenced
        answer = await ask(node, "t")
        assert {b.node_id: (b.host, b.port) for b in answer.brokers}[2] == (two.host, two.port)
        assert leader(answer) == 1
        assert answer.topics[0].partitions[0].offline_replicas == [2]
        await asyncio.sleep(LINGER_MS / 1000)
        assert [b.node_id for b in (await ask(node, "t")).brokers] == [1]

    in_world(main)


def test_a_broker_that_comes_back_is_listed_once() -> None:
    async def main(node: Node) -> None:
        two = await Stranger(node, 2).join()
        await node.create("t", [2, 1])
        two.connection.close()
        await asyncio.sleep(1)
        again = Stranger(node, 2)
        assert await again.register(2) == 0
        assert not (await again.beat()).is_fenced
        assert sorted(b.node_id for b in (await ask(node, "t")).brokers) == [1, 2]

    in_world(main)


def cut_off(*silences_ms: list[int], out_of_touch: bool = True) -> bool:
    """Of a node that leads partitions whose followers fetched so long ago."""
    leaders: Any = [
        SimpleNamespace(
            followers={n: SimpleNamespace(fetched_ms=100_000 - silence) for n, silence in enumerate(row, 2)}
        )
        for row in silences_ms
    ]
    clock: Any = SimpleNamespace(monotonic_ms=lambda: 100_000)
    lifecycle: Any = SimpleNamespace(out_of_touch=out_of_touch)
    replicas: Any = [SimpleNamespace(leader=leader) for leader in (*leaders, None)]
    nothing: Any = None
    return Isolation(clock, 3_000, nothing, nothing, lifecycle, replicas, nothing).cut_off


def test_a_node_is_cut_off_when_neither_controllers_nor_followers_are_heard_of() -> None:
    assert cut_off([4_000, 5_000], [3_500])
    assert not cut_off([4_000, 5_000], [3_500], out_of_touch=False), "the controller knows best"
    assert not cut_off([4_000, 100]), "only the controllers are gone: this leader goes on"
    assert not cut_off([], []), "nobody follows, so nobody's silence means anything"
