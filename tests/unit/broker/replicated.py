"""Several brokers on simulated machines, told by the test itself who leads what: replication without a quorum.

`Dictator` stands for the controller: it answers AlterPartition as the real one would, and passes the metadata on to
every broker that it does not keep in the dark.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping
from types import SimpleNamespace
from typing import Any

from headrace.broker.cluster.opening import Opened
from headrace.broker.replicas.partition import Partition
from headrace.broker.server import Broker
from headrace.client.errors import err_of
from headrace.config import BrokerConfig
from headrace.errors import Err
from headrace.metadata.delta import Delta
from headrace.metadata.image import EMPTY, TOPIC_CONFIG, Image, Partition as Assignment
from headrace.protocol import messages as m
from headrace.protocol.api import ApiKey
from headrace.testing.simulator.world import Node, SimRuntime, Stop, World
from tests.unit.broker.sim import Wire, records

PORT = 9092
DATA = "/data"
CLUSTER_ID = "AAAAAAAAAAAAAAAAAAAAAA"
TOPIC_ID = b"topic-id-of-a-t."
T = "t"


class Dictator:
    """The metadata, and who has heard of it."""

    def __init__(self) -> None:
        self.image: Image = EMPTY
        self.brokers: dict[int, Broker] = {}
        self.nodes: dict[int, Node] = {}
        self.seen: dict[int, Image] = {}
        self.in_the_dark: set[int] = set()
        """Brokers that hear nothing of what is decided."""
        self.refuse: Err | None = None
        """What AlterPartition is answered with."""
        self.alterations: list[tuple[int, ...]] = []
        self.silent = False
        """AlterPartition is not answered at all, although it is done."""

    def decide(self, *messages: Any) -> None:
        delta = Delta(self.image)
        for message in messages:
            delta.replay(message)
        self.image = delta.apply(self.image.offset + 1, 1, 0)
        self._tell(delta)

    def _tell(self, delta: Delta) -> None:
        for node_id, broker in list(self.brokers.items()):
            if node_id not in self.in_the_dark:
                self.enlighten(node_id, broker, delta)

    def enlighten(self, node_id: int, broker: Broker, delta: Delta | None = None) -> None:
        """Bring a broker up to date."""
        if delta is None or delta.image is not self.seen[node_id]:
            delta = difference(self.seen[node_id], self.image)
        self.seen[node_id] = self.image
        broker.metadata.image = self.image
        process = self.nodes[node_id].process
        assert process is not None
        # Inside the broker's process: what it starts has its place in the network.
        process.context.copy().run(broker.publisher.publish, delta, self.image)

    def register(self, node_id: int, host: str, epoch: int) -> None:
        R = m.RegisterBrokerRecord
        self.decide(
            R(
                broker_id=node_id, broker_epoch=epoch, incarnation_id=bytes([node_id] * 16),
                end_points=[R.BrokerEndpoint(name="PLAINTEXT", host=host, port=PORT)], fenced=False,
                rack=f"rack-{node_id}",
            )
        )  # fmt: skip

    def fence(self, node_id: int) -> None:
        self.decide(m.FenceBrokerRecord(id=node_id, epoch=self.image.brokers[node_id].epoch))

    def create(self, replicas: list[int], partitions: int = 1, isr: list[int] | None = None, **configs: str) -> None:
        self.decide(
            *settings(configs),
            m.TopicRecord(name=T, topic_id=TOPIC_ID),
            *(
                m.PartitionRecord(
                    partition_id=index, topic_id=TOPIC_ID, replicas=replicas, isr=isr or replicas, leader=replicas[0],
                    leader_epoch=0, partition_epoch=0,
                )
                for index in range(partitions)
            ),
        )  # fmt: skip

    def configure(self, **configs: str) -> None:
        self.decide(*settings(configs))

    def change(self, index: int = 0, **fields: Any) -> None:
        """leader=, isr=, replicas=, ..."""
        self.decide(m.PartitionChangeRecord(topic_id=TOPIC_ID, partition_id=index, **fields))

    def assigned(self, index: int = 0) -> Assignment:
        return self.image.topics[TOPIC_ID].partitions[index]

    async def request(self, caller: int, key: ApiKey, body: Any, **_: Any) -> Any:
        await asyncio.sleep(0.002)
        if key is ApiKey.ASSIGN_REPLICAS_TO_DIRS:
            return m.AssignReplicasToDirsResponse()
        assert key is ApiKey.ALTER_PARTITION, key
        R = m.AlterPartitionResponse
        answer = R()
        for topic in body.topics:
            rows = [self._alter(caller, topic.topic_id, row) for row in topic.partitions]
            answer.topics.append(R.TopicData(topic_id=topic.topic_id, partitions=rows))
        while self.silent:
            await asyncio.sleep(0.1)
        return answer

    def _alter(self, caller: int, topic_id: bytes, asked: Any) -> Any:
        R = m.AlterPartitionResponse
        row = R.PartitionData(partition_index=asked.partition_index)
        if topic_id not in self.image.topics:
            row.error_code = Err.UNKNOWN_TOPIC_ID  # deleted meanwhile
            return row
        now = self.image.topics[topic_id].partitions[asked.partition_index]
        isr = tuple(state.broker_id for state in asked.new_isr_with_epochs)
        if self.refuse is not None:
            row.error_code = self.refuse
        elif now.leader != caller or now.leader_epoch != asked.leader_epoch:
            row.error_code = Err.FENCED_LEADER_EPOCH
        elif now.partition_epoch != asked.partition_epoch:
            row.error_code = Err.INVALID_UPDATE_VERSION
        elif any(self._may_not(state) for state in asked.new_isr_with_epochs):
            row.error_code = Err.INELIGIBLE_REPLICA
        else:
            self.alterations.append(isr)
            self.decide(m.PartitionChangeRecord(topic_id=topic_id, partition_id=asked.partition_index, isr=list(isr)))
            now = self.image.topics[topic_id].partitions[asked.partition_index]
            row.leader_id, row.leader_epoch, row.isr = now.leader, now.leader_epoch, list(now.isr)
            row.partition_epoch = now.partition_epoch
        return row

    def _may_not(self, state: Any) -> bool:
        broker = self.image.brokers.get(state.broker_id)
        return broker is None or broker.fenced or state.broker_epoch not in (-1, broker.epoch)


def settings(configs: Mapping[str, str]) -> list[m.ConfigRecord]:
    return [
        m.ConfigRecord(resource_type=TOPIC_CONFIG, resource_name=T, name=name.replace("_", "."), value=value)
        for name, value in configs.items()
    ]


def difference(old: Image, new: Image) -> Delta:
    """What a broker that was away replays: everything between two images, as far as the tests change it."""
    delta = Delta(old)
    R = m.RegisterBrokerRecord
    for broker in new.brokers.values():
        if old.brokers.get(broker.id) != broker:
            delta.replay(
                R(
                    broker_id=broker.id, broker_epoch=broker.epoch, incarnation_id=broker.incarnation_id,
                    end_points=[R.BrokerEndpoint(name=e.name, host=e.host, port=e.port) for e in broker.endpoints],
                    fenced=broker.fenced, rack=broker.rack,
                )
            )  # fmt: skip
    for topic in new.topics.values():
        known = old.topics.get(topic.id)
        if known is None:
            delta.replay(m.TopicRecord(name=topic.name, topic_id=topic.id))
        for index, p in topic.partitions.items():
            if known is None or known.partitions.get(index) != p:
                delta.replay(
                    m.PartitionRecord(
                        partition_id=index, topic_id=topic.id, replicas=list(p.replicas), isr=list(p.isr),
                        leader=p.leader, leader_epoch=p.leader_epoch, partition_epoch=p.partition_epoch,
                    )
                )  # fmt: skip
    for name, value in new.config(TOPIC_CONFIG, T).items():
        if old.config(TOPIC_CONFIG, T).get(name) != value:
            delta.replay(m.ConfigRecord(resource_type=TOPIC_CONFIG, resource_name=T, name=name, value=value))
    for topic in old.topics.values():
        if topic.id not in new.topics:
            delta.replay(m.RemoveTopicRecord(topic_id=topic.id))
    return delta


def no_quorum(node_id: int) -> Any:
    """In place of what a node has of the metadata: the dictator tells it."""
    return SimpleNamespace(
        node_id=node_id, kraft_version=1, is_active=False, is_starved=False, hears_changes=True, on_failure=None,
        listen=lambda listener: None, on_leadership=lambda listener: None, on_departure=lambda listener: None,
        on_request=lambda listener: None, give_way=lambda: False,
        changed=lambda *_: None,
    )  # fmt: skip


class Brokers:
    """The machines b1, b2, ... and the brokers on them."""

    def __init__(self, world: World, size: int, options: dict[str, str]) -> None:
        self.world = world
        self.options = options
        self.dictator = Dictator()
        self.ids = list(range(1, size + 1))
        self._epoch = 0

    def node(self, node_id: int) -> Node:
        return self.world.node(f"b{node_id}")

    def broker(self, node_id: int) -> Broker:
        return self.dictator.brokers[node_id]

    def partition(self, node_id: int, index: int = 0) -> Partition:
        return self.broker(node_id).replicas.by_name[T][index]

    async def start(self, node_id: int) -> None:
        """Start a machine; it registers, and takes up what the metadata says."""

        async def start(runtime: SimRuntime) -> Stop:
            settings = {
                "node.id": str(node_id), "log.dirs": DATA, "listeners": f"PLAINTEXT://b{node_id}:{PORT}",
                "broker.rack": f"rack-{node_id}", **self.options,
            }  # fmt: skip
            broker = Broker(BrokerConfig.load({}, {}, settings), runtime)
            await self._start(broker, node_id)

            async def stop() -> None:
                self.dictator.brokers.pop(node_id)
                broker.replica_manager.close()
                for listener in broker.listeners:
                    await listener.stop()
                while not broker.syncer.idle:
                    await asyncio.sleep(0.001)
                broker.logs.close(
                    clean=True,
                    broker_epoch=broker.registration.broker_epoch,
                    high_watermarks=broker.replicas.high_watermarks(),
                )

            return stop

        self.dictator.brokers.pop(node_id, None)
        await self.node(node_id).start(start)

    async def _start(self, broker: Broker, node_id: int) -> None:
        dictator = self.dictator
        for listener in broker.listeners:
            await listener.bind()
        self._epoch += 1
        dictator.register(node_id, f"b{node_id}", self._epoch)
        broker.registration.broker_epoch = self._epoch
        broker.metadata.image = dictator.image
        broker.logs.cluster_id = CLUSTER_ID
        broker.logs.open()
        for _ in broker.logs.load(broker.runtime.clock.wall_ms()):
            pass
        broker._build(Opened(CLUSTER_ID, no_quorum(node_id), no_quorum(node_id)))

        async def request(key: ApiKey, body: Any, **more: Any) -> Any:
            return await dictator.request(node_id, key, body, **more)

        broker.channel.request = request  # type: ignore[method-assign]
        dictator.brokers[node_id] = broker
        dictator.nodes[node_id] = self.node(node_id)
        dictator.seen[node_id] = dictator.image
        broker.publisher.follow()
        broker.replica_manager.lead_all(dictator.image)
        await broker._serve(broker._parts())

    def kill(self, node_id: int) -> None:
        self.dictator.brokers.pop(node_id, None)
        self.node(node_id).kill()

    # ---- what tests ask

    async def wire(self, node_id: int) -> Wire:
        return Wire(*await asyncio.open_connection(f"b{node_id}", PORT))

    async def produce(
        self, node_id: int, count: int = 1, *, acks: int = -1, index: int = 0, timeout_ms: int = 5000
    ) -> str:
        """The name of the error."""
        wire = await self.wire(node_id)
        row = {"index": index, "records": records(count)}
        answer = await wire.ask(
            "Produce", 13,
            {"acks": acks, "timeout_ms": timeout_ms, "topic_data": [{"topic_id": TOPIC_ID, "partition_data": [row]}]},
        )  # fmt: skip
        wire.close()
        return err_of(answer.responses[0].partition_responses[0].error_code).name

    async def until(self, condition: Callable[[], bool], what: str = "", timeout_s: float = 30.0) -> None:
        deadline = self.world.loop.time() + timeout_s
        while not condition():
            assert self.world.loop.time() < deadline, what or "it never came true"
            await asyncio.sleep(0.005)

    async def in_step(self, node_ids: Iterable[int], index: int = 0) -> None:
        """Wait until these replicas have the same log, and compare them byte by byte."""
        ids = list(node_ids)

        def same() -> bool:
            replicas = [self.partition(node_id, index) for node_id in ids]
            return all(r.countable_end == replicas[0].log.end_offset for r in replicas) and (
                len({contents(r) for r in replicas}) == 1
            )

        await self.until(same, f"{ids} differ")

    def ends(self, index: int = 0) -> dict[int, tuple[int, int]]:
        """(high watermark, end offset) by broker."""
        return {
            node_id: (p.high_watermark, p.log.end_offset)
            for node_id, broker in self.dictator.brokers.items()
            if (p := broker.replicas.by_name.get(T, {}).get(index)) is not None
        }


def contents(partition: Partition) -> bytes:
    """The whole log, as its files have it."""
    segments = [segment for segment in partition.log.segments if segment.size]
    return b"".join(segment.handle.open().read(segment.size, 0) for segment in segments)


def run(
    scenario: Callable[[Brokers], Coroutine[Any, Any, None]],
    size: int = 3,
    *,
    seed: int = 1,
    timeout_s: float = 600,
    **options: str,
) -> None:
    """Start the brokers and play."""

    async def play(world: World) -> None:
        brokers = Brokers(world, size, {name.replace("_", "."): value for name, value in options.items()})
        for node_id in brokers.ids:
            await brokers.start(node_id)
        await scenario(brokers)
        for node_id in brokers.ids:
            broker = brokers.dictator.brokers.get(node_id)
            assert broker is None or broker.tasks.failure is None, broker.tasks.failure

    with World(seed, timer_jitter_s=0) as world:
        world.run(play(world), timeout_s=timeout_s)
