"""A whole cluster on simulated machines, unmodified, with its metadata in a model of ZooKeeper: a session lives as long
as its process is heard of, and connections to ZooKeeper break apart from those between brokers."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from random import Random

import pytest

from headrace.quorum.zookeeper import opening, paths
from headrace.quorum.zookeeper.operations import Create, Delete
from headrace.quorum.zookeeper.session import ZooKeeperOptions
from headrace.testing.simulator.process import CURRENT
from headrace.testing.simulator.world import World
from headrace.testing.simulator.zookeeper import ModelSession, ZooKeeperModel
from tests.simulation.cluster import CLIENT_PORT, CONTROLLER_PORT, SimCluster

SESSION_MS = 2_000
LOOK_S = 0.2
STRIKES = (
    "kill", "power cut of all", "freeze", "freeze", "isolate", "deaf", "mute", "bridge", "restart",
    "no zookeeper", "no zookeeper", "zookeeper away", "deposed", "deposed", "deposed asleep", "moved unheard",
    "asks late",
)  # fmt: skip


class SimSession(ModelSession):
    """One node's, as kazoo keeps it: it is heard of while its process runs, and begins anew when it has expired."""

    def __init__(self, ensemble: "Ensemble", options: ZooKeeperOptions) -> None:
        super().__init__(ensemble.model)
        self._ensemble = ensemble
        self._timeout_s = options.session_timeout_ms / 1000
        process = CURRENT.get()
        assert process is not None
        self.host = process.host
        self.heard_s = ensemble.model.loop.time()
        self._closed = False
        ensemble.sessions.append(self)
        ensemble.model.loop.call_later(LOOK_S, self._beat)

    def _beat(self) -> None:
        """In its process: not while that sleeps, and never again once it is dead."""
        if self._closed:
            return
        reachable = self._ensemble.is_reachable(self.host)
        if not reachable:
            self.cut()
        elif not self.connected or not self._ensemble.model.is_alive(self.id):
            self.cut()
            self.heal()
        if reachable:
            self.heard_s = self._ensemble.model.loop.time()
        self._ensemble.model.loop.call_later(LOOK_S, self._beat)

    @property
    def is_silent(self) -> bool:
        return self._ensemble.model.loop.time() - self.heard_s > self._timeout_s

    async def close(self) -> None:
        self._closed = True
        await super().close()

    # ---- what `opening` asks before anything runs

    def open(self) -> None:
        for path in paths.PERSISTENT:
            self._ensemble.model.ensure(path)

    def ensure(self, path: str, data: bytes) -> bytes:
        self._ensemble.model.ensure(path, data)
        return self._ensemble.model.nodes[path].data

    def read(self, path: str) -> bytes | None:
        found = self._ensemble.model.nodes.get(path)
        return found.data if found is not None else None

    def abandon(self) -> None:
        self._closed = True
        self._ensemble.model.expire(self.id)


class Ensemble:
    """ZooKeeper, from outside of all nodes: it ends the sessions of those that are silent."""

    def __init__(self, world: World) -> None:
        self.model = ZooKeeperModel(world.loop, world.dice("zookeeper"))
        self.sessions: list[SimSession] = []
        self.away = False
        self.cut: set[str] = set()
        self._task = asyncio.ensure_future(self._expire())

    def is_reachable(self, host: str) -> bool:
        return not self.away and host not in self.cut

    async def _expire(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            for session in self.sessions:
                if not self.away and session.is_silent:
                    self.model.expire(session.id)

    def back(self) -> None:
        """Silence counts from now on: while it was away it could hear nobody."""
        self.away = False
        for session in self.sessions:
            session.heard_s = self.model.loop.time()

    def depose(self) -> None:
        """By hand, as people do to have another controller: the old one lives, and does not know it yet."""
        if paths.CONTROLLER in self.model.nodes:
            self.model.multi(0, [Delete(paths.CONTROLLER)])

    def controller(self, names: Sequence[str]) -> str | None:
        node = self.model.nodes.get(paths.CONTROLLER)
        return names[json.loads(node.data)["brokerid"] - 1] if node is not None else None

    def move_leaders(self, names: Sequence[str]) -> str:
        """Ask by znodes that others lead what the leader of some partition leads, and say who that is."""
        partitions = []
        leader = 1
        for path, node in self.model.nodes.items():
            if path.endswith("/state"):
                _, _, _, topic, _, number, _ = path.split("/")
                leader = json.loads(node.data)["leader"]
                others = [one for one in range(1, len(names) + 1) if one != leader]
                partitions.append({"topic": topic, "partition": int(number), "replicas": [*others, leader]})
        for path in (paths.REASSIGN, paths.ELECTION):
            if path not in self.model.nodes:
                data = json.dumps({"version": 1, "partitions": partitions}).encode()
                self.model.multi(0, [Create(path, data)])
        return names[leader - 1] if leader > 0 else names[0]

    def close(self) -> None:
        self._task.cancel()


class ZooKeeperCluster(SimCluster):
    """Made inside of a running world."""

    def __init__(self, world: World, monkeypatch: pytest.MonkeyPatch, more: Mapping[str, str] | None = None) -> None:
        super().__init__(world)
        self.more = more or {}
        self.ensemble = Ensemble(world)
        monkeypatch.setattr(opening, "KazooSession", lambda options, loop: SimSession(self.ensemble, options))

    def settings_of(self, name: str) -> dict[str, str]:
        found = super().settings_of(name)
        del found["controller.quorum.bootstrap.servers"], found["process.roles"]
        return {
            **found,
            "listeners": f"PLAINTEXT://{name}:{CLIENT_PORT},CONTROLLER://{name}:{CONTROLLER_PORT}",
            "zookeeper.connect": "zookeeper:2181",
            "zookeeper.session.timeout.ms": str(SESSION_MS),
            **self.more,
        }

    async def start(self) -> None:
        await asyncio.gather(*(self.node(name).start(self._factory(name)) for name in self.names))

    async def strike(self, dice: Random, kinds: Sequence[str] = STRIKES, among: Sequence[str] = ()) -> None:
        kind = dice.choice(kinds)
        seconds = dice.choice((0.2, 1.0, 4.0, 9.0)) * dice.random()
        ensemble = self.ensemble
        if kind not in ("no zookeeper", "zookeeper away", "deposed", "deposed asleep", "moved unheard", "asks late"):
            await super().strike(dice, (kind,), among)
            return
        name = dice.choice(among or self.names)
        self.events.append(f"{self.world.loop.time():.2f} {kind} {name} {seconds:.2f} s")
        match kind:
            case "deposed":
                ensemble.depose()
            case "deposed asleep":
                await self._depose_asleep()
            case "moved unheard":
                # Its leader lives, reaches everybody, and does not hear that another leads now.
                ensemble.cut.add(ensemble.move_leaders(self.names))
                await asyncio.sleep(0.9 * SESSION_MS / 1000)
                ensemble.cut.clear()
            case "asks late":
                await self._ask_late(dice)
            case "no zookeeper":
                ensemble.cut.add(name)
                await asyncio.sleep(seconds)
                ensemble.cut.discard(name)
            case "zookeeper away":
                ensemble.away = True
                await asyncio.sleep(seconds)
                ensemble.back()

    async def _ask_late(self, dice: Random) -> None:
        """A leader that has not heard of its successor asks for an ISR of itself alone. That is on its way until the
        successor has acknowledged records to others."""
        controller, leader = self.ensemble.controller(self.names), self.ensemble.move_leaders(self.names)
        if controller is None or controller == leader:
            return  # it stops deciding as soon as it does not hear
        self.ensemble.cut.add(leader)
        await asyncio.sleep(0.4)
        self.world.network.block(leader, controller)
        await asyncio.sleep(0.2 + dice.random())
        self.world.network.heal()
        await asyncio.sleep(0.2)
        self.ensemble.cut.clear()

    async def _depose_asleep(self) -> None:
        """A controller wakes up, with requests at its door, where another has been elected meanwhile."""
        controller = self.ensemble.controller(self.names)
        if controller is None or not self.node(controller).running:
            return
        self.node(controller).pause()
        await asyncio.sleep(0.6)
        self.ensemble.depose()
        await asyncio.sleep(0.3)
        self.node(controller).resume()

    async def calm(self, topic: str) -> None:
        self.ensemble.cut.clear()
        self.ensemble.back()
        await super().calm(topic)
