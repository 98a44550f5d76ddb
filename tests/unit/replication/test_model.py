"""Three replicas of one partition, with real logs on disks that forget, under any order of events.

Whatever leaders, followers, the controller and the power do: what was committed stays, replicas agree on it, and the
high watermark of an epoch never goes back. No network and no clock: messages are held back and delivered by rules.
"""

from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple

import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headrace.broker.replicas.partition import Environment, Partition
from headrace.config import LogConfig
from headrace.errors import Err, KafkaError
from headrace.metadata.image import Partition as Assignment
from headrace.records.builder import build_batch
from headrace.records.layout import iter_headers
from headrace.records.reader import Record
from headrace.replication.follower import cut_offset
from headrace.replication.partition import Follower, LeaderState, Proposal, always_eligible
from headrace.storage.files import make_durable_dirs
from headrace.storage.log import Log
from headrace.testing.simulator.disk import CrashMode, MemoryDisk

NODES = (1, 2, 3)
CONFIG = LogConfig(segment_bytes=700, index_interval_bytes=100, min_insync_replicas=1)
FOLDER = "/data/t-0"

node = st.sampled_from(NODES)


class Answer(NamedTuple):
    """What a leader sent, on its way."""

    leader: int
    leader_epoch: int
    records: bytes
    high_watermark: int


class Replica:
    """One node."""

    def __init__(self, node_id: int) -> None:
        self.node_id = node_id
        self.disk = MemoryDisk()
        make_durable_dirs(self.disk, "/data")
        self.saved_high_watermark = 0
        self.partition: Partition
        self.inbox: Answer | None = None
        self.proposal: tuple[int, int, Proposal] | None = None  # leader epoch, partition epoch, what was sent
        self.restart()

    def restart(self) -> None:
        log = Log.open(self.disk, FOLDER, CONFIG, now_ms=1000, topic_id=b"t" * 16)
        log.flush()  # as the broker does with what recovery found, before it counts
        anything: Any = None
        syncer: Any = self  # what is dirty is synced when the model says so
        environment = Environment(
            node_id=self.node_id, wall_ms=lambda: 1000, monotonic_ms=lambda: 1000, syncer=syncer, durable_acks=True,
            validate_records=False, eligible=always_eligible, lag_ms_max=10_000, fetchable=lambda partition: None,
            dir_failed=anything, no_space=anything, run_in_thread=anything,
        )  # fmt: skip
        self.partition = Partition("t", b"t" * 16, 0, log, environment)
        self.partition.restore(self.saved_high_watermark)
        self.inbox = self.proposal = None

    # The syncer of its partition

    def run_sync(self) -> None:
        plan = self.partition.log.sync_plan()
        if plan is not None:
            plan.run()
            self.partition.log.mark_durable(plan)
            self.partition.durable()

    def dirty(self, partition: object) -> None:
        """Nothing is synced before its rule says so."""


class ThreeReplicas(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.replicas = {node_id: Replica(node_id) for node_id in NODES}
        self.assigned = Assignment(NODES, NODES, 1, 0, 0, (bytes(16),) * 3)
        """As the controller has it."""
        self.committed: dict[int, bytes] = {}
        """Every batch that was ever below a leader's high watermark, by base offset."""
        self.committed_end = 0
        self.watermarks: dict[tuple[int, int], int] = {}
        self.written = 0
        for replica in self.replicas.values():
            self.learn(replica.node_id)

    # ---- clients

    @rule(who=node, count=st.integers(1, 3))
    def produce(self, who: int, count: int) -> None:
        replica = self.replicas[who]
        if replica.partition.leader is None:
            return
        self.written += 1
        value = b"%d by %d" % (self.written, who)
        batch = build_batch([Record(at, 1000, None, value) for at in range(count)])
        replica.partition.append_own(bytearray(batch), count, 1000)

    # ---- followers

    @rule(who=node)
    def fetch(self, who: int) -> None:
        replica = self.replicas[who]
        partition = replica.partition
        if partition.leader is not None or partition.leader_id not in self.replicas or partition.leader_id == who:
            return
        log = partition.log
        if partition.countable_end < log.end_offset:
            return  # a follower asks for more only when what it has is on its disk
        source = self.replicas[partition.leader_id].partition
        if source.leader is None or source.leader_epoch != partition.leader_epoch:
            return  # fenced, or not yet
        try:
            shared = (
                source.diverging_epoch(log.epochs.latest_epoch, log.end_offset)
                if log.epochs.latest_epoch >= 0
                else None
            )
            if shared is not None:
                own_epoch, own_end = log.epochs.end_offset_for(shared[0], log.end_offset)
                log.truncate_to(cut_offset(*shared, own_epoch, own_end, log.end_offset))
                partition.truncated()
                replica.inbox = None
                return
            piece = source.log.read(log.end_offset, 300, source.log.end_offset)
        except KafkaError as error:
            assert error.error is Err.OFFSET_OUT_OF_RANGE
            raise AssertionError("nothing was deleted, so every offset is there or diverges") from error
        source.follower_fetched(who, log.end_offset, 0, -1, 0)
        self.note(source)
        data = b""
        if piece is not None:
            data = piece.read()
            piece.release()
        replica.inbox = Answer(partition.leader_id, partition.leader_epoch, data, source.high_watermark)

    @rule(who=node)
    def deliver(self, who: int) -> None:
        replica = self.replicas[who]
        answer, replica.inbox = replica.inbox, None
        partition = replica.partition
        if answer is None or partition.leader is not None or partition.leader_epoch != answer.leader_epoch:
            return
        if answer.records:
            partition.append_copied(memoryview(answer.records))
        partition.leader_told(answer.high_watermark, 0)

    @rule(who=node)
    def sync(self, who: int) -> None:
        self.replicas[who].run_sync()
        self.note(self.replicas[who].partition)

    @rule(who=node)
    def replicate(self, who: int) -> None:
        """All of it, as it goes when nothing goes wrong."""
        for step in (self.sync, self.fetch, self.deliver, self.sync, self.fetch):
            step(who)

    # ---- who is in sync

    @rule(who=node, other=node)
    def join(self, who: int, other: int) -> None:
        leader = self.replicas[who].partition.leader
        if leader is not None and other in leader.followers and leader.may_join(leader.followers[other]):
            self.propose(who, (*leader.isr, other))

    @rule(who=node, other=node)
    def leave(self, who: int, other: int) -> None:
        """As if it had been silent for too long."""
        leader = self.replicas[who].partition.leader
        if leader is not None and other in leader.isr and other != who and leader.pending is None:
            self.propose(who, tuple(replica for replica in leader.isr if replica != other))

    def propose(self, who: int, isr: tuple[int, ...]) -> None:
        leader = self.replicas[who].partition.leader
        assert leader is not None
        self.replicas[who].proposal = leader.leader_epoch, leader.partition_epoch, leader.propose(isr)

    @rule(who=node)
    def alter(self, who: int) -> None:
        """The controller gets to a proposal. What it answers is heard of as metadata."""
        replica = self.replicas[who]
        if replica.proposal is None:
            return
        (leader_epoch, partition_epoch, proposal), replica.proposal = replica.proposal, None
        now = self.assigned
        if now.leader == who and now.leader_epoch == leader_epoch and now.partition_epoch == partition_epoch:
            self.decide(isr=proposal.isr)

    # ---- the controller

    @rule(who=node)
    def elect(self, who: int) -> None:
        """Any of the ISR, whether or not the leader is alive."""
        if who in self.assigned.isr:
            self.decide(leader=who, leader_epoch=self.assigned.leader_epoch + 1)

    def decide(self, **fields: Any) -> None:
        old = self.assigned
        known = {name: getattr(old, name) for name in Assignment.__struct_fields__}
        self.assigned = Assignment(**{**known, "partition_epoch": old.partition_epoch + 1, **fields})

    @rule(who=node)
    def learn(self, who: int) -> None:
        """The metadata reaches a node."""
        replica, now = self.replicas[who], self.assigned
        partition = replica.partition
        if now.leader != who:
            if partition.leader_epoch != now.leader_epoch or partition.leader is not None:
                partition.become_follower(now.leader, now.leader_epoch)
                replica.inbox = None
        elif partition.leader is None or partition.leader_epoch != now.leader_epoch:
            partition.become_leader(now)
            assert partition.log.end_offset >= self.committed_end, f"{who} leads without what is committed"
        else:
            partition.reassign(now)
        self.note(partition)

    # ---- power

    @rule(who=node, mode=st.sampled_from([CrashMode.LOSE, CrashMode.RANDOM]), dice=st.randoms(use_true_random=False))
    def crash(self, who: int, mode: CrashMode, dice: Any) -> None:
        replica = self.replicas[who]
        replica.partition.log.abandon()
        replica.disk.crash(dice, mode)
        replica.restart()
        if self.assigned.leader == who:
            # It registers anew, and was fenced in between: whoever leads now leads in another epoch.
            others = [other for other in self.assigned.isr if other != who]
            self.decide(leader=dice.choice(others or [who]), leader_epoch=self.assigned.leader_epoch + 1)

    @rule(who=node)
    def save(self, who: int) -> None:
        replica = self.replicas[who]
        replica.saved_high_watermark = replica.partition.high_watermark

    @precondition(lambda self: len(self.committed) > 1)
    @rule(dice=st.randoms(use_true_random=False))
    def crash_all(self, dice: Any) -> None:
        for who in NODES:
            self.crash(who, CrashMode.LOSE, dice)

    # ---- what must hold

    def note(self, partition: Partition) -> None:
        """What a leader shows as committed is so for ever."""
        leader = partition.leader
        if leader is None:
            return
        key = leader.node_id, leader.leader_epoch
        assert leader.high_watermark >= self.watermarks.get(key, 0), "it went back"
        self.watermarks[key] = leader.high_watermark
        for base, data in batches(partition, leader.high_watermark).items():
            assert self.committed.setdefault(base, data) == data, f"two histories at {base}"
        self.committed_end = max(self.committed_end, leader.high_watermark)

    @invariant()
    def replicas_agree_below_their_high_watermarks(self) -> None:
        for replica in self.replicas.values():
            partition = replica.partition
            for base, data in batches(partition, partition.high_watermark).items():
                assert self.committed.get(base) == data, f"{replica.node_id} shows another {base}"

    @invariant()
    def whoever_may_be_elected_has_what_is_committed_on_its_disk(self) -> None:
        for who in self.assigned.isr:
            partition = self.replicas[who].partition
            durable = batches(partition, partition.log.durable_end)
            for base, data in self.committed.items():
                assert durable.get(base) == data, f"{who} is in the ISR without {base}"


def batches(partition: Partition, end_offset: int) -> dict[int, bytes]:
    found = {}
    for segment in partition.log.segments:
        data = segment.handle.open().read(segment.size, 0) if segment.size else b""
        for position, header in iter_headers(data):
            if header.end_offset <= end_offset:
                # A leader epoch is part of a batch: identical means written by the same leader.
                found[header.base_offset] = data[position : position + header.size]
    return found


TestThreeReplicas = ThreeReplicas.TestCase
TestThreeReplicas.settings = settings(max_examples=40, stateful_step_count=50, deadline=None)


WEIGHTS = {
    "produce": 16, "replicate": 20, "fetch": 6, "deliver": 6, "sync": 8, "join": 10, "leave": 5, "alter": 14,
    "elect": 1.5,
    "learn": 20, "crash": 0.8, "save": 1, "crash_all": 0.2,
}  # fmt: skip


@pytest.mark.parametrize("seed", range(60))
def test_a_long_walk(seed: int) -> None:
    """Hypothesis finds the shortest way to a fault; it takes long walks to get to most of them."""
    walk(seed, 250)


def walk(seed: int, steps: int) -> ThreeReplicas:
    dice = Random(seed)
    world = ThreeReplicas()
    for _ in range(steps):
        (action,) = dice.choices(list(WEIGHTS), list(WEIGHTS.values()))
        match action:
            case "produce":
                leaders = [who for who in NODES if world.replicas[who].partition.leader is not None]
                world.produce(dice.choice(leaders or NODES), dice.randint(1, 3))
            case "join" | "leave":
                getattr(world, action)(dice.choice(NODES), dice.choice(NODES))
            case "alter":
                world.alter(dice.choice(NODES))
            case "crash":
                world.crash(dice.choice(NODES), dice.choice([CrashMode.LOSE, CrashMode.RANDOM]), dice)
            case "crash_all":
                world.crash_all(dice)
            case _:
                getattr(world, action)(dice.choice(NODES))
        world.replicas_agree_below_their_high_watermarks()
        world.whoever_may_be_elected_has_what_is_committed_on_its_disk()
    return world


def test_the_walks_get_somewhere() -> None:
    worlds = [walk(seed, 250) for seed in range(100, 110)]
    assert sum(world.committed_end for world in worlds) > 200
    assert sum(world.assigned.leader_epoch for world in worlds) > 30
    assert max(len({batch[12:16] for batch in world.committed.values()}) for world in worlds) > 3, (
        "leaders that committed"
    )


PLANTED: dict[str, Callable[[pytest.MonkeyPatch], None]] = {}


def planted(plant: Callable[[pytest.MonkeyPatch], None]) -> Callable[[pytest.MonkeyPatch], None]:
    PLANTED[plant.__name__] = plant
    return plant


@planted
def one_that_should_leave_counts_no_longer(patch: pytest.MonkeyPatch) -> None:
    inner = LeaderState._recount

    def recount(self: LeaderState) -> None:
        inner(self)
        if self.pending is not None:
            self._counting = tuple(f for f in self.followers.values() if f.node_id in self.pending.isr)

    patch.setattr(LeaderState, "_recount", recount)


@planted
def one_that_may_be_in_already_does_not_count_yet(patch: pytest.MonkeyPatch) -> None:
    inner = LeaderState._recount

    def recount(self: LeaderState) -> None:
        inner(self)
        self._counting = tuple(f for f in self.followers.values() if f.node_id in self.isr)

    patch.setattr(LeaderState, "_recount", recount)


@planted
def followers_count_what_they_have_only_written(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Partition, "countable_end", property(lambda self: self.log.end_offset))


@planted
def leaders_count_what_they_have_only_written(patch: pytest.MonkeyPatch) -> None:
    inner = Partition.append_own

    def append_own(self: Partition, batch: bytearray, count: int, max_timestamp: int) -> int:
        end_offset = inner(self, batch, count, max_timestamp)
        self._reached(end_offset)
        return end_offset

    patch.setattr(Partition, "append_own", append_own)


@planted
def followers_join_before_they_have_what_is_committed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        LeaderState, "may_join", lambda self, follower: self.pending is None and follower.node_id not in self.isr
    )


@planted
def what_followers_said_in_an_earlier_epoch_still_counts(patch: pytest.MonkeyPatch) -> None:
    def renew(
        self: LeaderState, epoch: int, start: int, isr: Any, replicas: Any, partition_epoch: int, now: int
    ) -> bool:
        self.leader_epoch, self.epoch_start_offset, self.partition_epoch = epoch, start, -1
        return self.assign(isr, replicas, partition_epoch)

    inner = LeaderState.__init__
    kept: dict[int, dict[int, Follower]] = {}

    def init(self: LeaderState, node_id: int, *arguments: Any, **more: Any) -> None:
        inner(self, node_id, *arguments, **more)
        for replica, follower in kept.get(node_id, {}).items():
            self.followers[replica] = follower
        kept[node_id] = self.followers
        self._recount()

    patch.setattr(LeaderState, "renew", renew)
    patch.setattr(LeaderState, "__init__", init)


@planted
def followers_cut_to_their_high_watermark(patch: pytest.MonkeyPatch) -> None:
    """What Kafka did before KIP-101."""
    inner = Partition.become_follower

    def become_follower(self: Partition, leader_id: int, leader_epoch: int) -> None:
        inner(self, leader_id, leader_epoch)
        self.log.truncate_to(self.high_watermark)

    patch.setattr(Partition, "become_follower", become_follower)


@planted
def followers_cut_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Partition, "diverging_epoch", lambda self, last_epoch, offset: None)


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_bug_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    PLANTED[name](monkeypatch)
    with pytest.raises(AssertionError):
        for seed in range(200):
            walk(seed, 200)
