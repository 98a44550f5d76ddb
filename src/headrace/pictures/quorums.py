"""Where the metadata of a cluster is: in a log that controllers agree on, or in ZooKeeper's tree of znodes."""

from collections.abc import Sequence
from typing import NamedTuple

from headrace.pictures.canvas import MARGIN, Canvas, fitting

TOP = 92
PANEL = 440
ROW = 34


class Controller(NamedTuple):
    node: int
    leads: bool
    end_offset: int


class Log(NamedTuple):
    """KRaft, as its voters see it."""

    epoch: int
    voters: Sequence[Controller]
    facts: Sequence[str]
    """What the metadata says of one topic, as lines."""


class Znode(NamedTuple):
    path: str
    data: str
    is_ephemeral: bool


def quorums_picture(log: Log, znodes: Sequence[Znode]) -> Canvas:
    height = max(94 + len(log.voters) * (ROW + 8) + len(log.facts) * (ROW + 6), 60 + len(znodes) * 58)
    canvas = Canvas(
        2 * MARGIN + 2 * PANEL + 20, int(TOP + height + 24), "The same cluster with KRaft and with ZooKeeper",
        "Who is the controller, who is there, and who leads: in a replicated log, or in znodes.",
    )  # fmt: skip
    _draw_log(canvas, MARGIN, height, log)
    _draw_znodes(canvas, MARGIN + PANEL + 20, height, znodes)
    return canvas


def _draw_log(canvas: Canvas, x: float, height: float, log: Log) -> None:
    canvas.box(x, TOP, PANEL, height, "plain")
    canvas.text(x + 16, TOP + 28, "KRaft", bold=True, size=15)
    canvas.text(x + 80, TOP + 28, f"the log __cluster_metadata, epoch {log.epoch}", tone="quiet", size=12)
    for row, voter in enumerate(log.voters):
        y = TOP + 46 + row * (ROW + 8)
        tone = "leader" if voter.leads else "follower"
        role = "active controller" if voter.leads else "may take over"
        canvas.label(x + 16, y, 180, ROW, f"node {voter.node}: {role}", tone, size=11.5)
        canvas.box(x + 210, y + 6, PANEL - 230, ROW - 12, tone, radius=4)
        canvas.text(x + PANEL - 28, y + 22, f"up to offset {voter.end_offset}", tone=tone, size=11, end=True)
    y = TOP + 62 + len(log.voters) * (ROW + 8)
    canvas.text(x + 16, y + 6, "what the log says", bold=True, size=12.5)
    for row, fact in enumerate(log.facts):
        top = y + 16 + row * (ROW + 6)
        canvas.box(x + 16, top, PANEL - 32, ROW, "quiet", radius=6)
        canvas.text(x + 28, top + 21, fitting(fact, PANEL - 56, 11, mono=True), mono=True, size=11)


def _draw_znodes(canvas: Canvas, x: float, height: float, znodes: Sequence[Znode]) -> None:
    canvas.box(x, TOP, PANEL, height, "plain")
    canvas.text(x + 16, TOP + 28, "ZooKeeper", bold=True, size=15)
    canvas.text(x + 120, TOP + 28, "znodes; ephemeral ones go with their session", tone="quiet", size=12)
    if not znodes:
        canvas.text(x + 16, TOP + 70, "not run: it needs Java", tone="quiet")
    for row, znode in enumerate(znodes):
        y = TOP + 46 + row * 58
        tone = "other" if znode.is_ephemeral else "follower"
        canvas.box(x + 16, y, PANEL - 32, 50, tone, radius=6)
        canvas.text(x + 28, y + 20, znode.path, tone=tone, bold=True, mono=True, size=11.5)
        data = fitting(znode.data, PANEL - 60, 10.5, mono=True)
        canvas.text(x + 28, y + 38, data, tone=tone, mono=True, size=10.5)
        if znode.is_ephemeral:
            canvas.text(x + PANEL - 28, y + 20, "ephemeral", tone=tone, size=11, end=True)
