"""Who reads what: partitions on the left, groups and their members on the right."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from headrace.pictures.canvas import MARGIN, Canvas

TOP = 92
PART_WIDTH, MEMBER_WIDTH = 150, 210
HEIGHT, STEP = 38, 48
MIDDLE = 190
TONES = ("leader", "good", "other", "wait")


class Reading(NamedTuple):
    """One group: its members by name, with the partitions each has."""

    group: str
    members: Mapping[str, Sequence[int]]


def groups_picture(title: str, subtitle: str, topic: str, partitions: int, groups: Sequence[Reading]) -> Canvas:
    heights = [44 + len(group.members) * STEP for group in groups]
    total = sum(heights) + 16 * (len(groups) - 1)
    left = partitions * STEP + 40
    canvas = Canvas(
        max(2 * MARGIN + PART_WIDTH + 24 + MIDDLE + MEMBER_WIDTH + 40, 640),
        TOP + max(total, left) + 32,
        title,
        subtitle,
    )
    left_y = TOP + (max(total, left) - left) / 2
    canvas.box(MARGIN, left_y, PART_WIDTH + 24, left, "plain")
    canvas.text(MARGIN + 12, left_y + 24, topic, bold=True)
    starts = {number: left_y + 36 + number * STEP for number in range(partitions)}
    for number, y in starts.items():
        canvas.label(MARGIN + 12, y, PART_WIDTH, HEIGHT, f"partition {number}", "follower", size=12.5)
    y = TOP + (max(total, left) - total) / 2
    x = MARGIN + PART_WIDTH + 24 + MIDDLE
    for group, height, tone in zip(groups, heights, TONES * len(groups)):
        canvas.box(x, y, MEMBER_WIDTH + 40, height, "plain")
        canvas.text(x + 14, y + 24, f"group {group.group}", bold=True)
        for row, (member, given) in enumerate(group.members.items()):
            top = y + 36 + row * STEP
            said = ", ".join(f"p{number}" for number in given) or "nothing"
            canvas.label(x + 14, top, MEMBER_WIDTH + 12, HEIGHT, f"{member} reads {said}", tone, size=12.5)
            for number in given:
                begin = MARGIN + 12 + PART_WIDTH
                canvas.arrow(begin, starts[number] + HEIGHT / 2, x + 12, top + HEIGHT / 2, tone)
        y += height + 16
    return canvas
