"""What is served after damage of what was acknowledged: right, an error, or a finding.

Everything is read twice: all there is, and what is committed only. As librdkafka does by default: without a look at
CRCs.
"""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random

from headrace.client import raw
from headrace.client.admin.admin import Admin
from headrace.client.admin.groups import Groups
from headrace.client.consume.records import visible_batches
from headrace.client.errors import ClientError, RequestFailed
from headrace.client.net.cluster import Cluster
from headrace.errors import Err
from headrace.protocol.private_fields.scrub import ScrubQuestion
from headrace.records.builder import build_batch
from headrace.records.layout import iter_headers
from tests.damage.ledger import Ledger, Partition
from tests.damage.transactions import IDS, Payer, Trouble

Reading = tuple[Partition, bool]
"""A partition, and whether only what is committed was read."""

RIGHT, MISSING, WRONG, OUT_OF_RANGE, REFUSED = "right", "missing", "wrong", "out of range", "refused"
WAITING = "waiting"
"""For the end of a transaction that its producer could not end: the trouble that it had is judged, not this."""
PASSING = frozenset(
    {
        Err.NOT_LEADER_OR_FOLLOWER, Err.LEADER_NOT_AVAILABLE, Err.UNKNOWN_TOPIC_OR_PARTITION, Err.UNKNOWN_TOPIC_ID,
        Err.OFFSET_NOT_AVAILABLE, Err.FENCED_LEADER_EPOCH, Err.UNKNOWN_LEADER_EPOCH, Err.REPLICA_NOT_AVAILABLE,
        Err.COORDINATOR_LOAD_IN_PROGRESS, Err.COORDINATOR_NOT_AVAILABLE, Err.NOT_COORDINATOR,
        Err.UNSTABLE_OFFSET_COMMIT,
    }
)  # fmt: skip
"""May pass by itself soon after a start. What is still answered when patience ends, counts."""


@dataclass
class Verdict:
    """Of each partition, read in each way: how each due offset fared. Of each group: what it was told."""

    fates: dict[Reading, dict[int, str]] = field(default_factory=dict)
    groups: dict[str, str] = field(default_factory=dict)

    def counts(self, reading: Reading) -> dict[str, int]:
        found: dict[str, int] = {}
        for fate in self.fates[reading].values():
            found[fate.partition(":")[0]] = found.get(fate.partition(":")[0], 0) + 1
        return found

    @property
    def is_whole(self) -> bool:
        found = {fate for fates in self.fates.values() for fate in fates.values()}
        return found | set(self.groups.values()) <= {RIGHT}

    def findings(self, harmed: set[Partition], *, strict: bool = False) -> list[str]:
        """Whatever must not be. Partitions in `harmed` may answer errors, unless `strict`: nothing else may."""
        found = []
        for (partition, committed), fates in self.fates.items():
            may = {RIGHT} if strict else {RIGHT, WAITING, REFUSED} if partition in harmed else {RIGHT, WAITING}
            bad = {offset: fate for offset, fate in fates.items() if fate.partition(":")[0] not in may}
            if bad:
                first = next(iter(bad))
                how = " (committed)" if committed else ""
                counts = self.counts((partition, committed))
                found.append(f"{partition[0]}-{partition[1]}{how}: {counts}, first at {first}: {bad[first]}")
        may_lack = any(topic == "__consumer_offsets" for topic, _ in harmed) and not strict
        for group, fate in self.groups.items():
            if fate != RIGHT and not (may_lack and fate.startswith(REFUSED)):
                found.append(f"group {group}: {fate}")
        return found


class Writer:
    """Sends records with acks=all, alone and in transactions, and keeps the ledger."""

    def __init__(self, bootstrap: str, ledger: Ledger, dice: Random) -> None:
        self.bootstrap = bootstrap
        self.ledger = ledger
        self.payers = [Payer(bootstrap, ledger, name, dice) for name in IDS]

    async def send(self, cluster: Cluster, partition: Partition, count: int, value_bytes: int) -> None:
        rows = self.ledger.new_rows(count, value_bytes)
        produced = await raw.produce(cluster, *partition, build_batch(rows))
        self.ledger.note(partition, produced.base_offset, rows)

    async def delete(self, partition: Partition, offset: int) -> None:
        async with Admin(self.bootstrap) as admin:
            await admin.delete_records(partition[0], {partition[1]: offset})
        self.ledger.deleted[partition] = offset

    async def commit(self, group: str, offsets: Mapping[Partition, int]) -> None:
        async with Admin(self.bootstrap) as admin:
            await Groups(admin).commit(group, dict(offsets))
        self.ledger.offsets[group] = dict(offsets)

    async def leave_open(self) -> None:
        """The last producer has a transaction open, perhaps the one before it, too."""
        for payer in self.payers[-self.payers[0].dice.randint(1, 2) :]:
            await payer.leave_open()

    def at_rest(self) -> list[Payer]:
        """Those that have nothing open."""
        return [payer for payer in self.payers if payer.open is None]

    async def settle(self, harmed: set[Partition], *, strict: bool = False) -> list[str]:
        """End what was left open; whatever must not be."""
        troubles: list[Trouble] = []
        for payer in self.payers:
            troubles += await payer.settle()
        return [trouble.text for trouble in troubles if strict or not trouble.may_be(harmed)]


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

    async def one(partition: Partition, committed: bool) -> None:
        reading = _Reading(bootstrap, ledger, partition, committed)
        verdict.fates[partition, committed] = await reading.run(patience_s)

    async def group(name: str) -> None:
        verdict.groups[name] = await _group_fate(bootstrap, name, ledger, patience_s)

    every = [one(partition, committed) for partition in ledger.records for committed in (False, True)]
    await asyncio.gather(*every, *map(group, sorted(ledger.groups())))
    return verdict


class _Reading:
    """One partition, from its first offset to its last."""

    def __init__(self, bootstrap: str, ledger: Ledger, partition: Partition, committed: bool) -> None:
        self._bootstrap = bootstrap
        self._ledger = ledger
        self._partition = partition
        self._committed = committed
        self._due = ledger.due(partition, committed=committed)
        self._written = {offset: value for offset, (_, value) in ledger.records[partition].items()}
        self._end = ledger.end(partition)
        self._stable_end = ledger.stable_end(partition) if committed else self._end
        self._fates: dict[int, str] = {}
        self._position = 0

    async def run(self, patience_s: float) -> dict[int, str]:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + patience_s
        client = Cluster(self._bootstrap, connect_timeout_s=2.0, request_timeout_s=5.0, retry_timeout_s=0.01)
        async with client as cluster:
            while self._position < self._end:
                try:
                    fetched = await raw.fetch(
                        cluster, *self._partition, self._position, max_wait_ms=0, can_retry=lambda _: False,
                        read_committed=self._committed,
                    )  # fmt: skip
                except ClientError as error:
                    if _may_pass(error) and loop.time() < deadline:
                        await asyncio.sleep(0.05)
                        with suppress(ClientError):
                            await cluster.refresh([self._partition[0]])
                    else:
                        self._refused(error)
                    continue
                if self._took(fetched):
                    continue
                if self._position >= self._stable_end:
                    break  # what follows waits for a transaction that is open
                if loop.time() >= deadline:
                    self._nothing_comes(fetched)
                    break
                await asyncio.sleep(0.05)  # the high watermark may still be on its way, or a marker
        return {offset: self._fates.get(offset, f"{MISSING}: never seen") for offset in self._due} | self._fates

    def _refused(self, error: ClientError) -> None:
        following = min((offset for offset in self._due if offset > self._position), default=self._end)
        if self._position in self._due:
            out = isinstance(error, RequestFailed) and error.error is Err.OFFSET_OUT_OF_RANGE
            self._fates[self._position] = f"{OUT_OF_RANGE if out else REFUSED}: {error}"
        self._position = following

    def _took(self, fetched: raw.Fetched) -> bool:
        """Whether something came that leads on."""
        position = self._position
        served, end, trouble = _decode(fetched, position, self._committed)
        self._fates |= self._compared(served)
        if trouble:
            self._fates[position] = f"{WRONG}: {trouble}"
            self._position = max(end, position + 1)
        elif end > position:
            for offset in self._due:
                if position <= offset < end:
                    self._fates.setdefault(offset, f"{MISSING}: skipped between {position} and {end}")
            self._position = end
        return self._position > position

    def _compared(self, served: dict[int, bytes]) -> dict[int, str]:
        """What is due must be right, and nothing may be there that nobody wrote, or that is not committed."""
        fates = {}
        for offset, value in served.items():
            if offset in self._due:
                wanted = self._due[offset]
                fates[offset] = RIGHT if wanted == value else f"{WRONG}: {value[:40]!r} for {wanted[:40]!r}"
            elif self._written.get(offset, value) != value or value not in self._ledger.sent_values:
                fates[offset] = f"{WRONG}: {value[:40]!r}, which nobody wrote there"
            elif self._committed and self._ledger.is_hidden(self._partition, offset):
                fates[offset] = f"{WRONG}: {value[:40]!r}, {self._ledger.state(self._partition, offset).value}"
        return fates

    def _nothing_comes(self, fetched: raw.Fetched) -> None:
        stable = fetched.last_stable_offset
        undecided = self._ledger.undecided(self._partition) if self._committed else None
        waits = undecided is not None and undecided <= self._position
        text = f"nothing comes at {self._position}, high watermark {fetched.high_watermark}, last stable {stable}"
        for offset in self._due:
            if offset >= self._position:
                self._fates.setdefault(offset, f"{WAITING if waits else MISSING}: {text}")


def _may_pass(error: ClientError) -> bool:
    return not isinstance(error, RequestFailed) or error.error in PASSING


def _decode(fetched: raw.Fetched, position: int, committed: bool) -> tuple[dict[int, bytes], int, str]:
    """Values by offset, where to go on, and what could not be read at all."""
    found: dict[int, bytes] = {}
    end = position
    view = memoryview(fetched.records)
    try:
        for _, header in iter_headers(view):
            if header.base_offset > (1 << 40) or header.end_offset <= end - 1:
                return found, end, f"a batch from {header.base_offset} to {header.end_offset} at {end}"
            end = header.end_offset
        aborted = fetched.aborted if committed else ()
        for _, records in visible_batches(view, "", 0, position, aborted, check_crcs=False):
            found |= {record.offset: record.value or b"" for record in records}
    except Exception as error:  # whatever a consumer would stumble over
        return found, end, f"unreadable: {error!r}"
    if not found and end == position and len(view) > 100:
        return found, end, f"{len(view)} bytes that are no batches"
    return found, end, ""


async def _group_fate(bootstrap: str, name: str, ledger: Ledger, patience_s: float) -> str:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + patience_s
    wanted, stable = ledger.told(name)
    while True:
        try:
            async with Admin(bootstrap, retry_timeout_s=1.0) as admin:
                found = await Groups(admin).committed(name, stable=stable)
        except ClientError as error:
            if _may_pass(error) and loop.time() < deadline:
                await asyncio.sleep(0.1)
                continue
            return f"{REFUSED}: {error}"
        told = {at: row.offset for at, row in found.items() if row.offset >= 0}
        return RIGHT if told in wanted else f"{WRONG}: {told} for {wanted}"
