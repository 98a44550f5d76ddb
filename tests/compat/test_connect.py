"""Kafka Connect and MirrorMaker of Apache Kafka 4.3.1 over Headrace: compacted topics, groups of their own kind, and
offsets that outlive a killed worker."""

import json
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import confluent_kafka as confluent
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.testing.broker import TestBroker
from tests.reference.apache import QUICK_JVM, VERSION, ApacheKafka, Unavailable, free_ports, java
from tests.reference.maven import with_dependencies

GROUP = "org.apache.kafka"
ARTIFACTS = [(GROUP, f"connect-{part}", VERSION) for part in ("runtime", "file", "mirror")]
LOGGING = ("org.slf4j", "slf4j-simple", "1.7.36")
LIMIT_S = 180

pytestmark = [pytest.mark.soak, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def jars() -> Path:
    try:
        java()
        return with_dependencies(f"connect-{VERSION}", [*ARTIFACTS, LOGGING])
    except Unavailable as why:
        pytest.skip(str(why))


@pytest.fixture(scope="module")
def broker() -> Iterator[TestBroker]:
    with TestBroker() as started:
        yield started


def until(what: str, look: Callable[[], object]) -> None:
    """Asks again and again; a worker that is just starting or rebalancing refuses."""
    deadline = time.monotonic() + LIMIT_S
    why: object = None
    while time.monotonic() < deadline:
        try:
            if look():
                return
        except (OSError, KeyError, IndexError) as failed:
            why = failed.read() if isinstance(failed, urllib.error.HTTPError) else failed
        time.sleep(0.2)
    raise AssertionError(f"not in time: {what} ({why})")


class Process:
    """A Java program of Connect with a file of properties."""

    def __init__(self, jars: Path, main: str, folder: Path, settings: Mapping[str, object]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / "program.properties"
        file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
        with (folder / "program.log").open("wb") as log:
            command = [java(), *QUICK_JVM, quiet, "-cp", f"{jars}/*", main, str(file)]
            self.process = subprocess.Popen(command, cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def kill9(self) -> None:
        self.process.kill()
        self.process.wait()


class Worker(Process):
    """A worker of a distributed Connect, and its REST interface."""

    def __init__(self, jars: Path, folder: Path, bootstrap: str) -> None:
        (self.port,) = free_ports(1)
        text = "org.apache.kafka.connect.storage.StringConverter"
        topics: dict[str, object] = {}
        for kind in ("offset", "config", "status"):
            topics |= {f"{kind}.storage.topic": f"connect-{kind}", f"{kind}.storage.replication.factor": 1}
        super().__init__(jars, "org.apache.kafka.connect.cli.ConnectDistributed", folder, {
            "bootstrap.servers": bootstrap, "group.id": "connect", "key.converter": text, "value.converter": text,
            **topics,
            "offset.storage.partitions": 3, "status.storage.partitions": 2, "offset.flush.interval.ms": 500,
            "listeners": f"http://127.0.0.1:{self.port}", "scheduled.rebalance.max.delay.ms": 2000,
            "plugin.discovery": "service_load", "plugin.path": jars,
        })  # fmt: skip

    def ask(self, path: str, body: object = None, method: str | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}", data, {"Content-Type": "application/json"}, method=method
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.loads(answer.read() or b"null")

    def states(self, name: str) -> list[str]:
        status = self.ask(f"/connectors/{name}/status")
        return [status["connector"]["state"], *(task["state"] for task in status["tasks"])]

    def do(self, path: str, body: object = None, method: str | None = None) -> None:
        """Until it is accepted: a rebalance refuses changes."""
        until(f"{method} {path}", lambda: self.ask(path, body, method) or True)


def test_distributed_connect(jars: Path, broker: TestBroker, tmp_path: Path) -> None:
    source, sink = tmp_path / "in.txt", tmp_path / "out.txt"
    write(source, 0, 1000)
    workers = [Worker(jars, tmp_path / f"worker-{i}", broker.bootstrap) for i in (1, 2)]
    try:
        first, second = workers
        until("both answer", lambda: first.ask("/") and second.ask("/"))
        assert first.ask("/")["version"] == VERSION
        file_source = {
            "connector.class": "FileStreamSource",
            "file": str(source),
            "topic": "lines",
            "topic.creation.default.replication.factor": "1",
            "topic.creation.default.partitions": "3",
        }
        file_sink = {"connector.class": "FileStreamSink", "file": str(sink), "topics": "lines", "tasks.max": "2"}
        first.do("/connectors/source/config", file_source, "PUT")
        second.do("/connectors/sink/config", file_sink, "PUT")
        until("the lines are through", lambda: lines(sink) == numbered(1000))
        until("the sink's offsets", lambda: committed(second) == 1000)
        first.kill9()
        write(source, 1000, 2000)
        until("what came after a worker was killed", lambda: lines(sink) == numbered(2000))
        until("all offsets", lambda: committed(second) == 2000)
        second.do("/connectors/source/pause", method="PUT")
        until("paused", lambda: second.states("source") == ["PAUSED", "PAUSED"])
        second.do("/connectors/sink/stop", method="PUT")
        until("stopped", lambda: second.states("sink") == ["STOPPED"])
        second.do("/connectors/sink/offsets", method="DELETE")
        second.do("/connectors/sink/resume", method="PUT")
        until("read once more", lambda: len(sink.read_text().splitlines()) >= 4000)
        for name in ("source", "sink"):
            second.do(f"/connectors/{name}", method="DELETE")
        until("none is left", lambda: second.ask("/connectors") == [])
    finally:
        for worker in workers:
            worker.kill9()


def write(file: Path, start: int, end: int) -> None:
    with file.open("a") as opened:
        opened.writelines(f"{i}\n" for i in range(start, end))


def numbered(count: int) -> set[str]:
    return {str(i) for i in range(count)}


def lines(file: Path) -> set[str]:
    return set(file.read_text().splitlines())


def committed(worker: Worker) -> int:
    return sum(entry["offset"]["kafka_offset"] for entry in worker.ask("/connectors/sink/offsets")["offsets"])


@pytest.mark.reference
def test_mirror_maker_between_both_brokers(jars: Path, broker: TestBroker, apache: ApacheKafka, tmp_path: Path) -> None:
    addresses = {"theirs": apache.bootstrap, "ours": broker.bootstrap}
    for name, bootstrap in addresses.items():
        fill(bootstrap, f"mirror-{name}")
    kinds = (
        "checkpoints.topic",
        "heartbeats.topic",
        "offset-syncs.topic",
        "offset.storage",
        "status.storage",
        "config.storage",
    )
    mirror = Process(jars, "org.apache.kafka.connect.mirror.MirrorMaker", tmp_path, {
        "clusters": "theirs,ours", **{f"{name}.bootstrap.servers": address for name, address in addresses.items()},
        "theirs->ours.enabled": "true", "ours->theirs.enabled": "true", "topics": "mirror-.*", "groups": "mirror-.*",
        "replication.factor": 1, **{f"{kind}.replication.factor": 1 for kind in kinds}, "offset.lag.max": 0,
        "emit.checkpoints.interval.seconds": 1, "sync.group.offsets.enabled": "true",
        "sync.group.offsets.interval.seconds": 1,
        "refresh.topics.interval.seconds": 2, "refresh.groups.interval.seconds": 2,
        "sync.topic.configs.interval.seconds": 2,
    })  # fmt: skip
    try:
        for name, other in (("theirs", "ours"), ("ours", "theirs")):
            found = read(addresses[other], f"{name}.mirror-{name}")
            assert sorted(found, key=int) == [str(i) for i in range(1000)]
            admin = AdminClient({"bootstrap.servers": addresses[other]})
            until("the group's offsets", partial(has_all_offsets, admin, name))
            until("the topic's configs", partial(has_configs, admin, name))
    finally:
        mirror.kill9()


def fill(bootstrap: str, topic: str) -> None:
    """A thousand records, read by a group that has the topic's name."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, 3, 1, config={"retention.ms": "123456789"})])[topic].result(30)
    producer = confluent.Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    for i in range(1000):
        producer.produce(topic, str(i), key=str(i), headers=[("h", b"1")])
    assert producer.flush(60) == 0
    settings = {"bootstrap.servers": bootstrap, "group.id": topic, "auto.offset.reset": "earliest"}
    consumer = confluent.Consumer(settings)
    consumer.subscribe([topic])
    left = 1000
    while left:
        left -= sum(message.error() is None for message in consumer.consume(left, 1))
    consumer.commit(asynchronous=False)
    consumer.close()


def read(bootstrap: str, topic: str) -> list[str]:
    """The first thousand values of a topic that is about to come."""
    consumer = confluent.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "unused", "auto.offset.reset": "earliest"}
    )
    consumer.assign([confluent.TopicPartition(topic, partition, 0) for partition in range(3)])
    found: list[str] = []
    deadline = time.monotonic() + LIMIT_S
    while len(found) < 1000 and time.monotonic() < deadline:
        found += [message.value().decode() for message in consumer.consume(1000, 1) if message.error() is None]
    consumer.close()
    return found


def offsets(admin: AdminClient, group: str, topic: str) -> int:
    asked = [confluent.ConsumerGroupTopicPartitions(group)]
    told = admin.list_consumer_group_offsets(asked)[group].result(30).topic_partitions
    return sum(one.offset for one in told if one.topic == topic)


def has_all_offsets(admin: AdminClient, name: str) -> bool:
    return offsets(admin, f"mirror-{name}", f"{name}.mirror-{name}") == 1000


def has_configs(admin: AdminClient, name: str) -> bool:
    resource = confluent.admin.ConfigResource("topic", f"{name}.mirror-{name}")
    return bool(config(admin, resource)["retention.ms"].value == "123456789")


def config(admin: AdminClient, resource: confluent.admin.ConfigResource) -> dict[str, Any]:
    (told,) = admin.describe_configs([resource]).values()
    return dict(told.result(30))
