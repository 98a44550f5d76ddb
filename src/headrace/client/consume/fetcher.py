"""Fetching for a consumer: one request at a time to each broker, for all partitions there that have room for more.

The next answer is fetched while the last is worked on. What comes is checked and taken apart only when it is wanted. A
leader that is gone is looked for again.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from math import inf

from headrace.client.admin.admin import LATEST, Admin
from headrace.client.admin.groups import TopicPartition
from headrace.client.consume.places import Chunk, Place
from headrace.client.consume.records import Record, visible_batches
from headrace.client.consume.resets import ResetPolicy
from headrace.client.consume.routes import Route, Routes
from headrace.client.consume.sessions import FetchSession, Question, Wanted
from headrace.client.errors import ClientError, RequestFailed, SecurityFailed, check
from headrace.client.net.cluster import BACKOFF_S_MAX, BACKOFF_S_MIN, Cluster, Partition, may_pass
from headrace.client.raw import FETCH_VERSION_WITH_NAMES
from headrace.errors import Err, KafkaError
from headrace.protocol import messages as m
from headrace.protocol.api import ApiKey
from headrace.records.batch import iter_headers

log = logging.getLogger(__name__)

NO_LEADER = -1
LOOK_AGAIN = frozenset(
    {
        Err.NOT_LEADER_OR_FOLLOWER,
        Err.FENCED_LEADER_EPOCH,
        Err.UNKNOWN_LEADER_EPOCH,
        Err.UNKNOWN_TOPIC_OR_PARTITION,
        Err.UNKNOWN_TOPIC_ID,
        Err.INCONSISTENT_TOPIC_ID,
        Err.LEADER_NOT_AVAILABLE,
        Err.REPLICA_NOT_AVAILABLE,
        Err.KAFKA_STORAGE_ERROR,
        Err.OFFSET_NOT_AVAILABLE,
    }
)
"""Cured by a fresh look at the cluster, or by waiting."""
SESSION_LOST = frozenset(
    {
        Err.FETCH_SESSION_ID_NOT_FOUND,
        Err.INVALID_FETCH_SESSION_EPOCH,
        Err.FETCH_SESSION_TOPIC_ID_ERROR,
    }
)
GROWTH = 4
PARTITION_BYTES_MAX = 512 << 20


class FetchOptions:
    """What a fetch asks for."""

    __slots__ = (
        "bytes_max",
        "check_crcs",
        "max_wait_ms",
        "min_bytes",
        "partition_bytes_max",
        "rack",
        "read_committed",
        "replica_age_s",
        "reset",
    )

    def __init__(
        self,
        *,
        reset: ResetPolicy,
        read_committed: bool = False,
        bytes_max: int = 50 << 20,
        partition_bytes_max: int = 1 << 20,
        min_bytes: int = 1,
        max_wait_ms: int = 500,
        rack: str | None = None,
        replica_age_s: float = 300.0,
        check_crcs: bool = True,
    ) -> None:
        self.reset = reset
        self.read_committed = read_committed
        self.bytes_max = bytes_max
        self.partition_bytes_max = partition_bytes_max
        self.min_bytes = min_bytes
        self.max_wait_ms = max_wait_ms
        self.rack = rack or ""
        self.replica_age_s = replica_age_s
        """How long a replica that a leader has named is read from before the leader is asked again."""
        self.check_crcs = check_crcs


class Fetcher:
    """The places of a consumer's partitions, and the requests under way for them."""

    def __init__(self, cluster: Cluster, on_news: Callable[[], None], options: FetchOptions) -> None:
        self.places: dict[TopicPartition, Place] = {}
        self.options = options
        self.moved: dict[TopicPartition, None] = {}
        """All partitions of which something may have to be committed are among these."""
        self._failure: ClientError | None = None
        self._failed: dict[TopicPartition, Place] = {}
        self._cluster = cluster
        self._admin = Admin(cluster=cluster)
        self._on_news = on_news
        self._under_way: dict[int, asyncio.Task[None]] = {}
        self._sessions: dict[int, FetchSession] = {}
        self._routes = Routes()
        self._looks = cluster.looks
        self._queue: deque[Place] = deque()
        """Places with records, the one that has waited longest first."""
        self._buffered_bytes = 0
        self._partition_bytes: dict[TopicPartition, int] = {}
        """Larger than told, for partitions whose next batch is."""
        self._pause_s = BACKOFF_S_MIN
        self._is_closed = False

    async def close(self) -> None:
        self._is_closed = True
        tasks = [*self._under_way.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.places.clear()
        self._queue.clear()

    @property
    def failure(self) -> ClientError | None:
        """Why nothing more is fetched: at all, or of a partition until somebody seeks there or gives it up."""
        if self._failure is None and self._failed:
            return next(iter(self._failed.values())).failure
        return self._failure

    # -- places

    def add(self, place: Place) -> None:
        self.places[place.topic, place.partition] = place
        self._touch(place)

    def drop(self, at: TopicPartition) -> None:
        place = self.places.pop(at, None)
        if place is not None:
            self._buffered_bytes -= place.seek(place.position)
            self._failed.pop(at, None)
            self._touch(place)

    def seek(self, place: Place, offset: int, leader_epoch: int = -1) -> None:
        self._buffered_bytes -= place.seek(offset, leader_epoch)
        self._failed.pop((place.topic, place.partition), None)
        self._touch(place)

    def reset(self, place: Place, offset: int) -> None:
        """As `seek`, but nothing counts as passed by it."""
        self._buffered_bytes -= place.reset(offset)
        self._touch(place)

    def pause(self, place: Place) -> None:
        place.is_paused = True
        self._touch(place)

    def resume(self, place: Place) -> None:
        place.is_paused = False
        self._touch(place)
        if place.has_records:
            self._enqueue(place)

    def _touch(self, place: Place) -> None:
        """What is to be fetched of it, from whom, or what there is to commit may be another from now on."""
        at = place.topic, place.partition
        self._routes.touch(at)
        self.moved[at] = None

    def _enqueue(self, place: Place) -> None:
        if not place.in_queue:
            place.in_queue = True
            self._queue.append(place)

    @property
    def has_records(self) -> bool:
        """Whether something waits to be handed out; it may turn out to be control batches alone."""
        return bool(self._queue)

    def take(self, limit: int) -> tuple[Place, list[Record]] | None:
        """Records of one partition, of another one each time. Raises RequestFailed where a damaged batch comes next."""
        while self._queue:
            place = self._queue.popleft()
            place.in_queue = False
            if self.places.get((place.topic, place.partition)) is not place or place.is_paused:
                continue
            self._touch(place)
            try:
                records, freed = place.take(limit)
            except KafkaError as error:
                self._buffered_bytes = sum(c.size_bytes for one in self.places.values() for c in one.chunks)
                raise RequestFailed(
                    f"records of {place.topic}-{place.partition} at offset {place.position}", error.error, error.message
                ) from None
            self._buffered_bytes -= freed
            if place.has_records:
                self._enqueue(place)
            if records:
                return place, records
        return None

    def take_chunk(self) -> tuple[Place, Chunk] | None:
        """All that one fetch brought of one partition, for whoever takes it apart in columns."""
        while self._queue:
            place = self._queue.popleft()
            place.in_queue = False
            if self.places.get((place.topic, place.partition)) is not place or place.is_paused:
                continue
            self._touch(place)
            if place.is_begun:
                # Some of it was handed out record by record: the rest is fetched again.
                self.reset(place, place.position)
            if not place.chunks:
                continue
            chunk = place.chunks.popleft()
            self._buffered_bytes -= chunk.size_bytes
            if place.has_records:
                self._enqueue(place)
            return place, chunk
        return None

    def give_back(self, place: Place, records: list[Record]) -> None:
        place.give_back(records)
        if place.in_queue:
            self._queue.remove(place)
            place.in_queue = False
        if records:
            # First again: order within the partition is kept anyway, and who gave it back goes on with it.
            place.in_queue = True
            self._queue.appendleft(place)

    # -- asking

    def launch(self) -> None:
        """Ask every broker that is not being asked already."""
        if self._is_closed or self._buffered_bytes >= 2 * self.options.bytes_max:
            return
        self._settle()
        for node, route in [*self._routes.by_node.items()]:
            if route.partitions and node not in self._under_way:
                self._under_way[node] = asyncio.create_task(self._work(node, route), name=f"fetch from {node}")

    def _settle(self) -> None:
        """Find the brokers of what has changed since the last time; of everything, if the cluster was looked at."""
        routes = self._routes
        if self._looks != self._cluster.looks or asyncio.get_running_loop().time() >= routes.due_s:
            self._looks, routes.due_s = self._cluster.looks, inf
            routes.touch_all(self.places)
        routes.settle(self._node_of)

    def _node_of(self, at: TopicPartition) -> int | None:
        """Whom to ask for more of a partition; None: nobody."""
        place = self.places.get(at)
        if place is None or not place.wants_more:
            return None
        row = self._row(at, place)
        if row is None:
            return NO_LEADER
        if place.replica >= 0 and not place.must_be_checked(row.leader_epoch):
            if place.replica in row.isr and asyncio.get_running_loop().time() < place.replica_until_s:
                self._routes.due_s = min(self._routes.due_s, place.replica_until_s)
                return place.replica
            place.replica = -1
        # Only a leader can tell whether its log has what was fetched: another replica may just be behind.
        return row.leader

    def _row(self, at: TopicPartition, place: Place) -> Partition | None:
        known = self._cluster.topics.get(at[0])
        return known.partitions.get(at[1]) if known is not None and known.topic_id == place.topic_id else None

    async def _work(self, node: int, route: Route) -> None:
        try:
            if node == NO_LEADER:
                await self._look_again(route.partitions)
            else:
                await self._fetch(node, route)
                self._pause_s = BACKOFF_S_MIN
        except RequestFailed as error:
            self._reset_session(node)
            if error.error in LOOK_AGAIN or error.error.retriable or error.error is Err.BROKER_NOT_AVAILABLE:
                await self._look_again(route.partitions)
            else:
                self._failure = error
        except SecurityFailed as error:
            self._failure = error
        except ClientError:
            self._reset_session(node)
            self._leave_replica(route.partitions)
            await self._look_again(route.partitions)
        finally:
            del self._under_way[node]
            self._on_news()
        if self._failure is None:
            self.launch()

    def _reset_session(self, node: int) -> None:
        self._sessions.pop(node, None)

    def _leave_replica(self, partitions: Iterable[TopicPartition]) -> None:
        """Back to the leader, which may name another replica."""
        for at in partitions:
            place = self.places.get(at)
            if place is not None:
                place.replica = -1
                self._routes.touch(at)

    async def _look_again(self, partitions: Iterable[TopicPartition]) -> None:
        topics = {topic for topic, _ in partitions}
        await asyncio.sleep(self._pause_s)
        self._pause_s = min(self._pause_s * 2, BACKOFF_S_MAX)
        try:
            await self._cluster.refresh(topics)
        except ClientError:
            return

    async def _fetch(self, node: int, route: Route) -> None:
        connection = await self._cluster.broker_connection(node)
        # After the wait: partitions may be given up, and topics deleted, in the meantime.
        self._settle()
        if not route.partitions:
            return
        session = self._sessions.setdefault(node, FetchSession())
        changed = route.partitions if session.is_new else route.changed
        question = session.ask({at: self._wanted(at) if at in route.partitions else None for at in changed})
        route.changed.clear()
        request, by_name = self._request(question), bool(session.nameless)
        known, names = session.known, session.names
        answer: m.FetchResponse = await connection.request(
            ApiKey.FETCH,
            request,
            version_max=FETCH_VERSION_WITH_NAMES if by_name else None,
            timeout_s=self.options.max_wait_ms / 1000 + self._cluster.request_timeout_s,
        )
        if answer.error_code in SESSION_LOST:
            session.reset()
            return
        check(answer.error_code, f"fetch from broker {node}")
        session.answered(answer.session_id)
        await self._read(node, answer, known, names)
        self._note_checked(question, answer, names)

    def _note_checked(self, question: Question, answer: m.FetchResponse, names: Mapping[bytes, str]) -> None:
        """What was to be checked and is left out of the answer is whole: else there would be something to say."""
        checks = {at: one for at, one in question.asked.items() if one.last_epoch >= 0}
        if not checks:
            return
        for topic in answer.responses:
            name = topic.topic or names.get(topic.topic_id, "")
            for row in topic.partitions:
                checks.pop((name, row.partition_index), None)
        for at, one in checks.items():
            place = self.places.get(at)
            if place is not None and _is_of(one, place):
                place.checked_epoch = max(place.checked_epoch, one.leader_epoch)

    def _wanted(self, at: TopicPartition) -> Wanted | None:
        place = self.places[at]
        row = self._row(at, place)
        if row is None:
            return None
        # A new leader may have cut what was fetched: it says so when told the epoch of the last record (KIP-320).
        last_epoch = place.epochs.last if place.must_be_checked(row.leader_epoch) else -1
        return Wanted(place.topic_id, place.fetch_offset, row.leader_epoch, last_epoch)

    def _request(self, question: Question) -> m.FetchRequest:
        kind = m.FetchRequest
        # Who names a nearer replica does not look whether its own log was cut.
        checks = any(one.last_epoch >= 0 for one in question.asked.values())
        topics: dict[tuple[str, bytes], m.FetchRequest.FetchTopic] = {}
        for at, one in question.asked.items():
            topic, index = at
            key = topic, one.topic_id
            row = topics.get(key)
            if row is None:
                row = topics[key] = kind.FetchTopic(topic=topic, topic_id=one.topic_id, partitions=[])
            row.partitions.append(
                kind.FetchPartition(
                    partition=index,
                    current_leader_epoch=one.leader_epoch,
                    fetch_offset=one.offset,
                    last_fetched_epoch=one.last_epoch,
                    partition_max_bytes=self._partition_bytes.get(at, self.options.partition_bytes_max),
                )
            )
        forgotten: dict[tuple[str, bytes], m.FetchRequest.ForgottenTopic] = {}
        for (topic, index), one in question.forgotten.items():
            gone = forgotten.setdefault(
                (topic, one.topic_id), kind.ForgottenTopic(topic=topic, topic_id=one.topic_id, partitions=[])
            )
            gone.partitions.append(index)
        return kind(
            max_wait_ms=self.options.max_wait_ms,
            min_bytes=self.options.min_bytes,
            max_bytes=self.options.bytes_max,
            isolation_level=int(self.options.read_committed),
            session_id=question.session_id,
            session_epoch=question.epoch,
            topics=list(topics.values()),
            forgotten_topics_data=list(forgotten.values()),
            rack_id="" if checks else self.options.rack,
        )

    # -- answers

    async def _read(
        self, node: int, answer: m.FetchResponse, known: Mapping[TopicPartition, Wanted], names: Mapping[bytes, str]
    ) -> None:
        look_again: list[TopicPartition] = []
        for topic in answer.responses:
            name = topic.topic or names.get(topic.topic_id, "")
            for row in topic.partitions:
                at = name, row.partition_index
                place, asked = self.places.get(at), known.get(at)
                # Given up, or moved by a seek, while the answer was on its way.
                if place is None or asked is None or not _is_of(asked, place):
                    continue
                self._routes.touch(at)
                if row.error_code in LOOK_AGAIN:
                    place.replica = -1
                    look_again.append(at)
                    continue
                try:
                    if row.error_code == Err.OFFSET_OUT_OF_RANGE:
                        await self._out_of_range(node, at, place)
                    else:
                        check(row.error_code, f"fetch from {name}-{row.partition_index} at offset {place.fetch_offset}")
                        self._take_row(at, place, row, asked)
                except RequestFailed as error:
                    # The others of this answer are read all the same.
                    if error.error.retriable or self.places.get(at) is not place:
                        raise
                    place.failure, self._failed[at] = error, place
        if look_again:
            await self._look_again(look_again)

    def _take_row(self, at: TopicPartition, place: Place, row: m.FetchResponse.PartitionData, asked: Wanted) -> None:
        if row.diverging_epoch.end_offset >= 0:
            self._diverged(place, row.diverging_epoch)
            return
        place.checked_epoch = max(place.checked_epoch, asked.leader_epoch)
        if row.preferred_read_replica >= 0:
            place.replica = row.preferred_read_replica
            place.replica_until_s = asyncio.get_running_loop().time() + self.options.replica_age_s
            return
        place.end_offset = row.last_stable_offset if self.options.read_committed else row.high_watermark
        place.log_start = row.log_start_offset
        records = row.records if row.records is not None else b""
        if not len(records):
            return
        start = place.fetch_offset
        end, epochs = start, place.epochs
        for _, header in iter_headers(records):
            end = header.end_offset
            if header.leader_epoch != epochs.last:
                epochs.note(header.base_offset, header.leader_epoch)
        if end <= start:
            self._grow(at, place)
            return
        self._partition_bytes.pop(at, None)
        aborted: tuple[tuple[int, int], ...] = ()
        if self.options.read_committed:
            aborted = tuple((t.producer_id, t.first_offset) for t in row.aborted_transactions or ())
        batches = visible_batches(records, *at, start, aborted, check_crcs=self.options.check_crcs)
        chunk = Chunk(batches, start, end, len(records))
        chunk.raw = records, aborted
        place.keep(chunk)
        self._buffered_bytes += chunk.size_bytes
        if not place.is_paused:
            self._enqueue(place)

    def _grow(self, at: TopicPartition, place: Place) -> None:
        """Only a piece of a batch came: it is larger than was asked for, and this broker sends no more than that."""
        size = self._partition_bytes.get(at, self.options.partition_bytes_max)
        if size >= PARTITION_BYTES_MAX:
            raise ClientError(f"{at[0]}-{at[1]}: a batch of over {size} bytes at offset {place.fetch_offset}")
        self._partition_bytes[at] = size * GROWTH
        self._sessions.clear()

    def _diverged(self, place: Place, leader: m.FetchResponse.EpochEndOffset) -> None:
        """What was fetched is not all in this leader's log: an unclean election has lost records."""
        end_offset = place.epochs.shared_end(leader.epoch, leader.end_offset)
        name, position = f"{place.topic}-{place.partition}", place.position
        if end_offset < position:
            cut = f"the log was cut at offset {end_offset}, and records up to {position} were read"
            if self.options.reset.is_none:
                raise RequestFailed(name, Err.OFFSET_OUT_OF_RANGE, f"{cut}: seek to go on")
            log.warning("%s: %s; reading on from the cut", name, cut)
        # What was fetched and not handed out yet is fetched again, or checked further back.
        self.reset(place, min(position, end_offset))

    async def _out_of_range(self, node: int, at: TopicPartition, place: Place) -> None:
        if place.replica == node:
            # It may be behind its leader: that one knows.
            place.replica = -1
            return
        if place.fetch_offset != place.position or place.has_records:
            # What is here comes first.
            await asyncio.sleep(self._pause_s)
            return
        topic, index = at
        if self.options.reset.is_none:
            message = (
                f"offset {place.position} is not there any more, or not yet, and no auto_offset_reset is set: "
                "seek to go on"
            )
            raise RequestFailed(f"{topic}-{index}", Err.OFFSET_OUT_OF_RANGE, message)
        before = place.position
        found = await self.reset_offset(at)
        if self.places.get(at) is place and place.position == before:
            log.warning("%s-%d has no offset %d; going on from %d", topic, index, before, found)
            self.reset(place, found)

    async def reset_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Where partitions begin for one that has read nothing of them: of many, in few requests."""
        wanted = list(partitions)
        if self.options.reset.is_none or len(wanted) <= 1:
            return {at: await self.reset_offset(at) for at in wanted}
        timestamp = self.options.reset.timestamp_at(time.time_ns() // 1_000_000)
        rows = await self._admin.offsets_of(wanted, timestamp)
        # No record is that young.
        rows |= await self._admin.offsets_of([at for at, offset in rows.items() if offset < 0], LATEST)
        # Those whose leader moves, or is away, are waited for one by one.
        rest = [at for at in wanted if rows.get(at, -1) < 0]
        return rows | dict(zip(rest, await asyncio.gather(*map(self.reset_offset, rest))))

    async def reset_offset(self, at: TopicPartition) -> int:
        """Where a partition begins for one that has read nothing of it."""
        topic, index = at
        if self.options.reset.is_none:
            raise RequestFailed(
                f"{topic}-{index}", Err.OFFSET_OUT_OF_RANGE, "no offset is committed, and no auto_offset_reset is set"
            )
        return await self._cluster.retrying(lambda: self._list_reset(topic, index), topics=[topic], can_retry=may_pass)

    async def _list_reset(self, topic: str, index: int) -> int:
        timestamp = self.options.reset.timestamp_at(time.time_ns() // 1_000_000)
        found = (await self._admin.list_offsets(topic, {index: timestamp}))[index].offset
        if found < 0:
            # No record is that young.
            found = (await self._admin.list_offsets(topic, {index: LATEST}))[index].offset
        return found


def _is_of(asked: Wanted, place: Place) -> bool:
    """Whether an answer to it is what comes next of a place."""
    return asked.offset == place.fetch_offset and asked.topic_id == place.topic_id
