"""Kafka Streams with exactly_once_v2 on three brokers, while the application and a broker are killed: every step of
every count is there once, for readers of what is committed."""

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from headrace.testing.cluster import TestCluster
from tests.compat.foreign import kafka_java
from tests.reference.apache import Unavailable

WORDS = ("ant", "bee", "cat", "dog", "elk")
ROUNDS = 400
PARTITIONS = 2
LIMIT_S = 240

pytestmark = [pytest.mark.soak, pytest.mark.reference, pytest.mark.timeout(900)]

SETTINGS = {"transaction.state.log.num.partitions": "4", "offsets.topic.num.partitions": "4"}


@contextmanager
def counting(words: list[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("ab") as out, subprocess.Popen(words, stdout=out, stderr=out) as process:
        try:
            yield process
        finally:
            process.kill()


class Reader:
    """All counts, word by word, as a reader of committed records sees them."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.counts: dict[str, list[int]] = {word: [] for word in WORDS}
        self._consumer = Consumer(
            {"bootstrap.servers": bootstrap, "group.id": "unused", "isolation.level": "read_committed"}
        )
        self._consumer.assign([TopicPartition(topic, index, 0) for index in range(PARTITIONS)])

    @property
    def total(self) -> int:
        return sum(map(len, self.counts.values()))

    def until(self, total: int, process: subprocess.Popen[bytes], log: Path) -> None:
        deadline = time.monotonic() + LIMIT_S
        while self.total < total:
            assert process.poll() is None, log.read_text()[-3000:]
            assert time.monotonic() < deadline, f"{self.total} of {total} counts: {log.read_text()[-3000:]}"
            for message in self._consumer.consume(1000, 0.2):
                error = message.error()
                if error is not None:
                    assert error.retriable() or error.code() == KafkaError._ALL_BROKERS_DOWN, error
                    continue
                self.counts[message.key().decode()].append(int(message.value()))


def test_every_count_is_there_once(tmp_path: Path) -> None:
    try:
        java = kafka_java("ExactlyOnce.java", "kafka-streams", "4.3.1")
    except Unavailable as why:
        pytest.skip(str(why))
    log = tmp_path / "streams.log"
    with TestCluster(3, settings=SETTINGS) as cluster:
        for topic in ("words", "counts"):
            cluster.create_topic(topic, PARTITIONS, 3)
        producer = Producer({"bootstrap.servers": cluster.bootstrap, "enable.idempotence": True})
        for at in range(ROUNDS):
            for word in WORDS:
                producer.produce("words", key=str(at), value=word)
        producer.flush()
        reader = Reader(cluster.bootstrap, "counts")
        command = [*java, cluster.bootstrap, "counter", "words", "counts", str(tmp_path / "state")]
        half = ROUNDS * len(WORDS) // 4
        with counting(command, log) as process:
            reader.until(1, process, log)
        with counting(command, log) as process:
            reader.until(half, process, log)
            leader = cluster.leader_of("__transaction_state")
            cluster.kill(leader)
            more(producer)
            cluster.leader_of("__transaction_state", other_than=leader)
            cluster.start(leader)
            reader.until(2 * ROUNDS * len(WORDS), process, log)
    assert reader.counts == {word: list(range(1, 2 * ROUNDS + 1)) for word in WORDS}
    assert "failed" not in log.read_text()


def more(producer: Producer) -> None:
    for at in range(ROUNDS):
        for word in WORDS:
            producer.produce("words", key=str(at), value=word)
    producer.flush()
