"""Settings: DescribeConfigs, AlterConfigs, IncrementalAlterConfigs, ListConfigResources."""

from typing import Any

from tests.compat.cases import Talk, case
from tests.compat.cases.topics import BAD_CONFIGS

TOPIC, BROKER, LOGGER, METRICS, GROUP = 2, 4, 8, 16, 32
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3
# Read by tools, or likely to be set by people. What a broker does not have, Headrace need not invent.
BROKER_KEYS = [
    "log.retention.ms", "log.retention.hours", "log.segment.bytes", "log.cleanup.policy", "message.max.bytes",
    "num.partitions", "default.replication.factor", "min.insync.replicas", "auto.create.topics.enable",
    "log.cleaner.threads", "compression.type", "socket.request.max.bytes", "unclean.leader.election.enable",
    "log.message.timestamp.type", "max.connections", "max.connections.per.ip", "connections.max.idle.ms",
    "log.flush.interval.messages", "offsets.topic.num.partitions",
]  # fmt: skip


def resource(name: str, kind: int = TOPIC, keys: list[str] | None = None) -> dict[str, Any]:
    return {"resource_type": kind, "resource_name": name, "configuration_keys": keys}


def describe(t: Talk, *resources: dict[str, Any], **fields: Any) -> Any:
    return t.ask("DescribeConfigs", resources=list(resources), **fields)


@case("DescribeConfigs")
def topic_settings(t: Talk) -> None:
    topic = t.topic(segment_bytes="2097152", cleanup_policy="compact")
    describe(t, resource(topic))
    describe(t, resource(topic), include_synonyms=True)


@case("DescribeConfigs", versions=[3, 4])
def documented(t: Talk) -> None:
    describe(t, resource(t.topic(), keys=["retention.ms", "cleanup.policy"]), include_documentation=True)


@case("DescribeConfigs")
def some_topic_settings(t: Talk) -> None:
    topic = t.topic()
    describe(t, resource(topic, keys=["retention.ms", "no.such.config", "retention.ms"]))
    describe(t, resource(topic, keys=[]))
    describe(t, resource(topic, keys=["flush.ms"]), resource(t.topic("b"), keys=["flush.ms"]))
    describe(t, resource(topic, keys=["flush.ms"]), resource(topic, keys=["flush.messages"]))


@case("DescribeConfigs")
def broker_settings(t: Talk) -> None:
    describe(t, resource("1", BROKER, BROKER_KEYS), include_synonyms=True)
    describe(t, resource("", BROKER, BROKER_KEYS))


@case("DescribeConfigs")
def settings_of_unknown_things(t: Talk) -> None:
    for kind, name in (
        (TOPIC, t.name("nowhere")), (TOPIC, ""), (TOPIC, "a b"), (BROKER, "99"), (BROKER, "one"), (0, "x"), (99, "x"),
        (METRICS, "none"), (GROUP, "none"), (LOGGER, "99"),
    ):  # fmt: skip
        t.note(f"type {kind} {t.names.get(name, name)}")
        describe(t, resource(name, kind, ["retention.ms"]))
    describe(t)


# The old way: all at once


def replace(t: Talk, *settings: tuple[str, int, dict[str, str | None]], validate_only: bool = False) -> None:
    resources = [
        {"resource_type": kind, "resource_name": name, "configs": [{"name": k, "value": v} for k, v in c.items()]}
        for name, kind, c in settings
    ]
    t.ask("AlterConfigs", resources=resources, validate_only=validate_only)


def show(t: Talk, topic: str, *keys: str) -> None:
    t.settle()
    t.ask("DescribeConfigs", 4, resources=[resource(topic, keys=list(keys))])


@case("AlterConfigs")
def settings_replaced(t: Talk) -> None:
    topic = t.topic(flush_ms="5")
    replace(t, (topic, TOPIC, {"segment.ms": "1000000"}))
    show(t, topic, "flush.ms", "segment.ms", "retention.ms")
    replace(t, (topic, TOPIC, {"segment.ms": "5000000"}), validate_only=True)
    show(t, topic, "segment.ms")
    replace(t, (topic, TOPIC, {}))
    show(t, topic, "segment.ms")


@case("AlterConfigs")
def replacements_refused(t: Talk) -> None:
    topic = t.topic()
    for name, value in BAD_CONFIGS.items():
        t.note(f"{name} = {value}")
        replace(t, (topic, TOPIC, {name: value}), validate_only=True)
    for name, kind in ((t.name("nowhere"), TOPIC), ("a b", TOPIC), ("99", BROKER), ("x", 0), ("x", 77)):
        replace(t, (name, kind, {}))
    # The same resource twice is left out: Apache Kafka 4.3.1 never answers it.
    t.ask(resources=[{"resource_type": TOPIC, "resource_name": topic, "configs": [{"name": "flush.ms", "value": "1"}] * 2}])
    t.ask(resources=[])


# One by one


def alter(t: Talk, name: str, *changes: tuple[int, str, str | None], kind: int = TOPIC, validate_only: bool = False) -> None:
    configs = [{"config_operation": op, "name": key, "value": value} for op, key, value in changes]
    resources = [{"resource_type": kind, "resource_name": name, "configs": configs}]
    t.ask("IncrementalAlterConfigs", resources=resources, validate_only=validate_only)


@case("IncrementalAlterConfigs")
def set_and_deleted(t: Talk) -> None:
    topic = t.topic(flush_ms="5")
    alter(t, topic, (SET, "segment.ms", "1000000"), (DELETE, "flush.ms", None))
    show(t, topic, "segment.ms", "flush.ms")
    alter(t, topic, (SET, "segment.ms", "2000000"), validate_only=True)
    show(t, topic, "segment.ms")
    alter(t, topic, (DELETE, "flush.messages", "ignored"))
    alter(t, topic)


@case("IncrementalAlterConfigs")
def lists(t: Talk) -> None:
    topic = t.topic()
    for op, value in (
        (APPEND, "compact"), (APPEND, "compact"), (SUBTRACT, "delete"), (SUBTRACT, "delete"), (APPEND, "burn"),
        (SUBTRACT, "compact"), (APPEND, "delete,compact"), (SUBTRACT, "delete,compact"), (SET, "delete"), (APPEND, ""),
    ):  # fmt: skip
        t.note(f"{'append' if op == APPEND else 'subtract' if op == SUBTRACT else 'set'} {value!r}")
        alter(t, topic, (op, "cleanup.policy", value))
        show(t, topic, "cleanup.policy")


@case("IncrementalAlterConfigs")
def changes_refused(t: Talk) -> None:
    topic = t.topic()
    for name, value in BAD_CONFIGS.items():
        t.note(f"{name} = {value}")
        alter(t, topic, (SET, name, value), validate_only=True)
    t.note("append to what is no list")
    alter(t, topic, (APPEND, "retention.ms", "5"))
    alter(t, topic, (SUBTRACT, "no.such.config", "5"))
    t.note("the same key twice")
    alter(t, topic, (SET, "flush.ms", "5"), (DELETE, "flush.ms", None))
    alter(t, topic, (SET, "flush.ms", "5"), (SET, "flush.ms", "6"))
    t.note("operations that are none")
    alter(t, topic, (4, "flush.ms", "5"))
    alter(t, topic, (-1, "flush.ms", "5"))
    t.note("nulls")
    alter(t, topic, (SET, "flush.ms", None))
    alter(t, topic, (APPEND, "cleanup.policy", None))
    alter(t, topic, (DELETE, "no.such.config", None))
    t.note("one good, one bad: nothing changes")
    alter(t, topic, (SET, "flush.ms", "77"), (SET, "retention.ms", "soon"))
    show(t, topic, "flush.ms", "cleanup.policy")


@case("IncrementalAlterConfigs")
def changes_to_unknown_things(t: Talk) -> None:
    for kind, name in ((TOPIC, t.name("nowhere")), (TOPIC, "a b"), (TOPIC, ""), (BROKER, "99"), (BROKER, "x"), (0, "x"), (77, "x")):
        t.note(f"type {kind} {t.names.get(name, name)}")
        alter(t, name, (SET, "retention.ms", "5"), kind=kind)
    topic = t.topic()
    entry = {"resource_type": TOPIC, "resource_name": topic, "configs": []}
    t.ask(resources=[entry, entry])
    t.ask(resources=[])


@case("IncrementalAlterConfigs")
def broker_changes(t: Talk) -> None:
    for name in ("1", ""):
        t.note(f"broker {name!r}")
        alter(t, name, (SET, "log.cleaner.threads", "2"), kind=BROKER)
        t.settle()
        t.ask("DescribeConfigs", 4, resources=[resource("1", BROKER, ["log.cleaner.threads"])], include_synonyms=True)
        alter(t, name, (DELETE, "log.cleaner.threads", None), kind=BROKER)
        for key, value in (("num.partitions", "3"), ("node.id", "7"), ("no.such.config", "1"), ("log.cleaner.threads", "x")):
            t.note(f"{key} = {value}")
            alter(t, name, (SET, key, value), kind=BROKER, validate_only=True)
    t.settle()


@case("ListConfigResources")
def listed(t: Talk) -> None:
    t.topic()
    if t.version == 0:
        t.ask()
        return
    for kinds in ([TOPIC], [BROKER], [LOGGER], [METRICS], [GROUP], [], [TOPIC, TOPIC], [77], [0]):
        t.note(f"types {kinds}")
        t.ask(resource_types=kinds, mine="" if kinds and TOPIC not in kinds else "config_resources")
