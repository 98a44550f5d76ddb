"""Transfers between accounts while brokers, coordinators, controllers and clients are killed, frozen and cut off: no
sum ever changes, and no order is carried out twice or not at all."""

import os
import random
import time

import pytest

from headrace.testing.cluster import TestCluster
from tests.compat.transactional_programs import finalize
from tests.transactions.bank import COMMITTED, Ledger, Teller, judge, read_committed, summary
from tests.transactions.house import House

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


TARGETS = ("transactions", "groups", "controller", "leader", "clerk")
ACTIONS = ("kill", "freeze", "cut off")


def run_house(cluster: TestCluster, seed: int, strikes: list[tuple[str, str]] | None, seconds: float = 0.0) -> House:
    """The strikes one after the other, or any for so long."""
    house = House(cluster, seed)
    try:
        house.pass_time(1.0)
        cluster.wait("first orders to be carried out", lambda: house.carried_out or None)
        deadline = time.monotonic() + seconds
        for target, action in strikes or ():
            house.strike(target, action)
        while time.monotonic() < deadline:
            house.strike(house.dice.choice(TARGETS), house.dice.choice(ACTIONS))
            if house.dice.random() < 0.7:
                cluster.wait_in_sync()
            house.pass_time(house.dice.uniform(0.0, 2.0))
        house.settle()
        wrong = house.judge()
        assert not wrong, f"{len(wrong)}, after {house.faults}: {wrong[:5]}"
    finally:
        house.close()
    return house


@pytest.mark.timeout(280)
def test_every_order_is_carried_out_once_when_anything_dies() -> None:
    """The coordinators of transactions and groups, the controller, a leader, and a client, each in its own way."""
    strikes = [
        ("transactions", "kill"), ("clerk", "kill"), ("groups", "kill"), ("controller", "kill"), ("leader", "cut off"),
    ]  # fmt: skip
    with TestCluster(3, settings=SETTINGS) as cluster:
        house = run_house(cluster, 1, strikes)
        assert house.carried_out > 100


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_every_order_is_carried_out_once_for_as_long_as_you_like() -> None:
    minutes = float(os.environ.get("HEADRACE_SOAK_MINUTES", "10"))
    seed = int(os.environ.get("HEADRACE_SOAK_SEED", str(time.time_ns() % 1_000_000)))
    with TestCluster(3, settings=SETTINGS) as cluster:
        house = run_house(cluster, seed, None, minutes * 60)
        starts = sum(clerk.starts for clerk in house.clerks.values())
        print(f"seed {seed}: {house.carried_out // 2} orders, clerks started {starts} times, {house.faults}")


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
