"""A cluster on paper: a controller, the image it decides by, and what tests ask of it most."""

from random import Random
from typing import Any

from headrace.config import BrokerConfig
from headrace.metadata.controller import Controller
from headrace.metadata.heartbeats import BrokerState, Reply
from headrace.metadata.image import Image, Partition
from headrace.metadata.loader import Loader
from headrace.metadata.outcome import Outcome
from headrace.metadata.quotas import describe_client_quotas
from headrace.metadata.records import Record, decode_records, encode_records
from headrace.metadata.versions import KNOWN_FEATURES
from headrace.protocol import messages as m
from headrace.protocol.api import ApiKey
from tests.unit.metadata.cases import Case

CLUSTER = "aGVhZHJhY2VoZWFkcmFjZQ"


DIRECTORY = bytes(12) + b"dir1"


class Cluster:
    """A controller and the image it writes, without a log."""

    def __init__(self, brokers: int = 1, **options: str) -> None:
        random = Random(7)
        self.config = BrokerConfig.load(
            {
                "node.id": "1",
                "process.roles": "broker,controller",
                "listeners": "PLAINTEXT://127.0.0.1:19892,CONTROLLER://127.0.0.1:19893",
                "controller.listener.names": "CONTROLLER",
                "controller.quorum.bootstrap.servers": "127.0.0.1:19893",
                "log.dirs": "/data",
                **options,
            }
        )
        self.controller = Controller(
            self.config, CLUSTER, random.randrange, lambda: random.getrandbits(128).to_bytes(16, "big")
        )
        self.loader = Loader()
        self.offset = 0
        self.commit([(m.FeatureLevelRecord(name="metadata.version", feature_level=30), 0)])
        for broker in range(1, brokers + 1):
            self.register(broker)
            self.commit(self.controller.unfence_broker(self.image, broker))

    @property
    def image(self) -> Image:
        return self.loader.image

    def commit(self, records: list[Record]) -> None:
        if records:
            self.loader.load(decode_records(encode_records(records)), self.offset, 1, 5)
            self.offset += len(records)

    def do(self, outcome: Outcome[Any]) -> Any:
        self.commit(outcome.records)
        return outcome.response

    def request(self, broker: int, incarnation: int = 1, **fields: Any) -> Any:
        kind = m.BrokerRegistrationRequest
        return kind(
            broker_id=broker,
            cluster_id=CLUSTER,
            incarnation_id=(broker * 1000 + incarnation).to_bytes(16, "big"),
            features=[
                kind.Feature(name=n, min_supported_version=low, max_supported_version=high)
                for n, (low, high) in KNOWN_FEATURES.items()
            ],
            log_dirs=fields.pop("log_dirs", [DIRECTORY[:15] + bytes([broker])]),
            **fields,
        )

    def register(self, broker: int, incarnation: int = 1, session_alive: bool = False, **fields: Any) -> int:
        request = self.request(broker, incarnation, **fields)
        outcome = self.controller.register_broker(self.image, request, self.offset, session_alive=session_alive)
        return int(self.do(outcome))

    def answer(self, case: Case) -> Any:
        controller, image, request = self.controller, self.image, case.request
        match case.api:
            case ApiKey.CREATE_TOPICS:
                return self.do(controller.create_topics(image, request))
            case ApiKey.DELETE_TOPICS:
                return self.do(controller.delete_topics(image, request, case.version))
            case ApiKey.CREATE_PARTITIONS:
                return self.do(controller.create_partitions(image, request))
            case ApiKey.INCREMENTAL_ALTER_CONFIGS:
                return self.do(controller.incremental_alter_configs(image, request))
            case ApiKey.ALTER_CONFIGS:
                return self.do(controller.alter_configs(image, request))
            case ApiKey.ALTER_CLIENT_QUOTAS:
                return self.do(controller.alter_client_quotas(image, request))
            case ApiKey.DESCRIBE_CLIENT_QUOTAS:
                return describe_client_quotas(image, request)
            case ApiKey.UPDATE_FEATURES:
                return self.do(controller.update_features(image, request, case.version))
        raise AssertionError(case.api)


def leaders(cluster: Cluster, name: str = "t") -> list[tuple[int, int, tuple[int, ...]]]:
    topic = cluster.image.topic_named(name)
    assert topic is not None
    return [(p.leader, p.leader_epoch, p.isr) for _, p in sorted(topic.partitions.items())]


def beat(cluster: Cluster, broker: int, others_know: bool = True, **fields: Any) -> BrokerState:
    registered = cluster.image.brokers[broker]
    request = m.BrokerHeartbeatRequest(
        broker_id=broker,
        broker_epoch=fields.pop("epoch", registered.epoch),
        current_metadata_offset=fields.pop("offset", cluster.image.offset),
        want_fence=fields.pop("want_fence", False),
        **fields,
    )
    reply: Reply = cluster.do(cluster.controller.heartbeat(cluster.image, request, lambda: others_know))
    return reply.state


ALTER = m.AlterPartitionRequest


def the_partition(cluster: Cluster) -> Partition:
    topic = cluster.image.topic_named("t")
    assert topic is not None
    return topic.partitions[0]


def alter(cluster: Cluster, isr: list[Any], version: int = 3, sender: int = 1, **fields: Any) -> Any:
    """`isr`: broker ids, or (id, epoch). Returns the partition's answer."""
    topic, partition = cluster.image.topic_named("t"), the_partition(cluster)
    assert topic is not None
    members = [entry if isinstance(entry, tuple) else (entry, cluster.image.brokers[entry].epoch) for entry in isr]
    row = ALTER.PartitionData(
        partition_index=fields.pop("index", 0),
        leader_epoch=fields.pop("leader_epoch", partition.leader_epoch),
        partition_epoch=fields.pop("partition_epoch", partition.partition_epoch),
        leader_recovery_state=fields.pop("recovery_state", partition.recovery_state),
    )
    if version >= 3:
        row.new_isr_with_epochs = [ALTER.BrokerState(broker_id=b, broker_epoch=e) for b, e in members]
    else:
        row.new_isr = [b for b, _ in members]
    request = ALTER(
        broker_id=sender,
        broker_epoch=fields.pop("broker_epoch", cluster.image.brokers[sender].epoch),
        topics=[ALTER.TopicData(topic_id=fields.pop("topic_id", topic.id), partitions=[row])],
    )
    assert not fields
    response = cluster.do(cluster.controller.alter_partition(cluster.image, request, version))
    return response.topics[0].partitions[0]


MOVE = m.AlterPartitionReassignmentsRequest


def move(cluster: Cluster, replicas: list[int] | None, index: int = 0, topic: str = "t", **fields: Any) -> Any:
    request = MOVE(
        topics=[
            MOVE.ReassignableTopic(
                name=topic, partitions=[MOVE.ReassignablePartition(partition_index=index, replicas=replicas)]
            )
        ],
        **fields,
    )
    response = cluster.do(cluster.controller.alter_reassignments(cluster.image, request))
    return response.responses[0].partitions[0].error_code
