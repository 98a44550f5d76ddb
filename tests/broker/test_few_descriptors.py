"""A broker that may open fewer files than it has partitions."""

import re
import subprocess
import sys
from pathlib import Path

import confluent_kafka as confluent
from confluent_kafka.admin import AdminClient, NewTopic

DESCRIPTORS = 128
PARTITIONS = 160


def test_clients_are_served_by_a_broker_with_more_partitions_than_descriptors(tmp_path: Path) -> None:
    """Descriptors are shared out, however few: were they all the segments', nobody could connect."""
    up = [sys.executable, "-m", "headrace.cli.main", "up", "--data", str(tmp_path / "data"), "--port", "0"]
    limited = ["sh", "-c", f'ulimit -n {DESCRIPTORS} && exec "$@"', "sh", *up]
    with subprocess.Popen(limited, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as broker:
        try:
            assert broker.stdout is not None
            found = re.search(r"ready on (\S+)", broker.stdout.readline())
            assert found is not None
            bootstrap = {"bootstrap.servers": found[1]}
            admin = AdminClient(bootstrap)
            admin.create_topics([NewTopic("wide", PARTITIONS, 1)])["wide"].result(30)
            assert written(bootstrap) == set(range(PARTITIONS))
            assert read(bootstrap) == set(range(PARTITIONS))
        finally:
            broker.terminate()
            broker.communicate(timeout=30)


def written(bootstrap: dict[str, str]) -> set[int | None]:
    """One record to each partition; those that were acknowledged."""
    acknowledged: set[int | None] = set()

    def answered(error: confluent.KafkaError | None, record: confluent.Message) -> None:
        if error is None:
            acknowledged.add(record.partition())

    producer = confluent.Producer({**bootstrap, "message.timeout.ms": 10_000})
    for partition in range(PARTITIONS):
        producer.produce("wide", b"x", partition=partition, on_delivery=answered)
    producer.flush(20)
    return acknowledged


def read(bootstrap: dict[str, str]) -> set[int | None]:
    """The partitions that have a record, as a new client finds them."""
    consumer = confluent.Consumer({**bootstrap, "group.id": "unused"})
    consumer.assign([confluent.TopicPartition("wide", partition, 0) for partition in range(PARTITIONS)])
    seen: set[int | None] = set()
    while len(seen) < PARTITIONS and (messages := consumer.consume(PARTITIONS, 10)):
        seen.update(message.partition() for message in messages if message.error() is None)
    consumer.close()
    return seen
