"""What people and older tools ask for by writing znodes, as requests that the controller answers.

`/admin/delete_topics/T`, `/admin/reassign_partitions`, `/admin/preferred_replica_election`, and `/config/changes`,
whose notes say that something in `/config` was changed. Pure.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from headrace.errors import Err
from headrace.metadata.image import BROKER_CONFIG, TOPIC_CONFIG
from headrace.protocol import messages as m
from headrace.protocol.api import ApiKey
from headrace.quorum import QuorumError
from headrace.quorum.zookeeper import paths, znodes

TIMEOUT_MS = 30_000
PREFERRED = 0
AGAIN = frozenset({Err.NOT_CONTROLLER, Err.KAFKA_STORAGE_ERROR, Err.REQUEST_TIMED_OUT, Err.THROTTLING_QUOTA_EXCEEDED})
"""Refused for now: it stays where it is, and is tried again."""


class Asked(NamedTuple):
    """A request, as a client would send it."""

    key: ApiKey
    message: Any
    version: int


def delete_topics(names: Sequence[str]) -> Asked:
    states = [m.DeleteTopicsRequest.DeleteTopicState(name=name) for name in names]
    return Asked(ApiKey.DELETE_TOPICS, m.DeleteTopicsRequest(topics=states, timeout_ms=TIMEOUT_MS), 6)


def reassign_partitions(data: bytes) -> Asked:
    """{"version":1,"partitions":[{"topic":"orders","partition":0,"replicas":[1,2]}]}. Raises QuorumError."""
    kind = m.AlterPartitionReassignmentsRequest
    topics: dict[str, list[Any]] = {}
    for topic, number, fields in _partitions(paths.REASSIGN, data):
        replicas = fields.get("replicas")
        if not isinstance(replicas, list) or not all(isinstance(one, int) for one in replicas):
            raise QuorumError(f"{paths.REASSIGN} says no replicas of {topic}-{number}")
        partition = kind.ReassignablePartition(partition_index=number, replicas=replicas)
        topics.setdefault(topic, []).append(partition)
    named = [kind.ReassignableTopic(name=name, partitions=chosen) for name, chosen in topics.items()]
    message = kind(topics=named, timeout_ms=TIMEOUT_MS, allow_replication_factor_change=True)
    return Asked(ApiKey.ALTER_PARTITION_REASSIGNMENTS, message, 1)


def elect_preferred(data: bytes) -> Asked:
    """{"version":1,"partitions":[{"topic":"orders","partition":0}]}. Raises QuorumError."""
    kind = m.ElectLeadersRequest
    topics: dict[str, list[int]] = {}
    for topic, number, _ in _partitions(paths.ELECTION, data):
        topics.setdefault(topic, []).append(number)
    chosen = [kind.TopicPartitions(topic=name, partitions=numbers) for name, numbers in topics.items()]
    return Asked(ApiKey.ELECT_LEADERS, kind(election_type=PREFERRED, topic_partitions=chosen, timeout_ms=TIMEOUT_MS), 2)


def alter_config(resource_type: int, name: str, config: Mapping[str, str]) -> Asked:
    """All of a resource's options, as they stand in its znode."""
    kind = m.AlterConfigsRequest
    pairs = [kind.AlterableConfig(name=key, value=value) for key, value in config.items()]
    resource = kind.AlterConfigsResource(resource_type=resource_type, resource_name=name, configs=pairs)
    return Asked(ApiKey.ALTER_CONFIGS, kind(resources=[resource], validate_only=False), 2)


def _partitions(path: str, data: bytes) -> Iterator[tuple[str, int, Mapping[str, Any]]]:
    partitions = znodes.decode(path, data).get("partitions")
    if not isinstance(partitions, list):
        raise QuorumError(f"{path} names no partitions")
    for fields in partitions:
        topic = fields.get("topic") if isinstance(fields, dict) else None
        number = fields.get("partition") if isinstance(fields, dict) else None
        if not isinstance(topic, str) or not isinstance(number, int):
            raise QuorumError(f"{path} names {fields!r}, which is not a topic and a partition")
        yield topic, number, fields


# --- notes of changed options -----------------------------------------------------------------------------------------


def changed_resource(path: str, data: bytes) -> tuple[int, str] | None:
    """(resource type, name) that a note in `/config/changes` is about; None for what is not kept in `/config` here:
    quotas and users. Raises QuorumError."""
    fields = znodes.decode(path, data)
    if fields.get("version") == 1:
        kind, name = str(fields.get("entity_type")), str(fields.get("entity_name"))
    else:
        kind, _, name = str(fields.get("entity_path")).partition("/")
    known = {"topics": TOPIC_CONFIG, "brokers": BROKER_CONFIG}
    return (known[kind], paths.config_name(name)) if kind in known and name else None


# --- answers ----------------------------------------------------------------------------------------------------------


class Refusal(NamedTuple):
    what: str
    error: Err
    message: str | None


def refusals(asked: Asked, answer: Any) -> list[Refusal]:
    """Of single topics or partitions; what refuses the whole request is raised by whoever answers it."""
    found = []
    if asked.key is ApiKey.DELETE_TOPICS:
        found = [Refusal(f"deletion of {r.name}", Err(r.error_code), r.error_message) for r in answer.responses]
    elif asked.key is ApiKey.ALTER_PARTITION_REASSIGNMENTS:
        found = [
            Refusal(f"move of {r.name}-{p.partition_index}", Err(p.error_code), p.error_message)
            for r in answer.responses
            for p in r.partitions
        ]
    elif asked.key is ApiKey.ELECT_LEADERS:
        found = [
            Refusal(f"election for {r.topic}-{p.partition_id}", Err(p.error_code), p.error_message)
            for r in answer.replica_election_results
            for p in r.partition_result
        ]
    else:
        found = [
            Refusal(f"options of {r.resource_name or 'all brokers'}", Err(r.error_code), r.error_message)
            for r in answer.responses
        ]
    return [one for one in found if one.error not in (Err.NONE, Err.ELECTION_NOT_NEEDED)]
