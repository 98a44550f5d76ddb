"""Programs that write transactions, each in its client's language: what they need, and what they leave behind."""

import asyncio
import subprocess

import confluent_kafka as confluent

from headrace.client.admin.admin import Admin
from headrace.metadata.features import SAFE_DOWNGRADE, UPGRADE
from headrace.protocol import messages as m
from headrace.protocol.api import ApiKey
from tests.compat.transactional import COMMITTED_OFFSET, WRITTEN, Confluent
from tests.waiting import eventually

LIMIT_S = 180


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


def run_program(command: list[str], bootstrap: str, topic: str, group: str) -> None:
    words = [*command, "transactions", bootstrap, topic, group]
    done = subprocess.run(words, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    lines = done.stdout.splitlines()
    assert done.returncode == 0 and len(lines) == 4, (done.stdout + done.stderr)[-3000:]
    assert all(line.startswith("ok") for line in lines), done.stdout
