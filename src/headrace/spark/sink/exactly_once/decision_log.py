"""The topic of decisions: one compacted partition, one key for each query or named write, its last decision the value.

All queries of a cluster share it. What has been read is remembered as long as the process lives, so a query that goes
on from batch to batch reads nothing but what others have written in between.
"""

import time

import msgspec

from headrace.client.admin.admin import Admin
from headrace.client.errors import RequestFailed
from headrace.client.net.cluster import UNKNOWN_TOPIC_WAIT_S, may_pass
from headrace.client.raw import fetch, produce
from headrace.errors import Err
from headrace.records.batch import Record, build_batch, iter_records
from headrace.records.compression import Codec
from headrace.records.layout import iter_headers
from headrace.spark.sink.exactly_once.decisions import Decision, Standing

TOPIC = "headrace-spark-decisions"
REPLICAS_MAX = 3
CONFIGS = {
    "cleanup.policy": "compact",
    # What is read when a query starts: one decision for each query, and those of the last hour.
    "segment.ms": "3600000",
    "segment.bytes": str(64 << 20),
    "min.cleanable.dirty.ratio": "0.1",
    # Of two decisions on one batch the first one counts: it must still be there when the second one is read, and until
    # it has been written again behind that one.
    "min.compaction.lag.ms": "3600000",
}
FETCH_BYTES = 4 << 20
FETCH_WAIT_MS = 100


class _Known(msgspec.Struct):
    """How far the topic has been read for one key, and how things stood there."""

    offset: int = 0
    standing: Standing = Standing()


_known: dict[tuple[bytes, str], _Known] = {}
"""By topic id and identity: a topic that was deleted and made again is another one."""


async def ensure_topic(admin: Admin) -> None:
    """Make the topic unless it is there."""
    await admin.cluster.refresh([TOPIC])
    if TOPIC in admin.cluster.topics:
        return
    replicas = min(REPLICAS_MAX, len(admin.cluster.brokers))
    configs = CONFIGS | {"min.insync.replicas": str(max(1, replicas - 1))}
    try:
        await admin.create_topic(TOPIC, 1, replicas, configs)
    except RequestFailed as error:
        if error.error is not Err.TOPIC_ALREADY_EXISTS:
            raise
    await admin.cluster.retrying(
        lambda: admin.cluster.topic(TOPIC), topics=[TOPIC], unknown_topic_wait_s=UNKNOWN_TOPIC_WAIT_S
    )


class DecisionLog:
    """The decisions of one query or named write."""

    def __init__(self, admin: Admin, identity: str) -> None:
        self._cluster = admin.cluster
        self._identity = identity

    async def read(self) -> Decision | None:
        """What is in force now, and is what compaction would leave."""
        return await self._settled(await self._read(None))

    async def write(self, decision: Decision) -> Decision:
        """Write a decision and return what is in force then, and is what compaction would leave."""
        settled = await self._settled(await self._append(decision))
        assert settled is not None
        return settled

    async def _settled(self, known: _Known) -> Decision | None:
        while (owed := known.standing.owed) is not None:
            known = await self._append(owed)
        return known.standing.decision

    async def _append(self, decision: Decision) -> _Known:
        """Write a record, and read on to it."""
        known = await self._state()
        value = msgspec.json.encode(decision)
        record = Record(0, time.time_ns() // 1_000_000, self._identity.encode(), value)
        batch = build_batch([record], compression=Codec.GZIP)
        # Sent again whenever in doubt: a decision that is there twice counts once.
        written = await produce(self._cluster, TOPIC, 0, batch, can_retry=may_pass)
        if written.base_offset == known.offset:
            known.offset, known.standing = written.base_offset + 1, known.standing.after(decision)
            return known
        return await self._read(written.base_offset + 1)

    async def _state(self) -> _Known:
        topic = await self._cluster.topic(TOPIC)
        return _known.setdefault((topic.topic_id, self._identity), _Known())

    async def _read(self, end_offset: int | None) -> _Known:
        """Read on to `end_offset`, or to the end of what is there now."""
        known = await self._state()
        key = self._identity.encode()
        while end_offset is None or known.offset < end_offset:
            try:
                got = await fetch(
                    self._cluster,
                    TOPIC,
                    0,
                    known.offset,
                    max_bytes=FETCH_BYTES,
                    max_wait_ms=0 if end_offset is None else FETCH_WAIT_MS,
                    can_retry=may_pass,
                )
            except RequestFailed as error:
                if error.error is not Err.OFFSET_OUT_OF_RANGE or not known.offset:
                    raise
                # Somebody has deleted records, or brokers have lost some: what is there now is what there is.
                known.offset, known.standing = 0, Standing()
                continue
            end_offset = got.high_watermark if end_offset is None else end_offset
            for record in iter_records(got.records):
                # Another reader of this process may have come further meanwhile.
                if record.offset >= known.offset and record.key == key and record.value is not None:
                    known.standing = known.standing.after(msgspec.json.decode(record.value, type=Decision))
            for _, header in iter_headers(got.records):
                known.offset = max(known.offset, header.end_offset)
        return known
