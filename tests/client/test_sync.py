"""The same API without await: from the main thread, from several, from callbacks, and at the end of a process."""

import itertools
import subprocess
import sys
import threading
from typing import Any

import pytest

import headrace
from headrace.sync import Admin, Consumer, Producer
from headrace.testing.broker import TestBroker
from tests.client.support import QUICK

_numbers = itertools.count()


@pytest.fixture
def topic(broker: TestBroker) -> str:
    name = f"sync-{next(_numbers)}"
    with Admin(broker.bootstrap) as admin:
        admin.create_topic(name, 2, 1)
    return name


def test_records_go_out_and_come_back(broker: TestBroker, topic: str) -> None:
    with Producer(broker.bootstrap, value_serializer="json") as producer:
        assert producer.send(topic, {"n": 0}, partition=0).offset == 0
        told: list[int] = []
        deliveries = [producer.send_soon(topic, {"n": n}, partition=1) for n in range(300)]
        deliveries[5].add_done_callback(lambda one: told.append(5))
        producer.flush()
        assert [one.result(5).offset for one in deliveries] == list(range(300)) and told == [5]
        assert producer.partitions(topic) == 2
        bad = producer.send_soon(topic, object())
        assert isinstance(bad.exception(5), headrace.SerializationFailed)
        with pytest.raises(headrace.SerializationFailed):
            producer.flush()
    options: dict[str, Any] = QUICK | {"value_deserializer": "json"}
    with Consumer(topic, bootstrap=broker.bootstrap, group=topic, **options) as consumer:
        seen = [record.value["n"] for record in itertools.islice(consumer, 301)]
        assert sorted(seen) == sorted([0, *range(300)])
        assert all(lag.records == 0 for lag in consumer.lag().values())
        consumer.seek((topic, 1), 290)
        batch = next(consumer.batches())
        assert batch.topic_partition == (topic, 1) and batch[0].offset == 290


def test_callbacks_may_call_the_consumer(broker: TestBroker, topic: str) -> None:
    seen: list[int] = []
    with Producer(broker.bootstrap) as producer:
        producer.send_batch(topic, [b"%d" % n for n in range(10)], partition=0)

    def revoked(partitions: frozenset[headrace.TopicPartition]) -> None:
        consumer.commit()
        seen.append(len(partitions))

    options: dict[str, Any] = QUICK | {"auto_commit": False, "on_revoked": revoked}
    with Consumer(topic, bootstrap=broker.bootstrap, group=topic, **options) as consumer:
        while not consumer.poll():
            pass
    assert seen == [2]
    with Consumer(bootstrap=broker.bootstrap, group=topic) as reader:
        assert reader.committed((topic, 0)) == {(topic, 0): 10}


def test_threads_share_one_producer(broker: TestBroker, topic: str) -> None:
    with Producer(broker.bootstrap) as producer:

        def work(number: int) -> None:
            for turn in range(200):
                producer.send_soon(topic, b"%d-%d" % (number, turn), partition=0)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    with Consumer(topic, bootstrap=broker.bootstrap, **QUICK) as consumer:
        found = [record.value for record in itertools.islice(consumer, 800)]
    for number in range(4):
        mine = [value for value in found if value.startswith(b"%d-" % number)]
        assert mine == [b"%d-%d" % (number, turn) for turn in range(200)], "each thread's in its order"


def test_transactions_without_await(broker: TestBroker, topic: str) -> None:
    with Producer(broker.bootstrap, transactional_id=f"id-{topic}") as producer:
        with producer.transaction():
            producer.send_soon(topic, b"kept", partition=0)
        with pytest.raises(ValueError, match="no"), producer.transaction():
            producer.send(topic, b"dropped", partition=0)
            raise ValueError("no")
        with producer.transaction():
            producer.send(topic, b"kept too", partition=0)
    with Consumer(topic, bootstrap=broker.bootstrap, isolation_level="read_committed", **QUICK) as consumer:
        assert [record.value for record in itertools.islice(consumer, 2)] == [b"kept", b"kept too"]


def test_a_process_that_forgets_to_close_still_sends(broker: TestBroker, topic: str) -> None:
    program = (
        "import sys; from headrace.sync import Producer\n"
        "producer = Producer(sys.argv[1]); producer.start()\n"
        "for n in range(100): producer.send_soon(sys.argv[2], b'%d' % n, partition=0)\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program, broker.bootstrap, topic], capture_output=True, timeout=60
    )
    assert done.returncode == 0 and done.stderr == b""
    with Consumer(topic, bootstrap=broker.bootstrap, **QUICK) as consumer:
        assert len(list(itertools.islice(consumer, 100))) == 100


def test_what_is_not_open_says_so(broker: TestBroker, topic: str) -> None:
    producer = Producer(broker.bootstrap)
    for use in (lambda: producer.send(topic, b""), lambda: producer.send_soon(topic, b""), producer.flush):
        with pytest.raises(headrace.ClientError, match="not started"):
            use()
    with producer:
        pass
    with pytest.raises(headrace.ClientError, match="closed: make a new one"):
        producer.send(topic, b"")
