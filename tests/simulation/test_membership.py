"""Brokers and controllers apart, on simulated machines: who forwards to whom, who leads, who coordinates, who is
gone."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from headrace.broker.server import Broker, StartupError
from headrace.client.net.connection import Connection
from headrace.config import BrokerConfig
from headrace.errors import Err
from headrace.metadata.image import Image
from headrace.metadata.names import OFFSETS_TOPIC
from headrace.protocol import messages as m
from headrace.protocol.api import ApiKey
from headrace.quorum.folder import Layout, format_folders
from headrace.storage.checkpoints import encode_uuid, new_uuid
from headrace.testing.simulator.world import SimRuntime, Stop, World

PORT, CONTROLLER_PORT = 9092, 9093
CONTROLLER = 100


class Apart:
    """One controller, c, and brokers b1, b2, ... that are nothing else."""

    def __init__(self, world: World, brokers: int = 3, **options: str) -> None:
        self.world = world
        self.options = {name.replace("_", "."): value for name, value in options.items()}
        self.servers: dict[str, Broker] = {}
        self.names = [f"b{number}" for number in range(1, brokers + 1)]
        dice = world.dice("formatting")
        self.cluster_id = encode_uuid(new_uuid(dice))
        for name in ("c", *self.names):
            endpoints = (("CONTROLLER", name, CONTROLLER_PORT),)
            format_folders(
                world.node(name).disk, Layout(self.id_of(name), ["/data"], "/data", endpoints),
                uuid=lambda: new_uuid(dice), now_ms=0, cluster_id=self.cluster_id, voters=None if name == "c" else [],
            )  # fmt: skip

    def id_of(self, name: str) -> int:
        return CONTROLLER if name == "c" else int(name[1:])

    def settings(self, name: str) -> dict[str, str]:
        role, port, kind = (
            ("controller", CONTROLLER_PORT, "CONTROLLER") if name == "c" else ("broker", PORT, "PLAINTEXT")
        )
        return {
            "node.id": str(self.id_of(name)),
            "process.roles": role,
            "log.dirs": "/data",
            "listeners": f"{kind}://{name}:{port}",
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.bootstrap.servers": f"c:{CONTROLLER_PORT}",
            "offsets.topic.num.partitions": "6",
            **self.options,
        }

    async def start(self, name: str, **options: str) -> None:
        async def factory(runtime: SimRuntime) -> Stop:
            settings = {**self.settings(name), **{key.replace("_", "."): value for key, value in options.items()}}
            server = self.servers[name] = Broker(BrokerConfig.load({}, {}, settings), runtime)
            try:
                await server.start()
            except BaseException:
                await server.stop()
                raise
            return server.stop

        await self.world.node(name).start(factory)

    async def start_all(self) -> "Apart":
        await asyncio.gather(*(self.start(name) for name in ("c", *self.names)))
        await self.until(lambda image: sum(not b.fenced for b in image.brokers.values()) == len(self.names))
        return self

    @property
    def image(self) -> Image:
        return self.servers["c"].image

    async def until(self, predicate: Callable[[Image], bool], limit_s: float = 30) -> float:
        """Virtual seconds until the controller knows something."""
        started = self.world.loop.time()
        while not predicate(self.image):
            assert self.world.loop.time() - started < limit_s, "it did not come to be in time"
            await asyncio.sleep(0.01)
        return self.world.loop.time() - started

    def leader(self, topic: str, index: int = 0) -> int:
        found = self.image.topic_named(topic)
        assert found is not None
        return found.partitions[index].leader

    async def ask(self, name: str, key: ApiKey, body: Any, version_max: int | None = None) -> Any:
        connection = await Connection.open(name, PORT)
        try:
            return await connection.request(key, body, version_max=version_max)
        finally:
            connection.close()

    async def create(self, topic: str, *assignments: list[int], at: str = "b1") -> Any:
        kind = m.CreateTopicsRequest
        wanted = kind.CreatableTopic(
            name=topic, num_partitions=-1, replication_factor=-1,
            assignments=[kind.CreatableReplicaAssignment(partition_index=n, broker_ids=ids) for n,
                ids in enumerate(assignments)],
        )  # fmt: skip
        return await self.ask(at, ApiKey.CREATE_TOPICS, kind(topics=[wanted]))


def apart(scenario: Callable[[Apart], Coroutine[Any, Any, None]], brokers: int = 3, **options: str) -> None:
    async def main(world: World) -> None:
        cluster = await Apart(world, brokers, **options).start_all()
        await scenario(cluster)
        for name in (*cluster.names, "c"):
            if world.node(name).running:
                await world.node(name).stop()

    with World(1) as world:
        world.run(main(world), timeout_s=600)


def test_every_broker_forwards_what_only_the_controller_decides() -> None:
    async def main(cluster: Apart) -> None:
        for number, name in enumerate(cluster.names):
            answer = await cluster.create(f"t{number}", [1, 2], [2, 3], at=name)
            assert answer.topics[0].error_code == 0 and answer.topics[0].num_partitions == 2
            again = await cluster.create(f"t{number}", [1, 2], at=name)
            assert again.topics[0].error_code == Err.TOPIC_ALREADY_EXISTS
        answer = await cluster.ask(
            "b3", ApiKey.DELETE_TOPICS, m.DeleteTopicsRequest(topic_names=["t0", "no"]), version_max=5
        )
        assert [(t.name, t.error_code) for t in answer.responses] == [("no", 3), ("t0", 0)]
        kind = m.IncrementalAlterConfigsRequest
        resource = kind.AlterConfigsResource(
            resource_type=2, resource_name="t1",
            configs=[kind.AlterableConfig(name="retention.ms", config_operation=0, value="5000")],
        )  # fmt: skip
        answer = await cluster.ask("b2", ApiKey.INCREMENTAL_ALTER_CONFIGS, kind(resources=[resource]))
        assert answer.responses[0].error_code == 0
        await asyncio.sleep(0.5)
        for name in cluster.names:
            assert cluster.servers[name].image.config(2, "t1") == {"retention.ms": "5000"}

    apart(main)


def test_every_broker_shows_all_brokers_with_their_listeners() -> None:
    async def main(cluster: Apart) -> None:
        await asyncio.sleep(0.5)
        for name in cluster.names:
            answer = await cluster.ask(name, ApiKey.METADATA, m.MetadataRequest(topics=[]))
            assert sorted((b.node_id, b.host, b.port) for b in answer.brokers) == [
                (1, "b1", PORT), (2, "b2", PORT), (3, "b3", PORT),
            ]  # fmt: skip
            answer = await cluster.ask(name, ApiKey.DESCRIBE_CLUSTER, m.DescribeClusterRequest())
            assert sorted(b.broker_id for b in answer.brokers) == [1, 2, 3]

    apart(main)


def test_topics_come_to_be_when_any_broker_is_asked_about_them() -> None:
    async def main(cluster: Apart) -> None:
        kind = m.MetadataRequest
        for name in cluster.names:
            asked = kind(topics=[kind.MetadataRequestTopic(name=f"auto-{name}")], allow_auto_topic_creation=True)
            answer = await cluster.ask(name, ApiKey.METADATA, asked)
            assert [t.error_code for t in answer.topics] == [0]
            assert answer.topics[0].partitions[0].leader_id in (1, 2, 3)

    apart(main)


def test_producer_ids_are_unique_over_all_brokers() -> None:
    async def main(cluster: Apart) -> None:
        request = m.InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000)
        answers = [await cluster.ask(name, ApiKey.INIT_PRODUCER_ID, request) for name in cluster.names * 2]
        assert all(a.error_code == 0 for a in answers)
        assert len({a.producer_id for a in answers}) == 6

    apart(main)


async def coordinator(cluster: Apart, group: str, at: str) -> int:
    request = m.FindCoordinatorRequest(key_type=0, coordinator_keys=[group])
    while True:
        found = (await cluster.ask(at, ApiKey.FIND_COORDINATOR, request)).coordinators[0]
        if not found.error_code:
            assert found.host == f"b{found.node_id}" and found.port == PORT
            return int(found.node_id)
        await asyncio.sleep(0.05)


async def commit(cluster: Apart, at: str, group: str, offset: int) -> Err:
    Q = m.OffsetCommitRequest
    topic = Q.OffsetCommitRequestTopic(
        name="t", partitions=[Q.OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)]
    )
    answer = await cluster.ask(at, ApiKey.OFFSET_COMMIT, Q(group_id=group, topics=[topic]), version_max=8)
    return Err(answer.topics[0].partitions[0].error_code)


async def committed(cluster: Apart, at: str, group: str) -> tuple[Err, int]:
    Q = m.OffsetFetchRequest
    asked = Q(groups=[Q.OffsetFetchRequestGroup(group_id=group, topics=None)])
    answer = (await cluster.ask(at, ApiKey.OFFSET_FETCH, asked, version_max=9)).groups[0]
    rows = [p.committed_offset for t in answer.topics for p in t.partitions]
    return Err(answer.error_code), rows[0] if rows else -1


async def committed_by_now(cluster: Apart, group: str, at: str) -> int:
    """Ask as a client does: find the coordinator, and again if it has moved or is loading."""
    while True:
        error, offset = await committed(cluster, f"b{await coordinator(cluster, group, at)}", group)
        if error is Err.NONE:
            return offset
        assert error in (Err.NOT_COORDINATOR, Err.COORDINATOR_LOAD_IN_PROGRESS), error
        await asyncio.sleep(0.05)


def test_groups_are_coordinated_by_whoever_leads_and_move_with_leadership() -> None:
    """The coordinator dies; what was committed is known to the next."""

    async def main(cluster: Apart) -> None:
        await cluster.create("t", [1, 2, 3])
        where = {await coordinator(cluster, "g", name) for name in cluster.names}
        assert len(where) == 1, "all brokers name the same"
        first = where.pop()
        others = [name for name in cluster.names if name != f"b{first}"]
        assert await commit(cluster, others[0], "g", 1) is Err.NOT_COORDINATOR
        while (error := await commit(cluster, f"b{first}", "g", 41)) is not Err.NONE:
            assert error is Err.COORDINATOR_LOAD_IN_PROGRESS
            await asyncio.sleep(0.05)
        cluster.world.node(f"b{first}").kill()
        await cluster.until(lambda image: image.brokers[first].fenced, limit_s=1)
        assert await committed_by_now(cluster, "g", others[0]) == 41
        second = await coordinator(cluster, "g", others[0])
        assert second != first
        assert await commit(cluster, f"b{second}", "g", 42) is Err.NONE
        await cluster.start(f"b{first}")
        # Everybody back in sync, then leadership back to where it was: the old coordinator takes over again.
        topic = cluster.image.topic_named(OFFSETS_TOPIC)
        assert topic is not None
        index = next(
            i for i, p in topic.partitions.items() if cluster.servers[f"b{second}"].groups.partition_of("g") == i
        )
        await cluster.until(lambda image: len(image.topics[topic.id].partitions[index].isr) == 3)
        Elect = m.ElectLeadersRequest
        everything = Elect(election_type=0, topic_partitions=None)
        await cluster.ask(others[0], ApiKey.ELECT_LEADERS, everything)
        assert cluster.leader(OFFSETS_TOPIC, index) == first
        assert await committed_by_now(cluster, "g", others[0]) == 42

    apart(main, offsets_topic_replication_factor="3", leader_imbalance_check_interval_seconds="100000")


def test_a_broker_that_is_killed_is_replaced_in_well_under_half_a_second() -> None:
    async def main(cluster: Apart) -> None:
        await cluster.create("t", [1, 2, 3])
        cluster.world.node("b1").kill()
        seconds = await cluster.until(lambda image: image.brokers[1].fenced)
        assert seconds < 0.3 and cluster.leader("t") in (2, 3)

    apart(main)


def test_a_frozen_broker_is_replaced_after_its_session_and_comes_back() -> None:
    async def main(cluster: Apart) -> None:
        await cluster.create("t", [1, 2, 3])
        cluster.world.node("b1").pause()
        assert 2.4 < await cluster.until(lambda image: image.brokers[1].fenced) < 3.6
        assert cluster.leader("t") in (2, 3)
        cluster.world.node("b1").resume()
        assert await cluster.until(lambda image: not image.brokers[1].fenced) < 2
        topic = cluster.image.topic_named("t")
        assert topic is not None
        await cluster.until(lambda image: set(image.topics[topic.id].partitions[0].isr) == {1, 2, 3})

    apart(main)


def test_a_stop_moves_leadership_before_anything_is_closed() -> None:
    """Whoever speaks to the broker meanwhile is told where to go, not cut off."""

    async def main(cluster: Apart) -> None:
        await cluster.create("t", [1, 2, 3], [1, 3, 2])
        connection = await Connection.open("b1", PORT)
        stopping = asyncio.create_task(cluster.world.node("b1").stop())
        while cluster.leader("t") == 1:
            assert not stopping.done()
            await asyncio.sleep(0.01)
        answer = await connection.request(ApiKey.METADATA, m.MetadataRequest(topics=None))
        assert answer.brokers, "it still answers"
        await stopping
        registered = cluster.image.brokers[1]
        assert registered.fenced and registered.in_controlled_shutdown
        assert {cluster.leader("t", 0), cluster.leader("t", 1)} == {2, 3}
        await cluster.start("b1")
        assert not cluster.image.brokers[1].fenced and not cluster.image.brokers[1].in_controlled_shutdown

    apart(main)


def test_brokers_outlast_a_restart_of_their_only_controller() -> None:
    async def main(cluster: Apart) -> None:
        await cluster.create("t", [1, 2, 3])
        epochs = {broker.id: broker.epoch for broker in cluster.image.brokers.values()}
        cluster.world.node("c").kill()
        await asyncio.sleep(5)
        await cluster.start("c")
        await asyncio.sleep(5)
        assert {b.id: b.epoch for b in cluster.image.brokers.values() if not b.fenced} == epochs, (
            "nobody had to come anew"
        )
        assert cluster.leader("t") == 1
        assert (await cluster.create("u", [2])).topics[0].error_code == 0

    apart(main)


def test_a_broker_that_was_unregistered_by_mistake_is_in_sync_again_though_nobody_writes() -> None:
    """It goes on in the same session, in which it has nothing new to say but its broker epoch."""

    async def main(cluster: Apart) -> None:
        assert (await cluster.create("t", [1, 2, 3])).topics[0].error_code == 0
        await asyncio.sleep(2)
        answer = await cluster.ask("b1", ApiKey.UNREGISTER_BROKER, m.UnregisterBrokerRequest(broker_id=3))
        assert answer.error_code == 0

        def is_in_sync(image: Image) -> bool:
            topic = image.topic_named("t")
            return topic is not None and set(topic.partitions[0].isr) == {1, 2, 3}

        await cluster.until(lambda image: not is_in_sync(image))
        await cluster.until(is_in_sync, 5)

    apart(main)


def test_requests_wait_for_a_controller_to_come_back() -> None:
    async def main(cluster: Apart) -> None:
        await cluster.world.node("c").stop()
        asking = asyncio.create_task(cluster.create("t", [1, 2]))
        await asyncio.sleep(3)
        assert not asking.done()
        await cluster.start("c")
        assert (await asking).topics[0].error_code == 0

    apart(main)


def test_requests_that_find_no_controller_in_time_say_so() -> None:
    async def main(cluster: Apart) -> None:
        await cluster.world.node("c").stop()
        answer = await cluster.create("t", [1, 2])
        assert answer.topics[0].error_code == Err.REQUEST_TIMED_OUT
        await cluster.start("c")

    apart(main, request_timeout_ms="2000")


@pytest.mark.parametrize(
    ("options", "words"),
    [({"node_id": "1"}, "belongs to node")],
)
def test_a_node_that_is_not_who_it_says_is_refused(options: dict[str, str], words: str) -> None:
    async def main(cluster: Apart) -> None:
        await cluster.world.node("b2").stop()
        with pytest.raises(StartupError, match=words):
            await cluster.start("b2", **options)

    apart(main)


def test_a_second_broker_with_the_same_id_gives_up_and_the_first_serves_on() -> None:
    async def main(cluster: Apart) -> None:
        dice = cluster.world.dice("twin")
        format_folders(
            cluster.world.node("b9").disk, Layout(1, ["/data"], "/data", ()), uuid=lambda: new_uuid(dice), now_ms=0,
            cluster_id=cluster.cluster_id, voters=[],
        )  # fmt: skip
        with pytest.raises(StartupError, match="another broker with this id is running"):
            await cluster.start("b9", node_id="1")
        assert not cluster.image.brokers[1].fenced
        assert (await cluster.create("t", [1])).topics[0].error_code == 0

    apart(main)


def test_a_broker_that_waited_long_for_a_controller_waits_for_its_last_life_to_end() -> None:
    """A new controller takes all brokers for alive at first: also the last incarnation of one that starts."""

    async def main(cluster: Apart) -> None:
        was = cluster.image.brokers[1].epoch
        cluster.world.node("c").kill()
        cluster.world.node("b1").kill()
        starting = asyncio.ensure_future(cluster.start("b1"))
        await asyncio.sleep(120)
        assert not starting.done(), "nobody is there to register with"
        await cluster.start("c")
        await starting
        await cluster.until(lambda image: image.brokers[1].epoch > was and not image.brokers[1].fenced)

    apart(main)
