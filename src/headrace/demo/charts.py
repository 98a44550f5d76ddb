"""Charts as SVG, by hand: a report must be one file that opens anywhere."""

from collections.abc import Mapping, Sequence
from html import escape
from math import ceil, floor, log10

WIDTH, HEIGHT = 440, 210
"""About what a phone has, so that letters are as large as they should be there, and two charts fit side by side on a
desk."""
LEFT, RIGHT, TOP, BOTTOM = 52, 18, 20, 26
TICKS = 5
BAR_LABELS, LABEL_WIDTH = 5, 52
DOTS_MAX = 60
"""Up to so many points of a line are marked: each is something that happened."""
STEPS_S = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600)
PALETTE = ("#3b82f6", "#d97706", "#059669", "#db2777", "#8b5cf6", "#0891b2", "#65a30d")
"""Seen on white and on black."""

Points = Sequence[tuple[float, float]]


def line_chart(series: Mapping[str, Points], *, unit: str, marks: Sequence[tuple[float, str]] = ()) -> str:
    """Lines over seconds since the start; `marks` are moments with a name."""
    points = [point for line in series.values() for point in line]
    if not points:
        return "<p>nothing was measured</p>"
    right = max(max(x for x, _ in points), 1e-9)
    ticks = nice_ticks(max(y for _, y in points))
    top = ticks[-1]
    marks = [mark for mark in marks if 0 <= mark[0] <= right]
    parts = [*_frame(ticks, unit), *_seconds(right), *_marks(marks, right)]
    for (name, line), colour in zip(series.items(), PALETTE * len(series)):
        path = " ".join(f"{_x(x, right):.1f},{_y(y, top):.1f}" for x, y in line)
        if len(line) <= DOTS_MAX:
            parts += [
                f'<circle cx="{_x(x, right):.1f}" cy="{_y(y, top):.1f}" r="2.6" fill="{colour}"/>' for x, y in line
            ]
        parts.append(
            f'<polyline points="{path}" fill="none" stroke="{colour}"'
            f' stroke-width="1.8"><title>{escape(name)}</title></polyline>'
        )
    return _svg(parts) + _legend(list(series), marks)


def stacked_bars(columns: Sequence[tuple[str, Mapping[str, float]]], names: Sequence[str], *, unit: str) -> str:
    """One bar per column, its parts on top of one another."""
    if not columns:
        return "<p>no window has ended</p>"
    ticks = nice_ticks(max(sum(parts.values()) for _, parts in columns))
    top = ticks[-1]
    width = (WIDTH - LEFT - RIGHT) / len(columns)
    parts = _frame(ticks, unit)
    every = ceil(len(columns) / BAR_LABELS)
    for place, (label, values) in enumerate(columns):
        x, below = LEFT + place * width, 0.0
        for name, colour in zip(names, PALETTE):
            value = values.get(name, 0.0)
            y = _y(below + value, top)
            title = f"{label} {name}: {value:,.2f} {unit}"
            parts.append(
                f'<rect x="{x + 1:.1f}" y="{y:.1f}" width="{max(1.0, width - 2):.1f}"'
                f' height="{max(0.0, _y(below, top) - y):.1f}" fill="{colour}"><title>{escape(title)}</title></rect>'
            )
            below += value
        if place % every == 0:
            middle = min(max(x + width / 2, LEFT), WIDTH - LABEL_WIDTH / 2)
            parts.append(
                f'<text x="{middle:.1f}" y="{HEIGHT - 8}" text-anchor="middle" class="t">{escape(label)}</text>'
            )
    return _svg(parts) + _legend(names)


def nice_ticks(value: float) -> list[float]:
    """Round numbers from 0 to the first that is not below the value, in equal steps."""
    if value <= 0:
        return [0.0, 1.0]
    rough = value / TICKS
    unit = 10.0 ** floor(log10(rough))
    step = next(unit * factor for factor in (1, 2, 2.5, 5, 10) if unit * factor >= rough * (1 - 1e-9))
    return [step * count for count in range(ceil(value / step - 1e-9) + 1)]


def tick_text(value: float, step: float) -> str:
    """With as many decimals as the step has: a label says where its line is."""
    decimals = next((count for count in range(6) if abs(step - round(step, count)) < step * 1e-6), 6)
    return f"{value:,.{decimals}f}"


def _x(seconds: float, right: float) -> float:
    return LEFT + seconds / right * (WIDTH - LEFT - RIGHT)


def _y(value: float, top: float) -> float:
    return TOP + (1 - value / top) * (HEIGHT - TOP - BOTTOM)


def _frame(ticks: Sequence[float], unit: str) -> list[str]:
    parts = []
    for value in ticks:
        y = _y(value, ticks[-1])
        text = tick_text(value, ticks[1] - ticks[0])
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" class="g"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end" class="t">{text}</text>')
    parts.append(f'<text x="{LEFT}" y="{TOP - 8}" class="t">{escape(unit)}</text>')
    return parts


def _seconds(right: float) -> list[str]:
    """Round times, at most eight of them."""
    step = next((step for step in STEPS_S if right / step < 8), 3600 * ceil(right / 3600 / 7))
    return [
        f'<text x="{_x(at, right):.1f}" y="{HEIGHT - 8}" text-anchor="middle" class="t">{at:,} s</text>'
        for at in range(0, int(right) + 1, step)
    ]


def _marks(marks: Sequence[tuple[float, str]], right: float) -> list[str]:
    parts = []
    for at, name in marks:
        x = _x(at, right)
        parts.append(
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"'
            f' class="m"><title>{escape(name)}</title></line>'
        )
    return parts


def _svg(parts: Sequence[str]) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img">{"".join(parts)}</svg>'


def _legend(names: Sequence[str], marks: Sequence[tuple[float, str]] = ()) -> str:
    items = (
        f'<span><i style="background:{colour}"></i>{escape(name)}</span>'
        for name, colour in zip(names, PALETTE * len(names))
    )
    moments = (f'<span><i class="m"></i>{escape(name)}</span>' for _, name in marks)
    return f'<p class="legend">{"".join((*items, *moments))}</p>'
