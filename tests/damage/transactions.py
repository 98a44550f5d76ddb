"""Transactions that are committed, aborted and left open, and what their producers find after damage.

Their requests are made by hand: a producer must be able to stop in the middle, and go on after its broker was down.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from random import Random
from typing import Any

from headrace.client.errors import ClientError, check
from headrace.client.net.cluster import Cluster, may_pass
from headrace.client.net.connection import Connection
from headrace.client.net.coordinators import GROUP, TRANSACTION, Coordinators
from headrace.protocol import messages as m
from headrace.protocol.api import ApiKey
from headrace.records.builder import build_batch
from headrace.records.reader import Record, iter_records
from tests.damage.ledger import Ledger, Partition, State, Transaction

IDS = ("pay-1", "pay-2", "pay-3")
PARTITIONS: tuple[Partition, ...] = (("paid", 0), ("paid", 1), ("compact", 0))
TIMEOUT_MS = 900_000
"""The longest that there is: none of them is ended by its time."""
PATIENCE_S = 20.0
STATE_TOPIC, OFFSETS_TOPIC = "__transaction_state", "__consumer_offsets"


@dataclass(frozen=True)
class Trouble:
    """Something that a producer met, and the partitions whose damage would explain it."""

    text: str
    partitions: frozenset[Partition]

    def may_be(self, harmed: set[Partition]) -> bool:
        return any(partition in self.partitions or partition[0] == STATE_TOPIC for partition in harmed) or (
            any(topic == OFFSETS_TOPIC for topic, _ in self.partitions)
            and any(topic == OFFSETS_TOPIC for topic, _ in harmed)
        )


class Payer:
    """One transactional producer of the newer protocol: leaders add their partitions by themselves."""

    def __init__(self, bootstrap: str, ledger: Ledger, transactional_id: str, dice: Random) -> None:
        self.id = transactional_id
        self.group = f"group of {transactional_id}"
        self.open: Transaction | None = None
        self._bootstrap = bootstrap
        self._ledger = ledger
        self.dice = dice
        self._producer = (-1, -1)
        self._sequences: dict[Partition, int] = {}
        self._last: tuple[Partition, bytes, int] | None = None
        """The last batch: where to, its bytes, its offset."""

    # ---- what it does

    async def work(self, transactions: int) -> None:
        """Some whole transactions, committed or aborted."""
        async with self._cluster() as cluster:
            for _ in range(transactions):
                await self._fill(cluster)
                await self._end(cluster, commit=self.dice.random() < 0.6)

    async def leave_open(self) -> None:
        async with self._cluster() as cluster:
            await self._fill(cluster)

    async def settle(self) -> list[Trouble]:
        """End what was left open, in one of the ways in which producers do."""
        transaction = self.open
        if transaction is None:
            return []
        how = self.dice.choice(("commit", "abort", "go on", "go on", "come back"))
        found: list[Trouble] = []
        more = self.dice.choice(PARTITIONS)
        async with self._cluster() as cluster:
            try:
                if how == "come back":
                    await self._begin(cluster)
                    return found
                if how == "go on":
                    found += await self._send_again(cluster)
                    await self._send(cluster, more)
                await self._end(cluster, commit=how != "abort")
            except ClientError as error:
                touched = transaction.partitions | {more}
                if transaction.offsets:
                    touched.add((OFFSETS_TOPIC, 0))
                found.append(Trouble(f"{self.id} could not {how}: {error}", frozenset(touched)))
                self._give_up()
        return found

    def _give_up(self) -> None:
        """Nobody knows how it ended, or will end."""
        if self.open is not None:
            self.open.state = State.UNKNOWN
        self.open = None
        self._producer = (-1, -1)

    # ---- one transaction

    async def _fill(self, cluster: Cluster) -> None:
        if self._producer == (-1, -1):
            await self._begin(cluster)
        for partition in self.dice.sample(PARTITIONS, self.dice.randint(1, len(PARTITIONS))):
            for _ in range(self.dice.randint(1, 3)):
                await self._send(cluster, partition)
        if self.dice.random() < 0.7:
            await self._commit_offsets(cluster)

    async def _begin(self, cluster: Cluster) -> None:
        """As a producer that has just been started: what its forerunner left open is aborted."""
        request = m.InitProducerIdRequest(
            transactional_id=self.id, transaction_timeout_ms=TIMEOUT_MS, producer_id=-1, producer_epoch=-1
        )
        answer: m.InitProducerIdResponse = await self._ask(cluster, ApiKey.INIT_PRODUCER_ID, request)
        self._become(answer.producer_id, answer.producer_epoch)
        if self.open is not None:
            self.open.state = State.ABORTED
            self.open = None

    def _become(self, producer_id: int, epoch: int) -> None:
        if (producer_id, epoch) != self._producer:
            self._producer = producer_id, epoch
            self._sequences.clear()

    async def _send(self, cluster: Cluster, partition: Partition) -> None:
        rows = self._ledger.new_rows(self.dice.randint(1, 2), 60)
        sequence = self._sequences.get(partition, 0)
        batch = bytes(
            build_batch(
                rows, producer_id=self._producer[0], producer_epoch=self._producer[1], base_sequence=sequence,
                transactional=True,
            )
        )  # fmt: skip
        base_offset = await self._produce(cluster, partition, batch)
        self._sequences[partition] = sequence + len(rows)
        self._last = partition, batch, base_offset
        self._note(partition, base_offset, rows)

    def _note(self, partition: Partition, base_offset: int, rows: list[Record]) -> None:
        if self.open is None:
            self.open = self._ledger.begin(self.id, self.group)
        self._ledger.note(partition, base_offset, rows, self.open)

    async def _send_again(self, cluster: Cluster) -> list[Trouble]:
        """As a producer that has had no answer: the batch must not be there twice."""
        assert self._last is not None and self.open is not None
        partition, batch, before = self._last
        if (partition, before) not in self.open.records:
            return []
        offset = await self._produce(cluster, partition, batch)
        if offset == before:
            return []
        self._note(partition, offset, list(iter_records(batch)))
        return [Trouble(f"{self.id}: a batch of {partition} is at {before} and at {offset}", frozenset({partition}))]

    async def _produce(self, cluster: Cluster, partition: Partition, batch: bytes) -> int:
        topic, index = partition
        kind = m.ProduceRequest

        async def attempt() -> int:
            found, _, connection = await cluster.leader(topic, index)
            rows = [kind.PartitionProduceData(index=index, records=batch)]
            request = kind(
                transactional_id=self.id, acks=-1, timeout_ms=5_000,
                topic_data=[kind.TopicProduceData(name=topic, topic_id=found.topic_id, partition_data=rows)],
            )  # fmt: skip
            answer: m.ProduceResponse = await connection.request(
                ApiKey.PRODUCE, request, timeout_s=cluster.request_timeout_s
            )
            row = answer.responses[0].partition_responses[0]
            check(row.error_code, f"produce to {topic}-{index}", row.error_message)
            return row.base_offset

        return await cluster.retrying(attempt, topics=(topic,), can_retry=may_pass)

    async def _commit_offsets(self, cluster: Cluster) -> None:
        kind = m.TxnOffsetCommitRequest
        self._ledger.sent += 1
        offset = self._ledger.sent
        row = kind.TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
        request = kind(
            transactional_id=self.id, group_id=self.group, producer_id=self._producer[0],
            producer_epoch=self._producer[1],
            topics=[kind.TxnOffsetCommitRequestTopic(name="other", partitions=[row])],
        )  # fmt: skip
        await self._ask(cluster, ApiKey.TXN_OFFSET_COMMIT, request, of_group=True)
        assert self.open is not None
        self.open.offsets = {("other", 0): offset}

    async def _end(self, cluster: Cluster, commit: bool) -> None:
        request = m.EndTxnRequest(
            transactional_id=self.id, producer_id=self._producer[0], producer_epoch=self._producer[1], committed=commit
        )
        answer: m.EndTxnResponse = await self._ask(cluster, ApiKey.END_TXN, request)
        self._become(answer.producer_id, answer.producer_epoch)
        assert self.open is not None
        self._ledger.end_of(self.open, commit)
        self.open = None

    async def _ask(self, cluster: Cluster, key: ApiKey, request: Any, *, of_group: bool = False) -> Any:
        async def ask(connection: Connection) -> Any:
            answer = await connection.request(key, request, timeout_s=cluster.request_timeout_s)
            for code in _codes(answer):
                check(code, key.name)
            return answer

        kind = (GROUP, "group") if of_group else (TRANSACTION, "transactional id")
        return await Coordinators(cluster, *kind).ask(self.group if of_group else self.id, ask, can_retry=may_pass)

    def _cluster(self) -> Cluster:
        return Cluster(self._bootstrap, connect_timeout_s=2.0, request_timeout_s=8.0, retry_timeout_s=PATIENCE_S)


def _codes(answer: Any) -> Iterable[int]:
    if isinstance(answer, m.TxnOffsetCommitResponse):
        return [row.error_code for topic in answer.topics for row in topic.partitions]
    return [answer.error_code]
