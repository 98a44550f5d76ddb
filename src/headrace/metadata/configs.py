"""Changing configuration: AlterConfigs v0-2 and IncrementalAlterConfigs v0-1.

`headrace.config.alter` knows what an option may be; here is what the cluster knows: who exists, and what is recorded.
Loggers belong to one process and are never recorded: the caller answers for them.
"""

from collections.abc import Callable, Sequence
from typing import Any

from headrace.config import BrokerConfig
from headrace.config.alter import (
    Altered,
    Resource,
    alter_incrementally,
    check_broker_change,
    check_elr,
    check_other_broker_change,
    replace_all,
)
from headrace.errors import Err, KafkaError
from headrace.metadata.image import NO_LEADER, Image
from headrace.metadata.names import check_topic_name
from headrace.metadata.outcome import Outcome, check_size
from headrace.metadata.policy import MIN_ISR
from headrace.metadata.records import Record
from headrace.metadata.snapshot import config_record
from headrace.metadata.versions import ELR_VERSION, level
from headrace.protocol import messages as m

Alter = Callable[[Any, dict[str, str]], Altered]
Loggers = Callable[[Any], None]
"""Changes the levels that a BROKER_LOGGER resource asks for, or raises KafkaError."""


def incremental_alter_configs(
    image: Image,
    request: m.IncrementalAlterConfigsRequest,
    config: BrokerConfig,
    loggers: Loggers | None = None,
) -> Outcome[m.IncrementalAlterConfigsResponse]:
    def alter(resource: Any, current: dict[str, str]) -> Altered:
        changes = [(c.name, c.config_operation, c.value) for c in resource.configs]
        return alter_incrementally(resource.resource_type, resource.resource_name, changes, current, config)

    answers: list[Any] = []

    def answer(resource: Any, error: Err, message: str | None) -> None:
        answers.append(
            m.IncrementalAlterConfigsResponse.AlterConfigsResourceResponse(
                error_code=error,
                error_message=message,
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
            )
        )

    records = _alter_all(image, request.resources, config, alter, answer, loggers)
    response = m.IncrementalAlterConfigsResponse(responses=answers)
    return Outcome([] if request.validate_only else records, response)


def alter_configs(
    image: Image, request: m.AlterConfigsRequest, config: BrokerConfig
) -> Outcome[m.AlterConfigsResponse]:
    def alter(resource: Any, current: dict[str, str]) -> Altered:
        pairs = [(c.name, c.value) for c in resource.configs]
        return replace_all(resource.resource_type, resource.resource_name, pairs, current, config)

    answers: list[Any] = []

    def answer(resource: Any, error: Err, message: str | None) -> None:
        answers.append(
            m.AlterConfigsResponse.AlterConfigsResourceResponse(
                error_code=error,
                error_message=message,
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
            )
        )

    records = _alter_all(image, request.resources, config, alter, answer, None)
    response = m.AlterConfigsResponse(responses=answers)
    return Outcome([] if request.validate_only else records, response)


def _alter_all(
    image: Image,
    resources: Sequence[Any],
    config: BrokerConfig,
    alter: Alter,
    answer: Callable[[Any, Err, str | None], None],
    loggers: Loggers | None,
) -> list[Record]:
    """Each resource changes whole or not at all, whatever becomes of the others."""
    counts: dict[tuple[int, str], int] = {}
    for resource in resources:
        key = (resource.resource_type, resource.resource_name)
        counts[key] = counts.get(key, 0) + 1
    records: list[Record] = []
    for resource in resources:
        kind, name = resource.resource_type, resource.resource_name
        try:
            if counts[kind, name] > 1:
                raise KafkaError(Err.INVALID_REQUEST, "the resource appears twice in the request")
            if kind == Resource.BROKER_LOGGER and loggers is not None:
                loggers(resource)
            else:
                records += _alter_one(image, resource, config, alter)
        except KafkaError as error:
            answer(resource, error.error, error.message)
        else:
            answer(resource, Err.NONE, None)
    if ELR_VERSION in image.features:
        records += _clear_eligible(image, records)
    check_size(len(records))
    return records


def _clear_eligible(image: Image, records: Sequence[Record]) -> list[Record]:
    """Eligible replicas were determined under the old minimum, and mean nothing under the new one (KIP-966)."""
    cleared: list[Record] = []
    for record, _ in records:
        if isinstance(record, m.ConfigRecord) and record.name == MIN_ISR:
            cleared += forget_eligible(image, record.resource_name if record.resource_type == Resource.TOPIC else "")
    return cleared


def forget_eligible(image: Image, topic: str = "") -> list[Record]:
    """Nobody is eligible any more, of one topic or of all, but where there is no ISR: nothing was committed there
    since.

    Apache Kafka forgets these, too, and nobody is left that could ever lead.
    """
    version = level(image.metadata_version).partition_change_record
    cleared: list[Record] = [(m.ClearElrRecord(topic_name=topic), 0)]
    return cleared + [
        (
            m.PartitionChangeRecord(
                topic_id=topic_id,
                partition_id=number,
                eligible_leader_replicas=list(partition.elr),
                last_known_elr=list(partition.last_known_elr),
            ),
            version,
        )
        for (topic_id, number), partition in image.partitions_of(NO_LEADER)
        if not partition.isr
        and (partition.elr or partition.last_known_elr)
        and topic in ("", image.topics[topic_id].name)
    ]


def _alter_one(image: Image, resource: Any, config: BrokerConfig, alter: Alter) -> list[Record]:
    kind, name = resource.resource_type, resource.resource_name
    if kind == Resource.TOPIC and name:
        check_topic_name(name)
    altered = alter(resource, dict(image.config(kind, name)))
    if kind == Resource.BROKER:
        if name.isdecimal() and int(name) != config.node_id and int(name) in image.brokers:
            check_other_broker_change(altered.overrides)
        else:
            check_broker_change(name, altered.overrides, config)
        if ELR_VERSION in image.features:
            check_elr(name, altered.changes)
    check_exists(image, kind, name)
    return [config_record(kind, name, key, value) for key, value in altered.changes.items()]


def check_exists(image: Image, kind: int, name: str) -> None:
    if kind == Resource.TOPIC and name not in image.topic_ids:
        raise KafkaError(Err.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name}")
    if kind == Resource.BROKER and name and int(name) not in image.brokers:
        raise KafkaError(Err.BROKER_ID_NOT_REGISTERED, f"broker {name} is not registered")
