"""Creating, altering and describing configuration: the answers of an Apache Kafka 4.3.1 broker, replayed.

`data/kafka_config_answers.json` holds what a real broker answered, in order, after starting with `static`.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from headrace.config import BrokerConfig
from headrace.config.alter import (
    Op,
    Resource,
    alter_incrementally,
    alter_loggers,
    check_broker_change,
    check_elr,
    validate,
)
from headrace.config.broker import HEADRACE_DEFAULTS, Source
from headrace.config.describe import (
    Entry,
    describe_broker,
    describe_client_metrics,
    describe_cluster_defaults,
    describe_group,
    describe_topic,
)
from headrace.config.table import headrace_options
from headrace.errors import KafkaError

KAFKA = json.loads((Path(__file__).parents[1] / "data" / "kafka_config_answers.json").read_text())

SOURCES = {
    "DYNAMIC_TOPIC": "DYNAMIC_TOPIC_CONFIG",
    "DYNAMIC_BROKER": "DYNAMIC_BROKER_CONFIG",
    "DYNAMIC_DEFAULT_BROKER": "DYNAMIC_DEFAULT_BROKER_CONFIG",
    "STATIC_BROKER": "STATIC_BROKER_CONFIG",
    "DEFAULT": "DEFAULT_CONFIG",
    "GROUP": "DYNAMIC_GROUP_CONFIG",
    "CLIENT_METRICS": "DYNAMIC_CLIENT_METRICS_CONFIG",
}


def static_config() -> BrokerConfig:
    """Without `load`: the broker was given an option of a plugin, which Headrace would refuse at start."""
    return BrokerConfig(KAFKA["static"], dict.fromkeys(KAFKA["static"], Source.FILE))


@pytest.mark.parametrize("case", KAFKA["creates"], ids=lambda case: ",".join(f"{k}={v}" for k, v in case[0].items()))
def test_topic_options_are_taken_and_refused_as_by_kafka(case: Any) -> None:
    overrides, error = case
    try:
        validate(Resource.TOPIC, "t", overrides, {}, static_config())
        ours = "NONE"
    except KafkaError as refused:
        ours = refused.error.name
        assert any(name in (refused.message or "") for name in overrides)
    assert ours == error


class Cluster:
    """What the metadata would hold: overrides by resource."""

    def __init__(self) -> None:
        # Kafka sets this by itself when eligible leader replicas are enabled.
        self.overrides: dict[tuple[str, str], dict[str, str]] = {("BROKER", ""): {"min.insync.replicas": "1"}}

    @property
    def config(self) -> BrokerConfig:
        get = self.overrides.get
        return static_config().with_dynamic(get(("BROKER", ""), {}), get(("BROKER", "1"), {}))

    def alter(self, kind: str, name: str, ops: list[tuple[str, str, str | None]]) -> None:
        changes = [(key, int(Op[op]), value) for op, key, value in ops]
        if kind == "BROKER_LOGGER":
            alter_loggers(changes, known=lambda logger: logger == "root")
            return
        current = self.overrides.get((kind, name), {})
        altered = alter_incrementally(Resource[kind], name, changes, current, self.config)
        if kind == "BROKER":
            check_broker_change(name, altered.overrides, self.config)
            check_elr(name, altered.changes)
        self.overrides[kind, name] = altered.overrides


@pytest.fixture(scope="module")
def replayed() -> tuple[Cluster, list[tuple[Any, str, dict[str, str]]]]:
    cluster = Cluster()
    answers = []
    for case in KAFKA["alters"]:
        try:
            cluster.alter(case["type"], case["name"], case["ops"])
            error = "NONE"
        except KafkaError as refused:
            assert refused.message
            error = refused.error.name
        answers.append((case, error, dict(cluster.overrides.get((case["type"], case["name"]), {}))))
    return cluster, answers


def test_alterations_are_taken_and_refused_as_by_kafka(replayed: Any) -> None:
    # Whether a topic exists and whether its name is legal is not for this package to say.
    elsewhere = ("UNKNOWN_TOPIC_OR_PARTITION", "INVALID_TOPIC_EXCEPTION")
    wrong = [
        (case["ops"], case["error"], error)
        for case, error, _ in replayed[1]
        if case["error"] not in elsewhere and error != case["error"]
    ]
    assert wrong == []


def test_alterations_leave_what_they_leave_in_kafka(replayed: Any) -> None:
    for case, _, after in replayed[1]:
        if case["after"] is not None:
            # An unknown option's value is hidden in Kafka's answer.
            expected = {key: after.get(key) if value is None else value for key, value in case["after"].items()}
            assert after == expected, case["ops"]


def as_kafka_said(entries: list[Entry]) -> dict[str, list[Any]]:
    return {
        entry.name: [
            entry.value,
            SOURCES[entry.source.name],
            entry.read_only,
            entry.sensitive,
            entry.type.name,
            [[synonym.name, synonym.value, SOURCES[synonym.source.name]] for synonym in entry.synonyms],
        ]
        for entry in entries
    }


def test_topics_are_described_as_by_kafka(replayed: Any) -> None:
    config = replayed[0].config
    overrides = {
        "segment.bytes": "2000000",
        "cleanup.policy": "compact, delete",
        "min.cleanable.dirty.ratio": "0.10",
    }
    assert as_kafka_said(describe_topic(overrides, config)) == KAFKA["describe"]["topic c"]
    assert as_kafka_said(describe_topic({}, config)) == KAFKA["describe"]["topic plain"]


def test_groups_and_subscriptions_are_described_as_by_kafka(replayed: Any) -> None:
    cluster = replayed[0]
    group, metrics = cluster.overrides["GROUP", "g"], cluster.overrides["CLIENT_METRICS", "m"]
    assert as_kafka_said(describe_group(group, cluster.config)) == KAFKA["describe"]["group g"]
    assert as_kafka_said(describe_group({}, cluster.config)) == KAFKA["describe"]["group unknown"]
    assert as_kafka_said(describe_client_metrics(metrics, cluster.config)) == KAFKA["describe"]["client metrics m"]


def test_cluster_defaults_are_described_as_by_kafka(replayed: Any) -> None:
    assert as_kafka_said(describe_cluster_defaults(replayed[0].config)) == KAFKA["describe"]["broker default"]


def test_a_broker_is_described_as_by_kafka(replayed: Any) -> None:
    ours = as_kafka_said(describe_broker(replayed[0].config))
    kafka = KAFKA["describe"]["broker 1"]
    # Kafka forgets the static value of a slower unit once a faster one is set dynamically, yet calls it static.
    assert kafka["log.retention.hours"][0] == "168"
    assert ours.pop("log.retention.hours")[0] == "100"
    differ = {name for name in kafka if name != "log.retention.hours" and kafka[name] != ours.get(name)}
    assert differ <= set(HEADRACE_DEFAULTS)
    assert set(ours) - set(kafka) == set(headrace_options())


def test_headrace_defaults_are_described_as_defaults(replayed: Any) -> None:
    ours = as_kafka_said(describe_broker(BrokerConfig.load(), list(HEADRACE_DEFAULTS)))
    assert {name: entry[0] for name, entry in ours.items()} == HEADRACE_DEFAULTS
    assert {entry[1] for entry in ours.values()} == {"DEFAULT_CONFIG"}


def test_only_named_options_are_described(replayed: Any) -> None:
    config = replayed[0].config
    assert [entry.name for entry in describe_topic({}, config, ["segment.ms", "nope"])] == ["segment.ms"]
    assert [entry.name for entry in describe_broker(config, ["node.id"])] == ["node.id"]
    assert len(describe_topic({}, config, [])) == len(describe_topic({}, config))


def test_passwords_are_hidden(replayed: Any) -> None:
    (entry,) = describe_broker(replayed[0].config, ["ssl.key.password"])
    assert entry.sensitive
    assert "secret" not in repr(entry)
