"""Transactions of client libraries, as they offer them, with both of the brokers' protocols: commit, abort, offsets in
a transaction, and a producer that another one with its id has fenced."""

from collections.abc import Iterator

import pytest

from headrace.testing.broker import TestBroker
from headrace.testing.cluster import TestCluster
from tests.compat.foreign import HERE, TRANSACTIONAL
from tests.compat.transactional import CLIENTS, WRITTEN
from tests.compat.transactional_programs import check, finalize, prepare, run_program
from tests.reference.apache import Unavailable, tool_command

VERSIONS = (1, 2)
"""Of the feature transaction.version: the classic protocol, and that of KIP-890 for clients that know it."""
SETTINGS = {"transaction.state.log.num.partitions": "4", "offsets.topic.num.partitions": "4"}


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


def run(command: list[str], bootstrap: str, topic: str) -> None:
    prepare(bootstrap, topic)
    run_program(command, bootstrap, topic, f"{topic}-group")
    check(bootstrap, topic, f"{topic}-group")


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
