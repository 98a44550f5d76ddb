"""A seeded world for the pure core of the quorum: messages lost, doubled and reordered, nodes that crash and forget
what they had not synced, partitions, changes of the voters. After every event Raft's safety properties are checked.

Nothing here is the driver's: this is a second, smaller executor of the same effects, on a disk made of lists.
"""

import heapq
from collections.abc import Callable
from itertools import count
from random import Random
from typing import Any, NamedTuple

from headrace.raft.messages import (
    AddVoter,
    Answer,
    Answered,
    AppendControl,
    Appended,
    AppendFetched,
    Durable,
    Effect,
    Event,
    Failed,
    FetchReply,
    Persist,
    Persisted,
    Probe,
    Probed,
    Received,
    RemoveVoter,
    Send,
    SnapshotReply,
    StoreChunk,
    Stored,
    Truncate,
    Vote,
    VoteReply,
)
from headrace.raft.node import RaftNode
from headrace.raft.states import Follower
from headrace.raft.types import Election, OffsetEpoch, RaftMember, RaftOptions, ReplicaKey
from headrace.raft.voters import History, Voter, VoterSet

PEACE_MS = 8000
"""Long enough for every timeout to pass and a majority to agree."""
CHUNK = 5
"""Entries in one piece of a snapshot."""


class Violation(AssertionError):
    """A safety property does not hold."""


class Stuck(Violation):
    """Nothing is wrong, but nothing goes on either, in a world at peace."""


class Entry(NamedTuple):
    epoch: int
    value: Any


class ModelLog:
    """RaftLog in memory. `entries[0]` stands at `start_offset`; each entry is a batch of its own."""

    def __init__(self, voters: VoterSet) -> None:
        self.base = voters
        self.start_offset = 0
        self.entries: list[Entry] = []
        self.durable_end = 0
        self.snapshots: list[tuple[OffsetEpoch, list[Entry]]] = []
        self.voters: History[VoterSet] = History(voters)
        self.kraft_versions: History[int] = History(1)

    @property
    def end_offset(self) -> int:
        return self.start_offset + len(self.entries)

    @property
    def last_epoch(self) -> int:
        if self.entries:
            return self.entries[-1].epoch
        return self.snapshots[-1][0].epoch if self.snapshots else 0

    @property
    def latest_snapshot(self) -> OffsetEpoch | None:
        return self.snapshots[-1][0] if self.snapshots else None

    @property
    def earliest_snapshot(self) -> OffsetEpoch | None:
        return self.snapshots[0][0] if self.snapshots else None

    def snapshot_size(self, snapshot: OffsetEpoch) -> int | None:
        for found, entries in self.snapshots:
            if found == snapshot:
                return len(entries)
        return None

    def end_of_epoch(self, epoch: int) -> OffsetEpoch:
        if not self.entries or epoch > self.entries[-1].epoch:
            return OffsetEpoch(self.end_offset, self.last_epoch)
        for at in range(len(self.entries) - 1, -1, -1):
            if self.entries[at].epoch <= epoch:
                return OffsetEpoch(self.start_offset + at + 1, self.entries[at].epoch)
        # As Kafka: older than anything here.
        earliest = self.earliest_snapshot
        return earliest if earliest is not None else OffsetEpoch(self.start_offset, epoch)

    def everything(self) -> list[Entry]:
        """From offset 0 on: what the snapshot stands for, then the log."""
        before = self.snapshots[-1][1][: self.start_offset] if self.snapshots else []
        return before + self.entries

    def append(self, entry: Entry) -> None:
        if isinstance(entry.value, VoterSet):
            self.voters.add(self.end_offset, entry.value)
        self.entries.append(entry)

    def truncate(self, end_offset: int) -> None:
        del self.entries[max(0, end_offset - self.start_offset) :]
        self.durable_end = min(self.durable_end, self.end_offset)
        self.voters.truncate_from(self.end_offset)

    def take_snapshot(self, end_offset: int) -> None:
        """Of all below `end_offset`, which is committed: the log then begins there."""
        all_entries = self.everything()
        found = OffsetEpoch(end_offset, all_entries[end_offset - 1].epoch)
        self.snapshots = [(found, all_entries[:end_offset])]
        del self.entries[: end_offset - self.start_offset]
        self.start_offset = end_offset
        self.durable_end = max(self.durable_end, end_offset)

    def install(self, snapshot: OffsetEpoch, entries: list[Entry]) -> None:
        self.snapshots = [(snapshot, entries)]
        self.start_offset, self.entries, self.durable_end = snapshot.offset, [], snapshot.offset
        self._voters_from(entries)

    def _voters_from(self, entries: list[Entry]) -> None:
        sets = [e.value for e in entries if isinstance(e.value, VoterSet)]
        self.voters.restart(self.start_offset - 1, sets[-1] if sets else self.base)

    def crash(self, random: Random) -> None:
        self.truncate(random.randint(self.durable_end, self.end_offset))
        self._voters_from(self.snapshots[-1][1] if self.snapshots else [])
        if not self.snapshots:
            self.voters.restart(-1, self.base)
        for at, entry in enumerate(self.entries):
            if isinstance(entry.value, VoterSet):
                self.voters.add(self.start_offset + at, entry.value)
        # What survived is synced before it counts.
        self.durable_end = self.end_offset


class ModelNode:
    """One machine. What is on its disk outlives its node."""

    def __init__(self, model: "Model", node_id: int, voters: VoterSet) -> None:
        self.model = model
        self.id = node_id
        self.log = ModelLog(voters)
        self.election = Election()
        self.node: RaftNode | None = None
        self.life = 0
        self.skew_ms = model.random.randrange(10**6)
        self.unsaved: Election | None = None
        self.held: list[Send | Answer] = []
        self.syncing = False
        self.chunks: list[Entry] = []
        self.high_watermark = 0
        self.tick_at_ms = 1 << 62

    def start(self) -> None:
        options = self.model.options()
        self.life += 1
        self.unsaved, self.held, self.syncing, self.chunks = None, [], False, []
        self.high_watermark = 0
        self.tick_at_ms = 1 << 62
        node = RaftNode(
            self.model.member(self.id), options, self.log, self.election, self.now_ms, self.model.random.randrange
        )
        self.node = node
        self.run(node.tick(self.now_ms))

    def crash(self, worst: bool = False) -> None:
        """What was not synced is at the dice's mercy, or all of it gone."""
        self.node = None
        if worst:
            self.log.truncate(self.log.durable_end)
        self.log.crash(self.model.random)

    @property
    def now_ms(self) -> int:
        return self.model.now_ms + self.skew_ms

    def step(self, event: Event) -> None:
        if self.node is not None:
            self.run(self.node.step(event, self.now_ms))

    def later(self, delay_ms: int, event: Callable[[], None]) -> None:
        """Unless this life ends first."""
        life = self.life
        self.model.at(delay_ms, lambda: event() if self.life == life and self.node is not None else None)

    def run(self, effects: list[Effect]) -> None:
        followups: list[Event] = []
        for effect in effects:
            self.execute(effect, followups)
        for event in followups:
            self.step(event)
        node = self.node
        assert node is not None
        self.model.check(self)
        due_ms = node.deadline_ms
        if due_ms < self.tick_at_ms and due_ms - self.now_ms < 10**9:
            self.tick_at_ms = due_ms
            self.later(max(1, due_ms - self.now_ms), self.tick)

    def tick(self) -> None:
        node = self.node
        assert node is not None
        self.tick_at_ms = 1 << 62
        self.run(node.tick(self.now_ms) if node.deadline_ms <= self.now_ms else [])

    def execute(self, effect: Effect, followups: list[Event]) -> None:  # noqa: C901 - one case for each kind
        model, log = self.model, self.log
        match effect:
            case Send() | Answer():
                if self.unsaved is not None and not model.says_before_saving:
                    self.held.append(effect)
                else:
                    self.say(effect)
            case Persist(election):
                saving = self.unsaved is not None
                self.unsaved = election
                if not saving:
                    self.later(model.disk_ms(), self.saved)
            case AppendControl(epoch, records):
                for record in records:
                    if not isinstance(record, int):
                        log.append(Entry(epoch, record))
                followups.append(Appended())
                self.sync()
            case AppendFetched(records):
                for entry in records:
                    log.append(entry)
                followups.append(Appended())
                self.sync()
            case Truncate(end_offset):
                log.truncate(end_offset)
                self.later(model.disk_ms(), lambda: self.step(Stored()))
            case StoreChunk(snapshot, position, chunk, last):
                self.later(model.disk_ms(), lambda: self.store(snapshot, position, chunk, last))
            case Probe(voter):
                self.later(model.disk_ms(), lambda: self.step(Probed(voter.id, (0, 1))))

    def saved(self) -> None:
        # Always the newest: what was said in between rests on it.
        election, self.unsaved = self.unsaved, None
        assert election is not None
        self.election = election
        held, self.held = self.held, []
        for effect in held:
            self.say(effect)
        self.step(Persisted(election))

    def sync(self) -> None:
        if self.syncing:
            return
        self.syncing = True
        end_offset = self.log.end_offset
        epoch = self.log.last_epoch

        def done() -> None:
            self.syncing = False
            # A truncation since has taken some of it back.
            if self.log.end_offset >= end_offset and (
                end_offset == 0
                or end_offset <= self.log.start_offset
                or self.log.entries[end_offset - 1 - self.log.start_offset].epoch == epoch
            ):
                self.log.durable_end = max(self.log.durable_end, end_offset)
            if self.log.durable_end < self.log.end_offset:
                self.sync()
            self.step(Durable())

        self.later(self.model.disk_ms(), done)

    def store(self, snapshot: OffsetEpoch, position: int, chunk: list[Entry], last: bool) -> None:
        del self.chunks[position:]
        self.chunks += chunk
        if last:
            self.log.install(snapshot, self.chunks)
            self.chunks = []
        self.step(Stored())

    def say(self, effect: Send | Answer) -> None:
        if isinstance(effect, Send):
            self.model.send(self, effect)
        else:
            effect.token(self.with_content(effect.reply))

    def with_content(self, reply: Any) -> Any:
        log = self.log
        if isinstance(reply, FetchReply) and reply.read_from is not None:
            at = reply.read_from - log.start_offset
            return reply._replace(records=log.entries[at : at + self.model.random.choice((1, 1, 3))])
        if isinstance(reply, SnapshotReply) and reply.snapshot is not None:
            for found, entries in log.snapshots:
                if found == reply.snapshot:
                    return reply._replace(chunk=entries[reply.position : reply.position + CHUNK])
        return reply


class Model:
    def __init__(
        self,
        seed: int,
        voters: int = 3,
        observers: int = 0,
        *,
        loss: float = 0.05,
        crashes: bool = True,
        partitions: bool = True,
        changes: bool = False,
        changes_share: float = 0.15,
        writes_every_ms: int = 100,
    ) -> None:
        self.seed = seed
        self.random = Random(seed)
        self.now_ms = 0
        self.loss = loss
        self.crashes, self.partitions, self.changes = crashes, partitions, changes
        self.changes_share = changes_share
        """Of all trouble."""
        self.writes_every_ms = writes_every_ms
        self.disk_ms_choices = (1, 2, 5, 30, 100)
        """How long a sync may take."""
        self.betrayals = 0.3
        """How often a leader that crashes does so at the worst moment for the others."""
        self.crash_voters = 0.1
        """How often one that has given its vote crashes on the spot."""
        self.says_before_saving = False
        """A planted bug of the executor."""
        self.queue: list[tuple[int, int, Callable[[], None]]] = []
        self.order = count()
        self.cut: set[tuple[int, int]] = set()
        """(from, to) pairs whose messages vanish."""
        first = VoterSet(self.voter(n) for n in range(1, voters + 1))
        self.nodes = {n: ModelNode(self, n, first) for n in range(1, voters + observers + 1)}
        self.written = count()
        # What the checks remember.
        self.leaders: dict[int, int] = {}
        self.votes: dict[tuple[int, int], ReplicaKey] = {}
        self.committed: list[Entry] = []
        self.steps = 0

    @staticmethod
    def voter(node_id: int) -> Voter:
        return Voter(node_id, bytes([node_id % 256]) * 16, (("CONTROLLER", f"c{node_id}", node_id),))

    def member(self, node_id: int) -> RaftMember:
        own = self.voter(node_id)
        return RaftMember(ReplicaKey(own.id, own.directory_id), own.endpoints)

    def options(self) -> RaftOptions:
        return RaftOptions(bootstrap_servers=tuple((f"c{n}", n) for n in self.nodes))

    def disk_ms(self) -> int:
        return self.random.choice(self.disk_ms_choices)

    def at(self, delay_ms: int, event: Callable[[], None]) -> None:
        heapq.heappush(self.queue, (self.now_ms + delay_ms, next(self.order), event))

    # --- the network --------------------------------------------------------------------------------------------------

    def send(self, source: ModelNode, effect: Send) -> None:
        to = effect.address[1]
        life, answered = source.life, False

        def back(event: Event) -> None:
            nonlocal answered
            if not answered and source.life == life:
                answered = True
                source.step(event)

        def reply(content: Any) -> None:
            if isinstance(effect.request, Vote) and isinstance(content, VoteReply):
                self.vote_said(to, effect.request, content)
            if not self.lost(to, source.id):
                self.at(self.latency_ms(), lambda: back(Answered(effect.to, effect.request, content)))

        def arrive() -> None:
            node = self.nodes.get(to)
            if node is None or node.node is None:
                if self.random.random() < 0.5:
                    self.at(1, lambda: back(Failed(effect.to, effect.request, refused=True)))
                return
            if (source.id, to) not in self.cut:
                node.step(Received(reply, effect.request))

        if not self.lost(source.id, to):
            self.at(self.latency_ms(), arrive)
            if self.random.random() < self.loss:
                self.at(self.latency_ms() * 3, arrive)
        self.at(2000, lambda: back(Failed(effect.to, effect.request)))

    def lost(self, source: int, to: int) -> bool:
        return (source, to) in self.cut or self.random.random() < self.loss

    def latency_ms(self) -> int:
        return self.random.choice((1, 1, 2, 3, 10, 40)) if self.loss else 1

    # --- what happens -------------------------------------------------------------------------------------------------

    def run(self, duration_ms: int) -> None:
        """Trouble for so long, then peace: somebody must then lead, and all must agree."""
        for node in self.nodes.values():
            self.at(self.random.randrange(300), node.start)
        for at_ms in range(0, duration_ms, 250):
            self.at(at_ms + self.random.randrange(250), self.trouble)
        every_ms = self.writes_every_ms
        for at_ms in range(0, duration_ms + PEACE_MS + 5 * every_ms, every_ms):
            self.at(at_ms + self.random.randrange(every_ms), self.write)
        self.until(duration_ms)
        self.heal()
        self.until(duration_ms + PEACE_MS)
        before = len(self.committed)
        self.until(duration_ms + PEACE_MS + 5 * every_ms)
        if len(self.committed) <= before:
            raise Stuck(f"seed {self.seed}: nothing is committed any more: {self.describe()}")
        self.check_logs()

    def until(self, time_ms: int) -> None:
        while self.queue and self.queue[0][0] <= time_ms:
            self.now_ms, _, event = heapq.heappop(self.queue)
            event()

    def trouble(self) -> None:
        random = self.random
        dice = random.random()
        node = random.choice(list(self.nodes.values()))
        if dice < 0.25 and self.crashes:
            if random.random() < 0.5:
                # The one that others count on, and not everybody hears what it said last.
                node = self.leader() or node
                if self.partitions and random.random() < self.betrayals:
                    self.betray(node)
                    return
                if self.partitions and random.random() < 0.5:
                    self.isolate({random.choice(list(self.nodes))})
            self.restart(node, random.choice((10, 300, 2000)))
        elif dice < 0.5 and self.partitions and len(self.nodes) > 1:
            self.cut.clear()
            if random.random() < 0.7:
                side = set(random.sample(list(self.nodes), random.randint(1, len(self.nodes) - 1)))
                self.isolate(side, one_way=random.random() < 0.4)
        elif dice < 0.6 and node.node is not None and node.high_watermark > node.log.start_offset + 3:
            node.log.take_snapshot(node.high_watermark)
        elif dice < 0.6 + self.changes_share and self.changes:
            self.change_voters()

    def isolate(self, side: set[int], one_way: bool = False) -> None:
        for a in self.nodes:
            for b in self.nodes:
                if (a in side) != (b in side) and (not one_way or a in side):
                    self.cut.add((a, b))

    def betray(self, leader: ModelNode) -> None:
        """The worst for whoever counts too early: the leader forgets, and the one that has most cannot tell."""
        others = [node for node in self.nodes.values() if node is not leader and node.node is not None]
        if others:
            self.cut.clear()
            self.isolate({max(others, key=lambda node: node.log.end_offset).id})
        self.restart(leader, 1, worst=True)

    def restart(self, node: ModelNode, after_ms: int, worst: bool = False) -> None:
        if node.node is not None:
            node.crash(worst)
            self.at(after_ms, lambda: node.start() if node.node is None else None)

    def leader(self) -> ModelNode | None:
        return next((n for n in self.nodes.values() if n.node is not None and n.node.leader is not None), None)

    def change_voters(self) -> None:
        leader = self.leader()
        if leader is None:
            return
        changed = self.voter(self.random.choice(list(self.nodes)))
        if leader.log.voters.last.get(changed.id) is None:
            leader.step(Received(lambda reply: None, AddVoter(changed)))
        elif len(leader.log.voters.last) > 2:
            leader.step(Received(lambda reply: None, RemoveVoter(ReplicaKey(changed.id, changed.directory_id))))

    def heal(self) -> None:
        self.cut.clear()
        self.loss = 0.0
        self.crashes = False
        self.trouble = lambda: None  # type: ignore[method-assign]
        for node in self.nodes.values():
            if node.node is None:
                node.start()

    def write(self) -> None:
        for node in self.nodes.values():
            if node.node is not None and node.node.leader is not None:
                node.log.append(Entry(node.node.epoch, next(self.written)))
                node.sync()
                node.step(Appended())

    # --- what must hold -----------------------------------------------------------------------------------------------

    def vote_said(self, voter: int, request: Vote, reply: VoteReply) -> None:
        if reply.granted and not request.pre_vote:
            if self.crashes and self.random.random() < self.crash_voters:
                # The moment that matters: the vote is given, and perhaps not yet remembered.
                self.at(0, lambda: self.restart(self.nodes[voter], 1))
            first = self.votes.setdefault((voter, request.epoch), request.candidate)
            if first != request.candidate:
                raise Violation(f"seed {self.seed}: node {voter} voted twice in epoch {request.epoch}")

    def check(self, node: ModelNode) -> None:
        raft, log = node.node, node.log
        assert raft is not None
        if raft.leader is not None:
            other = self.leaders.setdefault(raft.epoch, node.id)
            if other != node.id:
                raise Violation(f"seed {self.seed}: nodes {other} and {node.id} both lead epoch {raft.epoch}")
            if log.end_offset < len(self.committed):
                raise Violation(f"seed {self.seed}: leader {node.id} of epoch {raft.epoch} lacks committed entries")
        if raft.high_watermark < node.high_watermark:
            raise Violation(f"seed {self.seed}: high watermark of node {node.id} went back")
        if raft.high_watermark > log.end_offset:
            raise Violation(f"seed {self.seed}: high watermark of node {node.id} is beyond its log")
        if raft.high_watermark > node.high_watermark:
            self.check_committed(node, raft.high_watermark)
            node.high_watermark = raft.high_watermark

    def check_committed(self, node: ModelNode, high_watermark: int) -> None:
        log = node.log
        for offset in range(max(node.high_watermark, log.start_offset), high_watermark):
            entry = log.entries[offset - log.start_offset]
            if offset == len(self.committed):
                self.committed.append(entry)
            elif offset > len(self.committed):
                raise Violation(f"seed {self.seed}: node {node.id} commits {offset} before {len(self.committed)}")
            elif self.committed[offset] != entry:
                raise Violation(
                    f"seed {self.seed}: offset {offset} was committed as {self.committed[offset]}, and is {entry} "
                    f"on node {node.id}"
                )

    def check_logs(self) -> None:
        """In peace: what is committed is everywhere, and logs that share an entry share all before it."""
        logs = {node.id: node.log.everything() for node in self.nodes.values()}
        for node_id, entries in logs.items():
            known = min(len(entries), len(self.committed))
            if entries[:known] != self.committed[:known]:
                raise Violation(f"seed {self.seed}: node {node_id} differs from what is committed")
            following = self.nodes[node_id].node
            if isinstance(following.state if following else None, Follower) and known < len(self.committed) - 50:
                raise Stuck(f"seed {self.seed}: node {node_id} does not catch up: {known} of {len(self.committed)}")
        for a, one in logs.items():
            for b, two in logs.items():
                shared = min(len(one), len(two))
                while shared and one[shared - 1].epoch != two[shared - 1].epoch:
                    shared -= 1
                if one[:shared] != two[:shared]:
                    raise Violation(f"seed {self.seed}: the logs of {a} and {b} do not match")

    def describe(self) -> str:
        parts = []
        for node in self.nodes.values():
            raft = node.node
            if raft is None:
                parts.append(f"{node.id}: down")
            else:
                parts.append(
                    f"{node.id}: {type(raft.state).__name__} epoch {raft.epoch} leader {raft.leader_id} "
                    f"end {node.log.end_offset} durable {node.log.durable_end} hw {raft.high_watermark} "
                    f"voters {raft.voters.ids}"
                )
        return "; ".join(parts)
