"""A consumer in a group: `poll` gives records of the partitions that the group has given to this member.

Partitions come and go inside `poll` alone: calling it again says that what it gave before is done with, so offsets
can be committed before another member takes over. Speaks KIP-848; the broker assigns.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from types import TracebackType
from typing import Self

from headrace.client.admin.groups import TopicPartition
from headrace.client.consume.fetcher import RESETS, ConsumedRecord, Fetcher, Place
from headrace.client.consume.member import EXPELLED, GroupMember
from headrace.client.errors import ClientError, RequestFailed
from headrace.client.net.address import DEFAULT_BOOTSTRAP
from headrace.client.net.cluster import Cluster
from headrace.client.security.channel import PLAINTEXT, Security

__all__ = ["ConsumedRecord", "GroupConsumer"]

Listener = Callable[[frozenset[TopicPartition]], Awaitable[None]]


async def _nothing(_: frozenset[TopicPartition]) -> None:
    return None


class GroupConsumer:
    """`async with GroupConsumer("127.0.0.1:9092", group="billing", topics=["orders"]) as consumer: await
    consumer.poll()`.

    With `auto_commit_ms`, what an earlier `poll` has given is committed in `poll` at that interval, before partitions
    are given up, and at the end; None leaves all of it to `commit`. `on_revoked` is called while the partitions are
    still this member's, `on_lost` when they already are not.
    """

    def __init__(
        self,
        bootstrap: str | Iterable[str] = DEFAULT_BOOTSTRAP,
        *,
        group: str,
        topics: Iterable[str],
        client_id: str = "headrace",
        security: Security = PLAINTEXT,
        auto_offset_reset: str = "latest",
        auto_commit_ms: int | None = 5_000,
        read_committed: bool = False,
        max_poll_interval_ms: int = 300_000,
        fetch_bytes_max: int = 1 << 20,
        fetch_max_wait_ms: int = 500,
        instance_id: str | None = None,
        rack_id: str | None = None,
        assignor: str | None = None,
        on_assigned: Listener = _nothing,
        on_revoked: Listener = _nothing,
        on_lost: Listener = _nothing,
    ) -> None:
        if auto_offset_reset not in (*RESETS, "none"):
            raise ClientError(f"auto_offset_reset {auto_offset_reset!r}: write earliest, latest or none")
        topics = [topics] if isinstance(topics, str) else list(topics)
        if not group or not topics:
            raise ClientError("a group consumer needs the name of a group and at least one topic")
        self.cluster = Cluster(bootstrap, client_id=client_id, security=security)
        self._news = asyncio.Event()
        self._member = GroupMember(
            self.cluster,
            group,
            topics,
            on_change=self._news.set,
            instance_id=instance_id,
            rack_id=rack_id,
            assignor=assignor,
            rebalance_timeout_ms=max_poll_interval_ms,
        )
        self._fetcher = Fetcher(
            self.cluster,
            self._news.set,
            reset=auto_offset_reset,
            read_committed=read_committed,
            fetch_bytes_max=fetch_bytes_max,
            max_wait_ms=fetch_max_wait_ms,
        )
        self._read_committed = read_committed
        self._auto_commit_s = None if auto_commit_ms is None else auto_commit_ms / 1000
        self._next_commit_s = 0.0
        self._committed: dict[TopicPartition, int] = {}
        self._expulsions = 0
        self._on_assigned, self._on_revoked, self._on_lost = on_assigned, on_revoked, on_lost

    async def __aenter__(self) -> Self:
        await self.cluster.__aenter__()
        await self.cluster.refresh(self._member.topics)
        self._next_commit_s = asyncio.get_running_loop().time() + (self._auto_commit_s or 0)
        self._member.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close(commit=kind is None)

    @property
    def member_id(self) -> str:
        return self._member.member_id

    @property
    def assignment(self) -> frozenset[TopicPartition]:
        """The partitions this member has now."""
        return frozenset(self._fetcher.places)

    @property
    def expulsions(self) -> int:
        """How often the group has gone on without this member, so that others may have read the same again."""
        return self._member.expulsions

    def position(self, topic: str, partition: int) -> int:
        """The offset of the next record that `poll` gives."""
        return self._place(topic, partition).position

    def lag(self) -> int:
        """Records that are there and not yet given, as far as known from the last answers."""
        return sum(max(0, place.end_offset - place.position) for place in self._fetcher.places.values())

    def seek(self, topic: str, partition: int, offset: int) -> None:
        """Go on from any offset, back or forth."""
        self._fetcher.places[topic, partition] = Place(offset, self._place(topic, partition).topic_id)

    def _place(self, topic: str, partition: int) -> Place:
        place = self._fetcher.places.get((topic, partition))
        if place is None:
            raise ClientError(f"{topic}-{partition} is not assigned to this member")
        return place

    # -- reading

    async def poll(self, timeout_s: float = 1.0, max_records: int = 500) -> list[ConsumedRecord]:
        """The next records, or none when none came in time. What the last call gave counts as done with."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        self._member.is_alive()
        while True:
            self._news.clear()
            self._check()
            await self._reconcile()
            await self._commit_if_due(loop.time())
            records = self._fetcher.take(max_records)
            self._fetcher.launch()
            left_s = deadline - loop.time()
            if records or left_s <= 0:
                return records
            try:
                async with asyncio.timeout(left_s):
                    await self._news.wait()
            except TimeoutError:
                continue

    def _check(self) -> None:
        failure = self._member.failure or self._fetcher.failure
        if failure is not None:
            raise failure

    async def _reconcile(self) -> None:
        """Give up what the group wants back, take what it gives."""
        member, places = self._member, self._fetcher.places
        if self._expulsions != member.expulsions:
            self._expulsions = member.expulsions
            lost = frozenset(places)
            self._drop(lost)
            if lost:
                await self._on_lost(lost)
        if member.replaced:
            replaced, member.replaced = member.replaced, set()
            lost = frozenset(at for at in places if at[0] in replaced)
            self._drop(lost)
            if lost:
                await self._on_lost(lost)
        wanted = member.wanted
        gone = frozenset(places) - wanted
        if gone:
            await self._on_revoked(gone)
            if self._auto_commit_s is not None:
                await self._commit_unless_expelled()
            self._drop(gone)
            member.owns(places)
        new = wanted - frozenset(places)
        if new:
            # The group counts on this member for them even before it knows where to begin.
            member.owns(wanted)
            ids = dict(member.topic_ids)
            starts = await self._starts(new)
            if self._expulsions == member.expulsions:
                places.update((at, Place(offset, ids[at[0]])) for at, offset in starts.items())
                await self._on_assigned(new)

    def _drop(self, partitions: Iterable[TopicPartition]) -> None:
        for at in partitions:
            self._fetcher.places.pop(at, None)
            self._committed.pop(at, None)

    async def _starts(self, partitions: frozenset[TopicPartition]) -> dict[TopicPartition, int]:
        found = await self._member.committed(partitions, stable=self._read_committed)
        self._committed.update(found)
        missing = [at for at in partitions if at not in found]
        resets = await asyncio.gather(*map(self._fetcher.reset_offset, missing))
        return found | dict(zip(missing, resets))

    # -- committing

    async def commit(self, offsets: Mapping[TopicPartition, int] | None = None) -> None:
        """Commit how far `poll` has given records, or the given offsets. On the broker's disk when this returns."""
        places = self._fetcher.places
        if offsets is None:
            offsets = {at: place.position for at, place in places.items() if self._committed.get(at) != place.position}
        if offsets:
            epochs = {at: places[at].leader_epoch for at in offsets if at in places}
            ids = self._member.topic_ids | {at[0]: place.topic_id for at, place in places.items()}
            await self._member.commit(offsets, epochs, ids)
            self._committed.update(offsets)

    async def _commit_if_due(self, now_s: float) -> None:
        if self._auto_commit_s is not None and now_s >= self._next_commit_s:
            self._next_commit_s = now_s + self._auto_commit_s
            await self._commit_unless_expelled()

    async def _commit_unless_expelled(self) -> None:
        try:
            await self.commit()
        except RequestFailed as error:
            if error.error not in EXPELLED:
                raise

    async def close(self, *, commit: bool = True) -> None:
        """Commit (if it does so by itself), give the partitions back and leave the group."""
        try:
            if commit and self._auto_commit_s is not None and self._member.failure is None:
                await self._commit_unless_expelled()
        finally:
            gone = self.assignment
            if gone:
                await self._on_revoked(gone)
            self._fetcher.close()
            await self._member.leave()
            self.cluster.close()
