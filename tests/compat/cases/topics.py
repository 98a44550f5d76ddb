"""Making and removing topics, and who leads them: CreateTopics, DeleteTopics, CreatePartitions, ElectLeaders."""

from typing import Any

from tests.compat.cases import Talk, case
from tests.compat.cases.metadata import BAD_NAMES, NO_SUCH_ID


def new(name: str, partitions: int = 1, replicas: int = 1, **more: Any) -> dict[str, Any]:
    configs = [{"name": k, "value": v} for k, v in more.pop("configs", {}).items()]
    return {"name": name, "num_partitions": partitions, "replication_factor": replicas, "configs": configs, **more}


def placed(*brokers: list[int], first: int = 0) -> list[dict[str, Any]]:
    return [{"partition_index": first + i, "broker_ids": ids} for i, ids in enumerate(brokers)]


def create(t: Talk, *topics: dict[str, Any], **fields: Any) -> Any:
    answer = t._exchange("CreateTopics", t.version, {"topics": list(topics), "timeout_ms": 10_000, **fields})
    if answer is None:
        t.note("<closed>")
        return None
    for topic in answer.topics:
        if topic.error_code == 0:
            # All configs of a topic come along from v5; DescribeConfigs has cases of its own for them.
            topic.configs = topic.configs and [c for c in topic.configs if c.config_source == 1]
            t.ids[topic.topic_id] = f"<id of {t.names.get(topic.name, topic.name)}>"
    t.record("CreateTopics", answer)
    return answer


@case("CreateTopics")
def created(t: Talk) -> None:
    create(t, new(t.name("a")), new(t.name("b"), 3, configs={"cleanup.policy": "compact", "retention.ms": "1000"}))
    t.settle()
    create(t, new(t.name("a")))
    t.ask("Metadata", 12, topics=[{"name": t.name("a")}, {"name": t.name("b")}])


@case("CreateTopics", versions=range(5, 8))
def all_configs_come_along(t: Talk) -> None:
    t.ask(topics=[new(t.name("a"), configs={"segment.bytes": "1048576"})], timeout_ms=10_000)


@case("CreateTopics")
def only_validated(t: Talk) -> None:
    create(t, new(t.name("a"), 2, configs={"retention.ms": "5"}), validate_only=True)
    create(t, new(t.name("a"), 0), validate_only=True)
    t.ask("Metadata", 12, topics=[{"name": t.name("a")}], allow_auto_topic_creation=False)


@case("CreateTopics")
def illegal_names(t: Talk) -> None:
    for name in BAD_NAMES:
        create(t, new(name))


@case("CreateTopics")
def names_that_collide(t: Talk) -> None:
    name = t.name("a.b")
    create(t, new(name))
    t.settle()
    create(t, new(t.name("a_b")))


@case("CreateTopics")
def same_name_twice(t: Talk) -> None:
    create(t, new(t.name("a")), new(t.name("b")), new(t.name("a"), 2))


@case("CreateTopics")
def counts(t: Talk) -> None:
    for partitions in (0, -1, -2, 10_001, 2147483647):
        t.note(f"{partitions} partitions")
        create(t, new(t.name(f"p{partitions}"), partitions), validate_only=True)
    for replicas in (0, -1, -2, 2, 32767):
        t.note(f"{replicas} replicas")
        create(t, new(t.name(f"r{replicas}"), 1, replicas), validate_only=True)
    create(t, new(t.name("both"), -1, -1), validate_only=True)


@case("CreateTopics")
def assignments(t: Talk) -> None:
    lists = {
        "good": placed([1], [1]),
        "unknown broker": placed([1], [9]),
        "same broker twice": placed([1, 1]),
        "no broker": placed([]),
        "uneven": placed([1], [1, 9]),
        "gap": placed([1], first=0) + placed([1], first=2),
        "not from zero": placed([1], first=1),
        "negative": placed([1], first=-1),
        "twice": placed([1]) + placed([1]),
    }
    for number, (what, assignment) in enumerate(lists.items()):
        t.note(what)
        create(t, new(t.name(f"a{number}"), -1, -1, assignments=assignment))
    t.note("counts given as well")
    create(t, new(t.name("c"), 1, 1, assignments=placed([1])))
    create(t, new(t.name("d"), 2, -1, assignments=placed([1], [1])))
    create(t, new(t.name("e"), -1, 1, assignments=placed([1], [1])))


BAD_CONFIGS = {
    "no.such.config": "1",
    "retention.ms": "soon",
    "segment.bytes": "1",
    "cleanup.policy": "burn",
    "compression.type": "rar",
    "min.insync.replicas": "0",
    "max.message.bytes": "-1",
    "min.cleanable.dirty.ratio": "1.5",
    "unclean.leader.election.enable": "perhaps",
    "message.timestamp.type": "Whenever",
    "retention.bytes": None,
    "flush.messages": "",
    "segment.ms": " 100000 ",
    "compression.zstd.level": "99",
    "index.interval.bytes": "99999999999",
    "leader.replication.throttled.replicas": "x",
    "": "1",
    "segment.jitter.ms": "-5",
    "local.retention.ms": "5",
    "remote.storage.enable": "true",
}


@case("CreateTopics")
def configs_one_at_a_time(t: Talk) -> None:
    for number, (name, value) in enumerate(BAD_CONFIGS.items()):
        t.note(f"{name} = {value}")
        create(t, new(t.name(f"c{number}"), configs={name: value}), validate_only=True)
    for policy in ("compact,delete", "compact, delete", "delete,delete", "", "Compact", "compact,burn"):
        t.note(f"cleanup.policy = {policy!r}")
        create(t, new(t.name("policy"), configs={"cleanup.policy": policy}), validate_only=True)


@case("CreateTopics")
def same_config_twice(t: Talk) -> None:
    topic = new(t.name("a"))
    topic["configs"] = [{"name": "retention.ms", "value": "1"}, {"name": "retention.ms", "value": "2"}]
    create(t, topic)


@case("CreateTopics")
def nothing_asked(t: Talk) -> None:
    create(t)


@case("CreateTopics")
def no_time_allowed(t: Talk) -> None:
    create(t, new(t.name("a")), timeout_ms=0)
    create(t, new(t.name("b")), timeout_ms=-1)


@case("CreateTopics", versions=[2, 4, 5, 7])
def large_and_special(t: Talk) -> None:
    for count in (9_999, 10_000, 10_001, 2147483647):
        t.note(f"{count} partitions")
        create(t, new(t.name("big"), count), validate_only=True)
    create(t, new(t.name("a"), 5_000), new(t.name("b"), 5_000), validate_only=True)
    for name in ("__cluster_metadata", "__share_group_state"):  # not __transaction_state: others may have had it made
        create(t, new(name), validate_only=True)


def delete(t: Talk, *names: str) -> None:
    if t.version < 6:
        t.ask(topic_names=list(names), timeout_ms=10_000)
    else:
        t.ask(topics=[{"name": name} for name in names], timeout_ms=10_000)


@case("DeleteTopics")
def deleted(t: Talk) -> None:
    t.topic("a")
    t.topic("b")
    delete(t, t.name("a"), t.name("b"), t.name("nowhere"))
    t.settle()
    delete(t, t.name("a"))
    t.ask("Metadata", 12, topics=[{"name": t.name("a")}], allow_auto_topic_creation=False)
    t.topic("a")  # and the name is free again


@case("DeleteTopics")
def odd_deletes(t: Talk) -> None:
    t.topic("a")
    delete(t, t.name("a"), t.name("a"))
    t.settle()
    delete(t)
    delete(t, "", "a b")


@case("DeleteTopics", versions=[6])
def deleted_by_id(t: Talk) -> None:
    t.topic("a")
    t.topic("b")
    t.ask(topics=[{"topic_id": t.id_of("a"), "name": None}, {"topic_id": NO_SUCH_ID, "name": None}], timeout_ms=10_000)
    t.settle()
    t.ask(topics=[{"topic_id": t.id_of("a"), "name": None}], timeout_ms=10_000)
    t.ask(topics=[{"topic_id": bytes(16), "name": None}], timeout_ms=10_000)
    t.ask(topics=[{"topic_id": t.id_of("b"), "name": t.name("b")}], timeout_ms=10_000)
    t.ask(
        topics=[{"topic_id": t.id_of("b"), "name": None}, {"topic_id": t.id_of("b"), "name": None}], timeout_ms=10_000
    )
    t.ask(topics=[{"topic_id": t.id_of("b"), "name": None}, {"name": t.name("b")}], timeout_ms=10_000)


def grow(t: Talk, *topics: dict[str, Any], **fields: Any) -> None:
    asked = [{"assignments": None} | topic for topic in topics]
    t.ask(topics=asked, timeout_ms=10_000, validate_only=False, **fields)


@case("CreatePartitions")
def partitions_added(t: Talk) -> None:
    topic = t.topic("a", 2)
    grow(t, {"name": topic, "count": 4})
    t.settle()
    t.ask("Metadata", 12, topics=[{"name": topic}])


@case("CreatePartitions")
def partition_counts_refused(t: Talk) -> None:
    topic = t.topic("a", 2)
    for count in (2, 1, 0, -1):
        grow(t, {"name": topic, "count": count})
    grow(t, {"name": t.name("nowhere"), "count": 3}, {"name": "a b", "count": 3})
    grow(t, {"name": topic, "count": 3}, {"name": topic, "count": 4})
    grow(t)


@case("CreatePartitions")
def partition_assignments(t: Talk) -> None:
    topic = t.topic("a", 2)
    lists = {
        "too few": [[1]], "too many": [[1], [1], [1]], "unknown broker": [[1], [9]], "two replicas": [[1], [1, 9]],
        "same broker twice": [[1], [1, 1]], "no broker": [[1], []], "no list": [], "good": [[1], [1]],
    }  # fmt: skip
    for what, brokers in lists.items():
        t.note(what)
        grow(t, {"name": topic, "count": 4, "assignments": [{"broker_ids": ids} for ids in brokers]})


@case("CreatePartitions")
def partitions_only_validated(t: Talk) -> None:
    topic = t.topic("a", 2)
    t.ask(topics=[{"name": topic, "count": 5, "assignments": None}], timeout_ms=10_000, validate_only=True)
    t.ask("Metadata", 12, topics=[{"name": topic}])


@case("ElectLeaders")
def elections_nobody_needs(t: Talk) -> None:
    topic = t.topic(partitions=2)
    for kind in (0,) if t.version == 0 else (0, 1, 2, -1):
        t.note(f"type {kind}")
        fields: dict[str, Any] = {"timeout_ms": 5000} | ({"election_type": kind} if t.version > 0 else {})
        t.ask(topic_partitions=[{"topic": topic, "partitions": [0, 1, 7, -1]}], **fields)
        t.ask(topic_partitions=[{"topic": topic, "partitions": [0, 0]}, {"topic": topic, "partitions": [1]}], **fields)
        t.ask(
            topic_partitions=[{"topic": t.name("nowhere"), "partitions": [0]}, {"topic": "a b", "partitions": [0]}],
            **fields,
        )
        t.ask(topic_partitions=[{"topic": topic, "partitions": []}], **fields)
        t.ask(topic_partitions=[], **fields)
        t.ask(topic_partitions=None, mine="replica_election_results", **fields)
