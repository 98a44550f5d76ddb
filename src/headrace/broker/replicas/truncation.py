"""Where a follower's log is not its leader's: cut, begun anew, or made whole where it is damaged.

To cut a log takes back what this node has vouched for, to its next start and to the controller. Two races follow.

A crash, in `_cut`:
    1. The checkpoint says that all below 100 was synced and checked.
    2. The log is cut to 40, and the leader's records from 40 on are appended, not synced yet.
    3. The power fails. The next start believes the checkpoint, and serves what is torn below 100.
So `LogManager.truncate_to` lowers the checkpoint before it cuts, for a crash between the two, and after it the
checkpoint is written once more before anything is appended. Where there is no room for that, the copy waits
(`Copy.unvouched`).

An election, in `_copy_anew`:
    1. A replica in the ISR finds damage at 40, below the high watermark of 100.
    2. It cuts its log to 40, to copy the rest anew.
    3. Its leader dies before it has heard of that.
    4. This replica is elected, and 40 to 99, which were committed, are gone.
So it cuts only once nobody counts on it: out of the ISR, which its next Fetch sees to, and not eligible either.
"""

import logging
from collections.abc import Callable
from typing import Any, NamedTuple

from headrace.broker.metrics import Metrics
from headrace.broker.replicas.disk_space import DiskSpace
from headrace.broker.replicas.log_dir_failures import LogDirFailures
from headrace.broker.replicas.patch import Misfit, Patch
from headrace.broker.replicas.repair import Repairs
from headrace.broker.replicas.replica_copy import Copy
from headrace.broker.replicas.standing import Standing
from headrace.broker.tasks import Tasks
from headrace.client.errors import ClientError, err_of
from headrace.client.net.connection import Connection
from headrace.errors import KafkaError
from headrace.protocol import messages as m
from headrace.protocol.api import ApiKey
from headrace.protocol.hot_replica import CopiedRow
from headrace.storage.files import NO_SPACE, NOT_THE_DISK
from headrace.storage.manager import CheckpointPlan, LogDir, LogManager

logger = logging.getLogger("headrace.truncation")

EARLIEST, LATEST = -2, -1
CONNECT_TIMEOUT_S = 2.0


class TruncationParts(NamedTuple):
    """What the truncations of all leaders share."""

    node_id: int
    tasks: Tasks
    logs: LogManager
    failures: LogDirFailures
    disk_space: DiskSpace
    repairs: Repairs
    standing: Standing
    metrics: Metrics


class Truncation:
    """For one fetcher: `ready` has a copy go on, `delay` has it wait for a moment, `leave` until it is told to go
    on."""

    def __init__(
        self,
        parts: TruncationParts,
        leader_id: int,
        timeout_s: float,
        ready: Callable[[Copy], None],
        delay: Callable[[Copy], None],
        leave: Callable[[Copy], None],
    ) -> None:
        self._node_id = parts.node_id
        self._tasks = parts.tasks
        self._logs = parts.logs
        self._failures = parts.failures
        self._disk_space = parts.disk_space
        self._repairs = parts.repairs
        self._standing = parts.standing
        self._metrics = parts.metrics
        self._leader_id = leader_id
        self._timeout_s = timeout_s
        self._ready = ready
        self._delay = delay
        self._leave = leave

    def mend(self, copy: Copy, row: CopiedRow, cut: list[tuple[Copy, int]]) -> None:
        """Damage was set aside here, and the answer brings what is missing: it goes back into its place.

        The offset asked for has told the leader that this replica has lost something; it takes it out of the ISR.
        """
        partition = copy.partition
        _, _, _, high_watermark, log_start, records, _ = row
        if self._repairs.is_busy(partition) or copy.asked > copy.next_offset:
            # Less may be missing in a moment; or this came for what was asked before anything was missing.
            self._delay(copy)
            return
        hole = min(partition.log.holes, key=lambda hole: hole.start_offset)
        if hole.end_offset > high_watermark:
            self._copy_anew(copy, high_watermark, log_start, cut, "not all of it is committed")
            return
        try:
            patch = copy.patch
            if patch is None or not patch.is_valid:
                copy.drop_patch()
                patch = copy.patch = Patch(partition.log, hole)
            if records is None:
                return  # it comes with a later answer
            if patch.take(records):
                copy.patch = None
                self._leave(copy)
                self._tasks.spawn(self._fill(copy, patch))
            else:
                self._ready(copy)
        except Misfit as misfit:
            copy.drop_patch()
            self._copy_anew(copy, high_watermark, log_start, cut, str(misfit))
        except KafkaError as error:
            logger.error("%s: what broker %d sent is refused: %s", partition, self._leader_id, error)
            self._delay(copy)
        except OSError as error:
            copy.drop_patch()
            if error.errno in NO_SPACE:
                logger.error("%s: no space left to put back what is missing", partition)
                self._delay(copy)
            else:
                self._failures.failed(partition.log, error)

    async def _fill(self, copy: Copy, patch: Patch) -> None:
        done = await self._repairs.fill(copy.partition, patch)
        if copy.is_current and not copy.partition.failed:
            self._ready(copy) if done else self._delay(copy)

    def _copy_anew(
        self, copy: Copy, high_watermark: int, log_start: int, cut: list[tuple[Copy, int]], reason: str
    ) -> None:
        """What is missing cannot be put back: the log is cut there, once this replica is not counted on for it.

        To cut before that could have it elected without records that are committed. A log from which the leader has
        cleaned records is copied from its start: of a key that was deleted, the tombstone may be gone there and the
        value left here.
        """
        partition = copy.partition
        log = partition.log
        if high_watermark > copy.next_offset and self._standing.is_counted_on(partition):
            self._standing.renounce(partition)
            self._delay(copy)
            return
        partition.incomplete = high_watermark > copy.next_offset
        if log.config.compact and high_watermark > copy.next_offset:
            logger.warning("%s: copied anew from its start, since it is damaged and %s", partition, reason)
            self.start_over(copy, max(log_start, 0))
        else:
            logger.warning("%s: copied anew from %d, where it is damaged: %s", partition, copy.next_offset, reason)
            cut.append((copy, copy.next_offset))

    def cut(self, cuts: list[tuple[Copy, int]]) -> None:
        """Drop what these replicas have and their leader does not."""
        by_dir: dict[LogDir, list[tuple[Copy, int]]] = {}
        for copy, offset in cuts:
            by_dir.setdefault(self._logs.dir_of(copy.partition.log), []).append((copy, offset))
        for together in by_dir.values():
            self._cut(together)  # a disk that fails takes nobody else's replicas with it

    def _cut(self, cuts: list[tuple[Copy, int]]) -> None:
        """Of one log dir."""
        offsets = {}
        vouched = False
        for copy, offset in cuts:
            log = copy.partition.log
            logger.info(
                "%s: cut from %d to %d, where broker %d parts", copy.partition, log.end_offset, offset, self._leader_id
            )
            vouched = vouched or log.recovery_point > log.unchanged_below(offset)
            offsets[log] = offset
        try:
            plan = self._logs.truncate_to(offsets)
        except OSError as error:
            failed = next((log for log in offsets if log.failed is not None), next(iter(offsets)))
            self._failures.failed(failed, error)
            rest = [cut for cut in cuts if cut[0].partition.log is not failed]
            if error.errno in NOT_THE_DISK and rest:
                self._cut(rest)
            return
        self._metrics.truncations += len(cuts)
        # Before anything else is written there: what the checkpoint vouches for must not become other bytes.
        done = not vouched or self._checkpoint(plan, cuts[0][0])
        for copy, _ in cuts:
            copy.partition.truncated()
            self._go_on(copy, done)

    def _go_on(self, copy: Copy, done: bool) -> None:
        if done:
            self._ready(copy)
        elif not copy.partition.failed:
            copy.unvouched = True
            self._delay(copy)

    def _checkpoint(self, plan: CheckpointPlan, copy: Copy) -> bool:
        """False where there was no room; a disk that fails otherwise is taken out of service."""
        try:
            plan.run()
        except OSError as error:
            if error.errno in NO_SPACE:
                self._disk_space.write_failed(copy.partition)
            else:
                self._failures.failed(copy.partition.log, error)
            return False
        return True

    def vouch(self, copy: Copy) -> bool:
        """Try again to write what had no room when the log was cut."""
        if self._checkpoint(self._logs.checkpoint_plan(), copy):
            copy.unvouched = False
        return not copy.unvouched

    async def find_range(self, connection: Connection, copy: Copy) -> None:
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
        if log.holes and copy.next_offset < leader_start <= log.end_offset:
            # Nobody has what is missing below that any more, and nobody is to have it.
            log.advance_log_start(leader_start)
            self._ready(copy)
        elif leader_end < log.end_offset:
            logger.warning(
                "%s: broker %d ends at %d, before %d", partition, self._leader_id, leader_end, log.end_offset
            )
            self.cut([(copy, leader_end)])
        elif leader_start > log.end_offset:
            self.start_over(copy, leader_start)
        else:
            self._delay(copy)

    def start_over(self, copy: Copy, offset: int) -> None:
        """Nothing that is here is in the leader's log any more."""
        partition = copy.partition
        logger.info("%s: begins anew at %d", partition, offset)
        try:
            partition.log.truncate_fully(offset)
        except OSError as error:
            self._failures.failed(partition.log, error)
            return
        done = self._checkpoint(self._logs.checkpoint_plan(), copy)
        partition.lose_acks()
        partition.truncated()
        partition.leader_told(offset, offset)
        self._go_on(copy, done)

    async def follow_log_starts(self, connection: Connection, copies: list[Copy]) -> None:
        """Of partitions that are not copied for want of room: what is deleted at the leader goes here, too."""
        R = m.ListOffsetsRequest
        topics: dict[str, Any] = {}
        found = {}
        for copy in copies:
            partition = copy.partition
            found[partition.topic, partition.index] = copy
            topic = topics.setdefault(partition.topic, R.ListOffsetsTopic(name=partition.topic))
            topic.partitions.append(
                R.ListOffsetsPartition(
                    partition_index=partition.index, current_leader_epoch=copy.leader_epoch, timestamp=EARLIEST
                )
            )
        request = R(replica_id=self._node_id, topics=list(topics.values()))
        try:
            other = await Connection.open(connection.host, connection.port, timeout_s=CONNECT_TIMEOUT_S)
            try:
                answer = await other.request(ApiKey.LIST_OFFSETS, request, timeout_s=self._timeout_s)
            finally:
                other.close()
        except ClientError as error:
            logger.info("broker %d does not say where its logs begin: %s", self._leader_id, error)
            return
        for topic in answer.topics:
            for row in topic.partitions:
                told = found.get((topic.name, row.partition_index))
                if told is not None and told.is_current and told.partition.full and not row.error_code:
                    self._log_starts(told, row.offset)

    def _log_starts(self, copy: Copy, offset: int) -> None:
        partition = copy.partition
        if offset > partition.log.end_offset:
            self.start_over(copy, offset)
        else:
            partition.leader_told(partition.high_watermark, offset)

    async def _ask_offset(self, connection: Connection, copy: Copy, timestamp: int) -> int:
        R = m.ListOffsetsRequest
        partition = copy.partition
        asked = R.ListOffsetsPartition(
            partition_index=partition.index, current_leader_epoch=copy.leader_epoch, timestamp=timestamp
        )
        request = R(
            replica_id=self._node_id,
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
