"""What each follower copies from this node, as it last said; and what it has to be told.

A follower names its partitions once, then only what changes, and an answer looks only at partitions with news: ten
thousand that are idle cost nothing. News are told to sessions by the partitions themselves (`Partition.watchers`).
"""

from typing import Protocol

from headrace.broker.net.connection import Connection
from headrace.broker.replicas.partition import Partition
from headrace.protocol.hot import FetchQuery
from headrace.replication.fetch_sessions import EPOCH_MAX

Topic = str | bytes
Key = tuple[Topic, int]
LIVE_MS = 1_000
"""A follower that was answered so long ago, on a connection that still stands, is about to ask again."""


class Woken(Protocol):
    """A follower's request that waits."""

    def wake(self) -> None:
        """There may be enough now."""
        ...

    def expire(self) -> None:
        """Answer with what there is."""
        ...


class Row:
    """One partition in a follower's session: what it asked for last, and what it was told."""

    __slots__ = (
        "index", "last_epoch", "leader_epoch", "log_start", "max_bytes", "named", "offset", "partition", "session",
        "told_high_watermark", "told_log_start", "topic",
    )  # fmt: skip

    def __init__(self, session: "FollowerSession", topic: Topic, index: int) -> None:
        self.session = session
        self.topic = topic
        self.index = index
        self.offset = self.log_start = self.leader_epoch = self.last_epoch = -1
        self.max_bytes = 0
        self.named = False
        """By the request being handled: so its offset is news about the follower."""
        self.partition: Partition | None = None
        self.told_high_watermark = -1
        self.told_log_start = -1

    def ask(self, leader_epoch: int, offset: int, last_epoch: int, log_start: int, max_bytes: int) -> None:
        """What a request says of it."""
        self.leader_epoch = leader_epoch
        self.offset = offset
        self.last_epoch = last_epoch
        self.log_start = log_start
        self.max_bytes = max_bytes
        self.named = True
        self.session.dirty[self] = None

    # A partition's watcher

    def appended(self) -> None:
        session = self.session
        dirty = session.dirty
        if self not in dirty:
            dirty[self] = None
            partition = self.partition
            if partition is not None and partition.leader is not None:
                follower = partition.leader.followers.get(session.replica_id)
                if follower is not None and follower.end_offset >= 0:
                    # It was not dirty, so it had everything up to now, as it said with its last request.
                    partition.leader.was_caught_up(follower, session.fetched_ms)
        waiter = session.waiter
        if waiter is not None:
            waiter.wake()
        else:
            session.overtaken = True

    def committed(self) -> None:
        session = self.session
        session.dirty[self] = None
        if session.prompt and session.waiter is not None:
            session.waiter.wake()

    def live_replica(self, now_ms: int) -> int:
        return self.session.replica_id if self.session.is_live(now_ms) else -1

    def watch(self, partition: Partition | None) -> None:
        if self.partition is not None:
            self.partition.watchers.pop(self, None)
        self.partition = partition
        if partition is not None:
            partition.watchers[self] = None


class FollowerSession:
    """All that one fetcher of one follower copies from this node."""

    __slots__ = (
        "connection", "dirty", "epoch", "fetched_ms", "id", "overtaken", "prompt", "replica_epoch",
        "replica_id", "rows",
        "waiter",
    )  # fmt: skip

    def __init__(self, session_id: int, replica_id: int, replica_epoch: int, prompt: bool) -> None:
        self.id = session_id
        self.epoch = 1
        self.replica_id = replica_id
        self.replica_epoch = replica_epoch
        self.prompt = prompt
        """Whether a new high watermark is told at once: where consumers read from followers. Otherwise it goes along
        with the next records, or when the follower's patience ends, which saves a round trip for every commit."""
        self.fetched_ms = 0
        self.connection: Connection | None = None
        """On which its last request came."""
        self.rows: dict[Key, Row] = {}
        self.dirty: dict[Row, None] = {}
        """Those with something to tell, in the order in which they are served."""
        self.waiter: Woken | None = None
        self.overtaken = False
        """More was appended while no request waited for it."""

    def is_live(self, now_ms: int) -> bool:
        """Its request waits here, or was answered a moment ago: a busy one hardly ever waits."""
        if self.waiter is not None:
            return True
        connection = self.connection
        return connection is not None and not connection.closed and now_ms - self.fetched_ms <= LIVE_MS

    def advance(self) -> None:
        """A request has come: the next one has the next number."""
        self.epoch = 1 if self.epoch == EPOCH_MAX else self.epoch + 1

    def name(self, query: FetchQuery) -> None:
        """Take what a request says about partitions."""
        rows = self.rows
        for topic, partitions in query.topics:
            for index, leader_epoch, offset, last_epoch, log_start, max_bytes, _, _ in partitions:
                row = rows.get((topic, index))
                if row is None:
                    row = rows[topic, index] = Row(self, topic, index)
                row.ask(leader_epoch, offset, last_epoch, log_start, max_bytes)
        for topic, indexes in query.forgotten:
            for index in indexes:
                row = rows.pop((topic, index), None)
                if row is not None:
                    row.watch(None)
                    self.dirty.pop(row, None)

    def registered_anew(self, replica_epoch: int) -> None:
        """In the same process, or it would begin another session: what it said last, it says again under its new
        epoch."""
        self.replica_epoch = replica_epoch
        for row in self.rows.values():
            row.named = True
            self.dirty[row] = None

    def close(self) -> None:
        for row in self.rows.values():
            row.watch(None)
        self.rows.clear()
        self.dirty.clear()
        self.connection = None
