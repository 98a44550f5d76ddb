"""The leader's view of one partition: who is in sync, who may join or must leave, and what is committed.

Pure: it is told how far each replica has come and says whether the high watermark moved. What counts as "come" is
the caller's business (written, or fsynced); see `docs/architecture.md`, Durability. Times are monotonic milliseconds.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from headrace.errors import Err, KafkaError

NO_EPOCH = -1
UNKNOWN = -1
"""An end or start offset that a replica has not told yet."""
NEVER_MS = -(1 << 62)

Eligible = Callable[[int, int], bool]
"""(replica, the broker epoch it fetches with): may it stand in an ISR? Alive, not leaving, and the same incarnation."""


def always_eligible(replica: int, broker_epoch: int) -> bool:
    return True


class Follower:
    """Another replica, as its Fetches show it."""

    __slots__ = (
        "broker_epoch", "caught_up_ms", "end_offset", "fetched_leader_end", "fetched_ms", "joining", "log_start_offset",
        "node_id",
    )  # fmt: skip

    def __init__(self, node_id: int) -> None:
        self.node_id = node_id
        self.broker_epoch = NO_EPOCH
        self.end_offset = UNKNOWN
        self.log_start_offset = UNKNOWN
        self.caught_up_ms = NEVER_MS
        """When it last had everything that the leader had."""
        self.fetched_ms = NEVER_MS
        self.fetched_leader_end = UNKNOWN
        """Where the leader's log ended at its last Fetch."""
        self.joining = False
        """Outside the ISR, but so close behind that the high watermark waits for it: or it would never get in."""

    def is_caught_up(self, leader_end: int, now_ms: int, lag_ms_max: int) -> bool:
        return self.end_offset >= leader_end or now_ms - self.caught_up_ms <= lag_ms_max


class Proposal(NamedTuple):
    """An ISR that the controller was asked for and has not answered yet."""

    isr: tuple[int, ...]
    partition_epoch: int
    """Of the state it would replace."""


class LeaderState:
    """Replication state while this node leads the partition."""

    __slots__ = (
        "_configured_min_isr", "_counting", "_eligible", "_lag_ms_max", "epoch_start_offset", "followers",
        "high_watermark", "isr", "leader_epoch", "min_isr", "node_id", "own_end", "partition_epoch", "pending",
        "replicas", "too_few",
    )  # fmt: skip

    def __init__(
        self,
        node_id: int,
        leader_epoch: int,
        epoch_start_offset: int,
        high_watermark: int,
        isr: Sequence[int],
        min_isr: int,
        replicas: Sequence[int],
        *,
        partition_epoch: int = 0,
        eligible: Eligible = always_eligible,
        lag_ms_max: int = 10_000,
        now_ms: int = 0,
    ) -> None:
        self.node_id = node_id
        self.high_watermark = high_watermark
        self.own_end = high_watermark
        """How far this replica itself has come; less than its log's end while that waits for the disk."""
        self._eligible = eligible
        self._lag_ms_max = lag_ms_max
        self._configured_min_isr = min_isr
        self.followers: dict[int, Follower] = {}
        self.pending: Proposal | None = None
        """Asked for, so perhaps in force already. Its members count: nothing is shown that one of them lacks."""
        self.isr: tuple[int, ...] = ()
        self.replicas: tuple[int, ...] = ()
        self.partition_epoch = NO_EPOCH
        self._counting: tuple[Follower, ...] = ()
        """Those the high watermark waits for, beside this node."""
        self.too_few = False
        """Fewer replicas are in sync than the minimum: `require_min_isr` would refuse."""
        self.min_isr = min_isr
        """As configured, but never more than there are replicas at all: such a topic could not be written to."""
        self.renew(leader_epoch, epoch_start_offset, isr, replicas, partition_epoch, now_ms)

    # ---- what the metadata says

    def renew(
        self,
        leader_epoch: int,
        epoch_start_offset: int,
        isr: Sequence[int],
        replicas: Sequence[int],
        partition_epoch: int,
        now_ms: int,
    ) -> bool:
        """Lead on, or begin to, in a new epoch that starts at the log's end. True when that commits more."""
        if self.node_id not in isr:
            raise ValueError(f"leader {self.node_id} is not among its in-sync replicas {list(isr)}")
        self.leader_epoch = leader_epoch
        self.epoch_start_offset = epoch_start_offset
        self.partition_epoch = NO_EPOCH
        self.followers = {}  # what they said in an earlier epoch counts for nothing
        moved = self.assign(isr, replicas, partition_epoch)
        for follower in self.followers.values():
            if follower.node_id in isr:
                follower.fetched_ms = follower.caught_up_ms = now_ms
        return moved

    def assign(self, isr: Sequence[int], replicas: Sequence[int], partition_epoch: int) -> bool:
        """What the metadata says within an epoch. True when that commits more: one it waited for is out."""
        if partition_epoch <= self.partition_epoch:
            return False
        self.partition_epoch = partition_epoch
        self.pending = None
        self.isr = tuple(isr)
        self.replicas = tuple(replicas)
        known = self.followers
        others = [replica for replica in replicas if replica != self.node_id]
        self.followers = {replica: known.get(replica) or Follower(replica) for replica in others}
        return self._changed()

    def configure(self, min_isr: int) -> bool:
        """`min.insync.replicas` has changed. True when that commits more."""
        self._configured_min_isr = min_isr
        return self._changed()

    # ---- progress

    @property
    def knows_committed(self) -> bool:
        """A new leader does not know yet how much of what it has is committed."""
        return self.high_watermark >= self.epoch_start_offset

    def require_min_isr(self) -> None:
        """An acks=all write is refused before it is appended when too few replicas could confirm it."""
        if self.too_few:
            raise KafkaError(
                Err.NOT_ENOUGH_REPLICAS,
                f"{len(self.isr)} replicas are in sync, min.insync.replicas is {self.min_isr}",
            )

    def own_reached(self, end_offset: int) -> bool:
        """This replica has everything below `end_offset`. True when that commits more."""
        self.own_end = end_offset
        if self._counting:
            return self._advance()
        # Alone. Below the minimum nothing commits: a record that one replica alone has must not be shown to anyone.
        if end_offset <= self.high_watermark or self.too_few:
            return False
        self.high_watermark = end_offset
        return True

    def fetched(
        self, follower: Follower, offset: int, log_start: int, broker_epoch: int, leader_end: int, now_ms: int
    ) -> bool:
        """A follower has everything below `offset` and asks for more. True when that commits more."""
        if offset >= leader_end:
            follower.caught_up_ms = now_ms
        elif offset >= follower.fetched_leader_end > UNKNOWN and follower.fetched_ms > follower.caught_up_ms:
            # It had at its last Fetch all that there was then... as of then.
            follower.caught_up_ms = follower.fetched_ms
        follower.fetched_ms = now_ms
        follower.fetched_leader_end = leader_end
        follower.log_start_offset = log_start
        follower.broker_epoch = broker_epoch
        follower.end_offset = offset
        node_id = follower.node_id
        if node_id not in self.isr and (self.pending is None or node_id not in self.pending.isr):
            joining = follower.is_caught_up(leader_end, now_ms, self._lag_ms_max) and self._eligible(
                node_id, broker_epoch
            )
            if joining is not follower.joining:
                follower.joining = joining
                self._recount()
        return self._advance()

    def was_caught_up(self, follower: Follower, then_ms: int) -> None:
        """More was appended; until then it had everything, which its Fetch at `then_ms` said."""
        if then_ms > follower.caught_up_ms:
            follower.caught_up_ms = then_ms

    # ---- who is in sync

    @property
    def maximal_isr(self) -> tuple[int, ...]:
        """Everybody who may be in the ISR: the last known and the one asked for."""
        if self.pending is None:
            return self.isr
        return self.isr + tuple(replica for replica in self.pending.isr if replica not in self.isr)

    def may_join(self, follower: Follower) -> bool:
        """In sync but not in the ISR: has all that is committed and something of this leader's epoch."""
        return (
            self.pending is None
            and follower.node_id not in self.isr
            and follower.end_offset >= self.high_watermark
            and follower.end_offset >= self.epoch_start_offset
            and self._eligible(follower.node_id, follower.broker_epoch)
        )

    def has_lost(self, follower: Follower) -> bool:
        """In the ISR, and yet without records that are committed: its disk has lost them, and it must not lead."""
        return UNKNOWN < follower.end_offset < self.high_watermark and follower.node_id in self.isr

    def out_of_sync(self, leader_end: int, now_ms: int) -> list[int]:
        """Members of the ISR that have to leave it. None while a change is under way."""
        if self.pending is not None:
            return []
        return [
            follower.node_id
            for follower in self.followers.values()
            if follower.node_id in self.isr
            and (self.has_lost(follower) or not follower.is_caught_up(leader_end, now_ms, self._lag_ms_max))
        ]

    def forget_joining(self, leader_end: int, now_ms: int) -> bool:
        """Wait no longer for those who have fallen back or gone before they joined. True when that commits more."""
        changed = False
        for follower in self.followers.values():
            if follower.joining and not (
                follower.is_caught_up(leader_end, now_ms, self._lag_ms_max)
                and self._eligible(follower.node_id, follower.broker_epoch)
            ):
                follower.joining = False
                changed = True
        return self._changed() if changed else False

    def propose(self, isr: Sequence[int]) -> Proposal:
        """Ask the controller for another ISR. From now on the members of both count: it may be in force before this
        node hears of it. `broker/replicas/isr.py` has the race step by step."""
        assert self.pending is None and self.node_id in isr, (self.pending, isr)
        self.pending = Proposal(tuple(isr), self.partition_epoch)
        self._recount()
        return self.pending

    def refused(self, proposal: Proposal) -> bool:
        """The controller is known not to have done it. True when that commits more."""
        if self.pending is not proposal:
            return False
        self.pending = None
        return self._changed()

    def broker_epoch_of(self, replica: int) -> int:
        """As the ISR names a follower to the controller, which refuses an incarnation that is no longer; -1: not
        known."""
        follower = self.followers.get(replica)
        return follower.broker_epoch if follower is not None else NO_EPOCH

    # ---- inside

    def _changed(self) -> bool:
        self._recount()
        return self._advance()

    def _recount(self) -> None:
        self.min_isr = min(self._configured_min_isr, len(self.replicas))
        self.too_few = len(self.isr) < self.min_isr
        counting = self.maximal_isr
        for follower in self.followers.values():
            if follower.node_id in counting:
                follower.joining = False
        self._counting = tuple(
            follower for follower in self.followers.values() if follower.joining or follower.node_id in counting
        )

    def _advance(self) -> bool:
        committed = self.own_end
        for follower in self._counting:
            if follower.end_offset < committed:
                committed = follower.end_offset
        if committed <= self.high_watermark or self.too_few:
            return False
        self.high_watermark = committed
        return True
