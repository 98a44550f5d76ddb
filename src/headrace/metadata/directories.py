"""Where replicas lie: a broker with several log dirs chooses, and tells the controller. AssignReplicasToDirs v0
(KIP-858).

A broker that starts without one of its dirs then knows which partitions it must not start empty, and the controller
knows that this broker cannot lead them.
"""

from collections.abc import Mapping
from typing import Any

from headrace.errors import Err, KafkaError
from headrace.metadata.brokers import changes_without, check_broker_epoch
from headrace.metadata.image import RESERVED_DIRECTORIES_END, Image, Partition, PartitionKey
from headrace.metadata.outcome import Outcome
from headrace.metadata.policy import ElectionPolicy
from headrace.metadata.records import Record
from headrace.metadata.versions import DIRECTORIES_LEVEL, level
from headrace.protocol import messages as m


def is_reserved(directory: bytes) -> bool:
    """Not a directory but a word for one: not assigned yet, lost, or from before directories had ids."""
    return int.from_bytes(directory, "big") < RESERVED_DIRECTORIES_END


def assignment_request(
    broker_id: int, broker_epoch: int, directories: Mapping[PartitionKey, bytes]
) -> m.AssignReplicasToDirsRequest:
    """What a broker tells: the directory of each (topic id, partition)."""
    Q = m.AssignReplicasToDirsRequest
    found: dict[bytes, dict[bytes, list[int]]] = {}
    for (topic_id, number), directory in directories.items():
        found.setdefault(directory, {}).setdefault(topic_id, []).append(number)
    return Q(
        broker_id=broker_id,
        broker_epoch=broker_epoch,
        directories=[
            Q.DirectoryData(
                id=directory,
                topics=[
                    Q.TopicData(topic_id=topic_id, partitions=[Q.PartitionData(partition_index=n) for n in numbers])
                    for topic_id, numbers in topics.items()
                ],
            )
            for directory, topics in found.items()
        ],
    )


def assign_replicas(
    image: Image, request: m.AssignReplicasToDirsRequest, policy: ElectionPolicy
) -> Outcome[m.AssignReplicasToDirsResponse]:
    """Raises for the whole request; what is wrong with one partition is answered there."""
    R = m.AssignReplicasToDirsResponse
    if image.metadata_version < DIRECTORIES_LEVEL:
        raise KafkaError(Err.UNSUPPORTED_VERSION, "this metadata.version knows nothing of directories")
    broker = check_broker_epoch(image, request.broker_id, request.broker_epoch)
    records: list[Record] = []
    lost: list[tuple[PartitionKey, Partition]] = []
    response = R()
    for directory in request.directories:
        topics: list[Any] = []
        for asked in directory.topics:
            answers: list[Any] = []
            for row in asked.partitions:
                error = _assign(image, broker.id, asked.topic_id, row.partition_index, directory.id, records)
                if not error and not broker.has_online_directory(directory.id):
                    key = (asked.topic_id, row.partition_index)
                    lost.append((key, image.topics[key[0]].partitions[key[1]]))
                answers.append(R.PartitionData(partition_index=row.partition_index, error_code=error))
            topics.append(R.TopicData(topic_id=asked.topic_id, partitions=answers))
        response.directories.append(R.DirectoryData(id=directory.id, topics=topics))
    # The broker may have lost the directory between choosing it and telling.
    in_sync = ((key, partition) for key, partition in lost if broker.id in partition.isr)
    records += changes_without(image, in_sync, policy, broker.id)
    return Outcome(records, response)


def _assign(image: Image, broker_id: int, topic_id: bytes, number: int, directory: bytes, records: list[Record]) -> Err:
    topic = image.topics.get(topic_id)
    if topic is None:
        return Err.UNKNOWN_TOPIC_ID
    partition = topic.partitions.get(number)
    if partition is None:
        return Err.UNKNOWN_TOPIC_OR_PARTITION
    if broker_id not in partition.replicas:
        return Err.NOT_LEADER_OR_FOLLOWER
    if partition.directory_of(broker_id) != directory:
        assigned = [
            directory if replica == broker_id else known
            for replica, known in zip(partition.replicas, partition.directories)
        ]
        version = level(image.metadata_version).partition_change_record
        records.append((m.PartitionChangeRecord(topic_id=topic_id, partition_id=number, directories=assigned), version))
    return Err.NONE
