"""The table of faults: what each takes hold of, how it begins and how it is healed; and plans drawn from it by a
seed."""

import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from headrace.client.admin.operations import Operations
from headrace.client.errors import ClientError
from headrace.testing.cluster import ClusterFailed
from tests.nemesis.world import World

CLOCK_JUMP_S = 59 * 60
"""One minute more, and brokers refuse what clients with right clocks send (message.timestamp.after.max.ms: one
hour)."""

Heal = Callable[[], None]


class Strike(NamedTuple):
    """One fault of a plan. `target` says which node, resolved when it begins: the third leader is known only then."""

    at_s: float
    kind: str
    lasts_s: float
    target: str
    dice: int


@dataclass
class Event:
    """What happened: from when to when, and to whom."""

    kind: str
    what: str
    began: float
    healed: float = float("inf")


class Fault(NamedTuple):
    """`claims`: what no other fault may hold at the same time. `begin` returns how it is healed, and a word on what it
    did."""

    begin: Callable[[World, int, random.Random], tuple[Heal, str]]
    claims: tuple[str, ...]
    longest_s: float = 12.0
    weight: int = 2


# -- the network


def _cuts(world: World, cuts: list[tuple[int, int]], what: str) -> tuple[Heal, str]:
    for sender, receiver in cuts:
        world.network.cut(sender, receiver)
    return world.network.heal, what


def isolate(world: World, node: int, dice: random.Random) -> tuple[Heal, str]:
    others = [n for n in world.nodes if n != node]
    return _cuts(world, [pair for n in others for pair in ((node, n), (n, node))], f"node {node} alone")


def mute(world: World, node: int, dice: random.Random) -> tuple[Heal, str]:
    return _cuts(world, [(node, n) for n in world.nodes if n != node], f"node {node} hears and is not heard")


def deaf(world: World, node: int, dice: random.Random) -> tuple[Heal, str]:
    return _cuts(world, [(n, node) for n in world.nodes if n != node], f"node {node} is heard and hears nobody")


def bridge(world: World, node: int, dice: random.Random) -> tuple[Heal, str]:
    one, other = (n for n in world.nodes if n != node)
    return _cuts(world, [(one, other), (other, one)], f"{one} and {other} apart, {node} sees both")


def lost_answers(world: World, node: int, dice: random.Random) -> tuple[Heal, str]:
    """Clients' requests arrive and are done; no answer comes back."""
    return _cuts(world, [(node, 0)], f"node {node}'s answers do not reach clients")


# -- processes


def kill(world: World, node: int, dice: random.Random) -> tuple[Heal, str]:
    world.kill(node)
    return lambda: world.up(node), f"node {node}"


def pause(world: World, node: int, dice: random.Random) -> tuple[Heal, str]:
    world.freeze(node)
    return lambda: world.thaw(node), f"node {node}"


def restart(world: World, node: int, dice: random.Random) -> tuple[Heal, str]:
    stopping = threading.Thread(target=world.attempt, args=(lambda cluster: world.stop(node),))
    stopping.start()

    def heal() -> None:
        stopping.join()
        world.up(node)

    return heal, f"node {node}"


# -- disks


def power(world: World, node: int, dice: random.Random) -> tuple[Heal, str]:
    world.cut_power(node)
    return lambda: world.restore_power(node), f"node {node}"


def blackout(world: World, node: int, dice: random.Random) -> tuple[Heal, str]:
    world.cut_power(*world.nodes)
    return lambda: world.restore_power(*world.nodes), "all nodes"


def full(world: World, node: int, dice: random.Random) -> tuple[Heal, str]:
    world.fill_disk(node)
    return lambda: world.clear_disk(node), f"node {node}"


# -- clocks


def clock(world: World, node: int, dice: random.Random) -> tuple[Heal, str]:
    ahead_s = dice.choice([-1, 1]) * CLOCK_JUMP_S
    world.set_clock(node, ahead_s)
    return lambda: world.set_clock(node, 0), f"node {node} by {ahead_s} s"


# -- leaders and replicas that move


class Mover:
    """Gives partitions other replicas and elects preferred leaders, again and again until told to stop."""

    def __init__(self, world: World, dice: random.Random) -> None:
        self.world, self.dice = world, dice
        self.done = 0
        self._stop = threading.Event()
        threading.Thread(target=self._run, name="mover", daemon=True).start()

    def stop(self) -> None:
        """No further ones; the one under way may take its time, and other faults do not wait for it."""
        self._stop.set()
        print(f"  {self.done} moves and elections", flush=True)

    def _run(self) -> None:
        while not self._stop.wait(self.dice.random() * 0.6):
            try:
                self._move()
                self.done += 1
            except (ClientError, ClusterFailed, OSError):
                pass  # nobody can decide it now

    def _move(self) -> None:
        cluster, nodes = self.world.cluster, list(self.world.nodes)
        topics = cluster.ask(lambda admin: admin.list_topics(), timeout_s=3.0)
        target = {}
        for topic in topics:
            for index, partition in topic.partitions.items():
                if self.dice.random() < 0.4:
                    self.dice.shuffle(nodes)
                    target[topic.name, index] = nodes[: max(2, min(3, len(partition.replicas)))]
        cluster.ask(lambda admin: Operations(admin).reassign(target), timeout_s=3.0)
        time.sleep(0.2)
        cluster.ask(lambda admin: Operations(admin).elect(None), timeout_s=3.0)


def move(world: World, node: int, dice: random.Random) -> tuple[Heal, str]:
    return Mover(world, dice).stop, "replicas and leaders"


NET = ("network",)
FAULTS: dict[str, Fault] = {
    "isolate": Fault(isolate, NET, 15.0),
    "mute": Fault(mute, NET, 15.0, 1),
    "deaf": Fault(deaf, NET, 15.0, 1),
    "bridge": Fault(bridge, NET, 15.0, 1),
    "lost answers": Fault(lost_answers, NET, 8.0, 1),
    "kill": Fault(kill, ("process",), 5.0),
    "pause": Fault(pause, ("process",), 15.0),
    "restart": Fault(restart, ("process",), 5.0),
    "power": Fault(power, ("process", "disk"), 6.0),
    "blackout": Fault(blackout, ("all",), 3.0, 1),
    "full": Fault(full, ("disk",), 10.0),
    "clock": Fault(clock, ("clock",), 10.0),
    "move": Fault(move, ("moves",), 10.0, 3),
}
TARGETS = ("1", "2", "3", "leader", "leader", "controller")


def plan(seed: int, seconds: float, kinds: tuple[str, ...] = tuple(FAULTS), every_s: float = 2.0) -> list[Strike]:
    """Faults at random times, so close that they overlap. The same seed gives the same plan."""
    dice = random.Random(seed)
    found, at_s = [], 1.0
    weights = [FAULTS[kind].weight for kind in kinds]
    while at_s < seconds:
        (kind,) = dice.choices(kinds, weights)
        lasts_s = dice.choice([0.2, 0.6, 1.0]) * dice.uniform(0.2, 1.0) * FAULTS[kind].longest_s
        found.append(
            Strike(at_s, kind, min(lasts_s, max(0.5, seconds - at_s)), dice.choice(TARGETS), dice.randrange(1 << 30))
        )
        at_s += dice.random() * 2 * every_s
    return found


def one_by_one(
    seed: int, kinds: tuple[str, ...] = tuple(FAULTS), lasts_s: float = 10.0, rest_s: float = 8.0
) -> list[Strike]:
    """Each kind by itself against a leader, long enough to be noticed: how long writes pause for each."""
    dice = random.Random(seed)
    return [
        Strike(
            2.0 + n * (lasts_s + rest_s), kind, min(lasts_s, FAULTS[kind].longest_s), "leader", dice.randrange(1 << 30)
        )
        for n, kind in enumerate(kinds)
    ]


@dataclass
class Nemesis:
    """Carries a plan out. A fault whose claims are held, or whose target is not there, is left out, and that is
    said."""

    world: World
    topic: str
    events: list[Event] = field(default_factory=list)
    _held: dict[str, Event] = field(default_factory=dict)

    def run(self, strikes: list[Strike], until_s: float) -> None:
        began = time.monotonic()
        healing: list[tuple[float, Heal, Event, set[str]]] = []
        waiting = sorted(strikes)
        try:
            while waiting or healing:
                now_s = time.monotonic() - began
                due = [entry for entry in healing if entry[0] <= now_s]
                for entry in due:
                    healing.remove(entry)
                    self._heal(*entry[1:])
                if waiting and waiting[0].at_s <= now_s:
                    strike = waiting.pop(0)
                    if begun := self._begin(strike):
                        heal, event, claims = begun
                        healing.append((time.monotonic() - began + strike.lasts_s, heal, event, claims))
                time.sleep(0.02)
            time.sleep(max(0.0, until_s - (time.monotonic() - began)))
        finally:
            for _, heal, event, claims in healing:
                self._heal(heal, event, claims)

    def _begin(self, strike: Strike) -> tuple[Heal, Event, set[str]] | None:
        fault, dice = FAULTS[strike.kind], random.Random(strike.dice)
        if strike.kind == "clock" and not self.world.has_clocks:
            return None
        node = self._node(strike.target, dice)
        claims = {claim if claim in ("network", "moves", "all") else f"{claim} {node}" for claim in fault.claims}
        # A blackout needs every process and disk for itself; links, clocks and moves may go on.
        bodies = {held for held in self._held if held.startswith(("process", "disk", "all"))}
        if (
            claims & set(self._held)
            or ("all" in self._held and any(c.startswith(("process", "disk")) for c in claims))
            or ("all" in claims and bodies)
        ):
            return None
        event = Event(strike.kind, "", time.monotonic())
        heal, event.what = fault.begin(self.world, node, dice)
        print(f"{time.strftime('%H:%M:%S')} {strike.kind}: {event.what}, for {strike.lasts_s:.1f} s", flush=True)
        self.events.append(event)
        self._held.update(dict.fromkeys(claims, event))
        return heal, event, claims

    def _heal(self, heal: Heal, event: Event, claims: set[str]) -> None:
        heal()
        event.healed = time.monotonic()
        for claim in claims:
            del self._held[claim]
        print(f"{time.strftime('%H:%M:%S')}   healed: {event.kind} ({event.what})", flush=True)

    def _node(self, target: str, dice: random.Random) -> int:
        if target.isdigit():
            return int(target)
        found = -1

        def look(cluster: object) -> None:
            nonlocal found
            ask = self.world.cluster.ask
            if target == "leader":
                partitions = ask(lambda admin: admin.describe_topic(self.topic), timeout_s=1.5).partitions
                found = partitions[dice.randrange(len(partitions))].leader
            else:
                found = ask(lambda admin: Operations(admin).quorum(), timeout_s=1.5).leader_id

        self.world.attempt(look)
        return found if found > 0 else dice.choice(self.world.nodes)
