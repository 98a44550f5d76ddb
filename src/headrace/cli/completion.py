"""Names for the shell's tab key: topics and groups, as brokers tell them. Silent where none answers in time."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import typer

from headrace.cli.command_config import read_command_config
from headrace.client.admin.admin import Admin
from headrace.client.admin.groups import Groups
from headrace.client.net.address import DEFAULT_BOOTSTRAP
from headrace.client.security.channel import PLAINTEXT

PATIENCE_S = 2.0
"""A shell that hangs on a key is worse than one that completes nothing."""


def topic_names(context: typer.Context, incomplete: str) -> list[str]:
    async def ask(admin: Admin) -> list[str]:
        return [topic.name for topic in await admin.list_topics(include_internal=incomplete.startswith("_"))]

    return _named(context, incomplete, ask)


def group_names(context: typer.Context, incomplete: str) -> list[str]:
    async def ask(admin: Admin) -> list[str]:
        return [group.group_id for group in await Groups(admin).list_groups()]

    return _named(context, incomplete, ask)


def _named(context: typer.Context, incomplete: str, ask: Callable[[Admin], Awaitable[list[str]]]) -> list[str]:
    bootstrap = context.params.get("bootstrap") or os.environ.get("HEADRACE_BOOTSTRAP") or DEFAULT_BOOTSTRAP
    given = context.params.get("names") or ()

    async def found() -> list[str]:
        config = context.params.get("command_config") or os.environ.get("HEADRACE_COMMAND_CONFIG")
        security = read_command_config(Path(config)) if config else PLAINTEXT
        async with asyncio.timeout(PATIENCE_S), Admin(bootstrap, security=security) as admin:
            return await ask(admin)

    try:
        names = asyncio.run(found())
    except Exception:
        return []  # whatever it is, the command itself will say it
    return sorted(name for name in names if name.startswith(incomplete) and name not in given)
