"""Fetching for a consumer: one request at a time to each leader, for all partitions there that have nothing waiting.

What comes is checked and taken apart only when it is wanted. A leader that is gone is looked for again.
"""

import asyncio
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator

import msgspec

from headrace.client.admin.admin import EARLIEST, LATEST, Admin
from headrace.client.admin.groups import TopicPartition
from headrace.client.errors import ClientError, RequestFailed, SecurityFailed, check
from headrace.client.net.cluster import BACKOFF_S_MAX, BACKOFF_S_MIN, NO_TOPIC_ID, Cluster
from headrace.client.raw import FETCH_VERSION_WITH_NAMES, Buffer
from headrace.errors import Err, KafkaError
from headrace.protocol import messages as m
from headrace.protocol.api import ApiKey
from headrace.records.batch import check_stored, iter_headers, read_records
from headrace.records.control import decode_marker
from headrace.records.reader import Record

NO_LEADER = -1
RESETS = {"earliest": EARLIEST, "latest": LATEST}
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

Aborted = tuple[tuple[int, int], ...]


class ConsumedRecord(msgspec.Struct, frozen=True, gc=False):
    """A record and where it is from."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


class Place:
    """How far one partition has been read."""

    __slots__ = ("end_offset", "leader_epoch", "position", "topic_id", "waiting", "waiting_end")

    def __init__(self, position: int, topic_id: bytes) -> None:
        self.position = position
        self.topic_id = topic_id
        """A position means nothing in another topic that has taken the name."""
        self.leader_epoch = -1
        self.end_offset = -1
        """Where the partition ended at the last fetch: the high watermark, or the last stable offset."""
        self.waiting: Iterator[tuple[int, Record]] | None = None
        self.waiting_end = position

    def take(self, limit: int) -> list[Record]:
        """Up to `limit` records of those fetched; the position is behind them then.

        KafkaError where a damaged batch comes next. The position stays before it, so it is fetched, and told, again.
        """
        found: list[Record] = []
        while self.waiting is not None and len(found) < limit:
            try:
                step = next(self.waiting, None)
            except KafkaError:
                self.waiting = None
                if found:
                    break
                raise
            if step is None:
                # Control batches and what compaction has removed end a fetch without a record.
                self.position, self.waiting = max(self.position, self.waiting_end), None
                break
            self.leader_epoch, record = step
            found.append(record)
            self.position = record.offset + 1
        return found


class Fetcher:
    """The places of a consumer's partitions, and the requests under way for them."""

    def __init__(
        self,
        cluster: Cluster,
        on_news: Callable[[], None],
        *,
        reset: str,
        read_committed: bool,
        fetch_bytes_max: int,
        max_wait_ms: int,
    ) -> None:
        self.places: dict[TopicPartition, Place] = {}
        self.failure: ClientError | None = None
        self._cluster = cluster
        self._admin = Admin(cluster=cluster)
        self._on_news = on_news
        self._reset = reset
        self._read_committed = read_committed
        self._fetch_bytes_max = fetch_bytes_max
        self._max_wait_ms = max_wait_ms
        self._under_way: dict[int, asyncio.Task[None]] = {}
        self._pause_s = BACKOFF_S_MIN
        self._turn = 0

    def close(self) -> None:
        for task in self._under_way.values():
            task.cancel()
        self.places.clear()

    def take(self, limit: int) -> list[ConsumedRecord]:
        """Records that wait, from one partition after the other, another one first each time."""
        found: list[ConsumedRecord] = []
        partitions = list(self.places)
        self._turn += 1
        for place_in_turn in range(len(partitions)):
            topic, index = partitions[(self._turn + place_in_turn) % len(partitions)]
            try:
                taken = self.places[topic, index].take(limit - len(found))
            except KafkaError as error:
                if found:
                    # Of other partitions, and taken: they are given first, the damage is still there at the next call.
                    break
                raise RequestFailed(f"records of {topic}-{index}", error.error, error.message) from None
            found.extend(ConsumedRecord(topic, index, r.offset, r.timestamp, r.key, r.value, r.headers) for r in taken)
            if len(found) == limit:
                break
        return found

    def launch(self) -> None:
        """Ask every leader that is not being asked already."""
        by_leader: dict[int, list[TopicPartition]] = {}
        for (topic, index), place in self.places.items():
            if place.waiting is None:
                known = self._cluster.topics.get(topic)
                row = known.partitions.get(index) if known is not None and known.topic_id == place.topic_id else None
                by_leader.setdefault(row.leader if row is not None else NO_LEADER, []).append((topic, index))
        for leader, partitions in by_leader.items():
            if leader not in self._under_way:
                task = asyncio.create_task(self._work(leader, partitions), name=f"fetch from {leader}")
                self._under_way[leader] = task

    async def _work(self, leader: int, partitions: list[TopicPartition]) -> None:
        try:
            if leader == NO_LEADER:
                await self._look_again(partitions)
            else:
                await self._fetch(leader, partitions)
                self._pause_s = BACKOFF_S_MIN
        except RequestFailed as error:
            if error.error in LOOK_AGAIN or error.error.retriable or error.error is Err.BROKER_NOT_AVAILABLE:
                await self._look_again(partitions)
            else:
                self.failure = error
        except SecurityFailed as error:
            self.failure = error
        except ClientError:
            await self._look_again(partitions)
        finally:
            del self._under_way[leader]
            self._on_news()

    async def _look_again(self, partitions: Iterable[TopicPartition]) -> None:
        await asyncio.sleep(self._pause_s)
        self._pause_s = min(self._pause_s * 2, BACKOFF_S_MAX)
        try:
            await self._cluster.refresh({topic for topic, _ in partitions})
        except ClientError:
            return

    async def _fetch(self, leader: int, partitions: list[TopicPartition]) -> None:
        connection = await self._cluster.broker_connection(leader)
        # After the wait: partitions may be given up, and topics deleted, in the meantime.
        asked = {at: self.places[at] for at in partitions if at in self.places and self._is_known(*at)}
        starts = {at: place.position for at, place in asked.items()}
        if not starts:
            return await self._look_again(partitions)
        request, by_name = self._request(starts)
        answer: m.FetchResponse = await connection.request(
            ApiKey.FETCH,
            request,
            version_max=FETCH_VERSION_WITH_NAMES if by_name else None,
            timeout_s=self._max_wait_ms / 1000 + self._cluster.request_timeout_s,
        )
        check(answer.error_code, f"fetch from broker {leader}")
        names = {self._cluster.topics[topic].topic_id: topic for topic, _ in starts if topic in self._cluster.topics}
        look_again: list[TopicPartition] = []
        for topic in answer.responses:
            name = topic.topic or names.get(topic.topic_id, "")
            for row in topic.partitions:
                at = name, row.partition_index
                place = asked.get(at)
                # Given up, or moved by a seek, while the answer was on its way.
                if place is None or self.places.get(at) is not place or place.position != starts[at]:
                    continue
                if row.error_code in LOOK_AGAIN:
                    look_again.append(at)
                elif row.error_code == Err.OFFSET_OUT_OF_RANGE:
                    await self._start_over(at, place)
                else:
                    check(row.error_code, f"fetch from {name}-{row.partition_index} at offset {place.position}")
                    self._keep(place, row)
        if look_again:
            await self._look_again(look_again)

    def _is_known(self, topic: str, index: int) -> bool:
        found = self._cluster.topics.get(topic)
        return found is not None and index in found.partitions and found.topic_id == self.places[topic, index].topic_id

    def _request(self, starts: dict[TopicPartition, int]) -> tuple[m.FetchRequest, bool]:
        kind = m.FetchRequest
        topics: dict[str, m.FetchRequest.FetchTopic] = {}
        for (topic, index), offset in starts.items():
            known = self._cluster.topics[topic]
            row = topics.setdefault(topic, kind.FetchTopic(topic=topic, topic_id=known.topic_id, partitions=[]))
            row.partitions.append(
                kind.FetchPartition(
                    partition=index,
                    current_leader_epoch=known.partitions[index].leader_epoch,
                    fetch_offset=offset,
                    partition_max_bytes=self._fetch_bytes_max,
                )
            )
        request = kind(
            max_wait_ms=self._max_wait_ms,
            min_bytes=1,
            max_bytes=self._fetch_bytes_max * max(1, min(len(starts), 16)),
            isolation_level=int(self._read_committed),
            topics=list(topics.values()),
        )
        return request, any(row.topic_id == NO_TOPIC_ID for row in topics.values())

    def _keep(self, place: Place, row: m.FetchResponse.PartitionData) -> None:
        place.end_offset = row.last_stable_offset if self._read_committed else row.high_watermark
        records = row.records if row.records is not None else b""
        end = max((header.end_offset for _, header in iter_headers(records)), default=place.position)
        if end > place.position:
            aborted: Aborted = ()
            if self._read_committed:
                aborted = tuple((t.producer_id, t.first_offset) for t in row.aborted_transactions or ())
            place.waiting = visible_records(records, place.position, aborted)
            place.waiting_end = end

    async def _start_over(self, at: TopicPartition, place: Place) -> None:
        topic, index = at
        if self._reset not in RESETS:
            message = f"offset {place.position} is not there any more, or not yet, and no auto_offset_reset is set"
            raise RequestFailed(f"{topic}-{index}", Err.OFFSET_OUT_OF_RANGE, message)
        found = await self.reset_offset(at)
        if self.places.get(at) is place:
            place.position = found

    async def reset_offset(self, at: TopicPartition) -> int:
        """Where a partition begins for one that has read nothing of it."""
        topic, index = at
        if self._reset not in RESETS:
            raise RequestFailed(
                f"{topic}-{index}", Err.OFFSET_OUT_OF_RANGE, "no offset is committed, and no auto_offset_reset is set"
            )
        return (await self._admin.list_offsets(topic, {index: RESETS[self._reset]}))[index].offset


def visible_records(records: Buffer, position: int, aborted: Aborted) -> Iterator[tuple[int, Record]]:
    """Every record from `position` on with its batch's leader epoch, without control records and aborted transactions.

    `aborted` has (producer id, first offset) of transactions that reach into `records`. Raises KafkaError for bytes
    that are no sound batch.
    """
    view = memoryview(records)
    coming = sorted(aborted, key=lambda pair: pair[1])
    ended: set[int] = set()
    for at, header in iter_headers(records):
        check_stored(view, at, at + header.size)
        begun = bisect_left(coming, header.end_offset, key=lambda pair: pair[1])
        ended.update(producer_id for producer_id, _ in coming[:begun])
        del coming[:begun]
        if header.is_control:
            marker = decode_marker(view, at, header)
            if marker is not None and not marker.committed:
                ended.discard(header.producer_id)
            continue
        if header.end_offset <= position or (header.is_transactional and header.producer_id in ended):
            continue
        for record in read_records(view, at, header):
            if record.offset >= position:
                yield header.leader_epoch, record
