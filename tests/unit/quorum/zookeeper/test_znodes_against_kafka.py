"""What Headrace writes into znodes, read by Apache Kafka 3.9's own classes."""

import base64
import subprocess
from pathlib import Path

import pytest

from headrace.metadata.image import EMPTY, Endpoint
from headrace.protocol import messages as m
from headrace.quorum.zookeeper import znodes
from tests.reference.apache import QUICK_JVM, Unavailable, java
from tests.reference.maven import KAFKA_3, KAFKA_3_ARTIFACTS, with_dependencies
from tests.unit.quorum.zookeeper.world import LEVEL, TOPIC, new_model, topic, write

pytestmark = pytest.mark.reference


READER = """
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Base64;
import kafka.zk.*;
import org.apache.zookeeper.data.Stat;

public class Main {
    public static void main(String[] arguments) throws Exception {
        for (String line : Files.readAllLines(Path.of(arguments[0]))) {
            String[] cells = line.split("\\t");
            byte[] data = Base64.getDecoder().decode(cells[2]);
            System.out.println(cells[0] + "\\t" + read(cells[0], Integer.parseInt(cells[1]), data));
        }
    }

    static Object read(String path, int version, byte[] data) {
        String name = path.substring(path.lastIndexOf('/') + 1);
        Stat stat = new Stat();
        stat.setVersion(version);
        if (path.endsWith("/state")) return TopicPartitionStateZNode.decode(data, stat);
        if (path.startsWith("/brokers/topics/")) return TopicZNode.decode(name, data);
        if (path.startsWith("/brokers/ids/")) return BrokerIdZNode.decode(Integer.parseInt(name), data);
        if (path.startsWith("/config/")) return ConfigEntityZNode.decode(data);
        switch (path) {
            case "/controller": return ControllerZNode.decode(data);
            case "/controller_epoch": return ControllerEpochZNode.decode(data);
            case "/cluster/id": return ClusterIdZNode.fromJson(data);
            case "/feature": return FeatureZNode.decode(data);
            case "/latest_producer_id_block": return ProducerIdBlockZNode.parseProducerIdBlockData(data);
            default: throw new IllegalArgumentException(path);
        }
    }
}
"""

EXPECTED = {
    "/brokers/topics/orders": "TopicIdReplicaAssignment(orders,Some(AAECAwQFBgcICQoLDA0ODw),Map(orders-0 -> "
    "ReplicaAssignment(replicas=1,2, addingReplicas=3, removingReplicas=)))",
    "/brokers/topics/orders/partitions/0/state": "Some((Leader:2,ISR:2,LeaderRecoveryState:RECOVERING,LeaderEpoch:1,"
    "ZkVersion:1,ControllerEpoch:7))",
    "/brokers/ids/4": "BrokerInfo(4 : (EndPoint(::1,9092,ListenerName(PLAINTEXT),PLAINTEXT),"
    "EndPoint(b,9093,ListenerName(X),SASL_SSL)) : r : Features{},5,-1)",
    "/controller": "Some(3)",
    "/controller_epoch": "0",
    "/cluster/id": "abc",
    "/feature": "FeatureZNode(2,Enabled,Map())",
    "/config/topics/orders": "{retention.ms=1000}",
    "/latest_producer_id_block": "ProducerIdsBlock(assignedBrokerId=1, firstProducerId=1000, size=1000)",
}


def test_kafka_understands_every_znode(tmp_path: Path) -> None:
    try:
        command, jars = java(), with_dependencies(f"kafka-{KAFKA_3}-zk", KAFKA_3_ARTIFACTS)
    except Unavailable as missing:
        pytest.skip(str(missing))
    model = new_model()
    config = m.ConfigRecord(resource_type=2, resource_name="orders", name="retention.ms", value="1000")
    ids = m.ProducerIdsRecord(broker_id=1, broker_epoch=5, next_producer_id=2000)
    image = write(model, EMPTY, [LEVEL, *topic("orders", TOPIC, 1), (config, 0), (ids, 0)])
    change = m.PartitionChangeRecord(
        topic_id=TOPIC, partition_id=0, isr=[2], leader=2, adding_replicas=[3], leader_recovery_state=1,
        directories=[bytes(16), bytes(15) + b"\x09"], eligible_leader_replicas=[1],
    )  # fmt: skip
    write(model, image, [(change, 2)])
    endpoints = [Endpoint("PLAINTEXT", "::1", 9092, 0), Endpoint("X", "b", 9093, 3)]
    model.ensure("/controller", znodes.encode_controller(3, ("host", 9093), 17))
    model.ensure("/cluster/id", znodes.encode_cluster_id("abc"))
    model.ensure("/brokers/ids/4", znodes.encode_broker_id(endpoints, "r", 5, [bytes(16)]))
    nodes = [(path, model.nodes[path]) for path in EXPECTED]
    rows = [f"{path}\t{node.stat.version}\t{base64.b64encode(node.data).decode()}\n" for path, node in nodes]
    (tmp_path / "znodes").write_text("".join(rows))
    (tmp_path / "Main.java").write_text(READER)
    done = subprocess.run(
        [command, *QUICK_JVM, "-cp", f"{jars}/*", str(tmp_path / "Main.java"), str(tmp_path / "znodes")],
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert dict(line.split("\t") for line in done.stdout.splitlines()) == EXPECTED
