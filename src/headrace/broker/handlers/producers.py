"""InitProducerId v0-5: ids for idempotent producers, from blocks that are recorded before use and never reused.
v3: a producer may name its id and epoch to bump it. Transactional ids are refused until there are transactions.

DescribeProducers v0.
"""

from typing import TYPE_CHECKING, Any

from headrace.broker.connection import Request
from headrace.broker.handlers.metadata import unknown_topic_error
from headrace.broker.partition import Partition
from headrace.client.errors import err_of
from headrace.errors import Err, KafkaError
from headrace.protocol import messages as m
from headrace.protocol.api import ApiKey

if TYPE_CHECKING:
    from headrace.broker.server import Broker


class ProducerIds:
    """Hands out producer ids one by one from the block this broker was given."""

    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self._next = 0
        self._end = 0

    async def take(self) -> int:
        while self._next == self._end:
            await self._new_block()
        self._next += 1
        return self._next - 1

    async def _new_block(self) -> None:
        broker = self._broker
        request = m.AllocateProducerIdsRequest(broker_id=broker.node_id, broker_epoch=broker.node.broker_epoch)
        block = await broker.channel.request(ApiKey.ALLOCATE_PRODUCER_IDS, request)
        if block.error_code:
            raise KafkaError(err_of(block.error_code))
        if self._next == self._end:  # else another request was first, and this block is left out
            self._next = block.producer_id_start
            self._end = block.producer_id_start + block.producer_id_len


async def init_producer_id(
    broker: "Broker", request: Request, message: m.InitProducerIdRequest
) -> m.InitProducerIdResponse:
    R = m.InitProducerIdResponse
    if message.transactional_id is not None:
        # An empty id is malformed in Kafka too; any other needs a coordinator, which is not served here.
        error = Err.UNSUPPORTED_VERSION
        if not message.transactional_id:
            error = Err.INVALID_REQUEST
        elif not 0 < message.transaction_timeout_ms <= broker.config["transaction.max.timeout.ms"]:
            error = Err.INVALID_TRANSACTION_TIMEOUT
        return R(error_code=error, producer_id=-1, producer_epoch=-1)
    if (message.producer_id == -1) != (message.producer_epoch == -1):
        return R(error_code=Err.INVALID_REQUEST, producer_id=-1, producer_epoch=-1)
    try:
        # Without a transactional id nothing ties the old id to this producer: it gets a new one, as in Kafka.
        return R(producer_id=await broker.node.producer_ids.take(), producer_epoch=0)
    except KafkaError as error:
        return R(error_code=error.error, producer_id=-1, producer_epoch=-1)


def describe_producers(
    broker: "Broker", request: Request, message: m.DescribeProducersRequest
) -> m.DescribeProducersResponse:
    R = m.DescribeProducersResponse
    response = R()
    for topic in message.topics:
        partitions = []
        unknown = None if topic.name in broker.image.topic_ids else unknown_topic_error(topic.name)
        for index in topic.partition_indexes:
            result = R.PartitionResponse(partition_index=index)
            try:
                if unknown is not None:
                    raise KafkaError(unknown)
                result.active_producers = _producers(broker.replicas.find(topic.name, index))
            except KafkaError as error:
                result.error_code = error.error
                result.error_message = error.message
            partitions.append(result)
        response.topics.append(R.TopicResponse(name=topic.name, partitions=partitions))
    return response


def _producers(partition: Partition) -> list[Any]:
    if partition.failed:
        raise KafkaError(Err.KAFKA_STORAGE_ERROR, "the log directory of this partition is offline")
    return [
        m.DescribeProducersResponse.ProducerState(
            producer_id=view.producer_id,
            producer_epoch=view.producer_epoch,
            last_sequence=view.last_sequence,
            last_timestamp=view.last_timestamp,
            coordinator_epoch=view.coordinator_epoch,
            current_txn_start_offset=view.current_txn_start_offset,
        )
        for view in partition.log.producers.describe()
    ]
