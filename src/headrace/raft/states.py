"""What a node is while it does not lead. All deadlines are the node's clock, in milliseconds."""

from headrace.raft.types import NOBODY, Endpoints, OffsetEpoch, ReplicaKey
from headrace.raft.voters import VoterSet


class Unattached:
    """Knows no leader, or has lost the one it knew. May have voted. An observer looks for the leader; so does a
    voter."""

    __slots__ = ("deadline_ms",)

    def __init__(self, deadline_ms: int) -> None:
        self.deadline_ms = deadline_ms
        """Then a voter becomes prospective."""


class Follower:
    """Fetches from the leader of its epoch."""

    __slots__ = ("deadline_ms", "endpoints", "has_fetched", "leader_id", "position", "snapshot", "voters_at_ms")

    def __init__(self, leader_id: int, endpoints: Endpoints, deadline_ms: int, voters_at_ms: int) -> None:
        self.leader_id = leader_id
        self.endpoints = endpoints
        self.deadline_ms = deadline_ms
        """Then a voter becomes prospective: the leader has been silent for too long."""
        self.has_fetched = False
        """Has the leader ever answered? One that did not may not be there, so that others may try to lead."""
        self.snapshot: OffsetEpoch | None = None
        """Being fetched, in the place of a log that the leader no longer has."""
        self.position = 0
        self.voters_at_ms = voters_at_ms
        """When to check whether the voters have this node as it is now."""


class Nominee:
    """Asks for votes. Prospective while `pre_vote`: it would like to know whether it could win before it disturbs
    anybody."""

    __slots__ = (
        "deadline_ms", "endpoints", "gone", "granted", "in_flight", "leader_id", "lost", "next_ask_ms", "pre_vote",
        "rejected", "voters",
    )  # fmt: skip

    def __init__(
        self,
        voters: VoterSet,
        deadline_ms: int,
        *,
        pre_vote: bool,
        leader_id: int = NOBODY,
        endpoints: Endpoints = (),
    ) -> None:
        self.voters = voters
        self.pre_vote = pre_vote
        self.deadline_ms = deadline_ms
        self.leader_id = leader_id
        """Of a prospective: whom it goes back to if it does not win."""
        self.endpoints = endpoints
        self.granted: set[int] = set()
        self.rejected: set[int] = set()
        self.gone: set[int] = set()
        """Nothing listens there: they may be asked again, but are not to be waited for."""
        self.in_flight: set[int] = set()
        self.next_ask_ms: dict[int, int] = {}
        self.lost = False

    @property
    def won(self) -> bool:
        return len(self.granted) >= self.voters.majority

    @property
    def cannot_win(self) -> bool:
        # Once somebody has said no, a third that is dead does not help: better to ask all of them again soon.
        missing = self.rejected | self.gone if self.rejected else self.rejected
        return len(self.voters) - len(missing) < self.voters.majority

    def unheard(self) -> list[int]:
        return [voter for voter in self.voters.ids if voter not in self.granted and voter not in self.rejected]


class Resigned:
    """Led this epoch and leads it no more. Tells the others, and waits for one of them to take over."""

    __slots__ = ("deadline_ms", "in_flight", "next_ask_ms", "successors")

    def __init__(self, others: list[int], successors: tuple[ReplicaKey, ...], deadline_ms: int, now_ms: int) -> None:
        self.successors = successors
        self.deadline_ms = deadline_ms
        self.next_ask_ms = dict.fromkeys(others, now_ms)
        self.in_flight: set[int] = set()
