"""`headrace consume`: records of topics to standard output."""

import asyncio
import re
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import typer

from headrace.cli.completion import group_names, topic_names
from headrace.cli.output import BOOTSTRAP, SECURITY
from headrace.cli.records.filters import Test, where
from headrace.cli.records.output_lines import LETTERS_HELP, Write, formatted, json_lines, plain_lines
from headrace.cli.records.starts import start_of
from headrace.cli.records.typed_values import ALL_FORMATS_HELP, MESSAGE, REGISTRY, SCHEMA, Schemas
from headrace.client.admin.admin import Admin
from headrace.client.api import Consumer
from headrace.client.api.types import Record, TopicPartition
from headrace.client.errors import ClientError, ConnectionRefused
from headrace.tools.ranges import Start, ranges_of

POLL_S = 0.2
POLL_RECORDS = 5_000
JOIN_S = 30.0
"""How long a member that reads only up to the end waits for partitions: others may have them all."""


def consume(
    topics: list[str] = typer.Argument(..., metavar="TOPIC", help="What to read.", autocompletion=topic_names),
    start: str | None = typer.Option(
        None,
        "--from",
        metavar="WHERE",
        help="earliest, latest, an offset, -N for the last N of each partition, a time, or 2h for so long ago"
        " [earliest; with --group, where the group is]",
        show_default=False,
    ),
    count: int | None = typer.Option(
        None, "--count", "-n", metavar="N", min=1, help="Stop after so many records.", show_default=False
    ),
    follow: bool | None = typer.Option(
        None,
        "--follow/--until-end",
        help="Go on with what comes, until Ctrl-C; or stop at what was there in the beginning"
        " [--until-end; with --group, --follow]",
        show_default=False,
    ),
    group: str | None = typer.Option(
        None, "--group", "-g", metavar="NAME", help="Be a member of a group, and commit.", autocompletion=group_names
    ),
    partitions: str | None = typer.Option(
        None, "--partitions", "-p", metavar="N,...", help="Only these partitions.", show_default=False
    ),
    template: str | None = typer.Option(
        None, "--format", "-f", metavar="TEXT", help=f"What to print of each record: {LETTERS_HELP}."
    ),
    keys: bool = typer.Option(False, "--keys", help="Print the key before the value."),
    headers: bool = typer.Option(False, "--headers", help="Print the headers before the key or the value."),
    value_format: str = typer.Option(
        "text", "--value-format", metavar="FORMAT", help=f"What values are: {ALL_FORMATS_HELP}."
    ),
    key_format: str = typer.Option("text", "--key-format", metavar="FORMAT", help="What keys are, for --json."),
    registry: str | None = REGISTRY,
    schema: Path | None = SCHEMA,
    message: str | None = MESSAGE,
    condition: str | None = typer.Option(
        None, "--where", metavar="EXPR", help="Only records for which this holds, such as 'value.amount > 10'."
    ),
    committed: bool = typer.Option(
        True, "--committed/--uncommitted", help="Without records of transactions that are open or aborted."
    ),
    bootstrap: str = BOOTSTRAP,
    as_json: bool = typer.Option(False, "--json", help="Print a JSON object per line."),
) -> None:
    """Print the records of topics.

    Without --group nothing is committed and nobody is disturbed: every record of every partition is read.
    """
    if template is not None and as_json:
        raise ClientError("--format and --json exclude each other")
    if group is not None and (partitions is not None or start not in (None, "earliest", "latest")):
        raise ClientError(
            "a group gets its partitions and offsets from its coordinator: leave out --partitions, and give --from"
            " only as earliest or latest; `headrace group reset-offsets` moves a group"
        )
    show_value = Schemas(registry, schema, message).decoder(value_format, "--value-format")
    show_key = Schemas(registry, None, None).decoder(key_format, "--key-format")
    if template is not None:
        write = formatted(template, show_value)
    elif as_json:
        write = json_lines(show_key, show_value)
    else:
        write = plain_lines(keys, headers, show_value)
    test = None if condition is None else where(condition, None if value_format == "text" else show_value)
    consuming = Consuming(bootstrap, topics, write, test, count, committed)
    if group is None:
        chosen = None if partitions is None else partitions_of(partitions)
        begin = start_of(start or "earliest", time.time_ns() // 1_000_000)
        work = consuming.alone(begin, chosen, follow=bool(follow))
    else:
        work = consuming.in_group(group, start or "earliest", follow=follow is not False)
    try:
        asyncio.run(work)
    except BrokenPipeError:  # whoever reads our output has seen enough, such as `head`
        sys.stdout = None
    except ConnectionRefused as error:
        raise ClientError(f"{error}. Is a broker running? Start one with: headrace up") from None


class Consuming:
    """One run of the command."""

    def __init__(
        self, bootstrap: str, topics: list[str], write: Write, test: Test | None, count: int | None, committed: bool
    ) -> None:
        self._bootstrap = bootstrap
        self._topics = topics
        self._write = write
        self._test = test
        self._left = count
        self._committed = committed
        self._isolation = "read_committed" if committed else "read_uncommitted"

    async def alone(self, start: Start, chosen: frozenset[int] | None, *, follow: bool) -> None:
        """Read the partitions without a group."""
        begins, ends = await self._bounds(start, chosen)
        async with Consumer(
            bootstrap=self._bootstrap,
            auto_commit=False,
            auto_offset_reset="earliest",
            isolation_level=self._isolation,
            security=SECURITY.get(),
        ) as consumer:
            wanted = {at: offset for at, offset in begins.items() if follow or offset < ends[at]}
            if not wanted:
                return
            await consumer.assign(wanted)
            for at, offset in wanted.items():
                consumer.seek(at, offset)
            while not self._is_done:
                for record in await consumer.poll(POLL_S, POLL_RECORDS):
                    if follow or record.offset < ends[TopicPartition(record.topic, record.partition)]:
                        self._print(record)
                sys.stdout.buffer.flush()
                if not follow and all(consumer.position(at) >= ends[at] for at in wanted):
                    return

    async def in_group(self, group: str, reset: str, *, follow: bool) -> None:
        """Read what the group gives this member, and commit what was printed."""
        async with Consumer(
            *self._topics,
            bootstrap=self._bootstrap,
            group=group,
            auto_commit=False,
            auto_offset_reset=reset,
            isolation_level=self._isolation,
            security=SECURITY.get(),
        ) as consumer:
            joined = time.monotonic()
            while not self._is_done:
                # One record more than is wanted would be committed without being printed.
                most = POLL_RECORDS if self._left is None or self._test is not None else min(self._left, POLL_RECORDS)
                records = await consumer.poll(POLL_S, most)
                passed: dict[tuple[str, int], int] = {}
                for record in records:
                    if self._is_done:
                        break
                    self._print(record)
                    passed[record.topic, record.partition] = record.offset + 1
                if passed:
                    sys.stdout.buffer.flush()  # printed first, committed then: a crash in between prints twice
                    await consumer.commit(passed)
                elif not follow and await self._is_at_end(consumer, joined):
                    return

    async def _is_at_end(self, consumer: Consumer, joined: float) -> bool:
        if not consumer.assignment():
            return time.monotonic() - joined > JOIN_S
        return all(left.records == 0 for left in (await consumer.lag()).values())

    @property
    def _is_done(self) -> bool:
        return self._left is not None and self._left <= 0

    def _print(self, record: Record) -> None:
        if self._is_done or (self._test is not None and not self._test(record)):
            return
        sys.stdout.buffer.write(self._write(record))
        if self._left is not None:
            self._left -= 1

    async def _bounds(
        self, start: Start, chosen: frozenset[int] | None
    ) -> tuple[dict[TopicPartition, int], Mapping[TopicPartition, int]]:
        """Where each partition is begun, and where it ended when we came."""
        begins: dict[TopicPartition, int] = {}
        ends: dict[TopicPartition, int] = {}
        async with Admin(self._bootstrap, security=SECURITY.get()) as admin:
            for topic in self._topics:
                for one in await ranges_of(admin, topic, start, chosen=chosen, committed=self._committed):
                    place = TopicPartition(one.topic, one.partition)
                    begins[place], ends[place] = one.start_offset, one.end_offset
        return begins, ends


def partitions_of(text: str) -> frozenset[int]:
    """`0,2,5-7` as numbers. Raises ClientError."""
    found: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,9})(?:-(\d{1,9}))?\s*", part)
        if match is None or (match[2] and int(match[2]) - int(match[1]) > 1_000_000):
            raise ClientError(f"--partitions {text}: write numbers and ranges, such as 0,2,5-7")
        found.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    return frozenset(found)
