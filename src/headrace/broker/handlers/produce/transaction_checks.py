"""Asks the transaction's coordinator about the first batch of a transaction in a partition, before it is appended.

See `broker/transactions/membership.py`. Later batches need no question: their transaction is open here.
"""

from collections.abc import Mapping
from typing import NamedTuple

from headrace.broker.net.request import Request
from headrace.broker.replicas.environment import Guards
from headrace.broker.replicas.hosted import Replicas
from headrace.broker.replicas.partition import Partition
from headrace.broker.replicas.transactional import end_older
from headrace.broker.transactions.membership import Ability, Membership
from headrace.errors import Err, KafkaError
from headrace.protocol.hot import decode_produce
from headrace.protocol.templates.produce import BY_ID
from headrace.records.layout import HEADER, HEADER_BYTES, TRANSACTIONAL
from headrace.replication.verification import Verification

FLEXIBLE_SINCE = 9
NO_STRING = b"\xff\xff"

Batches = dict[tuple[Partition, int], Verification]
"""By partition, and where the batch begins in the bytes of its request."""


REASON = "the coordinator of the transaction does not confirm that this partition belongs to it"


class NotVerified(KafkaError):
    """A batch that nobody has tried to append."""


class Unverified(NamedTuple):
    """What a request's producer has to be asked about."""

    transactional_id: str
    producer_id: int
    epoch: int
    ability: Ability
    batches: Batches
    is_mixed: bool
    """Batches of more than one producer, which no transaction can have."""


class TransactionChecks:
    """What the coordinators of transactions have to say about a Produce."""

    def __init__(self, replicas: Replicas, membership: Membership) -> None:
        self._replicas = replicas
        self._membership = membership

    def needed(self, request: Request, pos: int) -> Unverified | None:
        """The batches that have to wait for an answer; None: none of them, as nearly always."""
        if not has_transactional_id(request.buf, pos, request.version):
            return None
        buf, version = request.buf, request.version
        transactional_id, _, _, topics = decode_produce(buf, pos, request.end, version)
        if transactional_id is None:
            return None
        hosted: Mapping[str | bytes, dict[int, Partition]] = (
            self._replicas.by_id if version >= BY_ID else self._replicas.by_name  # type: ignore[assignment]
        )
        ability = Ability.of_produce(version)
        batches: Batches = {}
        producers: set[tuple[int, int]] = set()
        for topic, partitions in topics:
            here = hosted.get(topic) or {}
            for index, start, end in partitions:
                partition = here.get(index)
                if partition is None or partition.leader is None or end - start < HEADER_BYTES:
                    continue
                header = HEADER.unpack_from(buf, start)
                attributes, producer_id, epoch, sequence = header[5], header[9], header[10], header[11]
                if not attributes & TRANSACTIONAL or producer_id < 0:
                    continue
                producers.add((producer_id, epoch))
                guard = partition.log.producers.begin_verification(
                    producer_id, epoch, sequence, partition.environment.wall_ms(),
                    supports_epoch_bump=ability is Ability.ADDS,
                )  # fmt: skip
                if guard is not None:
                    batches[partition, start] = guard
        if not batches:
            return None
        producer_id, epoch = min(producers)
        return Unverified(transactional_id, producer_id, epoch, ability, batches, len(producers) > 1)

    async def verify(self, unverified: Unverified, moved: int) -> Guards:
        """What to append each batch with, or why not; `moved`: how much earlier the batches begin by then."""
        if unverified.is_mixed:
            error = NotVerified(Err.INVALID_PRODUCER_ID_MAPPING, "batches of more than one producer")
            return {(partition, start - moved): error for partition, start in unverified.batches}
        places = {(partition.topic, partition.index) for partition, _ in unverified.batches}
        errors = await self._membership.errors(
            unverified.transactional_id, unverified.producer_id, unverified.epoch, places, unverified.ability
        )
        guards: Guards = {}
        for (partition, start), guard in unverified.batches.items():
            error_of = errors.get((partition.topic, partition.index))
            if error_of is None:
                guards[partition, start - moved] = self._ready(partition, guard, unverified)
            else:
                guards[partition, start - moved] = NotVerified(error_of, REASON)
        return guards

    @staticmethod
    def _ready(partition: Partition, guard: Verification, of: Unverified) -> Verification | KafkaError:
        try:
            end_older(partition, of.producer_id, of.epoch)
        except KafkaError as error:
            return error
        return guard


def has_transactional_id(buf: bytearray, pos: int, version: int) -> bool:
    """The first field of the body, without reading the rest."""
    return buf[pos] != 0 if version >= FLEXIBLE_SINCE else buf[pos : pos + 2] != NO_STRING
