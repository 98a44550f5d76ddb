"""`headrace dlq`: show, replay. Dead letters of listeners, or of Spring."""

import asyncio
from collections import deque
from datetime import UTC, datetime
from typing import Any

import typer

from headrace.cli.completion import topic_names
from headrace.cli.output import BOOTSTRAP, JSON, SECURITY, YES, command_group, confirm, print_json
from headrace.client.errors import ClientError, ConnectionRefused
from headrace.listeners.dead_letters import DeadLetters, Letter, Replayed
from headrace.terminal import print_table

app = command_group("Look at dead letters, and send them back.", no_args_is_help=True)

TOPIC = typer.Argument(
    ..., metavar="TOPIC", help="The topic of the dead letters.", show_default=False, autocompletion=topic_names
)
SHOWN_BYTES = 60


@app.command("show")
def show(
    topic: str = TOPIC,
    count: int = typer.Option(20, "--count", "-n", metavar="N", min=1, help="How many, the last of all."),
    trace: bool = typer.Option(False, "--trace", help="Print each with its traceback."),
    bootstrap: str = BOOTSTRAP,
    as_json: bool = JSON,
) -> None:
    """Show dead letters: where each came from, and why it failed."""

    async def work() -> tuple[list[Letter], int]:
        last: deque[Letter] = deque(maxlen=count)
        total = 0
        async with DeadLetters.of(topic, bootstrap=bootstrap, security=SECURITY.get()) as letters:
            async for letter in letters.read():
                last.append(letter)
                total += 1
        return sorted(last, key=lambda one: one.record.timestamp), total

    found, total = _run(work())
    if as_json:
        print_json([_facts(one) for one in found])
    elif not found:
        print(f"no dead letters in {topic}")
    elif trace:
        for one in found:
            print(f"{one.record.partition}:{one.record.offset} from {_origin(one)}, key {_shown(one.record.key)}")
            print(f"  {_shown(one.record.value)}")
            print("  " + one.failure.stacktrace.strip().replace("\n", "\n  "))
    else:
        rows = [
            (f"{one.record.partition}:{one.record.offset}", _origin(one), _shown(one.record.key),
             one.failure.attempts, one.failure.replays, _error(one))
            for one in found
        ]  # fmt: skip
        print_table(("AT", "FROM", "KEY", "ATTEMPTS", "REPLAYS", "ERROR"), rows, numbers=("ATTEMPTS", "REPLAYS"))
        if total > len(found):
            print(f"and {total - len(found)} more; see them with --count")


@app.command("replay")
def replay(
    topic: str = TOPIC,
    to: str = typer.Option("", "--to", metavar="TOPIC", help="Send all to this topic instead.", show_default=False),
    only: str = typer.Option(
        "", "--only", metavar="PARTITION:OFFSET", help="Only this one, even if it was sent back before."
    ),
    dry_run: bool = typer.Option(False, "--dry-run", help="Say what would be sent, and send nothing."),
    yes: bool = YES,
    bootstrap: str = BOOTSTRAP,
    as_json: bool = JSON,
) -> None:
    """Send dead letters back to the topics they came from.

    Those that were sent back before are left out.
    """
    one_only = _place(only) if only else None
    if not dry_run:
        confirm(f"Send dead letters of {topic} back to {to or 'where they came from'}?", yes)

    async def work() -> list[Replayed]:
        async with DeadLetters.of(topic, bootstrap=bootstrap, security=SECURITY.get()) as letters:
            return [one async for one in letters.replay(to=to or None, only=one_only, dry_run=dry_run)]

    found = _run(work())
    if as_json:
        print_json([_facts(one.letter) | {"sent_to": one.topic, "dry_run": dry_run} for one in found])
        return
    counts: dict[str, int] = {}
    for one in found:
        counts[one.topic] = counts.get(one.topic, 0) + 1
    for name, number in sorted(counts.items()):
        print(f"{'would send' if dry_run else 'sent'} {number} back to {name}")
    if not counts:
        print(f"nothing to send back in {topic}")


def _run(work: Any) -> Any:
    try:
        return asyncio.run(work)
    except ConnectionRefused as error:
        raise ClientError(f"{error}. Is a broker running? Start one with: headrace up") from None


def _place(text: str) -> tuple[int, int]:
    partition, colon, offset = text.partition(":")
    if not colon or not partition.isdigit() or not offset.isdigit():
        raise ClientError(f"--only {text}: write PARTITION:OFFSET, such as 0:17")
    return int(partition), int(offset)


def _origin(letter: Letter) -> str:
    origin = letter.failure.origin
    return "unknown" if origin is None else f"{origin.topic}-{origin.partition}:{origin.offset}"


def _error(letter: Letter) -> str:
    failure = letter.failure
    text = f"{failure.exception.rpartition('.')[2]}: {failure.message}".strip(": ")
    return text.splitlines()[0] if text else ""


def _shown(content: bytes | None) -> str:
    if content is None:
        return "-"
    text = content.decode(errors="replace")
    return text if len(text) <= SHOWN_BYTES else text[: SHOWN_BYTES - 3] + "..."


def _facts(letter: Letter) -> dict[str, Any]:
    record, failure = letter.record, letter.failure
    origin = failure.origin
    return {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "time": datetime.fromtimestamp(max(record.timestamp, 0) / 1000, UTC).isoformat(),
        "key": None if record.key is None else record.key.decode(errors="replace"),
        "value": None if record.value is None else record.value.decode(errors="replace"),
        "origin": None
        if origin is None
        else {"topic": origin.topic, "partition": origin.partition, "offset": origin.offset, "group": origin.group},
        "listener": failure.listener or None,
        "attempts": failure.attempts,
        "replays": failure.replays,
        "exception": failure.exception,
        "message": failure.message,
        "stacktrace": failure.stacktrace,
    }
