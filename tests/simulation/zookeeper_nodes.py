"""Several quorums upon a model of ZooKeeper, with faults: who decides, what was acknowledged, and whether it holds."""

import asyncio
import json
from collections.abc import Sequence
from functools import partial
from random import Random
from typing import Any

from headrace.errors import KafkaError
from headrace.metadata import isr
from headrace.metadata.delta import Delta
from headrace.metadata.image import UNASSIGNED_DIRECTORY, Image
from headrace.metadata.outcome import Outcome
from headrace.metadata.policy import ElectionPolicy
from headrace.metadata.records import Record
from headrace.protocol import messages as m
from headrace.protocol.api import ApiKey
from headrace.quorum import Address, PeerError
from headrace.quorum.folder import Identity
from headrace.quorum.zookeeper import paths
from headrace.quorum.zookeeper.operations import Check, Create, Delete, Operation, Set
from headrace.quorum.zookeeper.quorum import ZooKeeperQuorum
from headrace.testing.simulator.loop import SimLoop
from headrace.testing.simulator.zookeeper import ModelSession, ZooKeeperModel
from tests.unit.quorum.zookeeper.world import new_model, read_image

NODES = 3
BROKERS = (1, 2, 3)
POLICY = ElectionPolicy(node_id=1, unclean_leader_election=False, min_insync_replicas=1)
SESSION_S = 6.0


class SilentNetwork:
    """Nobody answers: only sessions tell who is there."""

    async def request(
        self,
        address: Address,
        key: ApiKey,
        body: Any,
        *,
        timeout_s: float,
        lane: str = "control",
        version_max: int | None = None,
    ) -> Any:
        await asyncio.sleep(timeout_s)
        raise PeerError("silence")

    def drop(self, address: Address, lane: str = "control") -> None: ...


class LoopClock:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def wall_ms(self) -> int:
        return int(self._loop.time() * 1000)

    def monotonic_ms(self) -> int:
        return int(self._loop.time() * 1000)


class Member:
    """One node: its session, its quorum, what it has seen."""

    def __init__(self, model: ZooKeeperModel, node_id: int) -> None:
        self.session: ModelSession = model.session()
        self.quorum = ZooKeeperQuorum(
            self.session, Identity("cluster", node_id, {"/data": bytes([node_id]) * 16}), ("node", node_id),
            LoopClock(model.loop), SilentNetwork(), session_timeout_ms=6_000, min_insync_replicas=1,
        )  # fmt: skip
        self.offsets: list[int] = []
        self.failure: Exception | None = None
        self.quorum.on_failure = self._failed
        self.quorum.listen(self._heard)

    def _failed(self, error: Exception) -> None:
        self.failure = error

    def _heard(self, delta: Delta, image: Image) -> None:
        self.offsets.append(image.offset)


class World:
    """A seed's history: `run` it, then ask the checks."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.loop = SimLoop(Random(seed))
        self.model = new_model(seed, self.loop)
        self.members = [Member(self.model, node_id) for node_id in range(1, NODES + 1)]
        self.acknowledged: list[bytes] = []
        self.shrunk = 0
        self._count = 0

    def run(self, for_s: float) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_until_complete(self._life(for_s))
        finally:
            asyncio.set_event_loop(None)
            self.loop.close()

    async def _life(self, for_s: float) -> None:
        starts = [asyncio.ensure_future(member.quorum.start()) for member in self.members]
        end = self.loop.time() + for_s
        writers = [asyncio.ensure_future(self._write(member, end)) for member in self.members]
        writers += [asyncio.ensure_future(self._lead(member, end)) for member in self.members]
        while self.loop.time() < end:
            await asyncio.sleep(self.random.random() * 4)
            self._disturb()
        for member in self.members:
            member.session.heal()
        await asyncio.gather(*writers)
        await asyncio.sleep(30)
        try:
            self.check()
        finally:
            for one in starts:
                one.cancel()
            for member in self.members:
                await member.quorum.close()

    def _disturb(self) -> None:
        """A connection breaks for shorter or longer than a session lasts, or a session ends while its client sleeps."""
        member = self.random.choice(self.members)
        session, session_id = member.session, member.session.id
        away_s = self.random.random() * 2 * SESSION_S
        if self.random.random() < 0.25 and paths.CONTROLLER in self.model.nodes:
            # By hand, as people do to have another controller: the old one lives, and hears of it only after a while.
            for one in self.members:
                one.session.late_s = 0.2 if one.quorum.is_active else 0.0
            self.model.multi(0, [Delete(paths.CONTROLLER)])
            return
        if self.random.random() < 0.3:
            # Expired without its knowing: it goes on talking for a while.
            self.model.expire(session_id)
            self.loop.call_later(self.random.random(), session.cut)
            away_s += 1.0  # healed after that
        else:
            session.cut()
            if away_s > SESSION_S:
                self.loop.call_later(SESSION_S, self.model.expire, session_id)
        self.loop.call_later(away_s, session.heal)

    async def _write(self, member: Member, end: float) -> None:
        while self.loop.time() < end:
            await asyncio.sleep(self.random.random() * 0.1)
            if not member.quorum.is_active:
                continue
            records = self._decide(member.quorum.tip)
            try:
                async with asyncio.timeout(20):
                    await member.quorum.append(records)
            except (KafkaError, TimeoutError):
                continue
            for record, _ in records:
                if isinstance(record, m.TopicRecord):
                    self.acknowledged.append(record.topic_id)

    async def _lead(self, member: Member, end: float) -> None:
        """A broker that, by what it knows, leads something has its ISR shrunk to itself. What it asks is on its way for
        so long that another may lead by then."""
        while self.loop.time() < end:
            await asyncio.sleep(self.random.random() * 0.5)
            request = shrink(member.quorum.image, member.quorum.node_id, self.random)
            await asyncio.sleep(self.random.random() * 2)
            controller = next((one.quorum for one in self.members if one.quorum.is_active), None)
            if request is None or controller is None:
                continue
            try:
                async with asyncio.timeout(20):
                    await controller.write(partial(self._alter_partition, request))
            except (KafkaError, TimeoutError):
                continue

    def _alter_partition(self, request: m.AlterPartitionRequest, image: Image) -> Outcome[Any]:
        outcome = isr.alter_partition(image, request, 3, POLICY)
        self.shrunk += len(outcome.records)
        return outcome

    def _decide(self, image: Image) -> list[Record]:
        topics = sorted(image.topics)
        if topics and self.random.random() < 0.6:
            leader = self.random.choice(BROKERS)
            change = m.PartitionChangeRecord(
                topic_id=self.random.choice(topics), partition_id=0, isr=list(BROKERS), leader=leader
            )
            return [(change, 2)]
        registered = [] if image.brokers else [registration(broker_id) for broker_id in BROKERS]
        self._count += 1
        topic_id = self._count.to_bytes(16, "big")
        return [
            *registered,
            (m.TopicRecord(name=f"topic-{self._count}", topic_id=topic_id), 0),
            (m.PartitionRecord(topic_id=topic_id, partition_id=0, replicas=list(BROKERS), isr=list(BROKERS), leader=1,
                               leader_epoch=0, partition_epoch=0, directories=[UNASSIGNED_DIRECTORY] * 3), 2),
        ]  # fmt: skip

    # ---- checks

    def check(self) -> None:
        stored = read_image(self.model)
        for member in self.members:
            assert member.failure is None, member.failure
            assert member.offsets == sorted(member.offsets), "metadata went back"
            assert member.quorum.image.same_content(stored), "a node knows something else than ZooKeeper"
        lost = [topic_id.hex() for topic_id in self.acknowledged if topic_id not in stored.topics]
        assert not lost, f"acknowledged and lost: {lost}"
        assert sum(member.quorum.is_active for member in self.members) == 1, "not exactly one controller"
        check_epochs(self.model)
        check_isrs(self.model)


def registration(broker_id: int) -> Record:
    return m.RegisterBrokerRecord(broker_id=broker_id, incarnation_id=bytes([broker_id]) * 16, fenced=False), 3


def shrink(image: Image, leader: int, random: Random) -> m.AlterPartitionRequest | None:
    """As a leader that has lost its followers asks for it."""
    led = [topic for _, topic in sorted(image.topics.items()) if topic.partitions[0].leader == leader]
    if not led:
        return None
    topic, kind = random.choice(led), m.AlterPartitionRequest
    partition = kind.PartitionData(
        leader_epoch=topic.partitions[0].leader_epoch,
        partition_epoch=topic.partitions[0].partition_epoch,
        new_isr_with_epochs=[kind.BrokerState(broker_id=leader)],
    )
    topics = [kind.TopicData(topic_id=topic.id, partitions=[partition])]
    return kind(broker_id=leader, broker_epoch=image.brokers[leader].epoch, topics=topics)


def check_isrs(model: ZooKeeperModel) -> None:
    """Only who leads a partition takes others out of its ISR: whoever was deposed would go on alone with them gone."""
    states: dict[str, Any] = {}
    for _, operations in model.history:
        for operation in operations:
            if isinstance(operation, Create | Set) and operation.path.endswith("/state"):
                before, after = states.get(operation.path), json.loads(operation.data)
                states[operation.path] = after
                if before is not None and len(after["isr"]) < len(before["isr"]):
                    (left,) = after["isr"]
                    assert left == before["leader"], f"{left} had the ISR of {operation.path} shrunk, {before} was so"


def check_epochs(model: ZooKeeperModel) -> None:
    """Once a controller was elected, nothing is written in the name of an earlier one."""
    epoch, writer = 0, 0
    for session_id, operations in model.history:
        for operation in operations:
            if isinstance(operation, Set) and operation.path == paths.CONTROLLER_EPOCH:
                epoch, writer = int(operation.data), session_id
            elif isinstance(operation, Set) and operation.path == paths.METADATA:
                assert session_id == writer, f"session {session_id} wrote in epoch {epoch} of session {writer}"


def without_epoch_check(operations: Sequence[Operation]) -> list[Operation]:
    """The fault of a controller that trusts its own knowledge of who is the controller."""
    return [op for op in operations if not (isinstance(op, Check) and op.path == paths.CONTROLLER_EPOCH)]
