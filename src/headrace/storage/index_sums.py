"""`<base>.indexsum`: the checksum of each index file of a segment, and which log file they were made from.

Kafka's index files have no checksum, and one that is wrong may look right: cut at an entry, of another segment, or with
a bit flipped in a column that still grows. Kafka ignores this file, and a segment that Kafka has written has none.
"""

from struct import Struct
from typing import NamedTuple

from crc32c import crc32c

from headrace.storage.indexes import CorruptIndex

TAIL_BYTES = 64
"""So many bytes from the end of a log file tell it from another one of the same size."""
NOT_KNOWN = -1
"""In place of the transaction index's checksum: it was found wrong, and has to be read from the log."""

_VERSION = 1
_FIELDS = Struct(">hqqIqqIIq")
_CRC = Struct(">I")


class IndexSums(NamedTuple):
    """What is in the file. Timestamps and offsets are absolute."""

    base_offset: int
    log_bytes: int
    tail_crc: int
    max_timestamp: int
    max_timestamp_offset: int
    offsets_crc: int
    times_crc: int
    aborted_crc: int
    """Of the transaction index; without such a file that of no bytes."""

    def encode(self) -> bytes:
        data = _FIELDS.pack(_VERSION, *self)
        return data + _CRC.pack(crc32c(data))

    @classmethod
    def decode(cls, data: bytes) -> "IndexSums":
        if len(data) != _FIELDS.size + _CRC.size:
            raise CorruptIndex(f"index checksums of {len(data)} bytes")
        if _CRC.pack(crc32c(data[: _FIELDS.size])) != data[_FIELDS.size :]:
            raise CorruptIndex("index checksums that are damaged themselves")
        version, *fields = _FIELDS.unpack_from(data)
        if version != _VERSION:
            raise CorruptIndex(f"index checksums of version {version}")
        return cls._make(fields)

    def is_of(self, base_offset: int, log_bytes: int, tail: bytes) -> bool:
        """Whether they were made for this log file, as it is now."""
        return (base_offset, log_bytes, crc32c(tail)) == (self.base_offset, self.log_bytes, self.tail_crc)
