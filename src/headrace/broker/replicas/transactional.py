"""What coordinators write to a partition on behalf of producers: the end of a transaction, and offsets within one."""

from headrace.broker.replicas.partition import Partition
from headrace.records.control import Marker, encode_marker
from headrace.records.layout import NO_SEQUENCE
from headrace.replication.verification import Verification


def append_marker(
    partition: Partition, producer_id: int, epoch: int, marker: Marker, transaction_version: int = 0
) -> int:
    """End a producer's transaction in this partition. Returns the marker's end offset; raises KafkaError."""
    log = partition.log
    log.producers.check_marker(producer_id, epoch, marker.coordinator_epoch, transaction_version)
    now_ms = partition.environment.wall_ms()
    data = bytearray(encode_marker(marker, producer_id=producer_id, producer_epoch=epoch, timestamp=now_ms))

    def record(offset: int) -> None:
        aborted = log.producers.end_transaction(producer_id, epoch, marker, offset, now_ms, transaction_version)
        if aborted is not None:
            log.add_aborted(aborted)

    return partition.append_own(data, 1, now_ms, record)


def end_older(partition: Partition, producer_id: int, epoch: int) -> None:
    """Before the first batch of a transaction that the coordinator has confirmed.

    It confirms none before all partitions have the marker of the one before. If that is open here all the same, its
    marker was lost with the power (`broker/transactions/left_open.py`). It must not be committed with the new one.
    """
    producers = partition.log.producers
    left_open = producers.left_open(producer_id, epoch)
    if left_open is not None:
        verification = producers.verification(producer_id)
        append_marker(partition, producer_id, left_open.producer_epoch, Marker(False, left_open.coordinator_epoch))
        producers.resume(producer_id, verification)


def append_in_transaction(
    partition: Partition,
    batch: bytearray,
    count: int,
    max_timestamp: int,
    producer_id: int,
    epoch: int,
    guard: Verification | None,
) -> int:
    """Append a transactional batch that a coordinator made for a producer. Returns its end offset; raises
    KafkaError."""
    producers = partition.log.producers
    producers.check_coordinator(producer_id, epoch, guard)

    def record(offset: int) -> None:
        producers.record(producer_id, epoch, NO_SEQUENCE, offset, count - 1, max_timestamp, True)

    return partition.append_own(batch, count, max_timestamp, record)
