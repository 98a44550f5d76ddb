"""The verdict: what was acknowledged against what is there, what readers saw, what groups committed, and replicas by
bytes."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

from headrace.client.admin.admin import Admin
from headrace.client.net.cluster import Cluster
from headrace.client.raw import fetch
from headrace.records.batch import check_stored
from headrace.records.layout import iter_headers
from headrace.records.reader import read_records
from headrace.testing.cluster import ClusterFailed
from tests.cluster.history import assert_replicas_identical, until_answered
from tests.nemesis.faults import Event
from tests.nemesis.workload import Auditor, Follower, Place, Readings, Writer
from tests.nemesis.world import World

SETTLE_S = 2.0
"""After a fault is healed its consequences are still its own."""


class Entry(NamedTuple):
    """A record as it lies in the log, and who wrote its batch."""

    value: bytes
    producer_id: int
    producer_epoch: int
    sequence: int


Log = dict[Place, dict[int, Entry]]


@dataclass
class Verdict:
    acknowledged: int = 0
    lost: list[str] = field(default_factory=list)
    doubled_by_broker: list[str] = field(default_factory=list)
    """Twice under one producer id and epoch: the sequence should have told the broker."""
    doubled_by_client: list[str] = field(default_factory=list)
    """The client had raised its epoch or taken a new id, and sent again what was there."""
    doubled_plain: list[str] = field(default_factory=list)
    """Of writers that are not idempotent: allowed, but where `in_order`."""
    in_order: bool = False
    """Nothing but orderly restarts."""
    reordered: list[str] = field(default_factory=list)
    failed: dict[str, list[str]] = field(default_factory=dict)
    """Records that clients gave up, by writer."""
    readers: list[str] = field(default_factory=list)
    groups: list[str] = field(default_factory=list)
    results: list[str] = field(default_factory=list)
    """Records that were not copied exactly once, by who promises that."""
    replicas: list[str] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)
    slow: list[str] = field(default_factory=list)
    recovery_s: float = 0.0
    pauses_s: dict[str, float] = field(default_factory=dict)
    """Longest time without an acknowledgement in some partition, by the kind of fault it met."""
    latency_ms: dict[str, dict[str, float]] = field(default_factory=dict)

    def findings(self) -> list[str]:
        """What must not be; empty is good."""
        kinds = {
            "lost": self.lost, "doubled in spite of its sequence": self.doubled_by_broker,
            "doubled by an orderly restart": self.doubled_plain if self.in_order else [],
            "out of order": self.reordered,
            "readers": self.readers, "groups": self.groups, "results": self.results, "replicas": self.replicas,
            "ended by itself": self.ended, "slow": self.slow,
        }  # fmt: skip
        return [f"{kind}: {len(rows)}, first {rows[:3]}" for kind, rows in kinds.items() if rows]

    def reports(self) -> list[str]:
        """What a client may do by itself: to be looked at, and no failure of a run."""
        rows = self.doubled_by_client
        return [f"doubled under a new epoch: {len(rows)}, first {rows[:3]}"] if rows else []

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


# -- what is there


async def _read(cluster: Cluster, topic: str, index: int, end: int) -> dict[int, Entry]:
    found: dict[int, Entry] = {}
    offset = 0
    while offset < end:
        got = await fetch(cluster, topic, index, offset, max_wait_ms=100)
        data, before = memoryview(got.records), offset
        for position, header in iter_headers(data):
            check_stored(data, position, len(data))
            for record in read_records(data, position, header):
                if record.offset >= offset and not header.is_control:
                    sequence = header.base_sequence + record.offset - header.base_offset
                    found[record.offset] = Entry(
                        bytes(record.value or b""), header.producer_id, header.producer_epoch, sequence
                    )
            offset = header.end_offset
        assert offset > before, f"{topic}-{index}: nothing at offset {offset} although the log ends at {end}"
    return found


def read_log(bootstrap: str, topics: dict[str, int], limit_s: float = 60.0) -> Log:
    async def work() -> Log:
        async with Admin(bootstrap, connect_timeout_s=2.0) as admin:
            log: Log = {}
            for topic in topics:
                for index, found in (await admin.list_offsets(topic)).items():
                    log[topic, index] = await _read(admin.cluster, topic, index, found.offset)
            return log

    return until_answered(work, limit_s)


# -- judging


def judge_writers(verdict: Verdict, log: Log, writers: Sequence[Writer]) -> None:
    where: dict[bytes, list[tuple[Place, int]]] = defaultdict(list)
    for place, rows in log.items():
        for offset, entry in rows.items():
            where[entry.value].append((place, offset))
    for writer in writers:
        book = writer.book
        verdict.acknowledged += book.count
        verdict.lost += book.clashes
        if book.failed:
            verdict.failed[writer.name] = [f"{number}: {why}" for number, why in book.failed]
        for (topic, partition, offset), number in book.acked.items():
            found = log[topic, partition].get(offset)
            if found is None or found.value != f"{writer.name}-{number}".encode():
                verdict.lost.append(
                    f"{writer.name}-{number} was acknowledged at {topic}-{partition} {offset}, there is {found}"
                )
        for place, number in book.implied:
            if not where[f"{writer.name}-{number}".encode()]:
                verdict.lost.append(f"{writer.name}-{number} was acknowledged for {place} and is nowhere")
        _judge_doubles(verdict, log, writer, where)
        if writer.idempotent:
            _judge_order(verdict, log, writer)


def _judge_doubles(verdict: Verdict, log: Log, writer: Writer, where: dict[bytes, list[tuple[Place, int]]]) -> None:
    for place, numbers in writer.book.sent.items():
        for number in numbers:
            copies = where.get(f"{writer.name}-{number}".encode(), [])
            if any(at != place for at, _ in copies):
                verdict.readers.append(f"{writer.name}-{number} was sent to {place} and is in {copies}")
            if len(copies) < 2:
                continue
            entries = [log[at][offset] for at, offset in copies]
            line = (
                f"{writer.name}-{number} {place} at"
                f" {[(o, e.producer_id, e.producer_epoch, e.sequence) for (_, o), e in zip(copies, entries)]}"
            )
            if not writer.idempotent:
                verdict.doubled_plain.append(line)
            elif len({(e.producer_id, e.producer_epoch) for e in entries}) == len(entries):
                verdict.doubled_by_client.append(line)
            else:
                verdict.doubled_by_broker.append(line)


def _judge_order(verdict: Verdict, log: Log, writer: Writer) -> None:
    start = f"{writer.name}-".encode()
    for place in writer.places:
        last, seen = -1, set()
        for offset, entry in sorted(log[place].items()):
            if not entry.value.startswith(start):
                continue
            number = int(entry.value[len(start) :])
            if number in seen:
                continue  # a second copy is judged as such
            seen.add(number)
            if number < last:
                verdict.reordered.append(f"{writer.name}-{number} {place} at {offset} comes after {last}")
            last = max(last, number)


def judge_readers(
    verdict: Verdict, log: Log, followers: Sequence[Follower], groups: dict[str, tuple[Readings, Auditor]]
) -> None:
    for follower in followers:
        verdict.readers += follower.anomalies
        for (topic, partition, offset), value in follower.seen.items():
            entry = log[topic, partition].get(offset)
            if entry is None or entry.value != value:
                verdict.readers.append(f"{value!r} was read at {topic}-{partition} {offset}, there is {entry}")
        unread = sum(len(rows) for rows in log.values()) - len(follower.seen)
        if unread:
            verdict.readers.append(f"a reader was not given {unread} records")
    for group, (readings, auditor) in groups.items():
        verdict.groups += auditor.anomalies
        assert auditor.looks, f"nobody ever saw what {group} has committed"
        for place, rows in log.items():
            missed = set(rows) - readings.read.get(place, set())
            if missed:
                verdict.groups.append(f"{group} was not given {len(missed)} records of {place}, first {min(missed)}")


def judge_results(verdict: Verdict, log: Log, copied: Sequence[str]) -> None:
    """Each record has one result, whatever happened to who copied it."""
    times = Counter(copied)
    for (topic, partition), rows in log.items():
        for offset in rows:
            if times[f"{topic} {partition} {offset}"] != 1:
                verdict.results.append(
                    f"{topic}-{partition} {offset} has {times[f'{topic} {partition} {offset}']} results"
                )


def drained(
    log_ends: dict[Place, int], followers: Sequence[Follower], groups: dict[str, tuple[Readings, Auditor]]
) -> bool:
    """Whether readers and groups have come to the end."""
    for place, end in log_ends.items():
        if end and (
            any((*place, end - 1) not in follower.seen for follower in followers)
            or any(end - 1 not in r.read.get(place, ()) for r, _ in groups.values())
        ):
            return False
    return True


def ends(log: Log) -> dict[Place, int]:
    return {place: max(rows, default=-1) + 1 for place, rows in log.items()}


def judge_replicas(verdict: Verdict, world: World, topics: dict[str, int]) -> None:
    for topic in topics:
        try:
            assert_replicas_identical(world.cluster, topic)
        except (AssertionError, ClusterFailed) as different:
            verdict.replicas.append(f"{topic}: {str(different)[:3000]}")


def measure(verdict: Verdict, writers: Sequence[Writer], events: Sequence[Event], until: float) -> None:
    """Pauses by kind of fault; how long acknowledgements took, by writer."""
    for place in {place for writer in writers for place in writer.book.times}:
        times = sorted(t for writer in writers for t in writer.book.times.get(place, ()) if t <= until)
        for before, after in pairwise(times):
            if after - before < 0.2:
                continue
            for event in events:
                if before < event.healed + SETTLE_S and after > event.began:
                    verdict.pauses_s[event.kind] = round(max(verdict.pauses_s.get(event.kind, 0.0), after - before), 2)
    for writer in writers:
        waits = sorted(writer.book.latencies_s)
        if waits:
            verdict.latency_ms[writer.name] = {
                name: round(1000 * waits[min(len(waits) - 1, int(len(waits) * share))], 1)
                for name, share in (("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999), ("max", 1.0))
            }
