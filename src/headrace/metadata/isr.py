"""Leaders change their ISRs: AlterPartition v2-3 (v2: topics by id, v3: with the broker epoch of each member).

The leader proposes, going by what its followers have fetched. The controller checks that every new member is alive, and
that the leader knows the partition's current state: its leader epoch and its partition epoch.
"""

from typing import Any

from headrace.errors import Err, KafkaError
from headrace.metadata.brokers import check_broker_epoch, partition_rules
from headrace.metadata.delta import NO_LEADER_CHANGE, merge
from headrace.metadata.image import RECOVERED, RECOVERING, Broker, Image, Partition, Topic
from headrace.metadata.outcome import Outcome
from headrace.metadata.partitions import Election, Wanted, change
from headrace.metadata.policy import ElectionPolicy
from headrace.metadata.records import Record
from headrace.protocol import messages as m

R = m.AlterPartitionResponse
ANY_EPOCH = -1


def alter_partition(
    image: Image, request: m.AlterPartitionRequest, version: int, policy: ElectionPolicy
) -> Outcome[m.AlterPartitionResponse]:
    """Raises STALE_BROKER_EPOCH for the whole request; all else is answered partition by partition."""
    check_broker_epoch(image, request.broker_id, request.broker_epoch)
    records: list[Record] = []
    response = R()
    for asked in request.topics:
        answers: list[Any] = []
        topic: Topic | None = image.topics.get(asked.topic_id)
        for proposal in asked.partitions:
            if topic is None:
                answers.append(_refused(proposal, Err.UNKNOWN_TOPIC_ID))
                continue
            try:
                record, answer = _alter(image, topic, proposal, request.broker_id, version, policy)
            except KafkaError as error:
                answers.append(_refused(proposal, error.error))
                continue
            if record is not None:
                records.append(record)
            answers.append(answer)
        response.topics.append(R.TopicData(topic_id=asked.topic_id, partitions=answers))
    return Outcome(records, response)


def _refused(proposal: Any, error: Err) -> Any:
    return R.PartitionData(partition_index=proposal.partition_index, error_code=error)


def _alter(
    image: Image, topic: Topic, proposal: Any, leader: int, version: int, policy: ElectionPolicy
) -> tuple[Record | None, Any]:
    number = proposal.partition_index
    if version >= 3:
        members = [(state.broker_id, state.broker_epoch) for state in proposal.new_isr_with_epochs]
    else:
        members = [(broker_id, ANY_EPOCH) for broker_id in proposal.new_isr]
    partition = _checked(topic.partitions.get(number), proposal, leader, members)
    _check_eligible(image, members)
    for broker_id, _ in members:
        if broker_id not in partition.isr and not policy.disk_space.has_space_for(
            image, topic.name, partition, broker_id
        ):
            raise KafkaError(Err.INELIGIBLE_REPLICA)  # it would be out again with the next record
    wanted = Wanted.of(partition)
    wanted.isr = [broker_id for broker_id, _ in members]
    wanted.recovery_state = proposal.leader_recovery_state
    election = Election.UNCLEAN if policy.unclean_election(image, topic.name) else Election.ONLINE
    rules = partition_rules(image, topic.name, partition, policy, lambda broker_id: is_active(image, broker_id))
    record = change(partition, topic.id, number, wanted, rules, election)
    if record is not None:
        partition = merge(partition, record[0])
        if record[0].leader not in (leader, NO_LEADER_CHANGE):
            # The ISR completed a reassignment that moved the leader away: both an error and a change.
            return record, _refused(proposal, Err.NEW_LEADER_ELECTED)
    return record, R.PartitionData(
        partition_index=number,
        leader_id=partition.leader,
        leader_epoch=partition.leader_epoch,
        isr=list(partition.isr),
        leader_recovery_state=partition.recovery_state,
        partition_epoch=partition.partition_epoch,
    )


def is_active(image: Image, broker_id: int) -> bool:
    broker: Broker | None = image.brokers.get(broker_id)
    return broker is not None and broker.active


def _checked(partition: Partition | None, proposal: Any, leader: int, members: list[tuple[int, int]]) -> Partition:
    """The partition that a proposal is about, if it is about the partition as it stands."""
    if partition is None:
        raise KafkaError(Err.UNKNOWN_TOPIC_OR_PARTITION)
    if proposal.leader_epoch > partition.leader_epoch or proposal.partition_epoch > partition.partition_epoch:
        # The leader knows of something that this controller does not: another one must be active.
        raise KafkaError(Err.NOT_CONTROLLER)
    if proposal.leader_epoch < partition.leader_epoch:
        raise KafkaError(Err.FENCED_LEADER_EPOCH)
    if leader != partition.leader:
        raise KafkaError(Err.INVALID_REQUEST)
    if proposal.partition_epoch < partition.partition_epoch:
        raise KafkaError(Err.INVALID_UPDATE_VERSION)
    isr = [broker_id for broker_id, _ in members]
    if len(set(isr)) != len(isr) or not set(isr) <= set(partition.replicas) or leader not in isr:
        raise KafkaError(Err.INVALID_REQUEST)
    recovering = proposal.leader_recovery_state == RECOVERING
    if recovering and (len(isr) > 1 or partition.recovery_state == RECOVERED):
        raise KafkaError(Err.INVALID_REQUEST)
    return partition


def _check_eligible(image: Image, members: list[tuple[int, int]]) -> None:
    """A fenced broker cannot be in sync, nor one that restarted since: what it had fetched may be lost to it."""
    for broker_id, epoch in members:
        if not is_active(image, broker_id) or epoch not in (ANY_EPOCH, image.brokers[broker_id].epoch):
            raise KafkaError(Err.INELIGIBLE_REPLICA)
