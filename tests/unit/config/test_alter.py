"""Altering configuration where the replayed Kafka answers do not reach."""

import pytest

from headrace.config import BrokerConfig
from headrace.config.alter import (
    Change,
    Op,
    Resource,
    alter_incrementally,
    alter_loggers,
    check_broker_change,
    check_elr,
    replace_all,
)
from headrace.config.describe import ConfigSource, describe_loggers
from headrace.errors import Err, KafkaError

BROKER = BrokerConfig.load()


def code(error: pytest.ExceptionInfo[KafkaError]) -> Err:
    return error.value.error


def test_only_what_changes_is_recorded_for_a_topic() -> None:
    altered = alter_incrementally(
        Resource.TOPIC,
        "t",
        [
            ("retention.ms", Op.SET, "5"),
            ("segment.ms", Op.SET, "6"),
            ("flush.ms", Op.DELETE, None),
            ("nope", Op.DELETE, None),
        ],
        {"retention.ms": "5", "flush.ms": "7", "max.message.bytes": "8"},
        BROKER,
    )
    assert altered.changes == {"segment.ms": "6", "flush.ms": None}
    assert altered.overrides == {"retention.ms": "5", "segment.ms": "6", "max.message.bytes": "8"}


def test_everything_is_recorded_for_a_broker() -> None:
    current = {"message.max.bytes": "5"}
    altered = alter_incrementally(Resource.BROKER, "1", [("message.max.bytes", Op.SET, "5")], current, BROKER)
    assert altered.changes == {"message.max.bytes": "5"}


def test_replacing_removes_what_is_not_named() -> None:
    current = {"retention.ms": "5", "segment.ms": "6"}
    altered = replace_all(Resource.TOPIC, "t", [("retention.ms", "5"), ("flush.ms", "7")], current, BROKER)
    assert altered.overrides == {"retention.ms": "5", "flush.ms": "7"}
    assert altered.changes == {"flush.ms": "7", "segment.ms": None}


@pytest.mark.parametrize(
    ("configs", "error"),
    [
        ([("retention.ms", "1"), ("retention.ms", "2")], Err.INVALID_REQUEST),
        ([("retention.ms", None)], Err.INVALID_REQUEST),
        ([("retention.ms", "x")], Err.INVALID_CONFIG),
    ],
)
def test_replacing_is_refused(configs: list[tuple[str, str | None]], error: Err) -> None:
    with pytest.raises(KafkaError) as caught:
        replace_all(Resource.TOPIC, "t", configs, {}, BROKER)
    assert code(caught) is error


@pytest.mark.parametrize("resource", [Resource.BROKER_LOGGER, Resource.UNKNOWN, 77])
def test_resources_without_recorded_configuration(resource: int) -> None:
    with pytest.raises(KafkaError) as caught:
        replace_all(resource, "1", [], {}, BROKER)
    assert code(caught) is Err.INVALID_REQUEST


def test_unknown_operation() -> None:
    with pytest.raises(KafkaError) as caught:
        alter_incrementally(Resource.TOPIC, "t", [("cleanup.policy", 9, "x")], {}, BROKER)
    assert code(caught) is Err.INVALID_REQUEST


def test_a_failed_alteration_leaves_the_current_overrides_alone() -> None:
    current = {"retention.ms": "5"}
    with pytest.raises(KafkaError):
        alter_incrementally(
            Resource.TOPIC, "t", [("segment.ms", Op.SET, "6"), ("flush.ms", Op.SET, "x")], current, BROKER
        )
    assert current == {"retention.ms": "5"}


def test_list_items_are_appended_once_and_subtracted() -> None:
    key = "leader.replication.throttled.replicas"
    changes: list[Change] = [(key, Op.APPEND, "0:1,1:2,0:1")]
    altered = alter_incrementally(Resource.TOPIC, "t", changes, {key: "0:1"}, BROKER)
    assert altered.overrides == {key: "0:1,1:2"}
    changes = [(key, Op.SUBTRACT, "0:1,9:9")]
    assert alter_incrementally(Resource.TOPIC, "t", changes, altered.overrides, BROKER).overrides == {key: "1:2"}


def test_eligible_leader_replicas_guard_min_insync() -> None:
    with pytest.raises(KafkaError, match="cannot be removed"):
        check_elr("", {"min.insync.replicas": None})
    with pytest.raises(KafkaError, match="for one broker"):
        check_elr("1", {"min.insync.replicas": "2"})
    check_elr("", {"min.insync.replicas": "2"})


@pytest.mark.parametrize("name", ["2", "x", "-1"])
def test_a_broker_answers_only_for_itself(name: str) -> None:
    with pytest.raises(KafkaError) as caught:
        check_broker_change(name, {}, BROKER)
    assert code(caught) is Err.INVALID_REQUEST


def test_the_controller_refuses_names_that_are_no_ids() -> None:
    for name in ("x", "-1"):
        with pytest.raises(KafkaError) as caught:
            alter_incrementally(Resource.BROKER, name, [], {}, BROKER)
        assert code(caught) is Err.INVALID_REQUEST


def test_pools_change_by_half_or_double_at_most() -> None:
    check_broker_change("1", {"num.io.threads": "16"}, BROKER)
    check_broker_change("1", {"num.io.threads": "4"}, BROKER)
    for threads in ("17", "3"):
        with pytest.raises(KafkaError, match=r"num\.io\.threads"):
            check_broker_change("1", {"num.io.threads": threads}, BROKER)


def test_session_must_outlast_heartbeat() -> None:
    broker = BrokerConfig.load({"group.consumer.max.heartbeat.interval.ms": "60000"})
    with pytest.raises(KafkaError, match=r"must be above consumer.heartbeat.interval.ms"):
        alter_incrementally(Resource.GROUP, "g", [("consumer.heartbeat.interval.ms", Op.SET, "46000")], {}, broker)


def test_loggers() -> None:
    def known(name: str) -> bool:
        return name in ("root", "headrace")

    assert alter_loggers([("root", Op.SET, "DEBUG"), ("headrace", Op.DELETE, None)], known) == {
        "root": "DEBUG",
        "headrace": None,
    }
    for level in ("LOUD", "debug", ""):
        with pytest.raises(KafkaError, match="not a level") as caught:
            alter_loggers([("root", Op.SET, level)], known)
        assert code(caught) is Err.INVALID_CONFIG
    with pytest.raises(KafkaError, match="not an operation"):
        alter_loggers([("root", 9, "INFO")], known)


def test_loggers_are_described() -> None:
    (entry,) = describe_loggers({"root": "INFO", "headrace": "DEBUG"}, ["root"])
    assert (entry.name, entry.value, entry.source) == ("root", "INFO", ConfigSource.DYNAMIC_BROKER_LOGGER)
    assert not entry.is_default
