"""What keeps a group from changing its protocol, and what clients can get wrong on the way. The way itself is in
transcripts_consumer/migration.txt and in the sessions with Kafka's coordinator."""

import struct
from typing import Any

import pytest

from headrace.coordinator.classic_group import ClassicGroup
from headrace.coordinator.consumer_group import ConsumerGroup
from headrace.coordinator.migration import read_subscription, write_assignment
from headrace.coordinator.shard_state import ShardConfig
from headrace.errors import Err
from headrace.protocol import messages as m
from headrace.protocol.api import DATA
from headrace.protocol.primitives import ProtocolError
from tests.unit.coordinator.driver import Driver, durable, subscription
from tests.unit.coordinator.sessions import make_image

IMAGE = make_image(1, {"t": (1, 4)})


def classic_group(config: ShardConfig, metadata: bytes, assignment: bytes, members: int = 1) -> Driver:
    driver = Driver(config)
    driver.run(driver.shard.on_metadata(IMAGE, 0))
    for n in range(members):
        request = m.JoinGroupRequest(
            group_id="g",
            session_timeout_ms=10_000,
            rebalance_timeout_ms=60_000,
            protocol_type="consumer",
            protocols=[m.JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=metadata)],
        )
        driver.ask(f"c{n}", "join_group", request, 3)
    driver.elapse(3 * config.group_initial_rebalance_delay_ms)
    joined = dict(driver.answers)
    kind = m.SyncGroupRequest
    for response in joined.values():
        driver.ask(
            "x",
            "sync_group",
            kind(
                group_id="g",
                generation_id=1,
                member_id=response.member_id,
                protocol_type="consumer",
                protocol_name="range",
                assignments=[
                    kind.SyncGroupRequestAssignment(member_id=other.member_id, assignment=assignment)
                    for other in response.members
                ],
            ),
            5,
        )
    driver.answers.clear()
    return driver


def join(driver: Driver, name: str = "new") -> Any:
    request = m.ConsumerGroupHeartbeatRequest(
        group_id="g",
        member_id=name,
        rebalance_timeout_ms=60_000,
        subscribed_topic_names=["t"],
        topic_partitions=[],
    )
    return driver.ask(name, "consumer_group_heartbeat", request, 1).response


def assignment(*partitions: int, user_data: bytes | None = None) -> bytes:
    kind = m.ConsumerProtocolAssignment
    message = kind(
        assigned_partitions=[kind.TopicPartition(topic="t", partitions=list(partitions))], user_data=user_data
    )
    return struct.pack(">h", 1) + DATA["ConsumerProtocolAssignment"].encode(message, 1)


def config(**changes: Any) -> ShardConfig:
    return ShardConfig(consumer_assignment_interval_ms=0, **changes)


def test_members_keep_what_they_have() -> None:
    driver = classic_group(config(), subscription("t"), assignment(0, 1, 2, 3))
    answer = join(driver)
    group = driver.shard.state.groups.get("g")
    assert isinstance(group, ConsumerGroup)
    assert not answer.error_code and not answer.assignment.topic_partitions, "all is still with the other"
    old = next(member for member in group.members.live.values() if member.classic is not None)
    assert set(old.assigned[IMAGE.topic_ids["t"]]) == {0, 1, 2, 3}
    assert durable(driver.reload()) == durable(driver.shard)


@pytest.mark.parametrize(
    ("changes", "metadata", "assigned", "why"),
    [
        ({"consumer_migration_policy": "downgrade"}, subscription("t"), assignment(0), "disabled"),
        ({"consumer_migration_policy": "disabled"}, subscription("t"), assignment(0), "disabled"),
        ({"consumer_max_size": 1}, subscription("t"), assignment(0), "more members"),
        ({}, subscription("t"), assignment(0, user_data=b"mine"), "data of its own"),
        ({}, subscription("t"), b"\x00", "malformed"),
        ({}, subscription("t"), b"\xff\xff", "malformed"),
        ({}, subscription("t"), b"\x00\x01\x7f\xff\xff\xff", "malformed"),
        ({}, b"\x00\x01\x7f\xff\xff\xff", assignment(0), "malformed"),
        ({}, b"", assignment(0), "malformed"),
        ({"batch_bytes_max": 400}, subscription("t"), b"", "one batch"),
    ],
)
def test_a_group_that_cannot_be_upgraded_stays_as_it_is(
    changes: dict[str, Any], metadata: bytes, assigned: bytes, why: str
) -> None:
    driver = classic_group(config(**changes), metadata, assigned, members=2)
    written = len(driver.log)
    answer = join(driver)
    assert answer.error_code == Err.GROUP_ID_NOT_FOUND
    assert why in answer.error_message
    assert isinstance(driver.shard.state.groups.get("g"), ClassicGroup)
    assert len(driver.log) == written


def test_waiting_members_are_told_to_join_again() -> None:
    driver = classic_group(config(), subscription("t"), assignment(0))
    group = driver.shard.classic.find("g")
    assert group is not None
    (member_id,) = group.members
    request = m.JoinGroupRequest(
        group_id="g", session_timeout_ms=10_000, rebalance_timeout_ms=60_000, protocol_type="consumer",
        protocols=[m.JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=subscription("t"))],
    )  # fmt: skip
    driver.ask("waiting", "join_group", request, 3)
    assert not driver.answers
    join(driver)
    answers = dict(driver.answers)
    assert answers["waiting"].error_code == Err.REBALANCE_IN_PROGRESS
    assert member_id in driver.shard.state.groups.live["g"].members.live  # type: ignore[attr-defined]


@pytest.mark.parametrize("metadata", [b"", b"\x00", b"\xff\xff\x00\x00\x00\x00", b"\x00\x01\x00\x00"])
def test_malformed_subscriptions_are_named(metadata: bytes) -> None:
    with pytest.raises(ProtocolError):
        read_subscription(metadata)
    driver = Driver(config())
    driver.run(driver.shard.on_metadata(IMAGE, 0))
    join(driver)
    request = m.JoinGroupRequest(
        group_id="g", member_id="old", session_timeout_ms=10_000, rebalance_timeout_ms=60_000, protocol_type="consumer",
        protocols=[m.JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=metadata)],
    )  # fmt: skip
    outcome = driver.ask("old", "join_group", request, 9)
    assert outcome.response.error_code == Err.UNKNOWN_SERVER_ERROR
    assert not outcome.records


def test_a_newer_version_is_read_as_ours() -> None:
    newer = struct.pack(">h", 9) + DATA["ConsumerProtocolSubscription"].encode(
        m.ConsumerProtocolSubscription(topics=["t"]), 3
    )
    assert read_subscription(newer + b"more").topics == ["t"]
    assert write_assignment({}, IMAGE, newer)[:2] == b"\x00\x03"


def test_describe_shows_only_what_is_committed() -> None:
    driver = Driver(config())
    driver.run(driver.shard.on_metadata(IMAGE, 0))
    driver.hold = True
    join(driver, "a")
    assert driver.shard.consumer_group_describe(["g"])[0].error_code == Err.GROUP_ID_NOT_FOUND
    driver.commit(release=True)
    join(driver, "b")
    (shown,) = driver.shard.consumer_group_describe(["g"])
    assert (shown.group_state, shown.group_epoch, [member.member_id for member in shown.members]) == (
        "Stable",
        2,
        ["a"],
    )
    assert [g.group_state for g in driver.shard.list_groups([], [])] == ["Stable"]
    driver.commit(release=True)
    (shown,) = driver.shard.consumer_group_describe(["g"])
    assert (shown.group_state, shown.group_epoch, len(shown.members)) == ("Reconciling", 3, 2)


def test_the_oldest_clients_have_their_session_to_join_again() -> None:
    """JoinGroup v0 knows one timeout for both: a member that has just heard of a rebalance is not late yet."""
    driver = Driver(ShardConfig(consumer_assignment_interval_ms=0))
    driver.run(driver.shard.on_metadata(IMAGE, 0))
    join(driver, "first")
    request = m.JoinGroupRequest(
        group_id="g",
        session_timeout_ms=10_000,
        protocol_type="consumer",
        protocols=[m.JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=subscription("t"))],
    )
    joined = driver.ask("old", "join_group", request, 0).response
    assert joined.error_code == Err.NONE
    join(driver, "third")
    beat = m.HeartbeatRequest(group_id="g", generation_id=joined.generation_id, member_id=joined.member_id)
    assert driver.ask("old", "heartbeat", beat, 0).response.error_code == Err.REBALANCE_IN_PROGRESS
    driver.elapse(5_000)
    assert driver.ask("old", "heartbeat", beat, 0).response.error_code == Err.REBALANCE_IN_PROGRESS
    driver.elapse(6_000)
    assert driver.ask("old", "heartbeat", beat, 0).response.error_code == Err.UNKNOWN_MEMBER_ID
