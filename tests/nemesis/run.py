"""One run: a world, clients, faults by a plan, then peace; and the verdict."""

import asyncio
import faulthandler
import json
import shutil
import time
from pathlib import Path
from typing import NamedTuple

from tests.nemesis.faults import FAULTS, Event, Nemesis, one_by_one, plan
from tests.nemesis.judge import (
    Verdict,
    drained,
    ends,
    judge_readers,
    judge_replicas,
    judge_results,
    judge_writers,
    measure,
    read_log,
)
from tests.nemesis.own import (
    RESULT_PARTITIONS,
    RESULTS,
    OwnApp,
    OwnClassicMember,
    OwnFollower,
    OwnMember,
    OwnWriter,
    results,
)
from tests.nemesis.workload import (
    Actor,
    AiokafkaMember,
    AiokafkaWriter,
    Auditor,
    ConfluentMember,
    ConfluentWriter,
    Follower,
    JavaMember,
    JavaWriter,
    Readings,
    Writer,
)
from tests.nemesis.world import World

TOPICS = {"trio": 3, "pair": 3}
TRIO = {"segment.bytes": str(1 << 20)}
PAIR = {"segment.bytes": str(1 << 20), "min.insync.replicas": "1"}
RECOVERY_LIMIT_S = 60.0
"""Seconds on an idle machine; this one may be busy."""
DRAIN_S = 120.0
RISE_S = 1.5


class Wish(NamedTuple):
    seed: int
    seconds: float
    kinds: tuple[str, ...] | None = None
    every_s: float = 2.0
    java: bool = False
    is_one_by_one: bool = False
    rolling: int = 0
    descriptors: int | None = None
    own: bool = False
    """Headrace's own clients instead of others, but for one reader and those who audit."""


class Cast:
    """All clients of a run."""

    def __init__(self, bootstrap: str, wish: Wish) -> None:
        self.followers: list[Follower] = [Follower(bootstrap, TOPICS)]
        self.groups: dict[str, tuple[Readings, Auditor]] = {}
        self.members: list[Actor] = []
        self.app: OwnApp | None = None
        self.writers: list[Writer] = []
        (self._own if wish.own else self._others)(bootstrap, wish)

    def _own(self, bootstrap: str, wish: Wish) -> None:
        self.writers += [
            OwnWriter("own", bootstrap, TOPICS),
            OwnWriter("plain", bootstrap, TOPICS, {"idempotence": False}),
        ]
        self.followers.append(OwnFollower(bootstrap, TOPICS))
        self._group(bootstrap, "modern", OwnMember, 2)
        self._group(bootstrap, "classic", OwnClassicMember, 2)
        self.app = OwnApp("own app", bootstrap, TOPICS)

    def _others(self, bootstrap: str, wish: Wish) -> None:
        confluent: dict[str, object] = {
            "enable.idempotence": True,
            "socket.timeout.ms": 5_000,
            "request.timeout.ms": 5_000,
        }
        aiokafka: dict[str, object] = {"request_timeout_ms": 60_000}
        java: dict[str, object] = {"request.timeout.ms": 5_000}
        if wish.rolling:
            confluent, aiokafka, java = {"enable.idempotence": True}, {}, {}
        self.writers += [
            ConfluentWriter("confluent", bootstrap, TOPICS, confluent),
            ConfluentWriter("plain", bootstrap, TOPICS),
            AiokafkaWriter("aiokafka", bootstrap, TOPICS, aiokafka),
        ]
        self._group(bootstrap, "classic", ConfluentMember, 2)
        self._group(bootstrap, "async", AiokafkaMember, 1)
        if wish.java:
            self.writers.append(JavaWriter("java", bootstrap, TOPICS, java))
            self._group(bootstrap, "modern", JavaMember, 2)

    def _group(self, bootstrap: str, name: str, kind: type[ConfluentMember], members: int) -> None:
        readings = Readings()
        auditor = Auditor(bootstrap, name, TOPICS, readings)
        self.members += [kind(f"{name} {n}", bootstrap, name, TOPICS, readings) for n in range(members)]
        self.members.append(auditor)
        self.groups[name] = (readings, auditor)

    def start(self) -> None:
        for actor in (*self.writers, *self.readers):
            actor.start()

    @property
    def readers(self) -> list[Actor]:
        return [*self.followers, *self.members, *([self.app] if self.app is not None else [])]

    @property
    def replaced(self) -> dict[str, int]:
        """Consumers that hung, by name."""
        return {actor.name: len(actor.abandoned) - 1 for actor in self.readers if len(actor.abandoned) > 1}

    def wait_acked(self, more: int, limit_s: float) -> None:
        """Until every writer had so many further records acknowledged."""
        wanted = {writer.name: writer.book.count + more for writer in self.writers}
        deadline = time.monotonic() + limit_s
        while any(writer.book.count < wanted[writer.name] for writer in self.writers):
            behind = {writer.name: wanted[writer.name] - writer.book.count for writer in self.writers}
            assert time.monotonic() < deadline, f"writers do not get on; records missing: {behind}"
            time.sleep(0.02)


def run(wish: Wish, folder: Path) -> Verdict:
    verdict = Verdict(in_order=wish.rolling > 0)
    with World(folder, descriptors=wish.descriptors) as world:
        cluster = world.cluster
        cluster.create_topic("trio", TOPICS["trio"], 3, TRIO)
        cluster.create_topic("pair", TOPICS["pair"], 2, PAIR)
        if wish.own:
            cluster.create_topic(RESULTS, RESULT_PARTITIONS, 3)
        cast = Cast(cluster.bootstrap, wish)
        cast.start()
        cast.wait_acked(50, 60)
        time.sleep(RISE_S)
        nemesis = Nemesis(world, "trio")
        print(f"seed {wish.seed}: {wish.seconds:g} s", flush=True)
        if wish.rolling:
            roll(world, cast, nemesis.events, wish.rolling)
        else:
            strikes = (
                one_by_one(wish.seed, wish.kinds or tuple(FAULTS))
                if wish.is_one_by_one
                else plan(wish.seed, wish.seconds, wish.kinds or tuple(FAULTS), wish.every_s)
            )
            nemesis.run(strikes, 0.0 if wish.is_one_by_one else wish.seconds)
        until = conclude(verdict, world, cast)
        measure(verdict, cast.writers, nemesis.events, until)
        verdict.ended += world.unexpected
        for node in cluster.nodes.values():
            verdict.ended += [f"node {node.id}: {line}" for line in tracebacks(folder / f"node-{node.id}.log")]
        if verdict.findings() or verdict.reports():
            keep(world, cast, nemesis.events, folder)
    return verdict


def roll(world: World, cast: Cast, events: list[Event], times: int) -> None:
    """Every node in turn, stopped in order and started again, each when the one before is in sync."""
    for _ in range(times):
        for node in world.nodes:
            event = Event("rolling", f"node {node}", time.monotonic())
            world.stop(node)
            world.up(node)
            world.wait_whole(RECOVERY_LIMIT_S)
            event.healed = time.monotonic()
            events.append(event)
            cast.wait_acked(50, 30)


def conclude(verdict: Verdict, world: World, cast: Cast) -> float:
    """Peace, the end of all clients, and everything compared. Returns when writers were told to stop."""
    healed = time.monotonic()
    try:
        world.wait_whole(RECOVERY_LIMIT_S)
        cast.wait_acked(20, RECOVERY_LIMIT_S)
    except Exception as slow:
        verdict.slow.append(f"not whole again {RECOVERY_LIMIT_S:g} s after the last fault: {str(slow)[:3000]}")
    verdict.recovery_s = round(time.monotonic() - healed, 2)
    until = time.monotonic()
    for writer in cast.writers:
        writer.stopping.set()
    for writer in cast.writers:
        try:
            writer.join()
        except Exception as error:
            verdict.slow.append(f"writer {writer.name}: {error!r}")
    print(f"hung and replaced: {cast.replaced}", flush=True)
    log = read_log(world.cluster.bootstrap, TOPICS)
    deadline = time.monotonic() + DRAIN_S
    while not drained(ends(log), cast.followers, cast.groups) and time.monotonic() < deadline:
        time.sleep(0.1)
    copied: list[str] = []
    if cast.app is not None:
        copied = asyncio.run(results(world.cluster.bootstrap, sum(map(len, log.values())), DRAIN_S))
        verdict.slow += [f"{w.name} gave up: {w.book.failed[:3]}" for w in cast.writers if w.book.failed]
    for actor in cast.readers:
        actor.stopping.set()
    for actor in cast.readers:
        try:
            actor.join()
        except Exception as error:
            faulthandler.dump_traceback()
            verdict.slow.append(f"{actor.name}: {error!r}")
    judge_writers(verdict, log, cast.writers)
    judge_readers(verdict, log, cast.followers, cast.groups)
    if cast.app is not None:
        judge_results(verdict, log, copied)
        print(f"{len(copied)} results of {sum(map(len, log.values()))} records", flush=True)
    judge_replicas(verdict, world, TOPICS)
    return until


def tracebacks(log: Path) -> list[str]:
    """Errors that no code expected, by their last lines."""
    lines = log.read_text(errors="replace").splitlines()
    found = []
    for n, line in enumerate(lines):
        if line.startswith("Traceback"):
            end = next((at for at in range(n + 1, len(lines)) if not lines[at].startswith((" ", "\t"))), n)
            found.append(f"Traceback ... {lines[end]}")
    return found


def keep(world: World, cast: Cast, events: list[Event], folder: Path) -> None:
    """Replicas and history as they are, for whoever looks into it: the disks are gone with the cage."""
    history = {
        "events": [(event.kind, event.what, event.began, event.healed) for event in events],
        "acked": {w.name: [(*place, number) for place, number in w.book.acked.items()] for w in cast.writers},
        "times": {w.name: {f"{t}-{p}": times for (t, p), times in w.book.times.items()} for w in cast.writers},
        "commits": {name: [(c.at, *c.place, c.offset) for c in r.commits] for name, (r, _) in cast.groups.items()},
    }
    (folder / "history.json").write_text(json.dumps(history))
    for node in world.nodes:
        for topic in TOPICS:
            for source in world.cluster[node].data.glob(f"{topic}-*"):
                shutil.copytree(source, folder / "kept" / f"node-{node}" / source.name, dirs_exist_ok=True)
