"""Runs of real clients at their default settings: confluent-kafka's producer and consumer, and the ProducerPerformance
tool that comes with Kafka."""

import os
import re
import time

import confluent_kafka as confluent
from tests.reference.apache import run_tool

from bench.brokers import Broker
from bench.measure import cpu_s

RECORD_BYTES = 100
# About what these clients manage, so that a run of N seconds lasts about that long.
CONFLUENT_PER_S, PERFORMANCE_PER_S = 500_000, 150_000


def confluent_producer(broker: Broker, seconds: float) -> dict[str, float]:
    value, count = os.urandom(RECORD_BYTES), int(seconds * CONFLUENT_PER_S)
    with broker.topic("bench-confluent") as topic:
        producer = confluent.Producer({"bootstrap.servers": f"127.0.0.1:{broker.port}"})
        cpu, begin = cpu_s(broker.pid), time.perf_counter()
        _send(producer, topic, value, count)
        return figures(count, time.perf_counter() - begin, cpu_s(broker.pid) - cpu)


def _send(producer: confluent.Producer, topic: str, value: bytes, count: int) -> None:
    for number in range(count):
        while True:
            try:
                producer.produce(topic, value, partition=0)
                break
            except BufferError:
                producer.poll(0.01)
        if number % 1000 == 0:
            producer.poll(0)
    if left := producer.flush(120):
        raise RuntimeError(f"{left} records were not delivered")


def confluent_consumer(broker: Broker, seconds: float, **more: object) -> dict[str, float]:
    value, count = os.urandom(RECORD_BYTES), int(seconds * CONFLUENT_PER_S)
    with broker.topic("bench-consume") as topic:
        _send(confluent.Producer({"bootstrap.servers": f"127.0.0.1:{broker.port}"}), topic, value, count)
        # The group is only a name here: partitions are assigned by hand and nothing is committed.
        settings = {
            "bootstrap.servers": f"127.0.0.1:{broker.port}",
            "group.id": "bench",
            "enable.auto.commit": False,
            **more,
        }
        consumer = confluent.Consumer(settings)
        consumer.assign([confluent.TopicPartition(topic, 0, 0)])
        cpu, begin, got = cpu_s(broker.pid), time.perf_counter(), 0
        while got < count:
            messages = consumer.consume(10_000, 10)
            if not messages:
                raise RuntimeError(f"{got} of {count} records, then nothing")
            got += len(messages)
        spent = time.perf_counter() - begin
        result = figures(got, spent, cpu_s(broker.pid) - cpu)
        consumer.close()
        return result


def confluent_consumer_without_pauses(broker: Broker, seconds: float) -> dict[str, float]:
    """By default this client fetches nothing for a second whenever it holds 100,000 records that the application has
    not taken yet. What is measured then is those pauses: the sooner a broker has filled the queue, the sooner the next
    begins."""
    return confluent_consumer(broker, seconds, **{"fetch.queue.backoff.ms": 1})


def producer_performance(broker: Broker, seconds: float) -> dict[str, float]:
    count = max(int(seconds * PERFORMANCE_PER_S), 200_000)
    with broker.topic("bench-performance") as topic:
        cpu = cpu_s(broker.pid)
        out = run_tool(
            "org.apache.kafka.tools.ProducerPerformance", "--topic", topic, "--num-records", str(count),
            "--record-size", str(RECORD_BYTES), "--throughput", "-1",
            "--bootstrap-server", f"127.0.0.1:{broker.port}", timeout_s=600,
        )  # fmt: skip
        last = re.findall(r"(\d+) records sent, ([\d.]+) records/sec", out)[-1]
        p99 = re.search(r"([\d.]+) ms 99th", out)
        result = figures(count, count / float(last[1]), cpu_s(broker.pid) - cpu)
        return result | ({"p99 ms": float(p99[1])} if p99 else {})


def figures(count: int, seconds: float, cpu: float) -> dict[str, float]:
    return {
        "records/s": count / seconds,
        "MB/s": count * RECORD_BYTES / seconds / 1e6,
        "CPU µs/record": cpu / count * 1e6,
    }


RUNS = {
    "confluent-kafka producer": confluent_producer,
    "confluent-kafka consumer": confluent_consumer,
    "confluent-kafka consumer without pauses": confluent_consumer_without_pauses,
    "ProducerPerformance": producer_performance,
}
