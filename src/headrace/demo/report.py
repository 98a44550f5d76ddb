"""The run as one HTML file: the verdict and its figures first, then the pictures, then what happened and where."""

import platform
from collections.abc import Sequence
from html import escape
from pathlib import Path

from headrace.demo.charts import line_chart, stacked_bars
from headrace.demo.check import Check
from headrace.demo.events import CATEGORIES, DUPLICATE, GOOD, KINDS, LATE, MALFORMED, STALE
from headrace.demo.status import GroupState, Series, Status
from headrace.version import __version__

STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #667; --card: #8881; --good: #047857; --bad: #dc2626; }
@media (prefers-color-scheme: dark) { :root { --soft: #a3a3b0; --good: #34d399; --bad: #f87171; } }
* { box-sizing: border-box; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 980px; margin: 2rem auto; padding: 0 1rem; }
h1 { margin-bottom: 0; line-height: 1.2; } h2 { margin: 2rem 0 .5rem; font-size: 1.1rem; }
h3 { margin: 0 0 .3rem; font-size: .95rem; }
.soft, small { color: var(--soft); } small { display: block; font-size: 13px; line-height: 1.35; }
.verdict { font-size: 1.25rem; font-weight: 600; margin: 1rem 0; }
.kept { color: var(--good); } .broken { color: var(--bad); }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(135px, 1fr)); gap: .7rem; margin: 1rem 0; }
.tile, .chart { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: .7rem .8rem; }
.tile b { display: block; font-size: 1.5rem; line-height: 1.25; white-space: nowrap; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 400px), 1fr)); gap: .7rem; }
table { border-collapse: collapse; width: 100%; }
td, th { text-align: left; padding: .3rem .6rem .3rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }
td.at { white-space: nowrap; width: 1%; font-variant-numeric: tabular-nums; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; }
td.n:last-child, th.n:last-child { padding-right: 0; } td:last-child:not(.n) { overflow-wrap: anywhere; }
dt { font-weight: 600; margin-top: .5rem; } dd { margin: 0; }
svg { width: 100%; height: auto; display: block; }
svg .t { font: 11px system-ui, sans-serif; fill: var(--soft); } svg .g { stroke: var(--line); }
svg .m { stroke: var(--bad); stroke-dasharray: 4 3; stroke-width: 1.5; }
.legend { margin: .3rem 0 0; color: var(--soft); font-size: 13px; }
.legend span { margin-right: 1rem; display: inline-block; }
.legend i { display: inline-block; width: .7rem; height: .7rem; margin-right: .35rem; border-radius: 2px; }
.legend i.m { width: 0; height: .9rem; border-left: 2px dashed var(--bad); border-radius: 0; vertical-align: middle; }
@media (max-width: 560px) {
  body { margin: 1rem auto; padding: 0 .8rem; }
  .checks td { display: block; width: auto; border: 0; padding: 0; }
  .checks tr { display: block; border-bottom: 1px solid var(--line); padding: .5rem 0; }
  .checks th { display: none; }
  .members { font-size: 13px; }
}
@media print {
  :root { color-scheme: light; --soft: #444; }
  body { margin: 0; max-width: none; font-size: 11pt; print-color-adjust: exact; -webkit-print-color-adjust: exact; }
  .tile, .chart, tr, dt, dd { break-inside: avoid; } h2, h3, dt { break-after: avoid; }
  .charts { grid-template-columns: 1fr 1fr; } .tiles { grid-template-columns: repeat(3, 1fr); }
  .tile b { font-size: 14pt; }
}
"""

KINDS_TOLD = {
    GOOD: "an event as it should be",
    LATE: "happened up to two seconds before it was sent",
    DUPLICATE: "the same event once more",
    STALE: "so old that the pipeline must leave it out",
    MALFORMED: "no valid event: it must be set aside, and nothing else with it",
}
TERMS = (
    ("acknowledged", "The brokers have answered that the event is on the disks of all replicas in sync (acks=all)."),
    ("wait for an acknowledgement", "From sending a batch of events to that answer. While no broker leads, it waits."),
    (
        "kill -9",
        "A process is ended without a chance to write anything. Other brokers take over what one led; another Spark"
        " driver goes on from the checkpoints of the one before.",
    ),
    ("exactly once", "Nothing missing and nothing doubled, for a reader of committed records, whatever was killed."),
    (
        "recovery",
        "From the kill until events sent after it were acknowledged in every partition that the broker had led.",
    ),
    (
        "lag",
        "How many records a group has yet to commit. Spark commits when a micro-batch is done, so its lag has teeth.",
    ),
    ("micro-batch", "The piece of the feed that Spark works on in one go."),
    ("window", "Five seconds of events by when they happened, added up per category."),
    (
        "watermark",
        "The time before which Spark expects no more events. When it has passed a window's end, that is written.",
    ),
    (
        "queue, pub/sub",
        "A queue's workers share one group, each event goes to one. Each subscriber has a group, and gets all.",
    ),
)


def write_report(path: Path, status: Status, checks: Sequence[Check], facts: Sequence[tuple[str, str]]) -> None:
    path.write_text(report(status, checks, facts), encoding="utf-8")


def report(status: Status, checks: Sequence[Check], facts: Sequence[tuple[str, str]]) -> str:
    kept = all(check.kept for check in checks)
    verdict = "Every event is accounted for." if kept else "Not every promise was kept."
    kinds = [(kind, f"{status.kinds[kind]:,}", KINDS_TOLD[kind]) for kind in KINDS]
    body = "\n".join(
        [
            f'<h1>Headrace demo</h1><p class="soft">version {__version__}, Python {platform.python_version()},'
            f" {escape(platform.platform())}</p>",
            f'<p class="verdict {"kept" if kept else "broken"}">{verdict}</p>',
            _tiles(status, checks),
            _section("What was promised, and found", _checks(checks)),
            _section("How it went", f'<div class="charts">{"".join(_charts(status))}</div>'),
            _section("What was sent", _rows(kinds, ("", "n", ""))),
            _section("Who got what", _members(status)),
            _section("What happened", _rows([(f"{at_s:z.1f} s", text) for at_s, text in status.notes], ("at", ""))),
            _section("The run", _rows(facts, ("", ""))),
            _section("Words", _terms()),
        ]
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><meta name="viewport"'
        ' content="width=device-width, initial-scale=1"><title>Headrace'
        f" demo</title><style>{STYLE}</style></head>\n<body>\n{body}\n</body></html>\n"
    )


# -- figures


def _tiles(status: Status, checks: Sequence[Check]) -> str:
    lost = max((check.missing for check in checks), default=0)
    tiles = [
        (f"{status.sent:,}", "events", "acknowledged"),
        (f"{lost:,}", "lost", "acknowledged, and not received by some group"),
        (f"{status.slowest_s * 1000:,.0f} ms", "longest wait", "for an acknowledgement"),
    ]
    if status.recoveries_s:
        tiles.append((f"{max(status.recoveries_s):.1f} s", "recovery", "after kill -9 of a broker"))
    if status.fed_s:
        tiles.append((f"{status.sent / status.fed_s:,.0f}", "events/s", "on average, while the feed ran"))
    if status.first_window_s is not None:
        tiles.append((f"{status.first_window_s:.1f} s", "first window", "out of Spark, after the start"))
    cells = (
        f'<div class="tile"><b>{value}</b>{escape(name)}<small>{escape(what)}</small></div>'
        for value, name, what in tiles
    )
    return f'<div class="tiles">{"".join(cells)}</div>'


def _charts(status: Status) -> list[str]:
    marks = [(at_s, text) for at_s, text in status.notes if "kill -9" in text]
    found: list[tuple[str, str, str]] = []

    def lines(title: str, told: str, series: dict[str, Series], unit: str) -> None:
        found.append((title, told, line_chart(series, unit=unit, marks=marks)))

    lines("Events per second", "as they were acknowledged", {"acknowledged": status.rates}, "events/s")
    lines("Wait for an acknowledgement", "the longest of each half second", {"longest wait": status.waits}, "ms")
    groups, of_spark = ([g for g in status.groups if (g.role == "Spark") is is_spark] for is_spark in (False, True))
    lines("Lag of the groups", "records that a group has not committed yet", _lags(groups), "records")
    if status.queries:
        durations = {f"{q.name} → {q.target}": q.durations for q in status.queries.values()}
        lines("Spark's lag", "commits come once per micro-batch", _lags(of_spark), "records")
        lines("Spark's micro-batches", "how long each took, when it was done", durations, "s")
        sales = stacked_bars(_sales(status), CATEGORIES, unit="€")
        found.append(("Sales per window", "as they came out of the pipeline", sales))
    return [
        f'<div class="chart"><h3>{escape(title)}</h3><small>{escape(told)}</small>{drawn}</div>'
        for title, told, drawn in found
    ]


def _lags(groups: Sequence[GroupState]) -> dict[str, Series]:
    return {f"{group.name} ({group.role})": group.lags for group in groups if group.lags}


def _sales(status: Status) -> list[tuple[str, dict[str, float]]]:
    found = []
    for start_ms, row in sorted(status.windows.items()):
        seconds = start_ms // 1000
        label = f"{seconds // 3600 % 24:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
        found.append((label, {category: cents / 100 for category, (_, _, cents) in row.items()}))
    return found


# -- tables


def _section(title: str, content: str) -> str:
    return f"<h2>{escape(title)}</h2>\n{content}"


def _checks(checks: Sequence[Check]) -> str:
    rows = "".join(
        f'<tr><td class="at {"kept" if check.kept else "broken"}"><b>{"kept" if check.kept else "BROKEN"}</b></td>'
        f"<td><b>{escape(check.name)}</b></td><td>{escape(check.detail)}</td></tr>"
        for check in checks
    )
    return f'<table class="checks"><tr><th></th><th>promise</th><th>found</th></tr>{rows}</table>'


def _rows(rows: Sequence[Sequence[str]], classes: Sequence[str]) -> str:
    cells = (
        "".join(f'<td class="{name}">{escape(text)}</td>' for text, name in zip(row, classes, strict=True))
        for row in rows
    )
    return f"<table>{''.join(f'<tr>{row}</tr>' for row in cells)}</table>"


def _members(status: Status) -> str:
    rows = [
        f"<tr><td>{escape(group.name)}<small>{escape(group.role)}</small></td><td>{escape(name)}</td>"
        f"<td>{', '.join(map(str, partitions)) or '-'}</td><td class='n'>{got:,}</td></tr>"
        for group in status.groups
        for name, partitions, got in group.members
    ]
    return (
        "<table class='members'><tr><th>group</th><th>member</th><th>partitions<small>at the end</small></th>"
        f"<th class='n'>records</th></tr>{''.join(rows)}</table>"
    )


def _terms() -> str:
    return f"<dl>{''.join(f'<dt>{escape(term)}</dt><dd>{escape(told)}</dd>' for term, told in TERMS)}</dl>"
