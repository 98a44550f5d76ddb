"""Placement step by step, as texts draw it: the list of brokers, then leaders, first and second followers along it."""

from collections.abc import Sequence

from headrace.pictures.canvas import MARGIN, Canvas
from headrace.pictures.replicas import Broker

TOP = 92
NAME = 36
CELL_WIDTH, CELL_HEIGHT, GAP = 74, 30, 8
RACK_TONES = ("good", "other", "wait", "follower")
STEPS = (
    "Leaders go round robin along it",
    "First followers start at the second broker",
    "Second followers start at the third",
    "Third followers start at the fourth",
)


def steps_picture(order: Sequence[Broker], rows: Sequence[Sequence[int]]) -> Canvas:
    """`order` is the list, `rows` are the replicas of each partition, the leader first."""
    replicas = len(rows[0])
    width = NAME + len(order) * (CELL_WIDTH + GAP)
    height = 34 + (len(rows) + 1) * (CELL_HEIGHT + GAP) + 24
    panels = 1 + min(replicas, len(STEPS))
    canvas = Canvas(
        2 * MARGIN + 2 * width + 40,
        TOP + (panels + 1) // 2 * height,
        "How replicas are placed",
        "A list of brokers whose neighbours are in different racks, from a random start; then partition by partition.",
    )
    _draw_list(canvas, order, width)
    for step in range(panels - 1):
        x = MARGIN + (step + 1) % 2 * (width + 40)
        y = TOP + (step + 1) // 2 * height
        canvas.text(x, y + 6, f"{step + 2}. {STEPS[step]}", bold=True, size=13)
        _draw_step(canvas, x, y + 22, order, rows, step)
    return canvas


def _draw_list(canvas: Canvas, order: Sequence[Broker], width: int) -> None:
    canvas.text(MARGIN, TOP + 6, "1. Brokers in a list that alternates racks", bold=True, size=13)
    y = TOP + 60
    tones = dict(zip(sorted({broker.rack or "" for broker in order}), RACK_TONES * len(order)))
    for index, broker in enumerate(order):
        x = MARGIN + index * width / len(order)
        tone = tones[broker.rack or ""]
        canvas.box(x, y, CELL_WIDTH, 56, tone)
        canvas.text(x + CELL_WIDTH / 2, y + 25, f"broker {broker.id}", tone=tone, bold=True, middle=True, size=12)
        canvas.text(x + CELL_WIDTH / 2, y + 43, f"rack {broker.rack}", tone=tone, middle=True, size=11)
        if index:
            canvas.arrow(x - width / len(order) + CELL_WIDTH + 2, y + 28, x - 3, y + 28, "plain")
    canvas.text(MARGIN, y + 84, f"It starts at broker {order[0].id}, which is chosen at random.", tone="quiet", size=12)


def _draw_step(
    canvas: Canvas, x: float, y: float, order: Sequence[Broker], rows: Sequence[Sequence[int]], step: int
) -> None:
    columns = {broker.id: x + NAME + index * (CELL_WIDTH + GAP) for index, broker in enumerate(order)}
    for node, left in columns.items():
        canvas.text(left + CELL_WIDTH / 2, y + 18, f"broker {node}", tone="quiet", middle=True, size=11.5)
    for number, row in enumerate(rows):
        top = y + 28 + number * (CELL_HEIGHT + GAP)
        canvas.text(x, top + 20, f"p{number}", bold=True, size=12.5)
        for place, node in enumerate(row[: step + 1]):
            words = "leader" if not place else f"follower {place}"
            # What this step adds stands out from what was there.
            tone = "leader" if place == step else "quiet"
            canvas.label(columns[node], top, CELL_WIDTH, CELL_HEIGHT, words, tone, size=11.5)
