"""Which records of one topic were acknowledged, and which of them can be read again. Pure."""

from collections.abc import Iterable
from typing import NamedTuple

VALUE_BYTES = 100
_DIGITS = 12


class Verdict(NamedTuple):
    acknowledged: int
    lost: int
    twice: int
    written: bool


class Ledger:
    """Records are numbered. With acks=0 nobody answers, and handing one to the network is all the sender ever hears."""

    def __init__(self) -> None:
        self._next = 0
        self._acknowledged: set[int] = set()
        self._stage_from = 0

    def next_value(self) -> tuple[int, bytes]:
        number = self._next
        self._next += 1
        return number, str(number).zfill(_DIGITS).encode().ljust(VALUE_BYTES, b".")

    def acknowledge(self, number: int) -> None:
        self._acknowledged.add(number)

    def begin_stage(self) -> None:
        """What is sent from here on tells whether records are written now."""
        self._stage_from = self._next

    def judge(self, values: Iterable[bytes]) -> Verdict:
        """`values`: everything that can be read."""
        read = [int(value[:_DIGITS]) for value in values]
        there = set(read)
        return Verdict(
            acknowledged=len(self._acknowledged),
            lost=len(self._acknowledged - there),
            twice=len(read) - len(there),
            written=any(number >= self._stage_from for number in self._acknowledged & there),
        )
