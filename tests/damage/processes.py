"""The same with real processes on real folders: one broker, or one node of three."""

import asyncio
import re
import time
from pathlib import Path
from random import Random

from headrace.storage.files import RealDisk
from headrace.testing.broker import BrokerFailed, TestBroker
from headrace.testing.cluster import ClusterFailed, TestCluster, TestNode
from tests.damage.alone import NOTED_S, SETTINGS, Run, create_topics, fill, may_refuse, shrink_internal
from tests.damage.damages import copy_of, draw_some, put_back
from tests.damage.judge import Writer, judge, scrub
from tests.damage.ledger import Ledger

PATIENCE_S = 60.0
_REFUSAL = re.compile(r"^headrace: (.+)$", re.MULTILINE)


def alone(seed: int, kinds: frozenset[str] | None = None) -> Run:
    dice, disk = Random(f"{seed} real"), RealDisk()
    ledger, result = Ledger(seed), Run(seed)
    with TestBroker(settings=SETTINGS) as broker:
        writer = Writer(broker.bootstrap, ledger, dice)
        asyncio.run(create_topics(broker.bootstrap, 1, ledger))
        asyncio.run(fill(writer, 1))
        asyncio.run(shrink_internal(broker.bootstrap))
        asyncio.run(fill(writer, dice.randint(3, 8)))
        root = str(broker.data)
        older = copy_of(disk, root)
        asyncio.run(fill(writer, dice.randint(1, 8)))
        asyncio.run(writer.leave_open())
        time.sleep(NOTED_S)
        _end(broker, dice, result)
        before = copy_of(disk, root)
        done = draw_some(disk, root, dice, older, kinds)
        result.events += map(str, done)
        harmed = set().union(*(damage.partitions for damage in done))
        for which in ("first", "second"):
            try:
                broker.start()
            except BrokerFailed as error:
                _refused(str(error), may_refuse(done), result)
                put_back(disk, root, before)
                broker.start()
                harmed = set()
            trouble = asyncio.run(scrub(broker.bootstrap, [1]))
            result.findings += [trouble] if trouble else []
            verdict = asyncio.run(judge(broker.bootstrap, ledger))
            found = verdict.findings(harmed) + asyncio.run(writer.settle(harmed))
            found += asyncio.run(judge(broker.bootstrap, ledger)).findings(harmed)
            result.findings += [f"{which} start: {line}" for line in found]
            if not broker.is_running:
                result.findings.append(f"{which} start: the broker ended itself")
                break
            _end(broker, dice, result)
    return result


def trio(seed: int, kinds: frozenset[str] | None = None) -> Run:
    dice, disk = Random(f"{seed} real trio"), RealDisk()
    ledger, result = Ledger(seed), Run(seed)
    settings = {**SETTINGS, "controller.quorum.auto.join.enable": "true", "min.insync.replicas": "2"}
    with TestCluster(3, settings=settings) as cluster:
        writer = Writer(cluster.bootstrap, ledger, dice)
        asyncio.run(create_topics(cluster.bootstrap, 3, ledger))
        asyncio.run(fill(writer, 1))
        asyncio.run(shrink_internal(cluster.bootstrap))
        asyncio.run(fill(writer, dice.randint(3, 8)))
        node = cluster[dice.choice(sorted(cluster.nodes))]
        root = str(node.data)
        older = copy_of(disk, root)
        asyncio.run(fill(writer, dice.randint(1, 8)))
        asyncio.run(writer.leave_open())
        time.sleep(NOTED_S)
        _end(node, dice, result)
        done = draw_some(disk, root, dice, older, kinds)
        result.events += [f"node {node.id}", *map(str, done)]
        try:
            node.start()
        except ClusterFailed as error:
            _refused(str(error), may_refuse(done), result)
            cluster.wipe(node.id)
            node.start()
        asyncio.run(fill(writer, 1, at_work=writer.at_rest()))
        cluster.wait_in_sync(limit_s=PATIENCE_S)
        trouble = asyncio.run(scrub(cluster.bootstrap, sorted(cluster.nodes)))
        result.findings += [trouble] if trouble else []
        cluster.wait_in_sync(limit_s=PATIENCE_S)
        verdict = asyncio.run(judge(cluster.bootstrap, ledger, PATIENCE_S))
        result.findings += verdict.findings(set(), strict=True)
        result.findings += asyncio.run(writer.settle(set(), strict=True))
        for other in sorted(set(cluster.nodes) - {node.id}):
            cluster.stop(other)
            verdict = asyncio.run(judge(cluster.bootstrap, ledger, PATIENCE_S))
            result.findings += [f"with node {other} down: {line}" for line in verdict.findings(set(), strict=True)]
            cluster.start(other)
            cluster.wait_in_sync(limit_s=PATIENCE_S)
        result.findings += [f"node {other.id} ended itself" for other in cluster.nodes.values() if not other.is_running]
    return result


def _end(process: TestBroker | TestNode, dice: Random, result: Run) -> None:
    clean = dice.random() < 0.5
    process.stop() if clean else process.kill()
    result.events.append("clean stop" if clean else "kill")


def _refused(output: str, allowed: bool, result: Run) -> None:
    said = _REFUSAL.findall(output)
    result.events.append(f"refused: {said}")
    if not allowed or len(said) != 1 or not Path(said[0]).name:
        result.findings.append(f"did not start: {output[-600:]}")
