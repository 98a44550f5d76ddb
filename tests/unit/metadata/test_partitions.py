"""Elections and ISR changes, against 400 decisions of Apache Kafka 4.3.1's own PartitionChangeBuilder, and where it
differs."""

import json
from pathlib import Path
from typing import Any

import pytest

from headrace.metadata.delta import merge
from headrace.metadata.image import NO_LEADER, RECOVERING, Partition
from headrace.metadata.partitions import Election, Rules, Wanted, change
from headrace.protocol import messages as m
from headrace.storage.checkpoints import decode_uuid

GOLDEN = json.loads((Path(__file__).parent / "golden/partition-changes-kafka-4.3.1.json").read_text())
TOPIC_ID = bytes(7) + b"\x01" + bytes(7) + b"\x02"


def directory(broker_id: int) -> bytes:
    return (1000 + broker_id).to_bytes(8, "big") + (7).to_bytes(8, "big")


def expected(record: dict[str, Any] | None) -> Any:
    if record is None:
        return None
    names = {
        "isr": "isr",
        "leader": "leader",
        "replicas": "replicas",
        "removingReplicas": "removing_replicas",
        "addingReplicas": "adding_replicas",
        "leaderRecoveryState": "leader_recovery_state",
        "eligibleLeaderReplicas": "eligible_leader_replicas",
        "lastKnownElr": "last_known_elr",
    }
    fields = {names[name]: value for name, value in record.items() if name in names}
    if "directories" in record:
        fields["directories"] = [decode_uuid(text) for text in record["directories"]]
    return m.PartitionChangeRecord(topic_id=TOPIC_ID, partition_id=0, **fields)


@pytest.mark.parametrize("case", GOLDEN, ids=lambda case: str(GOLDEN.index(case)))
def test_change_equals_kafkas(case: dict[str, Any]) -> None:
    partition = Partition(
        replicas=tuple(case["replicas"]),
        isr=tuple(case["isr"]),
        leader=case["leader"],
        leader_epoch=5,
        partition_epoch=9,
        directories=tuple(directory(r) for r in case["replicas"]),
        elr=tuple(case["elr"]),
        last_known_elr=tuple(case["last_known_elr"]),
        removing=tuple(case["removing"]),
        adding=tuple(case["adding"]),
        recovery_state=case["recovery_state"],
    )
    wanted = Wanted.of(partition)
    wanted.isr = list(case["target_isr"])
    wanted.unclean_shutdown = tuple(case["unclean_shutdown"] or ())
    rules = Rules(
        metadata_version=30,
        elr_enabled=case["elr_enabled"],
        min_isr=case["min_isr"],
        acceptable=case["alive"].__contains__,
        default_directory=lambda broker_id: bytes(15) + b"\x01",
    )
    got = change(partition, TOPIC_ID, 0, wanted, rules, Election[case["election"]])
    if case["record"] is None:
        assert got is None
        return
    assert got is not None
    record, version = got
    assert version == 2
    theirs, merged = expected(case["record"]), merge(partition, record)
    eligible, staying = merge(partition, theirs).elr, set(partition.replicas) & set(merged.replicas)
    if not staying.issuperset(eligible):
        # Kafka goes on counting on those who were moved away. Should they come back, it would be with empty logs.
        assert merged.elr == tuple(r for r in eligible if r in staying)
        theirs.eligible_leader_replicas = record.eligible_leader_replicas
    if record.last_known_elr and theirs.last_known_elr is None:
        # Kafka remembers nobody, and nobody would lead again of itself.
        assert (partition.leader, merged.isr, merged.elr) == (NO_LEADER, (), ())
        theirs.last_known_elr = record.last_known_elr
    assert record == theirs
    assert merged.partition_epoch == 10
    assert merged.leader_epoch == (5 if record.leader == -2 else 6)


def test_last_replica_lost_uncleanly_is_not_elected_cleanly() -> None:
    """With eligible leader replicas the loss is reported as a recovery, not hidden."""
    partition = Partition((1,), (), NO_LEADER, 3, 3, (directory(1),), elr=(), last_known_elr=(1,))
    rules = Rules(30, True, 1, lambda r: True, lambda r: bytes(16))
    got = change(partition, TOPIC_ID, 0, Wanted.of(partition), rules)
    assert got is not None
    assert got[0].leader == 1 and got[0].leader_recovery_state == RECOVERING


def without_leader(isr: tuple[int, ...], adding: tuple[int, ...] = ()) -> Partition:
    """As it is left by a controller that counts no eligible replicas."""
    return Partition((1, 2, *adding), isr, NO_LEADER, 3, 3, tuple(map(directory, (1, 2, *adding))), adding=adding)


def test_who_was_last_in_sync_is_remembered_where_nobody_led() -> None:
    partition = without_leader(isr=(2,))
    wanted = Wanted.of(partition)
    wanted.isr, wanted.unclean_shutdown = [], (2,)
    got = change(partition, TOPIC_ID, 0, wanted, Rules(30, True, 1, lambda r: False, lambda r: bytes(16)))
    assert got is not None
    merged = merge(partition, got[0])
    assert (merged.isr, merged.elr, merged.last_known_elr) == ((), (), (2,))
    for counts_eligible in (True, False):  # it may be switched off meanwhile
        rules = Rules(30, counts_eligible, 1, lambda r: True, lambda r: bytes(16))
        elected = change(merged, TOPIC_ID, 0, Wanted.of(merged), rules)
        assert elected is not None
        assert (elected[0].leader, elected[0].leader_recovery_state) == (2, RECOVERING)


def test_nobody_is_not_remembered_as_a_leader() -> None:
    partition = without_leader(isr=(2,), adding=(3,))
    wanted = Wanted.of(partition)
    wanted.replicas, wanted.adding = [1, 2], []
    got = change(partition, TOPIC_ID, 0, wanted, Rules(30, True, 1, lambda r: False, lambda r: bytes(16)))
    assert got is not None
    assert got[0].replicas == [1, 2] and got[0].last_known_elr is None
