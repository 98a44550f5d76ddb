"""What must never be seen in a history of clients, whatever happened to the cluster underneath.

A history is the list of what clients did, in the order in which each learnt its outcome. Values are unique: each is
sent as one record by one Send. The anomalies go by the names that Jepsen's tests of Kafka gave them.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

PartitionKey = Hashable
Value = Hashable
Log = Sequence[tuple[int, Value]]
"""(offset, value) of a partition's records; offsets of control records and compacted ones are missing."""


class Outcome(Enum):
    OK = "ok"
    """Acknowledged."""
    FAILED = "failed"
    """Certainly without effect: refused before anything was written, or aborted."""
    UNKNOWN = "unknown"
    """No answer, or one that leaves it open: may or may not have happened, or happen later."""


@dataclass(slots=True, frozen=True)
class Send:
    """One record of a Produce. `offset` is -1 where the client was not told."""

    client: str
    partition: PartitionKey
    value: Value
    outcome: Outcome
    offset: int = -1
    transaction: Hashable | None = None


@dataclass(slots=True, frozen=True)
class Poll:
    """One partition's share of a Fetch. `end_offset` is the bound that came with it: HW, or LSO when read committed."""

    client: str
    partition: PartitionKey
    records: tuple[tuple[int, Value], ...]
    end_offset: int | None = None
    read_committed: bool = True
    leader_epoch: int = -1
    high_watermark: int | None = None


@dataclass(slots=True, frozen=True)
class Seek:
    """A consumer chose or was given a position: what it polls next need not follow what it polled before."""

    client: str
    partition: PartitionKey
    offset: int


@dataclass(slots=True, frozen=True)
class EndTransaction:
    """OK: committed. FAILED: aborted. UNKNOWN: either, but the same for all its records."""

    client: str
    transaction: Hashable
    outcome: Outcome


Operation = Send | Poll | Seek | EndTransaction


@dataclass(slots=True, frozen=True)
class Anomaly:
    kind: str
    partition: PartitionKey
    message: str

    def __str__(self) -> str:
        return f"{self.kind} in {self.partition}: {self.message}"


@dataclass(slots=True)
class History:
    """Operations, and what a consumer reads from every partition at the very end, when all is calm again."""

    operations: list[Operation] = field(default_factory=list)
    final: Mapping[PartitionKey, Log] | None = None

    def sends(self) -> Iterable[Send]:
        return (operation for operation in self.operations if isinstance(operation, Send))

    def polls(self) -> Iterable[Poll]:
        return (operation for operation in self.operations if isinstance(operation, Poll))

    def transaction_outcomes(self) -> dict[Hashable, Outcome]:
        ends = (operation for operation in self.operations if isinstance(operation, EndTransaction))
        return {end.transaction: end.outcome for end in ends}

    def outcome(self, send: Send, transactions: Mapping[Hashable, Outcome]) -> Outcome:
        """A transactional record stands and falls with its transaction; one without an end is undecided."""
        if send.transaction is None or send.outcome is Outcome.FAILED:
            return send.outcome
        ended = transactions.get(send.transaction, Outcome.UNKNOWN)
        return send.outcome if ended is Outcome.OK else ended

    def observed(self) -> dict[PartitionKey, dict[int, set[Value]]]:
        """Everything ever said to stand at an offset: by acknowledgements, polls and the final read."""
        seen: dict[PartitionKey, dict[int, set[Value]]] = defaultdict(lambda: defaultdict(set))
        for send in self.sends():
            if send.outcome is Outcome.OK and send.offset >= 0:
                seen[send.partition][send.offset].add(send.value)
        for partition, log in self.reads():
            for offset, value in log:
                seen[partition][offset].add(value)
        return seen

    def reads(self) -> Iterable[tuple[PartitionKey, Log]]:
        for poll in self.polls():
            yield poll.partition, poll.records
        if self.final is not None:
            yield from self.final.items()


def lost_write(history: History) -> Iterable[Anomaly]:
    """Acknowledged, but not there at the end (or, without a final read, passed over by every reader)."""
    transactions = history.transaction_outcomes()
    present: dict[PartitionKey, set[Value]] = defaultdict(set)
    reached: dict[PartitionKey, int] = defaultdict(lambda: -1)
    reads = history.reads() if history.final is None else history.final.items()
    for partition, log in reads:
        present[partition].update(value for _, value in log)
        reached[partition] = max([reached[partition], *(offset for offset, _ in log)])
    for send in history.sends():
        if history.outcome(send, transactions) is not Outcome.OK or send.value in present[send.partition]:
            continue
        if history.final is not None or 0 <= send.offset < reached[send.partition]:
            yield Anomaly("lost-write", send.partition, f"{send.value!r} acknowledged at {send.offset} is gone")


def vanished_read(history: History) -> Iterable[Anomaly]:
    """Served to a consumer, yet not in the log at the end: it was served before it was committed."""
    if history.final is None:
        return
    for poll in history.polls():
        kept = set(history.final.get(poll.partition, ()))
        for record in poll.records:
            if record not in kept:
                yield Anomaly("vanished-read", poll.partition, f"{poll.client} read {record[1]!r} at {record[0]}")


def duplicate(history: History) -> Iterable[Anomaly]:
    """One value at two offsets of a partition. For histories of idempotent producers."""
    for partition, offsets in history.observed().items():
        places: dict[Value, set[int]] = defaultdict(set)
        for offset, values in offsets.items():
            for value in values:
                places[value].add(offset)
        for value, found in places.items():
            if len(found) > 1:
                yield Anomaly("duplicate", partition, f"{value!r} at {sorted(found)}")


def inconsistent_offsets(history: History) -> Iterable[Anomaly]:
    """Two values at one offset: someone was told something else than others read."""
    for partition, offsets in history.observed().items():
        for offset, values in sorted(offsets.items()):
            if len(values) > 1:
                yield Anomaly("inconsistent-offsets", partition, f"{offset} held {sorted(map(repr, values))}")


def aborted_read(history: History) -> Iterable[Anomaly]:
    """Read, though aborted or refused; or read at all, though nobody ever sent it."""
    transactions = history.transaction_outcomes()
    outcomes: dict[tuple[PartitionKey, Value], tuple[Outcome, bool]] = {}
    for send in history.sends():
        in_transaction = send.transaction is not None and send.outcome is not Outcome.FAILED
        outcomes[send.partition, send.value] = history.outcome(send, transactions), in_transaction
    committed_reads = [(poll.partition, poll.records, poll.read_committed) for poll in history.polls()]
    committed_reads += [(partition, tuple(log), True) for partition, log in (history.final or {}).items()]
    for partition, records, read_committed in committed_reads:
        for offset, value in records:
            known = outcomes.get((partition, value))
            if known is None:
                yield Anomaly("unknown-read", partition, f"{value!r} at {offset} was never sent")
            elif known[0] is Outcome.FAILED and (read_committed or not known[1]):
                yield Anomaly("aborted-read", partition, f"{value!r} at {offset} was aborted or refused")


def torn_transaction(history: History) -> Iterable[Anomaly]:
    """Some of a transaction's acknowledged records are there at the end, and others are not."""
    if history.final is None:
        return
    present = {(partition, value) for partition, log in history.final.items() for _, value in log}
    of: dict[Hashable, list[Send]] = defaultdict(list)
    for send in history.sends():
        if send.transaction is not None and send.outcome is Outcome.OK:
            of[send.transaction].append(send)
    for transaction, sends in of.items():
        missing = [send for send in sends if (send.partition, send.value) not in present]
        if missing and len(missing) < len(sends):
            text = f"{len(missing)} of {len(sends)} records of {transaction} are missing, as {missing[0].value!r}"
            yield Anomaly("torn-transaction", missing[0].partition, text)


def nonmonotonic_poll(history: History) -> Iterable[Anomaly]:
    """A consumer that did not seek got an offset it had already passed."""
    positions: dict[tuple[str, PartitionKey], int] = {}
    for operation in history.operations:
        if isinstance(operation, Seek):
            positions[operation.client, operation.partition] = operation.offset - 1
        elif isinstance(operation, Poll):
            key = (operation.client, operation.partition)
            for offset, value in operation.records:
                last = positions.get(key, -1)
                if offset <= last:
                    text = f"{operation.client} got {value!r} at {offset} after {last}"
                    yield Anomaly("nonmonotonic-poll", operation.partition, text)
                positions[key] = max(offset, last)


def poll_skip(history: History) -> Iterable[Anomaly]:
    """A consumer that did not seek passed over offsets at which others found committed records."""
    transactions = history.transaction_outcomes()
    kept = {(partition, value) for partition, log in (history.final or {}).items() for _, value in log}
    uncertain = {
        (send.partition, send.value)
        for send in history.sends()
        if send.transaction is not None and history.outcome(send, transactions) is not Outcome.OK
    } - kept
    filled: dict[PartitionKey, list[int]] = {}
    for partition, offsets in history.observed().items():
        filled[partition] = sorted(
            offset for offset, values in offsets.items() if not any((partition, value) in uncertain for value in values)
        )
    positions: dict[tuple[str, PartitionKey], int] = {}
    for operation in history.operations:
        if isinstance(operation, Seek):
            positions[operation.client, operation.partition] = operation.offset
        elif isinstance(operation, Poll):
            key = (operation.client, operation.partition)
            for offset, _ in operation.records:
                if key in positions:
                    known = filled[operation.partition]
                    skipped = known[bisect_left(known, positions[key]) : bisect_left(known, offset)]
                    if skipped:
                        text = f"{operation.client} went from {positions[key]} to {offset}, past {skipped}"
                        yield Anomaly("poll-skip", operation.partition, text)
                positions[key] = max(offset + 1, positions.get(key, 0))


def above_watermark(history: History) -> Iterable[Anomaly]:
    """A record at or above the bound that came in the same answer."""
    for poll in history.polls():
        if poll.end_offset is None:
            continue
        for offset, value in poll.records:
            if offset >= poll.end_offset:
                text = f"{poll.client} read {value!r} at {offset}, bound {poll.end_offset}"
                yield Anomaly("above-watermark", poll.partition, text)


def watermark_backward(history: History) -> Iterable[Anomaly]:
    """Within one leader epoch the high watermark never goes back, as one client sees it."""
    highest: dict[tuple[str, PartitionKey, int], int] = {}
    for poll in history.polls():
        if poll.high_watermark is None or poll.leader_epoch < 0:
            continue
        key = (poll.client, poll.partition, poll.leader_epoch)
        before = highest.get(key, -1)
        if poll.high_watermark < before:
            text = f"{poll.client} saw {before}, then {poll.high_watermark} in epoch {poll.leader_epoch}"
            yield Anomaly("watermark-backward", poll.partition, text)
        highest[key] = max(before, poll.high_watermark)


def stable_backward(history: History) -> Iterable[Anomaly]:
    """Within one leader epoch the last stable offset never goes back, as one client sees it."""
    highest: dict[tuple[str, PartitionKey, int], int] = {}
    for poll in history.polls():
        if not poll.read_committed or poll.end_offset is None or poll.leader_epoch < 0:
            continue
        key = (poll.client, poll.partition, poll.leader_epoch)
        before = highest.get(key, -1)
        if poll.end_offset < before:
            text = f"{poll.client} saw {before}, then {poll.end_offset} in epoch {poll.leader_epoch}"
            yield Anomaly("stable-backward", poll.partition, text)
        highest[key] = max(before, poll.end_offset)


Checker = Callable[[History], Iterable[Anomaly]]

CHECKERS: tuple[Checker, ...] = (
    lost_write,
    vanished_read,
    duplicate,
    inconsistent_offsets,
    aborted_read,
    torn_transaction,
    nonmonotonic_poll,
    poll_skip,
    above_watermark,
    watermark_backward,
    stable_backward,
)


def check(history: History, *, idempotent: bool = True) -> list[Anomaly]:
    """Every anomaly in a history. Without idempotent producers a retry may double a record, and that is no anomaly."""
    checkers = [checker for checker in CHECKERS if idempotent or checker is not duplicate]
    return [anomaly for checker in checkers for anomaly in checker(history)]
