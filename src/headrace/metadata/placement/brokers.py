"""What placers get: brokers that may hold a replica, and a dice."""

from collections.abc import Callable
from typing import TypeVar

import msgspec

Dice = Callable[[int], int]
T = TypeVar("T")


class UsableBroker(msgspec.Struct, frozen=True, gc=False):
    """A registered broker that is not shutting down."""

    id: int
    rack: str | None
    fenced: bool


def shuffle(items: list[T], dice: Dice) -> None:
    """In place. A dice that always shows its highest number changes nothing."""
    for last in range(len(items) - 1, 0, -1):
        other = dice(last + 1)
        items[last], items[other] = items[other], items[last]
