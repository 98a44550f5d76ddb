"""The three sparse indexes beside a segment: offset -> position, timestamp -> offset, aborted transactions.

They live in memory as arrays and reach the disk whole, when the segment is rolled or closed: after any other end,
recovery builds them anew. So an entry costs no system call, and no file is ever padded with zeros as Kafka's
preallocated ones are (those are read all the same). The files of an active segment are there from its start and follow
every few seconds, for people to look at: nothing reads them.

A file is a hint. `index_sums` tells whether it is the one that was written; where nobody can tell, `check` refuses what
cannot be true.
"""

import sys
from array import array
from bisect import bisect_left, bisect_right
from struct import Struct

from headrace.replication.producers import AbortedTransaction

OFFSET_ENTRY_BYTES = 8
TIME_ENTRY_BYTES = 12
RELATIVE_OFFSET_MAX = 0x7FFFFFFF
POSITION_MAX = 0x7FFFFFFF
_SWAP = sys.byteorder == "little"
_TIME_ENTRY = Struct(">qi")
_ABORTED = Struct(">hqqqq")
ABORTED_ENTRY_BYTES = _ABORTED.size
assert ABORTED_ENTRY_BYTES == 34


class CorruptIndex(Exception):
    """An index file that cannot be what was written; the segment's index has to be rebuilt."""


def _unpadded(data: bytes, entry_bytes: int) -> bytes:
    """Cut the zeros that Kafka preallocates; the last real entry may itself end in zero bytes."""
    used = len(data.rstrip(b"\0"))
    used += -used % entry_bytes
    if len(data) % entry_bytes and used > len(data) // entry_bytes * entry_bytes:
        raise CorruptIndex(f"{len(data)} bytes are not whole entries of {entry_bytes}")
    return data[:used]


def _big_endian(values: "array[int]") -> "array[int]":
    if _SWAP:
        values.byteswap()
    return values


def grows(column: "array[int]", *, strictly: bool) -> bool:
    """Whether no value is below zero and none is below (or, `strictly`, at) the one before it.

    A column of 250,000 values takes a millisecond: as one long integer, with a lane for each value. In a lane, "next
    with its top bit set, minus this one" keeps the top bit if next is not smaller, and never borrows from the lane
    above it.
    """
    count, lane_bytes = len(column), column.itemsize
    if not count:
        return True
    data = column.tobytes() if _SWAP else _swapped(column).tobytes()
    tops = int.from_bytes((bytes(lane_bytes - 1) + b"\x80") * count, "little")
    if int.from_bytes(data, "little") & tops:
        return False
    tops >>= 8 * lane_bytes
    steps = (int.from_bytes(data[lane_bytes:], "little") | tops) - int.from_bytes(data[:-lane_bytes], "little")
    if strictly:
        steps -= tops >> (8 * lane_bytes - 1)
    return steps & tops == tops


def _swapped(column: "array[int]") -> "array[int]":
    column = column[:]
    column.byteswap()
    return column


class OffsetIndex:
    """(relative offset, position): the batches from `position` on reach up to at least that offset."""

    __slots__ = ("offsets", "positions")

    def __init__(self) -> None:
        self.offsets = array("i")
        self.positions = array("i")

    def __len__(self) -> int:
        return len(self.offsets)

    def append(self, relative_offset: int, position: int) -> None:
        self.offsets.append(relative_offset)
        self.positions.append(position)

    def position_before(self, relative_offset: int) -> int:
        """A position from which a scan forward meets the batch that holds the offset."""
        slot = bisect_right(self.offsets, relative_offset)
        return self.positions[slot - 1] if slot else 0

    def around(self, relative_offset: int) -> tuple[int, int]:
        """What `position_before` says, and the position of the next entry: its batch reaches beyond the offset. -1:
        none."""
        slot = bisect_right(self.offsets, relative_offset)
        positions = self.positions
        return positions[slot - 1] if slot else 0, positions[slot] if slot < len(positions) else -1

    def truncate(self, relative_offset: int) -> None:
        """Drop entries at or above an offset."""
        slot = bisect_left(self.offsets, relative_offset)
        del self.offsets[slot:]
        del self.positions[slot:]

    def encode(self, first: int = 0) -> bytes:
        """The entries from `first` on."""
        entries = array("i", bytes(OFFSET_ENTRY_BYTES * (len(self.offsets) - first)))
        entries[0::2] = self.offsets[first:]
        entries[1::2] = self.positions[first:]
        return _big_endian(entries).tobytes()

    @classmethod
    def decode(cls, data: bytes) -> "OffsetIndex":
        entries = array("i")
        entries.frombytes(_unpadded(data, OFFSET_ENTRY_BYTES))
        _big_endian(entries)
        index = cls()
        index.offsets = entries[0::2]
        index.positions = entries[1::2]
        return index

    def check(self, log_bytes: int) -> None:
        """CorruptIndex for what no log of this size can have. Whether an entry points at a batch, its reader sees."""
        if not (grows(self.offsets, strictly=True) and grows(self.positions, strictly=True)):
            raise CorruptIndex("offset index entries go backward")
        if len(self.positions) and self.positions[-1] >= log_bytes:
            raise CorruptIndex("offset index reaches beyond the log")


class TimeIndex:
    """(largest timestamp so far, relative offset of the batch that had it): both columns only grow."""

    __slots__ = ("offsets", "timestamps")

    def __init__(self) -> None:
        self.timestamps = array("q")
        self.offsets = array("i")

    def __len__(self) -> int:
        return len(self.offsets)

    def append(self, timestamp: int, relative_offset: int) -> None:
        """Add an entry unless the timestamp says nothing new."""
        if timestamp > (self.timestamps[-1] if self.timestamps else -1):
            self.timestamps.append(timestamp)
            self.offsets.append(relative_offset)

    def offset_before(self, timestamp: int) -> int:
        """Relative offset below which every record is older than `timestamp`."""
        slot = bisect_right(self.timestamps, timestamp)
        return self.offsets[slot - 1] if slot else 0

    def truncate(self, relative_offset: int) -> None:
        slot = bisect_left(self.offsets, relative_offset)
        del self.timestamps[slot:]
        del self.offsets[slot:]

    def encode(self, first: int = 0) -> bytes:
        """The entries from `first` on."""
        halves = array("i")
        halves.frombytes(_big_endian(self.timestamps[first:]).tobytes())
        entries = array("i", bytes(TIME_ENTRY_BYTES * (len(self.offsets) - first)))
        entries[0::3] = halves[0::2]
        entries[1::3] = halves[1::2]
        entries[2::3] = _big_endian(self.offsets[first:])
        return entries.tobytes()

    @classmethod
    def decode(cls, data: bytes) -> "TimeIndex":
        entries = array("i")
        entries.frombytes(_unpadded(data, TIME_ENTRY_BYTES))
        halves = array("i", bytes(8 * (len(entries) // 3)))
        halves[0::2] = entries[0::3]
        halves[1::2] = entries[1::3]
        index = cls()
        index.timestamps.frombytes(halves.tobytes())
        _big_endian(index.timestamps)
        index.offsets = _big_endian(entries[2::3])
        return index

    def check(self) -> None:
        """CorruptIndex where a lookup that trusted the columns could skip records that match."""
        if not (grows(self.timestamps, strictly=False) and grows(self.offsets, strictly=False)):
            raise CorruptIndex("time index entries go backward")


def last_time_entry(data: bytes) -> tuple[int, int]:
    """(timestamp, relative offset) of the last entry of a time index file's last bytes."""
    if len(data) < TIME_ENTRY_BYTES:
        raise CorruptIndex("time index without an entry")
    timestamp, relative_offset = _TIME_ENTRY.unpack_from(data, len(data) - TIME_ENTRY_BYTES)
    if timestamp == 0 and relative_offset == 0:
        raise CorruptIndex("time index padded with zeros")
    if timestamp < 0 or relative_offset < 0:
        raise CorruptIndex("time index entry below zero")
    return timestamp, relative_offset


def encode_aborted(entry: AbortedTransaction) -> bytes:
    return _ABORTED.pack(0, *entry)


def decode_aborted(data: bytes, base_offset: int, *, whole: bool = False) -> list[AbortedTransaction]:
    """All whole entries of a transaction index; what a torn write left at the end is not one, and in a `whole` file
    damage."""
    if whole and len(data) % ABORTED_ENTRY_BYTES:
        raise CorruptIndex("transaction index with a part of an entry")
    aborted: list[AbortedTransaction] = []
    for version, *fields in _ABORTED.iter_unpack(data[: len(data) // ABORTED_ENTRY_BYTES * ABORTED_ENTRY_BYTES]):
        entry = AbortedTransaction._make(fields)
        after = aborted[-1].last_offset if aborted else base_offset - 1
        if version != 0 or entry.last_offset <= after or not 0 <= entry.first_offset <= entry.last_offset:
            raise CorruptIndex(f"transaction index entry {entry} of version {version}")
        aborted.append(entry)
    return aborted
