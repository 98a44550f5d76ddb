"""What is asked of ZooKeeper: operations that one `multi` does all or none of, and how large a multi may become."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

ANY_VERSION = -1
MULTI_BYTES_MAX = 512_000
"""Half of ZooKeeper's jute.maxbuffer, which a request of one byte more than 1 MB makes the server hang up at."""
OVERHEAD_BYTES = 48
"""Of an operation, beside its path and data: type, lengths, version, ACL."""


class Create(NamedTuple):
    path: str
    data: bytes = b""
    ephemeral: bool = False
    sequence: bool = False
    """ZooKeeper adds ten digits to the path, higher ones each time."""


class Set(NamedTuple):
    path: str
    data: bytes
    version: int = ANY_VERSION


class Delete(NamedTuple):
    path: str
    version: int = ANY_VERSION


class Check(NamedTuple):
    """Refuses the whole multi if the node has changed, or is gone."""

    path: str
    version: int


Operation = Create | Set | Delete | Check


def size_of(operation: Operation) -> int:
    data = operation.data if isinstance(operation, Create | Set) else b""
    return OVERHEAD_BYTES + len(operation.path.encode()) + len(data)


def in_multis(operations: Iterable[Operation], bytes_max: int = MULTI_BYTES_MAX) -> Iterator[list[Operation]]:
    """The same operations in the same order, in as few multis as there must be."""
    found: list[Operation] = []
    total = 0
    for operation in operations:
        size = size_of(operation)
        if found and total + size > bytes_max:
            yield found
            found, total = [], 0
        found.append(operation)
        total += size
    if found:
        yield found
