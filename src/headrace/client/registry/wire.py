"""Confluent's wire format: a zero byte and the schema's id before each value, and before a Protobuf message the path to
its type within the file."""

from collections.abc import Sequence
from struct import Struct

PREFIX = Struct(">bI")
MAGIC = 0
PATH_MAX = 64
"""Messages within messages; a longer path is no path."""


def prefix_of(schema_id: int) -> bytes:
    return PREFIX.pack(MAGIC, schema_id)


def split_prefix(value: bytes) -> tuple[int, int]:
    """(the schema's id, where what it describes begins). Raises ValueError on values without the prefix."""
    if len(value) < PREFIX.size or value[0] != MAGIC:
        raise ValueError("the value does not begin with a schema id: it was not written through a schema registry")
    return PREFIX.unpack_from(value)[1], PREFIX.size


def message_path(path: Sequence[int]) -> bytes:
    """The indexes of a message and of those around it, outermost first: zigzag varints, the usual [0] in one byte."""
    return b"\0" if list(path) == [0] else b"".join(_varint(number << 1) for number in (len(path), *path))


def split_message_path(value: bytes, pos: int) -> tuple[tuple[int, ...], int]:
    """(the path, where the message begins). Raises ValueError."""
    try:
        count, pos = _read_varint(value, pos)
        if not 0 <= count <= PATH_MAX:
            raise ValueError("the value does not begin with the path to a message")
        path = []
        for _ in range(count):
            index, pos = _read_varint(value, pos)
            path.append(index)
    except IndexError:
        raise ValueError("the value ends before its message begins") from None
    return tuple(path) or (0,), pos


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _read_varint(value: bytes, pos: int) -> tuple[int, int]:
    raw = shift = 0
    while True:
        byte = value[pos]
        pos += 1
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (raw >> 1) ^ -(raw & 1), pos
        shift += 7
        if shift > 28:
            raise ValueError("the value does not begin with the path to a message")
