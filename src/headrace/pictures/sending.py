"""What producers do: records with their keys in partitions, and what came of sending a record again."""

from collections.abc import Sequence
from typing import NamedTuple

from headrace.pictures.canvas import MARGIN, Canvas
from headrace.pictures.replicas import legend

TOP = 92
SIDE = 96
CELL_WIDTH, CELL_HEIGHT, STEP, ROW_STEP = 104, 46, 112, 62
KEY_TONES = ("leader", "good", "other", "wait")


class Keyed(NamedTuple):
    """A record, by where it is."""

    partition: int
    offset: int
    key: str | None
    value: str


def records_picture(topic: str, partitions: int, records: Sequence[Keyed]) -> Canvas:
    """A row for each partition, the oldest record first, a tone for each key."""
    most = 1 + max(record.offset for record in records)
    canvas = Canvas(
        max(2 * MARGIN + SIDE + most * STEP, 640),
        TOP + 10 + partitions * ROW_STEP + 58,
        f"{topic}: records in partitions",
        "The same key, the same partition. Offsets count within a partition, and order holds there.",
    )
    keys = sorted({record.key for record in records if record.key is not None})
    tones = dict(zip(keys, KEY_TONES * len(keys)))
    for number in range(partitions):
        y = TOP + number * ROW_STEP
        canvas.text(MARGIN, y + 28, f"partition {number}", bold=True, size=12.5)
    for record in records:
        x, y = MARGIN + SIDE + record.offset * STEP, TOP + record.partition * ROW_STEP
        tone = tones[record.key] if record.key is not None else "plain"
        canvas.box(x, y, CELL_WIDTH, CELL_HEIGHT, tone)
        words = f"{record.key}: {record.value}" if record.key is not None else record.value
        canvas.text(x + CELL_WIDTH / 2, y + 19, words, tone=tone, size=12, middle=True)
        canvas.text(x + CELL_WIDTH / 2, y + 36, f"offset {record.offset}", tone=tone, size=10.5, middle=True)
    meanings = {tone: f"key {key}" for key, tone in tones.items()} | {"plain": "no key"}
    legend(canvas, canvas.height - 36, tuple(meanings), meanings)
    return canvas


class Attempt(NamedTuple):
    """One record, how its producer was set, and what became of it."""

    options: str
    told: str
    times: int
    """How often it is in the log."""


def again_picture(attempts: Sequence[Attempt]) -> Canvas:
    side, told = 310, 130
    most = max(attempt.times for attempt in attempts)
    canvas = Canvas(
        max(2 * MARGIN + side + told + 40 + most * STEP, 640),
        TOP + 30 + len(attempts) * ROW_STEP + 20,
        "Sent again, or not",
        "What the producer was told, and how often the record is in the log then.",
    )
    for x, words in ((side, "the producer was told"), (side + told + 60, "in the log")):
        canvas.text(MARGIN + x, TOP + 8, words, bold=True, size=12.5)
    for row, attempt in enumerate(attempts):
        y = TOP + 24 + row * ROW_STEP
        canvas.text(MARGIN, y + 27, attempt.options, size=12.5)
        good = attempt.told == "acknowledged"
        canvas.label(MARGIN + side, y, told, CELL_HEIGHT, attempt.told, "good" if good else "bad", size=12)
        for n in range(attempt.times):
            words = "the record" if n == 0 else "again"
            x = MARGIN + side + told + 60 + n * STEP
            canvas.label(x, y, CELL_WIDTH, CELL_HEIGHT, words, "good" if n == 0 else "wait", size=12)
        if not attempt.times:
            canvas.text(MARGIN + side + told + 60, y + 27, "lost", tone="bad", size=12.5)
    return canvas
