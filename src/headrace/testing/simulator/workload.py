"""Clients that write and read through the wire protocol and keep a history for the checkers.

Each value is one record, sent by one producer at one time; what a client could not learn counts as unknown.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random

from headrace.client import raw
from headrace.client.errors import ClientError, RequestFailed, err_of
from headrace.client.net.cluster import Cluster
from headrace.clock import Clock
from headrace.errors import Err
from headrace.protocol import messages as m
from headrace.protocol.api import ApiKey
from headrace.records.batch import check_stored
from headrace.records.builder import build_batch
from headrace.records.layout import iter_headers
from headrace.records.reader import Record, read_records
from headrace.testing.simulator.checkers import History, Log, Outcome, PartitionKey, Poll, Seek, Send

# Only these say that nothing was written. Most errors may also answer a batch that was appended and then lost its
# leader, its disk or its topic while it waited for the commit.
REFUSALS = {Err.NOT_ENOUGH_REPLICAS, Err.CORRUPT_MESSAGE, Err.INVALID_RECORD, Err.MESSAGE_TOO_LARGE}
SETTLE_MS = 1500


@dataclass(slots=True)
class Options:
    topic: str = "t"
    partitions: int = 1
    idempotent: bool = True
    acks: int = -1
    batch_records_max: int = 8
    value_bytes_max: int = 300
    own_keys: bool = False
    """Each record has a key of its own, so that compaction takes none away."""
    pause_s_max: float = 0.02
    connect_timeout_s: float = 1.0
    request_timeout_s: float = 3.0
    retry_timeout_s: float = 20.0


class Workload:
    """Producers and consumers of one topic. Cancel their tasks to stop them: the history says what they knew by
    then."""

    def __init__(self, bootstrap: str, random: Random, clock: Clock, options: Options | None = None) -> None:
        self.bootstrap = bootstrap
        self.random = random
        self.clock = clock
        self.options = options if options is not None else Options()
        self.history = History()
        self.acknowledged = 0
        self._values = 0

    def cluster(self) -> Cluster:
        options = self.options
        return Cluster(
            self.bootstrap,
            connect_timeout_s=options.connect_timeout_s,
            request_timeout_s=options.request_timeout_s,
            retry_timeout_s=options.retry_timeout_s,
        )

    # Writing

    async def produce(self, name: str) -> None:
        """Send batches for ever, one at a time, through whatever happens to the cluster."""
        options, random = self.options, self.random
        cluster = self.cluster()
        identity = _Identity()
        try:
            while True:
                partition = random.randrange(options.partitions)
                values = [self._new_value(name) for _ in range(random.randint(1, options.batch_records_max))]
                await self._send(cluster, identity, name, partition, values)
                await asyncio.sleep(random.random() * options.pause_s_max)
        finally:
            cluster.close()

    async def _send(
        self, cluster: Cluster, identity: "_Identity", name: str, partition: int, values: list[bytes]
    ) -> None:
        options = self.options
        outcome, base_offset = Outcome.UNKNOWN, -1
        try:
            if options.idempotent and not identity.known:
                await identity.ask(cluster)
            now_ms = self.clock.wall_ms()
            batch = build_batch(
                [Record(0, now_ms, value if options.own_keys else b"key", value) for value in values],
                producer_id=identity.producer_id,
                producer_epoch=identity.producer_epoch,
                base_sequence=identity.next_sequence(partition, len(values)),
            )
            timeout_ms = int(options.request_timeout_s * 1000)
            produced = await raw.produce(
                cluster, options.topic, partition, batch, acks=options.acks, timeout_ms=timeout_ms
            )
            outcome, base_offset = Outcome.OK, produced.base_offset
            self.acknowledged += 1
        except RequestFailed as error:
            if error.error in REFUSALS:
                outcome = Outcome.FAILED
            identity.forget()
            await asyncio.sleep(0.1)
        except ClientError:
            # Whether it was written is open; another with the same sequence could be taken for it.
            identity.forget()
            await asyncio.sleep(0.1)
        finally:
            for index, value in enumerate(values):
                offset = base_offset + index if base_offset >= 0 else -1
                self.history.operations.append(Send(name, partition, value, outcome, offset))

    def _new_value(self, name: str) -> bytes:
        self._values += 1
        return f"{name}-{self._values}-".encode() + b"." * self.random.randrange(self.options.value_bytes_max)

    # Reading

    async def consume(self, name: str, partition: int) -> None:
        """Poll one partition from the start, for ever."""
        cluster = self.cluster()
        position = 0
        self.history.operations.append(Seek(name, partition, position))
        try:
            while True:
                try:
                    position = await self._poll(cluster, name, partition, position)
                except ClientError:
                    await asyncio.sleep(0.1)
        finally:
            cluster.close()

    async def _poll(self, cluster: Cluster, name: str, partition: int, position: int) -> int:
        max_bytes = self.random.choice((500, 5_000, 1 << 20))
        fetched = await raw.fetch(cluster, self.options.topic, partition, position, max_bytes=max_bytes)
        records, end_offset = decode(fetched.records, position)
        self.history.operations.append(Poll(name, partition, records, fetched.high_watermark, read_committed=False))
        return end_offset

    async def read_all(self) -> dict[PartitionKey, Log]:
        """Every partition from its start to where nothing more comes."""
        partitions = range(self.options.partitions)
        return dict(zip(partitions, await asyncio.gather(*map(self._read_log, partitions))))

    async def _read_log(self, partition: int) -> Log:
        log: list[tuple[int, bytes]] = []
        position = 0
        # A connection of its own: on a shared one each would wait for the others' waiting.
        cluster = self.cluster()
        try:
            while True:
                # After a restart the high watermark comes back only once the recovered tail is synced: wait for it.
                fetched = await raw.fetch(cluster, self.options.topic, partition, position, max_wait_ms=SETTLE_MS)
                records, end_offset = decode(fetched.records, position)
                log.extend(records)
                if end_offset == position:
                    assert position >= fetched.high_watermark, f"nothing at {position} below the high watermark"
                    return log
                position = end_offset
        finally:
            cluster.close()


class _Identity:
    """A producer's id, epoch and next sequence of each partition."""

    def __init__(self) -> None:
        self.forget()

    @property
    def known(self) -> bool:
        return self.producer_id >= 0

    def forget(self) -> None:
        self.producer_id = -1
        self.producer_epoch = -1
        self._sequences: dict[int, int] = {}

    async def ask(self, cluster: Cluster) -> None:
        answer: m.InitProducerIdResponse = await cluster.to_any(
            ApiKey.INIT_PRODUCER_ID,
            m.InitProducerIdRequest(transactional_id=None, producer_id=-1, producer_epoch=-1),
        )
        if answer.error_code:
            raise RequestFailed("InitProducerId", err_of(answer.error_code))
        self.producer_id, self.producer_epoch = answer.producer_id, answer.producer_epoch

    def next_sequence(self, partition: int, count: int) -> int:
        if not self.known:
            return -1
        sequence = self._sequences.get(partition, 0)
        self._sequences[partition] = sequence + count
        return sequence


def decode(data: bytes | bytearray | memoryview, position: int) -> tuple[tuple[tuple[int, bytes], ...], int]:
    """(offset, value) of the records at `position` and above, and where to go on. A last batch that is cut is ignored.

    Each batch is checked against its CRC. Records without a value are probes of a test, not part of its history.
    """
    view = memoryview(data)
    found: list[tuple[int, bytes]] = []
    end_offset = position
    for at, header in iter_headers(view):
        check_stored(view, at, at + header.size)
        end_offset = header.end_offset
        if not header.is_control:
            records = ((r.offset, r.value) for r in read_records(view, at, header))
            found.extend((offset, value) for offset, value in records if offset >= position and value is not None)
    return tuple(found), end_offset


def summary(history: History) -> Mapping[str, int]:
    """How much a run really did: a check of nothing proves nothing."""
    sends = list(history.sends())
    return {
        "acknowledged": sum(send.outcome is Outcome.OK for send in sends),
        "unknown": sum(send.outcome is Outcome.UNKNOWN for send in sends),
        "refused": sum(send.outcome is Outcome.FAILED for send in sends),
        "polled": sum(len(poll.records) for poll in history.polls()),
        "final": sum(len(log) for log in (history.final or {}).values()),
    }
