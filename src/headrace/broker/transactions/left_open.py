"""Ends transactions that are over and still open in a partition led here, since their marker was lost.

With `durability=replicated` records count before they are on a disk, markers too. If all replicas of a partition lose
power before a marker is on one of their disks, the transaction is open there again, and its coordinator has long
forgotten it: nobody would ever end it, and readers with read_committed would wait for ever.

So a leader asks about what is open when it begins to lead. It takes down the open transactions, waits a moment, since
most of them end as usual, and asks all coordinators about those that are left. What is over is committed if that is
certain, and aborted otherwise. Apache Kafka's coordinators do not say for which shards they answer: where there are
any, it is left to `headrace transaction find-hanging`.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, NamedTuple, Protocol

from headrace.broker.replicas.partition import Partition
from headrace.broker.transactions.markers import LocalWriter
from headrace.coordinator.transactions.left_open import verdict
from headrace.coordinator.transactions.shard import Markers
from headrace.coordinator.transactions.transaction import EPOCH_BUMP_FROM, Errors
from headrace.errors import KafkaError
from headrace.protocol import messages as m
from headrace.protocol.private_fields.left_open import PLACES_MAX, Known, Place, Standing, answer_in, question_tag
from headrace.replication.producers import ProducerView

logger = logging.getLogger("headrace.transactions")

FIRST_LOOK_S = 5.0
NEXT_LOOK_S = 30.0
NOBODY = -1
"""As producer id of a question that shall list nothing."""

Shards = dict[int, tuple[int, int]]
"""Each shard of the coordinators: (leader, leader epoch)."""
Ask = Callable[[int, m.ListTransactionsRequest], Awaitable[m.ListTransactionsResponse]]
"""Sends a request to another broker. Raises KafkaError when there is no answer."""


class Coordinator(Protocol):
    """This broker's own."""

    def shards(self) -> Shards: ...

    def known_of(self, places: list[Place]) -> Known: ...


class _Open(NamedTuple):
    """A transaction, as it was when this broker began to lead its partition."""

    partition: Partition
    producer: ProducerView

    @property
    def is_still(self) -> bool:
        partition, was = self.partition, self.producer
        if partition.leader is None:
            return False  # whoever leads now asks
        return partition.log.producers.open_since(was.producer_id) == was.current_txn_start_offset

    @property
    def seen(self) -> tuple[int, int]:
        """What an answer is good for.

        Classic transactions of a producer share an epoch, and where one was left open the next one joins it:
        1. Its coordinator says that it is over. Another one, which is asked too, takes its time.
        2. The producer begins its next transaction, and adds this partition. Its first batch needs no confirmation,
           since something of its epoch is open here.
        3. The other coordinator answers. To abort what is open would abort that batch, and the rest would be committed.
        """
        partition = self.partition
        return partition.leader_epoch, partition.log.producers.last_offset_of(self.producer.producer_id)

    @property
    def place(self) -> Place:
        return Place(
            self.partition.topic, self.partition.index, self.producer.producer_id, self.producer.producer_epoch
        )


class LeftOpen:
    """What is open in partitions that this broker has begun to lead."""

    def __init__(
        self,
        node_id: int,
        coordinator: Coordinator,
        ask: Ask,
        local: LocalWriter,
        spawn: Callable[[Coroutine[Any, Any, Any]], Any],
    ) -> None:
        self._node_id = node_id
        self._coordinator = coordinator
        self._ask = ask
        self._local = local
        self._spawn = spawn
        self._open: list[_Open] = []
        self._is_looking = False

    def led(self, partition: Partition) -> None:
        """This broker leads it from now on."""
        found = partition.log.producers.open_transactions()
        self._open += [_Open(partition, one) for one in found]
        if found and not self._is_looking:
            self._is_looking = True
            self._spawn(self._look_on())

    async def _look_on(self) -> None:
        pause_s = FIRST_LOOK_S
        while self._open:
            await asyncio.sleep(pause_s)
            pause_s = NEXT_LOOK_S
            try:
                await self._look()
            except Exception:
                logger.exception("transactions left open are looked at again later")
        self._is_looking = False

    async def _look(self) -> None:
        self._open = [one for one in self._open if one.is_still]
        asked = self._open[:PLACES_MAX]
        shards = self._coordinator.shards()
        if not asked or not shards or any(leader < 0 for leader, _ in shards.values()):
            return
        places, seen = [one.place for one in asked], [one.seen for one in asked]
        brokers = {leader for leader, _ in shards.values()}
        answers = await asyncio.gather(*(self._known_to(broker_id, places) for broker_id in brokers))
        known = [answer for answer in answers if answer is not None]
        epochs = {shard: epoch for shard, (_, epoch) in shards.items()}
        for at, one in enumerate(asked):
            found = verdict(known, at, epochs)
            if found is Standing.OPEN:
                self._open.remove(one)  # its coordinator will see to it
            elif found is not None and one.is_still and one.seen == seen[at]:
                self._end(one, found is Standing.COMMITTED)

    async def _known_to(self, broker_id: int, places: list[Place]) -> Known | None:
        if broker_id == self._node_id:
            return self._coordinator.known_of(places)
        request = m.ListTransactionsRequest(producer_id_filters=[NOBODY], unknown_tags=question_tag(places))
        try:
            response = await self._ask(broker_id, request)
        except KafkaError as error:
            logger.info("broker %d was not asked about transactions left open: %s", broker_id, error)
            return None
        return None if response.error_code else answer_in(response.unknown_tags, len(places))

    def _end(self, one: _Open, committed: bool) -> None:
        """A commit by the marker that was lost; an abort by one of the transaction's own epoch, as administrators
        do."""
        partition, producer = one.partition, one.producer
        logger.warning(
            "%s: the end of a transaction of producer %d was lost, which began at %d; it is %s",
            partition, producer.producer_id, producer.current_txn_start_offset, "committed" if committed else "aborted",
        )  # fmt: skip
        place = partition.topic, partition.index
        self._local.write_here(
            Markers(
                "", producer.producer_id, producer.producer_epoch + committed, committed, frozenset((place,)),
                EPOCH_BUMP_FROM if committed else 0,
            ),
            producer.coordinator_epoch,
            (place,),
            partial(_tell, partition),
        )  # fmt: skip


def _tell(partition: Partition, errors: Errors) -> None:
    for error in errors.values():
        if error:
            logger.warning("%s: a transaction left open is not ended yet: %s", partition, error.name)
