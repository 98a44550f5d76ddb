"""Elections that a person or a timer asks for: ElectLeaders v0-2.

v1 added the election type (preferred, or unclean for partitions without a leader), v2 is flexible.
"""

from typing import Any

from headrace.errors import Err, KafkaError
from headrace.metadata.brokers import partition_rules
from headrace.metadata.image import NO_LEADER, Broker, Image
from headrace.metadata.outcome import Outcome, check_size
from headrace.metadata.partitions import Election, Wanted, change
from headrace.metadata.policy import ElectionPolicy
from headrace.metadata.records import Record
from headrace.protocol import messages as m

_TYPES = {0: Election.PREFERRED, 1: Election.UNCLEAN}


def elect_leaders(
    image: Image, request: m.ElectLeadersRequest, policy: ElectionPolicy
) -> Outcome[m.ElectLeadersResponse]:
    """Null topics mean all partitions, of which those that need no election are not mentioned."""
    if request.topic_partitions == []:
        return Outcome([], m.ElectLeadersResponse())
    election = _TYPES.get(request.election_type)
    if election is None:
        raise KafkaError(Err.INVALID_REQUEST, f"{request.election_type} is not a type of election")
    everything = request.topic_partitions is None
    records: list[Record] = []
    results: list[Any] = []
    for name, numbers in _asked(image, request):
        answered: list[Any] = []
        for number in numbers:
            error, message = Err.NONE, None
            try:
                records.append(_elect(image, name, number, election, policy))
            except KafkaError as refused:
                error, message = refused.error, refused.message
            if not (everything and error is Err.ELECTION_NOT_NEEDED):
                answered.append(
                    m.ElectLeadersResponse.PartitionResult(partition_id=number, error_code=error, error_message=message)
                )
        results.append(m.ElectLeadersResponse.ReplicaElectionResult(topic=name, partition_result=answered))
    check_size(len(records))
    return Outcome(records, m.ElectLeadersResponse(replica_election_results=results))


def balance_leaders(image: Image, policy: ElectionPolicy, limit: int) -> list[Record]:
    """Give leadership back to preferred replicas that may lead again, some at a time."""
    records: list[Record] = []
    for topic_id, number in image.imbalanced:
        if len(records) == limit:
            break
        try:
            records.append(_elect(image, image.topics[topic_id].name, number, Election.PREFERRED, policy))
        except KafkaError:
            continue  # its preferred replica is not there yet
    return records


def _asked(image: Image, request: m.ElectLeadersRequest) -> list[tuple[str, list[int]]]:
    if request.topic_partitions is not None:
        return [(topic.topic, topic.partitions) for topic in request.topic_partitions]
    return [(name, sorted(image.topics[topic_id].partitions)) for name, topic_id in sorted(image.topic_ids.items())]


def _elect(image: Image, name: str, number: int, election: Election, policy: ElectionPolicy) -> Record:
    topic = image.topic_named(name)
    partition = topic.partitions.get(number) if topic is not None else None
    if topic is None or partition is None:
        raise KafkaError(Err.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {name}-{number}")
    preferred = election is Election.PREFERRED
    if partition.leader == partition.replicas[0] if preferred else partition.leader != NO_LEADER:
        raise KafkaError(Err.ELECTION_NOT_NEEDED)

    def alive(broker_id: int) -> bool:
        broker: Broker | None = image.brokers.get(broker_id)
        return broker is not None and broker.active

    rules = partition_rules(image, name, partition, policy, alive)
    record = change(partition, topic.id, number, Wanted.of(partition), rules, election)
    if record is None:
        raise KafkaError(Err.PREFERRED_LEADER_NOT_AVAILABLE if preferred else Err.ELIGIBLE_LEADERS_NOT_AVAILABLE)
    return record
