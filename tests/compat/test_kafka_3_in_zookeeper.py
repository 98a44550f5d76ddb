"""Apache Kafka 3.9 in ZooKeeper mode upon the znodes and folders that Headrace has left, and Headrace upon Kafka's."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from headrace.client.admin.admin import Admin, Resource
from headrace.local_cluster.ensemble import Ensemble
from headrace.protocol import messages as m
from headrace.protocol.api import ApiKey
from headrace.testing.cluster import TestCluster
from tests.cluster.history import ConfluentWriter, Writer, judge, read_log
from tests.cluster.zookeeper import CHROOT, ensemble
from tests.reference.apache import QUICK_JVM, Unavailable, java
from tests.reference.maven import KAFKA_3, KAFKA_3_ARTIFACTS, with_dependencies

pytestmark = [pytest.mark.reference, pytest.mark.soak, pytest.mark.timeout(300)]

TOPIC, THEIRS = "orders", "theirs"
ELR = "eligible.leader.replicas.version"
SOME = 100


@pytest.fixture
def zookeeper(tmp_path: Path) -> Iterator[Ensemble]:
    with ensemble(tmp_path / "zookeeper") as found:
        yield found


@contextmanager
def kafka(folder: Path, cluster: TestCluster, connect: str) -> Iterator[None]:
    """In the place of the cluster's only node."""
    try:
        command, jars = java(), with_dependencies(f"kafka-{KAFKA_3}-zk", KAFKA_3_ARTIFACTS)
    except Unavailable as missing:
        pytest.skip(str(missing))
    properties = folder / "server.properties"
    properties.write_text(
        f"broker.id=1\nlisteners=PLAINTEXT://{cluster[1].address}\nlog.dirs={cluster[1].data}\n"
        f"zookeeper.connect={connect}\noffsets.topic.replication.factor=1\ngroup.initial.rebalance.delay.ms=0\n"
    )
    with (folder / "kafka.log").open("wb") as log:
        words = [command, *QUICK_JVM, "-cp", f"{jars}/*", "kafka.Kafka", str(properties)]
        process = subprocess.Popen(words, stdout=log, stderr=log)
    try:
        cluster.wait("Kafka leads", lambda: cluster.partition(TOPIC, 0).leader == 1, limit_s=90)
        yield
        process.terminate()
        process.wait(60)
    finally:
        process.kill()
        process.wait()


async def without_elr(admin: Admin) -> None:
    """Kafka 3 elects from the ISR alone, so the last in-sync replica has to stay in it."""
    kind = m.UpdateFeaturesRequest
    update = kind.FeatureUpdateKey(feature=ELR, max_version_level=0, upgrade_type=2)
    answer = await admin.cluster.to_controller(ApiKey.UPDATE_FEATURES, kind(feature_updates=[update], timeout_ms=9_000))
    assert not answer.error_code, answer


def test_kafka_goes_on_where_headrace_stopped_and_the_other_way_round(zookeeper: Ensemble, tmp_path: Path) -> None:
    connect = zookeeper.connect + CHROOT
    writers: list[tuple[str, Writer]] = []

    def write(cluster: TestCluster, topic: str) -> None:
        with ConfluentWriter(cluster.bootstrap, topic, 1, name=f"w{len(writers)}") as writer:
            writer.wait_acked(SOME)
            writer.stop()
        writers.append((topic, writer))

    with TestCluster(1, settings={"zookeeper.connect": connect}) as cluster:
        cluster.ask(without_elr)
        cluster.create_topic(TOPIC, 1, 1, {"retention.ms": "86400000"})
        write(cluster, TOPIC)
        topic_id = cluster.topic(TOPIC).topic_id
        cluster.stop()
        with kafka(tmp_path, cluster, connect):
            assert cluster.topic(TOPIC).topic_id == topic_id
            write(cluster, TOPIC)
            cluster.create_topic(THEIRS, 1, 1)
            write(cluster, THEIRS)
            for topic, writer in writers:
                judge(read_log(cluster.bootstrap, topic), writer.book)
        cluster.start()
        epoch = cluster.quorum().leader_epoch
        write(cluster, TOPIC)
        write(cluster, THEIRS)
        for topic, writer in writers:
            judge(read_log(cluster.bootstrap, topic), writer.book)
        # Kafka has made a znode for options that the topic has none of.
        cluster.ask(lambda admin: admin.alter_configs(Resource.TOPIC, THEIRS, set={"retention.ms": "1111"}))
        cluster.ask(lambda admin: admin.delete_topic(THEIRS))
        cluster.create_topic(THEIRS, 1, 1, {"retention.ms": "2222"})
        assert cluster.quorum().leader_epoch == epoch, "the controller stumbled over what Kafka had left"
