"""`headrace topic`: list, describe, delete, alter; `create` and `delete-records` are in modules of their own."""

import asyncio
import time
from typing import Any

import typer

from headrace.cli.completion import topic_names
from headrace.cli.config import Entity, refuse_unknown_unset
from headrace.cli.delete_records import delete_records
from headrace.cli.dump.report import counted
from headrace.cli.output import (
    ANSWER_LIMIT_S,
    BOOTSTRAP,
    JSON,
    YES,
    changes_text,
    command_group,
    confirm,
    pairs,
    print_deleted,
    print_json,
    with_admin,
)
from headrace.cli.topic_create import INT32_MAX, create, sizes_text
from headrace.cli.topic_files import folders_of, print_folders
from headrace.cli.watch import watched
from headrace.client.admin.admin import EARLIEST, LATEST, Admin, ConfigEntry, ConfigSource, ReplicaSize, Resource
from headrace.client.admin.operations import Operations
from headrace.client.errors import ClientError, RequestFailed
from headrace.client.net.cluster import Topic
from headrace.errors import Err
from headrace.storage.checkpoints import encode_uuid
from headrace.terminal import print_table, shown, size_text
from headrace.tools.ranges import describe as describe_topic

app = command_group("Create, list, describe, delete and alter topics.", no_args_is_help=True)

NAMES = typer.Argument(..., metavar="TOPIC", help="One or more topics.", show_default=False, autocompletion=topic_names)


app.command("create")(create)


@app.command("list")
@watched
def list_(
    internal: bool = typer.Option(False, "--internal", help="Show internal topics too."),
    brief: bool = typer.Option(False, "--brief", help="Do not ask how large each is."),
    bootstrap: str = BOOTSTRAP,
    as_json: bool = JSON,
) -> None:
    """List topics with their records and size.

    Both are counted once and not for each replica.
    """

    async def work(admin: Admin) -> list[dict[str, Any]]:
        topics = await admin.list_topics(include_internal=internal)
        rows = [_summary(topic) for topic in topics]
        return rows if brief else [row | more for row, more in zip(rows, await _totals(admin, topics))]

    rows = with_admin(bootstrap, work)
    if as_json:
        print_json(rows)
    elif not rows:
        print("no topics")
    elif brief:
        table = [(row["name"], row["partitions"], row["replication_factor"], row["problem"]) for row in rows]
        print_table(("TOPIC", "PARTITIONS", "REPLICAS", ""), table, numbers=("PARTITIONS", "REPLICAS"))
    else:
        full = [
            (row["name"], row["partitions"], row["replication_factor"], _or_unknown(row["records"]),
             size_text(-1 if row["size_bytes"] is None else row["size_bytes"]), row["problem"])
            for row in rows
        ]  # fmt: skip
        numbers = ("PARTITIONS", "REPLICAS", "RECORDS", "SIZE")
        print_table(("TOPIC", "PARTITIONS", "REPLICAS", "RECORDS", "SIZE", ""), full, numbers=numbers)


async def _totals(admin: Admin, topics: list[Topic]) -> list[dict[str, int | None]]:
    """Records (offsets, where a topic is compacted) and bytes of each topic; None where a partition's leader does not
    tell."""
    led = [(topic.name, p.index) for topic in topics for p in topic.partitions.values() if p.leader >= 0]
    leaders = sorted({p.leader for topic in topics for p in topic.partitions.values() if p.leader >= 0})
    starts, ends, sizes = await asyncio.gather(
        admin.offsets_of(led, EARLIEST),
        admin.offsets_of(led, LATEST),
        Operations(admin).replica_bytes(leaders, ANSWER_LIMIT_S),
    )
    rows: list[dict[str, int | None]] = []
    for topic in topics:
        places = [(topic.name, p.index) for p in topic.partitions.values()]
        kept = [(p.leader, topic.name, p.index) for p in topic.partitions.values()]
        known = all(at in starts and at in ends for at in places)
        records = sum(ends[at] - starts[at] for at in places) if known else None
        rows.append(
            {
                "records": records,
                "size_bytes": sum(sizes[at] for at in kept) if all(at in sizes for at in kept) else None,
            }
        )
    return rows


def _summary(topic: Topic) -> dict[str, Any]:
    partitions = topic.partitions.values()
    leaderless = sum(p.leader < 0 for p in partitions)
    lagging = sum(len(p.isr) < len(p.replicas) for p in partitions)
    problem = f"{leaderless} without a leader" if leaderless else f"{lagging} under-replicated" if lagging else ""
    return {
        "name": topic.name,
        "topic_id": encode_uuid(topic.topic_id),
        "internal": topic.is_internal,
        "partitions": len(partitions),
        "replication_factor": max((len(p.replicas) for p in partitions), default=0),
        "problem": problem,
    }


@app.command("describe")
@watched
def describe(
    names: list[str] = NAMES,
    files: bool = typer.Option(False, "--files", help="Draw each partition's folder, as far as this machine has it."),
    bootstrap: str = BOOTSTRAP,
    as_json: bool = JSON,
) -> None:
    """Show partitions, replicas, offsets, sizes and options.

    Only options that were set for the topic are shown; `headrace config describe` shows all.
    """

    async def work(admin: Admin) -> list[dict[str, Any]]:
        found = [await _describe(admin, name) for name in names]
        for topic in found if files else ():
            topic["folders"] = await folders_of(admin, await admin.describe_topic(topic["name"]))
        return found

    found = with_admin(bootstrap, work)
    if as_json:
        print_json(found)
        return
    for position, topic in enumerate(found):
        if position:
            print()
        _print_description(topic)
        print_folders(topic.get("folders", []))


async def _describe(admin: Admin, name: str) -> dict[str, Any]:
    topic = await describe_topic(admin, name)
    configs = await admin.describe_configs(Resource.TOPIC, name)
    led = [index for index, partition in topic.partitions.items() if partition.leader >= 0]
    starts, ends, replicas = await asyncio.gather(
        _offsets(admin, name, led, EARLIEST), _offsets(admin, name, led, LATEST), _replicas(admin, topic)
    )
    return {
        **_summary(topic),
        "configs": {entry.name: entry.value for entry in configs if _is_changed(entry)},
        "partition_details": [
            {
                "partition": p.index,
                "leader": p.leader,
                "leader_epoch": p.leader_epoch,
                "replicas": list(p.replicas),
                "isr": list(p.isr),
                "offline": list(p.offline),
                "start_offset": starts.get(p.index),
                "end_offset": ends.get(p.index),
                "size_bytes": replicas[p.index].size_bytes if p.index in replicas else None,
                "checked_ms": replicas[p.index].checked_ms if p.index in replicas else None,
            }
            for p in topic.partitions.values()
        ],
    }


def _is_changed(entry: ConfigEntry) -> bool:
    return entry.source == ConfigSource.TOPIC


async def _offsets(admin: Admin, name: str, indexes: list[int], timestamp: int) -> dict[int, int]:
    """Offsets are worth showing but a description does not fail for want of them."""
    try:
        found = await admin.list_offsets(name, dict.fromkeys(indexes, timestamp))
    except ClientError:
        return {}
    return {index: row.offset for index, row in found.items()}


async def _replicas(admin: Admin, topic: Topic) -> dict[int, ReplicaSize]:
    """What each partition's leader says of its files, as far as brokers tell."""
    by_leader: dict[int, list[int]] = {}
    for partition in topic.partitions.values():
        if partition.leader >= 0:
            by_leader.setdefault(partition.leader, []).append(partition.index)
    found: dict[int, ReplicaSize] = {}
    for leader, indexes in by_leader.items():
        try:
            dirs = await admin.describe_log_dirs(leader, {topic.name: indexes})
        except ClientError:
            continue
        found.update((r.partition, r) for d in dirs for r in d.replicas if not r.is_future)
    return found


def _print_description(topic: dict[str, Any]) -> None:
    print(
        f"{topic['name']}  id {topic['topic_id']}  {counted(topic['partitions'], 'partition')}, replication factor"
        f" {topic['replication_factor']} ({_replicas_text(topic['partition_details'])})"
    )
    for name, value in sorted(topic["configs"].items()):
        print(f"  {name}={value}")
    rows = [
        (
            p["partition"],
            p["leader"] if p["leader"] >= 0 else "none",
            _nodes(p["replicas"]),
            _nodes(p["isr"]),
            _nodes(p["offline"]) or "-",
            _or_unknown(p["start_offset"]),
            _or_unknown(p["end_offset"]),
            size_text(-1 if p["size_bytes"] is None else p["size_bytes"]),
            checked_text(p["checked_ms"]),
        )
        for p in topic["partition_details"]
    ]
    columns = ("PARTITION", "LEADER", "REPLICAS", "IN SYNC", "OFFLINE", "START", "END", "SIZE", "CHECKED")
    print_table(columns, rows, numbers=("PARTITION", "LEADER", "START", "END", "SIZE"))


def _replicas_text(partitions: list[dict[str, Any]]) -> str:
    """`15 replicas = 5 partitions x 3`; while partitions are moved some may have more replicas than others."""
    factors = [len(p["replicas"]) for p in partitions]
    return sizes_text(len(factors), factors[0]) if len(set(factors)) == 1 else counted(sum(factors), "replica")


def checked_text(checked_ms: int | None) -> str:
    """When the leader last read all of it to find damage."""
    if checked_ms is None:
        return "?"
    return "never" if checked_ms < 0 else time.strftime("%Y-%m-%d %H:%M", time.localtime(checked_ms / 1000))


def _nodes(nodes: list[int]) -> str:
    return ",".join(map(str, nodes))


def _or_unknown(number: int | None) -> str:
    return "?" if number is None else str(number)


@app.command("delete")
def delete(
    names: list[str] = NAMES,
    if_exists: bool = typer.Option(False, "--if-exists", help="Succeed if there is no such topic."),
    yes: bool = YES,
    bootstrap: str = BOOTSTRAP,
    as_json: bool = JSON,
) -> None:
    """Delete topics and all their records."""
    confirm(f"Delete {', '.join(map(shown, names))} and all records?", yes)

    async def work(admin: Admin) -> None:
        for name in names:
            try:
                await admin.delete_topic(name)
            except RequestFailed as error:
                if not (if_exists and error.error is Err.UNKNOWN_TOPIC_OR_PARTITION):
                    raise
                done[name] = False
            else:
                done[name] = True

    done: dict[str, bool] = {}
    try:
        with_admin(bootstrap, work)
    finally:
        print_deleted("topic", done, as_json)


app.command("delete-records")(delete_records)


@app.command("alter")
def alter(
    name: str = typer.Argument(
        ..., metavar="TOPIC", help="The topic's name.", show_default=False, autocompletion=topic_names
    ),
    partitions: int | None = typer.Option(
        None,
        "--partitions",
        "-p",
        metavar="N",
        min=1,
        max=INT32_MAX,
        help="New number of partitions; it can only grow.",
    ),
    settings: list[str] = typer.Option([], "--set", metavar="NAME=VALUE", help="Set a topic option."),
    unset: list[str] = typer.Option([], "--unset", metavar="NAME", help="Give a topic option its default back."),
    bootstrap: str = BOOTSTRAP,
    as_json: bool = JSON,
) -> None:
    """Add partitions, set and unset options."""
    changes = pairs(settings)
    if partitions is None and not changes and not unset:
        raise ClientError("nothing to alter: give --partitions N, --set NAME=VALUE or --unset NAME")

    async def work(admin: Admin) -> None:
        if unset:
            await refuse_unknown_unset(admin, Entity(Resource.TOPIC, name), unset)
        if changes or unset:
            await admin.alter_configs(Resource.TOPIC, name, set=changes, unset=unset)
            done.update(set=changes, unset=unset)
        if partitions is not None:
            await admin.create_partitions(name, partitions)
            done["partitions"] = partitions

    done: dict[str, Any] = {"topic": name}
    try:
        with_admin(bootstrap, work)
    finally:  # what was done before the rest was refused is told, too
        if as_json:
            print_json(done)
        else:
            if "set" in done:
                print(f"{name}: {changes_text(changes, unset)}")
            if "partitions" in done:
                print(f"{name}: {counted(done['partitions'], 'partition')}")
