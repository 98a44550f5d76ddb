"""A partition over time: who leads, who is in sync, which records each replica has, and whether more are written."""

from collections.abc import Mapping, Sequence
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


class Copies(NamedTuple):
    """What each replica of a partition has at a moment, and how much of it counts."""

    topic: str
    what: str
    ends: Mapping[int, int]
    """By broker, the leader first: how many records it has."""
    committed: int
    in_sync: Sequence[int]
    answer: str
    """To a record that was sent then with acks=all."""


RECORD, RECORD_STEP, ROW_STEP = 40, 46, 40
NAMES = 130


def committed_picture(moments: Sequence[Copies]) -> Canvas:
    """Record by record, what each replica has, and up to where consumers are given records."""
    most = max(end for moment in moments for end in moment.ends.values())
    panel = 44 + max(len(moment.ends) for moment in moments) * ROW_STEP + 30
    canvas = Canvas(
        2 * MARGIN + NAMES + most * RECORD_STEP + 330,
        TOP + len(moments) * panel + 46,
        "Committed, and not committed yet",
        "A record is committed once every in-sync replica has it. Consumers are given records up to the line.",
    )
    for index, moment in enumerate(moments):
        _draw_copies(canvas, TOP + index * panel, moment, MARGIN + NAMES + most * RECORD_STEP + 18)
    legend(canvas, canvas.height - 36, ("good", "wait"), {"good": "committed", "wait": "not committed"})
    return canvas


def _draw_copies(canvas: Canvas, top: float, moment: Copies, right: float) -> None:
    canvas.text(MARGIN, top + 8, f"{moment.topic}: {moment.what}", bold=True)
    first = MARGIN + NAMES
    y = top + 26
    for row, (node, end) in enumerate(moment.ends.items()):
        role = "leads" if not row else "in sync" if node in moment.in_sync else "behind"
        canvas.text(MARGIN, y + row * ROW_STEP + 21, f"broker {node}  {role}", size=12)
        for offset in range(end):
            tone = "good" if offset < moment.committed else "wait"
            x = first + offset * RECORD_STEP
            canvas.label(x, y + row * ROW_STEP, RECORD, 32, str(offset), tone, size=12, dashed=tone == "wait")
    line = first + moment.committed * RECORD_STEP - (RECORD_STEP - RECORD) / 2
    canvas.line(line, y - 6, line, y + len(moment.ends) * ROW_STEP, "leader")
    canvas.text(right, y + 21, f"in sync: {', '.join(map(str, moment.in_sync))}", size=12)
    canvas.text(right, y + ROW_STEP + 21, f"acks=all: {moment.answer}", size=12)


def _x(index: int) -> float:
    return MARGIN + SIDE + index * (CELL_WIDTH + 10)


def _state(moment: Moment, node: int) -> tuple[str, str]:
    if node in moment.lost:
        return "bad", "lost"
    if node == moment.leader:
        return "leader", "leader"
    return ("follower", "in sync") if node in moment.in_sync else ("wait", "behind")
