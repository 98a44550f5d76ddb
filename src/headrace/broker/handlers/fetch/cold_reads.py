"""Bringing slices into memory before they are sent, and checking those of an earlier life on the way."""

from typing import NamedTuple

from headrace.broker.net.page_cache import read_ahead
from headrace.storage.first_read import check_piece
from headrace.storage.log import Slice


class Warmed(NamedTuple):
    """What a thread found."""

    unreadable: list[Slice]
    """Not to be sent: the disk could not give them, or they are damaged."""
    good: list[tuple[Slice, int]]
    """Checked, and so many bytes of each good."""
    damaged: list[tuple[Slice, str]]

    def settle(self) -> None:
        """On the loop: what is good need not be checked again."""
        for piece, length in self.good:
            piece.checked(length)


def warm(cold: list[Slice], unchecked: list[Slice]) -> Warmed:
    """In a thread. Which slices are unchecked is for the loop to say: others find parts of the same files good
    meanwhile."""
    warmed = Warmed([], [], [])
    for piece in unchecked:
        try:
            good, damage = check_piece(piece)
        except OSError:
            warmed.unreadable.append(piece)
            continue
        if damage is None:
            warmed.good.append((piece, good))
        else:
            warmed.unreadable.append(piece)
            warmed.damaged.append((piece, damage))
    warmed.unreadable.extend(read_ahead([piece for piece in cold if piece not in unchecked]))
    return warmed
