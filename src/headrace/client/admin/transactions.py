"""Transactions seen from outside: listing and describing them, ending one, and finding those that nobody will end.

Works against Apache Kafka as well.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeVar

import msgspec

from headrace.client.admin.admin import Admin, only
from headrace.client.errors import RequestFailed, check
from headrace.client.net.cluster import Cluster
from headrace.client.net.connection import Connection
from headrace.client.net.coordinators import TRANSACTION, Coordinators
from headrace.errors import Err
from headrace.protocol import messages as m
from headrace.protocol.api import ApiKey

T = TypeVar("T")
TopicPartition = tuple[str, int]
FENCING_TIMEOUT_MS = 60_000
DURATION_VERSION, PATTERN_VERSION = 1, 2
"""Of ListTransactions, from which brokers can filter by these."""


class ListedTransaction(msgspec.Struct, frozen=True):
    transactional_id: str
    producer_id: int
    state: str
    coordinator: int


class Transaction(msgspec.Struct, frozen=True):
    transactional_id: str
    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    start_ms: int
    """-1 when none is open."""
    coordinator: int
    partitions: tuple[TopicPartition, ...]


class OpenTransaction(msgspec.Struct, frozen=True):
    """A transaction as the leader of one of its partitions knows it."""

    topic: str
    partition: int
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    start_offset: int
    last_timestamp: int


class Transactions:
    """`Transactions(admin)`: the transactions of the cluster that `admin` talks to."""

    def __init__(self, admin: Admin) -> None:
        self._admin = admin
        self._cluster: Cluster = admin.cluster
        self._coordinators = Coordinators(self._cluster, TRANSACTION, "transactional id")

    async def _request(self, connection: Connection, key: ApiKey, body: Any, version_max: int | None = None) -> Any:
        return await connection.request(key, body, version_max=version_max, timeout_s=self._cluster.request_timeout_s)

    async def _to_leader(self, topic: str, index: int, ask: Callable[[Connection], Awaitable[T]]) -> T:
        async def attempt() -> T:
            _, _, connection = await self._cluster.leader(topic, index)
            return await ask(connection)

        return await self._cluster.retrying(attempt, topics=[topic])

    async def list_transactions(
        self,
        states: Iterable[str] = (),
        *,
        producer_ids: Iterable[int] = (),
        longer_than_ms: int = -1,
        pattern: str | None = None,
    ) -> list[ListedTransaction]:
        """Of all coordinators, by transactional id. Raises RequestFailed when a broker cannot filter so."""
        await self._cluster.refresh(())
        wanted_states = list(states)
        request = m.ListTransactionsRequest(
            state_filters=wanted_states,
            producer_id_filters=list(producer_ids),
            duration_filter=longer_than_ms,
            transactional_id_pattern=pattern,
        )
        needed = PATTERN_VERSION if pattern is not None else DURATION_VERSION if longer_than_ms >= 0 else 0

        async def of(node_id: int) -> list[ListedTransaction]:
            async def attempt() -> list[ListedTransaction]:
                connection = await self._cluster.broker_connection(node_id)
                if connection.version_of(ApiKey.LIST_TRANSACTIONS) < needed:
                    raise RequestFailed(
                        f"transactions of broker {node_id}",
                        Err.UNSUPPORTED_VERSION,
                        "it is too old to filter like this",
                    )
                answer: m.ListTransactionsResponse = await self._request(connection, ApiKey.LIST_TRANSACTIONS, request)
                check(answer.error_code, f"transactions of broker {node_id}")
                if answer.unknown_state_filters:
                    unknown = answer.unknown_state_filters[0]
                    raise RequestFailed(f"state {unknown!r}", Err.INVALID_REQUEST, "transactions have no such state")
                return [
                    ListedTransaction(one.transactional_id, one.producer_id, one.transaction_state, node_id)
                    for one in answer.transaction_states
                ]

            return await self._cluster.retrying(attempt)

        found = await asyncio.gather(*(of(node_id) for node_id in self._cluster.brokers))
        return sorted((one for part in found for one in part), key=lambda one: one.transactional_id)

    async def describe(self, transactional_id: str) -> Transaction:
        """Raises RequestFailed with TRANSACTIONAL_ID_NOT_FOUND."""
        request = m.DescribeTransactionsRequest(transactional_ids=[transactional_id])

        async def ask(connection: Connection) -> Transaction:
            answer: m.DescribeTransactionsResponse = await self._request(
                connection, ApiKey.DESCRIBE_TRANSACTIONS, request
            )
            got = only(answer.transaction_states, "DescribeTransactions")
            check(got.error_code, f"transactional id {transactional_id!r}")
            return Transaction(
                transactional_id,
                got.transaction_state,
                got.producer_id,
                got.producer_epoch,
                got.transaction_timeout_ms,
                got.transaction_start_time_ms,
                self._coordinators.known[transactional_id],
                tuple(sorted((topic.topic, index) for topic in got.topics for index in topic.partitions)),
            )

        return await self._coordinators.ask(transactional_id, ask)

    async def fence(self, transactional_id: str) -> tuple[int, int]:
        """End what is open under the id, and fence whoever has it: as a new producer would. (producer id, epoch)."""
        request = m.InitProducerIdRequest(
            transactional_id=transactional_id,
            transaction_timeout_ms=FENCING_TIMEOUT_MS,
            producer_id=-1,
            producer_epoch=-1,
        )

        async def ask(connection: Connection) -> tuple[int, int]:
            answer: m.InitProducerIdResponse = await self._request(connection, ApiKey.INIT_PRODUCER_ID, request)
            check(answer.error_code, f"transactional id {transactional_id!r} was not fenced")
            return answer.producer_id, answer.producer_epoch

        return await self._coordinators.ask(transactional_id, ask)

    async def open_in(self, topic: str, partitions: Iterable[int]) -> list[OpenTransaction]:
        """Transactions that are open in partitions, as their leaders see it."""
        wanted = list(partitions)
        kind = m.DescribeProducersRequest

        async def of(index: int) -> list[OpenTransaction]:
            request = kind(topics=[kind.TopicRequest(name=topic, partition_indexes=[index])])

            async def ask(connection: Connection) -> list[OpenTransaction]:
                answer: m.DescribeProducersResponse = await self._request(
                    connection, ApiKey.DESCRIBE_PRODUCERS, request
                )
                got = only(only(answer.topics, "DescribeProducers").partitions, "DescribeProducers")
                check(got.error_code, f"producers of {topic}-{index}", got.error_message)
                return [
                    OpenTransaction(
                        topic,
                        index,
                        one.producer_id,
                        one.producer_epoch,
                        one.coordinator_epoch,
                        one.current_txn_start_offset,
                        one.last_timestamp,
                    )
                    for one in got.active_producers
                    if one.current_txn_start_offset >= 0
                ]

            return await self._to_leader(topic, index, ask)

        found = await asyncio.gather(*map(of, wanted))
        return [one for part in found for one in part]

    async def find_hanging(
        self, topic: str, partitions: Iterable[int], *, older_than_ms: int, now_ms: int
    ) -> list[OpenTransaction]:
        """Open in a partition for so long, and unknown to every coordinator: nobody will ever end them."""
        old = [one for one in await self.open_in(topic, partitions) if now_ms - one.last_timestamp >= older_than_ms]
        if not old:
            return []
        listed = await self.list_transactions(producer_ids={one.producer_id for one in old})
        owners = {one.producer_id: one.transactional_id for one in listed}
        hanging = []
        for one in old:
            owner = owners.get(one.producer_id)
            described = None if owner is None else await self._described(owner)
            # Its coordinator may be about to end it, or has it open with this partition in it.
            if described is None or (
                (one.topic, one.partition) not in described.partitions or described.producer_id != one.producer_id
            ):
                hanging.append(one)
        return hanging

    async def _described(self, transactional_id: str) -> Transaction | None:
        try:
            return await self.describe(transactional_id)
        except RequestFailed as error:
            if error.error is Err.TRANSACTIONAL_ID_NOT_FOUND:
                return None
            raise

    async def abort(self, hanging: OpenTransaction) -> None:
        """Write the marker that its coordinator never wrote. Only for one that `find_hanging` has found."""
        kind = m.WriteTxnMarkersRequest
        request = kind(
            markers=[
                kind.WritableTxnMarker(
                    producer_id=hanging.producer_id,
                    producer_epoch=hanging.producer_epoch,
                    transaction_result=False,
                    topics=[kind.WritableTxnMarkerTopic(name=hanging.topic, partition_indexes=[hanging.partition])],
                    coordinator_epoch=max(hanging.coordinator_epoch, 0),
                )
            ]
        )

        async def ask(connection: Connection) -> None:
            answer: m.WriteTxnMarkersResponse = await self._request(connection, ApiKey.WRITE_TXN_MARKERS, request)
            for result in answer.markers:
                for topic in result.topics:
                    for row in topic.partitions:
                        check(row.error_code, f"the transaction in {topic.name}-{row.partition_index} was not aborted")

        await self._to_leader(hanging.topic, hanging.partition, ask)
