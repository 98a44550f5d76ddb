"""Transactions in clusters that mix brokers of Apache Kafka and of Headrace: either coordinates, and each transaction
has partitions that either leads, in both protocols."""

import asyncio
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest
from confluent_kafka import Producer

from headrace.client.net.cluster import Cluster
from headrace.client.net.coordinators import TRANSACTION, Coordinators
from tests.compat.foreign import HERE
from tests.compat.mixed import HEADRACE, KAFKA, Mixed, create, running
from tests.compat.transactional import COMMITTED_OFFSET, Confluent
from tests.compat.transactional_programs import check, run_program
from tests.reference.apache import tool_command

pytestmark = [pytest.mark.reference, pytest.mark.soak, pytest.mark.timeout(600)]


def topic_of(mixed: Mixed, coordinator: int, taken: set[str]) -> str:
    """A topic whose transactional id, as clients here name it, is coordinated by one broker."""

    async def find() -> str:
        async with Cluster(mixed.bootstrap) as cluster:
            coordinators = Coordinators(cluster, TRANSACTION, "transactional id")
            for number in count():
                topic = f"t-{number}"
                if topic not in taken and await coordinators.find(f"{topic}-id") == coordinator:
                    return topic
        raise AssertionError

    found = asyncio.run(find())
    taken.add(found)
    return found


def java(bootstrap: str, topic: str, group: str) -> None:
    run_program(tool_command(str(HERE / "java" / "Transactions.java")), bootstrap, topic, group)


CLIENTS: dict[str, Callable[[str, str, str], None]] = {"classic": Confluent().transactions, "version 2": java}


@pytest.mark.parametrize("apache_controls", [True, False], ids=["Apache Kafka controls", "Headrace controls"])
def test_either_coordinates_and_leads(tmp_path: Path, apache_controls: bool) -> None:
    taken: set[str] = set()
    with running(tmp_path, apache_controls=apache_controls) as mixed:
        for coordinator in (KAFKA, HEADRACE):
            for protocol, transactions in CLIENTS.items():
                topic = topic_of(mixed, coordinator, taken)
                create(mixed, topic, f"{KAFKA}:{HEADRACE},{HEADRACE}:{KAFKA}")
                create(mixed, f"{topic}-in", f"{coordinator}")
                producer = Producer({"bootstrap.servers": mixed.bootstrap})
                for value in range(COMMITTED_OFFSET):
                    producer.produce(f"{topic}-in", str(value))
                assert producer.flush(60) == 0
                group = f"group {coordinator} {protocol}"
                transactions(mixed.bootstrap, topic, group)
                check(mixed.bootstrap, topic, group)
