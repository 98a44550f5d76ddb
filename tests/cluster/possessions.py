"""What a cluster has besides records and offsets: options, quotas, users, and transactions that are under way."""

import time
from functools import partial
from typing import Any

import confluent_kafka as confluent

from headrace.client.admin.admin import Admin, Resource
from headrace.client.admin.transactions import Transactions
from headrace.errors import Err
from headrace.metadata.records import Record
from headrace.protocol import messages as m
from headrace.quorum.folder import BOOTSTRAP, bootstrap_records
from headrace.quorum.snapshots import encode_snapshot
from headrace.testing.cluster import TestCluster
from tests.broker.support import produce_fields
from tests.compat.raw import Connection, Rec, batch

LEDGER, LONE = "ledger", "lone"
"""Where transactions write: on all nodes, and on `LONE_NODE` only."""
LONE_NODE = 3
TIMEOUT_MS = 900_000
TRANSACTIONAL = 0x10
QUOTAS: dict[tuple[tuple[str, str | None], ...], dict[str, float]] = {
    (("client-id", "app/1"), ("user", "alice")): {"producer_byte_rate": 12_345.0},
    (("user", None),): {"request_percentage": 50.0},
}
OPTIONS = {
    (Resource.BROKER, ""): {"log.cleaner.threads": "2"},
    (Resource.BROKER, "2"): {"log.retention.ms": "7200000"},
}
SCRAM: Record = (
    m.UserScramCredentialRecord(
        name="alice", mechanism=1, salt=b"salt", stored_key=b"stored", server_key=b"server", iterations=4096
    ),
    0,
)  # fmt: skip


def add_user(cluster: TestCluster) -> None:
    """As `kafka-storage format --add-scram` does, before the cluster's first start."""
    records = b"".join(encode_snapshot([*bootstrap_records(), SCRAM], epoch=0, now_ms=1, timestamp_ms=0))
    for node in cluster.nodes.values():
        (node.data / BOOTSTRAP).write_bytes(records)


def add_limits(cluster: TestCluster) -> None:
    """Quotas, and options of brokers."""
    for at, options in OPTIONS.items():
        cluster.ask(partial(Admin.alter_configs, resource=at[0], name=at[1], set=options))
    entries = [
        {
            "entity": [{"entity_type": kind, "entity_name": name} for kind, name in entity],
            "ops": [{"key": key, "value": value} for key, value in values.items()],
        }
        for entity, values in QUOTAS.items()
    ]
    with connection(cluster) as wire:
        answer = wire.ask("AlterClientQuotas", 1, {"entries": entries})
    assert [entry.error_code for entry in answer.entries] == [0] * len(QUOTAS), answer


def assert_has_all(cluster: TestCluster) -> None:
    for at, options in OPTIONS.items():
        found = cluster.ask(partial(Admin.describe_configs, resource=at[0], name=at[1], names=list(options)))
        assert {option.name: option.value for option in found} == options
    with connection(cluster) as wire:
        quotas = wire.ask("DescribeClientQuotas", 1, {"components": [], "strict": False})
        users = wire.ask("DescribeUserScramCredentials", 0, {"users": None})
    assert {
        tuple(sorted((part.entity_type, part.entity_name) for part in entry.entity)): {
            value.key: value.value for value in entry.values
        }
        for entry in quotas.entries
    } == QUOTAS
    assert [(one.user, [c.iterations for c in one.credential_infos]) for one in users.results] == [("alice", [4096])]


def connection(cluster: TestCluster, node_id: int | None = None) -> Connection:
    node = cluster[node_id] if node_id is not None else cluster.running[0]
    return Connection(node.node.port)


def state_of(cluster: TestCluster, transactional_id: str) -> str:
    found = cluster.ask(lambda admin: Transactions(admin).describe(transactional_id), timeout_s=30.0)
    return str(found.state)


def committed_values(bootstrap: str, topic: str) -> list[bytes]:
    """What a reader of committed records is given, up to the last stable offset."""
    consumer = confluent.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "auditor", "isolation.level": "read_committed",
         "enable.partition.eof": True, "enable.auto.commit": False}
    )  # fmt: skip
    consumer.assign([confluent.TopicPartition(topic, 0, 0)])
    found: list[bytes] = []
    try:
        while True:
            message = consumer.poll(30)
            assert message is not None, found
            if (error := message.error()) is None:
                found.append(message.value())
            elif error.code() == confluent.KafkaError._PARTITION_EOF:
                return found
    finally:
        consumer.close()


class OpenTransaction:
    """Of a producer that lives on while the cluster is stopped, moved and started, and knows nothing of it."""

    def __init__(self, bootstrap: str, transactional_id: str = "open") -> None:
        self._producer = confluent.Producer(
            {"bootstrap.servers": bootstrap, "transactional.id": transactional_id,
             "transaction.timeout.ms": TIMEOUT_MS, "log_level": 0}
        )  # fmt: skip
        self._producer.init_transactions(60)
        self._producer.begin_transaction()

    def write(self, topic: str, value: bytes) -> None:
        self._producer.produce(topic, value, partition=0)
        assert self._producer.flush(60) == 0

    def commit(self) -> None:
        self._producer.commit_transaction(60)


class PreparedTransaction:
    """Of two phases (KIP-939): it waits for who decides, however long."""

    id = "prepared"

    def __init__(self, cluster: TestCluster) -> None:
        self._owner = self._init(cluster, keep=False)

    def write(self, cluster: TestCluster, value: bytes) -> None:
        who = self._owner.producer_id, self._owner.producer_epoch, 0
        data = batch(Rec(value), producer=who, attributes=TRANSACTIONAL, base_timestamp=time.time_ns() // 1_000_000)
        with connection(cluster, cluster.leader_of(LEDGER)) as wire:
            answer = wire.ask("Produce", 12, produce_fields(LEDGER, 0, data) | {"transactional_id": self.id})
        assert answer.responses[0].partition_responses[0].error_code == 0, answer

    def decide(self, cluster: TestCluster) -> None:
        """By one that comes back, finds it, and commits."""
        back = self._init(cluster, keep=True)
        assert (back.ongoing_txn_producer_id, back.ongoing_txn_producer_epoch) == self._owner_now()
        self._ask(
            cluster, "EndTxn", 5, transactional_id=self.id, producer_id=back.producer_id,
            producer_epoch=back.producer_epoch, committed=True,
        )  # fmt: skip

    def _owner_now(self) -> tuple[int, int]:
        return self._owner.producer_id, self._owner.producer_epoch

    def _init(self, cluster: TestCluster, *, keep: bool) -> Any:
        return self._ask(
            cluster, "InitProducerId", 6, transactional_id=self.id, transaction_timeout_ms=1_000, enable2_pc=True,
            keep_prepared_txn=keep,
        )  # fmt: skip

    def _ask(self, cluster: TestCluster, api: str, version: int, **fields: Any) -> Any:
        """The coordinator, once it is there."""
        answers: list[Any] = []

        def answered() -> bool:
            with connection(cluster) as wire:
                found = wire.ask("FindCoordinator", 4, {"key_type": 1, "coordinator_keys": [self.id]}).coordinators[0]
            if found.error_code != 0:
                return False
            with connection(cluster, found.node_id) as wire:
                answers.append(wire.ask(api, version, fields))
            return answers[-1].error_code not in (Err.NOT_COORDINATOR, Err.COORDINATOR_LOAD_IN_PROGRESS)

        cluster.wait(f"an answer to {api}", answered)
        assert answers[-1].error_code == 0, answers[-1]
        return answers[-1]
