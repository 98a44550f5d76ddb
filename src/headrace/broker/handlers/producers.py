"""InitProducerId v0-6: ids for idempotent producers, from blocks that are recorded before use and never reused; for
transactional ones, what their coordinator says. v3: a producer may name its id and epoch to bump it (KIP-360).
v4: PRODUCER_FENCED. v6: two-phase commit (KIP-939), only where it is switched on.

DescribeProducers v0.
"""

import asyncio
from functools import partial
from typing import Any

from headrace.broker.cluster.node import Node
from headrace.broker.cluster.producer_ids import ProducerIds
from headrace.broker.coordinators.transactions import TransactionCoordinator
from headrace.broker.handlers.metadata import unknown_topic_error
from headrace.broker.net.request import Request
from headrace.broker.replicas.hosted import Replicas
from headrace.broker.replicas.partition import Partition
from headrace.coordinator.shard_requests import LOG_ERRORS
from headrace.coordinator.transactions.shard import Producer
from headrace.errors import Err, KafkaError
from headrace.protocol import messages as m

FENCED_SINCE = 4
"""The version of InitProducerId from which clients know PRODUCER_FENCED."""


class ProducerHandlers:
    """Ids for producers, and which producers a partition knows."""

    def __init__(
        self, node: Node, producer_ids: ProducerIds, replicas: Replicas, transactions: TransactionCoordinator
    ) -> None:
        self._node = node
        self._ids = producer_ids
        self._replicas = replicas
        self._transactions = transactions

    async def init_producer_id(self, request: Request, message: m.InitProducerIdRequest) -> m.InitProducerIdResponse:
        if (message.producer_id == -1) != (message.producer_epoch == -1):
            return _initialized(Producer(Err.INVALID_REQUEST), request.version)
        try:
            if message.transactional_id is None:
                # Nothing ties the old id to this producer: it gets a new one, as in Kafka.
                return _initialized(Producer(Err.NONE, await self._ids.take(), 0), request.version)
            return _initialized(await self._begin(message), request.version)
        except KafkaError as error:
            return _initialized(Producer(error.error), request.version)

    async def _begin(self, message: m.InitProducerIdRequest) -> Producer:
        """A transactional producer begins, at the coordinator of its id."""
        id = message.transactional_id
        assert id is not None
        wrong = self._transactions.shard_config.refusal(id, message.transaction_timeout_ms, message.enable2_pc)
        if wrong:
            raise KafkaError(wrong)
        await self._ids.ready()
        expected = None if message.producer_id == -1 else (message.producer_id, message.producer_epoch)
        host = self._transactions.host(id)
        decision = partial(
            host.shard.init_producer_id, id, message.transaction_timeout_ms, expected,
            two_phase=message.enable2_pc, keep_prepared=message.keep_prepared_txn,
        )  # fmt: skip
        asker = _Asker()
        began: Producer | None = host.ask(decision, asker)
        return began if began is not None else await asker.answered

    def describe_producers(self, request: Request, message: m.DescribeProducersRequest) -> m.DescribeProducersResponse:
        R = m.DescribeProducersResponse
        response = R()
        for topic in message.topics:
            partitions = []
            unknown = None if topic.name in self._node.image.topic_ids else unknown_topic_error(topic.name)
            for index in topic.partition_indexes:
                result = R.PartitionResponse(partition_index=index)
                try:
                    if unknown is not None:
                        raise KafkaError(unknown)
                    result.active_producers = _producers(self._replicas.find(topic.name, index))
                except KafkaError as error:
                    result.error_code = error.error
                    result.error_message = error.message
                partitions.append(result)
            response.topics.append(R.TopicResponse(name=topic.name, partitions=partitions))
        return response


class _Asker:
    """A producer that waits for its coordinator."""

    def __init__(self) -> None:
        self.answered: asyncio.Future[Producer] = asyncio.get_running_loop().create_future()

    def answer(self, response: Producer) -> None:
        if not self.answered.done():
            self.answered.set_result(response)

    def refusal(self, error: Err) -> Producer:
        return Producer(LOG_ERRORS.get(error) or error)


def _initialized(producer: Producer, version: int) -> m.InitProducerIdResponse:
    error = producer.error
    if error is Err.PRODUCER_FENCED and version < FENCED_SINCE:
        error = Err.INVALID_PRODUCER_EPOCH
    return m.InitProducerIdResponse(
        error_code=error,
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        ongoing_txn_producer_id=producer.ongoing_producer_id,
        ongoing_txn_producer_epoch=producer.ongoing_producer_epoch,
    )


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
