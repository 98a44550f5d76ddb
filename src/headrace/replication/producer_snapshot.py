"""The format of a `.snapshot` file: one row for each producer, in Kafka's bytes, and behind them a seal of ours.

Of each producer's batches only the last is kept, as in Kafka.

The seal says which partition and offset the snapshot is of: a file that was swapped for another's would let
duplicates in. Kafka reads as many rows as the file announces, and ignores what follows. The CRC covers all that comes
after it.
"""

from collections.abc import Iterator, Sequence
from struct import Struct

from crc32c import crc32c

from headrace.errors import Err, KafkaError

_VERSION = 1
_HEAD = Struct(">hIi")  # version, CRC, number of rows
_CRC_AT, _CRC_FROM = 2, 6
_ROW = Struct(">qhiqiqiq")
_SEAL = Struct(">8sqI")  # mark, offset, CRC of the partition's name
_MARK = b"headrace"

Row = tuple[int, int, int, int, int, int, int, int]
"""Producer id, its epoch, last sequence, last offset (-1: no record), how many offsets its last batch has before that
one, timestamp, coordinator epoch, first offset of its open transaction (-1: none)."""

pack_row = _ROW.pack
"""The fields of a Row, as arguments: building tuples first would take twice as long, on the loop."""


def encode_rows(packed: Sequence[bytes]) -> bytes:
    return _with_crc(_HEAD.pack(_VERSION, 0, len(packed)) + b"".join(packed))


def decode_rows(data: bytes) -> Iterator[Row]:
    """CORRUPT_MESSAGE, before the first row, if these are not the bytes that were written."""
    if len(data) < _HEAD.size:
        raise KafkaError(Err.CORRUPT_MESSAGE, f"producer snapshot of {len(data)} bytes")
    version, crc, count = _HEAD.unpack_from(data)
    if version != _VERSION:
        raise KafkaError(Err.CORRUPT_MESSAGE, f"producer snapshot of version {version}")
    if crc32c(memoryview(data)[_CRC_FROM:]) != crc:
        raise KafkaError(Err.CORRUPT_MESSAGE, "producer snapshot: CRC mismatch")
    end = _HEAD.size + count * _ROW.size
    if count < 0 or len(data) < end:
        raise KafkaError(Err.CORRUPT_MESSAGE, f"producer snapshot of {len(data)} bytes for {count} producers")
    return _ROW.iter_unpack(memoryview(data)[_HEAD.size : end])


def seal(data: bytes, partition: str, offset: int) -> bytes:
    """Add to a snapshot which one it is. `partition` is the name of its folder."""
    return _with_crc(data + _SEAL.pack(_MARK, offset, crc32c(partition.encode())))


def unsealed(data: bytes) -> bytes:
    """The snapshot as Kafka writes it, whether it has a seal or not."""
    count = _HEAD.unpack_from(data)[2]
    return data[: _HEAD.size + count * _ROW.size]


def is_sealed(data: bytes, partition: str, offset: int) -> bool:
    """Whether it says that it is this one. CORRUPT_MESSAGE if it says that it is another; Kafka's say nothing."""
    at = len(data) - _SEAL.size
    if at < _CRC_FROM or data[at : at + len(_MARK)] != _MARK:
        return False
    if _SEAL.unpack_from(data, at)[1:] != (offset, crc32c(partition.encode())):
        raise KafkaError(Err.CORRUPT_MESSAGE, "producer snapshot of another offset or partition")
    return True


def _with_crc(data: bytes) -> bytes:
    return data[:_CRC_AT] + crc32c(memoryview(data)[_CRC_FROM:]).to_bytes(4, "big") + data[_CRC_FROM:]
