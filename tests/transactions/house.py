"""A banking house: two groups of clerks carry out the orders of two topics, over accounts in two others, while readers
of what is committed look on. Everything about it may be killed, frozen and cut off.

Judged by what is in the topics alone, so that clients may die at any moment: each order has both its sides, each of
them once; every reader that looked on has seen exactly what is there in the end, and nothing else on the way.
"""

import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from headrace.testing.cluster import TestCluster
from tests.librdkafka import STEADY
from tests.transactions.clerk import ACCOUNTS, PARTITIONS, SAVINGS

GROUPS = {"payments": "payment-orders", "refunds": "refund-orders"}
CLERKS_PER_GROUP = 2
READERS = 2
ORDERS_AT_ONCE = 20
ORDERS_OPEN_MAX = 500
"""More would keep the clerks of a slow machine busy long after the last fault."""
STILL_S = 90.0
"""Without a single order carried out, though nothing fails any more: something hangs."""
Place = tuple[str, int, int]
"""Topic, partition, offset."""


class Clerk:
    """One clerk's process, started again whenever it has ended."""

    def __init__(self, bootstrap: str, name: str, group: str) -> None:
        words = ["-m", "tests.transactions.clerk", bootstrap, name, group, GROUPS[group]]
        self._command = [sys.executable, *words]
        self._process = self._start()
        self.starts = 1

    def _start(self) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(self._command, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def tend(self) -> None:
        if self._process.poll() is not None:
            self._process = self._start()
            self.starts += 1

    def signal(self, how: signal.Signals) -> None:
        if self._process.poll() is None:
            self._process.send_signal(how)

    def end(self) -> None:
        self.signal(signal.SIGKILL)
        self._process.wait()


class Reader(threading.Thread):
    """Looks on from the beginning: reads what is committed, in all partitions, through whatever happens."""

    def __init__(self, bootstrap: str, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self._servers = bootstrap
        self.stopping = threading.Event()
        self.seen: dict[Place, tuple[bytes, int]] = {}
        self.wrong: list[str] = []

    def run(self) -> None:
        consumer = _consumer(self._servers, self.name)
        consumer.assign([TopicPartition(*place, 0) for place in _places((ACCOUNTS, SAVINGS))])
        while not self.stopping.is_set():
            for message in consumer.consume(500, 0.2):
                if message.error() is None:
                    self._take((message.topic(), message.partition(), message.offset()), message)
        consumer.close()

    def _take(self, place: Place, message: object) -> None:
        found = message.key(), int(message.value())  # type: ignore[attr-defined]
        if self.seen.setdefault(place, found) != found:
            self.wrong.append(f"{self.name} read {self.seen[place]} and then {found} at {place}")


class House:
    """All of it, at work."""

    def __init__(self, cluster: TestCluster, seed: int) -> None:
        self.cluster = cluster
        self.dice = random.Random(seed)
        self.faults: Counter[str] = Counter()
        for topic in (ACCOUNTS, SAVINGS, *GROUPS.values()):
            cluster.create_topic(topic, partitions=PARTITIONS, replication_factor=3)
        self._given = 0
        self._acknowledged: set[bytes] = set()
        self._orders = Producer(
            {**STEADY, "bootstrap.servers": cluster.bootstrap, "enable.idempotence": True, "log_level": 2}
        )
        self.readers = [Reader(cluster.bootstrap, f"reader-{at}") for at in range(READERS)]
        for reader in self.readers:
            reader.start()
        names = [(f"{group}-{at}", group) for group in GROUPS for at in range(CLERKS_PER_GROUP)]
        self.clerks = {name: Clerk(cluster.bootstrap, name, group) for name, group in names}

    def close(self) -> None:
        for clerk in self.clerks.values():
            clerk.end()
        for reader in self.readers:
            reader.stopping.set()
            reader.join(30)

    # ---- work

    def pass_time(self, seconds: float) -> None:
        """Orders come in, and clerks that have ended are replaced."""
        deadline = time.monotonic() + seconds
        while True:
            self._give_orders()
            for clerk in self.clerks.values():
                clerk.tend()
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                return
            self._orders.poll(min(0.1, left_s))

    def _give_orders(self) -> None:
        if self._given - self.carried_out // 2 > ORDERS_OPEN_MAX:
            return
        for topic in GROUPS.values():
            for _ in range(ORDERS_AT_ONCE // 2):
                self._given += 1
                id = f"{topic}/{self._given}".encode()
                self._orders.produce(
                    topic, key=id, value=str(self.dice.randint(1, 100)), partition=self.dice.randrange(PARTITIONS),
                    on_delivery=lambda error, message: None if error else self._acknowledged.add(message.key()),
                )  # fmt: skip

    @property
    def carried_out(self) -> int:
        return len(self.readers[0].seen)

    # ---- faults

    def strike(self, target: str, action: str) -> None:
        """Something happens to the node that is, for now, the `target`."""
        if target == "clerk":
            return self._strike_clerk(action)
        node = self._node(target)
        self.faults[f"{action} {target}"] += 1
        if action == "kill":
            self.cluster.kill(node)
            self.pass_time(self.dice.uniform(0.1, 1.0))
            self.cluster.start(node)
        elif action == "freeze":
            self.cluster.freeze(node)
            self.pass_time(self.dice.uniform(0.2, 4.0))  # shorter and longer than its session
            self.cluster.thaw(node)
        else:
            with self.cluster.inject(node=node, drop=self.dice.choice(("before", "after")), times=None,
                                     between_brokers=True):  # fmt: skip
                self.pass_time(self.dice.uniform(0.2, 4.0))

    def _strike_clerk(self, action: str) -> None:
        name = self.dice.choice(sorted(self.clerks))
        self.faults[f"{action} clerk"] += 1
        if action == "kill":
            self.clerks[name].signal(signal.SIGKILL)
            return
        self.clerks[name].signal(signal.SIGSTOP)
        self.pass_time(self.dice.choice((0.5, 7.0)))  # also longer than its session: another has its orders then
        self.clerks[name].signal(signal.SIGCONT)

    def _node(self, target: str) -> int:
        if target == "controller":
            return self.cluster.quorum_leader()
        topic = {"transactions": "__transaction_state", "groups": "__consumer_offsets"}.get(target, ACCOUNTS)
        return self.cluster.leader_of(topic, self.dice.randrange(PARTITIONS))

    # ---- the end

    def settle(self) -> None:
        """All is well again: wait until every order that is there has been carried out, and everybody has seen it."""
        assert self._orders.flush(60) == 0, "orders were not taken"
        self.cluster.wait_in_sync()

        wanted = 2 * sum(self._end(*place) for place in _places(GROUPS.values()))
        seen, moved_at = -1, time.monotonic()
        while (now_seen := min(len(reader.seen) for reader in self.readers)) < wanted:
            if now_seen > seen:
                seen, moved_at = now_seen, time.monotonic()
            assert time.monotonic() - moved_at < STILL_S, f"{self._state(wanted)} for {STILL_S} s"
            for clerk in self.clerks.values():
                clerk.tend()
            time.sleep(0.2)

    def _state(self, wanted: int) -> str:
        seen = {reader.name: len(reader.seen) for reader in self.readers}
        starts = {name: clerk.starts for name, clerk in self.clerks.items()}
        return f"{seen} of {wanted} sides, clerks started {starts} times, after {self.faults}"

    def _end(self, topic: str, partition: int) -> int:
        consumer = _consumer(self.cluster.bootstrap, "ends")
        _, end = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=10)
        consumer.close()
        return int(end)

    def judge(self) -> list[str]:
        """All that is wrong; empty if nothing is."""
        orders = read_all(self.cluster.bootstrap, list(GROUPS.values()))
        there = read_all(self.cluster.bootstrap, [ACCOUNTS, SAVINGS])
        wrong = [text for reader in self.readers for text in reader.wrong]
        for reader in self.readers:
            wrong += [f"{reader.name} saw {place} otherwise" for place in reader.seen.items() ^ there.items()]
        sides: dict[bytes, list[int]] = {}
        for id, amount in there.values():
            sides.setdefault(id, []).append(amount)
        for id, amount in orders.values():
            if sorted(sides.get(id, [])) != sorted((-amount, amount)):
                wrong.append(f"{id!r} over {amount} has the sides {sides.get(id)}")
        ids = {id for id, _ in orders.values()}
        wrong += [f"{id!r} was never ordered" for id in sides.keys() - ids]
        wrong += [f"the order {id!r} was acknowledged, and is lost" for id in self._acknowledged - ids]
        if len(ids) != len(orders):
            wrong.append("an order is there twice")
        if total := sum(amount for _, amount in there.values()):
            wrong.append(f"the total is {total}")
        return wrong


def _places(topics: Iterable[str]) -> list[tuple[str, int]]:
    return [(topic, index) for topic in topics for index in range(PARTITIONS)]


def _consumer(bootstrap: str, group: str) -> Consumer:
    return Consumer(
        {
            **STEADY,
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "log_level": 2,
        }
    )


def read_all(bootstrap: str, topics: list[str]) -> dict[Place, tuple[bytes, int]]:
    """What a new reader finds committed."""
    consumer = _consumer(bootstrap, "auditor")
    left = set(_places(topics))
    consumer.assign([TopicPartition(*place, 0) for place in left])
    found: dict[Place, tuple[bytes, int]] = {}
    deadline = time.monotonic() + 60
    while left:
        assert time.monotonic() < deadline, f"{left} do not end"
        for message in consumer.consume(500, 0.5):
            place = message.topic(), message.partition()
            if message.error() is None:
                found[*place, message.offset()] = message.key(), int(message.value())
            elif message.error().code() == KafkaError._PARTITION_EOF:
                left.discard(place)
    consumer.close()
    return found
