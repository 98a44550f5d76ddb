"""Moving partitions: AlterPartitionReassignments v0-1 (v1: the replication factor may be kept fixed, KIP-860) and
ListPartitionReassignments v0.

A move first adds the new replicas to the old ones. Once the new ones are in sync, the ISR change that says so also
completes the move (`partitions.change`): the old replicas leave. A move can be taken back until then.
"""

from typing import Any

from headrace.errors import Err, KafkaError
from headrace.metadata.brokers import partition_rules
from headrace.metadata.image import Image, Partition, Topic
from headrace.metadata.isr import is_active
from headrace.metadata.outcome import Outcome, check_size
from headrace.metadata.partitions import Election, Wanted, change
from headrace.metadata.policy import ElectionPolicy
from headrace.metadata.records import Record
from headrace.metadata.topics import check_assignment
from headrace.protocol import messages as m


def alter_reassignments(
    image: Image, request: m.AlterPartitionReassignmentsRequest, policy: ElectionPolicy
) -> Outcome[m.AlterPartitionReassignmentsResponse]:
    """Null replicas take a move back."""
    R = m.AlterPartitionReassignmentsResponse
    response = R(allow_replication_factor_change=request.allow_replication_factor_change, error_message=None)
    records: list[Record] = []
    for asked in request.topics:
        answers: list[Any] = []
        for target in asked.partitions:
            error, message = Err.NONE, None
            try:
                topic, partition = _find(image, asked.name, target.partition_index)
                if target.replicas is None:
                    record = _cancel(image, topic, target.partition_index, partition, policy)
                else:
                    if not request.allow_replication_factor_change:
                        _check_factor(partition, target.replicas)
                    record = _move(image, topic, target.partition_index, partition, target.replicas, policy)
                if record is not None:
                    records.append(record)
            except KafkaError as refused:
                error, message = refused.error, refused.message
            answers.append(
                R.ReassignablePartitionResponse(
                    partition_index=target.partition_index, error_code=error, error_message=message
                )
            )
        response.responses.append(R.ReassignableTopicResponse(name=asked.name, partitions=answers))
    check_size(len(records))
    return Outcome(records, response)


def _find(image: Image, name: str, number: int) -> tuple[Topic, Partition]:
    topic = image.topic_named(name)
    if topic is None:
        raise KafkaError(Err.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name}")
    partition = topic.partitions.get(number)
    if partition is None:
        raise KafkaError(Err.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {name}-{number}")
    return topic, partition


def _check_factor(partition: Partition, target: list[int]) -> None:
    current = {*partition.replicas, *partition.adding} - set(partition.removing)
    if len(current) != len(target):
        raise KafkaError(
            Err.INVALID_REPLICATION_FACTOR,
            f"the replication factor would change from {len(current)} to {len(target)}",
        )


def _move(
    image: Image, topic: Topic, number: int, partition: Partition, target: list[int], policy: ElectionPolicy
) -> Record | None:
    check_assignment(image, target, None)
    removing = sorted(set(partition.replicas) - set(target))
    adding = sorted(set(target) - set(partition.replicas))
    wanted = Wanted.of(partition)
    wanted.replicas = [*target, *removing]
    # A move that replaces another: a replica that was to come and is now to go does not hold it up, nor vice versa.
    wanted.removing = removing or [replica for replica in wanted.removing if replica not in target]
    wanted.adding = adding or [replica for replica in wanted.adding if replica not in removing]
    return _changed(image, topic, number, partition, wanted, policy, Election.ONLINE)


def _cancel(image: Image, topic: Topic, number: int, partition: Partition, policy: ElectionPolicy) -> Record | None:
    if not partition.reassigning:
        raise KafkaError(Err.NO_REASSIGNMENT_IN_PROGRESS, "no move of this partition is in progress")
    unclean = policy.unclean_election(image, topic.name)
    wanted = Wanted.of(partition)
    wanted.replicas = [replica for replica in partition.replicas if replica not in partition.adding]
    wanted.isr = [replica for replica in partition.isr if replica not in partition.adding]
    if not wanted.isr:
        if not unclean or not wanted.replicas:
            raise KafkaError(
                Err.INVALID_REPLICA_ASSIGNMENT,
                f"only new replicas of {topic.name}-{number} are in sync: going back would be an unclean election",
            )
        wanted.isr = wanted.replicas[:1]
    wanted.removing, wanted.adding = [], []
    election = Election.UNCLEAN if unclean else Election.ONLINE
    return _changed(image, topic, number, partition, wanted, policy, election)


def _changed(
    image: Image,
    topic: Topic,
    number: int,
    partition: Partition,
    wanted: Wanted,
    policy: ElectionPolicy,
    election: Election,
) -> Record | None:
    rules = partition_rules(image, topic.name, partition, policy, lambda broker_id: is_active(image, broker_id))
    return change(partition, topic.id, number, wanted, rules, election)


def list_reassignments(
    image: Image, request: m.ListPartitionReassignmentsRequest
) -> m.ListPartitionReassignmentsResponse:
    """Null topics mean all moves; only moves are looked at, however many partitions there are."""
    R = m.ListPartitionReassignmentsResponse
    asked: dict[str, list[int]] = {}
    if request.topics is None:
        for topic_id, number in image.reassigning:
            asked.setdefault(image.topics[topic_id].name, []).append(number)
        asked = {name: sorted(numbers) for name, numbers in sorted(asked.items())}
    else:
        for topic in request.topics:
            asked.setdefault(topic.name, []).extend(topic.partition_indexes)
    response = R(error_message=None)
    for name, numbers in asked.items():
        found = image.topic_named(name)
        moving = [
            R.OngoingPartitionReassignment(
                partition_index=number,
                replicas=list(partition.replicas),
                adding_replicas=list(partition.adding),
                removing_replicas=list(partition.removing),
            )
            for number in numbers
            if found is not None and (partition := found.partitions.get(number)) is not None and partition.reassigning
        ]
        if moving:
            response.topics.append(R.OngoingTopicReassignment(name=name, partitions=moving))
    return response
