"""What nodes of a quorum say to each other, what happens to one, and what it then wants done.

An event goes into `RaftNode.step`, effects come out. Requests are answered by replies; the driver keeps the request and
hands it back with its answer, so that a node needs no numbers to tell a late answer from the one it waits for.
"""

from typing import Any, NamedTuple

from headrace.errors import Err
from headrace.raft.types import NOBODY, Address, Election, Endpoints, OffsetEpoch, ReplicaKey
from headrace.raft.voters import Voter, VoterSet

# --- requests ---------------------------------------------------------------------------------------------------------


class Vote(NamedTuple):
    epoch: int
    """The candidate's own; with `pre_vote` the one that it is still in."""
    candidate: ReplicaKey
    last: OffsetEpoch
    pre_vote: bool
    voter: ReplicaKey | None = None
    """Whom the candidate thinks it is asking."""


class BeginEpoch(NamedTuple):
    epoch: int
    leader_id: int
    endpoints: Endpoints = ()
    voter: ReplicaKey | None = None


class EndEpoch(NamedTuple):
    epoch: int
    leader_id: int
    successors: tuple[ReplicaKey, ...] = ()
    """Most caught up first: each waits longer than the one before it."""
    endpoints: Endpoints = ()


class Fetch(NamedTuple):
    epoch: int
    replica: ReplicaKey
    offset: int
    """What the sender has, durable: everything below it."""
    last_epoch: int
    wait_ms: int = 0
    high_watermark: int = 1 << 62
    """The sender's; so large where it does not say that news of it never wakes it."""


class FetchSnapshot(NamedTuple):
    epoch: int
    replica: ReplicaKey
    snapshot: OffsetEpoch
    position: int


class AddVoter(NamedTuple):
    voter: Voter
    timeout_ms: int = 0
    ack_when_committed: bool = True


class RemoveVoter(NamedTuple):
    voter: ReplicaKey


class UpdateVoter(NamedTuple):
    epoch: int
    voter: Voter


Request = Vote | BeginEpoch | EndEpoch | Fetch | FetchSnapshot | AddVoter | RemoveVoter | UpdateVoter


# --- replies ----------------------------------------------------------------------------------------------------------


class Leadership(NamedTuple):
    """Who the answering node thinks leads."""

    epoch: int
    leader_id: int = NOBODY
    endpoints: Endpoints = ()


class VoteReply(NamedTuple):
    error: Err
    leadership: Leadership
    granted: bool = False


class EpochReply(NamedTuple):
    """To BeginEpoch and EndEpoch."""

    error: Err
    leadership: Leadership


class FetchReply(NamedTuple):
    error: Err
    leadership: Leadership
    high_watermark: int = -1
    start_offset: int = -1
    diverging: OffsetEpoch | None = None
    snapshot: OffsetEpoch | None = None
    read_from: int | None = None
    """Where the records of the answer begin: its sender reads them from the log."""
    records: Any = None
    """On the receiving side."""


class SnapshotReply(NamedTuple):
    error: Err
    leadership: Leadership
    snapshot: OffsetEpoch | None = None
    size: int = 0
    position: int = 0
    chunk: Any = None
    """On the receiving side; the sender reads it from the snapshot."""


class VoterReply(NamedTuple):
    """To AddVoter, RemoveVoter and UpdateVoter."""

    error: Err
    leadership: Leadership
    message: str | None = None


Reply = VoteReply | EpochReply | FetchReply | SnapshotReply | VoterReply


# --- events -----------------------------------------------------------------------------------------------------------


class Received(NamedTuple):
    """A request from another node. `token` comes back with the reply."""

    token: Any
    request: Request


class Answered(NamedTuple):
    to: int
    request: Request
    reply: Reply


class Failed(NamedTuple):
    """A request that got no answer; whether it took effect is not known."""

    to: int
    request: Request
    refused: bool = False
    """Nothing listens at the address: the process is gone."""


class Persisted(NamedTuple):
    """The election state is on disk."""

    election: Election


class Durable(NamedTuple):
    """More of what was appended is on disk: `RaftLog.durable_end` says how much."""


class Stored(NamedTuple):
    """A cut is on disk; or a piece of a snapshot is and, if it was the last, the log begins behind it."""


class Appended(NamedTuple):
    """The log has grown; not yet on disk."""


class Rejected(NamedTuple):
    """What was to be appended or installed is damaged: nothing has changed."""


class Unwritten(NamedTuple):
    """What this node is to lead with could not be written: nothing has changed, and there may be room elsewhere."""


class PeerGone(NamedTuple):
    node_id: int


class Resign(NamedTuple):
    """Stop leading, in an orderly way: this node is about to go."""


class Upgrade(NamedTuple):
    """Somebody wants another kraft.version. Answered by a VoterReply, once it is committed."""

    token: Any
    version: int
    validate_only: bool


class Probed(NamedTuple):
    """The answer to a `Probe`: the versions of kraft.version that the node knows, or None."""

    voter_id: int
    kraft_versions: tuple[int, int] | None


LogEvent = Persisted | Durable | Stored | Appended | Rejected | Unwritten
"""What became of something that this node wrote, or was to write."""

Event = Received | Answered | Failed | PeerGone | Resign | Upgrade | Probed | LogEvent


# --- effects, to be executed in order ---------------------------------------------------------------------------------


class Persist(NamedTuple):
    """To disk before any later effect leaves this node; then `Persisted`."""

    election: Election


class Send(NamedTuple):
    to: int
    """NOBODY where only the address is known."""
    address: Address
    request: Request


class Answer(NamedTuple):
    token: Any
    reply: Reply


class LeaderChange(NamedTuple):
    """The first record of an epoch."""

    leader_id: int
    voters: tuple[int, ...]
    granting: tuple[int, ...]


ControlRecord = LeaderChange | int | VoterSet
"""An int is a kraft.version."""


class AppendControl(NamedTuple):
    """Write these as one batch of the leader's epoch; then `Appended`, and `Durable` once they are."""

    epoch: int
    records: tuple[ControlRecord, ...]


class AppendFetched(NamedTuple):
    """Write what the leader sent; then `Appended`, and `Durable` once it is, or `Rejected`."""

    records: Any


class Truncate(NamedTuple):
    """Cut the log; then `Stored`, once the cut is on disk."""

    end_offset: int


class StoreChunk(NamedTuple):
    """A piece of a snapshot. When `last`, install it: the log begins behind it; then `Stored`, or `Rejected`."""

    snapshot: OffsetEpoch
    position: int
    chunk: Any
    last: bool


class Probe(NamedTuple):
    """Ask a node which kraft.version it knows (ApiVersions); then `Probed`."""

    voter: Voter


Effect = Persist | Send | Answer | AppendControl | AppendFetched | Truncate | StoreChunk | Probe
