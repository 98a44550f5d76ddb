"""Which partitions of a large session have something to tell: the others cost nothing, however many they are.

A partition is *quiet* when its consumer has read all it may, and was told all there is to tell. Who waits there in its
place stirs it when more is committed, or when the partition leaves. What nobody tells of (a log's start has moved, a
replica follows another leader) is found by looking at some of the quiet ones again with every few requests.
"""

from collections.abc import Iterable
from itertools import islice
from typing import NamedTuple, Protocol

from headrace.broker.handlers.fetch.reader import Reading
from headrace.broker.replicas.hosted import Replicas
from headrace.broker.replicas.partition import Partition
from headrace.protocol.hot import READ_COMMITTED
from headrace.replication.fetch_sessions import Session, Target

LARGE = 32
"""Partitions from which on a session is looked after in this way. To go over fewer is as cheap."""
SWEEP, SWEEP_MS = 256, 100
"""So many quiet partitions are looked at again, so long after the last time."""


class Manner(NamedTuple):
    """How a request wants to read. What is quiet for one that reads otherwise is not known."""

    isolation: int
    from_followers: bool


class Waiting(Protocol):
    """A request of the session that waits."""

    def stirred(self, partition: Partition, target: Target) -> None:
        """There may be more to read of a partition that was quiet until now."""
        ...

    def expire(self) -> None:
        """Answer with what there is."""
        ...


class Quiet:
    """Stands at a quiet partition for its session. A `FetchWaiter`."""

    __slots__ = ("news", "partition", "target")

    def __init__(self, news: "SessionNews", partition: Partition, target: Target) -> None:
        self.news = news
        self.partition = partition
        self.target = target
        partition.fetch_waiters[self] = None

    def advanced(self, partition: Partition) -> None:
        self.news.stir(self)

    def expire(self) -> None:
        if self.news.waiting is not None:
            self.news.waiting.expire()

    def leave(self) -> None:
        self.partition.fetch_waiters.pop(self, None)

    @property
    def is_told(self) -> bool:
        """Whether what was told still holds, for what can change without a word."""
        partition, target = self.partition, self.target
        return (
            partition.high_watermark == target.told_high_watermark
            and partition.log.log_start_offset == target.told_log_start
            and partition.in_use
            and (target.leader_epoch < 0 or target.leader_epoch == partition.leader_epoch)
        )


class SessionNews:
    """One session's partitions, quiet and not. Every target of the session is in just one of the two."""

    __slots__ = ("_quiet", "_swept_ms", "lively", "manner", "waiting")

    def __init__(self, session: Session, manner: Manner) -> None:
        self.manner = manner
        self.lively: dict[Target, None] = dict.fromkeys(session.targets.values())
        """Those that have to be looked at, in the order in which they are served."""
        self.waiting: Waiting | None = None
        self._quiet: dict[Target, Quiet] = {}
        self._swept_ms = 0

    def due(self, replicas: Replicas, now_ms: int) -> list[Target]:
        """What the next answer has to look at."""
        if now_ms - self._swept_ms >= SWEEP_MS:
            self._swept_ms = now_ms
            self._sweep(replicas)
        return [*self.lively]

    def settle(self, reading: Reading[Target], partitions: Iterable[tuple[Partition, Target]]) -> None:
        """After a look: who has nothing more to tell is quiet; who got records is served last the next time.

        `partitions` are those that could be read, in the order of the results.
        """
        committed = self.manner.isolation == READ_COMMITTED
        readable = iter(partitions)
        at = next(readable, None)
        for target, (_, error, high_watermark, stable, log_start, length, _, _, detail) in reading.results:
            if at is None:
                return
            partition, readable_target = at
            if readable_target is not target:
                continue  # an error, or something else that has to be told
            at = next(readable, None)
            if length:
                self._last(target)
            elif (
                error == 0
                and detail is None
                and target.offset >= (stable if committed else high_watermark)
                and target.told_high_watermark == high_watermark
                and target.told_log_start == log_start
                and target in self.lively
            ):
                del self.lively[target]
                self._quiet[target] = Quiet(self, partition, target)

    def stir(self, quiet: Quiet) -> None:
        target = quiet.target
        self.named(target)
        if self.waiting is not None:
            self.waiting.stirred(quiet.partition, target)

    # ---- what a session says of its targets

    def named(self, target: Target) -> None:
        """A request has something new to say of it, or it is new."""
        quiet = self._quiet.pop(target, None)
        if quiet is not None:
            quiet.leave()
        self.lively[target] = None

    def forgotten(self, target: Target) -> None:
        self.named(target)
        del self.lively[target]

    def close(self) -> None:
        for quiet in self._quiet.values():
            quiet.leave()
        self._quiet.clear()
        self.lively.clear()

    def _last(self, target: Target) -> None:
        if target in self.lively:
            del self.lively[target]
            self.lively[target] = None

    def _sweep(self, replicas: Replicas) -> None:
        for target, quiet in [*islice(self._quiet.items(), SWEEP)]:
            del self._quiet[target]
            if quiet.is_told and replicas.known(target.topic, target.index) is quiet.partition:
                self._quiet[target] = quiet
            else:
                quiet.leave()
                self.lively[target] = None
