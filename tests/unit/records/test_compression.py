"""Codecs against the framings other clients write, and against bombs and damage."""

import gzip
import tracemalloc

import cramjam
import pytest
from aiokafka import codec as aio
from hypothesis import given, settings, strategies as st

from headrace.errors import Err, KafkaError
from headrace.records.compression import Codec, compress, decompress

CODECS = [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD]
THEIR_ENCODERS = {
    Codec.GZIP: aio.gzip_encode,
    Codec.SNAPPY: aio.snappy_encode,
    Codec.LZ4: aio.lz4_encode,
    Codec.ZSTD: aio.zstd_encode,
}
THEIR_DECODERS = {
    Codec.GZIP: aio.gzip_decode,
    Codec.SNAPPY: aio.snappy_decode,
    Codec.LZ4: aio.lz4_decode,
    Codec.ZSTD: aio.zstd_decode,
}
compressible = st.builds(lambda piece, times: piece * times, st.binary(min_size=1, max_size=200), st.integers(1, 2_000))


@pytest.mark.parametrize("codec", CODECS)
@settings(max_examples=40, deadline=None)
@given(data=compressible)
def test_round_trips_with_others(codec: Codec, data: bytes) -> None:
    assert decompress(codec, compress(codec, data)) == data
    assert decompress(codec, memoryview(bytes(THEIR_ENCODERS[codec](data)))) == data
    assert bytes(THEIR_DECODERS[codec](compress(codec, data))) == data


@pytest.mark.parametrize("codec", [Codec.NONE, *CODECS])
def test_nothing_compresses_to_nothing(codec: Codec) -> None:
    assert decompress(codec, compress(codec, b"")) == b""


@pytest.mark.parametrize("codec", CODECS)
def test_the_limit_is_exact(codec: Codec) -> None:
    data = b"a" * 3_000_000
    packed = compress(codec, data)
    assert decompress(codec, packed, len(data)) == data
    with pytest.raises(KafkaError) as raised:
        decompress(codec, packed, len(data) - 1)
    assert raised.value.error == Err.CORRUPT_MESSAGE
    assert "allowed" in str(raised.value)


@pytest.mark.parametrize("codec", CODECS)
def test_a_bomb_stays_within_the_limit(codec: Codec) -> None:
    bomb = compress(codec, bytes(50_000_000))
    tracemalloc.start()
    try:
        with pytest.raises(KafkaError):
            decompress(codec, bomb, 1_000_000)
        assert tracemalloc.get_traced_memory()[1] < 3_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("codec", CODECS)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_damage_is_refused_or_read_but_never_anything_else(codec: Codec, data: st.DataObject) -> None:
    packed = bytearray(compress(codec, b"some records, some more records" * 50))
    for _ in range(data.draw(st.integers(1, 3))):
        packed[data.draw(st.integers(0, len(packed) - 1))] = data.draw(st.integers(0, 255))
    packed = packed[: data.draw(st.integers(0, len(packed)))]
    try:
        decompress(codec, packed, 100_000)
    except KafkaError as error:
        assert error.error == Err.CORRUPT_MESSAGE


def test_snappy_is_read_raw_and_concatenated() -> None:
    assert decompress(Codec.SNAPPY, bytes(cramjam.snappy.compress_raw(b"raw" * 100))) == b"raw" * 100
    assert decompress(Codec.SNAPPY, compress(Codec.SNAPPY, b"one") + compress(Codec.SNAPPY, b"two")) == b"onetwo"


def test_snappy_is_written_in_java_s_blocks() -> None:
    packed = compress(Codec.SNAPPY, bytes(100_000))
    assert packed[:16] == b"\x82SNAPPY\0\0\0\0\x01\0\0\0\x01"
    position, blocks = 16, 0
    while position < len(packed):
        position += 4 + int.from_bytes(packed[position : position + 4], "big")
        blocks += 1
    assert blocks == 4


def test_lz4_frames_are_the_kind_java_reads() -> None:
    flags = compress(Codec.LZ4, b"x" * 200_000)[4]
    assert flags >> 6 == 1, "version"
    assert flags & 0x20, "independent blocks: Java refuses linked ones"
    assert flags & 0x0F == 0, "no content size or checksum"


def test_gzip_members_may_be_concatenated() -> None:
    assert decompress(Codec.GZIP, gzip.compress(b"one") + gzip.compress(b"two")) == b"onetwo"


@pytest.mark.parametrize(
    ("codec", "level"),
    [
        (Codec.GZIP, -1),
        (Codec.GZIP, 1),
        (Codec.GZIP, 9),
        (Codec.LZ4, 1),
        (Codec.LZ4, 17),
        (Codec.ZSTD, -131072),
        (Codec.ZSTD, 22),
    ],
)
def test_every_level_kafka_takes(codec: Codec, level: int) -> None:
    data = b"level " * 1_000
    assert decompress(codec, compress(codec, data, level)) == data


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_unknown_codecs(codec: int) -> None:
    for call in (compress, decompress):
        with pytest.raises(KafkaError) as raised:
            call(codec, b"x")
        assert raised.value.error == Err.UNSUPPORTED_COMPRESSION_TYPE
