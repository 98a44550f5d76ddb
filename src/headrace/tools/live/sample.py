"""One look at a cluster, within a time limit: what does not answer is left out rather than waited for."""

import asyncio
import time

import msgspec

from headrace.client.admin.admin import LATEST, Admin
from headrace.client.admin.groups import Groups
from headrace.client.admin.operations import Operations
from headrace.client.errors import ClientError
from headrace.protocol import messages as m
from headrace.protocol.api import ApiKey

ANSWER_S = 2.0
"""A broker that takes longer is shown as not answering."""
GROUPS_AT_ONCE = 16

Place = tuple[str, int]


class BrokerSample(msgspec.Struct):
    node_id: int
    address: str
    rack: str | None
    is_up: bool
    answer_ms: float | None = None
    """Of one small request; None: no answer in time."""
    size_bytes: int | None = None


class PartitionSample(msgspec.Struct):
    leader: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    end_offset: int | None = None
    size_bytes: int = 0
    """Of the largest replica that is known."""


class GroupSample(msgspec.Struct):
    group: str
    state: str
    committed: dict[Place, int]
    lag: int = 0
    seconds: float | None = 0.0
    """The age of the oldest record that is not consumed; None when that is not known."""


class Sample(msgspec.Struct):
    """What was seen. `at` is on the monotonic clock."""

    at: float
    cluster_id: str
    controller: int
    brokers: dict[int, BrokerSample]
    partitions: dict[Place, PartitionSample]
    groups: dict[str, GroupSample]


class Sampler:
    """Looks again and again, on one set of connections."""

    def __init__(self, admin: Admin, *, internal: bool = False) -> None:
        self._admin = admin
        self._internal = internal

    async def look(self) -> Sample:
        """Raises ClientError when no broker answers at all."""
        cluster = await self._admin.describe_cluster()
        listed = await Operations(self._admin).brokers()
        brokers = {one.node_id: BrokerSample(one.node_id, one.address, one.rack, not one.is_fenced) for one in listed}
        topics = await self._admin.list_topics(include_internal=self._internal)
        partitions = {
            (topic.name, index): PartitionSample(part.leader, part.replicas, part.isr)
            for topic in topics
            for index, part in topic.partitions.items()
        }
        at = time.monotonic()
        await asyncio.gather(
            self._ends(partitions), *(self._answer(one) for one in brokers.values() if one.is_up),
            self._sizes(brokers, partitions),
        )  # fmt: skip
        groups = await self._groups()
        return Sample(at, cluster.cluster_id or "", cluster.controller_id, brokers, partitions, groups)

    async def _ends(self, partitions: dict[Place, PartitionSample]) -> None:
        try:
            async with asyncio.timeout(2 * ANSWER_S):
                for at, offset in (await self._admin.offsets_of(list(partitions), LATEST)).items():
                    partitions[at].end_offset = offset
        except (TimeoutError, ClientError):
            return

    async def _answer(self, broker: BrokerSample) -> None:
        try:
            async with asyncio.timeout(ANSWER_S):
                connection = await self._admin.cluster.broker_connection(broker.node_id)
                begin = time.perf_counter()
                await connection.request(ApiKey.METADATA, m.MetadataRequest(topics=[]), timeout_s=ANSWER_S)
                broker.answer_ms = (time.perf_counter() - begin) * 1000
        except (TimeoutError, ClientError):
            return

    async def _sizes(self, brokers: dict[int, BrokerSample], partitions: dict[Place, PartitionSample]) -> None:
        up = [one.node_id for one in brokers.values() if one.is_up]
        for log_dir in await Operations(self._admin).log_dirs(up, ANSWER_S):
            broker = brokers[log_dir.node_id]
            broker.size_bytes = (broker.size_bytes or 0) + sum(one.size_bytes for one in log_dir.replicas)
            for replica in log_dir.replicas:
                found = partitions.get((replica.topic, replica.partition))
                if found is not None:
                    found.size_bytes = max(found.size_bytes, replica.size_bytes)

    async def _groups(self) -> dict[str, GroupSample]:
        groups = Groups(self._admin)
        gate = asyncio.Semaphore(GROUPS_AT_ONCE)
        now_ms = time.time_ns() // 1_000_000

        async def one(name: str, state: str) -> GroupSample | None:
            try:
                async with gate, asyncio.timeout(ANSWER_S):
                    rows = await groups.lag(name, now_ms=now_ms)
            except (TimeoutError, ClientError):
                return None
            ages = [row.seconds for row in rows if row.records]
            return GroupSample(
                name,
                state,
                {(row.topic, row.partition): row.committed for row in rows if row.committed is not None},
                sum(row.records or 0 for row in rows),
                None if None in ages else max((age for age in ages if age is not None), default=0.0),
            )

        try:
            async with asyncio.timeout(2 * ANSWER_S):
                listed = await groups.list_groups()
                found = await asyncio.gather(*(one(each.group_id, each.state) for each in listed))
        except (TimeoutError, ClientError):
            return {}
        return {each.group: each for each in found if each is not None}
