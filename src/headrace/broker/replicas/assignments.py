"""Tells the controller in which log dir each replica lies (AssignReplicasToDirs), and which replicas are lost."""

import asyncio
import logging
from collections.abc import Iterable, Mapping

from headrace.broker.metadata_cache import MetadataCache, Registration
from headrace.broker.replicas.controller_client import ControllerClient
from headrace.broker.replicas.partition import Partition
from headrace.broker.runtime import Runtime
from headrace.broker.tasks import Tasks
from headrace.client.errors import err_of
from headrace.errors import Err, KafkaError
from headrace.metadata.directories import assignment_request
from headrace.metadata.image import LOST_DIRECTORY, PartitionKey
from headrace.protocol.api import ApiKey
from headrace.storage.manager import LogManager

logger = logging.getLogger("headrace.replicas")

AT_A_TIME = 2_000
RETRY_S = 0.2
ASSIGN_AGAIN_SECONDS = 1.0


class AssignmentsManager:
    """Collects what the metadata does not know of yet, and sends it."""

    def __init__(
        self,
        runtime: Runtime,
        tasks: Tasks,
        metadata: MetadataCache,
        registration: Registration,
        logs: LogManager,
        controller: ControllerClient,
    ) -> None:
        self._loop = runtime.loop
        self._tasks = tasks
        self._metadata = metadata
        self._registration = registration
        self._logs = logs
        self._controller = controller
        self._unassigned: dict[PartitionKey, bytes] = {}
        """Directories of replicas that the metadata does not know of yet."""
        self._closed = False

    def close(self) -> None:
        """The broker stops: nothing is tried again."""
        self._closed = True

    def found(self, partition: Partition) -> None:
        """A replica is here: to be told with the next `send`, unless the metadata knows."""
        known = self._metadata.image.partition(partition.topic_id, partition.index)
        directory_id = self._logs.dir_of(partition.log).directory_id
        if known is None or known.directory_of(self._registration.node_id) != directory_id:
            self._unassigned[partition.topic_id, partition.index] = directory_id

    def lost(self, topic_id: bytes, index: int) -> None:
        """A replica is not here any more, as far as the controller is concerned: to be told with the next `send`."""
        self._unassigned[topic_id, index] = LOST_DIRECTORY

    def send(self) -> None:
        """Tell what was found and lost, if anything was."""
        if self._unassigned and not self._closed:
            self._tasks.spawn(self._send())

    async def send_all(self, partitions: Iterable[Partition]) -> None:
        """Before this broker is given leadership: tell where every replica was found."""
        for partition in partitions:
            self.found(partition)
        await self._send()

    async def _send(self) -> None:
        found, self._unassigned = self._unassigned, {}
        try:
            await self._assign_all(found)
        except KafkaError as error:
            # The next start tells again; a metadata log that has failed ends the broker by itself.
            logger.warning("directories of %d replicas could not be noted: %s", len(found), error)
            if error.error.retriable and not self._closed:
                self._unassigned = {**found, **self._unassigned}
                self._loop.call_later(ASSIGN_AGAIN_SECONDS, self.send)

    async def _assign_all(self, directories: Mapping[PartitionKey, bytes]) -> None:
        """Tried again for as long as that may help."""
        rows = list(directories.items())
        for start in range(0, len(rows), AT_A_TIME):
            part = dict(rows[start : start + AT_A_TIME])
            while (error := await self._assign(part)) is not Err.NONE:
                if error not in (Err.STALE_BROKER_EPOCH, Err.REQUEST_TIMED_OUT) or self._closed:
                    raise KafkaError(error)
                await asyncio.sleep(RETRY_S)

    async def _assign(self, directories: Mapping[PartitionKey, bytes]) -> Err:
        own = self._registration
        request = assignment_request(own.node_id, own.broker_epoch, directories)
        try:
            answer = await self._controller.request(ApiKey.ASSIGN_REPLICAS_TO_DIRS, request)
        except KafkaError as error:
            return error.error
        return err_of(answer.error_code)
