"""The live picture in the terminal, drawn from the status alone; and plain lines where there is no terminal."""

import os
import shutil
import sys
import textwrap
import time
from functools import cache
from pathlib import Path

from rich.columns import Columns
from rich.console import Group as Stack, RenderableType
from rich.layout import Layout
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from headrace.demo.blocks import FULL, area, sparkline
from headrace.demo.events import CATEGORIES, DUPLICATE, LATE, MALFORMED, STALE
from headrace.demo.expected import WATERMARK_MS, WINDOW_MS
from headrace.demo.status import GroupState, QueryState, Series, Status

SPARK_WIDE, SPARK_NARROW = 40, 10
NUMBER_WIDTH = 6
ROOMY_WIDTH = 110
HEAD, FEED, NARROW_FEED, PIPELINE, WINDOWS, WINDOWS_MIN = 3, 7, 4, 5, 10, 5
BATCHES_DRAWN = 60
NOTES_MIN, BOTTOM_MIN, CHARTS_MIN = 4, 8, 6
BORDERS = 4
"""Of a panel's width."""
COLOURS = dict(zip(CATEGORIES, ("cyan", "yellow", "green", "magenta", "blue")))

SPARK_STARTS = "Spark's JVM starts beside the brokers: some seconds, on a machine that has never run it some more."


def draw(status: Status, width: int = 120, height: int = 40) -> RenderableType:
    """The whole screen. On a small terminal what is only explained goes first, numbers last; a large one has charts."""
    return _roomy(status, width, height) if width >= ROOMY_WIDTH else _narrow(status, width, height)


def _roomy(status: Status, width: int, height: int) -> Layout:
    top = max(FEED + 1, 3 + len(status.groups))
    spare = height - HEAD - top - WINDOWS
    charts = min(spare - BOTTOM_MIN, spare * 2 // 3)
    charts = charts if charts >= CHARTS_MIN else 0
    layout = Layout()
    layout.split_column(
        Layout(_head(status, roomy=True), size=HEAD),
        Layout(name="top", size=top),
        Layout(name="middle", size=WINDOWS),
        Layout(name="charts", size=charts, visible=charts > 0),
        Layout(name="bottom", visible=spare - charts > NOTES_MIN),
    )
    layout["top"].split_row(Layout(_feed(status), ratio=2), Layout(_groups(status, roomy=True), ratio=3))
    pipeline, windows = _pipeline(status, roomy=True), _windows(status, WINDOWS, roomy=True)
    layout["middle"].split_row(Layout(pipeline, ratio=3), Layout(windows, ratio=2))
    if charts:
        layout["charts"].split_row(*(Layout(part) for part in _charts(status, width // 3, charts)))
    # Hints are copied to another terminal, so they are whole; notes wrap.
    hint_width = min(max(map(len, hints(status.bootstrap))) + BORDERS, width * 2 // 3)
    notes = _notes(status, width - hint_width, spare - charts)
    layout["bottom"].split_row(Layout(notes), Layout(_hints(status), size=hint_width))
    return layout


def _narrow(status: Status, width: int, height: int) -> Layout:
    """What is happening, then what came of it; each has the rows that those before it leave."""
    groups = 3 + max(1, len(status.groups))
    least = HEAD + NARROW_FEED + groups + PIPELINE + WINDOWS_MIN
    spare = max(0, height - least)
    feed = FEED if spare >= FEED - NARROW_FEED else NARROW_FEED
    spare -= feed - NARROW_FEED
    windows = WINDOWS_MIN + min(max(0, spare), WINDOWS - WINDOWS_MIN)
    rows = [
        (_head(status, roomy=False), HEAD),
        (_feed(status) if feed == FEED else _feed_briefly(status, width), feed),
        (_groups(status, roomy=False), groups),
        (_pipeline(status, roomy=False), PIPELINE),
        (_windows(status, windows, roomy=False), windows),
    ]
    shown, left = [], height
    for part, size in rows:
        if left >= size:
            shown.append(Layout(part, size=size))
            left -= size
    layout = Layout()
    charts = left - BOTTOM_MIN if left - BOTTOM_MIN >= CHARTS_MIN else 0
    if charts:
        shown.append(Layout(_charts(status, width, charts)[0], size=charts))
    layout.split_column(
        *shown, Layout(_notes(status, width, left - charts), ratio=1, visible=left - charts >= NOTES_MIN)
    )
    return layout


# -- the parts


def _panel(body: RenderableType, title: str, colour: str) -> Panel:
    return Panel(body, title=title, title_align="left", border_style=colour)


def _head(status: Status, *, roomy: bool) -> Panel:
    brokers = Text.assemble("  ", style="default")
    for node in status.nodes:
        colour = "green" if node.is_up else "red"
        brokers.append("● " if node.is_up else "○ ", style=colour)
        # All are on this machine: where there is little room, the port tells them apart.
        address = node.address if roomy else f":{node.address.rpartition(':')[2]}"
        brokers.append(f"{address}{' ' + node.note if node.note else ''}  ", style=colour if not node.is_up else "")
    clock = _clock(status.elapsed_s)
    if status.limit_s and status.elapsed_s <= status.limit_s:
        clock += f" of {_clock(status.limit_s)}"
    text = Text.assemble(("Headrace ", "bold cyan"), ("demo  ", "bold"), (f"{status.phase}  {clock}  ", "dim"), brokers)
    # In the border, so that no terminal is too small for them.
    return Panel(text, border_style="cyan", subtitle=status.keys or None, subtitle_align="left")


def _feed(status: Status) -> Panel:
    if not status.rates:
        return _panel(_waiting(status), "[b]feed[/] shop-events", "green")
    body = Stack(
        _rate(status),
        Text(sparkline(_values(status.rates), SPARK_WIDE), style="green", no_wrap=True, overflow="crop"),
        Text.assemble((f"{status.sent:,}", "bold"), " acknowledged after fsync"),
        Text(
            f"{status.kinds[LATE]:,} late, {status.kinds[DUPLICATE]:,} twice, "
            f"{status.kinds[MALFORMED]:,} broken, {status.kinds[STALE]:,} stale",
            style="dim",
        ),
        Text(f"longest wait for an answer {status.slowest_s * 1000:,.0f} ms", style="dim"),
    )
    return _panel(body, "[b]feed[/] shop-events", "green")


def _feed_briefly(status: Status, width: int) -> Panel:
    if not status.rates:
        return _panel(_waiting(status), "[b]feed[/] shop-events", "green")
    first = Text.assemble(_rate(status), "  ", no_wrap=True, overflow="crop")
    first.append(sparkline(_values(status.rates), max(0, width - BORDERS - len(first))), style="green")
    second = Text.assemble(
        (f"{status.sent:,}", "bold"),
        " acknowledged after fsync",
        (f", longest wait {status.slowest_s * 1000:,.0f} ms", "dim"),
        no_wrap=True,
        overflow="ellipsis",
    )
    return _panel(Stack(first, second), "[b]feed[/] shop-events", "green")


def _rate(status: Status) -> Text:
    stalled = Text("  waiting for a broker", style="bold red") if status.stalled_s > 0.5 else Text("")
    return Text.assemble((f"{status.rate:,.0f}", "bold green"), " events/s", stalled)


def _waiting(status: Status) -> Text:
    """What the feed waits for, while it does."""
    return Text(
        f"{status.phase}, {status.age_s:.0f} s: events flow when the brokers are there, in a moment", style="dim"
    )


def _groups(status: Status, *, roomy: bool) -> Panel:
    table = _table("group", "each member's")
    _numbers(table, "rec/s", "lag")
    if roomy:
        table.add_column("", no_wrap=True, min_width=SPARK_NARROW)
    for group in status.groups:
        lag = "-" if group.lag is None else f"{group.lag:,}"
        shares = "  ".join(",".join(map(str, partitions)) or "-" for _, partitions, _ in group.members)
        cells: list[RenderableType] = [
            Text.assemble((group.name, "bold"), (f" {group.role}", "dim")),
            shares or Text("all" if group.role == "Spark" else "joins", style="dim"),
            f"{group.rate:,.0f}",
            Text(lag, style=_lag_style(group)),
        ]
        table.add_row(*cells, *([Text(sparkline(_values(group.lags), SPARK_NARROW), style="yellow")] if roomy else []))
    return _panel(table if status.groups else _waiting(status), "[b]groups[/]", "yellow")


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


def _pipeline(status: Status, *, roomy: bool) -> Panel:
    watermark = next((query.watermark for query in status.queries.values() if query.watermark), "")
    title = f"[b]pipeline[/] {status.spark if status.queries else 'Spark'}"
    if not status.queries:
        text = status.spark or "-"
        if text == "starting":
            text = f"starting, {status.age_s:.0f} s. {SPARK_STARTS}"
        elif text.startswith("Spark "):
            text = f"{text} is ready: its queries start"
        return _panel(Text(text, style="dim"), title, "magenta")
    table = _table("query")
    _numbers(table, "batch", "rows", "took")
    table.add_column("at work", no_wrap=True, min_width=SPARK_NARROW)
    for query in status.queries.values():
        table.add_row(
            Text.assemble((query.name, "bold"), (f" → {query.target}", "dim")),
            f"{query.batches}",
            f"{query.rows:,}",
            f"{query.duration_ms / 1000:.1f} s" if query.batches else "-",
            Text(_at_work(query, next(iter(status.queries.values())), roomy=roomy), style="magenta"),
        )
    if watermark:
        title += f", watermark {watermark}"
    sales = next((query for query in status.queries.values() if query.durations), None)
    if not roomy or sales is None:
        return _panel(table, title, "magenta")
    took = _values(sales.durations)
    below = Text(f"\nseconds per batch of {sales.name}, up to {max(took):.1f} s\n", style="dim")
    rows = area(took[-BATCHES_DRAWN:], BATCHES_DRAWN, WINDOWS - 2 - len(status.queries) - 3)
    below.append("\n".join(rows), style="magenta")
    below.no_wrap, below.overflow = True, "crop"
    return _panel(Stack(table, below), title, "magenta")


def _at_work(query: QueryState, first: QueryState, *, roomy: bool) -> str:
    """How far the batch is that runs now. Only the `first` query reads the feed; others read what it has written."""
    if query.now is None:
        if query.batches:
            return ""
        waiting_s = time.monotonic() - query.since_s
        return f"first batch, {waiting_s:.0f} s" if query is first else f"waits for {first.name}"
    tasks = f"{query.now.done}/{query.now.tasks} tasks"
    rows = f", {query.now.rows:,} rows" if query.now.rows else ""
    return tasks + (rows if roomy or not query.batches else "")


def _windows(status: Status, height: int, *, roomy: bool) -> Panel:
    title = f"[b]sales[/] per {WINDOW_MS // 1000} s, shop-revenue"
    room = height - 3
    legend = room > 4
    rows = sorted(status.windows.items())[-(room - legend) :]
    if not rows:
        return _panel(Text(_until_first_window(status), style="dim"), title, "blue")
    table = _table("window")
    _numbers(table, "orders", "€")
    table.add_column("", ratio=1, no_wrap=True, overflow="crop")
    top = max(sum(cents for _, _, cents in row.values()) for _, row in rows) or 1
    for start_ms, row in rows:
        cents = sum(cell[2] for cell in row.values())
        table.add_row(
            _time_of_day(start_ms),
            f"{sum(cell[1] for cell in row.values()):,}",
            f"{cents / 100:,.0f}",
            _bar(row, top, 16 if roomy else 30),
        )
    names = Text.assemble(*((f"■ {name} ", COLOURS[name]) for name in CATEGORIES), no_wrap=True, overflow="crop")
    return _panel(Stack(table, names) if legend else table, title, "blue")


def _until_first_window(status: Status) -> str:
    if not (status.queries or status.spark.startswith(("starting", "Spark "))):
        return "-"  # there is no Spark
    return (
        f"A window of {WINDOW_MS // 1000} s is out when Spark has seen events {WATERMARK_MS // 1000} s past its end:"
        f" after two batches, the first of which takes longest. {status.age_s:.0f} s so far."
    )


def _bar(row: dict[str, tuple[int, int, int]], top: int, width: int) -> Text:
    bar = Text()
    for category in CATEGORIES:
        cents = row.get(category, (0, 0, 0))[2]
        bar.append(FULL * round(cents / top * width), style=COLOURS[category])
    return bar


def _charts(status: Status, width: int, height: int) -> list[Panel]:
    """The same numbers over the whole run; the first matters most."""
    spark = next((group.lags for group in status.groups if group.role == "Spark"), [])
    drawn = [
        ("events/s", status.rates, "green", "{:,.0f}"),
        ("longest wait", status.waits, "cyan", "{:,.0f} ms"),
        ("Spark's lag", spark, "magenta", "{:,.0f}")
        if spark
        else ("the queue's lag", status.groups[0].lags if status.groups else [], "yellow", "{:,.0f}"),
    ]
    found = []
    for name, series, colour, form in drawn:
        values = _values(series)
        rows = area(values, width - BORDERS, height - 2)
        top = f", up to {form.format(max(values))}" if values else ""
        body = Text("\n".join(rows), style=colour, no_wrap=True, overflow="crop")
        found.append(_panel(body, f"[b]{name}[/]{top}", colour))
    return found


def _notes(status: Status, width: int, height: int) -> Panel:
    """The latest, each as long as it is."""
    table = Table.grid(padding=(0, 1))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(ratio=1)
    left = max(1, height - 2)
    shown: list[tuple[str, Text]] = []
    for at_s, text in reversed(status.notes):
        rows = len(textwrap.wrap(text, max(8, width - BORDERS - 6))) or 1
        if rows > left and shown:
            break
        left -= rows
        shown.append((_clock(at_s), Text(text)))
    for clock, note in reversed(shown):
        table.add_row(clock, note)
    return _panel(table, "[b]what happened[/]", "dim")


def _hints(status: Status) -> Panel:
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold", no_wrap=True, overflow="ellipsis")
    for line in hints(status.bootstrap):
        table.add_row(line)
    return _panel(Columns([table]), "[b]try this[/] in another terminal", "dim")


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
    groups = "; ".join(
        f"{g.name} {g.got:,}" + (f" (lag {g.lag:,})" if g.lag is not None else "") for g in status.groups if g.got
    )
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
    minutes, rest = divmod(max(0, int(seconds)), 60)
    return f"{minutes}:{rest:02}"


def _time_of_day(at_ms: int) -> str:
    seconds = at_ms // 1000
    return f"{seconds // 3600 % 24:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
