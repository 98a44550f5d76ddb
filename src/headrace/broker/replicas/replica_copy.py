"""One partition as a follower copies it: what to ask its leader for, and what came so far of a hole in its log."""

from typing import TYPE_CHECKING, Protocol

from headrace.broker.replicas.partition import Partition
from headrace.broker.replicas.patch import Patch

if TYPE_CHECKING:
    from asyncio import TimerHandle

Key = tuple[bytes, int]

BACKOFF_MS = 10
"""After a refusal or a lost connection; doubled up to `replica.fetch.backoff.ms`. Short, since most of them mean that
one node has heard of a new leader a moment before another."""


class Fetcher(Protocol):
    """Who asks a leader for it."""

    def durable(self, copy: "Copy") -> None:
        """All that was written of it is on the disk."""
        ...

    def retry_copy(self, copy: "Copy") -> None:
        """What it was put off for may be over."""
        ...

    def ask_again(self, copy: "Copy") -> None:
        """What to ask for has changed, and not by an answer."""
        ...

    def space_changed(self, copy: "Copy") -> None:
        """Its disk is full, or not any more."""
        ...


class Copy:
    """One partition as it is copied in one leader epoch."""

    __slots__ = (
        "asked", "backoff_ms", "behind", "fetcher", "leader_epoch", "log_start", "partition", "patch", "since", "timer",
        "unvouched",
    )  # fmt: skip

    def __init__(self, fetcher: Fetcher, partition: Partition) -> None:
        self.fetcher = fetcher
        self.partition = partition
        self.leader_epoch = partition.leader_epoch
        self.log_start = -1
        """As the leader was last told."""
        self.asked = 0
        """The offset that was last asked for."""
        self.since = 0
        """The request that first named it: answers to earlier ones are about another epoch. 0: not asked for now."""
        self.backoff_ms = BACKOFF_MS
        self.behind = True
        """Without something that is committed: not in sync, so it may be throttled."""
        self.timer: TimerHandle | None = None
        self.patch: Patch | None = None
        """What came so far of the first hole in its log."""
        self.unvouched = False
        """Cut, and there was no room for the checkpoint that says so: nothing may be written to it before there is."""

    @property
    def key(self) -> Key:
        return self.partition.topic_id, self.partition.index

    @property
    def next_offset(self) -> int:
        """What to ask for: what comes after the log's end, or what a damaged segment has taken out of it."""
        log = self.partition.log
        if log.holes:
            if self.patch is not None and self.patch.is_valid:
                return self.patch.next_offset
            return max(log.log_start_offset, min(hole.start_offset for hole in log.holes))
        return log.end_offset

    @property
    def last_epoch(self) -> int:
        """The epoch of the last record before `next_offset`: the leader compares it with its own."""
        log = self.partition.log
        if log.holes:
            if self.patch is not None and self.patch.is_valid:
                return self.patch.last_epoch
            return log.epochs.epoch_for(self.next_offset - 1)
        return log.epochs.latest_epoch

    @property
    def is_current(self) -> bool:
        return self.partition.copying is self

    def durable(self) -> None:
        self.fetcher.durable(self)

    def drop_patch(self) -> None:
        patch, self.patch = self.patch, None
        if patch is not None:
            patch.discard()

    def end(self) -> None:
        self.drop_patch()
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        if self.partition.copying is self:
            self.partition.copying = None


def isr_changed(partition: Partition) -> None:
    """Who is in sync is news for a replica that waits to be counted on no longer."""
    if partition.log.holes and isinstance(partition.copying, Copy):
        partition.copying.fetcher.retry_copy(partition.copying)


def holes_changed(partition: Partition) -> None:
    """More of it is missing, or less: whoever copies it asks for something else now, and its leader hears of it."""
    if isinstance(partition.copying, Copy):
        partition.copying.fetcher.ask_again(partition.copying)


def space_changed(partition: Partition) -> None:
    """The partition's log dir has become full, or has room again."""
    if isinstance(partition.copying, Copy):
        partition.copying.fetcher.space_changed(partition.copying)
