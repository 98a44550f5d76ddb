"""The smallest pieces of the wire format: variable-length integers, tag sections and the one error for bad bytes.

Compiled codecs inline the one-byte case of everything here; these functions are what they fall back to.
"""

from collections.abc import Callable
from struct import Struct, error as StructError
from typing import Any

Buffer = bytes | bytearray | memoryview
Write = Callable[[Any], object]


class ProtocolError(ValueError):
    """Bytes that are not a message, or a message that the asked version cannot carry."""


class UnsupportedVersion(ProtocolError):
    """A version outside the range that a message has."""


# What a decoder may meet when bytes run out or lie; every decoder turns these into ProtocolError.
DECODE_FAULTS = (IndexError, StructError)
# What an encoder may meet when a field holds a value that its type cannot carry.
ENCODE_FAULTS = (StructError, TypeError, AttributeError, UnicodeEncodeError, OverflowError)

STRING_LENGTH_MAX = 0x7FFF


def encode_uvarint(n: int) -> bytes:
    """Unsigned LEB128, as lengths, counts and tags are written."""
    if n < 0:
        raise ProtocolError(f"unsigned varint of negative {n}")
    if n < 0x80:
        return bytes((n,))
    if n < 0x4000:
        return bytes((n & 0x7F | 0x80, n >> 7))
    if n < 0x200000:  # two and three bytes are what sizes of records take
        return bytes((n & 0x7F | 0x80, n >> 7 & 0x7F | 0x80, n >> 14))
    out = bytearray()
    while n > 0x7F:
        out.append(n & 0x7F | 0x80)
        n >>= 7
    out.append(n)
    return bytes(out)


class Encoded(list[Any]):
    """The structs of an array as bytes, encoded before: for what is sent again and again."""


UVARINTS: tuple[bytes, ...] = tuple(encode_uvarint(n) for n in range(1024))


def uvarint(n: int) -> bytes:
    """`encode_uvarint` with the common values ready made."""
    return UVARINTS[n] if n < 1024 else encode_uvarint(n)


def long_uvarint(buf: Buffer, pos: int, first: int) -> tuple[int, int]:
    """Finish a uvarint whose first byte, already read, has its high bit set. Kafka allows five bytes."""
    n = first & 0x7F
    for shift in (7, 14, 21, 28):
        byte = buf[pos]
        pos += 1
        n |= (byte & 0x7F) << shift
        if byte < 0x80:
            return n, pos
    raise ProtocolError("varint is longer than five bytes")


def string_length(buf: Buffer, pos: int, first: int) -> tuple[int, int]:
    """`long_uvarint` for the length, plus one, of a string."""
    length, pos = long_uvarint(buf, pos, first)
    if length > STRING_LENGTH_MAX + 1:
        raise ProtocolError("a string is too long")
    return length, pos


def decode_uvarint(buf: Buffer, pos: int, end: int) -> tuple[int, int]:
    """One unsigned varint that must lie before `end`."""
    if pos >= end:
        raise ProtocolError("message ends inside a varint")
    first = buf[pos]
    pos += 1
    if first < 0x80:
        return first, pos
    try:
        n, pos = long_uvarint(buf, pos, first)
    except IndexError:
        raise ProtocolError("message ends inside a varint") from None
    if pos > end:
        raise ProtocolError("message ends inside a varint")
    return n, pos


def encode_varint(n: int) -> bytes:
    """Zigzag varint of a signed 32-bit or 64-bit number."""
    return encode_uvarint((n << 1) ^ -1 if n < 0 else n << 1)


def decode_varint(buf: Buffer, pos: int, end: int) -> tuple[int, int]:
    """Zigzag varint of at most five bytes: a signed 32-bit number."""
    n, pos = decode_uvarint(buf, pos, end)
    n &= 0xFFFFFFFF
    return (n >> 1) ^ -(n & 1), pos


encode_varlong = encode_varint


def decode_varlong(buf: Buffer, pos: int, end: int) -> tuple[int, int]:
    """Zigzag varint of at most ten bytes: a signed 64-bit number."""
    n = shift = 0
    while True:
        if pos >= end:
            raise ProtocolError("message ends inside a varint")
        if shift > 63:
            raise ProtocolError("varint is longer than ten bytes")
        byte = buf[pos]
        pos += 1
        n |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
    n &= 0xFFFFFFFFFFFFFFFF
    return (n >> 1) ^ -(n & 1), pos


def read_tags(buf: Buffer, pos: int, end: int, count: int) -> tuple[dict[int, bytes] | None, int]:
    """The rest of a tag section in which nothing is known, after its first byte `count`.

    Kafka minds neither order nor repetition of tags; the last one wins.
    """
    if count > 0x7F:
        count, pos = long_uvarint(buf, pos, count)
    if count * 2 > end - pos:
        raise ProtocolError(f"{count} tagged fields do not fit in {end - pos} bytes")
    tags: dict[int, bytes] = {}
    for _ in range(count):
        tag, pos = decode_uvarint(buf, pos, end)
        size, pos = decode_uvarint(buf, pos, end)
        if size > end - pos:
            raise ProtocolError(f"tagged field {tag} of {size} bytes in {end - pos}")
        tags[tag] = bytes(buf[pos : pos + size])
        pos += size
    return tags or None, pos


def write_tags(write: Write, tags: dict[int, bytes]) -> None:
    """A tag section, in ascending order of tags as Kafka writes it."""
    write(uvarint(len(tags)))
    for tag in sorted(tags):
        value = tags[tag]
        write(uvarint(tag) + uvarint(len(value)))
        write(value)


ARRAY_STRUCTS_CACHED = 33


class ArrayStructs:
    """Packers for arrays of one fixed-size type: short lengths precompiled, long ones made when met."""

    __slots__ = ("code", "packs", "unpacks")

    def __init__(self, code: str) -> None:
        self.code = code
        structs = [Struct(">" + code * n) for n in range(ARRAY_STRUCTS_CACHED)]
        self.packs = [s.pack for s in structs]
        self.unpacks = [s.unpack_from for s in structs]

    def _struct(self, n: int) -> Struct:
        # "1000i" is compiled at once, but a count before "16s" would mean a longer string.
        return Struct(f">{n}{self.code}" if len(self.code) == 1 else ">" + self.code * n)

    def pack_long(self, n: int, values: list[Any]) -> bytes:
        return self._struct(n).pack(*values)

    def unpack_long(self, n: int, buf: Buffer, pos: int) -> tuple[Any, ...]:
        return self._struct(n).unpack_from(buf, pos)
