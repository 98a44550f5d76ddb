"""Admin requests, good and bad, that were sent in this order to Apache Kafka 4.3.1 and are put to our controller.

`golden/controller-kafka-4.3.1.json` holds what Kafka answered, as `summary` tells it. Node 1 is the only broker.
"""

from typing import Any, NamedTuple

from headrace.protocol import messages as m
from headrace.protocol.api import ApiKey

KEEP = -1


class Case(NamedTuple):
    api: ApiKey
    version: int
    request: Any


def new_topic(name: str, partitions: int = 1, factor: int = 1, configs: Any = (), assignments: Any = ()) -> Any:
    return m.CreateTopicsRequest.CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=factor,
        configs=[m.CreateTopicsRequest.CreatableTopicConfig(name=k, value=v) for k, v in configs],
        assignments=[
            m.CreateTopicsRequest.CreatableReplicaAssignment(partition_index=p, broker_ids=ids)
            for p, ids in assignments
        ],
    )


def create(*topics: Any, validate_only: bool = False) -> Case:
    request = m.CreateTopicsRequest(topics=list(topics), validate_only=validate_only, timeout_ms=10_000)
    return Case(ApiKey.CREATE_TOPICS, 7, request)


def more(*topics: tuple[str, int, Any], validate_only: bool = False) -> Case:
    kind = m.CreatePartitionsRequest
    return Case(
        ApiKey.CREATE_PARTITIONS,
        3,
        kind(
            topics=[
                kind.CreatePartitionsTopic(
                    name=name,
                    count=count,
                    assignments=None if ids is None else [kind.CreatePartitionsAssignment(broker_ids=i) for i in ids],
                )
                for name, count, ids in topics
            ],
            validate_only=validate_only,
            timeout_ms=10_000,
        ),
    )


def delete(*names: str | bytes | tuple[str | None, bytes]) -> Case:
    kind = m.DeleteTopicsRequest.DeleteTopicState
    states = [
        kind(name=n)
        if isinstance(n, str)
        else kind(name=None, topic_id=n)
        if isinstance(n, bytes)
        else kind(name=n[0], topic_id=n[1])
        for n in names
    ]
    return Case(ApiKey.DELETE_TOPICS, 6, m.DeleteTopicsRequest(topics=states, timeout_ms=10_000))


def incremental(*resources: tuple[int, str, list[tuple[str, int, str | None]]], validate_only: bool = False) -> Case:
    kind = m.IncrementalAlterConfigsRequest
    return Case(
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        1,
        kind(
            resources=[
                kind.AlterConfigsResource(
                    resource_type=t,
                    resource_name=n,
                    configs=[kind.AlterableConfig(name=k, config_operation=op, value=v) for k, op, v in configs],
                )
                for t, n, configs in resources
            ],
            validate_only=validate_only,
        ),
    )


def replace(*resources: tuple[int, str, list[tuple[str, str | None]]], validate_only: bool = False) -> Case:
    kind = m.AlterConfigsRequest
    return Case(
        ApiKey.ALTER_CONFIGS,
        2,
        kind(
            resources=[
                kind.AlterConfigsResource(
                    resource_type=t,
                    resource_name=n,
                    configs=[kind.AlterableConfig(name=k, value=v) for k, v in configs],
                )
                for t, n, configs in resources
            ],
            validate_only=validate_only,
        ),
    )


def quotas(*entries: tuple[list[tuple[str, str | None]], list[tuple[str, float | None]]]) -> Case:
    kind = m.AlterClientQuotasRequest
    return Case(
        ApiKey.ALTER_CLIENT_QUOTAS,
        1,
        kind(
            entries=[
                kind.EntryData(
                    entity=[kind.EntityData(entity_type=t, entity_name=n) for t, n in entity],
                    ops=[kind.OpData(key=k, value=v or 0.0, remove=v is None) for k, v in ops],
                )
                for entity, ops in entries
            ]
        ),
    )


def describe_quotas(*parts: tuple[str, int, str | None], strict: bool = False) -> Case:
    kind = m.DescribeClientQuotasRequest
    return Case(
        ApiKey.DESCRIBE_CLIENT_QUOTAS,
        1,
        kind(
            components=[kind.ComponentData(entity_type=t, match_type=k, match=v) for t, k, v in parts],
            strict=strict,
        ),
    )


def features(*updates: tuple[str, int, int], validate_only: bool = False) -> Case:
    kind = m.UpdateFeaturesRequest
    return Case(
        ApiKey.UPDATE_FEATURES,
        1,
        kind(
            feature_updates=[
                kind.FeatureUpdateKey(feature=f, max_version_level=level, upgrade_type=t) for f, level, t in updates
            ],
            validate_only=validate_only,
            timeout_ms=10_000,
        ),
    )


ALICE: list[tuple[str, str | None]] = [("user", "alice")]

CASES = [
    quotas((ALICE, [("producer_byte_rate", 1000.0), ("request_percentage", 12.5)])),
    quotas((ALICE, [("producer_byte_rate", None)]), ([("user", None)], [("consumer_byte_rate", 5.0)])),
    quotas((ALICE, [("producer_byte_rate", 0.0)]), ([("client-id", "c")], [("producer_byte_rate", 1.5)])),
    quotas((ALICE, [("no_such", 1.0)]), ([("group", "g")], [("producer_byte_rate", 1.0)])),
    quotas(([], [("producer_byte_rate", 1.0)])),
    quotas(([("user", "")], [("producer_byte_rate", 1.0)])),
    quotas(([("ip", "10.0.0.1")], [("connection_creation_rate", 5.0)])),
    quotas(([("ip", "10.0.0.1"), ("user", "a")], [("connection_creation_rate", 5.0)])),
    quotas(([("ip", "10.0.0.1")], [("producer_byte_rate", 5.0)])),
    quotas(([("ip", "no.such.host.invalid")], [("connection_creation_rate", 5.0)])),
    quotas(([("user", "bob"), ("client-id", "c")], [("producer_byte_rate", 7.0)])),
    describe_quotas(),
    describe_quotas(("user", 0, "bob")),
    describe_quotas(("user", 0, "bob"), strict=True),
    describe_quotas(("user", 1, None)),
    describe_quotas(("user", 2, None), ("client-id", 2, None)),
    describe_quotas(("ip", 2, None)),
    describe_quotas(("ip", 2, None), ("user", 2, None)),
    describe_quotas(("user", 0, None)),
    describe_quotas(("user", 5, None)),
    describe_quotas(("group", 2, None)),
    create(new_topic("plain")),
    create(new_topic("defaults", -1, -1)),
    create(new_topic("set", 3, 1, [("retention.ms", "1000"), ("cleanup.policy", "compact,delete")])),
    create(new_topic("dry", 2, 1, [("segment.bytes", "2000000")]), validate_only=True),
    create(new_topic("dry", 2), new_topic("plain"), validate_only=True),
    create(new_topic("twice"), new_topic("twice"), new_topic("once")),
    create(new_topic("plain"), new_topic("fresh")),
    create(new_topic("")),
    create(new_topic("."), new_topic(".."), new_topic("no space"), new_topic("ä"), new_topic("x" * 250)),
    create(new_topic("x" * 249)),
    create(new_topic("a.b")),
    create(new_topic("a_b"), new_topic("a.b")),
    create(new_topic("c.d"), new_topic("c_d")),
    create(new_topic("__cluster_metadata")),
    create(new_topic("bad1", 0), new_topic("bad2", -2), new_topic("bad3", 1, 0), new_topic("bad4", 1, -2)),
    create(new_topic("bad5", 0, 0), new_topic("bad6", 1, 2), new_topic("bad7", 1, 32767)),
    create(new_topic("huge", 10_001)),
    create(new_topic("bad8", 1, 1, [("no.such", "1")]), new_topic("bad9", 1, 1, [("retention.ms", "x")])),
    create(new_topic("bad10", 1, 1, [("retention.ms", None)]), new_topic("bad11", 1, 1, [("segment.bytes", "1")])),
    create(new_topic("bad12", 1, 1, [("min.compaction.lag.ms", "10"), ("max.compaction.lag.ms", "5")])),
    create(new_topic("manual", -1, -1, (), [(0, [1]), (1, [1])])),
    create(new_topic("manual2", 2, -1, (), [(0, [1])]), new_topic("manual3", -1, 1, (), [(0, [1])])),
    create(new_topic("manual4", -1, -1, (), [(0, [9])]), new_topic("manual5", -1, -1, (), [(0, [1, 1])])),
    create(new_topic("manual6", -1, -1, (), [(1, [1])]), new_topic("manual7", -1, -1, (), [(0, [])])),
    create(new_topic("manual8", -1, -1, (), [(0, [1]), (0, [1])])),
    more(("plain", 3, None)),
    more(("plain", 3, None), ("set", 2, None), ("missing", 4, None), ("defaults", 0, None)),
    more(("plain", 5, None), ("plain", 6, None)),
    more(("plain", 5, [[1], [1]])),
    more(("plain", 7, [[1]]), ("set", 4, [[9]]), ("defaults", 2, [[1, 1]]), ("fresh", 2, [[]])),
    more(("plain", 9, None), validate_only=True),
    more(("plain", 20_000, None)),
    incremental((2, "plain", [("retention.ms", 0, "5000"), ("cleanup.policy", 2, "compact")])),
    incremental((2, "plain", [("cleanup.policy", 3, "delete"), ("retention.ms", 1, None)])),
    incremental((2, "missing", [("retention.ms", 0, "5")]), (2, "", [("retention.ms", 0, "5")])),
    incremental((2, "no space", [("retention.ms", 0, "5")])),
    incremental((2, "plain", [("retention.ms", 2, "5")]), (2, "set", [("no.such", 0, "5")])),
    incremental((2, "plain", [("retention.ms", 0, None)]), (2, "set", [("retention.ms", 9, "5")])),
    incremental((2, "plain", [("retention.ms", 0, "1"), ("retention.ms", 0, "2")])),
    incremental((2, "plain", [("retention.ms", 0, "1")]), (2, "plain", [("retention.ms", 0, "2")])),
    incremental((4, "1", [("log.retention.ms", 0, "777000")]), (4, "", [("log.cleaner.threads", 0, "2")])),
    incremental((4, "7", [("log.retention.ms", 0, "1")]), (4, "x", [("log.retention.ms", 0, "1")])),
    incremental((4, "", [("node.id", 0, "3")]), (4, "1", [("log.retention.ms", 0, "abc")])),
    incremental((32, "group-a", [("consumer.session.timeout.ms", 0, "50000")]), (32, "", [])),
    incremental((32, "group-a", [("consumer.session.timeout.ms", 0, "1")]), (32, "g", [("no.such", 0, "1")])),
    incremental((16, "metrics-a", [("interval.ms", 0, "1000")]), (16, "m", [("interval.ms", 0, "1")])),
    incremental((99, "what", [("k", 0, "v")])),
    incremental((2, "plain", [("retention.ms", 0, "bad")]), validate_only=True),
    create(new_topic("after-dynamic"), validate_only=True),
    replace((2, "plain", [("retention.ms", "9000")])),
    replace((2, "plain", [("no.such", "9000")]), (2, "missing", []), (99, "x", [])),
    replace((2, "plain", [("retention.ms", None)]), (2, "set", [("retention.ms", "1"), ("retention.ms", "2")])),
    replace((4, "1", [("log.retention.ms", "800000")])),
    features(("metadata.version", 29, 1)),
    features(("metadata.version", 29, 2)),
    features(("metadata.version", 99, 1)),
    features(("metadata.version", 30, 1), validate_only=True),
    features(("metadata.version", 31, 2)),
    features(("no.such.feature", 1, 1)),
    features(("metadata.version", 3, 2)),
    delete("plain", "missing"),
    delete("set", "set", "defaults"),
    delete(bytes(15) + b"\x55", (None, bytes(16)), ("fresh", bytes(15) + b"\x56")),
    create(new_topic("plain")),
]


def summary(api: ApiKey, response: Any) -> Any:
    """What is compared: everything but messages, ids and the order in which Kafka happens to answer."""
    if api is ApiKey.CREATE_TOPICS:
        return sorted(
            [
                t.name,
                t.error_code,
                t.error_message is not None,
                any(t.topic_id),
                t.num_partitions,
                t.replication_factor,
                [[c.name, c.value, c.read_only, c.config_source, c.is_sensitive] for c in t.configs or ()],
            ]
            for t in response.topics
        )
    if api is ApiKey.DELETE_TOPICS:
        return sorted([t.name or "", t.error_code, any(t.topic_id)] for t in response.responses)
    if api is ApiKey.CREATE_PARTITIONS:
        return sorted([t.name, t.error_code] for t in response.results)
    if api in (ApiKey.INCREMENTAL_ALTER_CONFIGS, ApiKey.ALTER_CONFIGS):
        return [
            [r.resource_type, r.resource_name, r.error_code, r.error_message is not None] for r in response.responses
        ]
    if api is ApiKey.ALTER_CLIENT_QUOTAS:
        return sorted(
            [sorted([e.entity_type, e.entity_name or ""] for e in entry.entity), entry.error_code]
            for entry in response.entries
        )
    if api is ApiKey.DESCRIBE_CLIENT_QUOTAS:
        return [
            response.error_code,
            sorted(
                [
                    sorted([e.entity_type, e.entity_name or ""] for e in entry.entity),
                    sorted([v.key, v.value] for v in entry.values),
                ]
                for entry in response.entries or ()
            ),
        ]
    if api is ApiKey.UPDATE_FEATURES:
        return [response.error_code, [[r.feature, r.error_code] for r in response.results]]
    raise AssertionError(api)
