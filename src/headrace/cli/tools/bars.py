"""A progress bar on stderr for a person who waits, and nothing for a script."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Advance = Callable[[float, float, str], None]
"""How much is done, of how much, and what to say of it."""


@contextmanager
def bar(what: str, *, quiet: bool = False) -> Iterator[Advance]:
    """`with bar("export") as advance: advance(done, total, "1,000 records")`."""
    if quiet or not sys.stderr.isatty():
        yield lambda done, total, text: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[said]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(what, total=None, said="")
        yield lambda done, total, text: progress.update(task, completed=done, total=total, said=text)
