"""What a leader knows of the others: how far each has come, what is therefore committed, and who is still there."""

from collections.abc import Iterable, Iterator
from typing import Any

from headrace.raft.messages import AddVoter, Fetch
from headrace.raft.types import ReplicaKey
from headrace.raft.voters import VoterSet

NEVER_MS = 1 << 62
OBSERVER_SESSION_MS = 300_000
"""An observer that has been silent for so long is no longer counted as one."""
CAUGHT_UP_MS_MAX = 3_600_000
"""A replica that was level with the leader, and fetched within this time, may be given a vote."""
CHECK_QUORUM_FACTOR = 1.5
"""Times the fetch timeout: a leader that a majority has not fetched from for so long is one no more."""


class Progress:
    """One replica's place in the log. Times are the node's clock, -1 for never."""

    __slots__ = ("caught_up_ms", "end_offset", "fetched_ms", "key", "leader_end")

    def __init__(self, key: ReplicaKey) -> None:
        self.key = key
        self.end_offset = -1
        self.fetched_ms = -1
        self.caught_up_ms = -1
        self.leader_end = -1
        """Where the leader's log ended when it last fetched."""

    def fetched(self, offset: int, leader_end: int, now_ms: int) -> None:
        if offset >= leader_end:
            self.caught_up_ms = now_ms
        elif 0 < self.leader_end <= offset:
            # It now has all that there was when it asked before: it was level then.
            self.caught_up_ms = max(self.caught_up_ms, self.fetched_ms)
        self.leader_end = leader_end
        self.fetched_ms = now_ms
        self.end_offset = offset


class Parked:
    """A fetch that waits for something new."""

    __slots__ = ("deadline_ms", "request", "token")

    def __init__(self, token: Any, request: Fetch, deadline_ms: int) -> None:
        self.token = token
        self.request = request
        self.deadline_ms = deadline_ms


class Change:
    """A change of the voters that was asked for and is not yet committed. One at a time."""

    __slots__ = ("deadline_ms", "offset", "request", "token")

    def __init__(self, token: Any, deadline_ms: int, request: AddVoter | None = None, offset: int = -1) -> None:
        self.token = token
        self.request = request
        """While its node is being asked what it knows."""
        self.deadline_ms = deadline_ms
        self.offset = offset
        """Of the record, once it is written."""


class Leader:
    """State of the leader of one epoch."""

    def __init__(self, own_id: int, epoch_start: int, voters: VoterSet, fetch_timeout_ms: int, now_ms: int) -> None:
        self.own_id = own_id
        self.epoch_start = epoch_start
        self.high_watermark = -1
        """-1 until a record of this epoch is committed: only then is what earlier leaders wrote known to be."""
        self.voters: dict[int, Progress] = {}
        self.observers: dict[ReplicaKey, Progress] = {}
        self.parked: list[Parked] = []
        self.expires_ms = NEVER_MS
        """When the first of them has waited long enough, or a little earlier."""
        self.change: Change | None = None
        self.told = VoterSet()
        """While the configuration names the voters (kraft.version 0): what they have told of themselves."""
        self.begin_at_ms: dict[int, int] = {}
        """When to tell a voter of this leader (again)."""
        self.begin_in_flight: set[int] = set()
        self.check_timeout_ms = int(fetch_timeout_ms * CHECK_QUORUM_FACTOR)
        self.check_deadline_ms = now_ms + self.check_timeout_ms
        self._fetched: set[int] = set()
        self._set = VoterSet()
        self.take_voters(voters, now_ms)

    def take_voters(self, voters: VoterSet, now_ms: int) -> None:
        """The set in force. What is known of a replica stays known when it gets or loses its vote."""
        if voters == self._set:
            return
        known, self.voters, self._set = self.voters, {}, voters
        for voter in voters:
            key = ReplicaKey(voter.id, voter.directory_id)
            old = known.pop(voter.id, None)
            if old is not None and voters.has(old.key):
                self.voters[voter.id] = old
            else:
                observer = self.observers.pop(key) if key in self.observers else Progress(key)
                self.voters[voter.id] = observer
            if voter.id != self.own_id:
                self.begin_at_ms.setdefault(voter.id, now_ms)
        for old in known.values():
            if old.fetched_ms >= 0:
                self.observers[old.key] = old
        self.begin_at_ms = {i: at for i, at in self.begin_at_ms.items() if voters.get(i) is not None}
        self._fetched &= set(voters.ids)

    def progress_of(self, key: ReplicaKey) -> Progress:
        if self._set.has(key):
            found = self.voters[key.id]
            found.key = key
            return found
        observer = self.observers.get(key)
        if observer is None:
            observer = self.observers[key] = Progress(key)
        return observer

    def fetched(self, key: ReplicaKey, offset: int, leader_end: int, now_ms: int) -> None:
        """A replica has everything below `offset` on its disk."""
        if key.id >= 0:
            self.progress_of(key).fetched(offset, leader_end, now_ms)
            self.heard_from(key, now_ms)

    def heard_from(self, key: ReplicaKey, now_ms: int) -> None:
        if not self._set.has(key):
            return
        self._fetched.add(key.id)
        needed = self._set.majority - (1 if self.own_id in self.voters else 0)
        if len(self._fetched) >= needed:
            self._fetched.clear()
            self.check_deadline_ms = now_ms + self.check_timeout_ms

    @property
    def needs_others(self) -> bool:
        return any(voter != self.own_id for voter in self.voters)

    def advance(self, durable_end: int) -> bool:
        """Move the high watermark to what a majority has on disk; whether it moved."""
        own = self.voters.get(self.own_id)
        if own is not None:
            own.end_offset = durable_end
        ends = sorted((progress.end_offset for progress in self.voters.values()), reverse=True)
        majority_has = ends[len(ends) // 2]
        # A record of an earlier epoch is not committed by being everywhere: a later leader could still replace it.
        if majority_has > self.epoch_start and majority_has > self.high_watermark:
            self.high_watermark = majority_has
            return True
        return False

    def is_caught_up(self, key: ReplicaKey, now_ms: int) -> bool:
        found = self.observers.get(key)
        return found is not None and found.caught_up_ms >= 0 and found.fetched_ms > now_ms - CAUGHT_UP_MS_MAX

    def successors(self) -> tuple[ReplicaKey, ...]:
        others = [progress for voter, progress in self.voters.items() if voter != self.own_id]
        others.sort(key=lambda progress: (-progress.end_offset, progress.key))
        return tuple(progress.key for progress in others)

    def live_observers(self, now_ms: int) -> Iterable[Progress]:
        gone = [key for key, p in self.observers.items() if now_ms - p.fetched_ms >= OBSERVER_SESSION_MS]
        for key in gone:
            del self.observers[key]
        return self.observers.values()

    def park(self, token: Any, request: Fetch, now_ms: int) -> None:
        parked = Parked(token, request, now_ms + request.wait_ms)
        self.parked.append(parked)
        self.expires_ms = min(self.expires_ms, parked.deadline_ms)

    def take_ready(self, end_offset: int) -> Iterator[Parked]:
        """Parked fetches that there is something new for."""
        waiting, self.parked = self.parked, []
        for parked in waiting:
            request = parked.request
            if request.offset < end_offset or request.high_watermark < self.high_watermark:
                yield parked
            else:
                self.parked.append(parked)

    def take_expired(self, now_ms: int) -> Iterator[Parked]:
        # Asked after every event, with a thousand brokers waiting: nothing is looked at before something is due.
        if self.expires_ms > now_ms:
            return
        waiting, self.parked = self.parked, []
        for parked in waiting:
            if parked.deadline_ms <= now_ms:
                yield parked
            else:
                self.parked.append(parked)
        self.expires_ms = min((parked.deadline_ms for parked in self.parked), default=NEVER_MS)
