"""Where replicas are: a column for each broker, a row for each partition, and who leads."""

from collections.abc import Sequence
from typing import NamedTuple

from headrace.pictures.canvas import MARGIN, Canvas

CELL_WIDTH, CELL_HEIGHT = 132, 40
GAP = 12
SIDE = 96
TOP = 96
HEAD = 46
LEGEND = 52


class Broker(NamedTuple):
    id: int
    rack: str | None = None
    is_lost: bool = False


class Placed(NamedTuple):
    """One partition. Replicas in their order: the first is preferred to lead."""

    partition: int
    replicas: Sequence[int]
    leader: int
    in_sync: Sequence[int]


def replicas_picture(title: str, subtitle: str, brokers: Sequence[Broker], placed: Sequence[Placed]) -> Canvas:
    width = grid_width(len(brokers)) + 2 * MARGIN
    canvas = Canvas(max(width, 640), TOP + grid_height(len(placed)) + LEGEND, title, subtitle)
    draw_grid(canvas, MARGIN, TOP, brokers, placed)
    legend(canvas, canvas.height - 36, _tones(placed))
    return canvas


def placements_picture(
    title: str, subtitle: str, brokers: Sequence[Broker], kinds: Sequence[tuple[str, Sequence[Placed]]]
) -> Canvas:
    """The same topic placed in several ways, one below the other."""
    block = grid_height(max(len(placed) for _, placed in kinds)) + 44
    width = grid_width(len(brokers)) + 2 * MARGIN
    canvas = Canvas(max(width, 640), TOP + len(kinds) * block + LEGEND - 10, title, subtitle)
    for index, (name, placed) in enumerate(kinds):
        y = TOP + index * block
        canvas.text(MARGIN, y + 10, name, bold=True, size=14)
        # Racks stand side by side, so that one sees that a partition is in several.
        draw_grid(canvas, MARGIN, y + 24, sorted(brokers, key=lambda broker: (broker.rack or "", broker.id)), placed)
    legend(canvas, canvas.height - 36, ("leader", "follower"))
    return canvas


def grid_width(brokers: int) -> int:
    return SIDE + brokers * (CELL_WIDTH + GAP)


def grid_height(partitions: int) -> int:
    return HEAD + partitions * (CELL_HEIGHT + GAP) + GAP


def draw_grid(canvas: Canvas, x: float, y: float, brokers: Sequence[Broker], placed: Sequence[Placed]) -> None:
    columns = {broker.id: x + SIDE + index * (CELL_WIDTH + GAP) for index, broker in enumerate(brokers)}
    for broker in brokers:
        tone = "bad" if broker.is_lost else "plain"
        canvas.box(columns[broker.id], y, CELL_WIDTH, grid_height(len(placed)) - GAP / 2, tone, dashed=broker.is_lost)
        rack = f" · rack {broker.rack}" if broker.rack else ""
        name = f"broker {broker.id}{' lost' if broker.is_lost else rack}"
        canvas.text(columns[broker.id] + CELL_WIDTH / 2, y + 26, name, tone=tone, bold=True, middle=True, size=12.5)
    for row, part in enumerate(placed):
        cell_y = y + HEAD + row * (CELL_HEIGHT + GAP)
        canvas.text(x, cell_y + 25, f"partition {part.partition}", bold=True, size=12.5)
        for broker in brokers:
            if broker.id in part.replicas:
                tone = tone_of(part, broker)
                cell_x = columns[broker.id] + 10
                words = _role(part, broker)
                dashed = tone in ("wait", "bad")
                canvas.label(cell_x, cell_y, CELL_WIDTH - 20, CELL_HEIGHT, words, tone, size=12.5, dashed=dashed)


def tone_of(part: Placed, broker: Broker) -> str:
    if broker.is_lost:
        return "bad"
    if broker.id == part.leader:
        return "leader"
    return "follower" if broker.id in part.in_sync else "wait"


def _role(part: Placed, broker: Broker) -> str:
    if broker.is_lost:
        return f"p{part.partition} lost"
    if broker.id == part.leader:
        return f"p{part.partition} leader"
    followers = [node for node in part.replicas if node != part.leader]
    return f"p{part.partition} follower {followers.index(broker.id) + 1}"


def _tones(placed: Sequence[Placed]) -> tuple[str, ...]:
    behind = any(set(part.replicas) - set(part.in_sync) for part in placed)
    return ("leader", "follower", "wait") if behind else ("leader", "follower")


MEANINGS = {
    "leader": "leads: takes writes and reads",
    "follower": "follows: fetches from the leader",
    "wait": "not in sync",
    "good": "committed",
    "bad": "lost",
}


def legend(canvas: Canvas, y: float, tones: Sequence[str], meanings: dict[str, str] = MEANINGS) -> None:
    x: float = MARGIN
    for tone in tones:
        canvas.box(x, y, 16, 16, tone, radius=4, dashed=tone == "wait")
        canvas.text(x + 24, y + 13, meanings[tone], size=12)
        x += 48 + len(meanings[tone]) * 6.3
