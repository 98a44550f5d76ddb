"""A bank: transfers between accounts of many partitions, each in a transaction, under whatever happens to the cluster.

Every transfer writes two records, one to each account's partition. A ledger keeps what each client was told: committed,
aborted, or nothing certain. The checker reads all partitions with read_committed and judges: nothing torn, nothing
doubled, nothing of an aborted transfer, every committed one there, and so a total of nought.
"""

import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from tests.librdkafka import STEADY

COMMITTED, ABORTED, UNKNOWN = "committed", "aborted", "unknown"
ABORT_SHARE = 0.2
PATIENCE_S = 30.0


@dataclass
class Ledger:
    """What clients were told of each transfer."""

    outcomes: dict[str, str] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def count(self, outcome: str) -> int:
        return sum(1 for one in self.outcomes.values() if one == outcome)


class Teller(threading.Thread):
    """One client with a transactional id of its own, which it keeps when it has to begin anew."""

    def __init__(self, name: str, bootstrap: str, topic: str, partitions: int, ledger: Ledger) -> None:
        super().__init__(name=name, daemon=True)
        self._settings = {
            **STEADY,
            "bootstrap.servers": bootstrap,
            "transactional.id": name,
            "transaction.timeout.ms": 10_000,
            "socket.timeout.ms": 5_000,
            "message.timeout.ms": 10_000,
        }
        self._topic = topic
        self._partitions = partitions
        self._ledger = ledger
        self._dice = random.Random(name)
        self.stopping = threading.Event()

    def run(self) -> None:
        number = 0
        while not self.stopping.is_set():
            producer = Producer(self._settings)
            try:
                producer.init_transactions(PATIENCE_S)
                while not self.stopping.is_set():
                    number += 1
                    self._transfer(producer, f"{self.name}/{number}")
            except KafkaException as error:
                # Fenced, or otherwise at its end: a new producer takes the id over.
                if not error.args[0].fatal() and not error.args[0].retriable():
                    self._ledger.failures.append(f"{self.name}: {error}")
                time.sleep(0.1)

    def _transfer(self, producer: Producer, id: str) -> None:
        source, target = self._dice.sample(range(self._partitions), 2)
        amount = self._dice.randint(1, 100)
        outcome = ABORTED if self._dice.random() < ABORT_SHARE else COMMITTED
        producer.begin_transaction()
        self._ledger.outcomes[id] = UNKNOWN
        try:
            producer.produce(self._topic, key=id, value=str(-amount), partition=source)
            producer.produce(self._topic, key=id, value=str(amount), partition=target)
            if outcome is ABORTED:
                producer.flush(PATIENCE_S)
                self._until(lambda: producer.abort_transaction(PATIENCE_S))
            else:
                self._until(lambda: producer.commit_transaction(PATIENCE_S))
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
            producer.abort_transaction(PATIENCE_S)
            outcome = ABORTED
        self._ledger.outcomes[id] = outcome

    def _until(self, work: Callable[[], None]) -> None:
        """The same call again, as clients are told to."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                return work()
            except KafkaException as error:
                if not error.args[0].retriable() or time.monotonic() > deadline:
                    raise


def read_committed(bootstrap: str, topic: str, partitions: int) -> dict[str, list[int]]:
    """Amounts by transfer, of all that is committed up to now."""
    consumer = Consumer(
        {
            **STEADY,
            "bootstrap.servers": bootstrap,
            "group.id": "auditor",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
        }
    )
    consumer.assign([TopicPartition(topic, index, 0) for index in range(partitions)])
    found: dict[str, list[int]] = {}
    left = set(range(partitions))
    deadline = time.monotonic() + 60
    while left:
        assert time.monotonic() < deadline, f"partitions {left} do not end"
        message = consumer.poll(1.0)
        if message is None:
            continue
        if message.error():
            assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
            left.discard(message.partition())
            continue
        found.setdefault(message.key().decode(), []).append(int(message.value()))
    consumer.close()
    return found


def judge(ledger: Ledger, found: dict[str, list[int]]) -> list[str]:
    """All that is wrong; empty if nothing is."""
    wrong = []
    for id, amounts in found.items():
        if len(amounts) == 1:
            wrong.append(f"{id} is torn: {amounts}")
        elif len(amounts) > 2:
            wrong.append(f"{id} is there more than once: {amounts}")
        if ledger.outcomes.get(id) == ABORTED:
            wrong.append(f"{id} was aborted, and is read")
        if id not in ledger.outcomes:
            wrong.append(f"{id} was never sent")
    lost = [id for id, outcome in ledger.outcomes.items() if outcome == COMMITTED and id not in found]
    wrong += [f"{id} was committed, and is lost" for id in lost]
    total = sum(sum(amounts) for amounts in found.values())
    if total:
        wrong.append(f"the total is {total}")
    return wrong


def summary(ledger: Ledger) -> str:
    return str(Counter(ledger.outcomes.values()))
