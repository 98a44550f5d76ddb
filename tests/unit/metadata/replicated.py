"""One partition of a cluster on paper: what the controller decides about it, and what each of its replicas has.

Brokers crash, move, come back and are forgotten at random, and the controller dies between records. Whoever comes to
lead must have all that was committed, unless the election says that it was unclean.
"""

from random import Random

from headrace.metadata.image import NO_LEADER, RECOVERING, Broker, Partition
from headrace.metadata.records import Record
from headrace.metadata.versions import ELR_VERSION
from headrace.protocol import messages as m
from tests.unit.metadata.cases import create, features, incremental, new_topic
from tests.unit.metadata.paper_cluster import Cluster, alter, move, the_partition

BROKERS = range(1, 6)
DEAD = -1
LIKELY = ("append", "copy", "copy", "expand", "start")
STEPS = (
    *LIKELY, *LIKELY, "shrink", "fence", "unfence", "unfence", "crash", "stop", "minimum", "move", "call_off", "prefer",
    "unregister", "shut_down", "elect",
)  # fmt: skip


class Wrong(AssertionError):
    """What must never be."""


class Replicated:
    """`switching`: whether replicas are counted as eligible to lead changes meanwhile. Then no crash loses anything, as
    nobody would know of it."""

    def __init__(self, seed: int, switching: bool) -> None:
        self.dice = Random(seed)
        self.steps = (*STEPS, "switch") if switching else STEPS
        self.lossy = not switching
        self.events: list[str] = []
        self.cluster = Cluster(len(BROKERS))
        if switching or self.dice.random() < 0.8:
            self.cluster.commit([(m.FeatureLevelRecord(name=ELR_VERSION, feature_level=1), 0)])
        minimum, replicas = self.dice.choice("123"), list(BROKERS)[: self.dice.choice((2, 3, 3))]
        self.cluster.answer(create(new_topic("t", -1, -1, [("min.insync.replicas", minimum)], [(0, replicas)])))
        self.logs: dict[int, list[int]] = {broker: [] for broker in BROKERS}
        self.committed: list[int] = []
        self.appended = 0
        self.epochs = {broker: self.cluster.image.brokers[broker].epoch for broker in BROKERS}
        """Of the processes that run."""
        self.lives = dict.fromkeys(BROKERS, 1)
        self.vouched = dict.fromkeys(BROKERS, -1)
        """The epoch that a broker gives when it registers next, if it has lost nothing since."""
        self.copied: dict[int, int] = {}
        """In which leader epoch each follower has copied last."""
        self.led = (NO_LEADER, -1)
        self.unclean = 0

    # ---- what is

    @property
    def partition(self) -> Partition:
        return the_partition(self.cluster)

    @property
    def counts_eligible(self) -> bool:
        return ELR_VERSION in self.cluster.image.features

    def registered(self, broker: int) -> Broker | None:
        found: Broker | None = self.cluster.image.brokers.get(broker)
        return found

    def serves(self, broker: int) -> bool:
        known = self.registered(broker)
        return known is not None and not known.fenced and self.epochs[broker] == known.epoch

    @property
    def leader(self) -> int | None:
        leader = self.partition.leader
        return leader if leader != NO_LEADER and self.serves(leader) else None

    # ---- what happens

    def step(self) -> None:
        what, broker = self.dice.choice(self.steps), self.dice.choice(BROKERS)
        self.events.append(f"{what} {broker}")
        getattr(self, f"_{what}")(broker)
        for each in BROKERS:
            if each not in self.partition.replicas:
                self.logs[each].clear()
        self.check()
        self._commit()

    def finish(self) -> None:
        """All are there again."""
        for broker in BROKERS:
            known = self.registered(broker)
            if known is None or known.epoch != self.epochs[broker] or known.in_controlled_shutdown:
                self.epochs[broker] = DEAD
                self._start(broker)
        for broker in BROKERS:
            self._unfence(broker)
        self.check()
        if self.leader is None:
            raise Wrong(f"nobody leads though all are there: {self.partition}")

    def _write(self, records: list[Record]) -> bool:
        """Now and then the controller dies over it, and another one begins."""
        end = (
            len(records)
            if self.dice.random() < 0.9 or self.events[-1] == "finish"
            else self.dice.randrange(len(records) + 1)
        )
        self.cluster.commit(records[:end])
        if end < len(records):
            self.events.append(f"... died after {end} of {len(records)} records")
            self.cluster.commit(self.cluster.controller.elect_leaderless(self.cluster.image))
        return end == len(records)

    def _append(self, _: int) -> None:
        if self.leader is not None:
            self.logs[self.leader].append(self.appended)
            self.appended += 1

    def _copy(self, broker: int) -> None:
        known = self.registered(broker)
        if self.leader in (None, broker) or broker not in self.partition.replicas or known is None:
            return
        if self.epochs[broker] == known.epoch:
            assert self.leader is not None
            source, copy = self.logs[self.leader], self.logs[broker]
            same = common(source, copy)
            copy[same:] = source[same : same + self.dice.choice((1, 2, 100))]
            self.copied[broker] = self.partition.leader_epoch

    def _commit(self) -> None:
        minimum = int(self.cluster.image.config(2, "t")["min.insync.replicas"])
        if self.leader is not None and len(self.partition.isr) >= min(minimum, len(self.partition.replicas)):
            log = self.logs[self.leader]
            end = min(common(log, self.logs[replica]) for replica in self.partition.isr)
            self.committed = max(self.committed, log[:end], key=len)

    def _expand(self, broker: int) -> None:
        p, leader = self.partition, self.leader
        if leader is None or broker in p.isr or broker not in p.replicas or p.recovery_state == RECOVERING:
            return
        has_all = common(self.logs[broker], self.committed) == len(self.committed)
        known = self.registered(broker)
        if (
            has_all
            and self.copied.get(broker) == p.leader_epoch
            and self.serves(broker)
            and known is not None
            and known.active
        ):
            alter(self.cluster, self._members([*p.isr, broker]), sender=leader)

    def _shrink(self, broker: int) -> None:
        p, leader = self.partition, self.leader
        if leader is not None and p.recovery_state == RECOVERING:
            alter(self.cluster, self._members(p.isr), sender=leader, recovery_state=0)
        elif leader is not None and broker in p.isr and broker != leader:
            alter(self.cluster, self._members([replica for replica in p.isr if replica != broker]), sender=leader)

    def _members(self, isr: object) -> list[tuple[int, int]]:
        assert isinstance(isr, list | tuple)
        return [(replica, known.epoch if (known := self.registered(replica)) is not None else -1) for replica in isr]

    def _fence(self, broker: int) -> None:
        known = self.registered(broker)
        if known is not None and not known.fenced:
            self._write(self.cluster.controller.fence_broker(self.cluster.image, broker))

    def _unfence(self, broker: int) -> None:
        known = self.registered(broker)
        if known is not None and known.fenced and self.epochs[broker] == known.epoch:
            self._write(self.cluster.controller.unfence_broker(self.cluster.image, broker))

    def _stop(self, broker: int) -> None:
        if self.epochs[broker] != DEAD:
            self.vouched[broker], self.epochs[broker] = self.epochs[broker], DEAD

    def _crash(self, broker: int) -> None:
        log = self.logs[broker]
        if self.epochs[broker] != DEAD:
            self._stop(broker)
            if self.lossy and self.counts_eligible and self.dice.random() < 0.5:
                self.vouched[broker] = -1
                del log[self.dice.randrange(len(log) + 1) :]

    def _start(self, broker: int) -> None:
        if self.epochs[broker] == DEAD:
            self.lives[broker] += 1
            asked = self.cluster.request(broker, self.lives[broker], previous_broker_epoch=self.vouched[broker])
            image, offset = self.cluster.image, self.cluster.offset
            records, epoch = self.cluster.controller.register_broker(image, asked, offset, session_alive=False)
            if self._write(records):
                self.epochs[broker] = epoch

    def _unregister(self, broker: int) -> None:
        if self.registered(broker) is not None and self.dice.random() < 0.4:
            self._write(self.cluster.controller.unregister_broker(self.cluster.image, broker))
            if self.registered(broker) is None:
                self._stop(broker)  # one that runs registers again, and nobody believes it any more

    def _shut_down(self, broker: int) -> None:
        known = self.registered(broker)
        if known is not None and not known.fenced:
            self._write(self.cluster.controller.controlled_shutdown(self.cluster.image, broker))

    def _minimum(self, _: int) -> None:
        self.cluster.answer(incremental((2, "t", [("min.insync.replicas", 0, self.dice.choice("123"))])))

    def _switch(self, _: int) -> None:
        self.cluster.answer(features((ELR_VERSION, 0, 2) if self.counts_eligible else (ELR_VERSION, 1, 1)))

    def _move(self, _: int) -> None:
        p = self.partition
        move(self.cluster, self.dice.sample(list(BROKERS), len(set(p.replicas) - set(p.adding))))

    def _call_off(self, _: int) -> None:
        move(self.cluster, None)

    def _prefer(self, _: int) -> None:
        self._write(self.cluster.controller.balance_leaders(self.cluster.image, 10))

    def _elect(self, _: int) -> None:
        self._write(self.cluster.controller.elect_leaderless(self.cluster.image))

    # ---- what must be

    def check(self) -> None:
        p = self.partition
        if not set(p.replicas).issuperset((*p.isr, *p.elr)):
            raise Wrong(f"somebody who is no replica is counted on: {p}")
        if p.leader == NO_LEADER:
            able = [r for r in p.isr or p.elr if (known := self.registered(r)) is not None and known.active]
            if able:
                raise Wrong(f"{able} could lead, and nobody does: {p}")
            return
        known = self.registered(p.leader)
        if known is None or known.fenced or p.leader not in p.isr:
            raise Wrong(f"it cannot lead: {p}")
        if not self.serves(p.leader) or self.led == (p.leader, p.leader_epoch):
            return
        self.led = p.leader, p.leader_epoch
        has = common(self.logs[p.leader], self.committed)
        if p.recovery_state == RECOVERING:
            self.unclean += 1
            del self.committed[has:]
        elif has < len(self.committed):
            raise Wrong(f"{p.leader} leads with {has} of {len(self.committed)} committed records: {p}")


def common(one: list[int], other: list[int]) -> int:
    """How far they are the same."""
    return next((at for at, (a, b) in enumerate(zip(one, other)) if a != b), min(len(one), len(other)))
