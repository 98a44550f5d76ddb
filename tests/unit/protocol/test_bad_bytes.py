"""Bytes from anywhere: every decoder answers with a message or a ProtocolError, in memory the input pays for."""

import random
import tracemalloc
from typing import Any

import pytest

from headrace.protocol import hot
from headrace.protocol.api import API
from headrace.protocol.codec import CODECS, Codec
from headrace.protocol.frames import decode_request, decode_response
from headrace.protocol.headers import decode_request_header, encode_request_header
from headrace.protocol.primitives import ProtocolError
from tests.unit.protocol.support import sample

INTERESTING = (0, 1, 2, 3, 0x7E, 0x7F, 0x80, 0x81, 0xFE, 0xFF)


def mutate(data: bytes, rng: random.Random) -> bytearray:
    """Flip, cut, repeat or stretch a part of a message."""
    out = bytearray(data)
    for _ in range(rng.randint(1, 3)):
        if not out:
            out += rng.randbytes(4)
        at = rng.randrange(len(out))
        match rng.randrange(6):
            case 0:
                out[at] = rng.choice(INTERESTING)
            case 1:
                out[at] ^= 1 << rng.randrange(8)
            case 2:
                out[at : at + 4] = b"\x7f\xff\xff\xff"
            case 3:
                out[at:at] = b"\xff\xff\xff\xff\x0f"
            case 4:
                del out[at : at + rng.randint(1, 8)]
            case _:
                out[at:at] = out[at : at + rng.randint(1, 8)]
    return out


def attempt(decode: Any, *arguments: Any) -> None:
    try:
        decode(*arguments)
    except ProtocolError:
        pass


@pytest.mark.parametrize("codec", CODECS.values(), ids=lambda c: c.name)
def test_only_protocol_errors(codec: Codec) -> None:
    rng = random.Random(codec.name)
    for version in codec.versions:
        for _ in range(12):
            good = codec.encode(sample(codec, version, rng), version)
            bad = mutate(good, rng)
            attempt(codec.decode, bad, version)
            # Inside a larger buffer, as on a connection, where running over meets a neighbour's bytes.
            attempt(codec.decode, memoryview(bytes(bad) + rng.randbytes(64)), version, 0, len(bad))
            attempt(codec.decode, rng.randbytes(rng.randrange(64)), version)
            attempt(codec.decode, bytes(rng.choice(INTERESTING) for _ in range(40)), version)


def test_what_decodes_at_all_decodes_again_from_its_own_encoding() -> None:
    """A mutated message that is still one has the same meaning after a round trip."""
    decoded = 0
    rng = random.Random(5)
    for codec in CODECS.values():
        version = codec.max_version
        for _ in range(5):
            bad = mutate(codec.encode(sample(codec, version, rng), version), rng)
            try:
                message = codec.decode(bad, version)
            except ProtocolError:
                continue
            decoded += 1
            # Compared as bytes, since a mutated double may be a NaN, which equals nothing.
            encoded = codec.encode(message, version)
            assert codec.encode(codec.decode(encoded, version), version) == encoded
    assert decoded > 100


@pytest.mark.parametrize("decode", [hot.decode_produce, hot.decode_fetch])
def test_hot_decoders(decode: Any) -> None:
    codec = CODECS["ProduceRequest" if decode is hot.decode_produce else "FetchRequest"]
    rng = random.Random(11)
    for version in codec.versions:
        for _ in range(150):
            bad = mutate(codec.encode(sample(codec, version, rng), version), rng)
            attempt(decode, bad, 0, len(bad), version)
            attempt(decode, memoryview(bytes(bad) + rng.randbytes(64)), 0, len(bad), version)
        for size in range(80):
            attempt(decode, bytes(size), 0, size, version)
            attempt(decode, rng.randbytes(size), 0, size, version)


def test_frames() -> None:
    rng = random.Random(3)
    for api in API.values():
        for version in range(-1, api.max_version + 2):
            head = encode_request_header(api.key, version, rng.getrandbits(31), rng.choice((None, "", "client")))
            attempt(decode_request, mutate(head + rng.randbytes(20), rng))
            attempt(decode_request_header, mutate(head, rng), 0, len(head))
            attempt(decode_response, api, version, mutate(bytes(8) + rng.randbytes(20), rng))
    for _ in range(3000):
        data = rng.randbytes(rng.randrange(40))
        attempt(decode_request_header, data, 0, len(data))
        attempt(decode_request_header, data, 0, len(data) + 5)


# Counts and lengths of two thousand million in every place where the first levels of a message have one.
HUGE = [
    b"\x7f\xff\xff\xff" * 8,
    b"\x00\x00\x00\x00" * 3 + b"\x7f\xff\xff\xff" * 5,
    b"\xff\xff\xff\xff\x07" * 8,
    b"\x01" * 3 + b"\xff\xff\xff\xff\x0f" * 6,
    b"\x02\xff\xff\xff\xff\x07" + bytes(30),
    b"\x00" * 10 + b"\xfe\xff\xff\xff\x07" * 3 + bytes(10),
]


# What may follow a request in a connection's buffer, and must not be touched however much the request announces.
NEIGHBOURS = bytes(1_000_000), b"\1" * 1_000_000, b"\xff" * 1_000_000


def tracemalloc_peak(decode: Any, *arguments: Any) -> int:
    tracemalloc.reset_peak()
    before = tracemalloc.get_traced_memory()[0]
    attempt(decode, *arguments)
    return tracemalloc.get_traced_memory()[1] - before


def test_memory_is_bounded_by_the_input() -> None:
    """No announced count or length makes the decoder reserve more than the bytes at hand could fill."""
    rng = random.Random(9)
    inputs = [(prefix + rng.randbytes(100), b"") for prefix in HUGE]
    inputs += [(prefix, neighbour) for prefix in HUGE for neighbour in NEIGHBOURS]
    buffers = [(head + neighbour, len(head)) for head, neighbour in inputs]
    decoders = [(codec.name, v, codec.decoder(v)) for codec in CODECS.values() for v in codec.versions]
    tracemalloc.start()
    try:
        for name, version, decode in decoders:
            for buf, end in buffers:
                assert tracemalloc_peak(decode, buf, 0, end) < 100_000, (name, version, end)
        for buf, end in buffers:
            for version in CODECS["ProduceRequest"].versions:
                assert tracemalloc_peak(hot.decode_produce, buf, 0, end, version) < 100_000
            for version in CODECS["FetchRequest"].versions:
                assert tracemalloc_peak(hot.decode_fetch, buf, 0, end, version) < 100_000
    finally:
        tracemalloc.stop()


# (message, version, bytes before a length or count) for one of each kind of field.
BEFORE_LENGTHS = [
    ("HeartbeatRequest", 4, b"", b"\xff\xff\x01"),  # compact string
    ("SaslAuthenticateRequest", 2, b"", b"\xff\xff\xff\x03"),  # compact bytes
    ("SaslAuthenticateRequest", 1, b"", b"\0\x0f\0\0"),  # bytes
    ("DeleteGroupsRequest", 2, b"", b"\xff\xff\x1f"),  # compact array of strings
    ("DeleteGroupsRequest", 1, b"", b"\0\x07\0\0"),  # array of strings
    ("MetadataRequest", 0, b"", b"\0\x07\0\0"),  # array of structs
    ("ApiVersionsRequest", 3, b"\1\1\1\x09", b"\xff\xff\x1f"),  # unknown tag where none is known
    ("ApiVersionsResponse", 3, b"\0\0\1\0\0\0\0\1\x09", b"\xff\xff\x1f"),  # unknown tag among known ones
    ("ApiVersionsResponse", 3, b"\0\0\1\0\0\0\0\1\0", b"\xff\xff\x1f"),  # known tag
    ("UpdateFeaturesResponse", 0, bytes(6) + b"\1", b"\xff\xff\x1f"),  # compact array of structs
    ("DescribeProducersRequest", 0, b"\2\1", b"\xff\xff\x1f"),  # compact array of numbers
    ("ProduceRequest", 9, b"\0\0\1\0\0\0\0\2\2t\2\0\0\0\0", b"\xff\xff\x1f"),  # records
]


@pytest.mark.parametrize(("name", "version", "head", "length"), BEFORE_LENGTHS)
def test_a_length_is_checked_before_anything_is_made_of_it(name: str, version: int, head: bytes, length: bytes) -> None:
    """A length that fits the buffer but not the message is refused where it stands, not at the end."""
    decode = CODECS[name].decoder(version)
    attempt(decode, head + length, 0, len(head + length))
    tracemalloc.start()
    try:
        for neighbour in NEIGHBOURS:
            buf = head + length + bytes(20) + neighbour
            assert tracemalloc_peak(decode, buf, 0, len(buf) - len(neighbour)) < 5_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("decode", "version", "head", "count"),
    [
        (hot.decode_produce, 3, b"\xff\xff" + bytes(6), b"\0\7\0\0"),  # topics
        (hot.decode_produce, 3, b"\xff\xff" + bytes(6) + b"\0\0\0\1\0\1t", b"\0\7\0\0"),  # partitions
        (hot.decode_produce, 9, bytes(7), b"\xff\xff\x1f"),
        (hot.decode_produce, 9, bytes(7) + b"\2\2t", b"\xff\xff\x1f"),
        (hot.decode_fetch, 4, bytes(17), b"\0\7\0\0"),
        (hot.decode_fetch, 4, bytes(17) + b"\0\0\0\1\0\1t", b"\0\7\0\0"),
        (hot.decode_fetch, 7, bytes(29), b"\0\7\0\0"),  # forgotten topics
        (hot.decode_fetch, 12, bytes(25), b"\xff\xff\x1f"),
        (hot.decode_fetch, 12, bytes(25) + b"\2\2t", b"\xff\xff\x1f"),
        (hot.decode_fetch, 12, bytes(25) + b"\1", b"\xff\xff\x1f"),
        (hot.decode_fetch, 12, bytes(25) + b"\1\2\2t", b"\xff\xff\x1f"),
    ],
)
def test_hot_counts_are_checked_before_anything_is_made_of_them(
    decode: Any, version: int, head: bytes, count: bytes
) -> None:
    buffers = [head + count + bytes(20) + neighbour for neighbour in NEIGHBOURS]
    tracemalloc.start()
    try:
        for buf, neighbour in zip(buffers, NEIGHBOURS):
            assert tracemalloc_peak(decode, buf, 0, len(buf) - len(neighbour), version) < 10_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("version", [9, 13])
def test_null_records_in_a_long_form_are_not_records_of_minus_one_byte(version: int) -> None:
    topic = b"0123456789abcdef" if version >= 13 else b"\x0a" + b"name-of-9"
    body = bytes(7) + b"\2" + topic + b"\2" + bytes(4) + b"\x80\0" + bytes(3)
    assert hot.decode_produce(body, 0, len(body), version)[3][0][1] == [(0, -1, -1)]
    with pytest.raises(ProtocolError):
        hot.decode_produce(body, 0, len(body) - 1, version)


class Counting(bytes):
    """Bytes that count how often one of them is asked for."""

    reads = 0

    def __getitem__(self, key: Any) -> Any:
        Counting.reads += 1
        return super().__getitem__(key)


def test_work_is_bounded_by_the_input() -> None:
    """Reads grow with the bytes there are, not with the counts they announce."""
    buffers = [(Counting(head + b"\1" * 60 + NEIGHBOURS[1]), len(head) + 60) for head in HUGE]
    for codec in CODECS.values():
        decode = codec.decoder(codec.max_version)
        for buf, end in buffers:
            Counting.reads = 0
            attempt(decode, buf, 0, end)
            assert Counting.reads <= 4 * end, (codec.name, Counting.reads)
