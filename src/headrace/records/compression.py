"""The four codecs of record batches, each in the framing that Kafka's Java clients write and read.

Decompression never writes more than it was allowed to: a batch of 1 KB may claim to be 10 GB.
"""

from collections.abc import Callable
from enum import IntEnum
from struct import Struct

import cramjam

from headrace.errors import Err, KafkaError

Buffer = bytes | bytearray | memoryview


class Codec(IntEnum):
    """The compression bits of a batch's attributes; the names are those of `compression.type`."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


DECOMPRESSED_BYTES_MAX = 256 * 1024 * 1024

LEVELS = {Codec.GZIP: (1, 9, -1), Codec.LZ4: (1, 17, 9), Codec.ZSTD: (-131072, 22, 3)}
"""Lowest, highest and default level of each codec that has levels, as Kafka's options name them."""

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + b"\x00\x00\x00\x01\x00\x00\x00\x01"
_XERIAL_BLOCK_BYTES = 32 * 1024
_BLOCK_LENGTH = Struct(">i")
_OUT_OF_ROOM = "write whole buffer"
"""How cramjam says that the output did not fit; `test_compression` notices if it starts to say it otherwise."""
_FIRST_GUESS_BYTES = 16 * 1024


def compress(codec: int, data: Buffer, level: int | None = None) -> bytes:
    """`data` in the codec's framing; `level` None is Kafka's default level."""
    if codec == Codec.NONE:
        return bytes(data)
    if codec == Codec.GZIP:
        return bytes(cramjam.gzip.compress(data, level=6 if level is None or level < 0 else level))
    if codec == Codec.SNAPPY:
        return _compress_xerial(data)
    if codec == Codec.LZ4:
        return _compress_lz4(data, level)
    if codec == Codec.ZSTD:
        return bytes(cramjam.zstd.compress(data, level=3 if level is None else level))
    raise KafkaError(Err.UNSUPPORTED_COMPRESSION_TYPE, f"unknown compression type {codec}")


def decompress(codec: int, data: Buffer, limit_bytes: int = DECOMPRESSED_BYTES_MAX) -> bytes:
    """The bytes behind `data`; CORRUPT_MESSAGE when it is damaged or would grow past `limit_bytes`."""
    try:
        if codec == Codec.ZSTD:
            return _decompress(cramjam.zstd.decompress_into, data, limit_bytes)
        if codec == Codec.LZ4:
            return _decompress(cramjam.lz4.decompress_into, data, limit_bytes)
        if codec == Codec.SNAPPY:
            return _decompress_snappy(data, limit_bytes)
        if codec == Codec.GZIP:
            return _decompress(cramjam.gzip.decompress_into, data, limit_bytes)
    except cramjam.DecompressionError as error:
        raise KafkaError(Err.CORRUPT_MESSAGE, f"{Codec(codec).name.lower()}: {error}") from error
    if codec == Codec.NONE:
        return bytes(data)
    raise KafkaError(Err.UNSUPPORTED_COMPRESSION_TYPE, f"unknown compression type {codec}")


def _decompress(into: Callable[[Buffer, bytearray], int], data: Buffer, limit_bytes: int) -> bytes:
    """Try with a guess and grow by fours: no codec but snappy can be trusted to say its size beforehand."""
    room = min(limit_bytes, max(_FIRST_GUESS_BYTES, 4 * len(data)))
    while True:
        output = bytearray(room)
        try:
            length = into(data, output)
        except cramjam.DecompressionError as error:
            if _OUT_OF_ROOM not in str(error):
                raise
            if room >= limit_bytes:
                raise _too_large(limit_bytes) from error
            room = min(limit_bytes, 4 * room)
            continue
        return bytes(memoryview(output)[:length])


def _compress_lz4(data: Buffer, level: int | None) -> bytes:
    # Java's reader refuses linked blocks and ignores content checksums. Its writer takes level 9, the default,
    # to mean the fast compressor, and any other level the slow one.
    own_level = 1 if level is None or level == 9 else min(max(level, 3), 12)
    compressor = cramjam.lz4.Compressor(level=own_level, content_checksum=False, block_linked=False)
    compressor.compress(data if isinstance(data, bytes) else bytes(data))
    return bytes(compressor.finish())


def _compress_xerial(data: Buffer) -> bytes:
    parts = [_XERIAL_HEADER]
    view = memoryview(data)
    for start in range(0, len(view), _XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(view[start : start + _XERIAL_BLOCK_BYTES]))
        parts.append(_BLOCK_LENGTH.pack(len(block)))
        parts.append(block)
    return b"".join(parts)


def _decompress_snappy(data: Buffer, limit_bytes: int) -> bytes:
    view = memoryview(data)
    if view[: len(_XERIAL_MAGIC)] != _XERIAL_MAGIC:
        return _decompress_block(view, limit_bytes)
    parts: list[bytes] = []
    position = len(_XERIAL_HEADER)
    end = len(view)
    while position < end:
        if end - position < _BLOCK_LENGTH.size:
            raise KafkaError(Err.CORRUPT_MESSAGE, "snappy: truncated block length")
        # Streams may be concatenated: a header may stand where a block is due.
        if view[position : position + len(_XERIAL_MAGIC)] == _XERIAL_MAGIC:
            position += len(_XERIAL_HEADER)
            continue
        (length,) = _BLOCK_LENGTH.unpack_from(view, position)
        position += _BLOCK_LENGTH.size
        if length < 0 or length > end - position:
            raise KafkaError(Err.CORRUPT_MESSAGE, f"snappy: block of {length} bytes where {end - position} remain")
        part = _decompress_block(view[position : position + length], limit_bytes)
        limit_bytes -= len(part)
        parts.append(part)
        position += length
    return b"".join(parts)


def _decompress_block(block: memoryview, limit_bytes: int) -> bytes:
    length = cramjam.snappy.decompress_raw_len(block)
    if length > limit_bytes:
        raise _too_large(limit_bytes)
    return bytes(cramjam.snappy.decompress_raw(block))


def _too_large(limit_bytes: int) -> KafkaError:
    return KafkaError(Err.CORRUPT_MESSAGE, f"compressed records hold more than the {limit_bytes} bytes allowed")
