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
            head = encode_request_header(
                api.key, version, rng.getrandbits(31), rng.choice((None, "", "client"))
            )
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


def test_memory_is_bounded_by_the_input() -> None:
    """No announced count or length makes the decoder reserve more than the bytes at hand could fill."""
    for codec in CODECS.values():
        for version in codec.versions:
            codec.decoder(version)
    rng = random.Random(9)
    inputs = [prefix + rng.randbytes(100) for prefix in HUGE] + HUGE
    tracemalloc.start()
    try:
        for codec in CODECS.values():
            for version in codec.versions:
                decode = codec.decoder(version)
                tracemalloc.reset_peak()
                before = tracemalloc.get_traced_memory()[0]
                for data in inputs:
                    attempt(decode, data, 0, len(data))
                peak = tracemalloc.get_traced_memory()[1] - before
                assert peak < 200_000, (codec.name, version, peak)
    finally:
        tracemalloc.stop()


class Counting(bytes):
    """Bytes that count how often one of them is asked for."""

    reads = 0

    def __getitem__(self, key: Any) -> Any:
        Counting.reads += 1
        return super().__getitem__(key)


def test_work_is_bounded_by_the_input() -> None:
    """Reads grow with the bytes there are, not with the counts they announce."""
    rng = random.Random(21)
    for codec in CODECS.values():
        version = codec.max_version
        decode = codec.decoder(version)
        for prefix in HUGE:
            data = Counting(prefix + rng.randbytes(60))
            Counting.reads = 0
            attempt(decode, data, 0, len(data))
            assert Counting.reads <= 8 * len(data), (codec.name, Counting.reads)
