"""What commands share to talk to people and scripts: options, tables, JSON, sizes."""

import asyncio
import json
import os
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeVar

import typer

from headrace.cli.plain_help import CommandGroup
from headrace.client.address import DEFAULT_BOOTSTRAP
from headrace.client.admin import Admin
from headrace.client.errors import BrokerUnreachable, ClientError
from headrace.client.security import PLAINTEXT, Security

if TYPE_CHECKING:
    from rich.console import Console

T = TypeVar("T")

PLAIN_WIDTH = 200
"""Columns for output that goes to a file or a pipe, where nothing may be folded."""

BOOTSTRAP = typer.Option(
    DEFAULT_BOOTSTRAP,
    "--bootstrap",
    "--bootstrap-server",
    "-b",
    metavar="HOST:PORT,...",
    envvar="HEADRACE_BOOTSTRAP",
    help="Addresses of any brokers.",
)
JSON = typer.Option(False, "--json", help="Print JSON.")
YES = typer.Option(False, "--yes", "-y", help="Do not ask.")
SECURITY: ContextVar[Security] = ContextVar("SECURITY", default=PLAINTEXT)
"""How the running command connects, by its --command-config."""


def command_group(text: str, **options: Any) -> typer.Typer:
    """A group of commands. Help and errors are plain lines: boxes cut off long options on a narrow terminal and hide
    in a log what went wrong."""
    return CommandGroup(help=text, rich_markup_mode=None, **options)


def with_admin(bootstrap: str, work: Callable[[Admin], Coroutine[Any, Any, T]]) -> T:
    """Run `work` with a connected Admin. A broker that is not there is explained."""

    async def connected() -> T:
        try:
            admin = await Admin(bootstrap, security=SECURITY.get()).__aenter__()
        except BrokerUnreachable as error:
            hint = ". Is a broker running? Start one with: headrace up" if "connection refused" in str(error) else ""
            raise ClientError(f"{error}{hint}") from None
        async with admin.cluster:
            return await work(admin)

    return asyncio.run(connected())


def pairs(settings: Sequence[str], option: str = "--set", example: str = "retention.ms=3600000") -> dict[str, str]:
    """`name=value` texts as a map."""
    found = {}
    for text in settings:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise ClientError(f"{option} {text}: write {option} NAME=VALUE, such as {option} {example}")
        found[name.strip()] = value.strip()
    return found


def console() -> "Console":
    from rich.console import Console

    return Console(highlight=False, color_system="auto" if has_styles() else None) if sys.stdout.isatty() else Console(highlight=False, width=PLAIN_WIDTH)


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


def confirm(question: str, yes: bool) -> None:
    """Ask a person at a terminal before something is gone for good; a script is not asked."""
    if not yes and sys.stdin.isatty() and sys.stdout.isatty() and not typer.confirm(question):
        raise typer.Exit(1)


def print_deleted(kind: str, done: Mapping[str, bool], as_json: bool) -> None:
    """Which of them were there and are gone."""
    if as_json:
        print_json([{kind: name, "deleted": deleted} for name, deleted in done.items()])
        return
    for name, deleted in done.items():
        print(f"deleted {name}" if deleted else f"there is no {kind} {name}")


def print_json(value: object) -> None:
    print(json.dumps(value, indent=2))


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
