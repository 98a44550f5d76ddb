"""What a consumer does for each record must not grow with the partitions that have none: counted, not timed."""

import asyncio
from collections.abc import Iterator

import pytest

from headrace.client.admin.groups import TopicPartition
from headrace.client.consume.fetcher import Fetcher, FetchOptions
from headrace.client.consume.places import Chunk, Place
from headrace.client.consume.records import Record
from headrace.client.consume.resets import read_reset
from headrace.client.net.cluster import Cluster, Partition, Topic

TOPIC_ID = b"1" * 16


def fetcher_of(count: int, leader: int = 1) -> tuple[Fetcher, Cluster]:
    cluster = Cluster("127.0.0.1:1")
    lead(cluster, count, leader)
    fetcher = Fetcher(cluster, lambda: None, FetchOptions(reset=read_reset("earliest")))
    for index in range(count):
        fetcher.add(Place("t", index, 0, TOPIC_ID))
    return fetcher, cluster


def lead(cluster: Cluster, count: int, leader: int) -> None:
    rows = {index: Partition(index, leader, 0, (1, 2), (1, 2), ()) for index in range(count)}
    cluster.topics["t"] = Topic("t", TOPIC_ID, False, rows)
    cluster.looks += 1


def nothing() -> Iterator[tuple[int, list[Record]]]:
    yield from ()


async def looked_at(count: int, monkeypatch: pytest.MonkeyPatch) -> tuple[int, int]:
    """Partitions looked at, and told to the broker, for one that brought records."""
    fetcher, _ = fetcher_of(count)
    fetcher._settle()
    route = fetcher._routes.by_node[1]
    assert len(route.partitions) == count
    route.changed.clear()
    seen: list[TopicPartition] = []
    node_of = fetcher._node_of

    def counted(at: TopicPartition) -> int | None:
        seen.append(at)
        return node_of(at)

    monkeypatch.setattr(fetcher, "_node_of", counted)
    place = fetcher.places["t", 7]
    place.keep(Chunk(nothing(), 0, 5, 100))
    fetcher._enqueue(place)
    assert fetcher.take(10) is None and place.position == 5
    fetcher._settle()
    return len(seen), len(route.changed)


def test_idle_partitions_cost_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    few = asyncio.run(looked_at(20, monkeypatch))
    assert few == asyncio.run(looked_at(2_000, monkeypatch)) == (1, 1)


def test_partitions_are_asked_for_where_they_are() -> None:
    async def run() -> None:
        fetcher, cluster = fetcher_of(4)
        fetcher._settle()
        by_node = fetcher._routes.by_node
        fetcher.pause(fetcher.places["t", 0])
        fetcher.drop(("t", 1))
        fetcher._settle()
        assert [*by_node[1].partitions] == [("t", 2), ("t", 3)]
        lead(cluster, 4, leader=2)
        fetcher.resume(fetcher.places["t", 0])
        fetcher._settle()
        assert not by_node[1].partitions and sorted(by_node[2].partitions) == [("t", 0), ("t", 2), ("t", 3)]
        assert {("t", 2), ("t", 3)} <= by_node[1].changed.keys(), "the old leader is told to forget them"
        replica = fetcher.places["t", 2]
        replica.replica, replica.replica_until_s = 1, asyncio.get_running_loop().time() + 60
        fetcher._touch(replica)
        fetcher._settle()
        assert [*by_node[1].partitions] == [("t", 2)]
        replica.replica_until_s = fetcher._routes.due_s = 0.0
        fetcher._settle()
        assert not by_node[1].partitions and ("t", 2) in by_node[2].partitions

    asyncio.run(run())
