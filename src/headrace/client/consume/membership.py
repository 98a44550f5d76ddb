"""What a consumer needs of its place in a group, whichever protocol the group speaks.

`wanted` is what the group wants this member to have; its owner gives up and takes partitions until it has just that,
and says `owns(...)` after every step. The talk with the coordinator goes on by itself meanwhile.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field

from headrace.client.admin.groups import TopicPartition
from headrace.client.consume.offsets import GroupOffsets, Identity, is_transient
from headrace.client.errors import ClientError, RequestFailed
from headrace.client.net.cluster import BACKOFF_S_MAX, BACKOFF_S_MIN, Cluster, topic_from
from headrace.client.net.connection import Connection

LEAVE_LIMIT_S = 5.0


@dataclass
class Subscription:
    """What a member joins a group with."""

    cluster: Cluster
    line: Cluster
    """Connections of their own: a fetch that waits for records would hold back heartbeats and commits."""
    group: str
    on_change: Callable[[], None]
    topics: list[str] = field(default_factory=list)
    pattern: str | None = None
    instance_id: str | None = None
    rack: str | None = None
    max_poll_interval_ms: int = 300_000
    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 3_000
    metadata_max_age_s: float = 300.0


class Membership:
    """`start`, then `wanted` changes by itself; say `owns(...)` after every change of what is really held."""

    def __init__(self, subscription: Subscription) -> None:
        self.subscription = subscription
        self.cluster = subscription.cluster
        self.group_id = subscription.group
        self.instance_id = subscription.instance_id
        self.member_id = ""
        self.wanted: frozenset[TopicPartition] = frozenset()
        self.topic_ids: dict[str, bytes] = {}
        """Of topics that were ever wanted, by name."""
        self.replaced: set[str] = set()
        """Topics that were deleted and made again: what is held of them is of the old one. Cleared by the owner."""
        self.expulsions = 0
        """How often the group has gone on without this member; nothing it held since may be committed."""
        self.progress: Callable[[], object] = lambda: None
        """Something that changes while the owner gets on between two polls."""
        self._offsets = GroupOffsets(
            subscription.line, subscription.group, identity=lambda: self.identity, on_stale=self._be_stale
        )
        self.commit = self._offsets.commit
        self.committed = self._offsets.committed
        self._alive_s = 0.0
        self._last_progress: object = None
        self._owned: frozenset[TopicPartition] = frozenset()
        self._on_change = subscription.on_change
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def identity(self) -> Identity:
        """As whom this member commits."""
        raise NotImplementedError

    @property
    def failure(self) -> ClientError | None:
        """Why there will be no more heartbeats."""
        return self._offsets.failure

    @failure.setter
    def failure(self, error: ClientError) -> None:
        self._offsets.failure = error

    def start(self) -> None:
        """Join, and stay in the group until `leave`."""
        assert self._task is None
        self.is_alive()
        self._task = asyncio.create_task(self._run(), name=f"member of {self.group_id}")

    def is_alive(self) -> None:
        """Said by the owner at every poll: one that has hung must not keep its partitions by mere heartbeats."""
        self._alive_s = asyncio.get_running_loop().time()

    def owns(self, partitions: Iterable[TopicPartition]) -> None:
        """What is held from now on."""
        raise NotImplementedError

    async def leave(self) -> None:
        """Give everything up. A group that cannot be reached notices by itself, after its session timeout."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        if self.failure is None:
            await self._leave()

    async def _tell_that_it_leaves(self, ask: Callable[[Connection], Awaitable[object]]) -> None:
        """Wherever the coordinator is now: one that has moved would keep this member's partitions from the others."""
        pause_s = BACKOFF_S_MIN
        try:
            async with asyncio.timeout(LEAVE_LIMIT_S):
                while not await self._has_told(ask):
                    await asyncio.sleep(pause_s)
                    pause_s = min(2 * pause_s, BACKOFF_S_MAX)
        except TimeoutError:
            return

    async def _has_told(self, ask: Callable[[Connection], Awaitable[object]]) -> bool:
        """False if it is worth another try."""
        try:
            await self._offsets.ask(ask)
        except ClientError as error:
            # A broker that has no others may be gone for long.
            is_alone = not isinstance(error, RequestFailed) and len(self._offsets.cluster.brokers) < 2
            return is_alone or not is_transient(error)
        return True

    async def _run(self) -> None:
        raise NotImplementedError

    async def _leave(self) -> None:
        raise NotImplementedError

    def _be_stale(self) -> None:
        """An answer says that the member's epoch is old: the next heartbeat brings the new one."""
        self._wake.set()

    def _has_hung(self, now: float) -> bool:
        progress = self.progress()
        if progress != self._last_progress:
            self._last_progress, self._alive_s = progress, now
        return now - self._alive_s > self.subscription.max_poll_interval_ms / 1000

    def _hangs_in_s(self, now: float) -> float:
        """When the owner has hung unless it says something before: looked at then, not at some later heartbeat."""
        return max(0.05, self._alive_s + self.subscription.max_poll_interval_ms / 1000 - now)

    def _be_expelled(self) -> None:
        self.wanted = self._owned = frozenset()
        self.expulsions += 1
        self._on_change()

    async def _find_topics(self) -> None:
        """Look at the topics of the subscription again; with a pattern, at all there are."""
        if self.subscription.pattern is None:
            await self.cluster.refresh(self.subscription.topics)
        else:
            await refresh_all(self.cluster)


async def refresh_all(cluster: Cluster) -> None:
    """Know every topic of the cluster."""
    answer = await cluster.metadata(None)
    found = {row.name or "": topic_from(row) for row in answer.topics if row.error_code == 0}
    cluster.topics.clear()
    cluster.topics.update(found)
    cluster.looks += 1


def matching(cluster: Cluster, pattern: str) -> list[str]:
    """Known topics whose whole name a pattern matches, without internal ones."""
    compiled = compile_pattern(pattern)
    return sorted(name for name, topic in cluster.topics.items() if not topic.is_internal and compiled.fullmatch(name))


def compile_pattern(pattern: str) -> re.Pattern[str]:
    """Raises ClientError for what is no regular expression."""
    try:
        return re.compile(pattern)
    except re.error as error:
        raise ClientError(f"pattern {pattern!r} is no regular expression: {error}") from None
