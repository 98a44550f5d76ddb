"""Transactions of client libraries, as they offer them, with both of the brokers' protocols: commit, abort, offsets in
a transaction, and a producer that another one with its id has fenced."""

import asyncio
import subprocess
from collections.abc import Iterator

import confluent_kafka as confluent
import pytest

from headrace.client.admin.admin import Admin
from headrace.protocol import messages as m
from headrace.protocol.api import ApiKey
from headrace.testing.broker import TestBroker
from headrace.testing.cluster import TestCluster
from tests.compat.foreign import HERE, TRANSACTIONAL
from tests.compat.transactional import CLIENTS, COMMITTED_OFFSET, WRITTEN, Confluent
from tests.reference.apache import Unavailable, tool_command
from tests.waiting import eventually

VERSIONS = (1, 2)
"""Of the feature transaction.version: the classic protocol, and that of KIP-890 for clients that know it."""
SETTINGS = {"transaction.state.log.num.partitions": "4", "offsets.topic.num.partitions": "4"}
UPGRADE, SAFE_DOWNGRADE = 1, 2
LIMIT_S = 180


@pytest.fixture(scope="module", params=VERSIONS, ids=lambda version: f"transaction.version-{version}")
def bootstrap(request: pytest.FixtureRequest) -> Iterator[str]:
    with TestBroker(settings=SETTINGS) as broker:
        finalize(broker.bootstrap, request.param)
        yield broker.bootstrap


@pytest.fixture(scope="module", params=VERSIONS, ids=lambda version: f"transaction.version-{version}")
def three(request: pytest.FixtureRequest) -> Iterator[str]:
    with TestCluster(3, settings=SETTINGS) as cluster:
        finalize(cluster.bootstrap, request.param)
        yield cluster.bootstrap


def finalize(bootstrap: str, version: int) -> None:
    """Raise or lower the level of transaction.version, and wait until it holds."""
    kind = m.UpdateFeaturesRequest

    async def level() -> int:
        async with Admin(bootstrap) as admin:
            return (await admin.cluster.any_connection()).features.get("transaction.version", 0)

    async def change(how: int) -> None:
        update = kind.FeatureUpdateKey(feature="transaction.version", max_version_level=version, upgrade_type=how)
        async with Admin(bootstrap) as admin:
            answer = await admin.cluster.to_any(ApiKey.UPDATE_FEATURES, kind(feature_updates=[update]))
            assert answer.error_code == 0, answer

    if (before := asyncio.run(level())) != version:
        asyncio.run(change(UPGRADE if before < version else SAFE_DOWNGRADE))
    eventually(lambda: asyncio.run(level()) == version, "the level of transaction.version")


def prepare(bootstrap: str, topic: str) -> None:
    """The topics that a client writes and its group reads, the latter with three records."""

    async def create() -> None:
        async with Admin(bootstrap) as admin:
            await admin.create_topic(topic, 2)
            await admin.create_topic(f"{topic}-in", 1)

    asyncio.run(create())
    producer = confluent.Producer({"bootstrap.servers": bootstrap})
    for value in range(COMMITTED_OFFSET):
        producer.produce(f"{topic}-in", str(value))
    assert producer.flush(60) == 0


def check(bootstrap: str, topic: str, group: str) -> None:
    """What a program has left behind, as seen by a client that is known to read rightly."""
    assert sorted(Confluent().read_committed(bootstrap, topic, len(WRITTEN))) == WRITTEN
    reader = confluent.Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    (found,) = reader.committed([confluent.TopicPartition(f"{topic}-in", 0)], 30)
    reader.close()
    assert found.offset == COMMITTED_OFFSET


def run(command: list[str], bootstrap: str, topic: str) -> None:
    prepare(bootstrap, topic)
    run_program(command, bootstrap, topic, f"{topic}-group")
    check(bootstrap, topic, f"{topic}-group")


def run_program(command: list[str], bootstrap: str, topic: str, group: str) -> None:
    words = [*command, "transactions", bootstrap, topic, group]
    done = subprocess.run(words, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    lines = done.stdout.splitlines()
    assert done.returncode == 0 and len(lines) == 4, (done.stdout + done.stderr)[-3000:]
    assert all(line.startswith("ok") for line in lines), done.stdout


@pytest.mark.parametrize("name", CLIENTS)
def test_only_what_is_committed_counts(name: str, bootstrap: str) -> None:
    client, topic, group = CLIENTS[name](), f"of-{name}", f"group-of-{name}"
    prepare(bootstrap, topic)
    client.transactions(bootstrap, topic, group)
    assert sorted(client.read_committed(bootstrap, topic, len(WRITTEN))) == WRITTEN
    check(bootstrap, topic, group)


@pytest.mark.reference
def test_only_what_is_committed_counts_for_java(bootstrap: str) -> None:
    run(tool_command(str(HERE / "java" / "Transactions.java")), bootstrap, "of-java")


@pytest.mark.soak
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", TRANSACTIONAL)
def test_only_what_is_committed_counts_for_other_languages(name: str, three: str) -> None:
    try:
        command = TRANSACTIONAL[name].command()
    except Unavailable as why:
        pytest.skip(str(why))
    run(command, three, f"of-{name}".replace(".", "-"))
