"""What is where: Metadata, DescribeCluster, DescribeTopicPartitions, DescribeLogDirs, DescribeQuorum."""

from typing import Any

from tests.compat.cases import Talk, case
from tests.compat.raw import batch

BAD_NAMES = ("", ".", "..", "a b", "naïve", "slash/es", "x" * 250)
NO_SUCH_ID = bytes(range(16))


def ask(t: Talk, topics: list[Any] | None, mine: str = "topics", **fields: Any) -> Any:
    if t.version >= 4:
        fields.setdefault("allow_auto_topic_creation", False)
    return t.ask(mine=mine, topics=topics, **fields)


@case("Metadata")
def every_topic(t: Talk) -> None:
    t.topic("a")
    t.topic("b", 3)
    ask(t, [] if t.version == 0 else None)


@case("Metadata", versions=range(1, 14))
def no_topic(t: Talk) -> None:
    ask(t, [])


@case("Metadata")
def named_topics(t: Talk) -> None:
    ask(t, [{"name": t.topic("a", 2)}, {"name": t.topic("b")}])


@case("Metadata")
def same_topic_twice(t: Talk) -> None:
    name = t.topic("a")
    ask(t, [{"name": name}, {"name": name}])


@case("Metadata", versions=range(4, 14))
def unknown_topic(t: Talk) -> None:
    ask(t, [{"name": t.name("nowhere")}, {"name": t.topic("here")}])


@case("Metadata", versions=range(4, 14))
def illegal_names(t: Talk) -> None:
    for name in BAD_NAMES:
        ask(t, [{"name": name}], mine="")
        ask(t, [{"name": name}], mine="", allow_auto_topic_creation=True)


def while_creating(t: Talk, name: str) -> dict[str, Any]:
    return {"topics": [{"name": name}], **({"allow_auto_topic_creation": True} if t.version >= 4 else {})}


@case("Metadata")
def created_on_the_way(t: Talk) -> None:
    t.ask(**while_creating(t, t.name("new")))


@case("Metadata")
def created_a_moment_ago(t: Talk) -> None:
    name = t.name("new")
    t.call("Metadata", t.version, **while_creating(t, name))
    t.until(lambda: t.call("Metadata", 3, topics=[{"name": name}]).topics[0].error_code == 0)
    t.settle()
    ask(t, [{"name": name}])


@case("Metadata", versions=range(10, 14))
def by_id(t: Talk) -> None:
    t.topic("a")
    if t.version >= 12:
        ask(t, [{"topic_id": t.id_of("a"), "name": None}])
        ask(t, [{"topic_id": NO_SUCH_ID, "name": None}], mine="")
        ask(t, [{"topic_id": bytes(16), "name": None}], mine="")
        ask(t, [{"topic_id": t.id_of("a"), "name": t.name("a")}], mine="")
    else:
        ask(t, [{"topic_id": t.id_of("a"), "name": None}], mine="")
        ask(t, [{"topic_id": bytes(16), "name": None}], mine="")


@case("Metadata", versions=range(12, 14))
def several_ids(t: Talk) -> None:
    t.topic("a")
    t.topic("b")
    a = {"topic_id": t.id_of("a"), "name": None}
    unknown = {"topic_id": NO_SUCH_ID, "name": None}
    ask(t, [a, a], mine="")
    ask(t, [a, unknown], mine="", include_topic_authorized_operations=True)
    ask(t, [unknown | {"name": t.name("b")}], mine="")
    ask(t, [a, {"topic_id": bytes(16), "name": None}], mine="")
    ask(t, [a | {"name": "another"}], mine="", allow_auto_topic_creation=True)


@case("Metadata", versions=range(12, 14))
def ids_and_names_mixed(t: Talk) -> None:
    t.topic("a")
    ask(t, [{"topic_id": t.id_of("a"), "name": None}, {"name": t.topic("b")}], mine="")


@case("Metadata", versions=range(8, 14))
def authorized_operations(t: Talk) -> None:
    fields: dict[str, Any] = {"include_cluster_authorized_operations": True} if t.version <= 10 else {}
    ask(t, [{"name": t.topic()}], include_topic_authorized_operations=True, **fields)


@case("DescribeCluster")
def the_cluster(t: Talk) -> None:
    t.ask()
    t.ask(include_cluster_authorized_operations=True)


@case("DescribeCluster", versions=[1, 2])
def endpoint_types(t: Talk) -> None:
    for kind in (0, 1, 2, 3, -1):
        t.note(f"type {kind}")
        t.ask(endpoint_type=kind)


@case("DescribeCluster", versions=[2])
def fenced_brokers_too(t: Talk) -> None:
    t.ask(include_fenced_brokers=True)


@case("DescribeTopicPartitions")
def topics_by_name(t: Talk) -> None:
    t.ask(topics=[{"name": t.topic("a", 3)}, {"name": t.topic("b")}])
    t.ask(topics=[{"name": t.name("nowhere")}, {"name": t.name("a")}])
    t.ask(topics=[{"name": t.name("a")}, {"name": t.name("a")}])
    t.ask(topics=[{"name": "a b"}])


@case("DescribeTopicPartitions")
def pages(t: Talk) -> None:
    topics = [{"name": t.topic("a", 3)}, {"name": t.topic("b", 3)}, {"name": t.topic("c")}]
    cursor = None
    for _ in range(5):
        answer = t.ask(topics=topics, response_partition_limit=2, cursor=cursor)
        if answer is None or answer.next_cursor is None:
            break
        cursor = {"topic_name": answer.next_cursor.topic_name, "partition_index": answer.next_cursor.partition_index}


@case("DescribeTopicPartitions")
def pages_of_all_sizes(t: Talk) -> None:
    names = [t.topic("a", 5), t.name("aa"), t.topic("b", 2), t.topic("c")]
    for limit in (1, 3, 5, 6, 7, 8, 9):
        t.note(f"{limit} at a time")
        cursor = None
        for _ in range(12):
            answer = t.ask(topics=[{"name": n} for n in names], response_partition_limit=limit, cursor=cursor)
            if answer is None or answer.next_cursor is None:
                break
            cursor = {
                "topic_name": answer.next_cursor.topic_name,
                "partition_index": answer.next_cursor.partition_index,
            }
    for partition in (4, 5, 6):
        t.note(f"from partition {partition} of 5")
        t.ask(topics=[{"name": n} for n in names], cursor={"topic_name": names[0], "partition_index": partition})


@case("DescribeTopicPartitions")
def odd_cursors_and_limits(t: Talk) -> None:
    topics = [{"name": t.topic("a", 3)}, {"name": t.topic("c")}]
    for name, partition in (("a", 1), ("a", 99), ("a", -1), ("b", 0), ("zz", 0)):
        t.note(f"cursor {name} {partition}")
        t.ask(topics=topics, cursor={"topic_name": t.name(name), "partition_index": partition})
    for limit in (0, -1, 1, 2147483647):
        t.note(f"limit {limit}")
        t.ask(topics=topics, response_partition_limit=limit)


@case("DescribeTopicPartitions")
def every_topic_in_pages(t: Talk) -> None:
    t.topic("a", 2)
    answer = t.ask(topics=[], mine="topics", response_partition_limit=2000)
    t.note([topic.name for topic in answer.topics] == sorted(topic.name for topic in answer.topics))


@case("DescribeLogDirs")
def log_dirs(t: Talk) -> None:
    topic = t.topic(partitions=2)
    t.produced(topic, batch(b"a", b"b"), partition=1)
    t.ask(topics=None, mine="topics")
    t.ask(topics=[{"topic": topic, "partitions": [0, 1]}])
    t.ask(topics=[{"topic": topic, "partitions": [1, 7]}])
    t.ask(topics=[{"topic": t.name("nowhere"), "partitions": [0]}])
    t.ask(topics=[])


@case("DescribeLogDirs")
def odd_log_dirs(t: Talk) -> None:
    topic = t.topic(partitions=2)
    for asked in ([], [0, 0]):
        t.ask(topics=[{"topic": topic, "partitions": asked}])
    t.ask(topics=[{"topic": topic, "partitions": [0]}, {"topic": topic, "partitions": [1]}])
    t.ask(topics=[{"topic": "a b", "partitions": [0]}, {"topic": "", "partitions": [0]}])
    t.ask(topics=[{"topic": "__cluster_metadata", "partitions": [0]}])


@case("DescribeQuorum")
def quorum(t: Talk) -> None:
    metadata = {"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}
    answer = t.call("DescribeQuorum", t.version, topics=[metadata])
    answer.nodes = []  # controller endpoints are each installation's own
    t.record("DescribeQuorum", answer)
    t.ask(topics=[])
    t.ask(topics=[{"topic_name": "other", "partitions": [{"partition_index": 0}]}])
    t.ask(topics=[metadata | {"partitions": [{"partition_index": 1}]}])


@case("DescribeQuorum")
def odd_quorums(t: Talk) -> None:
    metadata = {"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}
    t.ask(topics=[metadata, metadata])
    for indexes in ([0, 0], [], [-1]):
        t.ask(topics=[metadata | {"partitions": [{"partition_index": index} for index in indexes]}])
