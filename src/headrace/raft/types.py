"""The words of the quorum: replicas, places in the log, the state that survives a crash, and what the rules read of a
log."""

from typing import NamedTuple, Protocol

from headrace.raft.voters import History, VoterSet

NOBODY = -1
NO_DIRECTORY = bytes(16)
"""A directory id that is not known: static voters have none."""

Address = tuple[str, int]
Endpoints = tuple[tuple[str, str, int], ...]
"""(listener name, host, port)"""


class RaftError(Exception):
    """What must not happen while every node keeps the rules and its disk: going on would lose committed records."""


class ReplicaKey(NamedTuple):
    """A node on one disk. With another disk it is another replica: the votes it gave are not there."""

    id: int
    directory_id: bytes = NO_DIRECTORY

    def matches(self, other: "ReplicaKey") -> bool:
        """Whether the two may be the same, where one side may not know the directory."""
        return self.id == other.id and (
            NO_DIRECTORY in (self.directory_id, other.directory_id) or self.directory_id == other.directory_id
        )


class OffsetEpoch(NamedTuple):
    """Where a log, an epoch or a snapshot ends (exclusive), and in which epoch its last record was written."""

    offset: int
    epoch: int

    def at_least(self, other: "OffsetEpoch") -> bool:
        """Raft's order of logs: the later epoch wins, then the longer log."""
        return (self.epoch, self.offset) >= (other.epoch, other.offset)


class Election(NamedTuple):
    """What a node must not forget: on disk before anything is said in its epoch."""

    epoch: int = 0
    leader_id: int = NOBODY
    voted: ReplicaKey | None = None


class RaftMember(NamedTuple):
    """Who this node is."""

    key: ReplicaKey
    endpoints: Endpoints = ()
    """Of this node as a controller; empty for one that only follows."""
    listener: str = "CONTROLLER"
    """By which of a voter's endpoints to reach it."""


class RaftOptions(NamedTuple):
    """controller.quorum.*, and whether this node is a controller at all."""

    is_controller: bool = True
    """False for a node that only follows: it never votes, whatever the voters say."""
    bootstrap_servers: tuple[Address, ...] = ()
    """Where to ask who leads, while no voters are known or none of them answers."""
    election_timeout_ms: int = 1000
    fetch_timeout_ms: int = 2000
    election_backoff_ms_max: int = 1000
    request_timeout_ms: int = 2000
    retry_backoff_ms: int = 20
    fetch_wait_ms: int = 500
    first_election_ms: int = 100
    """A voter that starts asks for pre-votes about this soon: they disturb nobody, and a new cluster need not wait."""
    auto_join: bool = False
    """A controller without a vote asks for one."""
    kraft_versions: tuple[int, int] = (0, 1)


class RaftLog(Protocol):
    """What the rules read of a replicated log. It changes only when a node's effects are executed."""

    @property
    def start_offset(self) -> int: ...

    @property
    def end_offset(self) -> int: ...

    @property
    def durable_end(self) -> int:
        """Below it every record survives a crash of this node."""
        ...

    @property
    def last_epoch(self) -> int:
        """Of the last record, or of the snapshot that the log begins behind; 0 for an empty log."""
        ...

    @property
    def latest_snapshot(self) -> OffsetEpoch | None: ...

    @property
    def earliest_snapshot(self) -> OffsetEpoch | None: ...

    @property
    def voters(self) -> History[VoterSet]:
        """By the offset of the record that says so; in force as soon as it is written."""
        ...

    @property
    def kraft_versions(self) -> History[int]: ...

    def end_of_epoch(self, epoch: int) -> OffsetEpoch:
        """Where the largest known epoch that is not above `epoch` ends."""
        ...

    def snapshot_size(self, snapshot: OffsetEpoch) -> int | None: ...
