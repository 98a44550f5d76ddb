"""Who has a vote, and how that changed along the log."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Generic, TypeVar

import msgspec

if TYPE_CHECKING:
    from headrace.raft.types import Address, ReplicaKey

T = TypeVar("T")
_NO_DIRECTORY = bytes(16)


class Voter(msgspec.Struct, frozen=True, gc=False):
    """One controller that has a vote, and where it is."""

    id: int
    directory_id: bytes
    endpoints: tuple[tuple[str, str, int], ...]
    """(listener name, host, port)"""
    kraft_versions: tuple[int, int] = (0, 1)

    def address(self, listener: str) -> "Address | None":
        """By this listener, or by the only one there is."""
        for name, host, port in self.endpoints:
            if name == listener or len(self.endpoints) == 1:
                return host, port
        return None


class VoterSet:
    """Immutable; a change makes another."""

    __slots__ = ("_by_id",)

    def __init__(self, voters: Iterable[Voter] = ()) -> None:
        self._by_id = {voter.id: voter for voter in sorted(voters, key=lambda voter: voter.id)}

    def __iter__(self) -> Iterator[Voter]:
        return iter(self._by_id.values())

    def __len__(self) -> int:
        return len(self._by_id)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, VoterSet) and self._by_id == other._by_id

    def __hash__(self) -> int:
        return hash(tuple(self._by_id))

    def __repr__(self) -> str:
        return f"VoterSet({', '.join(map(str, self._by_id))})"

    @property
    def ids(self) -> list[int]:
        return list(self._by_id)

    @property
    def majority(self) -> int:
        return len(self._by_id) // 2 + 1

    def get(self, node_id: int) -> Voter | None:
        return self._by_id.get(node_id)

    def has(self, key: "ReplicaKey") -> bool:
        """Whether a node has a vote on the disk it runs on. Static voters name no disks: there the id is all."""
        voter = self._by_id.get(key.id)
        return voter is not None and voter.directory_id in (_NO_DIRECTORY, key.directory_id)

    def with_voter(self, voter: Voter) -> "VoterSet":
        """With `voter` added, or in the place of the one with its id."""
        return VoterSet([*(v for v in self if v.id != voter.id), voter])

    def without(self, key: "ReplicaKey") -> "VoterSet | None":
        """None unless exactly this replica has a vote, and not the only one."""
        if not self.has(key) or len(self) == 1:
            return None
        return VoterSet(voter for voter in self if voter.id != key.id)


class History(Generic[T]):
    """What control records said, by their offsets. The last is in force; a truncation takes it back."""

    __slots__ = ("_entries",)

    def __init__(self, value: T, offset: int = -1) -> None:
        self._entries: list[tuple[int, T]] = [(offset, value)]

    @property
    def last(self) -> T:
        return self._entries[-1][1]

    @property
    def last_offset(self) -> int:
        """-1 while the log itself has said nothing."""
        return self._entries[-1][0]

    def add(self, offset: int, value: T) -> None:
        assert offset > self.last_offset, (offset, self.last_offset)
        self._entries.append((offset, value))

    def at(self, offset: int) -> T:
        """What was in force behind the record at `offset`."""
        for at, value in reversed(self._entries):
            if at <= offset:
                return value
        return self._entries[0][1]

    def truncate_from(self, offset: int) -> None:
        """Forget what records from `offset` on said."""
        while len(self._entries) > 1 and self._entries[-1][0] >= offset:
            self._entries.pop()

    def restart(self, offset: int, value: T) -> None:
        """A snapshot says so, and nothing that was known before counts."""
        self._entries = [(offset, value)]
