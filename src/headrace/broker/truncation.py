"""Where a follower's log is not its leader's: cut, begun anew, or copied again from where it is damaged."""

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from headrace.client.connection import Connection
from headrace.client.errors import ClientError, err_of
from headrace.errors import KafkaError
from headrace.protocol import messages as m
from headrace.protocol.api import ApiKey
from headrace.storage.files import NOT_THE_DISK

if TYPE_CHECKING:
    from headrace.broker.replica_fetcher import Copy
    from headrace.broker.server import Broker
    from headrace.storage.manager import LogDir

logger = logging.getLogger("headrace.truncation")

EARLIEST, LATEST = -2, -1
CONNECT_TIMEOUT_S = 2.0


class Truncation:
    """For one fetcher: `ready` has a copy go on, `delay` has it wait for a moment."""

    def __init__(
        self,
        broker: "Broker",
        leader_id: int,
        timeout_s: float,
        ready: "Callable[[Copy], None]",
        delay: "Callable[[Copy], None]",
    ) -> None:
        self._broker = broker
        self._leader_id = leader_id
        self._timeout_s = timeout_s
        self._ready = ready
        self._delay = delay

    def mend(self, copy: "Copy", high_watermark: int, cut: "list[tuple[Copy, int]]") -> None:
        """Damage was set aside here: all from there on is copied anew, once this replica is not counted on for it.

        The offset asked for has told the leader what is missing; it takes this replica out of the ISR. To cut before
        that could have it elected without records that are committed.
        """
        partition = copy.partition
        if high_watermark <= copy.next_offset or not self._broker.replicas.is_counted_on(partition):
            logger.warning("%s: copied anew from %d, where it is damaged", partition, copy.next_offset)
            partition.incomplete = high_watermark > copy.next_offset
            cut.append((copy, copy.next_offset))
        else:
            self._broker.replicas.renounce(partition)
            self._delay(copy)

    def cut(self, cuts: "list[tuple[Copy, int]]") -> None:
        """Drop what these replicas have and their leader does not."""
        by_dir: dict[LogDir, list[tuple[Copy, int]]] = {}
        for copy, offset in cuts:
            by_dir.setdefault(self._broker.logs.dir_of(copy.partition.log), []).append((copy, offset))
        for together in by_dir.values():
            self._cut(together)  # a disk that fails takes nobody else's replicas with it

    def _cut(self, cuts: "list[tuple[Copy, int]]") -> None:
        """Of one log dir."""
        logs = self._broker.logs
        offsets = {}
        vouched = False
        for copy, offset in cuts:
            log = copy.partition.log
            logger.info("%s: cut from %d to %d, where broker %d parts", copy.partition, log.end_offset, offset, self._leader_id)
            vouched = vouched or log.recovery_point > offset
            offsets[log] = offset
        try:
            plan = logs.truncate_to(offsets)
            if vouched:
                # Before anything else is written there: what the checkpoint vouches for must not become other bytes.
                plan.run()
        except OSError as error:
            failed = next((log for log in offsets if log.failed is not None), next(iter(offsets)))
            self._broker.dir_failed(failed, error)
            rest = [cut for cut in cuts if cut[0].partition.log is not failed]
            if error.errno in NOT_THE_DISK and rest:
                self._cut(rest)
            return
        self._broker.metrics.truncations += len(cuts)
        for copy, _ in cuts:
            copy.partition.truncated()
            self._ready(copy)

    async def find_range(self, connection: Connection, copy: "Copy") -> None:
        """The leader does not have the offset asked for. Either its log begins later by now, or it ends earlier and
        knows no epochs to tell by: only then is its end taken for the truth."""
        partition = copy.partition
        try:
            leader_end = await self._ask_offset(connection, copy, LATEST)
            leader_start = await self._ask_offset(connection, copy, EARLIEST)
        except (ClientError, KafkaError) as error:
            logger.info("%s: broker %d does not say which offsets it has: %s", partition, self._leader_id, error)
            if copy.is_current:
                self._delay(copy)
            return
        if not copy.is_current or partition.failed:
            return
        log = partition.log
        if leader_end < log.end_offset:
            logger.warning("%s: broker %d ends at %d, before %d", partition, self._leader_id, leader_end, log.end_offset)
            self.cut([(copy, leader_end)])
        elif leader_start > log.end_offset:
            self.start_over(copy, leader_start)
        else:
            self._delay(copy)

    def start_over(self, copy: "Copy", offset: int) -> None:
        """Nothing that is here is in the leader's log any more."""
        partition = copy.partition
        logger.info("%s: begins anew at %d", partition, offset)
        try:
            partition.log.truncate_fully(offset)
            self._broker.logs.checkpoint_plan().run()
        except OSError as error:
            self._broker.dir_failed(partition.log, error)
            return
        partition.truncated()
        partition.leader_told(offset, offset)
        self._ready(copy)

    async def _ask_offset(self, connection: Connection, copy: "Copy", timestamp: int) -> int:
        R = m.ListOffsetsRequest
        partition = copy.partition
        asked = R.ListOffsetsPartition(
            partition_index=partition.index, current_leader_epoch=copy.leader_epoch, timestamp=timestamp
        )
        request = R(
            replica_id=self._broker.node_id,
            topics=[R.ListOffsetsTopic(name=partition.topic, partitions=[asked])],
        )
        other = await Connection.open(connection.host, connection.port, timeout_s=CONNECT_TIMEOUT_S)
        try:
            answer = await other.request(ApiKey.LIST_OFFSETS, request, timeout_s=self._timeout_s)
        finally:
            other.close()
        row = answer.topics[0].partitions[0]
        if row.error_code:
            raise KafkaError(err_of(row.error_code))
        offset: int = row.offset
        return offset
