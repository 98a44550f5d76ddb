"""A broker whose clients' connections break at any byte, stall and vanish: nothing lost, nothing doubled."""

import asyncio

import pytest

from headrace.testing.simulator.network import OUTSIDE, Conditions
from headrace.testing.simulator.workload import Options
from headrace.testing.simulator.world import World
from tests.simulation.harness import BROKER, Result, check_seeds, clients, small_segments, started, verdict

TIME_BOX_S = 3.0


def run(seed: int) -> Result:
    with World(seed) as world:
        return world.run(_scenario(world))


async def _scenario(world: World) -> Result:
    dice = world.dice("scenario")
    options = Options(partitions=dice.randint(1, 3), idempotent=True, pause_s_max=0.05)
    node, workload = await started(world, options, small_segments(dice), {})
    events: list[str] = []
    world.network.set_conditions(
        Conditions(
            chunk_bytes=dice.choice([None, (1, 50), (1, 1000)]),
            spike_chance=0.02,
            reset_chance=dice.choice([0.0, 0.005, 0.03]),
            window_bytes=dice.choice([1_000, 262_144]),
        )
    )
    async with clients(workload, 3):
        for _ in range(dice.randint(2, 6)):
            await asyncio.sleep(dice.random())
            events.append(await _strike(world, dice.randrange(6), dice.random() * 8))
    world.network.heal()
    world.network.set_conditions(Conditions())
    result = await verdict(workload, events)
    await node.stop()
    return result


async def _strike(world: World, kind: int, seconds: float) -> str:
    network = world.network
    if kind == 0:
        return f"reset {network.reset(BROKER)}"
    if kind == 1:
        network.stall(OUTSIDE, BROKER, seconds)
        return f"requests stalled {seconds:.1f} s"
    if kind == 2:
        # The worst for a producer: written, and the answer never comes.
        network.stall(BROKER, OUTSIDE, seconds)
        return f"answers stalled {seconds:.1f} s"
    if kind == 3:
        network.partition([OUTSIDE], [BROKER])
        await asyncio.sleep(seconds)
        network.heal()
        return f"partition {seconds:.1f} s"
    if kind == 4:
        world.node(BROKER).pause()
        await asyncio.sleep(seconds)
        world.node(BROKER).resume()
        return f"frozen {seconds:.1f} s"
    world.node(BROKER).clock.skew_ms += int((seconds - 4) * 900_000)
    return f"wall clock moved {(seconds - 4) * 15:.0f} min"


def test_exactly_once_through_a_broken_network() -> None:
    check_seeds(run, range(80), TIME_BOX_S, at_least=10, acknowledged_min=200)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_exactly_once_through_thousands_of_broken_networks() -> None:
    check_seeds(run, range(80, 4000), 900.0, at_least=10, acknowledged_min=200)
