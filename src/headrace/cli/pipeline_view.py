"""How a run looks: a live table on terminals, a line now and then elsewhere."""

import sys
import time
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self

from headrace.cli.dump.report import counted
from headrace.terminal import print_table, shown

if TYPE_CHECKING:
    from rich.console import Group
    from rich.live import Live

LINE_EVERY_S = 5.0
BAR_CELLS = 30
COUNTS = ("READ", "WRITTEN", "DEAD")
"""Dead letters are values that could not be read, and went to a topic of their own."""


class Run(Protocol):
    """What a display wants to know of a run."""

    @property
    def info(self) -> Any: ...


class RunDisplay:
    """Shows snapshots of a run: those of this process, or those that the registry has."""

    def __init__(self, *, quiet: bool) -> None:
        self.quiet = quiet
        self.live: Live | None = None
        self.title = ""
        self._line_s = 0.0
        self._states: dict[str, str] = {}

    def __enter__(self) -> Self:
        if not self.quiet and sys.stdout.isatty():
            from rich.live import Live

            self.live = Live(refresh_per_second=4, transient=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.live is not None:
            self.live.stop()

    def begin(self, run: Run) -> None:
        self.title = f"{run.info.pipeline} ({run.info.mode}, {run.info.master}), run {run.info.run_id}"

    def update(self, snapshot: Mapping[str, Any]) -> None:
        if self.quiet:
            return
        if self.live is not None:
            self.live.start()
            self.live.update(live_view(self.title, snapshot))
            return
        states = {query["sink"]: query["state"] + query["error"] for query in snapshot["queries"]}
        if states != self._states or time.monotonic() - self._line_s >= LINE_EVERY_S:
            self._states, self._line_s = states, time.monotonic()
            print(line(snapshot), flush=True)

    def show(self, text: str) -> None:
        """Rows of a console sink, above the table where there is one."""
        if self.live is not None and self.live.is_started:
            self.live.console.print(text, markup=False, highlight=False)
        else:
            print(text, file=sys.stderr if self.quiet else sys.stdout, flush=True)

    def finish(self, snapshot: Mapping[str, Any]) -> None:
        """The figures that stay."""
        queries = snapshot.get("queries", [])
        rows = [
            (q["sink"], q["state"], q["batches"], *row_counts(q), f"{q['rows_per_s']:,.0f}", q["target"])
            for q in queries
        ]
        if rows:
            print_table(
                ("SINK", "STATE", "BATCHES", *COUNTS, "ROWS/S", "TO"), rows, numbers=("BATCHES", *COUNTS, "ROWS/S")
            )
        for text in dead_letter_lines(queries):
            print(shown(text))
        for name, counts in expectation_counts(queries).items():
            if counts["failed"]:
                print(f"{shown(name)}: not met by {counts['failed']:,} of {counts['rows']:,} rows")
        print(
            f"{snapshot.get('pipeline', self.title)}: {snapshot['state']} after"
            f" {age_text(snapshot.get('elapsed_s', 0.0))}"
        )


def live_view(title: str, snapshot: Mapping[str, Any]) -> "Group":
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for name, justify in (
        ("SINK", "left"),
        ("STATE", "left"),
        ("BATCH", "right"),
        *((name, "right") for name in COUNTS),
        ("ROWS/S", "right"),
        ("TOOK", "right"),
        ("STATE ROWS", "right"),
        ("WATERMARK", "left"),
    ):
        table.add_column(name, justify=justify, no_wrap=True)  # type: ignore[arg-type]
    for query in snapshot["queries"]:
        batch = str(query["batch"]) if query["batch"] >= 0 else "-"
        table.add_row(
            Text(query["sink"]), state_text(query), batch, *row_counts(query), f"{query['rows_per_s']:,.0f}",
            f"{query['batch_ms']:,} ms", f"{query['state_rows']:,}", query["watermark"][:19].replace("T", " "),
        )  # fmt: skip
    parts: list[Any] = [Text(f"{title}  {snapshot['state']}  {age_text(snapshot['elapsed_s'])}", style="bold"), table]
    if snapshot["mode"] == "bounded":
        parts.append(Text(bar(snapshot["fraction"], snapshot["eta_s"])))
    for name, counts in expectation_counts(snapshot["queries"]).items():
        style = "yellow" if counts["failed"] else "dim"
        parts.append(Text(f"  {name}: {counts['failed']:,} of {counts['rows']:,} rows do not meet it", style=style))
    parts += [Text(f"  {q['sink']}: {q['error']}", style="red") for q in snapshot["queries"] if q["error"]]
    return Group(*parts)


def state_text(query: Mapping[str, Any]) -> str:
    if query["state"] == "waiting":
        wait_s = max(0, query["retry_at_ms"] - time.time_ns() // 1_000_000) / 1000
        return f"retry {query['attempts']} in {wait_s:.0f} s"
    return str(query["state"])


def bar(fraction: float | None, eta_s: float | None) -> str:
    """[#####.....] 50%, 12 s left."""
    if fraction is None:
        return f"[{'?' * BAR_CELLS}] how much there is to do is not known yet"
    full = int(fraction * BAR_CELLS)
    left = f", {age_text(eta_s)} left" if eta_s is not None and fraction < 1 else ""
    return f"[{'#' * full}{'.' * (BAR_CELLS - full)}] {fraction:4.0%}{left}"


def line(snapshot: Mapping[str, Any]) -> str:
    """One line for logs."""
    read, written, speed = totals(snapshot)
    counts = f"{read} rows read, {written} written, {speed} rows/s"
    parts = [f"{age_text(snapshot.get('elapsed_s', 0.0))} {snapshot['state']}: {counts}"]
    if snapshot.get("fraction") is not None:
        eta = snapshot.get("eta_s")
        parts.append(f"{snapshot['fraction']:.0%}" + (f", {age_text(eta)} left" if eta else ""))
    for query in snapshot["queries"]:
        batch = f" batch {query['batch']}" if query["batch"] >= 0 else ""
        mark = f" ({query['error']})" if query["error"] else ""
        parts.append(f"{query['sink']} {state_text(query)}{batch}{mark}")
    return "; ".join(parts)


def totals(progress: Mapping[str, Any]) -> tuple[str, str, str]:
    """Rows read, rows written and rows a second, of all sinks together."""
    queries = progress.get("queries", [])
    return (
        f"{sum(q['rows_in'] for q in queries):,}",
        f"{sum(max(q['rows_out'], 0) for q in queries):,}",
        f"{sum(q['rows_per_s'] for q in queries):,.0f}",
    )


def row_counts(query: Mapping[str, Any]) -> tuple[str, str, str]:
    """Read, written (- where nobody counts, as on the screen) and dead letters."""
    written = f"{query['rows_out']:,}" if query["rows_out"] >= 0 else "-"
    return f"{query['rows_in']:,}", written, f"{sum(query.get('dead_letters', {}).values()):,}"


def dead_letter_lines(queries: list[dict[str, Any]]) -> list[str]:
    """Each sink reads for itself, so that one bad value makes a letter for each: said, lest they be taken for many."""
    by_source: dict[str, list[int]] = {}
    for query in queries:
        for source, count in query.get("dead_letters", {}).items():
            by_source.setdefault(source, []).append(count)
    return [
        f"{source}: {counted(sum(counts), 'dead letter')}"
        + (f", one for each bad value and each of the {len(counts)} sinks that read it" if len(counts) > 1 else "")
        for source, counts in by_source.items()
        if any(counts)
    ]


def expectation_counts(queries: list[dict[str, Any]]) -> dict[str, dict[str, int]]:
    """Each expectation once: several sinks may read the part it belongs to, and count the same rows."""
    found: dict[str, dict[str, int]] = {}
    for query in queries:
        for name, counts in query["expectations"].items():
            if name not in found or counts["rows"] > found[name]["rows"]:
                found[name] = counts
    return found


def age_text(seconds: float) -> str:
    """75.2 -> 1:15 min."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(int(seconds), 60)
    if minutes < 60:
        return f"{minutes}:{rest:02} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02} h"
