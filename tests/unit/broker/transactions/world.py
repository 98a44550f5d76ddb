"""A transactional client made of single requests, of either protocol, against one broker in a simulated world: each can
be sent twice, late, or by another protocol than the one before."""

import asyncio
from typing import Any

from headrace.client import raw
from headrace.client.net.cluster import Cluster
from headrace.client.net.connection import Connection
from headrace.errors import Err
from headrace.protocol import messages as m
from headrace.protocol.api import ApiKey
from headrace.testing.simulator.transactions import CLASSIC, decode_committed
from tests.compat.raw import batch
from tests.unit.broker.group_world import BOOTSTRAP, connect

ID, TOPIC = "payments-1", "t"
TRANSACTIONAL = 0x10
TIMEOUT_MS = 10_000


class Client:
    """One transactional id. Sequences are counted per partition, as the protocol has it."""

    def __init__(self, connection: Connection, *, classic: bool, timeout_ms: int = TIMEOUT_MS) -> None:
        self.connection = connection
        self.classic = classic
        self._timeout_ms = timeout_ms
        self.who = (-1, -1)
        self._sequences: dict[int, int] = {}

    @classmethod
    async def begin(cls, *, classic: bool, timeout_ms: int = TIMEOUT_MS) -> "Client":
        client = cls(await connect(), classic=classic, timeout_ms=timeout_ms)
        found = m.FindCoordinatorRequest(key_type=1, coordinator_keys=[ID])
        await client._until_known(ApiKey.FIND_COORDINATOR, found, lambda answer: answer.coordinators[0].error_code)
        await client.init()
        return client

    async def reconnect(self) -> None:
        """After the broker's restart; the transaction goes on."""
        self.connection = await connect()

    async def init(self) -> None:
        request = m.InitProducerIdRequest(transactional_id=ID, transaction_timeout_ms=self._timeout_ms)
        answer = await self._until_known(ApiKey.INIT_PRODUCER_ID, request, lambda answer: answer.error_code)
        self._become(answer.producer_id, answer.producer_epoch)

    async def _until_known(self, key: ApiKey, request: Any, error_of: Any) -> Any:
        while True:
            answer = await self.connection.request(key, request)
            if error_of(answer) not in (Err.COORDINATOR_NOT_AVAILABLE, Err.COORDINATOR_LOAD_IN_PROGRESS):
                assert not error_of(answer), Err(error_of(answer))
                return answer
            await asyncio.sleep(0.1)

    def _become(self, producer_id: int, epoch: int) -> None:
        if (producer_id, epoch) != self.who:
            self.who = producer_id, epoch
            self._sequences.clear()

    def _version(self, key: ApiKey) -> int | None:
        # Of Produce the last one that names topics: no more is needed here.
        return CLASSIC.get(key) if self.classic else 12 if key is ApiKey.PRODUCE else None

    async def add(self, partition: int) -> Err:
        kind = m.AddPartitionsToTxnRequest
        request = kind(
            v3_and_below_transactional_id=ID,
            v3_and_below_producer_id=self.who[0],
            v3_and_below_producer_epoch=self.who[1],
            v3_and_below_topics=[kind.AddPartitionsToTxnTopic(name=TOPIC, partitions=[partition])],
        )
        answer = await self.connection.request(ApiKey.ADD_PARTITIONS_TO_TXN, request, version_max=3)
        return Err(answer.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code)

    async def write(self, value: bytes, partition: int = 0) -> Err:
        """The next batch of the transaction, added to it first where the protocol wants that."""
        if self.classic:
            error = await self.add(partition)
            if error:
                return error
        return await self.send(self.produce(value, partition))

    def produce(self, value: bytes, partition: int = 0) -> m.ProduceRequest:
        """The request of the next batch, not sent yet."""
        sequence = self._sequences.get(partition, 0)
        self._sequences[partition] = sequence + 1
        kind = m.ProduceRequest
        data = batch(value, producer=(*self.who, sequence), attributes=TRANSACTIONAL)
        row = kind.PartitionProduceData(index=partition, records=data)
        topic = kind.TopicProduceData(name=TOPIC, partition_data=[row])
        return kind(transactional_id=ID, acks=-1, timeout_ms=5_000, topic_data=[topic])

    async def send(self, request: m.ProduceRequest) -> Err:
        answer = await self.connection.request(ApiKey.PRODUCE, request, version_max=self._version(ApiKey.PRODUCE))
        return Err(answer.responses[0].partition_responses[0].error_code)

    def ending(self, committed: bool) -> m.EndTxnRequest:
        return m.EndTxnRequest(
            transactional_id=ID, producer_id=self.who[0], producer_epoch=self.who[1], committed=committed
        )

    async def end(self, committed: bool, request: m.EndTxnRequest | None = None) -> Err:
        """With a request of before: one that comes late, whose answer nobody hears."""
        version_max = self._version(ApiKey.END_TXN)
        late, request = request is not None, request or self.ending(committed)
        answer = await self.connection.request(ApiKey.END_TXN, request, version_max=version_max)
        if not answer.error_code and not late and not self.classic:
            self._become(answer.producer_id, answer.producer_epoch)
        return Err(answer.error_code)


async def read(partition: int = 0) -> tuple[list[bytes], bool]:
    """What is committed, and whether a transaction is open behind it."""
    async with Cluster(BOOTSTRAP) as cluster:
        found: list[bytes] = []
        position = 0
        while True:
            fetched = await raw.fetch(cluster, TOPIC, partition, position, read_committed=True)
            records, end_offset = decode_committed(fetched, position)
            found += [value for _, value in records]
            if end_offset == position:
                return found, fetched.last_stable_offset < fetched.high_watermark
            position = end_offset
