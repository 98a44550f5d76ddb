"""`headrace mirror`: topics of one cluster in another."""

import asyncio
import json
import re
import sys
import time
from pathlib import Path

import msgspec
import typer

from headrace.cli.command_config import read_command_config
from headrace.client.errors import ClientError, ConnectionRefused
from headrace.client.security.channel import PLAINTEXT
from headrace.tools.mirror.mirroring import Mirror, MirrorRequest, MirrorStatus

STATUS_S = 1.0


def mirror(
    topics: list[str] | None = typer.Argument(None, metavar="[TOPIC]...", help="What to copy.", show_default=False),
    source: str = typer.Option(..., "--source", metavar="HOST:PORT,...", help="Brokers to read from."),
    target: str = typer.Option(..., "--target", metavar="HOST:PORT,...", help="Brokers to write to."),
    pattern: str | None = typer.Option(
        None, "--pattern", metavar="REGEX", help="Copy topics whose whole name matches, also those that come later."
    ),
    prefix: str = typer.Option("", "--prefix", metavar="TEXT", help="Put this before names in the target."),
    groups: str | None = typer.Option(
        None, "--groups", metavar="REGEX", help="Translate what these groups have committed, as .* for all."
    ),
    start: str | None = typer.Option(
        None,
        "--from",
        metavar="WHERE",
        help="Where to begin what was never copied: earliest or latest [earliest, and only into empty partitions].",
    ),
    until_end: bool = typer.Option(
        False, "--until-end/--follow", help="Stop at what was there in the beginning; or go on until Ctrl-C."
    ),
    transactional: bool = typer.Option(
        True,
        "--transactions/--no-transactions",
        help="Copy exactly once, for readers with read_committed. Without, an interruption may double records.",
    ),
    committed: bool = typer.Option(
        True, "--committed/--uncommitted", help="Without records of transactions that are open or aborted."
    ),
    configs: bool = typer.Option(True, "--configs/--no-configs", help="Keep the options of topics alike."),
    name: str = typer.Option("", "--name", metavar="NAME", help="Tells mirrors between the same clusters apart."),
    codec: str = typer.Option("none", "--codec", "-z", metavar="CODEC", help="none, gzip, snappy, lz4 or zstd."),
    refresh: float = typer.Option(
        10.0, "--refresh", metavar="SECONDS", min=0.1, help="How often to look at topics, options and groups."
    ),
    source_config: Path | None = typer.Option(
        None, "--source-config", metavar="FILE", help="Settings of Kafka's clients for the source: TLS, logins."
    ),
    target_config: Path | None = typer.Option(None, "--target-config", metavar="FILE", help="The same for the target."),
    as_json: bool = typer.Option(False, "--json", help="Print the state as a JSON object per line."),
) -> None:
    """Copy topics to another cluster, and go on with what comes.

    Partitions, order, keys, values, headers and times are kept; topics are created, and follow the source in partitions
    and options. Where the copy is, is stored in the target with the records: kill it and start it again as you like.
    """
    request = checked(
        MirrorRequest(
            topics=tuple(topics or ()), pattern=pattern, prefix=prefix, name=name, groups=groups, until_end=until_end,
            start=start, transactional=transactional, configs=configs, committed=committed, codec=codec,
            refresh_s=refresh,
        )
    )  # fmt: skip
    shown = Shown(as_json)
    work = Mirror(
        request,
        source,
        target,
        PLAINTEXT if source_config is None else read_command_config(source_config),
        PLAINTEXT if target_config is None else read_command_config(target_config),
        shown.update,
    )
    try:
        status = asyncio.run(work.run())
    except ConnectionRefused as error:
        raise ClientError(f"{error}. Is a broker running there?") from None
    finally:
        shown.end()
    shown.finish(status)


def checked(request: MirrorRequest) -> MirrorRequest:
    """Raises ClientError for what cannot be meant."""
    if not request.topics and request.pattern is None:
        raise ClientError("name topics, or give --pattern, such as --pattern '.*' for all")
    if request.start not in (None, "earliest", "latest"):
        raise ClientError(f"--from {request.start}: write earliest or latest")
    if request.codec not in ("none", "gzip", "snappy", "lz4", "zstd"):
        raise ClientError(f"--codec {request.codec}: write none, gzip, snappy, lz4 or zstd")
    if not re.fullmatch(r"[a-zA-Z0-9._-]{0,60}", request.name):
        raise ClientError(f"--name {request.name}: letters, digits, dots, lines; at most 60")
    for option, text in (("--pattern", request.pattern), ("--groups", request.groups)):
        try:
            re.compile(text or "")
        except re.error as error:
            raise ClientError(f"{option} {text}: no regular expression: {error}") from None
    return request


class Shown:
    """What people and scripts see of a mirror at work."""

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json
        self._is_live = sys.stderr.isatty() and not as_json
        self._told = 0
        self._last = 0.0
        self._begun = time.monotonic()

    def update(self, status: MirrorStatus) -> None:
        if not self._as_json:
            for note in status.notes:
                print(f"{chr(13) * self._is_live}{note}", file=sys.stderr)
            status.notes.clear()
        now = time.monotonic()
        if now - self._last < STATUS_S:
            return
        self._last = now
        if self._as_json:
            self._print_json(status, done=False)
        elif self._is_live:
            speed = status.records / max(0.001, now - self._begun)
            line = f"{status.records:,} records copied, {status.lag:,} behind, {speed:,.0f} per second"
            print(f"\r{line:78}", end="", file=sys.stderr, flush=True)

    def end(self) -> None:
        if self._is_live:
            print("\r" + " " * 78 + "\r", end="", file=sys.stderr, flush=True)

    def finish(self, status: MirrorStatus) -> None:
        if self._as_json:
            self._print_json(status, done=True)
            return
        print(f"copied {status.records:,} records, {status.lag:,} behind")
        for group, partitions in sorted(status.groups.items()):
            print(f"  group {group}: {partitions} offset{'' if partitions == 1 else 's'} translated")

    def _print_json(self, status: MirrorStatus, *, done: bool) -> None:
        print(json.dumps({"done": done, **msgspec.to_builtins(status)}), flush=True)
        status.notes.clear()
