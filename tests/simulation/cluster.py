"""A whole cluster on simulated machines: started, struck, healed, and its replicas compared byte for byte."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from itertools import product
from random import Random

from headrace.client.admin.admin import Admin
from headrace.client.errors import ClientError
from headrace.client.net.cluster import Cluster
from headrace.quorum.folder import Layout, format_folders
from headrace.quorum.snapshots import Voter
from headrace.records.layout import iter_headers
from headrace.storage.checkpoints import encode_uuid, new_uuid
from headrace.testing.simulator.brokers import DATA, broker
from headrace.testing.simulator.disk import CrashMode
from headrace.testing.simulator.network import OUTSIDE, Conditions
from headrace.testing.simulator.world import Factory, Node, NodeDied, World

CLIENT_PORT = 9092
CONTROLLER_PORT = 9093
CALM_S = 120.0
"""How long a healed cluster may take to have every replica in sync, in virtual seconds."""


STRIKES = (
    "kill", "kill", "power cut", "power cut of all", "freeze", "freeze", "isolate", "isolate", "deaf", "mute", "bridge",
    "reset", "clock", "restart",
)  # fmt: skip

SLOW = Conditions(delay_s=(0.2, 0.4))
"""A link with something on its way at any time."""


class SimCluster:
    """Nodes n1, n2, ... that are broker and controller each."""

    log_dirs: tuple[str, ...] = (DATA,)

    def __init__(self, world: World, size: int = 3, settings: dict[str, str] | None = None) -> None:
        self.world = world
        self.names = [f"n{number}" for number in range(1, size + 1)]
        self.brokers = self.controllers = self.names
        self.bootstrap = ",".join(f"{name}:{CLIENT_PORT}" for name in self.names)
        self.settings = settings or {}
        self.events: list[str] = []

    def node(self, name: str) -> Node:
        return self.world.node(name)

    def settings_of(self, name: str) -> dict[str, str]:
        controllers = ",".join(f"{other}:{CONTROLLER_PORT}" for other in self.names)
        return {
            "process.roles": "broker,controller",
            "listeners": f"PLAINTEXT://{name}:{CLIENT_PORT},CONTROLLER://{name}:{CONTROLLER_PORT}",
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.bootstrap.servers": controllers,
            "default.replication.factor": str(min(3, len(self.names))),
            "min.insync.replicas": str(min(2, len(self.names))),
            "offsets.topic.replication.factor": str(min(3, len(self.names))),
            **self.settings,
        }

    def id_of(self, name: str) -> int:
        return self.names.index(name) + 1

    async def start(self) -> None:
        dice = self.world.dice("formatting")
        voters = [Voter(self.id_of(name), new_uuid(dice), self._endpoints(name)) for name in self.controllers]
        cluster_id = encode_uuid(new_uuid(dice))
        for name in self.names:
            layout = Layout(self.id_of(name), self.log_dirs, DATA, self._endpoints(name))
            format_folders(
                self.node(name).disk, layout, uuid=lambda: new_uuid(dice), now_ms=0, cluster_id=cluster_id,
                voters=voters if name in self.controllers else [],
            )  # fmt: skip
        await asyncio.gather(*(self.node(name).start(self._factory(name)) for name in self.names))

    def _factory(self, name: str) -> Factory:
        return broker(self.settings_of(name), node_id=self.id_of(name))

    def _endpoints(self, name: str) -> tuple[tuple[str, str, int], ...]:
        return (("CONTROLLER", name, CONTROLLER_PORT),) if name in self.controllers else ()

    async def restart(self, name: str) -> None:
        """Until it is up: a start may be struck, too."""
        while not self.node(name).running:
            try:
                await self.node(name).start()
            except NodeDied:
                await asyncio.sleep(0.1)

    # ---- faults

    async def strike(  # noqa: C901 - one case for each kind
        self, dice: Random, kinds: Sequence[str] = STRIKES, among: Sequence[str] = ()
    ) -> None:
        """One fault of one of the nodes, or of some, and its end."""
        kind = dice.choice(kinds)
        name = dice.choice(among or self.names)
        seconds = dice.choice((0.2, 1.0, 4.0, 9.0)) * dice.random()
        self.events.append(f"{self.world.loop.time():.2f} {kind} {name} {seconds:.2f} s")
        others = [other for other in self.names if other != name]
        network, node = self.world.network, self.node(name)
        match kind:
            case "kill":
                node.kill()
                await asyncio.sleep(seconds)
                await self.restart(name)
            case "power cut":
                node.crash(dice.choice(list(CrashMode)))
                await asyncio.sleep(seconds)
                await self.restart(name)
            case "power cut of all":
                mode = dice.choice(list(CrashMode))
                for each in self.names:
                    if self.node(each).running:  # faults may overlap
                        self.node(each).crash(mode)
                await asyncio.sleep(seconds)
                await asyncio.gather(*map(self.restart, self.names))
            case "freeze":
                node.pause()
                process = node.process
                await asyncio.sleep(seconds)
                if node.running and node.process is process:
                    node.resume()
            case "isolate":
                network.partition([name], others)
                await asyncio.sleep(seconds)
                network.heal()
            case "deaf":
                for other in others:
                    network.block(other, name)
                await asyncio.sleep(seconds)
                network.heal()
            case "mute":
                for other in others:
                    network.block(name, other)
                await asyncio.sleep(seconds)
                network.heal()
            case "bridge":
                network.partition([others[0]], [others[1]])
                await asyncio.sleep(seconds)
                network.heal()
            case "late requests":
                # What clients have sent arrives when they have long asked again elsewhere.
                network.block(OUTSIDE, name)
                await asyncio.sleep(seconds)
                network.heal()
            case "late link":
                network.block(name, dice.choice(others))
                await asyncio.sleep(seconds)
                network.heal()
            case "dying words":
                # What it has sent to another node arrives when others have long taken over from it.
                other = dice.choice(others)
                network.set_conditions(SLOW, name, other)
                await asyncio.sleep(1.0 + dice.random())
                network.block(name, other)
                node.kill()
                await asyncio.sleep(2.0 + seconds)
                network.set_conditions(network.default_conditions, name, other)
                network.heal_link(name, other)
                await self.restart(name)
            case "reset":
                network.reset(name)
            case "clock":
                node.clock.skew_ms += dice.choice((-3_600_000, 3_600_000))
            case "restart":
                with suppress(NodeDied):
                    await node.stop()
                await self.restart(name)

    # ---- afterwards

    async def calm(self, topic: str) -> None:
        """Everything is up and connected; wait until every replica is in sync again."""
        self.world.network.heal()
        await asyncio.gather(*map(self.restart, self.names))
        deadline = self.world.loop.time() + CALM_S
        seen: object = None
        while self.world.loop.time() < deadline:
            try:
                async with Cluster(self.bootstrap, retry_timeout_s=5.0, request_timeout_s=3.0) as cluster:
                    found = await cluster.topic(topic)
                seen = [(p.index, p.leader, p.isr) for p in found.partitions.values()]
                if all(p.leader >= 0 and set(p.isr) == set(p.replicas) for p in found.partitions.values()):
                    return
            except ClientError as error:
                seen = error
            await asyncio.sleep(0.25)
        raise AssertionError(f"not in sync {CALM_S:.0f} s after the last fault: {seen}; {self.events}")

    def logs(self, topic: str, partition: int) -> dict[str, dict[int, bytes]]:
        """Of each node that has it: the stored batches by base offset."""
        found: dict[str, dict[int, bytes]] = {}
        for name, log_dir in product(self.brokers, self.log_dirs):
            disk, folder = self.node(name).disk, f"{log_dir}/{topic}-{partition}"
            if not disk.exists(folder):
                continue
            batches: dict[int, bytes] = {}
            for entry in sorted(disk.list(folder)):
                if entry.endswith(".log"):
                    data = disk.read_bytes(f"{folder}/{entry}")
                    for position, header in iter_headers(data):
                        batches[header.base_offset] = bytes(data[position : position + header.size])
            found[name] = batches
        return found

    def assert_replicas_equal(self, topic: str, partitions: int) -> None:
        """All are in sync and nobody writes: every copy must be the same, byte for byte."""
        for partition in range(partitions):
            copies = self.logs(topic, partition)
            first, *rest = copies.items()
            for name, batches in rest:
                for offset in sorted({*first[1], *batches}):
                    assert first[1].get(offset) == batches.get(offset), (
                        f"{topic}-{partition}: {first[0]} and {name} differ at {offset}: {self.events}"
                    )


async def create(bootstrap: str, topic: str, partitions: int, replicas: int, configs: dict[str, str]) -> None:
    async with Admin(bootstrap) as admin:
        await admin.create_topic(topic, partitions, replicas, configs)


MOVED_S = 8.0
"""Longer than what was moved away stays on its old disk."""


class Apart(SimCluster):
    """Controllers k1 to k3 on machines of their own."""

    def __init__(self, world: World, size: int, settings: dict[str, str]) -> None:
        super().__init__(world, size, settings)
        self.controllers = ["k1", "k2", "k3"]
        self.names = [*self.brokers, *self.controllers]

    def id_of(self, name: str) -> int:
        return int(name[1:]) + (100 if name in self.controllers else 0)

    def settings_of(self, name: str) -> dict[str, str]:
        is_controller = name in self.controllers
        return {
            "offsets.topic.replication.factor": "3",
            **self.settings,
            "process.roles": "controller" if is_controller else "broker",
            "listeners": f"CONTROLLER://{name}:{CONTROLLER_PORT}" if is_controller else f"PLAINTEXT://{name}:9092",
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.bootstrap.servers": ",".join(f"{other}:{CONTROLLER_PORT}" for other in self.controllers),
        }
