"""The core of a consumer: which partitions it has, what is handed out of them, and what is committed.

Partitions come and go only while the next records are asked for: asking says that what was handed out before is passed,
so its offsets can be committed before another member takes over. Members of groups speak either protocol; a consumer
without a group, or with partitions chosen by hand, has no `membership`.
"""

import asyncio
import inspect
import logging
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from typing import Any

from headrace.client.admin.groups import TopicPartition
from headrace.client.consume.fetcher import Fetcher, FetchOptions
from headrace.client.consume.membership import Membership, matching, refresh_all
from headrace.client.consume.offsets import EXPELLED, GroupOffsets, is_transient
from headrace.client.consume.places import Chunk, Handed, Place, Start
from headrace.client.consume.records import TopicPartition as NamedPartition
from headrace.client.errors import ClientError, RequestFailed, RequestTimedOut
from headrace.client.net.cluster import BACKOFF_S_MAX, BACKOFF_S_MIN, NO_TOPIC, Cluster, may_pass, no_partition
from headrace.errors import Err

log = logging.getLogger(__name__)

IDLE_S = 1.0
"""A wait ends at least so often, to see to what is due by itself."""
CATCH_UP_S_MAX = 10.0

Callback = Callable[[frozenset[NamedPartition]], Any]


class Listeners:
    """Who is told when partitions come and go: plain functions or coroutines."""

    def __init__(
        self, on_assigned: Callback | None = None, on_revoked: Callback | None = None, on_lost: Callback | None = None
    ) -> None:
        self._assigned, self._revoked, self._lost = on_assigned, on_revoked, on_lost

    async def assigned(self, partitions: Iterable[TopicPartition]) -> None:
        """They were just taken; positions may be changed before anything is read."""
        await self._tell(self._assigned, partitions)

    async def revoked(self, partitions: Iterable[TopicPartition]) -> None:
        """They are about to be given up: what is done with can still be committed."""
        await self._tell(self._revoked, partitions)

    async def lost(self, partitions: Iterable[TopicPartition]) -> None:
        """They already belong to another member; told as revoked to whoever does not ask for the difference."""
        await self._tell(self._lost or self._revoked, partitions)

    async def _tell(self, callback: Callback | None, partitions: Iterable[TopicPartition]) -> None:
        if callback is not None:
            told = callback(frozenset(NamedPartition(*at) for at in partitions))
            if inspect.isawaitable(told):
                await told


class ConsumerCore:
    """`start`, then `next` again and again; `close` at the end."""

    def __init__(
        self,
        cluster: Cluster,
        options: FetchOptions,
        *,
        offsets: GroupOffsets | None = None,
        auto_commit_s: float | None = None,
        listeners: Listeners | None = None,
        metadata_max_age_s: float = 300.0,
    ) -> None:
        self.cluster = cluster
        self.membership: Membership | None = None
        self.handed: Handed | None = None
        self.fetcher = Fetcher(cluster, self.note_news, options)
        self.has_news = False
        """Whether the group, or a fetch that failed, wants attention before more is handed out."""
        self._news = asyncio.Event()
        self._offsets = offsets
        self._listeners = listeners or Listeners()
        self._auto_commit_s = auto_commit_s
        self._next_commit_s = 0.0
        self._committing = asyncio.Lock()
        self._commits: set[asyncio.Task[None]] = set()
        self._commit_failure: ClientError | None = None
        self._expulsions = 0
        self._by_hand: Callable[[], Awaitable[frozenset[TopicPartition]]] | None = None
        self._look_s = 0.0
        self._looks = 0
        self._gone: set[str] = set()
        """Topics that were read and are not there any more."""
        self._metadata_max_age_s = metadata_max_age_s
        self._found: dict[TopicPartition, Start] = {}
        self._settled: frozenset[TopicPartition] | None = None
        """What the group wanted when this consumer last had just that, and nothing has changed since."""

    # -- where partitions come from

    def join(self, membership: Membership) -> None:
        """Take what the group gives, from the next call on."""
        self.membership = membership
        membership.progress = lambda: id(at) if self.handed and (at := self.handed.current) else None
        membership.start()

    def read_topics(self, topics: list[str], pattern: str | None) -> None:
        """Without a group: all partitions of topics, also those that are added later."""

        async def found() -> frozenset[TopicPartition]:
            if pattern is not None:
                await refresh_all(self.cluster)
                names = matching(self.cluster, pattern)
            else:
                await self.cluster.refresh(topics)
                names = topics
                missing = [name for name in names if name not in self.cluster.topics]
                if missing:
                    raise RequestFailed(f"topic {missing[0]!r}", Err.UNKNOWN_TOPIC_OR_PARTITION, NO_TOPIC)
            return frozenset((name, index) for name in names for index in self.cluster.topics[name].partitions)

        self._by_hand = found

    async def assign(self, partitions: Iterable[TopicPartition] | Mapping[TopicPartition, int]) -> None:
        """By hand: just these partitions from now on, and new ones from the given offsets where there are any."""
        wanted = frozenset((str(topic), int(index)) for topic, index in partitions)
        await self._check_there(wanted)
        self._pass()

        async def same() -> frozenset[TopicPartition]:
            return wanted

        self._by_hand = same
        await self._become(wanted, partitions if isinstance(partitions, Mapping) else {})

    async def _check_there(self, partitions: Iterable[TopicPartition]) -> None:
        """Raises RequestFailed for one that does not exist."""
        wanted = sorted(partitions)
        await self.cluster.refresh(sorted({topic for topic, _ in wanted}))
        for topic, index in wanted:
            known = self.cluster.topics.get(topic)
            if known is None:
                raise RequestFailed(f"topic {topic!r}", Err.UNKNOWN_TOPIC_OR_PARTITION, NO_TOPIC)
            if index not in known.partitions:
                raise no_partition(topic, index, len(known.partitions))

    def note_news(self) -> None:
        """Whoever takes records one by one stops, and comes back to see to it first."""
        self.has_news = True
        self.wake()

    def wake(self) -> None:
        """There may be records for whoever waits for some."""
        self._news.set()

    # -- reading

    async def next(self, limit: int, timeout_s: float | None) -> Handed | None:
        """The next records, all of one partition; None when none came in time. What was handed out before counts as
        passed."""
        deadline = _deadline(timeout_s)
        while await self._ready(deadline):
            found = self.fetcher.take(limit)
            if found is not None:
                self.handed = Handed(*found)
                return self.handed
        return None

    async def next_chunk(self, timeout_s: float | None) -> tuple[Place, Chunk] | None:
        """As `next`, but undecoded: all that one fetch has brought of a partition."""
        deadline = _deadline(timeout_s)
        while await self._ready(deadline):
            found = self.fetcher.take_chunk()
            if found is not None:
                place, chunk = found
                place.position = chunk.end_offset
                self.handed = Handed(place, [])
                return found
        return None

    async def _ready(self, deadline: float | None) -> bool:
        """Pass what was handed out, see to the group and to commits, and wait until there is something to hand out."""
        loop = asyncio.get_running_loop()
        self._pass()
        while True:
            now = loop.time()
            self._news.clear()
            self.has_news = False
            await self._attend(now)
            self.fetcher.launch()
            if self.fetcher.has_records:
                return True
            wait_s = self._wait_s(now)
            if deadline is not None:
                wait_s = min(deadline - loop.time(), wait_s)
                if wait_s <= 0:
                    return False
            try:
                async with asyncio.timeout(wait_s):
                    await self._news.wait()
            except TimeoutError:
                continue

    def _wait_s(self, now: float) -> float:
        """Until something is due by itself."""
        if self._auto_commit_s is None:
            return IDLE_S
        return max(0.001, min(IDLE_S, self._next_commit_s - now))

    async def _attend(self, now: float) -> None:
        self._check()
        if self.membership is not None:
            await self._reconcile(self.membership)
            self.membership.is_alive()
        elif self._by_hand is not None and (await self._notice_topics() or now >= self._look_s):
            self._look_s = now + self._metadata_max_age_s
            try:
                await self._become(await self._by_hand(), {})
            except ClientError as error:
                if not self.fetcher.places or isinstance(error, RequestFailed) or not is_transient(error):
                    raise
                # What is known already is read on; new partitions can wait for a broker that answers.
                self._look_s = now + IDLE_S
        if self._auto_commit_s is not None and now >= self._next_commit_s:
            self._next_commit_s = now + self._auto_commit_s
            if not self._commits:
                self._spawn_commit(self._commit_passed())

    def _check(self) -> None:
        failure = self.fetcher.failure or self._commit_failure
        if failure is None and self.membership is not None:
            failure = self.membership.failure
        if failure is not None:
            self._commit_failure = None
            raise failure

    def _pass(self) -> None:
        """The next records are asked for: those before are done with."""
        handed, self.handed = self.handed, None
        if handed is None:
            return
        place = handed.place
        current = handed.current
        if current is not None and current is not handed.records[-1] and place.seeks == handed.seeks:
            # The loop that took them one by one was left: the rest comes next, whoever reads it.
            self._give_back(handed, bisect_right(handed.raw, current.offset, key=lambda record: record.offset))
        self.fetcher.moved[place.topic, place.partition] = None
        if place.seeks != handed.seeks:
            # The log was cut, or its start deleted, meanwhile: the position is where it goes on.
            place.passed = handed.position
        else:
            place.passed = place.position = max(place.passed, handed.position)

    def give_back(self, index: int) -> None:
        """Take back what was handed out last but not looked at, from a record on: it comes again, first."""
        assert self.handed is not None
        self._give_back(self.handed, index)

    def let_go(self, handed: Handed, index: int) -> None:
        """As `give_back`, unless somebody went elsewhere or read on meanwhile: then the rest is settled already."""
        if self.handed is handed:
            self._give_back(handed, index)

    def _give_back(self, handed: Handed, index: int) -> None:
        rest = handed.raw[index:]
        handed.raw, handed.records = handed.raw[:index], handed.records[:index]
        self.fetcher.give_back(handed.place, rest)

    def take_back(self, place: Place, chunk: Chunk) -> None:
        """Take back a chunk that was handed out last and cannot be decoded: it must not count as passed."""
        self.handed = None
        self.fetcher.reset(place, chunk.start_offset)

    # -- partitions

    def place(self, at: TopicPartition) -> Place:
        place = self.fetcher.places.get((at[0], at[1]))
        if place is None:
            raise ClientError(f"{at[0]}-{at[1]} is not assigned to this consumer")
        return place

    def handed_position(self, place: Place) -> int:
        """Behind the last record that was handed out."""
        handed = self.handed
        return handed.position if handed is not None and handed.place is place else place.position

    def seek(self, at: TopicPartition, offset: int, leader_epoch: int = -1) -> None:
        place = self.place(at)
        if self.handed is not None and self.handed.place is place:
            self.handed = None
        self.fetcher.seek(place, offset, leader_epoch)
        self.fetcher.launch()

    async def _become(self, wanted: frozenset[TopicPartition], given: Mapping[TopicPartition, int]) -> None:
        """Have just these partitions, without a group that says so."""
        places = self.fetcher.places
        gone = frozenset(places) - wanted
        if gone:
            await self._listeners.revoked(gone)
            if self._auto_commit_s is not None:
                await self._commit_passed()
            self._drop(gone)
        new = wanted - frozenset(places)
        if new:
            starts = {at: Start(given[at]) for at in new if at in given}
            starts |= await self._starts(new - starts.keys())
            self._settled = None
            for (topic, index), (offset, epoch) in starts.items():
                self.fetcher.add(Place(topic, index, offset, self.cluster.topics[topic].topic_id, epoch))
            self._note_committed(new)
            await self._listeners.assigned(new)

    async def _notice_topics(self) -> bool:
        """Without a group, which would tell: let go of topics that were deleted and made again, since a position in the
        old one means nothing in the new one. Whether there were any: they begin anew then, where `auto_offset_reset`
        says."""
        if self._looks == self.cluster.looks:
            return False
        self._looks = self.cluster.looks
        topics, again = self.cluster.topics, []
        for at, place in self.fetcher.places.items():
            known = topics.get(at[0])
            if known is None and at[0] not in self._gone:
                self._gone.add(at[0])
                log.warning("topic %r is gone: nothing is read of it unless it is made again", at[0])
            elif known is not None and known.topic_id != place.topic_id:
                again.append(at)
        for topic in {topic for topic, _ in again}:
            self._gone.discard(topic)
            log.warning("topic %r was deleted and made again: what was read of it was of the old one", topic)
        await self._lose(frozenset(again))
        return bool(again)

    async def _reconcile(self, member: Membership) -> None:
        """Give up what the group wants back, take what it gives."""
        places = self.fetcher.places
        if self._expulsions != member.expulsions:
            expulsions = member.expulsions
            await self._lose(frozenset(places))
            # Only now: who is told of the loss must not commit what was lost, even if this member has joined again.
            self._expulsions = expulsions
        if member.replaced:
            replaced, member.replaced = member.replaced, set()
            await self._lose(frozenset(at for at in places if at[0] in replaced))
        wanted = member.wanted
        if wanted is self._settled:
            return
        gone = frozenset(places) - wanted
        if gone:
            await self._listeners.revoked(gone)
            if self._auto_commit_s is not None:
                await self._commit_passed()
            self._drop(gone)
            member.owns(places)
        new = wanted - frozenset(places)
        if new:
            # The group counts on this member for them even before it knows where to begin.
            member.owns(wanted)
            ids = dict(member.topic_ids)
            try:
                starts = await self._starts(new)
            except RequestFailed as error:
                if error.error not in EXPELLED:
                    raise
                # The group has gone on without this member. Its next heartbeat hears so too, and it joins again.
                return
            if self._expulsions == member.expulsions:
                for (topic, index), (offset, epoch) in starts.items():
                    self.fetcher.add(Place(topic, index, offset, ids[topic], epoch))
                self._note_committed(new)
                await self._listeners.assigned(new)
        if places.keys() == wanted:
            self._settled = wanted

    async def _lose(self, lost: frozenset[TopicPartition]) -> None:
        self._drop(lost)
        if lost:
            await self._listeners.lost(lost)

    def _drop(self, partitions: Iterable[TopicPartition]) -> None:
        self._settled = None
        for at in partitions:
            self.fetcher.drop(at)

    async def _starts(self, partitions: frozenset[TopicPartition]) -> dict[TopicPartition, Start]:
        found: dict[TopicPartition, Start] = {}
        if self._offsets is not None:
            found = await self._offsets.starts(partitions, stable=self.fetcher.options.read_committed)
            found = await self._caught_up(found)
        self._found = found
        missing = [at for at in partitions if at not in found]
        return found | {at: Start(offset) for at, offset in (await self.fetcher.reset_offsets(missing)).items()}

    async def _caught_up(self, found: dict[TopicPartition, Start]) -> dict[TopicPartition, Start]:
        """Wait until the leaders are known that the committed records came from, or later ones.

        One that was deposed, and does not know it yet, may lack those records: it would say that the offset is out of
        range, and the partition would be read from its start again.
        """
        loop = asyncio.get_running_loop()
        deadline, pause_s = loop.time() + CATCH_UP_S_MAX, BACKOFF_S_MIN
        while behind := {at for at, start in found.items() if self._leader_epoch(at) < start.leader_epoch}:
            if loop.time() >= deadline:
                # Another topic has taken the name, or a broker is behind for very long.
                log.warning("no leader is known that is as new as the offsets committed in %s", sorted(behind))
                return found | {at: Start(found[at].offset) for at in behind}
            try:
                await self.cluster.refresh({topic for topic, _ in behind})
            except ClientError as error:
                if not may_pass(error):
                    raise
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, BACKOFF_S_MAX)
        return found

    def _leader_epoch(self, at: TopicPartition) -> int:
        topic = self.cluster.topics.get(at[0])
        row = topic.partitions.get(at[1]) if topic is not None else None
        return row.leader_epoch if row is not None else -1

    def _note_committed(self, partitions: Iterable[TopicPartition]) -> None:
        for at in partitions:
            if at in self._found and at in self.fetcher.places:
                self.fetcher.places[at].committed = self._found[at].offset

    # -- committing

    def to_commit(self, *, handed: bool) -> dict[TopicPartition, int]:
        """How far each partition was handed out, or only passed; those whose commit would say nothing new are left
        out. What is only passed does not set back what the caller has committed already, unless it went back."""
        found: dict[TopicPartition, int] = {}
        moved = self.fetcher.moved
        for at in [*moved]:
            place = self.fetcher.places.get(at)
            if place is None or (place.is_settled and self.handed_position(place) == place.position):
                del moved[at]
                continue
            offset = self.handed_position(place) if handed else place.passed
            is_back = not handed and place.committed is not None and offset < place.committed
            if place.committed != offset and not is_back:
                found[at] = offset
        return found

    def check_member(self, expulsions: int | None = None) -> None:
        """Raises RequestFailed when the group has gone on without this member: what was handed out before may have been
        read, and committed, by another one. `expulsions`: as many as this consumer knew of when it had the offsets.

        The coordinator alone cannot tell: it believes one that names no member, and one that has joined again.
        """
        member = self.membership
        if member is None:
            return
        is_expelled = member.expulsions != (self._expulsions if expulsions is None else expulsions)
        has_left = member.identity.epoch < 0 and bool(member.expulsions or self.fetcher.places)
        if is_expelled or has_left:
            message = "the group has gone on without this member: read on, and what is not committed comes again"
            raise RequestFailed(f"member of group {member.group_id!r}", Err.ILLEGAL_GENERATION, message)

    async def commit(self, offsets: Mapping[TopicPartition, int] | None = None, metadata: str = "") -> None:
        """Commit what was handed out, or the given offsets. On the broker's disk when this returns."""
        if self._offsets is None:
            raise ClientError("there is nowhere to commit to: give the consumer a group")
        expulsions = self._expulsions
        async with self._committing:
            wanted = self.to_commit(handed=True) if offsets is None else _checked(offsets)
            await self._commit(wanted, expulsions, metadata)

    async def _commit(self, wanted: Mapping[TopicPartition, int], expulsions: int, metadata: str = "") -> None:
        if not wanted:
            return
        assert self._offsets is not None
        places = self.fetcher.places
        here = {at: place for at in wanted if (place := places.get(at)) is not None}
        named = {} if self.membership is None else self.membership.topic_ids
        ids = {topic: named[topic] for topic, _ in wanted if topic in named}
        ids |= {at[0]: place.topic_id for at, place in here.items()}
        # That a topic is gone is passed over only if it was read: a misspelt name is an error.
        topics = self.cluster.topics
        if strange := [
            at for at in wanted
            if at not in here and (at[0] not in ids or (at[0] in topics and at[1] not in topics[at[0]].partitions))
        ]:  # fmt: skip
            await self._check_there(strange)
        seeks = {at: place.seeks for at, place in here.items()}
        epochs = self.epochs_of(wanted)
        await self._offsets.commit(wanted, epochs, ids, metadata, check_member=lambda: self.check_member(expulsions))
        for at, offset in wanted.items():
            if (place := places.get(at)) is not None and place.seeks == seeks.get(at):
                place.committed = offset
                self.fetcher.moved[at] = None

    def epochs_of(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """The leader epochs of the records before these offsets, of those that are known."""
        places = self.fetcher.places
        found = {at: places[at].epoch_before(offset) for at, offset in offsets.items() if at in places}
        return {at: epoch for at, epoch in found.items() if epoch >= 0}

    def commit_soon(self, offsets: Mapping[TopicPartition, int] | None = None) -> "asyncio.Task[None]":
        """Commit without waiting, in the order of calls. A failure that nobody awaits is raised by the next read."""
        if self._offsets is None:
            raise ClientError("there is nowhere to commit to: give the consumer a group")
        wanted = self.to_commit(handed=True) if offsets is None else _checked(offsets)
        return self._spawn_commit(self._commit_in_turn(wanted, self._expulsions))

    async def _commit_in_turn(self, wanted: Mapping[TopicPartition, int], expulsions: int) -> None:
        async with self._committing:
            await self._commit(wanted, expulsions)

    def _spawn_commit(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = asyncio.create_task(work, name="commit")
        self._commits.add(task)
        task.add_done_callback(self._committed_soon)
        return task

    def _committed_soon(self, task: "asyncio.Task[None]") -> None:
        self._commits.discard(task)
        if not task.cancelled() and isinstance(error := task.exception(), ClientError):
            self._commit_failure = error
            self.note_news()

    async def _commit_passed(self) -> None:
        """By itself: one that is late is made up for by the next."""
        if self._offsets is None:
            return
        try:
            async with self._committing:
                # Seen only now: a commit of the caller's that came first must not be set back.
                await self._commit(self.to_commit(handed=False), self._expulsions)
        except ClientError as error:
            if isinstance(error, RequestFailed) and error.error in EXPELLED:
                return
            if not is_transient(error) and not isinstance(error, RequestTimedOut):
                raise
            log.warning("offsets were not committed and will be with the next ones: %s", error)

    # -- the end

    async def close(self, *, passed: bool) -> None:
        """Commit (if it does so by itself), give the partitions back and leave the group.

        With `passed`, what was handed out last counts as done with, too.
        """
        member = self.membership
        try:
            handed = self.handed
            if passed:
                self._pass()
            elif handed is not None and handed.current is not None:
                # The one that was worked on is not done with; those before it are.
                handed.place.passed = max(handed.place.passed, min(handed.current.offset, handed.position))
            while self._commits:
                await asyncio.gather(*self._commits, return_exceptions=True)
            is_in = member is None or (member.failure is None and member.expulsions == self._expulsions)
            if self._auto_commit_s is not None and is_in:
                await self._commit_passed()
        finally:
            gone = frozenset(self.fetcher.places)
            try:
                if gone:
                    await self._listeners.revoked(gone)
            finally:
                await self.fetcher.close()
                if member is not None:
                    await member.leave()


def _checked(offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    found: dict[TopicPartition, int] = {}
    for at, offset in offsets.items():
        if not isinstance(at, tuple) or len(at) != 2 or isinstance(offset, bool) or not isinstance(offset, int):
            raise ClientError(f"{at!r}: {offset!r} cannot be committed: give {{(topic, partition): the next offset}}")
        if offset < 0:
            raise ClientError(f"offset {offset} of {at[0]}-{at[1]} cannot be committed: offsets begin at 0")
        found[at[0], at[1]] = offset
    return found


def _deadline(timeout_s: float | None) -> float | None:
    return None if timeout_s is None else asyncio.get_running_loop().time() + timeout_s
