"""What is in partitions: records and how far a group has committed, transactions and who sees them, files."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from headrace.pictures.canvas import MARGIN, Canvas
from headrace.pictures.replicas import legend

RECORD_WIDTH, RECORD_HEIGHT = 150, 38
STEP = 46
TOP = 92


class Progress(NamedTuple):
    """One partition, and how far a group has committed it."""

    partition: int
    end_offset: int
    committed: int


def commits_picture(topic: str, group: str, partitions: Sequence[Progress]) -> Canvas:
    """Older records above, newer ones below, where producers append."""
    longest = max(part.end_offset for part in partitions)
    column = RECORD_WIDTH + 44
    canvas = Canvas(
        max(2 * MARGIN + len(partitions) * column, 640),
        TOP + 34 + longest * STEP + 96,
        f"{topic}: records, and what {group} has committed",
        "Producers append at the bottom. A restart of the group goes on behind what is committed.",
    )
    for index, part in enumerate(partitions):
        x = MARGIN + index * column
        canvas.text(x + RECORD_WIDTH / 2, TOP + 12, f"partition {part.partition}", bold=True, middle=True)
        for offset in range(part.end_offset):
            tone = "good" if offset < part.committed else "wait"
            y = TOP + 26 + offset * STEP
            canvas.label(x, y, RECORD_WIDTH, RECORD_HEIGHT, f"offset {offset}", tone, dashed=tone == "wait")
        y = TOP + 26 + part.committed * STEP - 4
        canvas.line(x - 8, y, x + RECORD_WIDTH + 8, y, "leader")
        canvas.text(x + RECORD_WIDTH + 12, y + 4, str(part.committed), tone="leader", bold=True, size=12)
        end = TOP + 26 + part.end_offset * STEP
        canvas.arrow(x + RECORD_WIDTH / 2, end + 34, x + RECORD_WIDTH / 2, end + 4, "quiet", dashed=True)
    meanings = {
        "good": "committed",
        "wait": "not committed: read again",
        "leader": "committed offset: the next to read",
    }
    legend(canvas, canvas.height - 36, ("good", "wait", "leader"), meanings)
    return canvas


class Sent(NamedTuple):
    """What has an offset of a log: a record, or the end of a transaction."""

    offset: int
    words: str
    outcome: str
    """committed, aborted, or marker."""


def exactly_once_picture(topic: str, log: Sequence[Sent], readers: Mapping[str, Sequence[int]]) -> Canvas:
    """A log with transactions, and which offsets each kind of reader was given."""
    cell, gap = 104, 8
    side = 150
    width = 2 * MARGIN + side + len(log) * (cell + gap)
    canvas = Canvas(
        max(width, 640),
        TOP + 96 + len(readers) * 52 + 52,
        f"{topic}: transactions in a partition",
        "Records of a transaction count all together or not at all; a marker says which.",
    )
    canvas.text(MARGIN, TOP + 40, "in the log", bold=True)
    tones = {"committed": "good", "aborted": "bad", "marker": "other"}
    for index, sent in enumerate(log):
        x = MARGIN + side + index * (cell + gap)
        canvas.text(x + cell / 2, TOP + 8, f"offset {sent.offset}", tone="quiet", middle=True, size=11.5)
        canvas.label(x, TOP + 16, cell, 40, sent.words, tones[sent.outcome], size=12)
    for row, (name, given) in enumerate(readers.items()):
        y = TOP + 84 + row * 52
        canvas.text(MARGIN, y + 25, name, bold=True, mono=True, size=12)
        for index, sent in enumerate(log):
            x = MARGIN + side + index * (cell + gap)
            if sent.offset in given:
                canvas.label(x, y, cell, 38, "given", "plain", size=12)
            else:
                canvas.text(x + cell / 2, y + 24, "·", tone="quiet", middle=True)
    meanings = {"good": "of a committed transaction", "bad": "of an aborted one", "other": "marker"}
    legend(canvas, canvas.height - 36, ("good", "bad", "other"), meanings)
    return canvas


class Segment(NamedTuple):
    file: str
    size: str
    offsets: str
    is_active: bool
    indexes: Sequence[tuple[str, str]]
    """Names and sizes."""


class Folder(NamedTuple):
    name: str
    broker: int
    segments: Sequence[Segment]


def files_picture(topic: str, folders: Sequence[Folder]) -> Canvas:
    column, card = 296, 126
    most = max(len(folder.segments) for folder in folders)
    canvas = Canvas(
        2 * MARGIN + len(folders) * (column + 14) - 14,
        TOP + 52 + most * (card + 10) + 56,
        f"{topic}: a folder for each partition",
        "Segments with their records, and beside each an index by offset and one by time.",
    )
    for index, folder in enumerate(folders):
        x = MARGIN + index * (column + 14)
        canvas.box(x, TOP, column, 48 + most * (card + 10), "plain")
        canvas.text(x + 14, TOP + 22, f"{folder.name}/", bold=True, mono=True, size=12.5)
        canvas.text(x + 14, TOP + 38, f"on broker {folder.broker}", tone="quiet", size=11.5)
        for row, segment in enumerate(folder.segments):
            _segment(canvas, x + 10, TOP + 46 + row * (card + 10), column - 20, card, segment)
    meanings = {"leader": "active: records are appended here", "follower": "closed"}
    legend(canvas, canvas.height - 36, ("leader", "follower"), meanings)
    return canvas


def _segment(canvas: Canvas, x: float, y: float, width: float, height: float, segment: Segment) -> None:
    tone = "leader" if segment.is_active else "follower"
    canvas.box(x, y, width, height, tone)
    canvas.text(x + 12, y + 22, segment.file, tone=tone, bold=True, mono=True, size=11.5)
    canvas.text(x + 12, y + 40, f"{segment.size}, {segment.offsets}", tone=tone, size=11.5)
    for row, (name, size) in enumerate(segment.indexes[:2]):
        top = y + 52 + row * 34
        canvas.box(x + 10, top, width - 20, 28, "quiet", radius=6)
        canvas.text(x + 18, top + 18, name, tone="quiet", mono=True, size=10)
        canvas.text(x + width - 18, top + 18, size, tone="quiet", size=10.5, end=True)
