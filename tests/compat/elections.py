"""Elections by the thousand under idempotent producers that have several batches on their way, and the verdict on what
the log holds: on three nodes of Headrace or of Apache Kafka, with the clients that most people use.

    python -m tests.compat.elections [--apache] [--elections 2000] [--kills 0] [--each 0] [CLIENT ...]

Each client is a program that sends NAME-0, NAME-1, ... to the partitions in turn, at its defaults, until its input has
a line. It prints `running` once some are acknowledged, `failed NUMBER WHY` for each record that it gave up, and at last
`sent COUNT`; what it says of new epochs is counted. With `--each N` it begins with a new producer every N records.
"""

import argparse
import asyncio
import random
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from headrace.client.admin.admin import Admin
from headrace.client.admin.operations import Operations
from headrace.client.errors import ClientError
from headrace.testing.cluster import TestCluster
from tests.cluster.history import read_log
from tests.compat.foreign import HERE, go
from tests.reference.apache import QUICK_JVM, ApacheCluster, java, libs

NEW_EPOCH = re.compile(r"^bump (.*)|ProducerId set to \d+ with (epoch [1-9]\d*)|(failing the producer ID)")
"""How librdkafka, Java and franz-go say that they begin anew, and so cannot know any more what is there already."""
TOPIC = "elected"
PARTITIONS = 4
NODES = (1, 2, 3)
RUNNING_LIMIT_S = 120
END_LIMIT_S = 200
"""Java gives a record up after 120 s."""


def _python(kind: str) -> Callable[[], list[str]]:
    return lambda: [sys.executable, str(HERE / "python" / "pipeline.py"), kind]


def _java() -> list[str]:
    log = "-Dorg.slf4j.simpleLogger.log.org.apache.kafka.clients.producer.internals.TransactionManager=info"
    quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=off"
    return [java(), "-XX:TieredStopAtLevel=1", quiet, log, "-cp", f"{libs()}/*", str(HERE / "java" / "Pipeline.java")]


CLIENTS: dict[str, Callable[[], list[str]]] = {
    "confluent-kafka": _python("confluent"),
    "aiokafka": _python("aiokafka"),
    "java": _java,
    "franz-go": lambda: go("pipeline"),
}


# ---- what is run against


class Nodes(Protocol):
    """A running cluster of three."""

    @property
    def bootstrap(self) -> str: ...
    def kill(self, node: int) -> None: ...
    def start(self, node: int) -> object: ...


class Apache:
    """Apache Kafka in the words of `TestCluster`."""

    def __init__(self, cluster: ApacheCluster) -> None:
        self._cluster = cluster
        self.bootstrap = cluster.bootstrap

    def kill(self, node: int) -> None:
        self._cluster.nodes[node].kill9()

    def start(self, node: int) -> None:
        self._cluster.nodes[node].launch()
        self._cluster.nodes[node].wait_ready()


@contextmanager
def apache() -> Iterator[Nodes]:
    with (
        tempfile.TemporaryDirectory(prefix="elections-") as folder,
        ApacheCluster(Path(folder), jvm=QUICK_JVM) as cluster,
    ):
        yield Apache(cluster)


@contextmanager
def headrace() -> Iterator[Nodes]:
    with TestCluster(3) as cluster:
        yield cluster


# ---- clients


@dataclass
class Told:
    """What a client said."""

    name: str
    sent: int = 0
    failed: dict[int, str] = field(default_factory=dict)
    bumps: Counter[str] = field(default_factory=Counter)


class Client:
    """A running program."""

    def __init__(self, kind: str, bootstrap: str, each: int = 0) -> None:
        self.told = Told(kind)
        self._running = threading.Event()
        command = [*CLIENTS[kind](), bootstrap, TOPIC, kind, str(PARTITIONS), str(each)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self._thread = threading.Thread(target=self._read, name=kind)
        self._thread.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            word, _, rest = line.strip().partition(" ")
            if word == "running":
                self._running.set()
            elif word == "sent":
                self.told.sent = int(rest)
            elif found := NEW_EPOCH.search(line):
                self.told.bumps[next(filter(None, found.groups()))] += 1
            elif word == "failed":
                number, _, why = rest.partition(" ")
                self.told.failed[int(number)] = why

    def wait_running(self) -> None:
        assert self._running.wait(RUNNING_LIMIT_S), f"{self.told.name} got nothing acknowledged; {self._process.poll()}"

    def stop(self) -> None:
        """It sends no more and waits for the rest to be acknowledged."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write("\n")
            self._process.stdin.close()
        except BrokenPipeError:
            pass

    def wait(self) -> Told:
        assert self._process.wait(END_LIMIT_S) == 0, f"{self.told.name} ended with {self._process.returncode}"
        self._thread.join()
        return self.told

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._thread.join()


# ---- the nemesis


async def elect(bootstrap: str, elections: int, dice: random.Random) -> int:
    """Give all partitions another leader, again and again, as fast as the controller can. Returns how many elections
    there were."""
    count = 0
    while count < elections:
        try:
            async with Admin(bootstrap, connect_timeout_s=2.0, request_timeout_s=5.0, retry_timeout_s=5.0) as admin:
                operations = Operations(admin)
                while count < elections:
                    orders = {(TOPIC, index): dice.sample(NODES, len(NODES)) for index in range(PARTITIONS)}
                    await operations.reassign(orders)
                    done = await operations.elect(list(orders))
                    count += sum(error is None for error in done.values())
        except (ClientError, OSError):
            await asyncio.sleep(0.05)
    return count


def disturb(cluster: Nodes, elections: int, kills: int, dice: random.Random) -> int:
    """Elections, in as many portions as a node is killed in between, at any moment of the elections' own."""
    count = 0
    for turn in range(kills + 1):
        portion = elections * (turn + 1) // (kills + 1) - elections * turn // (kills + 1)
        if turn:
            node = dice.choice(NODES)
            cluster.kill(node)
            time.sleep(dice.random())
            count += asyncio.run(elect(cluster.bootstrap, portion // 4, dice))
            cluster.start(node)
            portion -= portion // 4
        count += asyncio.run(elect(cluster.bootstrap, portion, dice))
    return count


# ---- the verdict


@dataclass
class Verdict:
    """Of one client's records."""

    told: Told
    twice: list[int]
    lost: list[int]
    """Acknowledged, and not there."""
    reordered: int

    def __str__(self) -> str:
        told = self.told
        why = Counter(told.failed.values()).most_common(2)
        return (
            f"{told.name}: {told.sent} sent, {len(told.failed)} given up {why or ''}, {len(self.lost)} lost,"
            f" {len(self.twice)} twice {self.twice[:5] or ''}, {self.reordered} out of order, new epochs"
            f" {dict(told.bumps)}"
        )

    @property
    def clean(self) -> bool:
        return not (self.twice or self.lost or self.reordered or self.told.failed)


def judge(log: dict[int, dict[int, bytes]], told: Told) -> Verdict:
    seen: Counter[int] = Counter()
    reordered = 0
    for rows in log.values():
        last = -1
        for _, value in sorted(rows.items()):
            name, _, number = value.decode().rpartition("-")
            if name == told.name:
                # What is there twice is counted as that, not as out of order, too.
                reordered += int(number) < last and not seen[int(number)]
                last = max(last, int(number))
                seen[int(number)] += 1
    twice = [number for number, count in seen.items() if count > 1]
    lost = [number for number in range(told.sent) if not seen[number] and number not in told.failed]
    return Verdict(told, twice, lost, reordered)


def run(
    cluster: Nodes, kinds: Sequence[str], elections: int, *, kills: int = 0, each: int = 0, seed: int = 0
) -> tuple[int, list[Verdict]]:
    """Returns how many elections there were, and a verdict for each client."""

    async def create() -> None:
        async with Admin(cluster.bootstrap) as admin:
            await admin.create_topic(TOPIC, PARTITIONS, len(NODES), {"min.insync.replicas": "2"})

    asyncio.run(create())
    clients = [Client(kind, cluster.bootstrap, each) for kind in kinds]
    try:
        for client in clients:
            client.wait_running()
        count = disturb(cluster, elections, kills, random.Random(seed))
        for client in clients:
            client.stop()
        told = [client.wait() for client in clients]
    finally:
        for client in clients:
            client.kill()
    log = read_log(cluster.bootstrap, TOPIC)
    return count, [judge(log, each_told) for each_told in told]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("clients", nargs="*", default=list(CLIENTS))
    parser.add_argument("--apache", action="store_true")
    parser.add_argument("--elections", type=int, default=2000)
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--each", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    with (apache if asked.apache else headrace)() as cluster:
        began = time.monotonic()
        count, verdicts = run(
            cluster, asked.clients, asked.elections, kills=asked.kills, each=asked.each, seed=asked.seed
        )
        print(
            f"{'Apache Kafka' if asked.apache else 'Headrace'}: {count} elections, {asked.kills} kills,"
            f" {time.monotonic() - began:.0f} s"
        )
        for verdict in verdicts:
            print(f"  {verdict}")


if __name__ == "__main__":
    main()
