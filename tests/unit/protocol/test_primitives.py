"""Variable-length integers, as Kafka's ByteUtils has them."""

import pytest
from hypothesis import given, settings, strategies as st

from headrace.protocol.primitives import (
    ArrayStructs,
    ProtocolError,
    decode_uvarint,
    decode_varint,
    decode_varlong,
    encode_uvarint,
    encode_varint,
    encode_varlong,
    uvarint,
)

SETTINGS = settings(max_examples=100, deadline=None, derandomize=True, database=None)


@pytest.mark.parametrize(
    ("n", "encoded"),
    [
        (0, "00"), (1, "01"), (127, "7f"), (128, "8001"), (300, "ac02"), (16383, "ff7f"), (16384, "808001"),
        (2**21 - 1, "ffff7f"), (2**21, "80808001"), (2**28, "8080808001"), (2**32 - 1, "ffffffff0f"),
    ],
)  # fmt: skip
def test_uvarint(n: int, encoded: str) -> None:
    data = bytes.fromhex(encoded)
    assert encode_uvarint(n) == uvarint(n) == data
    assert decode_uvarint(b"\0" + data + b"\1", 1, 1 + len(data)) == (n, 1 + len(data))
    for end in range(1, len(data)):
        with pytest.raises(ProtocolError):
            decode_uvarint(data, 0, end)
        with pytest.raises(ProtocolError):
            decode_uvarint(data[:end], 0, end)


@pytest.mark.parametrize(
    ("n", "encoded"),
    [
        (0, "00"),
        (-1, "01"),
        (1, "02"),
        (-64, "7f"),
        (64, "8001"),
        (2**31 - 1, "feffffff0f"),
        (-(2**31), "ffffffff0f"),
    ],
)
def test_varint(n: int, encoded: str) -> None:
    assert encode_varint(n).hex() == encoded
    assert decode_varint(bytes.fromhex(encoded), 0, len(encoded) // 2) == (n, len(encoded) // 2)


@SETTINGS
@given(st.integers(-(2**63), 2**63 - 1))
def test_varlong(n: int) -> None:
    data = encode_varlong(n)
    assert len(data) <= 10
    assert decode_varlong(data, 0, len(data)) == (n, len(data))
    with pytest.raises(ProtocolError):
        decode_varlong(data, 0, len(data) - 1)


def test_a_longer_form_is_read_but_not_an_endless_one() -> None:
    assert decode_uvarint(b"\x81\x80\0", 0, 3) == (1, 3)
    for data, decode in (
        (b"\x80" * 5 + b"\0", decode_uvarint),
        (b"\x80" * 5 + b"\0", decode_varint),
        (b"\x80" * 10 + b"\0", decode_varlong),
    ):
        with pytest.raises(ProtocolError, match="longer"):
            decode(data, 0, len(data))
    with pytest.raises(ProtocolError):
        encode_uvarint(-1)


@pytest.mark.parametrize("count", [0, 1, 32, 33, 500])
def test_arrays_of_fixed_size(count: int) -> None:
    for code, value in (("i", -7), ("16s", b"0123456789abcdef")):
        arrays = ArrayStructs(code)
        packed = arrays.pack_long(count, [value] * count)
        assert list(arrays.unpack_long(count, b"\0" + packed, 1)) == [value] * count
        if count < 33:
            assert arrays.packs[count](*[value] * count) == packed
