"""What is refused when too few replicas or controllers are left, and what comes back by itself."""

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import confluent_kafka as confluent
import pytest

import headrace
from headrace.client.admin.operations import Operations
from headrace.client.errors import ClientError
from headrace.testing.cluster import TestCluster
from tests.cluster.conftest import QUICK, mend
from tests.cluster.history import ConfluentWriter, assert_replicas_identical, judge, read_log
from tests.librdkafka import STEADY


def produce_error(
    cluster: TestCluster, topic: str, value: bytes = b"x", **settings: object
) -> confluent.KafkaError | None:
    """The error of one record, sent once."""
    found: list[confluent.KafkaError | None] = []
    producer = confluent.Producer(
        {**STEADY, "bootstrap.servers": cluster.bootstrap, "acks": "all", "retries": 0, "enable.idempotence": False,
         "log_level": 0,
         "message.timeout.ms": 20_000, **settings}
    )  # fmt: skip
    producer.produce(topic, value, partition=0, on_delivery=lambda error, message: found.append(error))
    assert producer.flush(40) == 0
    return found[0]


def test_too_few_in_sync_replicas_refuse_acks_all_and_take_acks_1(cluster: TestCluster) -> None:
    cluster.create_topic("strict", 1, 3, {"min.insync.replicas": "3"})
    assert produce_error(cluster, "strict", b"1") is None
    victim = next(node for node in cluster.nodes if node not in (cluster.leader_of("strict"), cluster.quorum_leader()))
    cluster.kill(victim)
    cluster.wait_isr("strict", 0, set(cluster.nodes) - {victim})
    error = produce_error(cluster, "strict", b"2")
    assert error is not None and error.name() == "NOT_ENOUGH_REPLICAS"
    assert produce_error(cluster, "strict", b"3", acks=1) is None
    # Written, not committed: no reader may see it before it is on as many replicas as was asked for.
    assert list(read_log(cluster.bootstrap, "strict")[0].values()) == [b"1"]
    cluster.start(victim)
    cluster.wait_in_sync("strict")
    assert produce_error(cluster, "strict", b"4") is None
    assert list(read_log(cluster.bootstrap, "strict")[0].values()) == [b"1", b"3", b"4"]


def test_a_lost_quorum_decides_nothing_and_heals(cluster: TestCluster) -> None:
    cluster.create_topic("quorum", 1, 3)
    survivor = cluster.leader_of("quorum")
    others = [node for node in cluster.nodes if node != survivor]
    with ConfluentWriter(cluster.bootstrap, "quorum", 1) as writer:
        writer.wait_acked(100)
        cluster.kill(*others)
        acked = len(writer.book.acked)
        with pytest.raises(ClientError):
            cluster.ask(lambda admin: admin.create_topic("undecided", 1, 1), timeout_s=3.0)
        # One of three replicas is no majority of anything: what is sent meanwhile waits and is not lost.
        time.sleep(0.5)
        assert len(writer.book.acked) - acked <= 100
        cluster.start(*others)
        writer.wait_acked(100)
        writer.stop()
    cluster.wait_in_sync("quorum")
    judge(read_log(cluster.bootstrap, "quorum"), writer.book)
    cluster.ask(lambda admin: admin.create_topic("decided", 1, 3))


def test_all_nodes_killed_at_once_come_back_with_everything(cluster: TestCluster) -> None:
    cluster.create_topic("all", 2, 3)
    with ConfluentWriter(cluster.bootstrap, "all", 2) as writer:
        writer.wait_acked(200)
        cluster.kill()
        cluster.start()
        writer.wait_acked(100)
        writer.stop()
    judge(read_log(cluster.bootstrap, "all"), writer.book)
    assert_replicas_identical(cluster, "all")


def test_all_nodes_stopped_in_order_come_back_clean(cluster: TestCluster) -> None:
    cluster.create_topic("stopped", 2, 3)
    with ConfluentWriter(cluster.bootstrap, "stopped", 2) as writer:
        writer.wait_acked(50)
        writer.stop()
    cluster.stop()
    assert all((node.data / ".kafka_cleanshutdown").exists() for node in cluster.nodes.values())
    cluster.start()
    judge(read_log(cluster.bootstrap, "stopped"), writer.book)
    assert_replicas_identical(cluster, "stopped")


# -- four brokers, three of them controllers


@pytest.fixture(scope="module")
def grown() -> Iterator[TestCluster]:
    """Three nodes and then a fourth, which only serves: it can be lost without the quorum noticing."""
    with TestCluster(3, settings=QUICK) as cluster:
        yield cluster


def test_a_broker_is_added_filled_drained_and_forgotten(grown: TestCluster) -> None:
    mend(grown)
    grown.create_topic("moving", 4, 2)
    with ConfluentWriter(grown.bootstrap, "moving", 4) as writer:
        writer.wait_acked(200)
        added = grown.add_broker().start()
        target = {("moving", index): [added.id, p.replicas[0]] for index, p in grown.topic("moving").partitions.items()}
        grown.ask(lambda admin: Operations(admin).reassign(target))
        grown.wait("the moves", lambda: not grown.ask(lambda admin: Operations(admin).moves()))
        assert all(p.replicas == tuple(target["moving", i]) for i, p in grown.topic("moving").partitions.items())
        grown.ask(lambda admin: Operations(admin).elect(None))
        # The controller has elected; whom we ask may not have heard of it yet.
        grown.wait("the leaders", lambda: {p.leader for p in grown.topic("moving").partitions.values()} == {added.id})
        writer.wait_acked(50)
        assert_in_sync(grown, "moving")
        # And back.
        back = {at: [1 + at[1] % 3, 1 + (at[1] + 1) % 3] for at in target}
        grown.ask(lambda admin: Operations(admin).reassign(back))
        grown.wait("the moves back", lambda: not grown.ask(lambda admin: Operations(admin).moves()))
        grown.wait(
            "the folders to go",
            lambda: not [path for path in added.data.glob("moving-*") if not path.name.endswith("-delete")],
        )
        writer.wait_acked(50)
        writer.stop()
    judge(read_log(grown.bootstrap, "moving"), writer.book)
    assert_replicas_identical(grown, "moving")


def assert_in_sync(cluster: TestCluster, topic: str) -> None:
    cluster.wait_in_sync(topic)


def test_a_partition_without_in_sync_replicas_waits_for_them_or_for_an_unclean_election(grown: TestCluster) -> None:
    if 4 not in grown.nodes:
        grown.add_broker()
    mend(grown)
    keeper = next(node for node in (1, 2, 3) if node != grown.quorum_leader())
    grown.create_topic("unclean", assignments={0: [keeper, 4]}, configs={"min.insync.replicas": "1"})
    assert produce_error(grown, "unclean", b"both") is None
    grown.kill(4)
    grown.wait_isr("unclean", 0, [keeper])
    assert produce_error(grown, "unclean", b"only the keeper") is None
    grown.kill(keeper)
    grown.wait("no leader", lambda: grown.partition("unclean").leader < 0)
    grown.start(4)
    # It lacks a record that was acknowledged: it may not lead by itself.
    grown.wait("broker 4 to be up", lambda: 4 not in grown.partition("unclean").offline)
    assert grown.partition("unclean").leader < 0
    results = grown.ask(lambda admin: Operations(admin).elect([("unclean", 0)]))
    assert results["unclean", 0] is not None, "a preferred election takes in-sync replicas only"
    results = grown.ask(lambda admin: Operations(admin).elect([("unclean", 0)], unclean=True))
    assert results == {("unclean", 0): None}
    assert grown.leader_of("unclean") == 4
    assert list(read_log(grown.bootstrap, "unclean")[0].values()) == [b"both"]
    assert produce_error(grown, "unclean", b"after") is None
    grown.start(keeper)
    grown.wait_in_sync("unclean")
    assert list(read_log(grown.bootstrap, "unclean")[0].values()) == [b"both", b"after"]
    assert_replicas_identical(grown, "unclean")


def test_readers_notice_that_an_unclean_election_has_cut_the_log(grown: TestCluster) -> None:
    if 4 not in grown.nodes:
        grown.add_broker()
    mend(grown)
    keeper = next(node for node in (1, 2, 3) if node != grown.quorum_leader())
    grown.create_topic("cut", assignments={0: [keeper, 4]}, configs={"min.insync.replicas": "1"})
    quick: dict[str, Any] = {"bootstrap": grown.bootstrap, "fetch_max_wait_ms": 50, "auto_offset_reset": "earliest"}

    def elect_who_lacks_records() -> None:
        grown.kill(keeper)
        grown.wait("no leader", lambda: grown.partition("cut").leader < 0)
        grown.start(4)
        grown.wait("broker 4 to be up", lambda: 4 not in grown.partition("cut").offline)
        assert grown.ask(lambda admin: Operations(admin).elect([("cut", 0)], unclean=True)) == {("cut", 0): None}
        # More than were lost: each offset that was read is there, so that epochs alone can tell.
        grown.produce("cut", *[f"after {n}" for n in range(10)])

    async def read(consumer: headrace.Consumer, count: int) -> list[tuple[int, bytes]]:
        found: list[tuple[int, bytes]] = []
        while len(found) < count:
            found += [(record.offset, record.value) for record in await consumer.poll(1.0)]
        return found

    async def work() -> None:
        group = quick | {"group": "cut", "auto_commit": False}
        by_hand = quick | {"auto_offset_reset": "none"}
        async with headrace.Consumer("cut", **quick) as running, headrace.Consumer(**by_hand) as strict:
            await strict.assign({("cut", 0): 0})
            async with headrace.Consumer("cut", **group) as stopped:
                await read(stopped, 15)
                await stopped.commit()
            assert len(await read(running, 15)) == len(await read(strict, 15)) == 15
            await asyncio.to_thread(elect_who_lacks_records)
            after = [(5 + n, f"after {n}".encode()) for n in range(10)]
            assert await read(running, 10) == after
            for _ in range(2):
                with pytest.raises(headrace.ClientError, match=r"cut at offset 5, .* up to 15 .*: seek to go on"):
                    await read(strict, 1)
            strict.seek(("cut", 0), 5)
            assert await read(strict, 10) == after
            async with headrace.Consumer("cut", **group) as again:
                assert await read(again, 10) == after, "the committed offset 15 is not that of the log before"

    grown.produce("cut", *[f"both {n}" for n in range(5)])
    grown.kill(4)
    grown.wait_isr("cut", 0, [keeper])
    grown.produce("cut", *[f"lost {n}" for n in range(10)])
    asyncio.run(asyncio.wait_for(work(), 90))
    mend(grown)
