"""A session with a ZooKeeper ensemble, as the quorum uses it: the port that `session` implements on kazoo."""

from asyncio import Future
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from headrace.quorum.zookeeper.operations import Operation


class Stat(NamedTuple):
    version: int
    owner: int
    """The session that an ephemeral node goes with, 0 for others."""
    created: int
    """The transaction that created it: another for each node that ever had this path."""


class ZooKeeperError(Exception):
    """Something asked of ZooKeeper was not done, or it is not known whether it was."""


class Disconnected(ZooKeeperError):
    """The connection or the session ended before an answer: whether it was done is not known."""


class Refused(ZooKeeperError):
    """Not done: one operation of a multi could not be, and with it none was."""

    def __init__(self, operation: Operation, reason: str) -> None:
        super().__init__(f"{type(operation).__name__.lower()} {operation.path}: {reason}")
        self.operation = operation
        self.reason = reason
        """ZooKeeper's word: NodeExists, NoNode, BadVersion, NotEmpty."""


class Session(Protocol):
    """Requests are carried out in the order in which they are made, also where no answer is waited for.

    A session that has expired is followed by a new one with another id. Watches do not outlive a connection: `changed`
    is called then, as it is whenever a watch fires, and everything has to be read again.
    """

    @property
    def id(self) -> int:
        """0 while there is none."""
        ...

    @property
    def connected(self) -> bool: ...

    def listen(self, changed: Callable[[], None]) -> None:
        """Called on the loop when a watch has fired, and when the connection or the session is another."""
        ...

    def get(self, path: str, *, watch: bool = False) -> "Future[tuple[bytes, Stat] | None]":
        """None if there is no such node; it is watched all the same. Raises Disconnected."""
        ...

    def children(self, path: str, *, watch: bool = False) -> "Future[list[str] | None]":
        """Raises Disconnected."""
        ...

    def multi(self, operations: Sequence[Operation]) -> "Future[None]":
        """All of them or none. Raises Refused, Disconnected."""
        ...

    async def close(self) -> None:
        """End the session, and with it its ephemeral nodes."""
        ...
