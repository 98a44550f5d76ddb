"""Pictures of numbers in characters: lines of little bars, and the same several rows high."""

from collections.abc import Sequence

BLOCKS = "▁▂▃▄▅▆▇█"
FULL = "█"


def sparkline(values: Sequence[float], width: int) -> str:
    """The last `width` values as little bars, the highest one full."""
    shown = list(values)[-width:]
    top = max(shown, default=0.0)
    if top <= 0:
        return BLOCKS[0] * len(shown)
    return "".join(BLOCKS[min(len(BLOCKS) - 1, int(value / top * (len(BLOCKS) - 1) + 0.5))] for value in shown)


def area(values: Sequence[float], width: int, height: int) -> list[str]:
    """All values as bars over `height` rows, from the top one down; where there are more than columns, each column has
    the highest of its share."""
    if width < 1 or height < 1 or not values:
        return [""] * max(0, height)
    columns = squeezed(values, width)
    top = max(columns)
    # In eighths of a row; what is not 0 is seen.
    heights = [max(1, round(value / top * height * 8)) if top > 0 and value > 0 else 0 for value in columns]
    rows = []
    for row in range(height - 1, -1, -1):
        filled = (min(8, max(0, eighths - 8 * row)) for eighths in heights)
        rows.append("".join(" " if eighths == 0 else BLOCKS[eighths - 1] for eighths in filled))
    return rows


def squeezed(values: Sequence[float], width: int) -> list[float]:
    """At most `width` values, the highest of each share."""
    count = len(values)
    if count <= width:
        return list(values)
    return [
        max(values[count * at // width : max(count * at // width + 1, count * (at + 1) // width)])
        for at in range(width)
    ]
