"""What was written in an earlier life is checked before it is served, once."""

import random

import pytest

from headrace.storage.first_read import Unchecked, check_piece

from .helpers import batch


def test_good_parts_add_up_like_a_set_of_bytes() -> None:
    dice = random.Random(1)
    for _ in range(300):
        size = dice.randrange(1, 40)
        unchecked, good = Unchecked(size), set()
        for _ in range(12):
            start = dice.randrange(size)
            end = dice.randrange(start, size + 5)
            done = unchecked.add(start, end)
            good |= set(range(start, end))
            assert done == (set(range(size)) <= good)
            for at in range(size):
                for until in range(at, size + 3):
                    assert unchecked.covers(at, until) == (set(range(at, min(until, size))) <= good), (
                        unchecked.good,
                        at,
                        until,
                    )


class Piece:
    def __init__(self, data: bytes, length: int | None = None) -> None:
        self.data = data
        self.length = len(data) if length is None else length

    def read(self, length: int | None = None, at: int = 0) -> bytes:
        return self.data[at : at + min(self.length - at, self.length if length is None else length)]


@pytest.mark.parametrize("size", [10, 700_000, 1_500_000])
def test_whole_batches_are_checked_and_a_cut_one_is_left(size: int) -> None:
    batches = [batch(at, 1, size=size) for at in range(4)]
    data = b"".join(batches)
    assert check_piece(Piece(data)) == (len(data), None)
    assert check_piece(Piece(data, len(data) - 1)) == (len(data) - len(batches[-1]), None)
    for number, position in ((0, 70), (2, 65), (3, len(batches[3]) - 1)):
        start = sum(map(len, batches[:number]))
        spoilt = bytearray(data)
        spoilt[start + position] ^= 1
        good, damage = check_piece(Piece(bytes(spoilt)))
        assert (good, damage) == (start, "CRC mismatch")
