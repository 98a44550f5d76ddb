"""Changing who has a vote (KIP-853): one change at a time, in force as soon as it is written, done when it is
committed."""

from typing import TYPE_CHECKING, Any

from headrace.errors import Err
from headrace.raft.leader import Change, Leader
from headrace.raft.messages import (
    AddVoter,
    AppendControl,
    Probe,
    RemoveVoter,
    UpdateVoter,
    VoterReply,
)
from headrace.raft.states import Follower
from headrace.raft.types import NO_DIRECTORY, ReplicaKey
from headrace.raft.voters import Voter, VoterSet

if TYPE_CHECKING:
    from headrace.raft.node import RaftNode


STATIC_TURNS = 10
"""Voters of the configuration tell the leader of themselves so many fetch timeouts apart: it forgets with its epoch."""


def _answer(node: "RaftNode", token: Any, error: Err, message: str | None = None) -> None:
    if token is not None:
        node.answer(token, VoterReply(error, node.leadership, message))


def _refusal(node: "RaftNode", state: Leader) -> tuple[Err, str] | None:
    """Why no change can be made now. Most of it passes, hence the error that says so."""
    if state.change is not None:
        return Err.REQUEST_TIMED_OUT, "another change of the voters is under way"
    if state.high_watermark < 0:
        return Err.REQUEST_TIMED_OUT, "the leader has not yet committed a record of its epoch"
    if node.log.kraft_versions.last == 0:
        return Err.UNSUPPORTED_VERSION, "the voters are in the configuration: kraft.version is 0"
    if node.log.voters.last_offset >= state.high_watermark:
        return Err.REQUEST_TIMED_OUT, "the last change of the voters is not yet committed"
    return None


def _append(node: "RaftNode", voters: VoterSet) -> int:
    offset = node.log.end_offset
    node.emit(AppendControl(node.epoch, (voters,)))
    return offset


# --- requests ---------------------------------------------------------------------------------------------------------


def add_voter(node: "RaftNode", token: Any, request: AddVoter, now_ms: int) -> None:
    state, voter = node.leader, request.voter
    if state is None:
        _answer(node, token, Err.NOT_LEADER_OR_FOLLOWER)
    elif voter.id < 0 or voter.directory_id == NO_DIRECTORY:
        _answer(node, token, Err.INVALID_REQUEST, "a voter needs an id and a directory id")
    elif voter.address(node.listener) is None:
        _answer(node, token, Err.INVALID_REQUEST, f"the voter has no endpoint for {node.listener}")
    elif refusal := _refusal(node, state):
        _answer(node, token, *refusal)
    elif node.voters.get(voter.id) is not None:
        _answer(node, token, Err.DUPLICATE_VOTER, f"node {voter.id} has a vote already")
    else:
        timeout_ms = min(request.timeout_ms or 1 << 30, node.options.request_timeout_ms)
        state.change = Change(token, now_ms + timeout_ms, request)
        node.emit(Probe(voter))


def probed(node: "RaftNode", voter_id: int, kraft_versions: tuple[int, int] | None, now_ms: int) -> None:
    state = node.leader
    change = state.change if state is not None else None
    if state is None or change is None or change.request is None or change.request.voter.id != voter_id:
        return
    voter, finalized = change.request.voter, node.log.kraft_versions.last
    if kraft_versions is None:
        _end(node, state, Err.REQUEST_TIMED_OUT, f"node {voter_id} does not answer at its endpoint")
    elif not kraft_versions[0] <= finalized <= kraft_versions[1]:
        _end(node, state, Err.INVALID_REQUEST, f"node {voter_id} does not know kraft.version {finalized}")
    elif not state.is_caught_up(ReplicaKey(voter.id, voter.directory_id), now_ms):
        _end(node, state, Err.REQUEST_TIMED_OUT, f"node {voter_id} has not caught up with the leader")
    else:
        added = Voter(voter.id, voter.directory_id, voter.endpoints, kraft_versions)
        change.offset = _append(node, node.voters.with_voter(added))
        if not change.request.ack_when_committed:
            _answer(node, change.token, Err.NONE)
            change.token = None
        change.request = None


def remove_voter(node: "RaftNode", token: Any, request: RemoveVoter, now_ms: int) -> None:
    state, key = node.leader, request.voter
    if state is None:
        _answer(node, token, Err.NOT_LEADER_OR_FOLLOWER)
    elif key.id < 0 or key.directory_id == NO_DIRECTORY:
        _answer(node, token, Err.INVALID_REQUEST, "a voter needs an id and a directory id")
    elif refusal := _refusal(node, state):
        _answer(node, token, *refusal)
    elif (fewer := node.voters.without(key)) is None:
        _answer(node, token, Err.VOTER_NOT_FOUND, f"node {key.id} has no vote on that disk, or the only one")
    else:
        state.change = Change(token, now_ms + node.options.request_timeout_ms)
        state.change.offset = _append(node, fewer)


def update_voter(node: "RaftNode", token: Any, request: UpdateVoter, now_ms: int) -> None:
    """A voter has moved, or knows other versions. Answered when written: it will look again."""
    from headrace.raft.fetching import leader_error

    voter = request.voter
    error = leader_error(node, request.epoch)
    low, high = voter.kraft_versions
    if error is not Err.NONE:
        _answer(node, token, error)
        return
    state = node.leader
    assert state is not None
    key = ReplicaKey(voter.id, voter.directory_id)
    named = voter.id >= 0 and voter.directory_id != NO_DIRECTORY
    if not named or not 0 <= low <= high or voter.address(node.listener) is None:
        _answer(node, token, Err.INVALID_REQUEST)
    elif node.log.kraft_versions.last == 0:
        # The configuration says where voters are, so there is nothing to write yet; `upgrade` will.
        if node.voters.has(key):
            state.told = state.told.with_voter(voter)
        _answer(node, token, Err.NONE if node.voters.has(key) else Err.VOTER_NOT_FOUND)
    elif refusal := _refusal(node, state):
        _answer(node, token, *refusal)
    elif not low <= node.log.kraft_versions.last <= high:
        _answer(node, token, Err.INVALID_REQUEST)
    elif not node.voters.has(key):
        _answer(node, token, Err.VOTER_NOT_FOUND)
    else:
        if node.voters.get(voter.id) != voter:
            _append(node, node.voters.with_voter(voter))
        _answer(node, token, Err.NONE)


def upgrade(node: "RaftNode", token: Any, version: int, validate_only: bool, now_ms: int) -> None:
    """The voters move from the configuration into the log, with the disks that they have told of: from then on a lost
    disk is a lost vote, and voters can be replaced."""
    state, current = node.leader, node.log.kraft_versions.last
    if state is None:
        _answer(node, token, Err.NOT_LEADER_OR_FOLLOWER)
    elif version == current:
        _answer(node, token, Err.NONE)
    elif version < current:
        _answer(node, token, Err.INVALID_UPDATE_VERSION, f"kraft.version is {current} and cannot be lowered")
    elif state.change is not None or state.high_watermark < 0:
        _answer(node, token, Err.REQUEST_TIMED_OUT, "the leader is not ready for it yet")
    else:
        own = Voter(node.key.id, node.key.directory_id, node.endpoints, node.options.kraft_versions)
        voters = VoterSet(voter for voter in state.told.with_voter(own) if node.voters.get(voter.id) is not None)
        silent = [str(voter) for voter in node.voters.ids if voters.get(voter) is None]
        unable = [
            str(voter.id) for voter in voters if not voter.kraft_versions[0] <= version <= voter.kraft_versions[1]
        ]
        if silent or unable:
            who, why = (
                (silent, "have not told of their disks yet") if silent else (unable, f"do not know version {version}")
            )
            message = f"kraft.version cannot be {version}: controllers {', '.join(who)} {why}"
            _answer(node, token, Err.INVALID_UPDATE_VERSION, message)
        elif validate_only:
            _answer(node, token, Err.NONE)
        else:
            state.change = Change(token, now_ms + node.options.request_timeout_ms, offset=node.log.end_offset)
            node.emit(AppendControl(node.epoch, (version, voters)))


# --- what becomes of a change -----------------------------------------------------------------------------------------


def _end(node: "RaftNode", state: Leader, error: Err, message: str | None = None) -> None:
    change, state.change = state.change, None
    if change is not None:
        _answer(node, change.token, error, message)


def committed(node: "RaftNode", state: Leader) -> None:
    if state.change is not None and 0 <= state.change.offset < state.high_watermark:
        _end(node, state, Err.NONE)


def expire(node: "RaftNode", state: Leader, now_ms: int) -> None:
    if state.change is not None and state.change.deadline_ms <= now_ms:
        _end(node, state, Err.REQUEST_TIMED_OUT)


def abandon(node: "RaftNode", state: Leader) -> None:
    _end(node, state, Err.NOT_LEADER_OR_FOLLOWER)


def has_own_vote(node: "RaftNode", state: Leader) -> bool:
    """A leader that has removed itself leads on until that is committed."""
    return node.voters.has(node.key) or node.log.voters.last_offset >= state.high_watermark


# --- a follower's own place among the voters --------------------------------------------------------------------------


def first_check_ms(node: "RaftNode") -> int:
    return node.options.fetch_timeout_ms // 2


def poll_follower(node: "RaftNode", state: Follower, now_ms: int) -> None:
    """Tell the leader when the voters do not have this node as it is."""
    if state.voters_at_ms > now_ms:
        return
    options = node.options
    is_static = node.log.kraft_versions.last == 0
    state.voters_at_ms = now_ms + options.fetch_timeout_ms * (STATIC_TURNS if is_static else 1)
    if not options.is_controller or not node.endpoints:
        return
    own = Voter(node.key.id, node.key.directory_id, node.endpoints, options.kraft_versions)
    known = node.voters.get(node.key.id)
    address = node.address_of(state.leader_id, state.endpoints)
    if node.voters.has(node.key):
        if known != own:
            node.send(state.leader_id, UpdateVoter(node.epoch, own), address)
    elif options.auto_join and state.has_fetched and not is_static:
        if known is not None:
            # The vote of the disk that this node had before.
            old = ReplicaKey(known.id, known.directory_id)
            node.send(state.leader_id, RemoveVoter(old), address)
        else:
            node.send(state.leader_id, AddVoter(own, options.request_timeout_ms, False), address)
