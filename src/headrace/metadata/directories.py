"""Where replicas lie: a broker with several log dirs chooses, and tells the controller (KIP-858).

A broker that starts without one of its dirs then knows which partitions it must not begin anew, and the controller
that it cannot lead them.
"""

from collections.abc import Mapping

from headrace.metadata.image import RESERVED_DIRECTORIES_END, Image
from headrace.metadata.records import Record
from headrace.metadata.versions import DIRECTORIES_LEVEL, level
from headrace.protocol import messages as m


def is_reserved(directory: bytes) -> bool:
    """Not a directory but a word for one: not assigned yet, lost, or from before directories had ids."""
    return int.from_bytes(directory, "big") < RESERVED_DIRECTORIES_END


def assign_directories(
    image: Image, broker_id: int, directories: Mapping[tuple[bytes, int], bytes]
) -> list[Record]:
    """Note the directory of each (topic id, partition) of a broker, where it is not known yet."""
    if image.metadata_version < DIRECTORIES_LEVEL:
        return []
    records: list[Record] = []
    version = level(image.metadata_version).partition_change_record
    for (topic_id, number), directory in directories.items():
        partition = image.partition(topic_id, number)
        if partition is None or broker_id not in partition.replicas or partition.directory_of(broker_id) == directory:
            continue
        assigned = [
            directory if replica == broker_id else known
            for replica, known in zip(partition.replicas, partition.directories)
        ]
        records.append((m.PartitionChangeRecord(topic_id=topic_id, partition_id=number, directories=assigned), version))
    return records
