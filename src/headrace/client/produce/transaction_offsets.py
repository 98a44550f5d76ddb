"""A group's offsets as a part of a producer's transaction: committed with it, or not at all (KIP-98, KIP-447)."""

from collections.abc import Mapping
from typing import NamedTuple

from headrace.client.errors import ClientError, check
from headrace.client.net.cluster import Cluster, may_pass
from headrace.client.net.connection import Connection
from headrace.client.net.coordinators import GROUP, TRANSACTION, Coordinators
from headrace.client.produce.transactions import ProducerTransactions
from headrace.protocol import messages as m
from headrace.protocol.api import ApiKey

CLASSIC_ADD_OFFSETS_MAX, CLASSIC_COMMIT_MAX = 3, 4
"""The last versions by which clients of the classic protocol are known."""

TopicPartition = tuple[str, int]


class GroupMetadata(NamedTuple):
    """As whom offsets are committed: the group fences members that have lost their partitions."""

    group: str
    member_id: str = ""
    generation: int = -1
    instance_id: str | None = None


class TransactionOffsets:
    """Puts offsets into the open transaction of a producer."""

    def __init__(self, cluster: Cluster, transactions: ProducerTransactions) -> None:
        self._timeout_s = cluster.request_timeout_s
        self._transactions = transactions
        self._groups = Coordinators(cluster, GROUP, "group")
        self._coordinators = Coordinators(cluster, TRANSACTION, "transactional id")

    async def commit(
        self,
        member: GroupMetadata,
        offsets: Mapping[TopicPartition, int],
        epochs: Mapping[TopicPartition, int] | None = None,
    ) -> None:
        """The group's when the transaction commits. Raises ClientError, after which it can only be aborted.

        `epochs` are those of the records before the offsets, where they are known.
        """
        steps = self._transactions.steps
        steps.check_open()
        if not offsets:
            return
        try:
            if not steps.is_version_2:
                await self._coordinators.ask(
                    self._transactions.transactional_id,
                    lambda connection: self._add(connection, member.group),
                    can_retry=may_pass,
                )
            # The group's partition of offsets belongs to the transaction now; which one it is, brokers know.
            steps.added([(f"offsets of group {member.group}", -1)])
            await self._groups.ask(
                member.group,
                lambda connection: self._commit(connection, member, offsets, epochs or {}),
                can_retry=may_pass,
            )
        except ClientError as error:
            steps.spoil(error)
            raise

    async def _add(self, connection: Connection, group: str) -> None:
        producer = self._transactions.producer
        request = m.AddOffsetsToTxnRequest(
            transactional_id=self._transactions.transactional_id,
            producer_id=producer.id,
            producer_epoch=producer.epoch,
            group_id=group,
        )
        answer: m.AddOffsetsToTxnResponse = await connection.request(
            ApiKey.ADD_OFFSETS_TO_TXN, request, version_max=CLASSIC_ADD_OFFSETS_MAX, timeout_s=self._timeout_s
        )
        check(answer.error_code, f"adding the offsets of group {group!r} to the transaction")

    async def _commit(
        self,
        connection: Connection,
        member: GroupMetadata,
        offsets: Mapping[TopicPartition, int],
        epochs: Mapping[TopicPartition, int],
    ) -> None:
        kind = m.TxnOffsetCommitRequest
        topics: dict[str, list[m.TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition]] = {}
        for (topic, index), offset in sorted(offsets.items()):
            row = kind.TxnOffsetCommitRequestPartition(
                partition_index=index,
                committed_offset=offset,
                committed_leader_epoch=epochs.get((topic, index), -1),
                committed_metadata="",
            )
            topics.setdefault(topic, []).append(row)
        producer = self._transactions.producer
        request = kind(
            transactional_id=self._transactions.transactional_id,
            group_id=member.group,
            producer_id=producer.id,
            producer_epoch=producer.epoch,
            generation_id=member.generation,
            member_id=member.member_id,
            group_instance_id=member.instance_id,
            topics=[kind.TxnOffsetCommitRequestTopic(name=name, partitions=rows) for name, rows in topics.items()],
        )
        answer: m.TxnOffsetCommitResponse = await connection.request(
            ApiKey.TXN_OFFSET_COMMIT,
            request,
            version_max=None if self._transactions.steps.is_version_2 else CLASSIC_COMMIT_MAX,
            timeout_s=self._timeout_s,
        )
        for answered in answer.topics:
            for part in answered.partitions:
                check(part.error_code, f"offset of group {member.group!r} in {answered.name}-{part.partition_index}")
