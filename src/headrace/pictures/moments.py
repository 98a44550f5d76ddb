"""A partition over time: who leads, who is in sync, and whether records are written."""

from collections.abc import Sequence
from typing import NamedTuple

from headrace.pictures.canvas import MARGIN, Canvas
from headrace.pictures.replicas import legend

TOP = 92
SIDE = 250
CELL_WIDTH, CELL_HEIGHT, STEP = 118, 38, 50


class Moment(NamedTuple):
    what: str
    leader: int
    in_sync: Sequence[int]
    lost: Sequence[int]
    written: bool
    """Whether a record with acks=all was acknowledged then."""


def in_sync_picture(topic: str, replicas: Sequence[int], least: int, moments: Sequence[Moment]) -> Canvas:
    width = 2 * MARGIN + SIDE + (len(replicas) + 2) * (CELL_WIDTH + 10)
    canvas = Canvas(
        width,
        TOP + 34 + len(moments) * STEP + 64,
        f"{topic}: in-sync replicas shrink and grow, min.insync.replicas={least}",
        "From top to bottom: what happened, the list that the leader keeps, and what acks=all was answered.",
    )
    columns = [*(f"broker {node}" for node in replicas), "in sync", "acks=all"]
    for index, name in enumerate(columns):
        canvas.text(_x(index) + CELL_WIDTH / 2, TOP + 14, name, bold=True, middle=True, size=12.5)
    for row, moment in enumerate(moments):
        y = TOP + 28 + row * STEP
        canvas.text(MARGIN, y + 24, moment.what, size=12.5)
        for index, node in enumerate(replicas):
            tone, words = _state(moment, node)
            canvas.label(_x(index), y, CELL_WIDTH, CELL_HEIGHT, words, tone, size=12, dashed=tone in ("wait", "bad"))
        at = len(replicas)
        enough = len(moment.in_sync) >= least
        numbers = f"{len(moment.in_sync)} of {len(replicas)}"
        canvas.label(_x(at), y, CELL_WIDTH, CELL_HEIGHT, numbers, "plain" if enough else "wait", size=12)
        answer = ("written", "good") if moment.written else ("refused", "wait")
        canvas.label(_x(at + 1), y, CELL_WIDTH, CELL_HEIGHT, *answer, size=12)
    legend(canvas, canvas.height - 36, ("leader", "follower", "wait", "bad"), _MEANINGS)
    return canvas


_MEANINGS = {"leader": "leads", "follower": "in sync", "wait": "behind, or too few", "bad": "lost"}


def _x(index: int) -> float:
    return MARGIN + SIDE + index * (CELL_WIDTH + 10)


def _state(moment: Moment, node: int) -> tuple[str, str]:
    if node in moment.lost:
        return "bad", "lost"
    if node == moment.leader:
        return "leader", "leader"
    return ("follower", "in sync") if node in moment.in_sync else ("wait", "behind")
