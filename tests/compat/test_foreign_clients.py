"""Client libraries of other languages, through small programs of our own over them: everything they can do against one
broker and a cluster, and their records while a leader is killed and every broker restarted."""

import subprocess
from collections import Counter
from collections.abc import Iterator

import confluent_kafka as confluent
import pytest

from headrace.testing.broker import TestBroker
from headrace.testing.cluster import TestCluster
from tests.compat.foreign import PROGRAMS, Program
from tests.reference.apache import Unavailable

FEATURES_LIMIT_S = 300
LOAD_LIMIT_S = 180
# What the programs send is years old by its timestamps: it must not be deleted before it is read.
FOREVER = {"log.retention.ms": "-1"}

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def one() -> Iterator[str]:
    with TestBroker(settings=FOREVER) as broker:
        yield broker.bootstrap


@pytest.fixture(scope="module")
def three() -> Iterator[str]:
    with TestCluster(3, settings=FOREVER) as cluster:
        yield cluster.bootstrap


def command(program: Program) -> list[str]:
    try:
        return program.command()
    except Unavailable as why:
        pytest.skip(str(why))


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("brokers", [1, 3])
def test_whatever_it_can_do(name: str, brokers: int, request: pytest.FixtureRequest) -> None:
    words = command(PROGRAMS[name])
    bootstrap: str = request.getfixturevalue({1: "one", 3: "three"}[brokers])
    asked = ["features", bootstrap, str(brokers), name.replace(".", "-"), *PROGRAMS[name].more]
    done = subprocess.run([*words, *asked], capture_output=True, text=True, timeout=FEATURES_LIMIT_S, check=False)
    lines = done.stdout.splitlines()
    assert [line for line in lines if line.startswith("failed")] == [], done.stderr[-2000:]
    assert done.returncode == 0 and any(line.startswith("ok") for line in lines), (done.stdout + done.stderr)[-3000:]


@pytest.mark.parametrize("name", [name for name, program in PROGRAMS.items() if program.loads])
def test_nothing_acknowledged_is_lost_or_doubled(name: str) -> None:
    program = PROGRAMS[name]
    words = command(program)
    with TestCluster(3) as cluster:
        cluster.create_topic("load", 3)
        asked = ["load", cluster.bootstrap, "load", *program.more]
        with subprocess.Popen([*words, *asked], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as client:
            try:
                assert client.stdout is not None
                first = client.stdout.readline()
                assert first == "running\n", first + client.stdout.read()
                disturb(cluster)
                said = client.communicate("\n", timeout=LOAD_LIMIT_S)[0]
            finally:
                client.kill()
        assert client.returncode == 0, said
        (count,) = (int(line.split()[1]) for line in said.splitlines() if line.startswith("acknowledged"))
        found = values(cluster.bootstrap)
        assert set(found) == set(range(count))
        assert not program.idempotent or found.total() == count, f"{found.total() - count} are there twice"


def disturb(cluster: TestCluster) -> None:
    leader = cluster.leader_of("load")
    cluster.kill(leader)
    cluster.leader_of("load", other_than=leader)
    cluster.start(leader)
    cluster.wait_in_sync("load")
    for node in cluster.nodes:
        cluster.restart(node)
        cluster.wait_in_sync("load")


def values(bootstrap: str) -> Counter[int]:
    """What is in the log, counted."""
    consumer = confluent.Consumer({"bootstrap.servers": bootstrap, "group.id": "unused", "enable.partition.eof": True})
    consumer.assign([confluent.TopicPartition("load", partition, 0) for partition in range(3)])
    found: Counter[int] = Counter()
    ends: set[int] = set()
    while len(ends) < 3:
        for message in consumer.consume(1000, 1):
            error = message.error()
            if error is None:
                found[int(message.value())] += 1
            else:
                assert error.code() == confluent.KafkaError._PARTITION_EOF, error
                ends.add(message.partition())
    consumer.close()
    return found
