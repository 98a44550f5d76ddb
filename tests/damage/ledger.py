"""All that was acknowledged, and what a reader must find of it."""

from dataclasses import dataclass, field
from enum import Enum

from headrace.records.reader import Record

Partition = tuple[str, int]


class State(Enum):
    """How a transaction ended."""

    OPEN = "open"
    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"
    """Its producer was told nothing that it could rely on. It may be open for ever."""


@dataclass(eq=False)
class Transaction:
    name: str
    group: str
    state: State = State.OPEN
    records: set[tuple[Partition, int]] = field(default_factory=set)
    offsets: dict[Partition, int] = field(default_factory=dict)
    """What it commits for its group; nothing if it is empty."""

    @property
    def partitions(self) -> set[Partition]:
        return {partition for partition, _ in self.records}


@dataclass
class Ledger:
    seed: int = 0
    records: dict[Partition, dict[int, tuple[bytes, bytes]]] = field(default_factory=dict)
    """(key, value) by offset."""
    part_of: dict[tuple[Partition, int], Transaction] = field(default_factory=dict)
    """Of records that are part of one."""
    transactions: list[Transaction] = field(default_factory=list)
    sent_values: set[bytes] = field(default_factory=set)
    """Of all records that were ever sent, also of those that nobody has acknowledged."""
    compacted: set[str] = field(default_factory=set)
    deleted: dict[Partition, int] = field(default_factory=dict)
    """Records below these offsets were deleted on purpose."""
    offsets: dict[str, dict[Partition, int]] = field(default_factory=dict)
    """By group."""
    sent: int = 0

    # ---- what happened

    def new_rows(self, count: int, value_bytes: int, keys: int = 5) -> list[Record]:
        rows = []
        for _ in range(count):
            self.sent += 1
            value = b"%d-%d-" % (self.seed, self.sent) + b"." * value_bytes
            self.sent_values.add(value)
            rows.append(Record(0, 1_700_000_000_000 + self.sent, b"k%d" % (self.sent % keys), value))
        return rows

    def note(
        self, partition: Partition, base_offset: int, rows: list[Record], transaction: Transaction | None = None
    ) -> None:
        """These rows were acknowledged."""
        known = self.records.setdefault(partition, {})
        for at, row in enumerate(rows):
            offset = base_offset + at
            assert offset not in known, f"offset {offset} of {partition} was given twice"
            known[offset] = row.key or b"", row.value or b""
            if transaction is not None:
                transaction.records.add((partition, offset))
                self.part_of[partition, offset] = transaction

    def begin(self, name: str, group: str) -> Transaction:
        self.transactions.append(Transaction(name, group))
        return self.transactions[-1]

    def end_of(self, transaction: Transaction, committed: bool) -> None:
        transaction.state = State.COMMITTED if committed else State.ABORTED
        if committed and transaction.offsets:
            self.offsets.setdefault(transaction.group, {}).update(transaction.offsets)

    # ---- what must be there

    def end(self, partition: Partition) -> int:
        return max(self.records.get(partition, {}), default=-1) + 1

    def state(self, partition: Partition, offset: int) -> State:
        transaction = self.part_of.get((partition, offset))
        return State.COMMITTED if transaction is None else transaction.state

    def due(self, partition: Partition, *, committed: bool = False) -> dict[int, bytes]:
        """What a reader must find, or one of what is committed only: of a compacted topic, each key's last."""
        records = self.records.get(partition, {})
        if partition[0] in self.compacted:
            return self._last_by_key(partition)
        start = self.deleted.get(partition, 0)
        end = self.stable_end(partition) if committed else self.end(partition)
        return {
            offset: value
            for offset, (_, value) in records.items()
            if start <= offset < end and (not committed or self.state(partition, offset) is State.COMMITTED)
        }

    def _last_by_key(self, partition: Partition) -> dict[int, bytes]:
        records = self.records.get(partition, {})
        end = self.stable_end(partition)
        last: dict[bytes, int] = {}
        for offset, (key, _) in sorted(records.items()):
            state = self.state(partition, offset)
            if state is State.COMMITTED:
                last[key] = offset
            elif state is State.UNKNOWN:
                last.pop(key, None)
        return {offset: records[offset][1] for offset in last.values() if offset < end}

    def stable_end(self, partition: Partition) -> int:
        """Where the first open transaction begins: nobody may read on who reads what is committed only."""
        begun = (
            offset
            for one in self.transactions if one.state is State.OPEN
            for where, offset in one.records if where == partition
        )  # fmt: skip
        return min(begun, default=self.end(partition))

    def is_hidden(self, partition: Partition, offset: int) -> bool:
        """From those who read what is committed only."""
        return self.state(partition, offset) in (State.ABORTED, State.OPEN)

    def undecided(self, partition: Partition) -> int | None:
        """Where readers may have to wait for ever: the first record of a transaction that nobody knows the end of."""
        return min(
            (offset for one in self.transactions if one.state is State.UNKNOWN for at, offset in one.records
             if at == partition),
            default=None,
        )  # fmt: skip

    def groups(self) -> set[str]:
        return set(self.offsets) | {one.group for one in self.transactions if one.offsets}

    def told(self, group: str) -> tuple[list[dict[Partition, int]], bool]:
        """What a group may be told, and whether nothing of it may be pending."""
        certain = self.offsets.get(group, {})
        loose = [one for one in self.transactions if one.group == group and one.offsets]
        unknown = [certain | one.offsets for one in loose if one.state is State.UNKNOWN]
        return [certain, *unknown], not any(one.state in (State.OPEN, State.UNKNOWN) for one in loose)
