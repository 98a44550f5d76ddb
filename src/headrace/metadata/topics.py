"""Creating and deleting topics, adding partitions.

CreateTopics v0-7: v4 defaults for partitions and replication factor, v5 answers with the configs, v7 with the topic id.
DeleteTopics v0-6: v6 by topic id. CreatePartitions v0-3.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, NamedTuple

from headrace.errors import Err, KafkaError
from headrace.metadata.disk_space import DiskSpace
from headrace.metadata.image import (
    MIGRATING_DIRECTORY,
    NO_LEADER,
    TOPIC_CONFIG,
    UNASSIGNED_DIRECTORY,
    Broker,
    Image,
    Partition,
    Topic,
)
from headrace.metadata.names import (
    CLUSTER_METADATA,
    check_topic_name,
    has_collision_chars,
    unify_collision_chars,
)
from headrace.metadata.outcome import Outcome, TooManyChanges, check_size
from headrace.metadata.placement import DEFAULT_PLACER, Dice, UsableBroker, place
from headrace.metadata.records import Record
from headrace.metadata.snapshot import config_record, partition_record
from headrace.metadata.versions import DIRECTORIES_LEVEL
from headrace.protocol import messages as m

NO_TOPIC_ID = bytes(16)


class TopicRules(NamedTuple):
    """What creating topics needs besides the image."""

    default_partitions: int
    default_replication_factor: int
    dice: Dice
    new_topic_id: Callable[[], bytes]
    check_configs: Callable[[Mapping[str, str]], None]
    """Raises KafkaError INVALID_CONFIG for overrides that a new topic may not have."""
    effective_configs: Callable[[Mapping[str, str]], list[Any]]
    """All of a topic's configs as CreateTopicsResponse entries, for its overrides."""
    disk_space: DiskSpace
    placer: str = DEFAULT_PLACER


def usable_brokers(image: Image) -> list[UsableBroker]:
    return [
        UsableBroker(broker.id, broker.rack, broker.fenced)
        for _, broker in sorted(image.brokers.items())
        if not broker.in_controlled_shutdown and not _cordoned(broker)
    ]


def brokers_with_space(image: Image, disk_space: DiskSpace, topic: str, replication_factor: int) -> list[UsableBroker]:
    """Where new replicas of a topic go: full brokers only as far as there are too few others, those that live first."""
    brokers = usable_brokers(image)
    if not disk_space:
        return brokers
    roomy: list[UsableBroker] = []
    full: list[UsableBroker] = []
    for broker in brokers:
        has_space = disk_space.has_space(image, topic, broker.id, default_directory(image, broker.id))
        (roomy if has_space else full).append(broker)
    full.sort(key=lambda broker: broker.fenced)
    chosen = roomy + full[: max(0, replication_factor - len(roomy))]
    return brokers if all(broker.fenced for broker in chosen) else chosen


def _cordoned(broker: Broker) -> bool:
    """Whether a broker wants no new replicas in any of its log dirs (KIP-1066)."""
    return bool(broker.cordoned_log_dirs) and set(broker.log_dirs) <= set(broker.cordoned_log_dirs or ())


def default_directory(image: Image, broker_id: int) -> bytes:
    """Where a new replica goes: known at once when the broker has one log dir, else the broker decides and tells."""
    broker = image.brokers.get(broker_id)
    if image.metadata_version < DIRECTORIES_LEVEL:
        return MIGRATING_DIRECTORY
    if broker is None:
        return UNASSIGNED_DIRECTORY
    if not broker.log_dirs:
        return MIGRATING_DIRECTORY
    return broker.log_dirs[0] if len(broker.log_dirs) == 1 else UNASSIGNED_DIRECTORY


def _is_active(image: Image, broker_id: int) -> bool:
    broker = image.brokers.get(broker_id)
    return broker is not None and broker.active


def _new_partition(
    image: Image, disk_space: DiskSpace, topic: str, replicas: Iterable[int], isr: list[int]
) -> Partition:
    members = tuple(replicas)
    if disk_space:
        # One that is full has all there is of a new topic, and is out of sync with the first record.
        isr = [b for b in isr if disk_space.has_space(image, topic, b, default_directory(image, b))] or isr
    return Partition(
        replicas=members,
        isr=tuple(isr),
        leader=isr[0] if isr else NO_LEADER,
        leader_epoch=0,
        partition_epoch=0,
        directories=tuple(default_directory(image, broker_id) for broker_id in members),
    )


# --- create ---------------------------------------------------------------------------------------------------------


def create_topics(
    image: Image,
    request: m.CreateTopicsRequest,
    rules: TopicRules,
    describable: Callable[[str], bool] = lambda name: True,
) -> Outcome[m.CreateTopicsResponse]:
    """`describable` says whose configs the asker may see in the answer."""
    counts: dict[str, int] = {}
    for topic in request.topics:
        counts[topic.name] = counts.get(topic.name, 0) + 1
    # Nothing is worked out for a request that is refused whole: each new topic is one change at the least.
    check_size(sum(count == 1 for name, count in counts.items() if name not in image.topic_ids))
    records: list[Record] = []
    results: list[Any] = []
    for topic in request.topics:
        if counts[topic.name] > 1 or topic.name == CLUSTER_METADATA:
            continue
        try:
            created, result = _create_topic(image, topic, rules, describable(topic.name))
        except TooManyChanges:
            raise
        except KafkaError as error:
            result = _create_error(topic.name, error.error, error.message)
        else:
            records += created
            check_size(len(records))
        results.append(result)
    results += [
        _create_error(name, Err.INVALID_REQUEST, "the topic is named twice in the request")
        for name, count in counts.items()
        if count > 1
    ]
    if counts.get(CLUSTER_METADATA) == 1:
        results.append(
            _create_error(CLUSTER_METADATA, Err.INVALID_REQUEST, "the metadata log is not a topic to create")
        )
    return Outcome([] if request.validate_only else records, m.CreateTopicsResponse(topics=results))


def _create_error(name: str, error: Err, message: str | None) -> Any:
    return m.CreateTopicsResponse.CreatableTopicResult(name=name, error_code=error, error_message=message)


def _create_topic(image: Image, topic: Any, rules: TopicRules, describe: bool) -> tuple[list[Record], Any]:
    _check_new_name(image, topic.name)
    overrides = _overrides(topic)
    if overrides:
        rules.check_configs(overrides)
    partitions = _assigned(image, topic, rules) if topic.assignments else _placed(image, topic, rules)
    topic_id = rules.new_topic_id()
    records: list[Record] = [(m.TopicRecord(name=topic.name, topic_id=topic_id), 0)]
    records += [config_record(TOPIC_CONFIG, topic.name, name, value) for name, value in overrides.items()]
    records += [
        partition_record(partition, topic_id, number, image.metadata_version)
        for number, partition in enumerate(partitions)
    ]
    result = m.CreateTopicsResponse.CreatableTopicResult(
        name=topic.name, topic_id=topic_id, error_code=Err.NONE, error_message=None
    )
    if describe:
        result.num_partitions = len(partitions)
        result.replication_factor = len(partitions[0].replicas)
        result.configs = rules.effective_configs(overrides)
    else:
        result.topic_config_error_code = Err.TOPIC_AUTHORIZATION_FAILED
    return records, result


def _check_new_name(image: Image, name: str) -> None:
    if name in image.topic_ids:
        raise KafkaError(Err.TOPIC_ALREADY_EXISTS, f"topic {name} already exists")
    check_topic_name(name)
    if has_collision_chars(name):
        colliding = image.colliding_names.get(unify_collision_chars(name))
        if colliding:
            raise KafkaError(
                Err.INVALID_TOPIC_EXCEPTION,
                f"topic {name} cannot be told from topic {colliding[0]} in metrics, where '.' is written '_'",
            )


def _overrides(topic: Any) -> dict[str, str]:
    nulls = [config.name for config in topic.configs if config.value is None]
    if nulls:
        raise KafkaError(Err.INVALID_CONFIG, f"topic configs without a value: {', '.join(nulls)}")
    return {config.name: config.value for config in topic.configs}


def _assigned(image: Image, topic: Any, rules: TopicRules) -> list[Partition]:
    if topic.replication_factor != -1:
        raise KafkaError(Err.INVALID_REQUEST, "give either replica assignments or a replication factor")
    if topic.num_partitions != -1:
        raise KafkaError(Err.INVALID_REQUEST, "give either replica assignments or a number of partitions")
    partitions: dict[int, Partition] = {}
    replication_factor: int | None = None
    for assignment in topic.assignments:
        number = assignment.partition_index
        if number in partitions:
            raise KafkaError(Err.INVALID_REPLICA_ASSIGNMENT, f"partition {number} is assigned twice")
        check_assignment(image, assignment.broker_ids, replication_factor)
        replication_factor = len(assignment.broker_ids)
        partitions[number] = _new_partition(
            image, rules.disk_space, topic.name, assignment.broker_ids, _active_of(image, assignment.broker_ids, number)
        )
    if set(partitions) != set(range(len(partitions))):
        raise KafkaError(Err.INVALID_REPLICA_ASSIGNMENT, "assigned partitions must be numbered 0, 1, 2, …")
    return [partitions[number] for number in range(len(partitions))]


def _active_of(image: Image, broker_ids: Iterable[int], number: int) -> list[int]:
    isr = [broker_id for broker_id in broker_ids if _is_active(image, broker_id)]
    if not isr:
        raise KafkaError(
            Err.INVALID_REPLICA_ASSIGNMENT,
            f"all brokers assigned to partition {number} are fenced or in controlled shutdown",
        )
    return isr


def check_assignment(image: Image, broker_ids: list[int], replication_factor: int | None) -> None:
    if not broker_ids:
        raise KafkaError(Err.INVALID_REPLICA_ASSIGNMENT, "an assignment has no replicas")
    previous = None
    for broker_id in sorted(broker_ids):
        if broker_id not in image.brokers:
            raise KafkaError(Err.INVALID_REPLICA_ASSIGNMENT, f"broker {broker_id} is assigned but not registered")
        if broker_id == previous:
            raise KafkaError(Err.INVALID_REPLICA_ASSIGNMENT, f"broker {broker_id} is assigned twice to one partition")
        previous = broker_id
    if replication_factor is not None and len(broker_ids) != replication_factor:
        raise KafkaError(
            Err.INVALID_REPLICA_ASSIGNMENT,
            f"a partition has {len(broker_ids)} replicas where the others have {replication_factor}",
        )


def _placed(image: Image, topic: Any, rules: TopicRules) -> list[Partition]:
    if topic.replication_factor < -1 or topic.replication_factor == 0:
        raise KafkaError(
            Err.INVALID_REPLICATION_FACTOR, "the replication factor must be above 0, or -1 for the default"
        )
    if topic.num_partitions < -1 or topic.num_partitions == 0:
        raise KafkaError(Err.INVALID_PARTITIONS, "the number of partitions must be above 0, or -1 for the default")
    count = rules.default_partitions if topic.num_partitions == -1 else topic.num_partitions
    factor = rules.default_replication_factor if topic.replication_factor == -1 else topic.replication_factor
    check_size(count)
    brokers = brokers_with_space(image, rules.disk_space, topic.name, factor)
    return [
        _new_partition(image, rules.disk_space, topic.name, replicas, _active_replicas(image, replicas))
        for replicas in place(brokers, count, factor, rules.dice, rules.placer)
    ]


def _active_replicas(image: Image, replicas: Iterable[int]) -> list[int]:
    isr = [broker_id for broker_id in replicas if _is_active(image, broker_id)]
    if not isr:
        raise KafkaError(Err.INVALID_REPLICATION_FACTOR, "all brokers are currently fenced or in controlled shutdown")
    return isr


# --- delete ---------------------------------------------------------------------------------------------------------


def delete_topics(
    image: Image,
    request: m.DeleteTopicsRequest,
    *,
    enabled: bool,
    version: int,
    describable: Callable[[str], bool] = lambda name: True,
    deletable: Callable[[str], bool] = lambda name: True,
) -> Outcome[m.DeleteTopicsResponse]:
    """Raises KafkaError for the whole request when deletion is switched off."""
    if not enabled:
        raise KafkaError(
            Err.INVALID_REQUEST if version < 3 else Err.TOPIC_DELETION_DISABLED,
            "delete.topic.enable is false",
        )
    results: list[Any] = []

    def answer(name: str | None, topic_id: bytes, error: Err, message: str | None = None) -> None:
        results.append(
            m.DeleteTopicsResponse.DeletableTopicResult(
                name=name, topic_id=topic_id, error_code=error, error_message=message
            )
        )

    names, ids = _asked(request, answer)
    chosen: dict[bytes, str] = {}
    for topic_id in ids:
        topic: Topic | None = image.topics.get(topic_id)
        if topic is None:
            answer(None, topic_id, Err.UNKNOWN_TOPIC_ID)
        elif not deletable(topic.name):
            seen = topic.name if describable(topic.name) else None
            answer(seen, topic_id, Err.TOPIC_AUTHORIZATION_FAILED)
        else:
            chosen[topic_id] = topic.name
    for name in names:
        found: bytes | None = image.topic_ids.get(name)
        if not describable(name):
            answer(name, NO_TOPIC_ID, Err.TOPIC_AUTHORIZATION_FAILED)
        elif found is None:
            answer(name, NO_TOPIC_ID, Err.UNKNOWN_TOPIC_OR_PARTITION)
        elif not deletable(name):
            answer(name, NO_TOPIC_ID, Err.TOPIC_AUTHORIZATION_FAILED)
        elif found in chosen:
            del chosen[found]
            answer(name, found, Err.INVALID_REQUEST, "the topic is named both by its name and by its id")
        else:
            chosen[found] = name
    records: list[Record] = []
    for topic_id, name in chosen.items():
        records.append((m.RemoveTopicRecord(topic_id=topic_id), 0))
        answer(name, topic_id, Err.NONE)
    check_size(len(records))
    return Outcome(records, m.DeleteTopicsResponse(responses=results))


def _asked(request: m.DeleteTopicsRequest, answer: Callable[..., None]) -> tuple[list[str], list[bytes]]:
    """Names and ids that are asked for once; the others are answered here."""
    names: dict[str, int] = {}
    ids: dict[bytes, int] = {}
    for name in request.topic_names:
        names[name] = names.get(name, 0) + 1
    for topic in request.topics:
        if topic.name is None and topic.topic_id == NO_TOPIC_ID:
            answer(None, NO_TOPIC_ID, Err.INVALID_REQUEST, "neither a topic name nor a topic id is given")
        elif topic.name is None:
            ids[topic.topic_id] = ids.get(topic.topic_id, 0) + 1
        elif topic.topic_id == NO_TOPIC_ID:
            names[topic.name] = names.get(topic.name, 0) + 1
        else:
            answer(topic.name, topic.topic_id, Err.INVALID_REQUEST, "give a topic name or a topic id, not both")
    for name, count in names.items():
        if count > 1:
            answer(name, NO_TOPIC_ID, Err.INVALID_REQUEST, "the topic is named twice in the request")
    for topic_id, count in ids.items():
        if count > 1:
            answer(None, topic_id, Err.INVALID_REQUEST, "the topic id is given twice in the request")
    return [n for n, count in names.items() if count == 1], [i for i, count in ids.items() if count == 1]


# --- more partitions ------------------------------------------------------------------------------------------------


def create_partitions(
    image: Image,
    request: m.CreatePartitionsRequest,
    dice: Dice,
    disk_space: DiskSpace,
    alterable: Callable[[str], bool] = lambda name: True,
    placer: str = DEFAULT_PLACER,
) -> Outcome[m.CreatePartitionsResponse]:
    counts: dict[str, int] = {}
    for topic in request.topics:
        counts[topic.name] = counts.get(topic.name, 0) + 1
    records: list[Record] = []
    results = [
        _partitions_result(name, Err.INVALID_REQUEST, "the topic is named twice in the request")
        for name, count in counts.items()
        if count > 1
    ]
    for topic in request.topics:
        if counts[topic.name] > 1:
            continue
        if not alterable(topic.name):
            results.append(_partitions_result(topic.name, Err.TOPIC_AUTHORIZATION_FAILED, None))
            continue
        try:
            records += _more_partitions(image, topic, dice, disk_space, placer)
        except TooManyChanges as error:
            # Kafka stumbles here where CreateTopics says POLICY_VIOLATION; the code is what clients have learnt.
            results.append(_partitions_result(topic.name, Err.UNKNOWN_SERVER_ERROR, error.message))
        except KafkaError as error:
            results.append(_partitions_result(topic.name, error.error, error.message))
        else:
            check_size(len(records))
            results.append(_partitions_result(topic.name, Err.NONE, None))
    return Outcome([] if request.validate_only else records, m.CreatePartitionsResponse(results=results))


def _partitions_result(name: str, error: Err, message: str | None) -> Any:
    return m.CreatePartitionsResponse.CreatePartitionsTopicResult(name=name, error_code=error, error_message=message)


def _more_partitions(image: Image, wanted: Any, dice: Dice, disk_space: DiskSpace, placer: str) -> list[Record]:
    topic = image.topic_named(wanted.name)
    if topic is None:
        raise KafkaError(Err.UNKNOWN_TOPIC_OR_PARTITION)
    have = len(topic.partitions)
    if wanted.count == have:
        raise KafkaError(Err.INVALID_PARTITIONS, f"topic {topic.name} has {have} partitions already")
    if wanted.count < have:
        raise KafkaError(
            Err.INVALID_PARTITIONS,
            f"topic {topic.name} has {have} partitions and cannot go down to {wanted.count}",
        )
    more = wanted.count - have
    if wanted.assignments is not None and len(wanted.assignments) != more:
        raise KafkaError(
            Err.INVALID_REPLICA_ASSIGNMENT, f"{len(wanted.assignments)} assignments for {more} new partitions"
        )
    check_size(more)
    factor = len(next(iter(topic.partitions.values())).replicas)
    records: list[Record] = []
    if wanted.assignments is not None:
        chosen = [assignment.broker_ids for assignment in wanted.assignments]
        for number, replicas in enumerate(chosen, have):
            check_assignment(image, replicas, factor)
            isr = _active_of(image, replicas, number)
            records.append(_partition(image, disk_space, topic, number, replicas, isr))
        return records
    brokers = brokers_with_space(image, disk_space, topic.name, factor)
    for number, replicas in enumerate(place(brokers, more, factor, dice, placer), have):
        records.append(_partition(image, disk_space, topic, number, replicas, _active_replicas(image, replicas)))
    return records


def _partition(
    image: Image, disk_space: DiskSpace, topic: Topic, number: int, replicas: Collection[int], isr: list[int]
) -> Record:
    partition = _new_partition(image, disk_space, topic.name, replicas, isr)
    return partition_record(partition, topic.id, number, image.metadata_version)
