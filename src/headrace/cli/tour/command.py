"""The command: which pages, on a terminal one after the other, and where their pictures go."""

import io
import sys
import tempfile
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from headrace.cli.output import JSON, print_json
from headrace.client.errors import ClientError

if TYPE_CHECKING:
    from headrace.cli.tour.stage import Stage


class Page(NamedTuple):
    title: str
    home: str
    """Module and function, imported when the page is shown: other commands start without it."""


PAGES = {
    "partitions": Page("Topics, partitions and replicas", "topics:partitions"),
    "segments": Page("Segments and indexes", "topics:segments"),
    "records": Page("Records and offsets", "sending:records"),
    "leaders": Page("Leaders and followers", "topics:leaders"),
    "placement": Page("Partition assignment", "topics:placement"),
    "in-sync": Page("In-sync replicas", "in_sync:in_sync"),
    "committed": Page("Committed, and not committed yet", "in_sync:committed"),
    "commits": Page("Polling and commits", "reading:commits"),
    "groups": Page("Groups: queue, and publish/subscribe", "reading:groups"),
    "again": Page("Sending again", "sending:again"),
    "exactly-once": Page("Exactly once", "reading:exactly_once"),
    "balance": Page("The controller: brokers come and go", "controller:balance"),
    "metadata": Page("The controller: KRaft and ZooKeeper", "metadata:metadata"),
}


def tour(
    pages: list[str] = typer.Argument(
        None, metavar="PAGE", help=f"Only these pages: {', '.join(PAGES)}.", show_default=False
    ),
    svg: Annotated[
        Path | None, typer.Option("--svg", metavar="DIR", help="Draw what the pages show as pictures in this folder.")
    ] = None,
    as_json: bool = JSON,
) -> None:
    """Show the architecture on four brokers of its own.

    They run in a temporary folder and are removed at the end. On a terminal, Enter turns the page.
    """
    for name in pages or ():
        if name not in PAGES:
            raise ClientError(f"there is no page {name!r}; there are {', '.join(PAGES)}")
    if svg is not None:
        _make(svg)
    from headrace.cli.tour.stage import Stage
    from headrace.local_cluster.process import terminated_like_interrupted

    chosen = list(dict.fromkeys(pages or PAGES))
    with terminated_like_interrupted(), tempfile.TemporaryDirectory(prefix="headrace-tour-") as folder:
        stage = Stage(Path(folder), svg)
        try:
            stage.cluster.start()
            shown = [_turn(stage, name, last=name == chosen[-1], quiet=as_json) for name in chosen]
        except RuntimeError as error:
            raise ClientError(str(error)) from None
        finally:
            stage.cluster.close()
    if as_json:
        print_json(dict(zip(chosen, shown)))
    elif svg is not None:
        print(f"Pictures in {svg}: {', '.join(stage.pictures)}")


def _make(folder: Path) -> None:
    """Said before the tour and not after it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ClientError(f"--svg {folder} cannot be made: {error.strerror}") from None


def _turn(stage: "Stage", name: str, *, last: bool, quiet: bool) -> str:
    page = PAGES[name]
    show = _function(page.home)
    if quiet:
        written = io.BytesIO()  # records are written as bytes
        with io.TextIOWrapper(written, encoding="utf-8", write_through=True) as text, redirect_stdout(text):
            show(stage)
            return written.getvalue().decode()
    print(f"== {page.title}\n")
    show(stage)
    if not last and sys.stdin.isatty() and sys.stdout.isatty():
        typer.prompt("Enter: the next page", default="", show_default=False)
    return ""


def _function(home: str) -> "Callable[[Stage], None]":
    from importlib import import_module

    module, _, name = home.partition(":")
    found: Callable[[Stage], None] = getattr(import_module(f"headrace.cli.tour.{module}"), name)
    return found
