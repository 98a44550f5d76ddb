"""What commands share to talk to people and scripts: options, tables, JSON, sizes."""

import asyncio
import json
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, TypeVar

import typer

from headrace.cli.plain_help import CommandGroup
from headrace.client.admin.admin import Admin
from headrace.client.errors import ClientError, ConnectionRefused
from headrace.client.net.address import DEFAULT_BOOTSTRAP
from headrace.client.security.channel import PLAINTEXT, Security

T = TypeVar("T")

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
ANSWER_LIMIT_S = 3.0
"""A state is looked at when something is wrong: who does not answer in this time is shown so, and not waited for."""


def command_group(text: str, **options: Any) -> typer.Typer:
    """A group of commands. Help and errors are plain lines: boxes cut off long options on a narrow terminal and hide
    in a log what went wrong."""
    return CommandGroup(help=text, rich_markup_mode=None, **options)


def with_admin(bootstrap: str, work: Callable[[Admin], Coroutine[Any, Any, T]], **options: Any) -> T:
    """Run `work` with a connected Admin. A broker that is not there is explained. `options` are those of a Cluster."""

    async def connected() -> T:
        try:
            admin = await Admin(bootstrap, security=SECURITY.get(), **options).__aenter__()
        except ConnectionRefused as error:
            raise ClientError(f"{error}. Is a broker running? Start one with: headrace up") from None
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


def changes_text(changes: Mapping[str, str], unset: Sequence[str]) -> str:
    """What was done to options."""
    return ", ".join(
        [*(f"{key}={value}" for key, value in changes.items()), *(f"{key} back to its default" for key in unset)]
    )


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
    """The one document that `--json` puts on stdout; everything else goes to stderr."""
    print(json.dumps(value, indent=2), flush=True)
