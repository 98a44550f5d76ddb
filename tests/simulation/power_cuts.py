"""One scenario, thousands of histories: a broker under load loses its power, dies or stops, and comes back."""

import asyncio
from random import Random

from headrace.testing.simulator.disk import CrashMode
from headrace.testing.simulator.network import Conditions
from headrace.testing.simulator.workload import Options
from headrace.testing.simulator.world import Node, NodeDied, World
from tests.simulation.harness import Result, clients, small_segments, started, verdict


def run(seed: int, settings: dict[str, str] | None = None, modes: tuple[CrashMode, ...] = tuple(CrashMode)) -> Result:
    """Everything about this run follows from the seed: sizes, timing, faults, the network."""
    with World(seed) as world:
        return world.run(_scenario(world, dict(settings or {}), modes))


async def _scenario(world: World, settings: dict[str, str], modes: tuple[CrashMode, ...]) -> Result:
    dice = world.dice("scenario")
    events: list[str] = []
    chunks = dice.choice([None, (1, 100), (1, 2000)])
    world.network.set_conditions(Conditions(chunk_bytes=chunks, spike_chance=dice.choice([0.0, 0.01])))
    options = Options(partitions=dice.randint(1, 3), idempotent=dice.random() < 0.7)
    node, workload = await started(world, options, small_segments(dice), settings)
    async with clients(workload, dice.randint(1, 3)):
        for _ in range(dice.randint(1, 4)):
            await asyncio.sleep(dice.choice([0.05, 0.5, 2.0]) * dice.random())
            events.append(await _strike(node, dice, modes))
            await asyncio.sleep(dice.choice([0.0, 0.3, 3.0]) * dice.random())
            await _start_again(node, events)
        await asyncio.sleep(dice.random())
    result = await verdict(workload, events)
    await node.stop()
    result.finished_s, result.disk = world.loop.time(), node.disk.tree()
    return result


async def _strike(node: Node, dice: Random, modes: tuple[CrashMode, ...]) -> str:
    """End the broker's process in one of the ways a process ends."""
    kind = dice.choice(["power cut", "power cut", "power cut in a write", "kill", "stop"])
    mode = dice.choice(modes)
    if kind == "stop":
        await node.stop()
    elif kind == "kill":
        node.kill()
    elif kind == "power cut":
        node.crash(mode)
    else:
        node.cut_after(dice.randrange(60))
        try:
            async with asyncio.timeout(30):
                await node.died()
        except TimeoutError:
            node.crash(mode)
    return f"{kind} {mode.value}"


async def _start_again(node: Node, events: list[str]) -> None:
    """With, sometimes, a second power cut while the first is being recovered from."""
    dice = node.world.dice(f"restart {len(events)}")
    if dice.random() < 0.3:
        node.cut_after(dice.randrange(40))
        try:
            await node.start()
        except NodeDied:
            events.append("start cut short")
            await node.start()
        node.cut_after(None)
    else:
        await node.start()
