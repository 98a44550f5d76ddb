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


@case("DescribeConfigs")
def groups_and_metrics(t: Talk) -> None:
    for name, kind in (("g", GROUP), ("", GROUP), ("m", METRICS), ("", METRICS)):
        t.note(f"type {kind} {name!r}")
        describe(t, resource(name, kind), include_synonyms=True)
    describe(t, resource("g", GROUP, ["consumer.session.timeout.ms", "no.such.config"]))


# The old way: all at once


def replace(
    t: Talk, *settings: tuple[str, int, dict[str, str | None]], validate_only: bool = False, version: int | None = None
) -> None:
    resources = [
        {"resource_type": kind, "resource_name": name, "configs": [{"name": k, "value": v} for k, v in c.items()]}
        for name, kind, c in settings
    ]
    t.ask("AlterConfigs", version, resources=resources, validate_only=validate_only)


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
    t.ask(
        resources=[
            {"resource_type": TOPIC, "resource_name": topic, "configs": [{"name": "flush.ms", "value": "1"}] * 2}
        ]
    )
    t.ask(resources=[])


@case("AlterConfigs")
def other_kinds_replaced(t: Talk) -> None:
    changes: tuple[tuple[str, int, dict[str, str | None]], ...] = (
        (t.name("g"), GROUP, {"consumer.session.timeout.ms": "50000"}), (t.name("g"), GROUP, {}),
        (t.name("m"), METRICS, {"interval.ms": "1000"}), (t.name("m"), METRICS, {}), ("1", LOGGER, {"root": "INFO"}),
        ("", TOPIC, {}), ("1", BROKER, {"no.such.config": "2"}), ("1", BROKER, {"node.id": "2"}),
        ("1", BROKER, {"log.cleaner.threads": None}), ("1", BROKER, {}),
    )  # fmt: skip
    for name, kind, configs in changes:
        t.note(f"type {kind} {configs}")
        replace(t, (name, kind, configs))
    for name in ("1", ""):
        wanted: tuple[dict[str, str | None], ...] = ({"log.cleaner.threads": "2"}, {})
        for configs in wanted:
            t.note(f"broker {name!r} {configs}")
            replace(t, (name, BROKER, configs))
            t.settle()
            both = [resource("1", BROKER, ["log.cleaner.threads"]), resource("", BROKER, ["log.cleaner.threads"])]
            t.ask("DescribeConfigs", 4, resources=both, include_synonyms=True)


# One by one


def alter(
    t: Talk, name: str, *changes: tuple[int, str, str | None], kind: int = TOPIC, validate_only: bool = False
) -> None:
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
    for kind, name in (
        (TOPIC, t.name("nowhere")),
        (TOPIC, "a b"),
        (TOPIC, ""),
        (BROKER, "99"),
        (BROKER, "x"),
        (0, "x"),
        (77, "x"),
    ):
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
        for key, value in (
            ("num.partitions", "3"),
            ("node.id", "7"),
            ("no.such.config", "1"),
            ("log.cleaner.threads", "x"),
        ):
            t.note(f"{key} = {value}")
            alter(t, name, (SET, key, value), kind=BROKER, validate_only=True)
    t.settle()


# Every option is only validated, so that the broker stays what it is for other cases.
BROKER_CHANGES = [
    ("log.retention.ms", "1000000"), ("log.retention.ms", "-1"), ("log.retention.ms", "-2"), ("log.retention.ms", "0"),
    ("log.retention.hours", "5"), ("log.roll.ms", "1000"), ("log.segment.bytes", "100"), ("log.segment.bytes",
     "2097152"),
    ("message.max.bytes", "-1"), ("message.max.bytes", "2000000"), ("log.cleaner.threads", "0"),
    ("log.cleaner.threads", "2"), ("log.cleaner.threads", "100"), ("log.cleaner.dedupe.buffer.size", "1"),
    ("log.cleaner.io.buffer.load.factor", "0.5"), ("max.connections", "10000"), ("max.connections.per.ip", "-1"),
    ("max.connections.per.ip", "100"), ("max.connections.per.ip.overrides", "127.0.0.1:5"),
    ("max.connections.per.ip.overrides", "bad"), ("num.io.threads", "100"), ("num.io.threads", "9"),
    ("background.threads", "11"), ("unclean.leader.election.enable", "true"), ("unclean.leader.election.enable",
     "maybe"),
    ("compression.type", "zstd"), ("compression.type", "wood"), ("min.insync.replicas", "1"),
    ("min.insync.replicas", "0"), ("log.cleanup.policy", "compact"), ("log.cleanup.policy", ""),
    ("log.message.timestamp.type", "LogAppendTime"), ("log.message.timestamp.type", "x"),
    ("leader.replication.throttled.rate", "100"), ("leader.replication.throttled.rate", "-1"),
    ("auto.create.topics.enable", "false"), ("ssl.keystore.password", "x"),
    ("listener.name.plaintext.ssl.keystore.location", "/x"), ("advertised.listeners", "PLAINTEXT://x:1"),
    ("listeners", "PLAINTEXT://x:1"), ("metric.reporters", "x.y"), ("principal.builder.class", "x"),
    ("log.flush.interval.ms", "5"), ("log.index.interval.bytes", "-1"), ("producer.id.expiration.ms", "1000"),
    ("log.message.timestamp.after.max.ms", "5"), ("log.cleaner.min.cleanable.ratio", "2"), ("log.preallocate", "true"),
    ("log.segment.delete.delay.ms", "-1"), ("group.coordinator.threads", "3"),
]  # fmt: skip


@case("IncrementalAlterConfigs")
def broker_options(t: Talk) -> None:
    for name in ("1", ""):
        for key, value in BROKER_CHANGES:
            t.note(f"broker {name!r} {key} = {value}")
            alter(t, name, (SET, key, value), kind=BROKER, validate_only=True)


@case("IncrementalAlterConfigs")
def group_changes(t: Talk) -> None:
    group, shown = t.name("g"), ["consumer.session.timeout.ms", "share.isolation.level", "share.auto.offset.reset"]
    for op, key, value in (
        (SET, "consumer.session.timeout.ms", "50000"), (SET, "consumer.heartbeat.interval.ms", "6000"),
        (SET, "consumer.session.timeout.ms", "1"), (SET, "consumer.session.timeout.ms", "x"), (SET, "no.such.config",
         "1"),
        (APPEND, "consumer.session.timeout.ms", "1"), (DELETE, "consumer.session.timeout.ms", None),
        (SET, "share.isolation.level", "read_committed"), (SET, "share.isolation.level", "bad"),
        (SET, "share.auto.offset.reset", "by_duration:PT1H"), (SET, "share.auto.offset.reset", "never"),
        (SET, "consumer.heartbeat.interval.ms", "60000"),
    ):  # fmt: skip
        t.note(f"{op} {key} {value}")
        alter(t, group, (op, key, value), kind=GROUP)
        t.settle()
        t.ask("DescribeConfigs", 4, resources=[resource(group, GROUP, shown)], include_synonyms=True)
    alter(t, "", (SET, "consumer.session.timeout.ms", "50000"), kind=GROUP)
    t.ask("ListConfigResources", 1, resource_types=[GROUP], mine="config_resources")
    replace(t, (group, GROUP, {}), version=2)
    t.settle()
    t.ask("ListConfigResources", 1, resource_types=[GROUP], mine="config_resources")


@case("IncrementalAlterConfigs")
def metrics_changes(t: Talk) -> None:
    subscription = t.name("m")
    for op, key, value in (
        (SET, "interval.ms", "1000"), (SET, "interval.ms", "99"), (SET, "interval.ms", "3600001"), (SET, "interval.ms",
         "x"),
        (SET, "metrics", "a.,b."), (APPEND, "metrics", "c."), (SUBTRACT, "metrics", "a."), (SET, "metrics", ""),
        (SET, "match", "client_id=x.*,client_software_name=y"), (SET, "match", "planet=x"), (SET, "match", "client_id"),
        (SET, "match", "client_id=("), (SET, "no.such.config", "1"), (DELETE, "metrics", None), (DELETE, "match", None),
    ):  # fmt: skip
        t.note(f"{op} {key} {value}")
        alter(t, subscription, (op, key, value), kind=METRICS)
        t.settle()
        t.ask("DescribeConfigs", 4, resources=[resource(subscription, METRICS)], include_synonyms=True)
    alter(t, "", (SET, "interval.ms", "1000"), kind=METRICS)
    t.ask("ListConfigResources", 1, resource_types=[METRICS], mine="config_resources")
    replace(t, (subscription, METRICS, {}), version=2)
    t.settle()
    t.ask("ListConfigResources", 1, resource_types=[METRICS], mine="config_resources")


@case("IncrementalAlterConfigs")
def logger_changes(t: Talk) -> None:
    for op, key, value in (
        (SET, "root", "DEBUG"), (SET, "root", "LOUD"), (SET, "root", "info"), (SET, "root", "OFF"), (SET, "root", None),
        (DELETE, "root", None), (APPEND, "root", "INFO"), (SET, "no.such.logger", "INFO"),
    ):  # fmt: skip
        t.note(f"{op} {key} {value}")
        alter(t, "1", (op, key, value), kind=LOGGER, validate_only=True)
    for name in ("99", "", "x"):
        t.note(f"broker {name!r}")
        alter(t, name, (SET, "root", "INFO"), kind=LOGGER)


@case("ListConfigResources")
def listed(t: Talk) -> None:
    t.topic()
    if t.version == 0:
        t.ask()
        return
    for kinds in ([TOPIC], [BROKER], [LOGGER], [METRICS], [GROUP], [], [TOPIC, TOPIC], [77], [0]):
        t.note(f"types {kinds}")
        t.ask(resource_types=kinds, mine="" if kinds and TOPIC not in kinds else "config_resources")
