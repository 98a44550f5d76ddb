"""Fetching for a consumer: one request at a time to each broker, for all partitions there that have room for more.

The next answer is fetched while the last is worked on. What comes is checked and taken apart only when it is wanted. A
leader that is gone is looked for again.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable

from headrace.client.admin.admin import LATEST, Admin
from headrace.client.admin.groups import TopicPartition
from headrace.client.consume.places import Chunk, Place
from headrace.client.consume.records import Record, visible_batches
from headrace.client.consume.resets import ResetPolicy
from headrace.client.consume.sessions import FetchSession, Wanted
from headrace.client.errors import ClientError, RequestFailed, SecurityFailed, check
from headrace.client.net.cluster import BACKOFF_S_MAX, BACKOFF_S_MIN, NO_TOPIC_ID, Cluster, Partition, may_pass
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
        self.failure: ClientError | None = None
        self.options = options
        self._cluster = cluster
        self._admin = Admin(cluster=cluster)
        self._on_news = on_news
        self._under_way: dict[int, asyncio.Task[None]] = {}
        self._sessions: dict[int, FetchSession] = {}
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

    # -- places

    def add(self, place: Place) -> None:
        self.places[place.topic, place.partition] = place

    def drop(self, at: TopicPartition) -> None:
        place = self.places.pop(at, None)
        if place is not None:
            self._buffered_bytes -= place.seek(place.position)

    def seek(self, place: Place, offset: int) -> None:
        self._buffered_bytes -= place.seek(offset)

    def reset(self, place: Place, offset: int) -> None:
        """As `seek`, but nothing counts as passed by it."""
        self._buffered_bytes -= place.reset(offset)

    def resume(self, place: Place) -> None:
        place.is_paused = False
        if place.has_records:
            self._enqueue(place)

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
        """All that one fetch brought of one partition, for who takes it apart in columns."""
        while self._queue:
            place = self._queue.popleft()
            place.in_queue = False
            if self.places.get((place.topic, place.partition)) is not place or place.is_paused:
                continue
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
        by_node: dict[int, list[TopicPartition]] = {}
        for at, place in self.places.items():
            if place.wants_more:
                by_node.setdefault(self._node_of(at, place), []).append(at)
        for node, partitions in by_node.items():
            if node not in self._under_way:
                task = asyncio.create_task(self._work(node, partitions), name=f"fetch from {node}")
                self._under_way[node] = task

    def _node_of(self, at: TopicPartition, place: Place) -> int:
        row = self._row(at, place)
        if row is None:
            return NO_LEADER
        if place.replica >= 0:
            if place.replica in row.isr and asyncio.get_running_loop().time() < place.replica_until_s:
                return place.replica
            place.replica = -1
        return row.leader

    def _row(self, at: TopicPartition, place: Place) -> Partition | None:
        known = self._cluster.topics.get(at[0])
        return known.partitions.get(at[1]) if known is not None and known.topic_id == place.topic_id else None

    async def _work(self, node: int, partitions: list[TopicPartition]) -> None:
        try:
            if node == NO_LEADER:
                await self._look_again(partitions)
            else:
                await self._fetch(node, partitions)
                self._pause_s = BACKOFF_S_MIN
        except RequestFailed as error:
            self._reset_session(node)
            if error.error in LOOK_AGAIN or error.error.retriable or error.error is Err.BROKER_NOT_AVAILABLE:
                await self._look_again(partitions)
            else:
                self.failure = error
        except SecurityFailed as error:
            self.failure = error
        except ClientError:
            self._reset_session(node)
            self._leave_replica(partitions)
            await self._look_again(partitions)
        finally:
            del self._under_way[node]
            self._on_news()
        if self.failure is None:
            self.launch()

    def _reset_session(self, node: int) -> None:
        self._sessions.pop(node, None)

    def _leave_replica(self, partitions: Iterable[TopicPartition]) -> None:
        """Back to the leader, which may name another replica."""
        for at in partitions:
            place = self.places.get(at)
            if place is not None:
                place.replica = -1

    async def _look_again(self, partitions: Iterable[TopicPartition]) -> None:
        await asyncio.sleep(self._pause_s)
        self._pause_s = min(self._pause_s * 2, BACKOFF_S_MAX)
        try:
            await self._cluster.refresh({topic for topic, _ in partitions})
        except ClientError:
            return

    async def _fetch(self, node: int, partitions: list[TopicPartition]) -> None:
        connection = await self._cluster.broker_connection(node)
        # After the wait: partitions may be given up, and topics deleted, in the meantime.
        asked = {at: place for at in partitions if (place := self.places.get(at)) is not None}
        wanted = {at: one for at, place in asked.items() if (one := self._wanted(at, place)) is not None}
        if not wanted:
            return await self._look_again(partitions)
        session = self._sessions.setdefault(node, FetchSession())
        request, by_name = self._request(session, wanted)
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
        await self._read(node, answer, asked, wanted)

    def _wanted(self, at: TopicPartition, place: Place) -> Wanted | None:
        row = self._row(at, place)
        if row is None:
            return None
        # A new leader may have cut what was read: it says so when told the epoch of the last record (KIP-320).
        is_new = place.fetched_epoch >= 0 and row.leader_epoch > place.fetched_epoch
        last_epoch = place.leader_epoch if is_new else -1
        return Wanted(place.topic_id, place.fetch_offset, row.leader_epoch, last_epoch)

    def _request(self, session: FetchSession, wanted: dict[TopicPartition, Wanted]) -> tuple[m.FetchRequest, bool]:
        kind = m.FetchRequest
        question = session.ask(wanted)
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
        request = kind(
            max_wait_ms=self.options.max_wait_ms,
            min_bytes=self.options.min_bytes,
            max_bytes=self.options.bytes_max,
            isolation_level=int(self.options.read_committed),
            session_id=question.session_id,
            session_epoch=question.epoch,
            topics=list(topics.values()),
            forgotten_topics_data=list(forgotten.values()),
            rack_id=self.options.rack,
        )
        return request, any(one.topic_id == NO_TOPIC_ID for one in wanted.values())

    # -- answers

    async def _read(
        self,
        node: int,
        answer: m.FetchResponse,
        asked: dict[TopicPartition, Place],
        wanted: dict[TopicPartition, Wanted],
    ) -> None:
        names = {one.topic_id: topic for (topic, _), one in wanted.items()}
        look_again: list[TopicPartition] = []
        for topic in answer.responses:
            name = topic.topic or names.get(topic.topic_id, "")
            for row in topic.partitions:
                at = name, row.partition_index
                place = asked.get(at)
                # Given up, or moved by a seek, while the answer was on its way.
                if place is None or self.places.get(at) is not place or place.fetch_offset != wanted[at].offset:
                    continue
                if row.error_code in LOOK_AGAIN:
                    place.replica = -1
                    look_again.append(at)
                elif row.error_code == Err.OFFSET_OUT_OF_RANGE:
                    await self._out_of_range(node, at, place)
                else:
                    check(row.error_code, f"fetch from {name}-{row.partition_index} at offset {place.fetch_offset}")
                    self._take_row(at, place, row, wanted[at])
        if look_again:
            await self._look_again(look_again)

    def _take_row(self, at: TopicPartition, place: Place, row: m.FetchResponse.PartitionData, asked: Wanted) -> None:
        if row.preferred_read_replica >= 0:
            place.replica = row.preferred_read_replica
            place.replica_until_s = asyncio.get_running_loop().time() + self.options.replica_age_s
            return
        if row.diverging_epoch.end_offset >= 0:
            self._truncated(place, row.diverging_epoch.end_offset)
            return
        place.fetched_epoch = asked.leader_epoch
        place.end_offset = row.last_stable_offset if self.options.read_committed else row.high_watermark
        place.log_start = row.log_start_offset
        records = row.records if row.records is not None else b""
        if not len(records):
            return
        start = place.fetch_offset
        end = max((header.end_offset for _, header in iter_headers(records)), default=start)
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

    def _truncated(self, place: Place, end_offset: int) -> None:
        """Records that were read are no longer in the log: an unclean election has lost them."""
        name = f"{place.topic}-{place.partition}"
        if self.options.reset.is_none:
            raise RequestFailed(
                name,
                Err.OFFSET_OUT_OF_RANGE,
                f"the log was cut at offset {end_offset}, and records up to {place.position} were read: seek to go on",
            )
        log.warning("%s was cut at offset %d; %d was next, reading on from there", name, end_offset, place.position)
        self._buffered_bytes -= place.reset(min(place.position, end_offset))
        place.fetched_epoch = -1

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
            message = f"offset {place.position} is not there any more, or not yet, and no auto_offset_reset is set"
            raise RequestFailed(f"{topic}-{index}", Err.OFFSET_OUT_OF_RANGE, message)
        before = place.position
        found = await self.reset_offset(at)
        if self.places.get(at) is place and place.position == before:
            log.warning("%s-%d has no offset %d; going on from %d", topic, index, before, found)
            self._buffered_bytes -= place.reset(found)

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
