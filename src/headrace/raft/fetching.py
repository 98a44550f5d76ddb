"""Replication by Fetch: the leader's side that answers, the follower's side that asks, and snapshots for those too far
behind."""

from typing import TYPE_CHECKING, Any

from headrace.errors import Err
from headrace.raft import membership
from headrace.raft.leader import NEVER_MS, Leader
from headrace.raft.messages import (
    AppendFetched,
    Fetch,
    FetchReply,
    FetchSnapshot,
    SnapshotReply,
    StoreChunk,
    Truncate,
)
from headrace.raft.states import Follower, Unattached
from headrace.raft.types import NOBODY, Address, OffsetEpoch, RaftError

if TYPE_CHECKING:
    from headrace.raft.node import RaftNode

BACKOFF_MS_MAX = 500
LOOK_AGAIN_MS = 100
"""How soon another node is asked who leads, after one that does not know."""
FORMATTED = OffsetEpoch(0, 0)
"""The snapshot that formatting writes: it says who votes, not what the log says, and is never sent."""


class Fetcher:
    """The follower's one request under way, and when to send the next."""

    __slots__ = ("at_ms", "failures", "in_flight", "leader_high_watermark", "next_server", "storing", "writing")

    def __init__(self) -> None:
        self.in_flight: Fetch | FetchSnapshot | None = None
        self.at_ms = 0
        self.failures = 0
        self.writing = False
        """What came with the last answer is not yet on disk; the next fetch will say that it is."""
        self.storing = False
        """So it is with a piece of a snapshot, and with a cut: nothing may follow it before."""
        self.leader_high_watermark = -1
        self.next_server = 0

    def reset(self) -> None:
        """Another state, or another leader. What is being written is still being written."""
        self.in_flight = None
        self.at_ms = 0
        self.failures = 0
        self.leader_high_watermark = -1


# --- the leader's side ------------------------------------------------------------------------------------------------


def leader_error(node: "RaftNode", epoch: int) -> Err:
    """Why a request that only the leader of `epoch` may answer cannot be answered here."""
    if epoch < node.epoch:
        return Err.FENCED_LEADER_EPOCH
    if epoch > node.epoch:
        return Err.UNKNOWN_LEADER_EPOCH
    return Err.NONE if node.leader is not None else Err.NOT_LEADER_OR_FOLLOWER


def fetch(node: "RaftNode", token: Any, request: Fetch, now_ms: int) -> None:
    error = _fetch_error(node, request)
    if error is not Err.NONE:
        node.answer(token, FetchReply(error, node.leadership))
        return
    state = node.leader
    assert state is not None
    elsewhere = _not_of_this_log(node, request)
    if elsewhere is not None:
        node.answer(token, elsewhere)
        return
    state.fetched(request.replica, request.offset, node.log.end_offset, now_ms)
    _commit(node, state)
    nothing_new = request.offset >= node.log.end_offset and request.high_watermark >= state.high_watermark
    if nothing_new and request.wait_ms > 0:
        state.park(token, request, now_ms)
    else:
        node.answer(token, records_from(node, request.offset))


def _fetch_error(node: "RaftNode", request: Fetch) -> Err:
    if request.wait_ms < 0 or request.offset < 0 or not 0 <= request.last_epoch <= request.epoch:
        return Err.INVALID_REQUEST
    error = leader_error(node, request.epoch)
    if error is Err.NONE and request.replica.id == node.key.id:
        # Another node with this one's id: its progress must not be taken for the leader's own.
        return Err.UNKNOWN_SERVER_ERROR
    return error


def _not_of_this_log(node: "RaftNode", request: Fetch) -> FetchReply | None:
    """Where the fetcher's log parts from the leader's, or what it has to load instead; None when it may go on."""
    log = node.log
    latest, earliest = log.latest_snapshot, log.earliest_snapshot
    offset, epoch = request.offset, request.last_epoch
    high_watermark = node.leader.high_watermark if node.leader is not None else -1

    def behind() -> FetchReply:
        return FetchReply(Err.NONE, node.leadership, high_watermark, log.start_offset, snapshot=latest)

    if offset == 0 and latest is not None and latest != FORMATTED:
        return behind()
    if log.start_offset == 0 and offset == 0 and epoch == 0:
        return None
    if earliest is not None and (
        offset < log.start_offset or (offset == log.start_offset and epoch != earliest.epoch) or epoch < earliest.epoch
    ):
        return behind()
    end = log.end_of_epoch(epoch)
    if end.epoch != epoch or end.offset < offset:
        return FetchReply(Err.NONE, node.leadership, high_watermark, log.start_offset, diverging=end)
    return None


def records_from(node: "RaftNode", offset: int) -> FetchReply:
    state = node.leader
    high_watermark = state.high_watermark if state is not None else -1
    read_from = offset if offset < node.log.end_offset else None
    return FetchReply(Err.NONE, node.leadership, high_watermark, node.log.start_offset, read_from=read_from)


def fetch_snapshot(node: "RaftNode", token: Any, request: FetchSnapshot, now_ms: int) -> None:
    error = leader_error(node, request.epoch)
    size = None if request.snapshot == FORMATTED else node.log.snapshot_size(request.snapshot)
    if error is Err.NONE:
        if size is None:
            error = Err.SNAPSHOT_NOT_FOUND
        elif not 0 <= request.position < size:
            error = Err.POSITION_OUT_OF_RANGE
    if error is not Err.NONE or size is None:
        node.answer(token, SnapshotReply(error, node.leadership))
        return
    state = node.leader
    assert state is not None
    state.heard_from(request.replica, now_ms)
    node.answer(token, SnapshotReply(Err.NONE, node.leadership, request.snapshot, size, request.position))


def _commit(node: "RaftNode", state: Leader) -> None:
    if state.advance(node.log.durable_end):
        node.high_watermark = max(node.high_watermark, state.high_watermark)
        membership.committed(node, state)
        _wake(node, state)


def _wake(node: "RaftNode", state: Leader) -> None:
    for parked in state.take_ready(node.log.end_offset):
        node.answer_parked(parked)


# --- both -------------------------------------------------------------------------------------------------------------


def log_changed(node: "RaftNode", now_ms: int) -> None:
    """The log has grown, or more of it is on disk."""
    state = node.state
    if isinstance(state, Leader):
        state.take_voters(node.voters, now_ms)
        _commit(node, state)
        _wake(node, state)
        return
    snapshot = node.log.latest_snapshot
    if snapshot is not None:
        node.high_watermark = max(node.high_watermark, snapshot.offset)
    _follow_high_watermark(node)


# --- the follower's side ----------------------------------------------------------------------------------------------


def next_ms(node: "RaftNode") -> int:
    fetcher, log = node.fetcher, node.log
    if fetcher.in_flight is not None or fetcher.writing or fetcher.storing:
        return NEVER_MS
    if node.options.is_controller and log.durable_end < log.end_offset:
        return NEVER_MS  # a deposed leader's own tail: the fetch would claim what may be lost
    return fetcher.at_ms


def poll(node: "RaftNode", now_ms: int) -> None:
    """Send the next fetch: to the leader, or to anybody who may know one."""
    fetcher = node.fetcher
    if next_ms(node) > now_ms:
        return
    state = node.state
    epoch, end = node.epoch, node.end
    request: Fetch | FetchSnapshot
    # A leader that does not answer may have a successor that others know: ask it and them in turn.
    leaders_turn = fetcher.failures == 0 or fetcher.failures % 2 == (0 if node.leader_gone else 1)
    if isinstance(state, Follower) and leaders_turn:
        if state.snapshot is not None:
            request = FetchSnapshot(epoch, node.key, state.snapshot, state.position)
        else:
            wait_ms = node.options.fetch_wait_ms
            request = Fetch(epoch, node.key, end.offset, end.epoch, wait_ms, node.high_watermark)
        to, address = state.leader_id, node.address_of(state.leader_id, state.endpoints)
    else:
        request = Fetch(epoch, node.key, end.offset, end.epoch)
        to, address = NOBODY, _anybody(node)
    if address is not None and node.send(to, request, address):
        fetcher.in_flight = request
    else:
        fetcher.at_ms = now_ms + BACKOFF_MS_MAX


def _anybody(node: "RaftNode") -> Address | None:
    known = [node.address_of(voter, ()) for voter in node.other_voters()]
    servers = [address for address in [*known, *node.options.bootstrap_servers] if address is not None]
    own = {(host, port) for _, host, port in node.endpoints}
    servers = [address for address in dict.fromkeys(servers) if address not in own]
    if not servers:
        return None
    node.fetcher.next_server += 1
    return servers[node.fetcher.next_server % len(servers)]


def fetch_answered(node: "RaftNode", to: int, request: Fetch, reply: FetchReply, now_ms: int) -> None:
    state = _current(node, to, request, reply, now_ms)
    if state is None:
        return
    fetcher = node.fetcher
    if reply.diverging is not None:
        fetcher.storing = True
        node.emit(Truncate(_truncation(node, reply.diverging)))
    elif reply.snapshot is not None:
        if reply.snapshot.offset <= node.log.end_offset and node.log.snapshot_size(reply.snapshot) is not None:
            _back_off(node, now_ms)
        else:
            state.snapshot, state.position = reply.snapshot, 0
    else:
        fetcher.leader_high_watermark = reply.high_watermark
        if reply.records:
            fetcher.writing = True
            node.emit(AppendFetched(reply.records))
        else:
            _follow_high_watermark(node)


def snapshot_answered(node: "RaftNode", request: FetchSnapshot, reply: SnapshotReply, now_ms: int) -> None:
    state = node.state
    if (
        node.fetcher.in_flight is request
        and isinstance(state, Follower)
        and reply.error in (Err.SNAPSHOT_NOT_FOUND, Err.POSITION_OUT_OF_RANGE)
    ):
        # The leader has a later one by now.
        state.snapshot = None
    leader_id = state.leader_id if isinstance(state, Follower) else NOBODY
    following = _current(node, leader_id, request, reply, now_ms)
    if following is None:
        return
    size = len(reply.chunk) if reply.chunk is not None else 0
    if reply.snapshot != following.snapshot or reply.position != following.position or size == 0:
        following.snapshot = None
        _back_off(node, now_ms)
        return
    snapshot = following.snapshot
    assert snapshot is not None
    following.position += size
    last = following.position >= reply.size
    if last:
        following.snapshot = None
    node.fetcher.storing = True
    node.emit(StoreChunk(snapshot, reply.position, reply.chunk, last))


def _current(
    node: "RaftNode", to: int, request: Fetch | FetchSnapshot, reply: FetchReply | SnapshotReply, now_ms: int
) -> Follower | None:
    """The state to go on in, if the answer is the leader's and still of use. Who leads is learnt from any answer."""
    fetcher, state, said = node.fetcher, node.state, reply.leadership
    was_current = fetcher.in_flight is request
    if was_current:
        fetcher.in_flight = None
        fetcher.at_ms = now_ms
    if (
        was_current
        and isinstance(state, Follower)
        and to == state.leader_id
        and said.epoch == node.epoch
        and said.leader_id == NOBODY
        and reply.error is Err.NOT_LEADER_OR_FOLLOWER
    ):
        node.peer_gone(to, now_ms)
    node.observe(said, now_ms)
    if not was_current or node.state is not state:
        return None
    if not isinstance(state, Follower) or to != state.leader_id:
        fetcher.failures += 1 if fetcher.failures else 0
        fetcher.at_ms = now_ms + LOOK_AGAIN_MS
        return None
    if reply.error is not Err.NONE or said.epoch != node.epoch:
        _back_off(node, now_ms)
        return None
    fetcher.failures = 0
    state.has_fetched = True
    state.deadline_ms = now_ms + node.options.fetch_timeout_ms
    node.leader_gone = False
    return state


def _truncation(node: "RaftNode", diverging: OffsetEpoch) -> int:
    """Where to cut so that nothing is left that the leader does not have."""
    log = node.log
    if diverging.epoch == 0:
        offset = min(diverging.offset, log.end_offset)
    else:
        own = log.end_of_epoch(diverging.epoch)
        offset = min(own.offset, diverging.offset) if own.epoch == diverging.epoch else own.offset
    if offset < node.high_watermark:
        raise RaftError(
            f"leader {node.leader_id} of epoch {node.epoch} wants this log cut to {offset}, "
            f"below what is committed ({node.high_watermark}): its own log has lost records"
        )
    return offset


def _follow_high_watermark(node: "RaftNode") -> None:
    known = min(node.log.end_offset, node.fetcher.leader_high_watermark)
    node.high_watermark = max(node.high_watermark, known)


def _back_off(node: "RaftNode", now_ms: int) -> None:
    fetcher = node.fetcher
    fetcher.failures += 1
    shift = min(fetcher.failures, 8)
    fetcher.at_ms = now_ms + min(node.options.retry_backoff_ms << shift, BACKOFF_MS_MAX)


def request_failed(node: "RaftNode", to: int, request: Fetch | FetchSnapshot, refused: bool, now_ms: int) -> None:
    fetcher = node.fetcher
    if fetcher.in_flight is not request:
        return
    fetcher.in_flight = None
    _back_off(node, now_ms)
    if not isinstance(node.state, Follower | Unattached) or to == NOBODY:
        return
    if refused:
        node.peer_gone(to, now_ms)
    elif fetcher.failures == 1:
        fetcher.at_ms = now_ms  # the connection broke: whether the node is gone shows when it is made again


def rejected(node: "RaftNode", now_ms: int) -> None:
    """What the leader sent is damaged: nothing was written, ask again."""
    node.fetcher.writing = node.fetcher.storing = False
    node.fetcher.leader_high_watermark = -1
    if isinstance(node.state, Follower):
        node.state.snapshot = None
    _back_off(node, now_ms)
