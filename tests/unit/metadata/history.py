"""Random but valid histories of metadata records, for hypothesis."""

from typing import Any

from hypothesis import strategies as st

from headrace.metadata.records import Record
from headrace.protocol import messages as m

NAMES = st.sampled_from(["a", "b", "a.b", "a_b", "x.y", "orders", "__consumer_offsets"])
IDS = st.integers(0, 3)


def uuid(number: int) -> bytes:
    return (1000 + number).to_bytes(16, "big")


class _Writer:
    def __init__(self, draw: Any) -> None:
        self.draw = draw
        self.brokers: dict[int, int] = {}
        self.topics: dict[str, bytes] = {}
        self.partitions: dict[bytes, set[int]] = {}
        self.acls: set[bytes] = set()
        self.count = 0

    def one(self) -> Record | None:
        kind = self.draw(st.sampled_from(sorted(_STEPS)))
        self.count += 1
        found: Record | None = _STEPS[kind](self)
        return found

    def replicas(self) -> list[int]:
        return list(self.draw(st.lists(IDS, min_size=1, max_size=3, unique=True)))

    def register(self) -> Record:
        broker = self.draw(IDS)
        self.brokers[broker] = self.count
        return (
            m.RegisterBrokerRecord(
                broker_id=broker,
                broker_epoch=self.count,
                incarnation_id=uuid(self.count),
                end_points=[m.RegisterBrokerRecord.BrokerEndpoint(name="P", host="h", port=9)],
                features=[
                    m.RegisterBrokerRecord.BrokerFeature(
                        name="metadata.version", min_supported_version=7, max_supported_version=30
                    )
                ],
                rack=self.draw(st.sampled_from([None, "r1"])),
                fenced=self.draw(st.booleans()),
                log_dirs=[uuid(500 + broker)],
                cordoned_log_dirs=self.draw(st.sampled_from([None, [], [uuid(7)]])),
            ),
            4,
        )

    def registration_change(self) -> Record | None:
        if not self.brokers:
            return None
        broker = self.draw(st.sampled_from(sorted(self.brokers)))
        return (
            m.BrokerRegistrationChangeRecord(
                broker_id=broker,
                broker_epoch=self.brokers[broker],
                fenced=self.draw(st.sampled_from([-1, 0, 1])),
                in_controlled_shutdown=self.draw(st.sampled_from([0, 1])),
                log_dirs=self.draw(st.sampled_from([[], [uuid(1), uuid(2)]])),
            ),
            3,
        )

    def unregister(self) -> Record | None:
        if not self.brokers:
            return None
        broker = self.draw(st.sampled_from(sorted(self.brokers)))
        return m.UnregisterBrokerRecord(broker_id=broker, broker_epoch=self.brokers.pop(broker)), 0

    def controller(self) -> Record:
        return m.RegisterControllerRecord(controller_id=self.draw(IDS), incarnation_id=uuid(self.count)), 0

    def topic(self) -> Record | None:
        name = self.draw(NAMES)
        if name in self.topics:
            return None
        topic_id = uuid(self.count)
        self.topics[name] = topic_id
        self.partitions[topic_id] = set()
        return m.TopicRecord(name=name, topic_id=topic_id), 0

    def remove_topic(self) -> Record | None:
        if not self.topics:
            return None
        topic_id = self.topics.pop(self.draw(st.sampled_from(sorted(self.topics))))
        del self.partitions[topic_id]
        return m.RemoveTopicRecord(topic_id=topic_id), 0

    def partition(self) -> Record | None:
        if not self.topics:
            return None
        topic_id = self.topics[self.draw(st.sampled_from(sorted(self.topics)))]
        number = self.draw(st.integers(0, 3))
        self.partitions[topic_id].add(number)
        replicas = self.replicas()
        return (
            m.PartitionRecord(
                partition_id=number,
                topic_id=topic_id,
                replicas=replicas,
                isr=replicas[:1],
                leader=self.draw(st.sampled_from([-1, replicas[0]])),
                leader_epoch=self.draw(st.integers(0, 5)),
                partition_epoch=self.draw(st.integers(0, 5)),
                directories=[uuid(500 + r) for r in replicas],
                eligible_leader_replicas=self.draw(st.sampled_from([None, replicas[1:] or None])),
                last_known_elr=self.draw(st.sampled_from([None, [2]])),
                removing_replicas=self.draw(st.sampled_from([[], [1]])),
                leader_recovery_state=self.draw(st.sampled_from([0, 1])),
            ),
            2,
        )

    def partition_change(self) -> Record | None:
        candidates = sorted((t, p) for t, numbers in self.partitions.items() for p in numbers)
        if not candidates:
            return None
        topic_id, number = self.draw(st.sampled_from(candidates))
        maybe = st.one_of(st.none(), st.lists(IDS, max_size=2, unique=True))
        return (
            m.PartitionChangeRecord(
                partition_id=number,
                topic_id=topic_id,
                isr=self.draw(maybe),
                leader=self.draw(st.sampled_from([-2, -1, 0, 1])),
                eligible_leader_replicas=self.draw(maybe),
                last_known_elr=self.draw(maybe),
                adding_replicas=self.draw(maybe),
                leader_recovery_state=self.draw(st.sampled_from([-1, 0, 1])),
            ),
            2,
        )

    def clear_elr(self) -> Record:
        names = ["", *sorted(self.topics)]
        return m.ClearElrRecord(topic_name=self.draw(st.sampled_from(names))), 0

    def config(self) -> Record:
        name = self.draw(st.sampled_from(sorted(self.topics) or ["a"]))
        kind, resource = self.draw(st.sampled_from([(4, ""), (4, "1"), (2, name), (32, "group")]))
        if kind == 2 and resource not in self.topics:
            kind, resource = 16, "metrics"
        return (
            m.ConfigRecord(
                resource_type=kind,
                resource_name=resource,
                name=self.draw(st.sampled_from(["k1", "k2"])),
                value=self.draw(st.sampled_from([None, "v1", "v2"])),
            ),
            0,
        )

    def quota(self) -> Record:
        entity = self.draw(
            st.sampled_from([[("user", "alice")], [("user", None)], [("client-id", "c"), ("user", "bob")]])
        )
        return (
            m.ClientQuotaRecord(
                entity=[m.ClientQuotaRecord.EntityData(entity_type=t, entity_name=n) for t, n in entity],
                key=self.draw(st.sampled_from(["producer_byte_rate", "request_percentage"])),
                value=self.draw(st.floats(1, 1e6)),
                remove=self.draw(st.booleans()),
            ),
            0,
        )

    def feature(self) -> Record:
        name, level = self.draw(st.sampled_from([("metadata.version", 30), ("group.version", 1), ("group.version", 0)]))
        return m.FeatureLevelRecord(name=name, feature_level=level), 0

    def producer_ids(self) -> Record:
        return m.ProducerIdsRecord(broker_id=1, broker_epoch=2, next_producer_id=1000 * self.count), 0

    def acl(self) -> Record:
        self.acls.add(uuid(self.count))
        return m.AccessControlEntryRecord(id=uuid(self.count), principal="User:alice", host="*"), 0

    def remove_acl(self) -> Record | None:
        if not self.acls:
            return None
        acl = self.draw(st.sampled_from(sorted(self.acls)))
        self.acls.remove(acl)
        return m.RemoveAccessControlEntryRecord(id=acl), 0

    def scram(self) -> Record:
        if self.draw(st.booleans()):
            return m.UserScramCredentialRecord(name="alice", mechanism=1, salt=b"s", iterations=4096), 0
        return m.RemoveUserScramCredentialRecord(name="alice", mechanism=1), 0

    def token(self) -> Record:
        if self.draw(st.booleans()):
            return m.DelegationTokenRecord(owner="User:a", token_id="t", renewers=["User:b"]), 0
        return m.RemoveDelegationTokenRecord(token_id="t"), 0

    def nothing(self) -> Record:
        return m.NoOpRecord(), 0


_STEPS = {
    name: getattr(_Writer, name)
    for name in [
        "register",
        "registration_change",
        "unregister",
        "controller",
        "topic",
        "remove_topic",
        "partition",
        "partition_change",
        "clear_elr",
        "config",
        "quota",
        "feature",
        "producer_ids",
        "acl",
        "remove_acl",
        "scram",
        "token",
        "nothing",
    ]
}


@st.composite
def histories(draw: Any, max_size: int = 60) -> list[Record]:
    writer = _Writer(draw)
    records: list[Record] = [(m.FeatureLevelRecord(name="metadata.version", feature_level=30), 0)]
    for _ in range(draw(st.integers(0, max_size))):
        record = writer.one()
        if record is not None:
            records.append(record)
    return records
