"""Charts as SVG, by hand: a report must be one file that opens anywhere."""

from collections.abc import Mapping, Sequence
from html import escape
from math import ceil

WIDTH, HEIGHT = 860, 240
LEFT, RIGHT, TOP, BOTTOM = 64, 22, 14, 30
DOTS_MAX = 60
"""Up to so many points of a line are marked: each is something that happened."""
STEPS_S = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600)
PALETTE = ("#2563eb", "#d97706", "#059669", "#db2777", "#7c3aed", "#0891b2", "#65a30d")

Points = Sequence[tuple[float, float]]


def line_chart(series: Mapping[str, Points], *, unit: str, marks: Sequence[tuple[float, str]] = ()) -> str:
    """Lines over seconds since the start; `marks` are moments with a name."""
    points = [point for line in series.values() for point in line]
    if not points:
        return "<p>nothing was measured</p>"
    right = max(max(x for x, _ in points), 1e-9)
    top = nice_top(max(y for _, y in points))
    marks = [mark for mark in marks if 0 <= mark[0] <= right]
    parts = [*_frame(top, unit), *_seconds(right), *_marks(marks, right)]
    for (name, line), colour in zip(series.items(), PALETTE * len(series)):
        path = " ".join(f"{_x(x, right):.1f},{_y(y, top):.1f}" for x, y in line)
        if len(line) <= DOTS_MAX:
            parts += [f'<circle cx="{_x(x, right):.1f}" cy="{_y(y, top):.1f}" r="2.6" fill="{colour}"/>' for x, y in line]
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.8"><title>{escape(name)}</title></polyline>')
    return _svg(parts) + _legend(list(series), marks)


def stacked_bars(columns: Sequence[tuple[str, Mapping[str, float]]], names: Sequence[str], *, unit: str) -> str:
    """One bar per column, its parts on top of one another."""
    if not columns:
        return "<p>no window has ended</p>"
    top = nice_top(max(sum(parts.values()) for _, parts in columns))
    width = (WIDTH - LEFT - RIGHT) / len(columns)
    parts = _frame(top, unit)
    every = max(1, len(columns) // 8)
    for place, (label, values) in enumerate(columns):
        x, below = LEFT + place * width, 0.0
        for name, colour in zip(names, PALETTE):
            value = values.get(name, 0.0)
            y = _y(below + value, top)
            title = f"{label} {name}: {value:,.2f} {unit}"
            parts.append(
                f'<rect x="{x + 1:.1f}" y="{y:.1f}" width="{max(1.0, width - 2):.1f}" height="{max(0.0, _y(below, top) - y):.1f}" '
                f'fill="{colour}"><title>{escape(title)}</title></rect>'
            )
            below += value
        if place % every == 0:
            parts.append(f'<text x="{x:.1f}" y="{HEIGHT - 10}" class="t">{escape(label)}</text>')
    return _svg(parts) + _legend(names)


def nice_top(value: float) -> float:
    """The round number above a value that an axis ends with."""
    if value <= 0:
        return 1.0
    step = 1.0
    while step * 10 <= value:
        step *= 10
    while step > value:
        step /= 10
    return next(step * factor for factor in (1, 2, 5, 10) if step * factor >= value)


def _x(seconds: float, right: float) -> float:
    return LEFT + seconds / right * (WIDTH - LEFT - RIGHT)


def _y(value: float, top: float) -> float:
    return TOP + (1 - value / top) * (HEIGHT - TOP - BOTTOM)


def _frame(top: float, unit: str) -> list[str]:
    parts = []
    for quarter in range(5):
        value = top * quarter / 4
        y = _y(value, top)
        text = f"{value:,.0f}" if top >= 4 else f"{value:.2f}"
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" class="g"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end" class="t">{text}</text>')
    parts.append(f'<text x="{LEFT}" y="{TOP - 3}" class="t">{escape(unit)}</text>')
    return parts


def _seconds(right: float) -> list[str]:
    """Round times, at most eight of them."""
    step = next((step for step in STEPS_S if right / step < 8), 3600 * ceil(right / 3600 / 7))
    return [
        f'<text x="{_x(at, right):.1f}" y="{HEIGHT - 10}" text-anchor="middle" class="t">{at:,} s</text>'
        for at in range(0, int(right) + 1, step)
    ]


def _marks(marks: Sequence[tuple[float, str]], right: float) -> list[str]:
    parts = []
    for at, name in marks:
        x = _x(at, right)
        parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}" class="m"><title>{escape(name)}</title></line>')
    return parts


def _svg(parts: Sequence[str]) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img">{"".join(parts)}</svg>'


def _legend(names: Sequence[str], marks: Sequence[tuple[float, str]] = ()) -> str:
    items = (f'<span><i style="background:{colour}"></i>{escape(name)}</span>' for name, colour in zip(names, PALETTE * len(names)))
    moments = (f'<span><i class="m"></i>{escape(name)}</span>' for _, name in marks)
    return f'<p class="legend">{"".join((*items, *moments))}</p>'
