"""`headrace topic delete-records`: let go of a topic's oldest records, as `kafka-delete-records.sh` does."""

import json
import time
from pathlib import Path

import typer

from headrace.cli.completion import topic_names
from headrace.cli.group_reset import parse_duration
from headrace.cli.output import BOOTSTRAP, JSON, YES, confirm, print_json, with_admin
from headrace.client.admin.admin import EARLIEST, LATEST, Admin
from headrace.client.admin.groups import TopicPartition
from headrace.client.errors import ClientError
from headrace.terminal import print_table, shown

TO_THE_END = -1


def delete_records(
    place: str | None = typer.Argument(
        None,
        metavar="TOPIC[:PARTITION]",
        help="A topic, or one of its partitions.",
        show_default=False,
        autocompletion=topic_names,
    ),
    before: int | None = typer.Option(
        None, "--before", metavar="OFFSET", min=0, help="Delete records below this offset.", show_default=False
    ),
    older_than: str | None = typer.Option(
        None, "--older-than", metavar="TIME", help="Delete records older than this, such as 2h or 1d12h."
    ),
    everything: bool = typer.Option(False, "--all", help="Delete every record there is."),
    file: Path | None = typer.Option(
        None,
        "--offset-json-file",
        metavar="FILE",
        help="Delete what this file says, in the format of Kafka's tool; -1 is the end.",
    ),
    yes: bool = YES,
    bootstrap: str = BOOTSTRAP,
    as_json: bool = JSON,
) -> None:
    """Delete the oldest records of a topic.

    Offsets of the others stay as they are. Files go as soon as whole segments are below the new start.
    """
    ways = [before is not None, older_than is not None, everything, file is not None]
    if sum(ways) != 1:
        raise ClientError(
            "say which records, in one way: --before OFFSET, --older-than TIME, --all, --offset-json-file"
        )
    if (file is None) == (place is None):
        raise ClientError("name a topic, or give --offset-json-file and none")
    since_ms = None if older_than is None else _now_ms() - parse_duration(older_than, "--older-than")
    wanted = {} if file is None else read_offsets(file)
    what = str(file) if place is None else shown(place)
    confirm(f"Delete records of {what} for good?", yes)

    async def work(admin: Admin) -> list[dict[str, object]]:
        limits = wanted if place is None else await _limits(admin, place, before, since_ms)
        return await _delete(admin, limits)

    rows = with_admin(bootstrap, work)
    if as_json:
        print_json(rows)
    else:
        table = [(row["topic"], row["partition"], row["start_offset"], row["deleted"]) for row in rows]
        columns = ("TOPIC", "PARTITION", "START", "DELETED")
        print_table(columns, table, numbers=columns[1:])


def read_offsets(path: Path) -> dict[TopicPartition, int]:
    """Kafka's format: {"version": 1, "partitions": [{"topic": "t", "partition": 0, "offset": 5}]}. Raises
    ClientError."""
    try:
        rows = json.loads(path.read_text())["partitions"]
        return {(str(row["topic"]), int(row["partition"])): int(row["offset"]) for row in rows}
    except OSError as error:
        raise ClientError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, TypeError, KeyError) as error:
        raise ClientError(f"{path} does not say which records to delete: {error}") from None


async def _limits(admin: Admin, place: str, before: int | None, since_ms: int | None) -> dict[TopicPartition, int]:
    """Below which offset each partition is to be cut; TO_THE_END for all of it."""
    name, colon, index = place.rpartition(":")
    if not colon:
        name, index = place, ""
    elif not index.isdecimal():
        raise ClientError(f"{place!r}: write TOPIC or TOPIC:PARTITION, such as orders:3")
    there = (await admin.describe_topic(name)).partitions
    if index and int(index) not in there:
        raise ClientError(f"topic {name!r} has no partition {index}: it has {len(there)}")
    chosen = [int(index)] if index else list(there)
    if since_ms is not None:
        # No record as young as that: all are older.
        found = await admin.list_offsets(name, dict.fromkeys(chosen, since_ms))
        return {(name, at): row.offset if row.offset >= 0 else TO_THE_END for at, row in found.items()}
    if before is None:
        return {(name, at): TO_THE_END for at in chosen}
    ends = await admin.list_offsets(name, dict.fromkeys(chosen, LATEST))
    return {(name, at): min(before, row.offset) for at, row in ends.items()}


async def _delete(admin: Admin, limits: dict[TopicPartition, int]) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for topic in dict.fromkeys(topic for topic, _ in limits):
        before = {index: offset for (name, index), offset in limits.items() if name == topic}
        old = await admin.list_offsets(topic, dict.fromkeys(before, EARLIEST))
        new = await admin.delete_records(topic, before)
        rows += [
            {"topic": topic, "partition": index, "start_offset": start, "deleted": max(0, start - old[index].offset)}
            for index, start in sorted(new.items())
        ]
    return rows


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
