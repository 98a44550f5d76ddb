"""Elections: Vote with pre-vote (KIP-996), BeginQuorumEpoch, EndQuorumEpoch."""

from typing import TYPE_CHECKING, Any

from headrace.errors import Err
from headrace.raft.leader import Leader
from headrace.raft.messages import BeginEpoch, EndEpoch, EpochReply, Leadership, Vote, VoteReply
from headrace.raft.states import Follower, Nominee, Resigned, Unattached
from headrace.raft.types import NOBODY, Election, ReplicaKey

if TYPE_CHECKING:
    from headrace.raft.node import RaftNode

ASK_AGAIN_MS = 50
"""How soon a voter is asked again that gave no answer."""
LOST_BACKOFF_MS = 100
"""After the first election that was lost; doubled by each further one."""


# --- giving votes -----------------------------------------------------------------------------------------------------


def vote(node: "RaftNode", token: Any, request: Vote, now_ms: int) -> None:
    error = _vote_error(node, request)
    granted = False
    if error is Err.NONE:
        if request.epoch > node.epoch:
            node.become_unattached(request.epoch, now_ms)
        if not node.knows_me_as(request.voter):
            # The candidate knows another disk under this id: what was promised from that one is not known here.
            error = Err.INVALID_VOTER_KEY
        else:
            granted = _may_grant(node, request)
    if granted and not request.pre_vote:
        node.give_vote(request.candidate, now_ms)
    node.answer(token, VoteReply(error, node.leadership, granted))


def _vote_error(node: "RaftNode", request: Vote) -> Err:
    last = request.last
    newest = request.epoch if request.pre_vote else request.epoch - 1
    if last.offset < 0 or not 0 <= last.epoch <= newest:
        return Err.INVALID_REQUEST
    if request.epoch < node.epoch:
        return Err.FENCED_LEADER_EPOCH
    return Err.NONE if request.candidate.id >= 0 else Err.INVALID_REQUEST


def _may_grant(node: "RaftNode", request: Vote) -> bool:
    up_to_date = request.last.at_least(node.end)
    state = node.state
    if isinstance(state, Leader):
        return False
    if request.pre_vote:
        # A follower that hears from its leader would only help to depose it.
        following = isinstance(state, Follower) and state.has_fetched and not node.leader_gone
        return up_to_date and not following
    if node.election.voted is not None:
        return isinstance(state, Unattached | Nominee) and node.election.voted.matches(request.candidate) and up_to_date
    if node.election.leader_id != NOBODY:
        return False
    return isinstance(state, Unattached | Nominee) and up_to_date


# --- asking for votes -------------------------------------------------------------------------------------------------


def poll_nominee(node: "RaftNode", state: Nominee, now_ms: int) -> None:
    if state.won:
        if state.pre_vote:
            node.become_candidate(now_ms)
        else:
            node.become_leader(state.granted, now_ms)
        return
    if state.cannot_win and not state.lost:
        _lost(node, state, now_ms)
    elif state.deadline_ms <= now_ms:
        _give_up(node, state, now_ms)
    elif not state.lost:
        _ask(node, state, now_ms)


def _lost(node: "RaftNode", state: Nominee, now_ms: int) -> None:
    """Too many said no."""
    state.lost = True
    state.next_ask_ms.clear()
    if state.pre_vote:
        _give_up(node, state, now_ms)
        return
    node.elections_lost += 1
    longest_ms = min(LOST_BACKOFF_MS << min(node.elections_lost - 1, 10), node.options.election_backoff_ms_max)
    state.deadline_ms = now_ms + 1 + node.randrange(longest_ms)


def _give_up(node: "RaftNode", state: Nominee, now_ms: int) -> None:
    if not state.pre_vote:
        node.become_prospective(now_ms)
    elif state.leader_id != NOBODY and not node.leader_gone:
        node.become_follower(node.epoch, state.leader_id, state.endpoints, now_ms)
    else:
        # Somebody still hears from the leader, or has more of the log, or is not there.
        wait_ms = LOST_BACKOFF_MS if node.leader_gone else node.options.election_timeout_ms
        node.become_unattached(node.epoch, now_ms, now_ms + wait_ms // 2 + node.randrange(wait_ms))


def _ask(node: "RaftNode", state: Nominee, now_ms: int) -> None:
    for voter_id in state.unheard():
        if voter_id == node.key.id or voter_id in state.in_flight or state.next_ask_ms.get(voter_id, 0) > now_ms:
            continue
        voter = state.voters.get(voter_id)
        assert voter is not None
        asked = ReplicaKey(voter_id, voter.directory_id)
        state.next_ask_ms[voter_id] = now_ms + ASK_AGAIN_MS
        if node.send(voter_id, Vote(node.epoch, node.key, node.end, state.pre_vote, asked)):
            state.in_flight.add(voter_id)


def persisted(node: "RaftNode", election: Election, now_ms: int) -> None:
    """The own vote is given like any other: it counts once it cannot be forgotten."""
    state = node.state
    if isinstance(state, Nominee) and not state.pre_vote and election == node.election and election.voted == node.key:
        state.granted.add(node.key.id)


def vote_answered(node: "RaftNode", to: int, request: Vote, reply: VoteReply, now_ms: int) -> None:
    state = node.state
    current = isinstance(state, Nominee) and state.pre_vote == request.pre_vote and request.epoch == node.epoch
    if current:
        state.in_flight.discard(to)  # type: ignore[union-attr]
    node.observe(reply.leadership, now_ms)
    if not current or node.state is not state or reply.leadership.epoch != request.epoch:
        return
    assert isinstance(state, Nominee)
    state.gone.discard(to)
    if reply.error is Err.NONE and reply.granted:
        state.granted.add(to)
        state.next_ask_ms.pop(to, None)
    elif reply.error in (Err.NONE, Err.INVALID_VOTER_KEY):
        state.rejected.add(to)
        state.next_ask_ms.pop(to, None)


def request_failed(
    node: "RaftNode", to: int, request: Vote | BeginEpoch | EndEpoch, refused: bool, now_ms: int
) -> None:
    state = node.state
    if isinstance(state, Nominee) and refused:
        state.gone.add(to)
    if isinstance(state, Nominee | Resigned):
        state.in_flight.discard(to)
        state.next_ask_ms[to] = now_ms + ASK_AGAIN_MS
    elif isinstance(state, Leader) and isinstance(request, BeginEpoch):
        state.begin_in_flight.discard(to)


# --- a leader begins, a leader ends -----------------------------------------------------------------------------------


def announce(node: "RaftNode", state: Leader, now_ms: int) -> None:
    """Tell voters that have not fetched of late who leads: they may not know, or know another."""
    interval_ms = node.options.fetch_timeout_ms // 2
    for voter_id, due_ms in state.begin_at_ms.items():
        if due_ms > now_ms or voter_id in state.begin_in_flight:
            continue
        fetched_ms = state.voters[voter_id].fetched_ms
        if 0 <= now_ms - fetched_ms < interval_ms and fetched_ms >= 0:
            state.begin_at_ms[voter_id] = fetched_ms + interval_ms
            continue
        voter = node.voters.get(voter_id)
        assert voter is not None
        state.begin_at_ms[voter_id] = now_ms + interval_ms
        key = ReplicaKey(voter_id, voter.directory_id)
        if node.send(voter_id, BeginEpoch(node.epoch, node.key.id, node.endpoints, key)):
            state.begin_in_flight.add(voter_id)


def begin_epoch(node: "RaftNode", token: Any, request: BeginEpoch, now_ms: int) -> None:
    error = _leader_error(node, request)
    if error is Err.NONE:
        said = Leadership(request.epoch, request.leader_id, request.endpoints)
        node.observe(said, now_ms, by_leader=True)
        if not node.knows_me_as(request.voter):
            error = Err.INVALID_VOTER_KEY
    node.answer(token, EpochReply(error, node.leadership))


def _leader_error(node: "RaftNode", request: BeginEpoch | EndEpoch) -> Err:
    if request.epoch < node.epoch:
        return Err.FENCED_LEADER_EPOCH
    return Err.NONE if request.leader_id >= 0 else Err.INVALID_REQUEST


def end_epoch(node: "RaftNode", token: Any, request: EndEpoch, now_ms: int) -> None:
    error = _leader_error(node, request)
    if error is Err.NONE:
        said = Leadership(request.epoch, request.leader_id, request.endpoints)
        node.observe(said, now_ms, by_leader=True)
        if isinstance(node.state, Follower) and node.state.leader_id == request.leader_id:
            node.leader_gone = True
            node.state.deadline_ms = now_ms + _succession_ms(node, request.successors)
    node.answer(token, EpochReply(error, node.leadership))


def _succession_ms(node: "RaftNode", successors: tuple[ReplicaKey, ...]) -> int:
    """The first tries at once, each further one after twice as long, so that they do not split the votes."""
    longest_ms = node.options.election_backoff_ms_max
    for place, key in enumerate(successors):
        if key.matches(node.key):
            return int(min(longest_ms, (longest_ms >> (len(successors) - 1)) << (place - 1))) if place else 0
    return node.randrange(LOST_BACKOFF_MS) if not successors else longest_ms


def poll_resigned(node: "RaftNode", state: Resigned, now_ms: int) -> None:
    for voter_id, due_ms in state.next_ask_ms.items():
        if due_ms <= now_ms and voter_id not in state.in_flight:
            state.next_ask_ms[voter_id] = now_ms + ASK_AGAIN_MS
            request = EndEpoch(node.epoch, node.key.id, state.successors, node.endpoints)
            if node.send(voter_id, request):
                state.in_flight.add(voter_id)
    if state.deadline_ms <= now_ms and not node.stopping:
        if node.is_only_voter:
            node.become_prospective(now_ms)
        else:
            node.become_unattached(node.epoch + 1, now_ms, now_ms + 1)


def epoch_answered(node: "RaftNode", to: int, request: BeginEpoch | EndEpoch, reply: EpochReply, now_ms: int) -> None:
    state = node.state
    if isinstance(state, Leader) and isinstance(request, BeginEpoch):
        state.begin_in_flight.discard(to)
    elif isinstance(state, Resigned) and isinstance(request, EndEpoch):
        state.in_flight.discard(to)
        if reply.error is Err.NONE:
            state.next_ask_ms.pop(to, None)
    node.observe(reply.leadership, now_ms)
