"""One simulated broker: filled, stopped or killed, damaged, started again, judged; in rounds."""

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from headrace.broker.server import StartupError
from headrace.client.admin.admin import Admin, Resource
from headrace.client.net.cluster import Cluster
from headrace.testing.simulator.brokers import DATA, broker
from headrace.testing.simulator.world import Node, World
from tests.damage.damages import MAY_REFUSE, Damage, copy_of, draw_some, put_back
from tests.damage.judge import Verdict, Writer, judge, scrub
from tests.damage.ledger import Ledger, Partition
from tests.damage.transactions import Payer
from tests.simulation.harness import BOOTSTRAP, BROKER

SETTINGS = {
    "offsets.topic.num.partitions": "2",
    "offsets.topic.segment.bytes": "1048576",
    "transaction.state.log.num.partitions": "2",
    "transaction.state.log.segment.bytes": "1048576",
    "metadata.log.max.record.bytes.between.snapshots": "2000",
    "log.cleaner.backoff.ms": "200",
    "log.flush.offset.checkpoint.interval.ms": "500",
    "replica.high.watermark.checkpoint.interval.ms": "500",
}
TOPICS = {"plain": 2, "other": 1, "paid": 2, "compact": 1}
"""Transactions write to the last two; other records are in all of them."""
INTERNAL = ("__consumer_offsets", "__transaction_state")
NOTED_S = 2.5
"""Longer than checkpoints and marks take to follow. The loss of what nobody has noted yet cannot be noticed by a node
that is alone."""
VALUE_BYTES = 100
SMALL = {"internal.segment.bytes": "1000", "index.interval.bytes": "100", "retention.ms": "-1"}


@dataclass
class Run:
    """What was done, and what was found that must not be."""

    seed: int
    events: list[str] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)
    refused: str | None = None
    verdicts: list[Verdict] = field(default_factory=list)
    kinds: set[str] = field(default_factory=set)

    def __str__(self) -> str:
        return f"seed {self.seed}: " + "; ".join(self.events) + "\n   " + "\n   ".join(self.findings)


async def shrink_internal(bootstrap: str) -> None:
    """Small segments for what coordinators write, too: closed ones are damaged in other ways than the last one."""
    async with Admin(bootstrap) as admin:
        for topic in INTERNAL:
            await admin.alter_configs(Resource.TOPIC, topic, set={"internal.segment.bytes": "2000"})


async def create_topics(bootstrap: str, replicas: int, ledger: Ledger) -> None:
    async with Admin(bootstrap) as admin:
        for topic, partitions in TOPICS.items():
            configs = dict(SMALL)
            if topic == "compact":
                configs |= {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}
                ledger.compacted.add(topic)
            await admin.create_topic(topic, partitions, replicas, configs)


async def fill(writer: Writer, batches: int, at_work: Sequence[Payer] | None = None) -> None:
    """Some batches in every partition, with transactions between them, and offsets of two groups."""

    async def send() -> None:
        async with Cluster(writer.bootstrap, retry_timeout_s=30.0) as cluster:
            for _ in range(batches):
                for topic, partitions in TOPICS.items():
                    for index in range(partitions):
                        await writer.send(cluster, (topic, index), 2, VALUE_BYTES)

    await asyncio.gather(
        send(), *(payer.work(1 + batches // 2) for payer in (writer.payers if at_work is None else at_work))
    )
    for group in ("g1", "g2"):
        await writer.commit(group, {(topic, 0): writer.ledger.end((topic, 0)) for topic in TOPICS})


def run(seed: int, kinds: frozenset[str] | None = None) -> Run:
    with World(seed) as world:
        return world.run(_scenario(world, seed, kinds))


async def _scenario(world: World, seed: int, kinds: frozenset[str] | None) -> Run:
    dice = world.dice("damage")
    node = world.node(BROKER)
    ledger, result = Ledger(seed), Run(seed)
    writer = Writer(BOOTSTRAP, ledger, dice)
    await node.start(broker(SETTINGS))
    await create_topics(BOOTSTRAP, 1, ledger)
    await fill(writer, 1)
    await shrink_internal(BOOTSTRAP)
    await fill(writer, dice.randint(3, 12))
    await writer.delete(("plain", 1), dice.randint(1, 5))
    await asyncio.sleep(dice.choice((0.0, 1.0, 5.0)))
    older = copy_of(node.disk, DATA)
    for _ in range(dice.randint(1, 2)):
        await fill(writer, dice.randint(1, 12))
        await writer.leave_open()
        await asyncio.sleep(NOTED_S)
        clean = dice.random() < 0.5
        await node.stop() if clean else node.kill()
        result.events.append("clean stop" if clean else "kill")
        before = copy_of(node.disk, DATA)
        done = draw_some(node.disk, DATA, dice, older, kinds)
        result.events += map(str, done)
        result.kinds |= {damage.target.drawn_as for damage in done}
        if not await start(node, done, result):
            # It said why and what to do: from a copy, all is as it was.
            put_back(node.disk, DATA, before)
            await node.start()
            found = await _judged(writer, set(), result) + await writer.settle(set())
            found += await _judged(writer, set(), result)
            result.findings += [f"restored from a copy: {line}" for line in found]
            return result
        harmed = set().union(*(damage.partitions for damage in done))
        for which in ("first", "second"):
            trouble = await scrub(BOOTSTRAP, [1])
            found = [trouble] if trouble else []
            found += await _judged(writer, harmed, result)
            if which == "first":
                found += await writer.settle(harmed)
                found += await _judged(writer, harmed, result)
            result.findings += [f"{which} start: {line}" for line in found]
            await asyncio.sleep(2.0)
            if not node.running:
                result.findings.append(f"{which} start: the broker ended itself")
                return result
            if which == "first":
                await node.stop() if dice.random() < 0.5 else node.kill()
                if not await start(node, done, result):
                    result.findings.append(f"refused only the second start: {result.refused}")
                    return result
        if result.findings or not result.verdicts[-1].is_whole or any(topic in INTERNAL for topic, _ in harmed):
            return result  # more of the same would tell nothing new, and a coordinator may be gone for good
    return result


async def _judged(writer: Writer, harmed: set[Partition], result: Run) -> list[str]:
    verdict = await judge(BOOTSTRAP, writer.ledger)
    result.verdicts.append(verdict)
    return verdict.findings(harmed)


def may_refuse(done: list[Damage]) -> bool:
    return any(damage.target.kind in MAY_REFUSE for damage in done)


async def start(node: Node, done: list[Damage], result: Run) -> bool:
    """False: it refused. Anything but a refusal in one line that these damages allow is a finding."""
    try:
        await node.start()
        return True
    except StartupError as error:
        result.refused = str(error)
        result.events.append(f"refused: {error}")
        if not may_refuse(done):
            result.findings.append(f"refused to start: {error}")
        if "\n" in str(error) or not re.search(r"/\S+|meta\.properties", str(error)):
            result.findings.append(f"refused without naming a file in one line: {error!r}")
    except Exception as error:
        result.findings.append(f"start failed: {error!r}")
    return False
