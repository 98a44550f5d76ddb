"""Who waits for something at a partition, and what each of them is told."""

from asyncio import AbstractEventLoop
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from headrace.broker.replicas.partition import Partition


class AckWaiter(Protocol):
    """A Produce request that waits for its records to be committed."""

    @property
    def outlives_leader(self) -> bool:
        """When another node takes over: whether it goes on waiting until that node's log says what became of its
        records."""
        ...

    def committed(self) -> None:
        """One of its partitions has got there."""
        ...

    def lost(self, partition: "Partition") -> None:
        """One of its partitions will not: its records were cut off, or this node cannot tell any more."""
        ...


class FetchWaiter(Protocol):
    """A Fetch request that waits for records."""

    def advanced(self, partition: "Partition") -> None:
        """More can be read of `partition`, or it has gone."""
        ...

    def expire(self) -> None:
        """Answer with what there is."""
        ...


class Watcher(Protocol):
    """A follower's session, at one partition: it wants all there is, not only what is committed."""

    def live_replica(self, now_ms: int) -> int:
        """The follower, if its next Fetch is here or cannot be far; -1 if nothing was heard for a while."""
        ...

    def appended(self) -> None:
        """There is more in the log, or its leader has changed."""
        ...

    def committed(self) -> None:
        """The high watermark has moved."""
        ...


class Copying(Protocol):
    """What copies a partition from its leader."""

    def durable(self) -> None:
        """All that was written so far is on the disk."""
        ...


class Wakeups:
    """Wakes the readers of all partitions that have more to read, together, once in a turn of the loop."""

    __slots__ = ("_loop", "_woken")

    def __init__(self, loop: AbstractEventLoop) -> None:
        self._loop = loop
        self._woken: dict[Partition, None] = {}

    def fetchable(self, partition: "Partition") -> None:
        """Readers of `partition` can go on."""
        if not self._woken:
            self._loop.call_soon(self._wake)
        self._woken[partition] = None

    def _wake(self) -> None:
        woken, self._woken = self._woken, {}
        for partition in woken:
            for waiter in list(partition.fetch_waiters):
                waiter.advanced(partition)
