"""The trial of one durability: four brokers, a topic for each case, and two brokers lost while all are written to.

Broker 1 decides and holds no topic of the trial, so that there is somebody to decide when two are gone. Topics are on
brokers 2, 3 and 4, led in this order:

1. All are there. Every case is measured.
2. Records go to all topics. The followers stop for a moment, as by congestion, shorter than they may be behind. In that
   moment broker 2, which leads, is lost with its disk.
3. Records go on. Broker 4 stops for longer than it may be behind, so that broker 3 is alone in sync. Then broker 3 is
   lost with its disk.

After each step every case is measured again, every topic is read from its start, and the ledger says what is missing.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from headrace.client.admin.admin import Admin, Resource
from headrace.client.admin.operations import Operations
from headrace.client.api.consumer import Consumer
from headrace.client.errors import ClientError
from headrace.local_cluster.layout import Wish
from headrace.local_cluster.process import ClusterProcesses
from headrace.proof.cases import Case, Result, Stage
from headrace.proof.ledger import Verdict
from headrace.proof.writer import Measured, Writer

HOLDERS = (2, 3, 4)
"""The first leads, and is lost first."""
LAG_MAX_MS = 2_000
MOMENT_S = 0.4
"""Far below the former: a follower that stops for so long stays in sync."""
WRITE_S = 0.5
ANSWER_S = 2.0
"""A frozen broker is asked too, now and then: then another one."""
PATIENCE_S = 60.0
POLL_S = 0.1
SETTINGS = {
    "replica.lag.time.max.ms": str(LAG_MAX_MS),
    # A frozen broker must count as slow here, not as gone; one whose process died is noticed at once all the same.
    "broker.session.timeout.ms": "60000",
    "offsets.topic.replication.factor": "1",
    "log.scrub.enable": "false",
    "auto.leader.rebalance.enable": "false",
}

Tell = Callable[[str, int], None]
"""What is being done, and how many measurements are done."""


class TrialFailed(Exception):
    """The brokers did not do what the trial needs; the message says what was awaited."""


class Trial:
    def __init__(self, folder: Path, durability: str, cases: Sequence[Case], tell: Tell) -> None:
        settings = {**SETTINGS, "durability": durability}
        self._cluster = ClusterProcesses(folder, Wish(1 + len(HOLDERS), port=0, voters=1, settings=settings))
        self._cases = cases
        self._told = tell
        self._measured = 0
        self._writers: list[Writer] = []

    async def run(self) -> list[Result]:
        """The cases with what was found, in their order. Raises TrialFailed, ClientError, RuntimeError."""
        try:
            self._tell("starting four brokers")
            self._cluster.start()
            async with Admin(self._cluster.bootstrap, request_timeout_s=ANSWER_S) as admin, self._all_writers(admin):
                stages = [await self._stage(admin, "all there")]
                await self._lose_the_leader()
                stages.append(await self._stage(admin, "one lost"))
                await self._lose_its_successor(admin)
                stages.append(await self._stage(admin, "two lost"))
        finally:
            self._cluster.close()
        return [
            Result(case.durability, case.replicas, case.min_in_sync, case.acks, [stage[case] for stage in stages])
            for case in self._cases
        ]

    def _tell(self, doing: str) -> None:
        self._told(doing, self._measured)

    @asynccontextmanager
    async def _all_writers(self, admin: Admin) -> AsyncIterator[None]:
        self._writers = [Writer(self._cluster.bootstrap, case) for case in self._cases]
        try:
            for writer in self._writers:
                case = writer.case
                assignment = {0: HOLDERS[: case.replicas]}
                await admin.create_topic(
                    case.topic, configs={"min.insync.replicas": str(case.min_in_sync)}, assignments=assignment
                )
                await writer.start()
            await self._until(admin, "all replicas in sync", lambda case, isr: len(isr) == case.replicas)
            yield
        finally:
            await asyncio.gather(*(writer.close() for writer in self._writers))

    # -- losses

    async def _lose_the_leader(self) -> None:
        leader, *followers = HOLDERS
        self._tell(f"losing broker {leader}")
        async with self._load():
            for node in followers:
                self._cluster.brokers[node].freeze()
            await asyncio.sleep(MOMENT_S)
            self._cluster.lose(leader)
            for node in followers:
                self._cluster.brokers[node].thaw()
            await asyncio.sleep(WRITE_S)

    async def _lose_its_successor(self, admin: Admin) -> None:
        _, successor, last = HOLDERS
        await self._until(admin, "the rest in sync", lambda case, isr: len(isr) >= case.replicas - 1)
        self._tell(f"losing broker {successor}")
        async with self._load():
            self._cluster.brokers[last].freeze()
            await self._until(
                admin,
                f"broker {last} not in sync",
                # Who has everything is in sync, however long ago it asked: where nothing is written, it stays so.
                lambda case, isr: last not in isr or (case.acks == "all" and len(isr) < case.min_in_sync),
            )
            await asyncio.sleep(WRITE_S)
            self._cluster.lose(successor)
            self._cluster.brokers[last].thaw()
            await asyncio.sleep(WRITE_S)

    @asynccontextmanager
    async def _load(self) -> AsyncIterator[None]:
        """Records go to all topics meanwhile, and each has been acknowledged or failed in the end."""
        ended = asyncio.Event()
        tasks = [asyncio.create_task(writer.go_on(ended)) for writer in self._writers]
        try:
            await asyncio.sleep(WRITE_S)
            yield
        finally:
            ended.set()
            await asyncio.gather(*tasks)

    async def _until(self, admin: Admin, what: str, look: Callable[[Case, Sequence[int]], bool]) -> None:
        """Until what is known of every topic that has more than one replica is as wanted."""
        deadline = time.monotonic() + PATIENCE_S
        several = [case for case in self._cases if case.replicas > 1]
        while True:
            await admin.cluster.refresh([case.topic for case in several])
            found = {case: admin.cluster.topics[case.topic].partitions[0].isr for case in several}
            if all(look(case, isr) for case, isr in found.items()):
                return
            if time.monotonic() > deadline:
                raise TrialFailed(f"not within {PATIENCE_S:.0f} s: {what}")
            await asyncio.sleep(POLL_S)

    # -- what is found

    async def _stage(self, admin: Admin, name: str) -> dict[Case, Stage]:
        for writer in self._writers:
            writer.ledger.begin_stage()
        writable = await asyncio.gather(*(writer.probe() for writer in self._writers))
        measured: dict[Case, Measured | None] = {}
        for count, (writer, can) in enumerate(zip(self._writers, writable), 1):
            self._tell(f"{name}: measuring {count} of {len(self._writers)}")
            measured[writer.case] = await writer.measure() if can else None
            self._measured += 1
        self._tell(f"{name}: reading all records")
        offline = await self._elect_by_force(admin)
        found = {}
        async with self._all_readable(admin):
            for writer in self._writers:
                verdict = writer.ledger.judge(await self._read(admin, writer.case.topic))
                found[writer.case] = _stage(verdict, measured[writer.case], writer.case.topic in offline)
        return found

    @asynccontextmanager
    async def _all_readable(self, admin: Admin) -> AsyncIterator[None]:
        """Below the minimum a leader commits nothing, so its newest records wait for a second replica to be read. Here
        the minimum is lowered meanwhile, as one would who wants to see what is left."""
        topics = {case.topic: case.min_in_sync for case in self._cases if case.min_in_sync > 1}
        for topic in topics:
            await admin.alter_configs(Resource.TOPIC, topic, set={"min.insync.replicas": "1"})
        yield
        for topic, least in topics.items():
            await admin.alter_configs(Resource.TOPIC, topic, set={"min.insync.replicas": str(least)})

    async def _elect_by_force(self, admin: Admin) -> set[str]:
        """Topics without a leader. Whatever replica is left of them leads from now on: what it lacks is lost."""
        await admin.cluster.refresh([case.topic for case in self._cases])
        topics = admin.cluster.topics
        offline = {case.topic for case in self._cases if topics[case.topic].partitions[0].leader < 0}
        if offline:
            await Operations(admin).elect([(topic, 0) for topic in offline], unclean=True)
            await admin.cluster.refresh(offline)
        return offline

    async def _read(self, admin: Admin, topic: str) -> list[bytes]:
        """Everything from the start, nothing if nobody has it."""
        end = await self._end(admin, topic)
        values: list[bytes] = []
        async with Consumer(bootstrap=self._cluster.bootstrap, auto_offset_reset="earliest") as consumer:
            await consumer.assign([(topic, 0)] if end else [])
            deadline = time.monotonic() + PATIENCE_S
            while end and consumer.position((topic, 0)) < end:
                if time.monotonic() > deadline:
                    raise TrialFailed(f"{topic} could not be read within {PATIENCE_S:.0f} s")
                values += [bytes(record.value or b"") for record in await consumer.poll(max_records=10_000)]
        return values

    async def _end(self, admin: Admin, topic: str) -> int:
        """Where the topic ends, as soon as its leader says so; 0 if it has none."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            await admin.cluster.refresh([topic])
            if admin.cluster.topics[topic].partitions[0].leader < 0:
                return 0
            try:
                return (await admin.list_offsets(topic))[0].offset
            except ClientError:
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(POLL_S)


def _stage(verdict: Verdict, measured: Measured | None, offline: bool) -> Stage:
    return Stage(
        written=verdict.written and not offline,
        offline=offline,
        acknowledged=verdict.acknowledged,
        lost=verdict.lost,
        twice=verdict.twice,
        latency_ms=measured.latency_ms if measured else None,
        slowest_ms=measured.slowest_ms if measured else None,
        records_per_s=measured.records_per_s if measured else None,
    )
