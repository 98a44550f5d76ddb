"""One node of the quorum: its state, and the ways from one state to another.

    unattached -> prospective -> candidate -> leader -> resigned -> unattached
    anything   -> follower, when somebody is known to lead its epoch or a later one
    anything   -> unattached, when a later epoch is known and its leader is not

`step` takes what happened, `tick` that time has passed; both return what to do. What the requests mean is in `voting`,
`fetching` and `membership`.
"""

from collections.abc import Callable

from headrace.errors import Err
from headrace.raft import fetching, membership, voting
from headrace.raft.leader import NEVER_MS, Leader, Parked
from headrace.raft.messages import (
    AddVoter,
    Answer,
    Answered,
    AppendControl,
    Appended,
    BeginEpoch,
    ControlRecord,
    Durable,
    Effect,
    EndEpoch,
    EpochReply,
    Event,
    Failed,
    Fetch,
    FetchReply,
    FetchSnapshot,
    LeaderChange,
    Leadership,
    LogEvent,
    PeerGone,
    Persist,
    Persisted,
    Probed,
    Received,
    Rejected,
    RemoveVoter,
    Reply,
    Request,
    Resign,
    Send,
    SnapshotReply,
    Stored,
    Unwritten,
    UpdateVoter,
    Upgrade,
    Vote,
    VoteReply,
)
from headrace.raft.states import Follower, Nominee, Resigned, Unattached
from headrace.raft.types import (
    NOBODY,
    Address,
    Election,
    Endpoints,
    OffsetEpoch,
    RaftLog,
    RaftMember,
    RaftOptions,
    ReplicaKey,
)
from headrace.raft.voters import Voter, VoterSet

SUCCESSION_MS = 100
"""Followers of a leader that is known to be dead ask for votes so far apart, the one with the next id first. At once,
two of three would each vote for themselves, and the dead one's vote that both lack never comes."""
SUCCESSION_JITTER_MS = 10

State = Unattached | Follower | Nominee | Leader | Resigned


class RaftNode:
    """See the module. `log` is read here, and changed only by the driver that executes the effects."""

    def __init__(
        self,
        member: RaftMember,
        options: RaftOptions,
        log: RaftLog,
        election: Election,
        now_ms: int,
        randrange: Callable[[int], int],
    ) -> None:
        self.options = options
        self.key = member.key
        self.endpoints = member.endpoints
        self.listener = member.listener
        self.log = log
        self.election = election
        self.randrange = randrange
        snapshot = log.latest_snapshot
        self.high_watermark = snapshot.offset if snapshot is not None else 0
        """Below it everything is committed: it never goes back, whoever leads."""
        self.leader_gone = False
        """The leader's process is known to be dead, or it has said that it resigns: nobody need wait for its
        silence."""
        self.elections_lost = 0
        self.fetcher = fetching.Fetcher()
        self.state: State = Unattached(now_ms)
        self._effects: list[Effect] = []
        self.stopping = False
        """About to go: leads no more, and does not try to."""
        if log.last_epoch > election.epoch:
            # The log is on disk before its epoch's leader is: it tells of an epoch, though not of a vote in it.
            self.election = Election(log.last_epoch)
        self._begin(now_ms)

    def _begin(self, now_ms: int) -> None:
        """Where the last run ended. Nothing that it promised is forgotten."""
        leader_id = self.election.leader_id
        if leader_id == self.key.id:
            # It may have told nobody that it stops, so others may still count on it.
            self.state = Resigned(self.other_voters(), (), now_ms + self._first_election_ms(), now_ms)
        elif leader_id != NOBODY and self.address_of(leader_id, ()) is not None:
            self.state = self._following(leader_id, self.endpoints_of(leader_id), now_ms)
        else:
            self.state = Unattached(now_ms + self._first_election_ms())

    def _first_election_ms(self) -> int:
        if self.is_only_voter:
            return 0
        return self.options.first_election_ms + self.randrange(self.options.first_election_ms)

    # --- what is known ------------------------------------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        return self.election.epoch

    @property
    def voters(self) -> VoterSet:
        return self.log.voters.last

    @property
    def is_voter(self) -> bool:
        return self.options.is_controller and self.voters.has(self.key)

    @property
    def is_only_voter(self) -> bool:
        return self.is_voter and len(self.voters) == 1

    @property
    def leader(self) -> Leader | None:
        return self.state if isinstance(self.state, Leader) else None

    @property
    def leader_id(self) -> int:
        """Of this epoch, as far as anybody should be told: a leader that has resigned is none."""
        if isinstance(self.state, Leader):
            return self.key.id
        return self.election.leader_id if self.election.leader_id != self.key.id else NOBODY

    @property
    def leader_endpoints(self) -> Endpoints:
        if isinstance(self.state, Leader):
            return self.endpoints
        if isinstance(self.state, Follower | Nominee) and self.state.endpoints:
            return self.state.endpoints
        return self.endpoints_of(self.leader_id)

    @property
    def leadership(self) -> Leadership:
        return Leadership(self.epoch, self.leader_id, self.leader_endpoints)

    @property
    def end(self) -> OffsetEpoch:
        return OffsetEpoch(self.log.end_offset, self.log.last_epoch)

    def other_voters(self) -> list[int]:
        return [voter for voter in self.voters.ids if voter != self.key.id]

    def endpoints_of(self, node_id: int) -> Endpoints:
        voter = self.voters.get(node_id)
        return voter.endpoints if voter is not None else ()

    def address_of(self, node_id: int, endpoints: Endpoints) -> Address | None:
        return Voter(node_id, bytes(16), endpoints or self.endpoints_of(node_id)).address(self.listener)

    def knows_me_as(self, voter: ReplicaKey | None) -> bool:
        """Whether a request is meant for this node on this disk."""
        return voter is None or voter.matches(self.key)

    # --- events in, effects out ---------------------------------------------------------------------------------------

    def step(self, event: Event, now_ms: int) -> list[Effect]:
        match event:
            case Received(token, request):
                self._received(token, request, now_ms)
            case Answered(to, request, reply):
                self._answered(to, request, reply, now_ms)
            case Failed(to, request, refused):
                self._failed(to, request, refused, now_ms)
            case PeerGone(node_id):
                self.peer_gone(node_id, now_ms)
            case Resign():
                self.stopping = True
            case Upgrade(token, version, validate_only):
                membership.upgrade(self, token, version, validate_only, now_ms)
            case Probed(voter_id, kraft_versions):
                membership.probed(self, voter_id, kraft_versions, now_ms)
            case _:
                self._written(event, now_ms)
        return self.tick(now_ms)

    def _written(self, event: LogEvent, now_ms: int) -> None:
        match event:
            case Persisted(election):
                voting.persisted(self, election, now_ms)
            case Appended():
                fetching.log_changed(self, now_ms)
            case Durable():
                self.fetcher.writing = self.options.is_controller and self.log.durable_end < self.log.end_offset
                fetching.log_changed(self, now_ms)
            case Stored():
                self.fetcher.storing = False
                fetching.log_changed(self, now_ms)
            case Rejected():
                fetching.rejected(self, now_ms)
            case Unwritten():
                if isinstance(self.state, Leader):
                    self.become_resigned(now_ms)

    def tick(self, now_ms: int) -> list[Effect]:
        """Do whatever is due. To be called again at `deadline_ms`, or earlier."""
        state = None
        while state is not self.state:
            state = self.state
            if isinstance(state, Leader):
                self._lead(state, now_ms)
            elif isinstance(state, Resigned):
                voting.poll_resigned(self, state, now_ms)
            elif isinstance(state, Nominee):
                voting.poll_nominee(self, state, now_ms)
            elif self.is_voter and not self.stopping and state.deadline_ms <= now_ms:
                self.become_prospective(now_ms)
        if isinstance(self.state, Follower | Unattached):
            fetching.poll(self, now_ms)
        if isinstance(self.state, Follower):
            membership.poll_follower(self, self.state, now_ms)
        effects, self._effects = self._effects, []
        return effects

    @property
    def deadline_ms(self) -> int:
        """When something becomes due by time alone."""
        state = self.state
        times = [NEVER_MS]
        if isinstance(state, Leader):
            times.append(state.expires_ms)
            times += [at for voter, at in state.begin_at_ms.items() if voter not in state.begin_in_flight]
            if state.needs_others:
                times.append(state.check_deadline_ms)
            if state.change is not None:
                times.append(state.change.deadline_ms)
        elif isinstance(state, Nominee | Resigned):
            if not (self.stopping and isinstance(state, Resigned)):
                times.append(state.deadline_ms)
            times += [at for voter, at in state.next_ask_ms.items() if voter not in state.in_flight]
        else:
            if self.is_voter and not self.stopping:
                times.append(state.deadline_ms)
            times.append(fetching.next_ms(self))
            if isinstance(state, Follower):
                times.append(state.voters_at_ms)
        return min(times)

    def emit(self, effect: Effect) -> None:
        self._effects.append(effect)

    def send(self, to: int, request: Request, address: Address | None = None) -> bool:
        """False where nobody knows the address."""
        address = address or self.address_of(to, ())
        if address is None:
            return False
        self.emit(Send(to, address, request))
        return True

    def answer(self, token: object, reply: Reply) -> None:
        self.emit(Answer(token, reply))

    def _received(self, token: object, request: Request, now_ms: int) -> None:
        match request:
            case Vote():
                voting.vote(self, token, request, now_ms)
            case BeginEpoch():
                voting.begin_epoch(self, token, request, now_ms)
            case EndEpoch():
                voting.end_epoch(self, token, request, now_ms)
            case Fetch():
                fetching.fetch(self, token, request, now_ms)
            case FetchSnapshot():
                fetching.fetch_snapshot(self, token, request, now_ms)
            case AddVoter():
                membership.add_voter(self, token, request, now_ms)
            case RemoveVoter():
                membership.remove_voter(self, token, request, now_ms)
            case UpdateVoter():
                membership.update_voter(self, token, request, now_ms)

    def _answered(self, to: int, request: Request, reply: Reply, now_ms: int) -> None:
        match request, reply:
            case Vote(), VoteReply():
                voting.vote_answered(self, to, request, reply, now_ms)
            case BeginEpoch() | EndEpoch(), EpochReply():
                voting.epoch_answered(self, to, request, reply, now_ms)
            case Fetch(), FetchReply():
                fetching.fetch_answered(self, to, request, reply, now_ms)
            case FetchSnapshot(), SnapshotReply():
                fetching.snapshot_answered(self, request, reply, now_ms)
            case _:
                # To AddVoter, RemoveVoter and UpdateVoter: what matters comes with the log.
                self.observe(reply.leadership, now_ms)

    def _failed(self, to: int, request: Request, refused: bool, now_ms: int) -> None:
        match request:
            case Vote() | BeginEpoch() | EndEpoch():
                voting.request_failed(self, to, request, refused, now_ms)
            case Fetch() | FetchSnapshot():
                fetching.request_failed(self, to, request, refused, now_ms)

    def peer_gone(self, node_id: int, now_ms: int) -> None:
        if node_id != self.leader_id or node_id == self.key.id or self.leader_gone:
            return
        self.leader_gone = True
        if isinstance(self.state, Follower | Unattached):
            wait_ms = self._place_after(node_id) * SUCCESSION_MS + self.randrange(SUCCESSION_JITTER_MS)
            self.state.deadline_ms = min(self.state.deadline_ms, now_ms + wait_ms)

    def _place_after(self, leader_id: int) -> int:
        """How many of the other voters come before this one in the succession of `leader_id`."""
        order = sorted(self.voters.ids, key=lambda voter: (voter < leader_id, voter))
        return [voter for voter in order if voter != leader_id].index(self.key.id) if self.key.id in order else 0

    # --- what others say about who leads ------------------------------------------------------------------------------

    def observe(self, said: Leadership, now_ms: int, *, by_leader: bool = False) -> None:
        """Follow a leader that somebody names, or leave an epoch that is over. What contradicts is left alone."""
        epoch, leader_id, endpoints = said
        if epoch < self.epoch:
            return
        if epoch > self.epoch:
            if leader_id not in (NOBODY, self.key.id):
                self.become_follower(epoch, leader_id, endpoints, now_ms)
            else:
                self.become_unattached(epoch, now_ms)
            return
        if leader_id == NOBODY or leader_id == self.key.id or self.election.leader_id not in (NOBODY, leader_id):
            return
        if isinstance(self.state, Follower):
            if endpoints and by_leader:
                self.state.endpoints = endpoints
            if by_leader:
                self.leader_gone = False
            return
        if isinstance(self.state, Nominee) and self.election.leader_id == leader_id and not by_leader:
            return  # that one it knows, and has not heard from
        if by_leader or not self.leader_gone:
            self.become_follower(epoch, leader_id, endpoints, now_ms)

    def _keep(self, election: Election) -> None:
        if election != self.election:
            self.election = election
            self.emit(Persist(election))

    def _leave(self, leader_id: int = NOBODY, endpoints: Endpoints = ()) -> None:
        """The present state ends: nobody may go on waiting for it."""
        self.fetcher.reset()
        state = self.state
        if isinstance(state, Leader):
            said = Leadership(self.epoch, leader_id, endpoints)
            for parked in state.parked:
                self.answer(parked.token, FetchReply(Err.NOT_LEADER_OR_FOLLOWER, said))
            membership.abandon(self, state)

    def give_vote(self, candidate: ReplicaKey, now_ms: int) -> None:
        """One per epoch. A node that has given its vote away waits for the outcome."""
        assert self.election.voted is None or self.election.voted.matches(candidate)
        if self.election.voted is None:
            self._keep(self.election._replace(voted=candidate))
        if self.state.__class__ is Nominee:
            self._leave()
        self.state = Unattached(now_ms + self.election_timeout_ms())

    def become_unattached(self, epoch: int, now_ms: int, deadline_ms: int | None = None) -> None:
        """In an epoch whose leader is not known, or (in the same one) cannot be reached."""
        left = self.state.deadline_ms if not isinstance(self.state, Leader | Resigned) else NEVER_MS
        if epoch > self.epoch:
            self._keep(Election(epoch))
            self.leader_gone = False
        self._leave()
        if deadline_ms is None:
            # What was left of waiting is kept: else two that raise each other's epochs would keep a third from trying.
            deadline_ms = min(left, now_ms + self.election_timeout_ms())
        self.state = Unattached(max(deadline_ms, now_ms + 1))

    def election_timeout_ms(self) -> int:
        timeout_ms = self.options.election_timeout_ms
        return timeout_ms + self.randrange(timeout_ms)

    def become_follower(self, epoch: int, leader_id: int, endpoints: Endpoints, now_ms: int) -> None:
        voted = self.election.voted if epoch == self.epoch else None
        self._keep(Election(epoch, leader_id, voted))
        self._leave(leader_id, endpoints)
        self.leader_gone = False
        self.elections_lost = 0
        if self.address_of(leader_id, endpoints) is None:
            self.state = Unattached(now_ms + self.election_timeout_ms())
        else:
            self.state = self._following(leader_id, endpoints or self.endpoints_of(leader_id), now_ms)

    def _following(self, leader_id: int, endpoints: Endpoints, now_ms: int) -> Follower:
        timeout_ms = self.options.fetch_timeout_ms
        return Follower(leader_id, endpoints, now_ms + timeout_ms, now_ms + membership.first_check_ms(self))

    def become_prospective(self, now_ms: int) -> None:
        leader_id, endpoints = self.leader_id, self.leader_endpoints
        self._leave()
        self.state = Nominee(
            self.voters,
            now_ms + self.election_timeout_ms(),
            pre_vote=True,
            leader_id=leader_id,
            endpoints=endpoints if leader_id != NOBODY else (),
        )
        self.state.granted.add(self.key.id)

    def become_candidate(self, now_ms: int) -> None:
        """The own vote counts once it is on disk."""
        self._keep(Election(self.epoch + 1, NOBODY, self.key))
        self._leave()
        self.state = Nominee(self.voters, now_ms + self.election_timeout_ms(), pre_vote=False)

    def become_leader(self, granting: set[int], now_ms: int) -> None:
        self._keep(Election(self.epoch, self.key.id))
        self._leave()
        self.leader_gone = False
        self.elections_lost = 0
        timeout_ms = self.options.fetch_timeout_ms
        self.state = Leader(self.key.id, self.log.end_offset, self.voters, timeout_ms, now_ms)
        change = LeaderChange(self.key.id, tuple(self.voters.ids), tuple(sorted(granting)))
        self.emit(AppendControl(self.epoch, (change, *self._first_voters())))

    def _first_voters(self) -> tuple[ControlRecord, ...]:
        """The voters as the log should say them: for the first time, or with this node where it is now."""
        kraft_version = self.log.kraft_versions.last
        own = self.voters.get(self.key.id)
        if kraft_version == 0 or own is None:
            return ()
        now = Voter(own.id, own.directory_id, self.endpoints or own.endpoints, self.options.kraft_versions)
        if now == own and self.log.voters.last_offset >= 0:
            return ()
        return (kraft_version, self.voters.with_voter(now))

    def become_resigned(self, now_ms: int) -> None:
        assert isinstance(self.state, Leader)
        successors = self.state.successors()
        self._leave()
        self.state = Resigned(self.other_voters(), successors, now_ms + self.election_timeout_ms(), now_ms)

    # --- leading ------------------------------------------------------------------------------------------------------

    def _lead(self, state: Leader, now_ms: int) -> None:
        if self.stopping and state.needs_others:
            self.become_resigned(now_ms)
            return
        if state.needs_others and state.check_deadline_ms <= now_ms:
            # Others may have another leader by now: requests that wait for this one should look for it.
            self.become_resigned(now_ms)
            return
        if self.high_watermark > state.epoch_start and not membership.has_own_vote(self, state):
            self.become_resigned(now_ms)
            return
        voting.announce(self, state, now_ms)
        for parked in state.take_expired(now_ms):
            self.answer_parked(parked)
        membership.expire(self, state, now_ms)

    def answer_parked(self, parked: Parked) -> None:
        self.answer(parked.token, fetching.records_from(self, parked.request.offset))
