"""Blocks of producer ids: handed out once, recorded before use, never again."""

from headrace.errors import Err, KafkaError
from headrace.metadata.brokers import check_broker_epoch
from headrace.metadata.image import Image
from headrace.metadata.outcome import Outcome
from headrace.protocol import messages as m

BLOCK_SIZE = 1000
INT64_MAX = (1 << 63) - 1


def allocate_producer_ids(
    image: Image, request: m.AllocateProducerIdsRequest
) -> Outcome[m.AllocateProducerIdsResponse]:
    check_broker_epoch(image, request.broker_id, request.broker_epoch)
    first = max(image.next_producer_id, 0)
    if first > INT64_MAX - BLOCK_SIZE:
        raise KafkaError(Err.UNKNOWN_SERVER_ERROR, "all producer ids have been handed out")
    record = m.ProducerIdsRecord(
        broker_id=request.broker_id, broker_epoch=request.broker_epoch, next_producer_id=first + BLOCK_SIZE
    )
    return Outcome([(record, 0)], m.AllocateProducerIdsResponse(producer_id_start=first, producer_id_len=BLOCK_SIZE))
