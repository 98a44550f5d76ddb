"""Loading a shard of a coordinator: its partition of the coordinator's topic, read and replayed from the beginning.

One partition at a time and a few milliseconds at a time, so that everything else goes on being served; the smallest
first, so that most are back at once. Requests meanwhile get COORDINATOR_LOAD_IN_PROGRESS.
"""

import asyncio
import gc
import logging
from typing import TYPE_CHECKING, Any

from headrace.broker.coordinators.host import Shard, ShardHost, State
from headrace.broker.replicas.partition import Partition
from headrace.errors import Err, KafkaError
from headrace.protocol.primitives import ProtocolError
from headrace.records.batch import check_stored
from headrace.records.control import ControlType, decode_control
from headrace.records.layout import BatchHeader, iter_headers
from headrace.records.reader import iter_raw, read_body

if TYPE_CHECKING:
    from headrace.broker.coordinators.coordinator import Coordinator

logger = logging.getLogger("headrace.coordinator")

SLICE_SECONDS = 0.005
"""How long a load keeps the loop before it lets others have their turn."""
SLICE_RECORDS = 128
"""Records between two looks at the clock."""
READ_BYTES = 4 << 20
REPORT_MS = 2_000
LONG_LOAD_BYTES = 16 << 20
"""Such a load makes so many objects that the collector, looking at all of them, would stop the loop."""


class Loader:
    """Loads one shard after the other."""

    def __init__(self, coordinator: "Coordinator[Any, Any]") -> None:
        self._coordinator = coordinator
        self._queue: list[ShardHost[Any]] = []
        self._running = False
        self.records = 0
        """Replayed so far, over all loads."""

    def add(self, host: ShardHost[Any]) -> None:
        """Load `host`, once all that its log holds is committed.

        A new leader may not know that yet. Served before, offsets would seem to go back; loaded before, the shard would
        have to remember what it held below the high watermark.
        """
        partition = host.partition
        log = partition.log
        if partition.high_watermark < log.end_offset:
            partition.ack_waiters.append((log.end_offset, Catchup(self, host)))
        elif log.log_start_offset == log.end_offset:
            # A new topic: the client that had it created must not meet a coordinator that is not ready.
            self._activate(host, self._coordinator.new_shard(partition))
        else:
            self._queue.append(host)
            if not self._running:
                self._running = True
                self._coordinator.spawn(self._run())

    def caught_up(self, host: ShardHost[Any]) -> None:
        """The high watermark has passed, or the partition is no longer led here."""
        if host.state is State.LOADING and host.partition.leader is not None:
            self.add(host)

    async def _run(self) -> None:
        try:
            while self._queue:
                host = min(self._queue, key=lambda waiting: waiting.partition.log.size)
                self._queue.remove(host)
                if host.state is State.LOADING:
                    await self._load(host)
        finally:
            self._running = False

    async def _load(self, host: ShardHost[Any]) -> None:
        partition = host.partition
        log = partition.log
        is_long = log.size > LONG_LOAD_BYTES and gc.isenabled()
        if is_long:
            gc.disable()
        began = self._coordinator.perf_counter()
        try:
            shard = self._coordinator.new_shard(partition)
            records = await Load(self._coordinator, host, shard).run()
        except (KafkaError, ProtocolError, OSError) as error:
            # Serving without what could not be read would send consumers back to where they began, or past records.
            logger.error("%s cannot be loaded, nothing in it has a coordinator: %s", partition, error)
            self._fail(host)
            return
        except Exception:
            logger.exception("%s cannot be loaded, nothing in it has a coordinator", partition)
            self._fail(host)
            return
        finally:
            if is_long:
                gc.freeze()
                gc.enable()
        self.records += records
        if host.state is State.LOADING:
            seconds = self._coordinator.perf_counter() - began
            level = logging.INFO if seconds > 1 else logging.DEBUG
            logger.log(level, "%s loaded: %d records in %.1f s", partition, records, seconds)
            if partition.high_watermark < log.end_offset:
                self.add(host)  # one of Kafka's tools has written meanwhile
            else:
                self._activate(host, shard)

    def _activate(self, host: ShardHost[Any], shard: Shard) -> None:
        try:
            host.activate(shard)
        except Exception:
            logger.exception("%s cannot be loaded, nothing in it has a coordinator", host.partition)
            host.close(Err.NOT_COORDINATOR, State.FAILED)
            self._coordinator.load_again(host)

    def _fail(self, host: ShardHost[Any]) -> None:
        if host.state is State.LOADING:
            host.state = State.FAILED
            self._coordinator.load_again(host)


class Catchup:
    """A shard that waits for the high watermark before it is loaded."""

    __slots__ = ("_host", "_loader")

    outlives_leader = False

    def __init__(self, loader: Loader, host: ShardHost[Any]) -> None:
        self._loader = loader
        self._host = host

    def committed(self) -> None:
        self._loader.caught_up(self._host)

    def lost(self, partition: Partition) -> None:
        self.committed()


class Load:
    """One load in progress."""

    def __init__(self, coordinator: "Coordinator[Any, Any]", host: ShardHost[Any], shard: Shard) -> None:
        self._coordinator = coordinator
        self._host = host
        self._shard = shard
        self._perf_counter = coordinator.perf_counter
        self._slice_end = 0.0
        self._records = 0
        self._next_report_ms = 0

    async def run(self) -> int:
        """Returns how many records there were. Ends early when the partition is no longer led here."""
        host = self._host
        log = host.partition.log
        offset = log.log_start_offset
        self._shard.advance(host.partition.high_watermark)
        self._next_report_ms = self._coordinator.timers.now_ms() + REPORT_MS
        while host.state is State.LOADING and offset < log.end_offset:
            piece = log.read(offset, READ_BYTES, log.end_offset)
            if piece is None:
                break
            try:
                data = await self._coordinator.run_in_thread(piece.read)
            finally:
                piece.release()
            self._slice_end = self._perf_counter() + SLICE_SECONDS
            before = offset
            for position, header in iter_headers(data):
                # A flipped bit would be somebody's offset: nobody else looks at these bytes before they count.
                check_stored(memoryview(data), position, len(data))
                offset = max(offset, header.end_offset)
                await self._batch(data, position, header)
                if host.state is not State.LOADING:
                    break
            if offset == before:
                break
            self._report(offset)
        return self._records

    async def _batch(self, data: bytes, position: int, header: BatchHeader) -> None:
        if header.is_control:
            for record in decode_control(data, position, header):
                if record.type in (ControlType.COMMIT, ControlType.ABORT):
                    self._shard.replay_marker(
                        record.offset, header.producer_id, header.producer_epoch, record.type == ControlType.COMMIT
                    )
            return
        base_offset, producer_id, producer_epoch = header.base_offset, header.producer_id, header.producer_epoch
        if not header.is_transactional:
            producer_id = producer_epoch = -1
        replay = self._shard.replay
        left = SLICE_RECORDS
        for offset_delta, _, key, value, _ in iter_raw(read_body(data, position, header), header.count):
            if key is not None:
                replay(base_offset + offset_delta, producer_id, producer_epoch, key, value)
            left -= 1
            if not left:
                left = SLICE_RECORDS
                if self._perf_counter() > self._slice_end:
                    await self._give_way()
                    if self._host.state is not State.LOADING:
                        return
        self._records += header.count
        if self._perf_counter() > self._slice_end:
            await self._give_way()

    async def _give_way(self) -> None:
        await asyncio.sleep(0)
        self._slice_end = self._perf_counter() + SLICE_SECONDS

    def _report(self, offset: int) -> None:
        now_ms = self._coordinator.timers.now_ms()
        if now_ms >= self._next_report_ms:
            self._next_report_ms = now_ms + REPORT_MS
            log = self._host.partition.log
            start = log.log_start_offset
            percent = 100 * (offset - start) // max(1, log.end_offset - start)
            logger.info("loading %s: %d records, %d %%", self._host.partition, self._records, percent)
