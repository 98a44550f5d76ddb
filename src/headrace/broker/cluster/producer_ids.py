"""Ids for idempotent producers, from blocks that the controller records before it gives them out: none comes twice."""

import logging
from collections.abc import Callable, Coroutine
from typing import Any

from headrace.broker.cluster.controller_channel import ControllerChannel
from headrace.broker.metadata_cache import Registration
from headrace.client.errors import err_of
from headrace.errors import Err, KafkaError
from headrace.protocol import messages as m
from headrace.protocol.api import ApiKey

logger = logging.getLogger("headrace.transactions")


class ProducerIds:
    """Hands out producer ids one by one from the block this broker was given."""

    def __init__(
        self,
        registration: Registration,
        channel: ControllerChannel,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        self._registration = registration
        self._channel = channel
        self._spawn = spawn
        self._is_asking = False
        self._next = 0
        self._end = 0

    async def take(self) -> int:
        await self.ready()
        return self.take_now()

    async def ready(self) -> None:
        """Until there is one to take. Raises KafkaError."""
        while self._next == self._end:
            await self._new_block()

    def take_now(self) -> int:
        """For those who cannot wait. Raises a KafkaError that asks for trying again; by then there may be one."""
        if self._next == self._end:
            if not self._is_asking:
                self._is_asking = True
                self._spawn(self._ask())
            raise KafkaError(Err.COORDINATOR_LOAD_IN_PROGRESS, "no producer id is at hand")
        self._next += 1
        return self._next - 1

    async def _ask(self) -> None:
        """A broker that has just begun to coordinate has no block, and no new producer may ever come and fetch one."""
        try:
            await self.ready()
        except KafkaError as error:
            logger.info("no producer ids yet: %s", error)
        finally:
            self._is_asking = False

    async def _new_block(self) -> None:
        own = self._registration
        request = m.AllocateProducerIdsRequest(broker_id=own.node_id, broker_epoch=own.broker_epoch)
        block = await self._channel.request(ApiKey.ALLOCATE_PRODUCER_IDS, request)
        if block.error_code:
            raise KafkaError(err_of(block.error_code))
        if self._next == self._end:  # else another request was first, and this block is left out
            self._next = block.producer_id_start
            self._end = block.producer_id_start + block.producer_id_len
