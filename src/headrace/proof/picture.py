"""The picture of a proof: a field for each case, its colour by what losses led to."""

from collections.abc import Sequence

from headrace.pictures.canvas import MARGIN, Canvas
from headrace.proof.cases import Result, Stage
from headrace.proof.table import rate_text, time_text, verdict_text

CELL_WIDTH, CELL_HEIGHT = 188, 82
GAP = 8
HEAD = 128
SIDE = 172


def proof_picture(results: Sequence[Result], where: str) -> Canvas:
    columns = list(dict.fromkeys((result.durability, result.acks) for result in results))
    lines = list(dict.fromkeys((result.replicas, result.min_in_sync) for result in results))
    width = max(MARGIN * 2 + SIDE + len(columns) * (CELL_WIDTH + GAP), 700)
    canvas = Canvas(
        width,
        HEAD + len(lines) * (CELL_HEIGHT + GAP) + 64,
        "Consistency against availability, measured",
        f"Brokers lost with their disks while records were written; acknowledged records read again. {where}",
    )
    for index, (durability, acks) in enumerate(columns):
        x = MARGIN + SIDE + index * (CELL_WIDTH + GAP)
        canvas.text(x + CELL_WIDTH / 2, HEAD - 30, f"acks={acks}", bold=True, middle=True, size=14)
        canvas.text(x + CELL_WIDTH / 2, HEAD - 13, f"durability={durability}", tone="quiet", middle=True, size=11.5)
    for index, (replicas, least) in enumerate(lines):
        y = HEAD + index * (CELL_HEIGHT + GAP)
        canvas.text(MARGIN, y + 34, f"{replicas} replica{'s' * (replicas > 1)}", bold=True, size=14)
        canvas.text(MARGIN, y + 53, f"min.insync.replicas {least}", tone="quiet", size=11.5)
    for result in results:
        x = MARGIN + SIDE + columns.index((result.durability, result.acks)) * (CELL_WIDTH + GAP)
        y = HEAD + lines.index((result.replicas, result.min_in_sync)) * (CELL_HEIGHT + GAP)
        _cell(canvas, x, y, result)
    _legend(canvas, canvas.height - 46)
    return canvas


def _cell(canvas: Canvas, x: float, y: float, result: Result) -> None:
    calm, one, two = result.stages
    canvas.box(x, y, CELL_WIDTH, CELL_HEIGHT, "quiet")
    costs = f"{time_text(calm.latency_ms)} · {rate_text(calm.records_per_s)}/s" if calm.written else "never written"
    canvas.text(x + CELL_WIDTH / 2, y + 19, costs, size=11.5, middle=True)
    for row, (name, stage) in enumerate((("1 lost", one), ("2 lost", two))):
        words = f"{name}: {verdict_text(stage)}"
        canvas.label(x + 6, y + 28 + row * 25, CELL_WIDTH - 12, 22, words, tone_of(stage), size=10.5, radius=6)


def tone_of(stage: Stage) -> str:
    if stage.lost:
        return "bad"
    return "good" if stage.written else "wait"


def _legend(canvas: Canvas, y: float) -> None:
    x: float = MARGIN
    for tone, words in (
        ("good", "records are still written, none was lost"),
        ("wait", "writes are refused, none was lost"),
        ("bad", "acknowledged records were lost"),
    ):
        canvas.box(x, y, 16, 16, tone, radius=4)
        canvas.text(x + 24, y + 13, words, size=12)
        x += 44 + len(words) * 6.4
