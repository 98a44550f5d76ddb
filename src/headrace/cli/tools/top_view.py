"""The screen of `headrace top`, from a `View`. Pure but for Rich: the same view and size give the same lines."""

from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from headrace.cli.dump.report import counted
from headrace.terminal import shown, size_text
from headrace.tools.live.rates import BrokerRow, GroupRow, TopicRow, View

KEYS = "q quit  1 2 3 one table  0 all  j k scroll  s sort  p pause  + - interval"
SPARKS = "▁▂▃▄▅▆▇█"
SECTIONS = ("brokers", "topics", "groups")
HEAD_LINES, FRAME_LINES = 4, 2
"""Of the head; and of each table, its title and its columns."""

Row = BrokerRow | TopicRow | GroupRow


class Screen:
    """What the keys have chosen."""

    def __init__(self) -> None:
        self.section: str | None = None
        """One table alone, or all."""
        self.scroll = 0
        self.by_name = False
        self.is_paused = False
        self.history: list[float] = []
        """Records per second, the last ones."""

    def press(self, key: str) -> None:
        """What a key changes of the picture."""
        if key in "0123":
            self.section = None if key == "0" else SECTIONS[int(key) - 1]
            self.scroll = 0
        elif key == "s":
            self.by_name = not self.by_name
        elif key == "p":
            self.is_paused = not self.is_paused
        elif key in "jk":
            self.scroll = max(0, self.scroll + (1 if key == "j" else -1))

    def draw(self, view: View, width: int, height: int | None, note: str = "") -> Any:
        """At most `height` lines; without one, everything, and nothing about keys."""
        tables: dict[str, Sequence[Row]] = {"brokers": view.brokers, "topics": view.topics, "groups": view.groups}
        sections = [self.section] if self.section is not None else list(SECTIONS)
        room = 1 << 30 if height is None else height - HEAD_LINES - 1 - FRAME_LINES * len(sections)
        parts: list[Any] = [self._head(view, width, note)]
        counts = _shares(room, [len(tables[name]) for name in sections])
        for name, count in zip(sections, counts):
            rows: Sequence[Row] = tables[name]
            if self.by_name:
                rows = sorted(rows, key=_name)
            first = min(self.scroll, max(0, len(rows) - count)) if self.section is not None else 0
            title = _title(name, rows[first : first + count], len(rows), first)
            parts.append(_DRAWN[name](rows[first : first + count], title, height is not None))
        if height is not None:
            parts.append(Text(KEYS[:width], style="dim", no_wrap=True, overflow="crop"))
        return Group(*parts)

    def _head(self, view: View, width: int, note: str) -> Any:
        up = sum(row.is_up for row in view.brokers)
        state = Text(no_wrap=True, overflow="ellipsis")
        state.append("headrace top ", style="bold")
        if self.is_paused:
            state.append("paused  ", style="yellow")
        state.append(f"{up}/{len(view.brokers)} brokers  controller {view.controller}  ")
        state.append(f"{counted(len(view.topics), 'topic')}  {counted(view.partitions, 'partition')}  ")
        # At the end, where a small terminal cuts: whoever has several clusters knows them by their first letters.
        state.append(view.cluster_id, style="dim")
        flow = Text(no_wrap=True, overflow="ellipsis")
        flow.append(
            f"in {rate(view.in_per_s)} rec/s  {bytes_rate(view.bytes_per_s)}  out {rate(view.out_per_s)} rec/s  "
        )
        flow.append(spark(self.history, min(30, max(0, width - len(flow.plain) - 2))), style="cyan")
        health = Text(no_wrap=True, overflow="ellipsis")
        if view.offline:
            health.append(f"{view.offline} partitions offline  ", style="bold red")
        if view.under_replicated:
            health.append(f"{view.under_replicated} under-replicated  ", style="red")
        if not view.offline and not view.under_replicated:
            health.append("all partitions in sync", style="green")
        slow = Text(no_wrap=True, overflow="ellipsis")
        if note:
            slow.append(note, style="red")
        elif view.slow:
            slow.append("slow: ", style="bold yellow")
            slow.append("; ".join(shown(one) for one in view.slow), style="yellow")
        else:
            slow.append("nobody is slow", style="dim")
        return Group(state, flow, health, slow)


def _shares(room: int, wanted: list[int]) -> list[int]:
    """Lines for each table: what it needs, and of what is left over the others take."""
    counts = [0] * len(wanted)
    left = max(0, room)
    while left and any(counts[at] < want for at, want in enumerate(wanted)):
        for at, want in enumerate(wanted):
            if left and counts[at] < want:
                counts[at] += 1
                left -= 1
    return counts


def _brokers(rows: Sequence[BrokerRow], title: str, expand: bool) -> Any:
    table = _table(
        title,
        expand,
        ("broker", "address"),
        ("leads", "replicas", "not ISR", "in/s", "size", "answer ms"),
    )
    for row in rows:
        style = "red" if not row.is_up or row.answer_ms is None else "yellow" if row.slow else ""
        table.add_row(
            f"{row.node_id}{'*' * row.is_controller}",
            shown(row.address) if row.is_up else f"{shown(row.address)} (down)",
            f"{row.leads:,}",
            f"{row.replicas:,}",
            f"{row.out_of_sync:,}",
            rate(row.in_per_s),
            "-" if row.size_bytes is None else size_text(row.size_bytes),
            "-" if row.answer_ms is None else f"{row.answer_ms:.1f}",
            style=style,
        )
    return table


def _topics(rows: Sequence[TopicRow], title: str, expand: bool) -> Any:
    table = _table(
        title,
        expand,
        ("topic", "led by"),
        ("parts", "in/s", "bytes/s", "out/s", "size", "not ISR"),
    )
    for row in rows:
        led = ",".join(map(str, row.leaders[:4])) + ("…" if len(row.leaders) > 4 else "")
        table.add_row(
            shown(row.topic),
            led or "nobody",
            f"{row.partitions:,}",
            rate(row.in_per_s),
            bytes_rate(row.bytes_per_s),
            rate(row.out_per_s),
            size_text(row.size_bytes),
            f"{row.under_replicated:,}",
            style="bold red" if row.offline else "red" if row.under_replicated else "",
        )
    return table


def _groups(rows: Sequence[GroupRow], title: str, expand: bool) -> Any:
    table = _table(title, expand, ("group", "state"), ("lag", "lag s", "out/s"))
    for row in rows:
        table.add_row(
            shown(row.group),
            row.state,
            f"{row.lag:,}",
            "?" if row.seconds is None else f"{row.seconds:,.1f}",
            rate(row.out_per_s),
            style="yellow" if row.slow else "",
        )
    return table


_DRAWN: dict[str, Callable[..., Any]] = {"brokers": _brokers, "topics": _topics, "groups": _groups}


def _table(title: str, expand: bool, texts: Sequence[str], numbers: Sequence[str]) -> Table:
    table = Table(
        title=title, title_justify="left", title_style="bold", box=None, expand=expand, padding=(0, 1, 0, 0),
        header_style="dim",
    )  # fmt: skip
    for position, name in enumerate(texts):
        ratio = None if name == "broker" or not expand else 3 if position == 0 else 2
        table.add_column(name, no_wrap=True, overflow="ellipsis", ratio=ratio)
    for name in numbers:
        table.add_column(name, no_wrap=True, justify="right")
    return table


def _title(name: str, rows: Sequence[Row], total: int, first: int) -> str:
    if len(rows) == total:
        return f"{name} ({total})"
    return f"{name} ({first + 1}-{first + len(rows)} of {total})" if rows else f"{name} ({total}, no room)"


def _name(row: Row) -> tuple[int, str]:
    if isinstance(row, BrokerRow):
        return row.node_id, ""
    return 0, row.topic if isinstance(row, TopicRow) else row.group


def rate(value: float | None) -> str:
    """1234.5 -> 1,234; small ones with a digit more."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 10 or value == 0 else f"{value:.1f}"


def bytes_rate(value: float | None) -> str:
    return "-" if value is None else f"{size_text(round(value))}/s"


def spark(values: Sequence[float], width: int) -> str:
    """The last values as a line of blocks, the highest of them full."""
    last = values[-width:] if width > 0 else []
    most = max(last, default=0.0)
    if not most:
        return SPARKS[0] * len(last)
    return "".join(SPARKS[min(len(SPARKS) - 1, int(value / most * (len(SPARKS) - 1) + 0.5))] for value in last)
