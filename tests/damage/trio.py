"""Three simulated nodes: one is damaged while it is down, and must be whole again from the others by itself."""

import asyncio
from collections.abc import Mapping
from functools import partial

from headrace.client.errors import ClientError
from headrace.client.net.cluster import Cluster
from headrace.errors import KafkaError
from headrace.quorum.folder import Layout, format_folders
from headrace.records.layout import iter_headers
from headrace.storage.checkpoints import META_PROPERTIES, MetaProperties, new_uuid
from headrace.testing.simulator.brokers import DATA
from headrace.testing.simulator.world import World
from tests.damage.alone import INTERNAL, SETTINGS, TOPICS, Run, create_topics, fill, shrink_internal, start
from tests.damage.damages import copy_of, draw_some, remove
from tests.damage.judge import Writer, judge, scrub
from tests.damage.ledger import Ledger
from tests.simulation.cluster import SimCluster

WHOLE_S = 120.0
"""How long the others may take to make a damaged node whole, in virtual seconds."""


def run(seed: int, kinds: frozenset[str] | None = None) -> Run:
    with World(seed) as world:
        return world.run(_scenario(world, seed, kinds))


async def _scenario(world: World, seed: int, kinds: frozenset[str] | None) -> Run:
    dice = world.dice("damage")
    cluster = SimCluster(world, settings={**SETTINGS, "controller.quorum.auto.join.enable": "true"})
    ledger, result = Ledger(seed), Run(seed)
    writer = Writer(cluster.bootstrap, ledger, dice)
    await cluster.start()
    await create_topics(cluster.bootstrap, 3, ledger)
    await fill(writer, 1)
    await shrink_internal(cluster.bootstrap)
    await fill(writer, dice.randint(3, 8))
    await writer.delete(("plain", 1), dice.randint(1, 5))
    await asyncio.sleep(dice.choice((0.0, 1.0, 5.0)))
    name = dice.choice(cluster.names)
    node = cluster.node(name)
    cluster_id = MetaProperties.decode(node.disk.read_bytes(f"{DATA}/{META_PROPERTIES}")).cluster_id
    older = copy_of(node.disk, DATA)
    for _ in range(dice.randint(1, 2)):
        await fill(writer, dice.randint(1, 8))
        await writer.leave_open()
        await asyncio.sleep(dice.choice((0.0, 1.0, 5.0)))
        clean = dice.random() < 0.5
        await node.stop() if clean else node.kill()
        result.events.append(f"{'clean stop' if clean else 'kill'} of {name}")
        if dice.random() < 0.5:
            await fill(writer, dice.randint(1, 4), at_work=writer.at_rest())
        done = draw_some(node.disk, DATA, dice, older, kinds)
        result.events += map(str, done)
        result.kinds |= {damage.target.drawn_as for damage in done}
        if not await start(node, done, result):
            if result.findings:
                return result
            # It said why: such a node is emptied, formatted without controllers, and joins again.
            for entry in node.disk.list(DATA):
                remove(node.disk, f"{DATA}/{entry}")
            layout = Layout(cluster.id_of(name), [DATA], DATA, ())
            format_folders(node.disk, layout, uuid=partial(new_uuid, dice), now_ms=0, cluster_id=cluster_id, voters=[])
            await node.start()
        await fill(writer, 1, at_work=writer.at_rest())
        trouble = (
            await _whole_again(cluster) or await scrub(cluster.bootstrap, [1, 2, 3]) or await _whole_again(cluster)
        )
        if trouble:
            result.findings.append(trouble)
            return result
        verdict = await judge(cluster.bootstrap, ledger)
        result.verdicts.append(verdict)
        result.findings += verdict.findings(set(), strict=True)
        result.findings += await writer.settle(set(), strict=True)
        # Until markers are everywhere, too.
        verdict = await judge(cluster.bootstrap, ledger)
        result.findings += verdict.findings(set(), strict=True)
        await asyncio.sleep(2.0)
        for other in cluster.names:
            if not cluster.node(other).running:
                result.findings.append(f"{other} ended itself")
        result.findings += _differences(cluster, ledger)
        # The damaged one must also stand alone: what it leads is read from its own copy.
        result.findings += await _read_from(cluster, name, ledger)
        if result.findings:
            return result
    return result


async def _whole_again(cluster: SimCluster) -> str | None:
    """Wait until every replica of everything is in sync; a line if it is not in time."""
    loop = cluster.world.loop
    deadline = loop.time() + WHOLE_S
    seen: object = None
    while loop.time() < deadline:
        try:
            async with Cluster(cluster.bootstrap, retry_timeout_s=5.0, request_timeout_s=3.0) as client:
                found = [await client.topic(topic) for topic in (*TOPICS, *INTERNAL)]
            lag = {
                f"{topic.name}-{p.index}": (p.leader, p.isr)
                for topic in found for p in topic.partitions.values()
                if p.leader < 0 or set(p.isr) != set(p.replicas)
            }  # fmt: skip
            if not lag:
                return None
            seen = lag
        except ClientError as error:
            seen = error
        await asyncio.sleep(0.25)
    return f"not whole within {WHOLE_S:.0f} s: {seen}"


async def _read_from(cluster: SimCluster, name: str, ledger: Ledger) -> list[str]:
    """Stop the others one after the other, so that the damaged node leads what it can, and read again."""
    for other in cluster.names:
        if other == name:
            continue
        await cluster.node(other).stop()
        verdict = await judge(cluster.bootstrap, ledger, patience_s=30.0)
        found = [f"with {other} down: {line}" for line in verdict.findings(set(), strict=True)]
        await cluster.restart(other)
        trouble = await _whole_again(cluster)
        if trouble:
            found.append(f"after {other} was down: {trouble}")
        if found:
            return found
    return []


def _differences(cluster: SimCluster, ledger: Ledger) -> list[str]:
    """Replicas must be the same, byte for byte; compaction may have come further on one than on another."""
    found = []
    for topic, partitions in TOPICS.items():
        if topic == "compact":
            continue
        for index in range(partitions):
            try:
                copies = cluster.logs(topic, index)
            except KafkaError as error:
                found.append(f"{topic}-{index}: a replica has bytes that are no batch: {error}")
                continue
            ends = {name: _end(batches) for name, batches in copies.items()}
            first, *rest = copies.items()
            for name, batches in rest:
                due = {at for at in {*first[1], *batches} if at >= ledger.deleted.get((topic, index), 0)}
                differing = sorted(at for at in due if first[1].get(at) != batches.get(at))
                if differing:
                    found.append(f"{topic}-{index}: {first[0]} and {name} differ at {differing[:5]}, ends {ends}")
    return found


def _end(batches: Mapping[int, bytes]) -> int:
    return max((header.end_offset for data in batches.values() for _, header in iter_headers(data)), default=0)
