"""What was acknowledged, and what is served of it after damage: right, an error, or a finding.

Reads as librdkafka does by default: without a look at CRCs.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from headrace.client import raw
from headrace.client.admin.admin import Admin
from headrace.client.admin.groups import Groups
from headrace.client.errors import ClientError, RequestFailed
from headrace.client.net.cluster import Cluster
from headrace.errors import Err
from headrace.protocol.private_fields.scrub import ScrubQuestion
from headrace.records.builder import build_batch
from headrace.records.layout import iter_headers
from headrace.records.reader import Record, read_records

Partition = tuple[str, int]

RIGHT, MISSING, WRONG, OUT_OF_RANGE, REFUSED = "right", "missing", "wrong", "out of range", "refused"
PASSING = frozenset(
    {
        Err.NOT_LEADER_OR_FOLLOWER, Err.LEADER_NOT_AVAILABLE, Err.UNKNOWN_TOPIC_OR_PARTITION, Err.UNKNOWN_TOPIC_ID,
        Err.OFFSET_NOT_AVAILABLE, Err.FENCED_LEADER_EPOCH, Err.UNKNOWN_LEADER_EPOCH, Err.REPLICA_NOT_AVAILABLE,
        Err.COORDINATOR_LOAD_IN_PROGRESS, Err.COORDINATOR_NOT_AVAILABLE, Err.NOT_COORDINATOR,
    }
)  # fmt: skip
"""May pass by itself soon after a start. What is still answered when patience ends, counts."""


@dataclass
class Ledger:
    """All that was acknowledged."""

    records: dict[Partition, dict[int, tuple[bytes, bytes]]] = field(default_factory=dict)
    """(key, value) by offset."""
    compacted: set[str] = field(default_factory=set)
    deleted: dict[Partition, int] = field(default_factory=dict)
    """Records below these offsets were deleted on purpose."""
    offsets: dict[str, dict[Partition, int]] = field(default_factory=dict)
    """By group."""
    sent: int = 0

    def due(self, partition: Partition) -> dict[int, bytes]:
        """What a reader must find: of a compacted topic, each key's last."""
        records = self.records.get(partition, {})
        if partition[0] not in self.compacted:
            start = self.deleted.get(partition, 0)
            return {offset: value for offset, (_, value) in records.items() if offset >= start}
        last = {key: offset for offset, (key, _) in sorted(records.items())}
        return {offset: records[offset][1] for offset in last.values()}

    def end(self, partition: Partition) -> int:
        return max(self.records.get(partition, {}), default=-1) + 1


@dataclass
class Verdict:
    """Of each partition: how each due offset fared. Of each group: what it was told."""

    fates: dict[Partition, dict[int, str]] = field(default_factory=dict)
    groups: dict[str, str] = field(default_factory=dict)

    def counts(self, partition: Partition) -> dict[str, int]:
        found: dict[str, int] = {}
        for fate in self.fates[partition].values():
            found[fate.partition(":")[0]] = found.get(fate.partition(":")[0], 0) + 1
        return found

    @property
    def is_whole(self) -> bool:
        found = {fate for fates in self.fates.values() for fate in fates.values()}
        return found | set(self.groups.values()) <= {RIGHT}

    def findings(self, harmed: set[Partition], *, strict: bool = False) -> list[str]:
        """Whatever must not be. Partitions in `harmed` may answer errors, unless `strict`: nothing else may."""
        found = []
        for partition, fates in self.fates.items():
            may = {RIGHT, REFUSED} if partition in harmed and not strict else {RIGHT}
            bad = {offset: fate for offset, fate in fates.items() if fate.partition(":")[0] not in may}
            if bad:
                first = next(iter(bad))
                found.append(f"{partition[0]}-{partition[1]}: {self.counts(partition)}, first at {first}: {bad[first]}")
        may_lack = any(topic == "__consumer_offsets" for topic, _ in harmed) and not strict
        for group, fate in self.groups.items():
            if fate != RIGHT and not (may_lack and fate.startswith(REFUSED)):
                found.append(f"group {group}: {fate}")
        return found


class Writer:
    """Sends records with acks=all, idempotent, and keeps the ledger."""

    def __init__(self, bootstrap: str, ledger: Ledger, seed: int) -> None:
        self.bootstrap = bootstrap
        self.ledger = ledger
        self.seed = seed

    async def send(self, cluster: Cluster, partition: Partition, count: int, value_bytes: int, keys: int = 5) -> None:
        ledger = self.ledger
        rows = []
        for _ in range(count):
            ledger.sent += 1
            key = b"k%d" % (ledger.sent % keys)
            rows.append(
                Record(
                    0, 1_700_000_000_000 + ledger.sent, key, b"%d-%d-" % (self.seed, ledger.sent) + b"." * value_bytes
                )
            )
        produced = await raw.produce(cluster, *partition, build_batch(rows))
        known = ledger.records.setdefault(partition, {})
        for at, row in enumerate(rows):
            offset = produced.base_offset + at
            assert offset not in known, f"offset {offset} of {partition} was given twice"
            known[offset] = row.key or b"", row.value or b""

    async def delete(self, partition: Partition, offset: int) -> None:
        async with Admin(self.bootstrap) as admin:
            await admin.delete_records(partition[0], {partition[1]: offset})
        self.ledger.deleted[partition] = offset

    async def commit(self, group: str, offsets: Mapping[Partition, int]) -> None:
        async with Admin(self.bootstrap) as admin:
            await Groups(admin).commit(group, dict(offsets))
        self.ledger.offsets[group] = dict(offsets)


async def scrub(bootstrap: str, nodes: Sequence[int], patience_s: float = 60.0) -> str | None:
    """Have every node check all that it has, and wait until what others have is repaired; a line if that does not end.

    Only a look at every byte finds a flipped bit.
    """
    async with Admin(bootstrap, retry_timeout_s=30.0) as admin:
        before = {node: await admin.scrub(node, ScrubQuestion()) for node in nodes}
        for node in nodes:
            await admin.scrub(node, ScrubQuestion(start=True))
        loop = asyncio.get_running_loop()
        deadline = loop.time() + patience_s
        waiting = dict(before)
        while loop.time() < deadline:
            for node, first in list(waiting.items()):
                now = await admin.scrub(node, ScrubQuestion())
                assert first is not None and now is not None
                if now.passes > first.passes and not now.is_running and not now.missing_here_only:
                    del waiting[node]
            if not waiting:
                return None
            await asyncio.sleep(0.1)
        return f"scrubbing does not end on {sorted(waiting)}: {now}"


async def judge(bootstrap: str, ledger: Ledger, patience_s: float = 10.0) -> Verdict:
    """Read everything, from every topic."""
    verdict = Verdict()

    async def one(partition: Partition) -> None:
        verdict.fates[partition] = await _fates(bootstrap, ledger, partition, patience_s)

    async def group(name: str) -> None:
        verdict.groups[name] = await _group_fate(bootstrap, name, ledger.offsets[name], patience_s)

    await asyncio.gather(*map(one, ledger.records), *map(group, ledger.offsets))
    return verdict


async def _fates(bootstrap: str, ledger: Ledger, partition: Partition, patience_s: float) -> dict[int, str]:
    due = ledger.due(partition)
    all_records = ledger.records[partition]
    loop = asyncio.get_running_loop()
    deadline = loop.time() + patience_s
    fates: dict[int, str] = {}
    position = 0
    async with Cluster(bootstrap, connect_timeout_s=2.0, request_timeout_s=5.0, retry_timeout_s=0.01) as cluster:
        while position < ledger.end(partition):
            try:
                fetched = await raw.fetch(cluster, *partition, position, max_wait_ms=0, can_retry=lambda _: False)
            except ClientError as error:
                if _may_pass(error) and loop.time() < deadline:
                    await asyncio.sleep(0.05)
                    continue
                following = min((offset for offset in due if offset > position), default=ledger.end(partition))
                if position in due:
                    out = isinstance(error, RequestFailed) and error.error is Err.OFFSET_OUT_OF_RANGE
                    fates[position] = f"{OUT_OF_RANGE if out else REFUSED}: {error}"
                position = following
                continue
            served, end, trouble = _decode(fetched.records, position)
            fates |= _compared(served, due, {offset: row[1] for offset, row in all_records.items() if offset in served})
            if trouble:
                fates[position] = f"{WRONG}: {trouble}"
                position = max(end, position + 1)
            elif end > position:
                for offset in due:
                    if position <= offset < end:
                        fates.setdefault(offset, f"{MISSING}: skipped between {position} and {end}")
                position = end
            elif loop.time() < deadline:
                await asyncio.sleep(0.05)  # the high watermark may still be on its way
            else:
                for offset in due:
                    if offset >= position:
                        fates.setdefault(
                            offset, f"{MISSING}: nothing comes at {position}, high watermark {fetched.high_watermark}"
                        )
                break
    return {offset: fates.get(offset, f"{MISSING}: never seen") for offset in due} | fates


def _compared(served: dict[int, bytes], due: dict[int, bytes], written: dict[int, bytes]) -> dict[int, str]:
    """The fates of what was served: what is due must be right, and nothing may be there that nobody wrote."""
    fates = {}
    for offset, value in served.items():
        if offset in due:
            fates[offset] = RIGHT if due[offset] == value else f"{WRONG}: {value[:40]!r} for {due[offset][:40]!r}"
        elif written.get(offset) != value:
            fates[offset] = f"{WRONG}: {value[:40]!r}, which nobody wrote there"
    return fates


def _may_pass(error: ClientError) -> bool:
    return not isinstance(error, RequestFailed) or error.error in PASSING


def _decode(data: bytes | bytearray | memoryview, position: int) -> tuple[dict[int, bytes], int, str]:
    """Values by offset, where to go on, and what could not be read at all."""
    found: dict[int, bytes] = {}
    end = position
    view = memoryview(data)
    try:
        for at, header in iter_headers(view):
            if header.base_offset > (1 << 40) or header.end_offset <= end - 1:
                return found, end, f"a batch from {header.base_offset} to {header.end_offset} at {end}"
            if not header.is_control:
                for record in read_records(view, at, header):
                    if record.offset >= position:
                        found[record.offset] = record.value or b""
            end = header.end_offset
    except Exception as error:  # whatever a consumer would stumble over
        return found, end, f"unreadable: {error!r}"
    if not found and end == position and len(view) > 100:
        return found, end, f"{len(view)} bytes that are no batches"
    return found, end, ""


async def _group_fate(bootstrap: str, name: str, wanted: dict[Partition, int], patience_s: float) -> str:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + patience_s
    while True:
        try:
            async with Admin(bootstrap, retry_timeout_s=1.0) as admin:
                found = await Groups(admin).committed(name)
        except ClientError as error:
            if _may_pass(error) and loop.time() < deadline:
                await asyncio.sleep(0.1)
                continue
            return f"{REFUSED}: {error}"
        told = {at: row.offset for at, row in found.items()}
        return RIGHT if told == wanted else f"{WRONG}: {told} for {wanted}"
