"""How much each broker has of a cluster, before and after something happened."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from headrace.pictures.canvas import MARGIN, Canvas
from headrace.pictures.replicas import legend

TOP = 92
SIDE = 110
ROW, PANEL_GAP = 30, 34
BAR = 420


class Share(NamedTuple):
    """Of one broker."""

    leads: int
    replicas: int
    is_lost: bool = False


def balance_picture(moments: Sequence[tuple[str, Mapping[int, Share]]]) -> Canvas:
    """A bar for each broker: what it leads, and what it only follows."""
    most = max(share.replicas for _, shares in moments for share in shares.values())
    panels = [30 + len(shares) * ROW for _, shares in moments]
    canvas = Canvas(
        2 * MARGIN + SIDE + BAR + 190,
        TOP + sum(panels) + PANEL_GAP * len(panels) + 24,
        "The controller keeps partitions even",
        "Replicas of all topics on each broker, from top to bottom.",
    )
    y: float = TOP
    for (what, shares), panel in zip(moments, panels):
        canvas.text(MARGIN, y + 6, what, bold=True)
        for row, (node, share) in enumerate(sorted(shares.items())):
            _draw_share(canvas, y + 20 + row * ROW, f"broker {node}", share, BAR / max(most, 1))
        y += panel + PANEL_GAP
    legend(canvas, canvas.height - 36, ("leader", "follower"), {"leader": "leads", "follower": "follows"})
    return canvas


def _draw_share(canvas: Canvas, y: float, name: str, share: Share, unit: float) -> None:
    tone = "bad" if share.is_lost else "page"
    canvas.text(MARGIN, y + 16, name, tone=tone, size=12.5)
    x: float = MARGIN + SIDE
    for count, of in ((share.leads, "leader"), (share.replicas - share.leads, "follower")):
        if count:
            canvas.box(x, y, count * unit, ROW - 8, of, radius=4)
            x += count * unit
    words = f"leads {share.leads} of {share.replicas}" if share.replicas else "nothing"
    canvas.text(x + 12, y + 16, f"lost, {words}" if share.is_lost else words, tone=tone, size=12)
