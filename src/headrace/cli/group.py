"""`headrace group`: list, describe, reset-offsets, delete."""

import asyncio
import csv
import sys
import time
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import typer

from headrace.cli.completion import group_names, topic_names
from headrace.cli.group_reset import Move, Way, parse_datetime, parse_duration, parse_topics, plan, read_file
from headrace.cli.output import BOOTSTRAP, JSON, YES, command_group, confirm, print_deleted, print_json, with_admin
from headrace.cli.watch import watched
from headrace.client.admin.admin import Admin
from headrace.client.admin.groups import Group, Groups, Lag, ListedGroup, TopicPartition
from headrace.client.errors import ClientError, RequestFailed
from headrace.errors import Err
from headrace.terminal import print_table, shown

app = command_group("List, describe and delete consumer groups, reset offsets.", no_args_is_help=True)

GROUP = typer.Argument(..., metavar="GROUP", help="The group's name.", show_default=False, autocompletion=group_names)
GROUPS = typer.Argument(
    ..., metavar="GROUP", help="One or more groups.", show_default=False, autocompletion=group_names
)
GROUPS_AT_ONCE = 16
MAY_RESET = ("Empty", "Dead")
STATES = (
    "Empty", "PreparingRebalance", "CompletingRebalance", "Assigning", "Reconciling", "Stable", "NotReady", "Dead",
)  # fmt: skip
TYPES = ("classic", "consumer", "share", "streams")


@app.command("list")
@watched
def list_(
    states: list[str] = typer.Option(
        [], "--state", metavar="STATE", help="Only groups in this state, such as Stable or Empty; may be repeated."
    ),
    types: list[str] = typer.Option(
        [], "--type", metavar="TYPE", help="Only groups of this type: classic or consumer; may be repeated."
    ),
    brief: bool = typer.Option(False, "--brief", help="Do not ask how far behind each is."),
    bootstrap: str = BOOTSTRAP,
    as_json: bool = JSON,
) -> None:
    """List groups and how far behind they are.

    The lag counts the partitions that a group has committed offsets of.
    """
    states, types = _known("--state", states, STATES), _known("--type", types, TYPES)

    async def work(admin: Admin) -> tuple[list[ListedGroup], dict[str, int | None]]:
        groups = Groups(admin)
        listed = await groups.list_groups(states, types)
        return listed, {} if brief else await _lags(groups, listed)

    found, lags = with_admin(bootstrap, work)
    if as_json:
        print_json(
            [
                {"group": g.group_id, "state": g.state, "type": g.type, "protocol_type": g.protocol_type}
                | ({} if brief else {"lag": lags[g.group_id]})
                for g in found
            ]
        )
    elif not found:
        print("no groups")
    elif brief:
        print_table(("GROUP", "STATE", "TYPE"), [(g.group_id, g.state, g.type) for g in found])
    else:
        rows = [(g.group_id, g.state, g.type, _or_dash(lags[g.group_id])) for g in found]
        print_table(("GROUP", "STATE", "TYPE", "LAG"), rows, numbers=("LAG",))


async def _lags(groups: Groups, listed: list[ListedGroup]) -> dict[str, int | None]:
    """Records that each group has still to read of what it has committed; None where it has committed nothing."""
    gate = asyncio.Semaphore(GROUPS_AT_ONCE)

    async def one(name: str) -> int | None:
        async with gate:
            try:
                known = [lag.records for lag in await groups.lag(name, now_ms=_now_ms()) if lag.records is not None]
            except ClientError:
                return None
            return sum(known) if known else None

    return dict(zip([g.group_id for g in listed], await asyncio.gather(*(one(g.group_id) for g in listed))))


def _known(option: str, values: list[str], known: tuple[str, ...]) -> list[str]:
    """As the protocol spells them. A broker answers a misspelt filter with no groups at all."""
    spelling = {name.lower(): name for name in known}
    for value in values:
        if value.lower() not in spelling:
            raise ClientError(f"{option} {value}: write one of {', '.join(known)}")
    return [spelling[value.lower()] for value in values]


# -- describe


@app.command("describe")
@watched
def describe(
    names: list[str] = GROUPS,
    members: bool = typer.Option(False, "--members", help="Show members and what they are assigned."),
    bootstrap: str = BOOTSTRAP,
    as_json: bool = JSON,
) -> None:
    """Show members, offsets, and the lag in records and seconds."""

    missing: list[RequestFailed] = []

    async def work(admin: Admin) -> list[tuple[Group, list[Lag]]]:
        groups = Groups(admin)
        found = []
        for name in names:
            try:
                group = await groups.describe(name)
            except RequestFailed as error:
                missing.append(error)  # the others are described all the same
                continue
            assigned = {at for member in group.members for at in member.assignment}
            found.append((group, await groups.lag(name, assigned, now_ms=_now_ms())))
        return found

    found = with_admin(bootstrap, work)
    if as_json:
        if found or not missing:
            print_json([_as_json(group, lags) for group, lags in found])
    else:
        for position, (group, lags) in enumerate(found):
            if position:
                print()
            _print_group(group, lags)
            if members:
                _print_members(group)
    if missing:
        raise ClientError("; ".join(map(str, missing)))


def _as_json(group: Group, lags: list[Lag]) -> dict[str, Any]:
    owners = _owners(group)
    return {
        "group": group.group_id,
        "state": group.state,
        "type": group.type,
        "assignor": group.assignor,
        "coordinator": group.coordinator,
        "epoch": group.epoch,
        "members": [
            {
                "member_id": member.member_id,
                "client_id": member.client_id,
                "host": member.host,
                "instance_id": member.instance_id,
                "partitions": [{"topic": topic, "partition": index} for topic, index in member.assignment],
            }
            for member in group.members
        ],
        "partitions": [
            {
                "topic": lag.topic,
                "partition": lag.partition,
                "committed_offset": lag.committed,
                "end_offset": lag.end_offset,
                "lag": lag.records,
                "lag_seconds": lag.seconds,
                "member_id": owners.get((lag.topic, lag.partition), ("", "", ""))[0] or None,
            }
            for lag in lags
        ],
    }


def _owners(group: Group) -> dict[TopicPartition, tuple[str, str, str]]:
    return {at: (m.member_id, m.host, m.client_id) for m in group.members for at in m.assignment}


def _print_group(group: Group, lags: list[Lag]) -> None:
    count = len(group.members)
    details = [f"{group.type}", f"{count} member{'' if count == 1 else 's'}", f"coordinator {group.coordinator}"]
    if group.assignor:
        details.append(f"assignor {group.assignor}")
    print(f"{shown(group.group_id)}  {group.state}  {', '.join(details)}")
    if not lags:
        print("  no committed offsets")
        return
    owners = _owners(group)
    rows = [
        (
            lag.topic,
            lag.partition,
            _or_dash(lag.committed),
            _or_dash(lag.end_offset),
            _or_dash(lag.records),
            _age(lag.seconds),
            *owners.get((lag.topic, lag.partition), ("-", "-", "-")),
        )
        for lag in lags
    ]
    columns = ("TOPIC", "PARTITION", "COMMITTED", "END", "LAG", "LAG TIME", "MEMBER", "HOST", "CLIENT")
    print_table(columns, rows, numbers=("PARTITION", "COMMITTED", "END", "LAG", "LAG TIME"))


def _print_members(group: Group) -> None:
    rows = []
    for member in group.members:
        topics: dict[str, list[int]] = {}
        for topic, index in sorted(member.assignment):
            topics.setdefault(topic, []).append(index)
        text = " ".join(f"{topic}({','.join(map(str, indexes))})" for topic, indexes in topics.items())
        rows.append(
            (
                member.member_id,
                member.instance_id or "-",
                member.host,
                member.client_id,
                len(member.assignment),
                text or "-",
            )
        )
    print_table(("MEMBER", "INSTANCE", "HOST", "CLIENT", "PARTITIONS", "ASSIGNMENT"), rows, numbers=("PARTITIONS",))


def _or_dash(number: int | None) -> str:
    return "-" if number is None else str(number)


def _age(seconds: float | None) -> str:
    """12.3 s, 4 min 5 s, 2 h 3 min, 4 d 5 h."""
    if seconds is None:
        return "-"
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds else "0 s"
    whole = int(seconds)
    for size, unit, below, small in ((86_400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            return f"{whole // size} {unit} {whole % size // below} {small}"
    return f"{whole} s"


# -- reset-offsets


@app.command("reset-offsets")
def reset_offsets(
    name: str = GROUP,
    topics: list[str] = typer.Option(
        [],
        "--topic",
        metavar="TOPIC[:0,1]",
        help="A topic, or some of its partitions; may be repeated.",
        autocompletion=topic_names,
    ),
    all_topics: bool = typer.Option(False, "--all-topics", help="Every topic that the group has committed offsets in."),
    to_earliest: bool = typer.Option(False, "--to-earliest", help="To the first record there is."),
    to_latest: bool = typer.Option(False, "--to-latest", help="To the end: only records to come."),
    to_current: bool = typer.Option(
        False, "--to-current", help="To where the group is, or the end where it has not committed."
    ),
    to_offset: int | None = typer.Option(None, "--to-offset", metavar="N", help="To this offset."),
    to_datetime: str | None = typer.Option(
        None,
        "--to-datetime",
        metavar="TIME",
        help="To the first record written since, such as 2026-11-15T20:30:00 (UTC).",
    ),
    by_duration: str | None = typer.Option(
        None,
        "--by-duration",
        metavar="TIME",
        help="To the first record written so long ago, such as 2h, 1d12h or PT30M.",
    ),
    shift_by: int | None = typer.Option(
        None, "--shift-by", metavar="N", help="So many records forward; back with a negative number."
    ),
    from_file: Path | None = typer.Option(
        None, "--from-file", metavar="CSV", help="To offsets in a file of topic,partition,offset lines."
    ),
    execute: bool = typer.Option(False, "--execute", help="Do it. Without this, only show what would be done."),
    dry_run: bool = typer.Option(
        False, "--dry-run", help="Only show what would be done; this is what happens without --execute."
    ),
    export: bool = typer.Option(False, "--export", help="Print topic,partition,offset lines for --from-file."),
    bootstrap: str = BOOTSTRAP,
    as_json: bool = JSON,
) -> None:
    """Move a group's committed offsets.

    The group must have no members. A dry run unless --execute is given.
    """
    way = _way(
        {"to-earliest": to_earliest or None, "to-latest": to_latest or None, "to-current": to_current or None},
        {
            "to-offset": to_offset, "to-datetime": to_datetime, "by-duration": by_duration, "shift-by": shift_by,
            "from-file": None if from_file is None else str(from_file),
        },
    )  # fmt: skip
    if execute and dry_run:
        raise ClientError("give either --execute or --dry-run")
    if from_file is None and bool(topics) == all_topics:
        raise ClientError("say which offsets: --topic TOPIC (or TOPIC:0,1), or --all-topics")
    chosen = parse_topics(topics)
    filed = read_file(from_file, name) if from_file is not None else {}

    async def work(admin: Admin) -> tuple[list[Move], str]:
        groups = Groups(admin)
        remark = await _require_empty(groups, name)
        committed = await groups.committed(name)
        partitions = (
            set(filed) if from_file is not None else await _partitions(admin, chosen, all_topics, set(committed))
        )
        if not partitions:
            raise ClientError(f"group {name!r} has no committed offsets; choose topics with --topic")
        moves = await plan(admin, way, partitions, committed, filed, _now_ms())
        if execute:
            await groups.commit(name, {(move.topic, move.partition): move.new for move in moves})
        return moves, remark

    moves, remark = with_admin(bootstrap, work)
    if remark:
        print(remark, file=sys.stderr)
    if export:
        csv.writer(sys.stdout, lineterminator="\n").writerows((move.topic, move.partition, move.new) for move in moves)
    elif as_json:
        print_json({"group": name, "executed": execute, "offsets": [move._asdict() for move in moves]})
    else:
        rows = [(move.topic, move.partition, _or_dash(move.old), move.new, move.note) for move in moves]
        print_table(("TOPIC", "PARTITION", "OLD", "NEW", ""), rows, numbers=("PARTITION", "OLD", "NEW"))
        if not execute:
            print("nothing was changed: add --execute to do it")


def _way(flags: dict[str, bool | None], values: dict[str, str | int | None]) -> Way:
    given = [Way(name) for name, flag in flags.items() if flag]
    given += [Way(name, value) for name, value in values.items() if value is not None]
    if len(given) != 1:
        said = "" if not given else f"; you gave {', '.join(f'--{way.name}' for way in given)}"
        raise ClientError(f"say where to go, in one way: --{', --'.join([*flags, *values])}{said}")
    if given[0].name == "to-datetime":
        parse_datetime(str(given[0].value))
    elif given[0].name == "by-duration":
        parse_duration(str(given[0].value))
    return given[0]


async def _require_empty(groups: Groups, name: str) -> str:
    """What is to be said of a group that may be reset, if anything."""
    try:
        group = await groups.describe(name)
    except RequestFailed as error:
        if error.error is not Err.GROUP_ID_NOT_FOUND:
            raise
        # A group may be given its offsets before it first runs; more often a name is misspelt.
        there = ", ".join(get_close_matches(name, [g.group_id for g in await groups.list_groups()], n=3))
        hint = f"; did you mean {there}?" if there else ""
        return f"there is no group {name!r} yet: it will begin with these offsets{hint}"
    if group.state not in MAY_RESET:
        count = len(group.members)
        raise ClientError(
            f"group {name!r} is {group.state} with {count} member{'' if count == 1 else 's'}: "
            "offsets can be reset only while it has none; stop its consumers first"
        )
    return ""


async def _partitions(
    admin: Admin, chosen: dict[str, set[int] | None], all_topics: bool, committed: set[TopicPartition]
) -> set[TopicPartition]:
    if all_topics:
        return committed
    found: set[TopicPartition] = set()
    for topic, indexes in chosen.items():
        there = set((await admin.describe_topic(topic)).partitions)
        if indexes is not None and (missing := sorted(indexes - there)):
            raise ClientError(f"topic {topic!r} has no partition {missing[0]}: it has {len(there)}")
        found |= {(topic, index) for index in (there if indexes is None else indexes)}
    return found


# -- delete


@app.command("delete")
def delete(
    names: list[str] = GROUPS,
    if_exists: bool = typer.Option(False, "--if-exists", help="Succeed if there is no such group."),
    yes: bool = YES,
    bootstrap: str = BOOTSTRAP,
    as_json: bool = JSON,
) -> None:
    """Delete groups that have no members, and their offsets."""

    confirm(f"Delete {', '.join(map(shown, names))} and all committed offsets?", yes)

    async def work(admin: Admin) -> None:
        groups = Groups(admin)
        for name in names:
            try:
                await groups.delete(name)
            except RequestFailed as error:
                if error.error is Err.GROUP_ID_NOT_FOUND and if_exists:
                    done[name] = False
                    continue
                if error.error is Err.NON_EMPTY_GROUP:
                    raise ClientError(f"group {name!r} has members; stop its consumers first") from None
                raise
            done[name] = True

    done: dict[str, bool] = {}
    try:
        with_admin(bootstrap, work)
    finally:
        print_deleted("group", done, as_json)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
