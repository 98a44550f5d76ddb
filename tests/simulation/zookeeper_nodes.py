"""Several quorums upon a model of ZooKeeper, with faults: who decides, what was acknowledged, and whether it holds."""

import asyncio
from random import Random
from typing import Any

from headrace.errors import KafkaError
from headrace.metadata.delta import Delta
from headrace.metadata.image import Image
from headrace.metadata.records import Record
from headrace.protocol import messages as m
from headrace.protocol.api import ApiKey
from headrace.quorum import Address, PeerError
from headrace.quorum.folder import Identity
from headrace.quorum.zookeeper import paths
from headrace.quorum.zookeeper.operations import Check, Set
from headrace.quorum.zookeeper.quorum import ZooKeeperQuorum
from headrace.testing.simulator.loop import SimLoop
from headrace.testing.simulator.zookeeper import ModelSession, ZooKeeperModel
from tests.unit.quorum.zookeeper.world import new_model, read_image

NODES = 3
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
        if self.random.random() < 0.3:
            # Expired without its knowing: it goes on talking for a while.
            self.model.expire(session_id)
            self.loop.call_later(self.random.random(), session.cut)
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

    def _decide(self, image: Image) -> list[Record]:
        topics = sorted(image.topics)
        if topics and self.random.random() < 0.6:
            isr = [1, 2] if self.random.random() < 0.5 else [1]
            change = m.PartitionChangeRecord(topic_id=self.random.choice(topics), partition_id=0, isr=isr)
            return [(change, 2)]
        self._count += 1
        topic_id = self._count.to_bytes(16, "big")
        return [
            (m.TopicRecord(name=f"topic-{self._count}", topic_id=topic_id), 0),
            (m.PartitionRecord(topic_id=topic_id, partition_id=0, replicas=[1, 2], isr=[1, 2], leader=1, leader_epoch=0,
                               partition_epoch=0, directories=[bytes(15) + b"\x01"] * 2), 2),
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
        self._check_epochs()

    def _check_epochs(self) -> None:
        """Once a controller was elected, nothing is written in the name of an earlier one."""
        epoch, writer = 0, 0
        for session_id, operations in self.model.history:
            for operation in operations:
                if isinstance(operation, Set) and operation.path == paths.CONTROLLER_EPOCH:
                    epoch, writer = int(operation.data), session_id
                elif isinstance(operation, Set) and operation.path == paths.METADATA:
                    assert session_id == writer, f"session {session_id} wrote in epoch {epoch} of session {writer}"
                    assert any(isinstance(o, Check) and o.path == paths.CONTROLLER_EPOCH for o in operations)
