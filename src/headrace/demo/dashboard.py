"""The live picture in the terminal, drawn from the status alone; and plain lines where there is no terminal."""

import os
import shutil
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from rich.columns import Columns
from rich.console import Group as Stack
from rich.console import RenderableType
from rich.layout import Layout
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from headrace.demo.events import CATEGORIES, DUPLICATE, LATE, MALFORMED, STALE
from headrace.demo.expected import WINDOW_MS
from headrace.demo.status import GroupState, Series, Status

BLOCKS = "▁▂▃▄▅▆▇█"
SPARK_POINTS, SPARK_NARROW = 40, 10
NUMBER_WIDTH = 6
WINDOWS_SHOWN = 6
ROOMY_WIDTH = 110
NOTES_HEIGHT_MIN = 4
COLOURS = dict(zip(CATEGORIES, ("cyan", "yellow", "green", "magenta", "blue")))


def sparkline(values: Sequence[float], width: int = SPARK_POINTS) -> str:
    """The last `width` values as little bars, the highest one full."""
    shown = list(values)[-width:]
    top = max(shown, default=0.0)
    if top <= 0:
        return BLOCKS[0] * len(shown)
    return "".join(BLOCKS[min(len(BLOCKS) - 1, int(value / top * (len(BLOCKS) - 1) + 0.5))] for value in shown)


def draw(status: Status, width: int = 120, height: int = 40) -> RenderableType:
    """The whole screen. On a small terminal what is only explained goes first, numbers last."""
    roomy = width >= ROOMY_WIDTH
    feed, groups = _feed(status), _groups(status, roomy)
    pipeline, windows = _pipeline(status, roomy), _windows(status, roomy)
    layout = Layout()
    if not roomy:
        rows = [(_head(status, roomy), 3), (feed, 7), (groups, 3 + len(status.groups)), (pipeline, 7), (windows, 10)]
        shown, left = [], height
        for part, size in rows:
            if left >= size:
                shown.append(Layout(part, size=size))
                left -= size
        layout.split_column(*shown, Layout(_notes(status, left), ratio=1, visible=left > NOTES_HEIGHT_MIN))
        return layout
    layout.split_column(
        Layout(_head(status, roomy), size=3),
        Layout(name="top", size=max(8, 3 + len(status.groups))),
        Layout(name="middle", size=10),
        Layout(name="bottom", visible=height > 22 + NOTES_HEIGHT_MIN),
    )
    layout["top"].split_row(Layout(feed, ratio=2), Layout(groups, ratio=3))
    layout["middle"].split_row(Layout(pipeline, ratio=3), Layout(windows, ratio=2))
    layout["bottom"].split_row(Layout(_notes(status, height - 24), ratio=2), Layout(_hints(status), ratio=3))
    return layout


def _head(status: Status, roomy: bool) -> Panel:
    brokers = Text.assemble("  ", style="default")
    for node in status.nodes:
        colour = "green" if node.is_up else "red"
        brokers.append("● " if node.is_up else "○ ", style=colour)
        # All are on this machine: where there is little room, the port tells them apart.
        address = node.address if roomy else f":{node.address.rpartition(':')[2]}"
        brokers.append(f"{address}{' ' + node.note if node.note else ''}  ", style=colour if not node.is_up else "")
    clock = _clock(status.elapsed_s) + (f" of {_clock(status.limit_s)}" if status.limit_s else "")
    text = Text.assemble(("Headrace ", "bold cyan"), ("demo  ", "bold"), (f"{status.phase}  {clock}  ", "dim"), brokers)
    return Panel(text, border_style="cyan")


def _feed(status: Status) -> Panel:
    stalled = Text("  waiting for a broker", style="bold red") if status.stalled_s > 0.5 else Text("")
    body = Stack(
        Text.assemble((f"{status.rate:,.0f}", "bold green"), " events/s", stalled),
        Text(sparkline(_values(status.rates)), style="green", no_wrap=True, overflow="crop"),
        Text.assemble((f"{status.sent:,}", "bold"), " acknowledged after fsync"),
        Text(
            f"{status.kinds[LATE]:,} late, {status.kinds[DUPLICATE]:,} twice, "
            f"{status.kinds[MALFORMED]:,} broken, {status.kinds[STALE]:,} stale",
            style="dim",
        ),
        Text(f"longest wait for an answer {status.slowest_s * 1000:,.0f} ms", style="dim"),
    )
    return Panel(body, title="[b]feed[/] shop-events", title_align="left", border_style="green")


def _groups(status: Status, roomy: bool) -> Panel:
    table = _table("group", "each member's")
    _numbers(table, "rec/s", "lag")
    if roomy:
        table.add_column("", no_wrap=True, min_width=SPARK_NARROW)
    for group in status.groups:
        lag = "?" if group.lag is None else f"{group.lag:,}"
        shares = "  ".join(",".join(map(str, partitions)) or "-" for _, partitions, _ in group.members)
        cells: list[RenderableType] = [
            Text.assemble((group.name, "bold"), (f" {group.role}", "dim")),
            shares,
            f"{group.rate:,.0f}",
            Text(lag, style=_lag_style(group)),
        ]
        table.add_row(*cells, *([Text(sparkline(_values(group.lags), SPARK_NARROW), style="yellow")] if roomy else []))
    return Panel(table, title="[b]groups[/]", title_align="left", border_style="yellow")


def _lag_style(group: GroupState) -> str:
    return "bold red" if (group.lag or 0) > max(5_000, 5 * group.rate) else "default"


def _table(*columns: str) -> Table:
    table = Table(box=None, expand=True, pad_edge=False, header_style="dim")
    for column in columns:
        table.add_column(column, no_wrap=True)
    return table


def _numbers(table: Table, *columns: str) -> None:
    """Columns that are never cut: a number without its end is another number."""
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True, min_width=NUMBER_WIDTH)


def _pipeline(status: Status, roomy: bool) -> Panel:
    if not status.queries:
        return Panel(Text(status.spark or "-", style="dim"), title="[b]pipeline[/] Spark", title_align="left", border_style="magenta")
    table = _table("query")
    _numbers(table, "batch", "rows", "rows/s", "took")
    if roomy:
        table.add_column("", no_wrap=True, min_width=SPARK_NARROW)
    for query in status.queries.values():
        cells: list[RenderableType] = [
            Text.assemble((query.name, "bold"), (f" → {query.target}", "dim")),
            f"{query.batches}",
            f"{query.rows:,}",
            f"{query.rows_per_s:,.0f}",
            f"{query.duration_ms / 1000:.1f} s",
        ]
        table.add_row(*cells, *([Text(sparkline(_values(query.durations), SPARK_NARROW), style="magenta")] if roomy else []))
    watermark = next((query.watermark for query in status.queries.values() if query.watermark), "")
    below = Text(f"{status.spark}{'   watermark ' + watermark if watermark else ''}", style="dim")
    return Panel(Stack(table, below), title="[b]pipeline[/] Spark", title_align="left", border_style="magenta")


def _windows(status: Status, roomy: bool) -> Panel:
    rows = sorted(status.windows.items())[-WINDOWS_SHOWN:]
    title = f"[b]sales[/] per {WINDOW_MS // 1000} s, shop-revenue"
    if not rows:
        waiting = "the first window ends when the watermark has passed it" if status.queries else "-"
        return Panel(Text(waiting, style="dim"), title=title, title_align="left", border_style="blue")
    table = _table("window")
    _numbers(table, "orders", "€")
    table.add_column("", ratio=1, no_wrap=True, overflow="crop")
    top = max(sum(cents for _, _, cents in row.values()) for _, row in rows) or 1
    for start_ms, row in rows:
        cents = sum(cell[2] for cell in row.values())
        table.add_row(_time_of_day(start_ms), f"{sum(cell[1] for cell in row.values()):,}", f"{cents / 100:,.0f}", _bar(row, top, 16 if roomy else 30))
    legend = Text.assemble(*((f"■ {name} ", COLOURS[name]) for name in CATEGORIES))
    return Panel(Stack(table, legend), title=title, title_align="left", border_style="blue")


def _bar(row: dict[str, tuple[int, int, int]], top: int, width: int) -> Text:
    bar = Text()
    for category in CATEGORIES:
        cents = row.get(category, (0, 0, 0))[2]
        bar.append("█" * round(cents / top * width), style=COLOURS[category])
    return bar


def _notes(status: Status, height: int) -> Panel:
    shown = list(status.notes)[-max(1, height - 2) :]
    lines = [Text.assemble((f"{_clock(at_s)} ", "dim"), text, no_wrap=True, overflow="ellipsis") for at_s, text in shown]
    return Panel(Stack(*lines), title="[b]what happened[/]", title_align="left", border_style="dim")


def _hints(status: Status) -> Panel:
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold", no_wrap=True, overflow="ellipsis")
    for line in hints(status.bootstrap):
        table.add_row(line)
    keys = Text(status.keys, style="cyan")
    return Panel(Stack(Columns([table]), keys), title="[b]try this[/] in another terminal", title_align="left", border_style="dim")


def hints(bootstrap: str) -> list[str]:
    at = f"-b {bootstrap.split(',')[0]}"
    return [
        f"{command()} group describe order-queue {at}",
        f"{command()} topic describe shop-events {at}",
        f"{command()} group list {at}",
        f"kcat -C {at} -t shop-revenue",
    ]


@cache
def command() -> str:
    """How this program is called from the current folder: `make run` leaves it out of the PATH."""
    mine = Path(sys.executable).with_name("headrace")
    if shutil.which("headrace") is not None or not mine.exists():
        return "headrace"
    return min(os.path.relpath(mine), str(mine), key=len)


def line(status: Status) -> str:
    """One line of progress, for logs."""
    groups = "; ".join(f"{g.name} {g.got:,}" + (f" (lag {g.lag:,})" if g.lag is not None else "") for g in status.groups if g.got)
    parts = [
        f"{_clock(status.elapsed_s)} {status.phase}:",
        f"{status.sent:,} events, {status.rate:,.0f}/s;",
        groups + ";" if groups else "",
        f"Spark: {_pipeline_line(status)}" if status.spark or status.queries else "",
    ]
    return " ".join(part for part in parts if part)


def _pipeline_line(status: Status) -> str:
    if not status.queries:
        return status.spark
    batches = ", ".join(f"{query.name} batch {query.batches}" for query in status.queries.values())
    return f"{batches}; {len(status.windows)} windows"


def _values(series: Series) -> list[float]:
    return [value for _, value in series]


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes}:{rest:02}"


def _time_of_day(at_ms: int) -> str:
    seconds = at_ms // 1000
    return f"{seconds // 3600 % 24:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
