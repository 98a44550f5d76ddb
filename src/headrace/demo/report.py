"""The run as one HTML file: the verdict first, then the pictures, then what happened and where."""

import platform
from collections.abc import Sequence
from html import escape
from pathlib import Path

from headrace import __version__
from headrace.demo.charts import line_chart, stacked_bars
from headrace.demo.check import Check
from headrace.demo.events import CATEGORIES, KINDS
from headrace.demo.status import Status

STYLE = """
:root { color-scheme: light dark; --line: #8885; --soft: #777; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 900px; margin: 2rem auto; padding: 0 1rem; }
h1 { margin-bottom: 0; } h2 { margin: 2rem 0 .5rem; font-size: 1.1rem; }
table { border-collapse: collapse; width: 100%; overflow-wrap: anywhere; } td, th { text-align: left; padding: .3rem .6rem; border-bottom: 1px solid var(--line); vertical-align: top; }
td.at { white-space: nowrap; width: 1%; }
td.n { text-align: right; font-variant-numeric: tabular-nums; }
.verdict { font-size: 1.2rem; font-weight: 600; } .kept { color: #059669; } .broken { color: #dc2626; }
svg { width: 100%; height: auto; } svg .t { font: 11px system-ui, sans-serif; fill: var(--soft); } svg .g { stroke: var(--line); }
.legend i.m { width: 0; height: .9rem; border-left: 2px dashed #dc2626; border-radius: 0; vertical-align: middle; }
svg .m { stroke: #dc2626; stroke-dasharray: 4 3; stroke-width: 1.5; }
.legend { margin: 0; color: var(--soft); font-size: 13px; } .legend span { margin-right: 1rem; }
.legend i { display: inline-block; width: .7rem; height: .7rem; margin-right: .35rem; border-radius: 2px; }
.soft { color: var(--soft); }
"""


def write_report(path: Path, status: Status, checks: Sequence[Check], facts: Sequence[tuple[str, str]]) -> None:
    path.write_text(report(status, checks, facts), encoding="utf-8")


def report(status: Status, checks: Sequence[Check], facts: Sequence[tuple[str, str]]) -> str:
    kept = all(check.kept for check in checks)
    verdict = "Every event is accounted for." if kept else "Not every promise was kept."
    marks = [(at_s, text) for at_s, text in status.notes if "kill -9" in text]
    sections = [
        f'<h1>Headrace demo</h1><p class="soft">version {__version__}, Python {platform.python_version()}, {escape(platform.platform())}</p>',
        f'<p class="verdict {"kept" if kept else "broken"}">{verdict}</p>',
        _checks(checks),
        _section("Events per second", line_chart({"acknowledged": status.rates}, unit="events/s", marks=marks)),
        _section(
            "Lag: records that a group has not committed yet",
            line_chart({f"{g.name} ({g.role})": g.lags for g in status.groups if g.lags}, unit="records", marks=marks),
        ),
    ]
    if status.queries:
        durations = {f"{q.name} → {q.target}": q.durations for q in status.queries.values()}
        sections.append(_section("Spark: seconds per micro-batch", line_chart(durations, unit="s", marks=marks)))
        sections.append(_section("Sales per window, as they came out of the pipeline", stacked_bars(_sales(status), CATEGORIES, unit="€")))
    sections.append(_section("What was sent", _table([(kind, f"{status.kinds[kind]:,}") for kind in KINDS])))
    sections.append(_section("Who got what", _members(status)))
    sections.append(_section("What happened", _happenings(status)))
    sections.append(_section("The run", _table(facts)))
    body = "\n".join(sections)
    return f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>Headrace demo</title><style>{STYLE}</style></head>\n<body>\n{body}\n</body></html>\n'


def _section(title: str, content: str) -> str:
    return f"<h2>{escape(title)}</h2>\n{content}"


def _checks(checks: Sequence[Check]) -> str:
    rows = "".join(
        f'<tr><td class="{"kept" if check.kept else "broken"}">{"kept" if check.kept else "BROKEN"}</td>'
        f"<td>{escape(check.name)}</td><td>{escape(check.detail)}</td></tr>"
        for check in checks
    )
    return f"<table><tr><th></th><th>promise</th><th>found</th></tr>{rows}</table>"


def _table(rows: Sequence[tuple[str, str]]) -> str:
    return "<table>" + "".join(f"<tr><td>{escape(name)}</td><td>{escape(value)}</td></tr>" for name, value in rows) + "</table>"


def _happenings(status: Status) -> str:
    rows = (f'<tr><td class="at">{at_s:.1f} s</td><td>{escape(text)}</td></tr>' for at_s, text in status.notes)
    return f"<table>{''.join(rows)}</table>"


def _members(status: Status) -> str:
    rows = [
        f"<tr><td>{escape(group.name)}</td><td>{escape(group.role)}</td><td>{escape(name)}</td>"
        f"<td>{', '.join(map(str, partitions)) or '-'}</td><td class='n'>{got:,}</td></tr>"
        for group in status.groups
        for name, partitions, got in group.members
    ]
    return f"<table><tr><th>group</th><th></th><th>member</th><th>partitions at the end</th><th>records</th></tr>{''.join(rows)}</table>"


def _sales(status: Status) -> list[tuple[str, dict[str, float]]]:
    found = []
    for start_ms, row in sorted(status.windows.items()):
        seconds = start_ms // 1000
        label = f"{seconds // 3600 % 24:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
        found.append((label, {category: cents / 100 for category, (_, _, cents) in row.items()}))
    return found
