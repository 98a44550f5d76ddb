"""Text for people at a terminal, and for the file or pipe in its place: tables, sizes, styles."""

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

PLAIN_WIDTH = 200
"""Columns for output that goes to a file or a pipe, where nothing may be folded."""


def console() -> "Console":
    from rich.console import Console

    return (
        Console(highlight=False, color_system="auto" if has_styles() else None)
        if sys.stdout.isatty()
        else Console(highlight=False, width=PLAIN_WIDTH)
    )


def print_table(columns: Sequence[str], rows: Sequence[Sequence[object]], *, numbers: Sequence[str] = ()) -> None:
    """A light table; columns in `numbers` are aligned to the right.

    Nothing is cut off: on a narrow terminal a line that wraps is better than a number that is not there.
    """
    table = [tuple(columns), *(tuple(shown(str(cell)) for cell in row) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*table)]
    to_right = [column in numbers for column in columns]
    for position, row in enumerate(table):
        cells = (cell.rjust(w) if right else cell.ljust(w) for cell, w, right in zip(row, widths, to_right))
        line = "  ".join(cells).rstrip()
        print(f"\033[1m{line}\033[0m" if position == 0 and has_styles() else line)


def has_styles() -> bool:
    """Whether stdout is a terminal that may be sent bold letters and colours."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def can_show(text: str) -> bool:
    """Whether stdout has these letters."""
    try:
        text.encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return False
    return True


def shown(text: str) -> str:
    """A name as it may be shown: clients choose some, and they may hold what moves a terminal's cursor."""
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def size_text(size_bytes: int) -> str:
    """1,234,567 -> 1.2 MB."""
    if size_bytes < 0:
        return "?"
    size = float(size_bytes)
    for unit in ("B", "KB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"
