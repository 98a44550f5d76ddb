"""What can be wrong with a spec, and how it is said: file, line and key, what is there, and how to mend it."""

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Where:
    """A place in a file; `key` is the way to it from the top, such as sources.orders.topic. Lines count from 1."""

    file: Path
    line: int
    key: str

    def child(self, key: str, line: int | None = None) -> "Where":
        return Where(self.file, self.line if line is None else line, f"{self.key}.{key}" if self.key else key)


@dataclass(frozen=True, slots=True)
class Problem:
    where: Where
    message: str
    fix: str = ""

    def __str__(self) -> str:
        key = f"{self.where.key}: " if self.where.key else ""
        fix = f"\n    fix: {self.fix}" if self.fix else ""
        return f"{shown_path(self.where.file)}:{self.where.line}: {key}{self.message}{fix}"


class SpecInvalid(Exception):
    """Everything that is wrong, in the order of the file."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__(problems)
        self.problems = tuple(sorted(problems, key=lambda p: (str(p.where.file), p.where.line)))

    def __str__(self) -> str:
        return "\n".join(map(str, self.problems))


def shown_path(path: Path) -> str:
    """Relative to where the user stands, if that is shorter to read."""
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that was probably meant."""
    by_lower = {one.lower(): one for one in known}
    close = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.6)
    return by_lower[close[0]] if close else None


def no_column(where: Where, name: str, columns: Sequence[str]) -> Problem:
    """A column that is not there, in one line with the nearest that is."""
    by_last = {one.rpartition(".")[2]: one for one in reversed(columns)}
    likely = nearest(name.rpartition(".")[2], by_last)
    if likely is not None:
        meant = by_last[likely] if "." in name else likely
        return Problem(where, f"there is no column {name}; did you mean {meant!r}?")
    known = f"; columns: {', '.join(columns)}" if columns else ""
    return Problem(where, f"there is no column {name}{known}")


def choose(name: str, known: Sequence[str], what: str) -> str:
    """A fix for a name that is not known."""
    likely = nearest(name, known)
    if likely is not None:
        return f"did you mean {likely!r}?"
    return f"{what}: {', '.join(known)}" if known else f"there are no {what} yet"
