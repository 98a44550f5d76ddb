"""`headrace transaction`: list, describe, abort, find-hanging."""

import time
from datetime import UTC, datetime
from typing import Any

import typer

from headrace.cli.group_reset import parse_duration
from headrace.cli.output import BOOTSTRAP, JSON, YES, command_group, confirm, print_json, with_admin
from headrace.cli.watch import watched
from headrace.client.admin.admin import Admin
from headrace.client.admin.transactions import ListedTransaction, OpenTransaction, Transaction, Transactions
from headrace.client.errors import ClientError
from headrace.terminal import print_table

app = command_group("List, describe and end transactions, find those that hang.", no_args_is_help=True)

ID = typer.Argument(..., metavar="ID", help="The producer's transactional id.", show_default=False)
IDS = typer.Argument(..., metavar="ID", help="One or more transactional ids.", show_default=False)
STATES = ("Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort")
NEVER_MS = 0x7FFFFFFF
"""What coordinators show as the time-out of a producer that takes part in a two-phase commit."""
HANGING_AFTER = "15m"
"""Longer than transaction.max.timeout.ms allows, by default: its coordinator would have ended it."""


@app.command("list")
@watched
def list_(
    states: list[str] = typer.Option(
        [], "--state", metavar="STATE", help="Only in this state, such as Ongoing; may be repeated."
    ),
    longer_than: str = typer.Option("", "--longer-than", metavar="TIME", help="Only open for so long, such as 5m."),
    pattern: str = typer.Option("", "--pattern", metavar="REGEX", help="Only ids that match, as a whole."),
    bootstrap: str = BOOTSTRAP,
    as_json: bool = JSON,
) -> None:
    """List transactional ids with their producer and state."""
    spelling = {name.lower(): name for name in STATES}
    for state in states:
        if state.lower() not in spelling:
            raise ClientError(f"--state {state}: write one of {', '.join(STATES)}")
    longer_than_ms = parse_duration(longer_than, "--longer-than") if longer_than else -1

    async def work(admin: Admin) -> list[ListedTransaction]:
        return await Transactions(admin).list_transactions(
            [spelling[state.lower()] for state in states], longer_than_ms=longer_than_ms, pattern=pattern or None
        )

    found = with_admin(bootstrap, work)
    if as_json:
        print_json(
            [
                {
                    "transactional_id": one.transactional_id,
                    "producer_id": one.producer_id,
                    "state": one.state,
                    "coordinator": one.coordinator,
                }
                for one in found
            ]
        )
    elif not found:
        print("no transactions")
    else:
        rows = [(one.transactional_id, one.state, one.producer_id, one.coordinator) for one in found]
        print_table(("ID", "STATE", "PRODUCER", "COORDINATOR"), rows, numbers=("PRODUCER", "COORDINATOR"))


@app.command("describe")
@watched
def describe(ids: list[str] = IDS, bootstrap: str = BOOTSTRAP, as_json: bool = JSON) -> None:
    """Show producer, state and partitions of transactional ids."""

    async def work(admin: Admin) -> list[Transaction]:
        transactions = Transactions(admin)
        return [await transactions.describe(one) for one in ids]

    found = with_admin(bootstrap, work)
    if as_json:
        print_json([_facts(one) for one in found])
        return
    for one in found:
        since = "" if one.start_ms < 0 else f", since {_time(one.start_ms)}"
        print(f"{one.transactional_id}: {one.state}{since}")
        limit = "never times out (two-phase commit)" if one.timeout_ms == NEVER_MS else f"time-out {one.timeout_ms} ms"
        print(
            f"  producer {one.producer_id} epoch {one.producer_epoch}, {limit}, coordinated by broker {one.coordinator}"
        )
        if one.partitions:
            print(f"  partitions {', '.join(f'{topic}-{index}' for topic, index in one.partitions)}")


@app.command("abort")
def abort(id: str = ID, yes: bool = YES, bootstrap: str = BOOTSTRAP, as_json: bool = JSON) -> None:
    """End what is open under an id, and fence its producer.

    As a new producer with this id would: whoever has it now can write no more.
    """
    confirm(f"Abort what is open under {id}, and fence its producer?", yes)

    async def work(admin: Admin) -> tuple[Transaction, tuple[int, int]]:
        transactions = Transactions(admin)
        before = await transactions.describe(id)  # not to make an id that was mistyped
        return before, await transactions.fence(id)

    before, (producer_id, epoch) = with_admin(bootstrap, work)
    if as_json:
        print_json({"transactional_id": id, "before": _facts(before), "producer_id": producer_id, "epoch": epoch})
    elif before.state == "Ongoing":
        print(f"aborted the transaction of {id}, and fenced its producer")
    else:
        print(f"{id} had no transaction open ({before.state}); its producer is fenced")


@app.command("find-hanging")
def find_hanging(
    topic: str = typer.Option(..., "--topic", metavar="TOPIC", help="Where to look.", show_default=False),
    partition: int = typer.Option(-1, "--partition", metavar="N", help="Only in this partition.", show_default=False),
    older_than: str = typer.Option(HANGING_AFTER, "--older-than", metavar="TIME", help="Silent for so long."),
    abort: bool = typer.Option(False, "--abort", help="End them, after asking."),
    yes: bool = YES,
    bootstrap: str = BOOTSTRAP,
    as_json: bool = JSON,
) -> None:
    """Find open transactions that no coordinator knows.

    Nobody ends them, and readers with read_committed wait at them for ever.
    """
    older_than_ms = parse_duration(older_than, "--older-than")

    async def look(admin: Admin) -> list[OpenTransaction]:
        found = await admin.cluster.topic(topic)
        wanted = [partition] if partition >= 0 else sorted(found.partitions)
        return await Transactions(admin).find_hanging(
            topic, wanted, older_than_ms=older_than_ms, now_ms=int(time.time() * 1000)
        )

    hanging = with_admin(bootstrap, look)
    if abort and hanging:
        confirm(f"Abort {len(hanging)} hanging transactions in {topic}?", yes)

        async def end(admin: Admin) -> None:
            for one in hanging:
                await Transactions(admin).abort(one)

        with_admin(bootstrap, end)
    if as_json:
        print_json(
            [
                {
                    "topic": one.topic,
                    "partition": one.partition,
                    "producer_id": one.producer_id,
                    "producer_epoch": one.producer_epoch,
                    "coordinator_epoch": one.coordinator_epoch,
                    "start_offset": one.start_offset,
                    "last_timestamp_ms": one.last_timestamp,
                    "aborted": abort,
                }
                for one in hanging
            ]
        )
    elif not hanging:
        print(f"no transaction hangs in {topic}")
    else:
        rows = [
            (
                f"{one.topic}-{one.partition}",
                one.producer_id,
                one.producer_epoch,
                one.start_offset,
                _time(one.last_timestamp),
            )
            for one in hanging
        ]
        numbers = ("PRODUCER", "EPOCH", "FROM OFFSET")
        print_table(("PARTITION", "PRODUCER", "EPOCH", "FROM OFFSET", "LAST WRITE"), rows, numbers=numbers)
        print("aborted" if abort else "end them with --abort")


def _facts(one: Transaction) -> dict[str, Any]:
    return {
        "transactional_id": one.transactional_id,
        "state": one.state,
        "producer_id": one.producer_id,
        "producer_epoch": one.producer_epoch,
        "timeout_ms": one.timeout_ms,
        "start_ms": one.start_ms if one.start_ms >= 0 else None,
        "coordinator": one.coordinator,
        "partitions": [{"topic": topic, "partition": index} for topic, index in one.partitions],
    }


def _time(timestamp_ms: int) -> str:
    return datetime.fromtimestamp(timestamp_ms / 1000, UTC).isoformat(sep=" ", timespec="seconds")
