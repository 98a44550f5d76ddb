"""Transfers between accounts while brokers, coordinators and controllers are killed and frozen: no sum ever changes."""

import random
import time

import pytest

from headrace.testing.cluster import TestCluster
from tests.compat.test_transactional_clients import finalize
from tests.transactions.bank import COMMITTED, Ledger, Teller, judge, read_committed, summary

TOPIC, PARTITIONS = "accounts", 6
TELLERS = 4
SETTINGS = {
    "transaction.state.log.num.partitions": "4",
    "offsets.topic.num.partitions": "4",
    "min.insync.replicas": "2",
    "default.replication.factor": "3",
}


def play(cluster: TestCluster, seconds: float, seed: int) -> Ledger:
    """Transfers for so long, while one node after the other is killed or frozen."""
    dice = random.Random(seed)
    ledger = Ledger()
    tellers = [Teller(f"teller-{at}", cluster.bootstrap, TOPIC, PARTITIONS, ledger) for at in range(TELLERS)]
    for teller in tellers:
        teller.start()
    cluster.wait("a first transfer", lambda: ledger.count(COMMITTED) > 0 or None)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        node = dice.choice(cluster.running).id
        if dice.random() < 0.7:
            cluster.kill(node)
            time.sleep(dice.uniform(0.2, 1.0))  # how long it is away
            cluster.start(node)
        else:
            cluster.freeze(node)
            time.sleep(dice.uniform(0.2, 4.0))  # shorter and longer than its session
            cluster.thaw(node)
        cluster.wait_in_sync(TOPIC)
    before = ledger.count(COMMITTED)
    cluster.wait("transfers after the last fault", lambda: ledger.count(COMMITTED) > before or None)
    for teller in tellers:
        teller.stopping.set()
    for teller in tellers:
        teller.join(120)
        assert not teller.is_alive(), f"{teller.name} does not end"
    return ledger


def check(cluster: TestCluster, ledger: Ledger) -> None:
    cluster.wait_in_sync()
    found = read_committed(cluster.bootstrap, TOPIC, PARTITIONS)
    assert judge(ledger, found) == [], summary(ledger)
    assert not ledger.failures, ledger.failures[:3]


@pytest.mark.timeout(280)
def test_no_transfer_is_torn_lost_or_doubled_when_brokers_die() -> None:
    with TestCluster(3, settings=SETTINGS) as cluster:
        cluster.create_topic(TOPIC, partitions=PARTITIONS, replication_factor=3)
        check(cluster, play(cluster, 8, seed=1))


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(10))
def test_many_faults(seed: int) -> None:
    with TestCluster(3, settings=SETTINGS) as cluster:
        cluster.create_topic(TOPIC, partitions=PARTITIONS, replication_factor=3)
        check(cluster, play(cluster, 60, seed))


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_transaction_version_changes_under_running_producers() -> None:
    with TestCluster(3, settings=SETTINGS) as cluster:
        cluster.create_topic(TOPIC, partitions=PARTITIONS, replication_factor=3)
        ledger = Ledger()
        tellers = [Teller(f"teller-{at}", cluster.bootstrap, TOPIC, PARTITIONS, ledger) for at in range(TELLERS)]
        for teller in tellers:
            teller.start()
        for version in (1, 2, 1, 0, 2):
            finalize(cluster.bootstrap, version)
            before = ledger.count(COMMITTED)
            cluster.wait(f"transfers at level {version}", lambda: ledger.count(COMMITTED) > before + 20 or None)  # noqa: B023
        for teller in tellers:
            teller.stopping.set()
        for teller in tellers:
            teller.join(120)
        check(cluster, ledger)
