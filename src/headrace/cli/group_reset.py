"""Where a group's offsets are to go: the ways of Kafka's own tool, and the files it reads and writes."""

import csv
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from headrace.client.admin.admin import EARLIEST, LATEST, Admin
from headrace.client.admin.groups import Committed, TopicPartition
from headrace.client.errors import ClientError

DURATION = re.compile(
    r"P(?:(?P<days>\d+)D)?(?:T(?=\d)(?:(?P<hours>\d+)H)?(?:(?P<minutes>\d+)M)?(?:(?P<seconds>\d+(?:\.\d+)?)S)?)?"
)
SHORT_DURATION = re.compile(
    r"(?:(?P<days>\d+)d)?(?:(?P<hours>\d+)h)?(?:(?P<minutes>\d+)m)?(?:(?P<seconds>\d+(?:\.\d+)?)s)?"
)


class Way(NamedTuple):
    """How to choose new offsets: exactly one of Kafka's ways, with its argument."""

    name: str
    value: str | int | None = None


class Move(NamedTuple):
    """One offset that changes. `note` says where it differs from what was asked for."""

    topic: str
    partition: int
    old: int | None
    new: int
    note: str = ""


def parse_topics(texts: Sequence[str]) -> dict[str, set[int] | None]:
    """`topic` or `topic:0,1,2`; None stands for all partitions."""
    found: dict[str, set[int] | None] = {}
    for text in texts:
        name, colon, rest = text.partition(":")
        if not name or (colon and not all(part.strip().isdecimal() for part in rest.split(","))):
            raise ClientError(f"--topic {text}: write --topic NAME, or --topic NAME:0,1,2 for some partitions")
        earlier = found.get(name, set())
        found[name] = None if not colon or earlier is None else earlier | {int(part) for part in rest.split(",")}
    return found


def parse_datetime(text: str) -> int:
    """ISO 8601; without a zone it is UTC, as for Kafka's tool. Milliseconds since 1970."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ClientError(f"--to-datetime {text}: write 2026-11-15T20:30:00 or 2026-11-15T20:30:00.000+01:00") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    # Times before 1970 are no times to a broker: -1 and -2 are the end and the start.
    return max(0, int(moment.timestamp() * 1000))


def parse_duration(text: str, option: str = "--by-duration") -> int:
    """2h, 1d12h, 90s, or ISO 8601 as Java reads it: P1D, PT2H30M. Milliseconds."""
    match = SHORT_DURATION.fullmatch(text.strip().lower()) or DURATION.fullmatch(text.strip().upper())
    if match is None or not any(match.groups()):
        raise ClientError(
            f"{option} {text}: write 30m, 2h or 1d12h, or as Kafka's tools have it PT30M, PT2H or P1DT12H"
        )
    parts = {name: float(value) for name, value in match.groupdict().items() if value}
    try:
        return int(timedelta(**parts).total_seconds() * 1000)
    except OverflowError:
        raise ClientError(f"{option} {text}: that is longer ago than can be counted") from None


def read_file(path: Path, group_id: str) -> dict[TopicPartition, int]:
    """Lines of `topic,partition,offset`, or `group,topic,partition,offset`, as --export writes them."""
    found: dict[TopicPartition, int] = {}
    try:
        with path.open(newline="") as file:
            rows = [row for row in csv.reader(file) if row]
    except OSError as error:
        raise ClientError(f"{path}: {(error.strerror or str(error)).lower()}") from None
    except (UnicodeDecodeError, csv.Error):
        raise ClientError(f"{path} is no text of lines topic,partition,offset") from None
    for number, row in enumerate(rows, 1):
        cells = [cell.strip() for cell in row]
        if len(cells) == 4:
            if cells[0] != group_id:
                continue
            cells = cells[1:]
        if len(cells) != 3 or not cells[1].isdecimal() or not cells[2].isdecimal():
            raise ClientError(f"{path}, line {number}: write topic,partition,offset")
        found[cells[0], int(cells[1])] = int(cells[2])
    if not found:
        raise ClientError(f"{path} names no offsets of group {group_id!r}")
    return found


async def plan(
    admin: Admin,
    way: Way,
    partitions: Iterable[TopicPartition],
    committed: Mapping[TopicPartition, Committed],
    from_file: Mapping[TopicPartition, int],
    now_ms: int,
) -> list[Move]:
    """The new offset of every partition, inside what its log holds."""
    by_topic: dict[str, list[int]] = {}
    for topic, index in partitions:
        by_topic.setdefault(topic, []).append(index)
    moves = []
    for topic, indexes in sorted(by_topic.items()):
        starts = await admin.list_offsets(topic, dict.fromkeys(indexes, EARLIEST))
        ends = await admin.list_offsets(topic, dict.fromkeys(indexes, LATEST))
        timestamp = _timestamp(way, now_ms)
        timed = {} if timestamp is None else await admin.list_offsets(topic, dict.fromkeys(indexes, timestamp))
        for index in sorted(indexes):
            old = committed.get((topic, index))
            start, end = starts[index].offset, ends[index].offset
            wanted = _wanted(
                way, old, start, end, timed[index].offset if timed else -1, from_file.get((topic, index), -1)
            )
            new = min(max(wanted, start), end)
            note = f"{wanted} is {'below the start' if wanted < start else 'above the end'}" if new != wanted else ""
            moves.append(Move(topic, index, None if old is None else old.offset, new, note))
    return moves


def _timestamp(way: Way, now_ms: int) -> int | None:
    if way.name == "to-datetime":
        return parse_datetime(str(way.value))
    if way.name == "by-duration":
        return max(0, now_ms - parse_duration(str(way.value)))
    return None


def _wanted(way: Way, old: Committed | None, start: int, end: int, timed: int, from_file: int) -> int:
    match way.name:
        case "to-earliest":
            return start
        case "to-latest":
            return end
        case "to-current":
            return end if old is None else old.offset
        case "to-offset":
            return int(way.value or 0)
        case "shift-by":
            if old is None:
                raise ClientError(
                    "--shift-by: the group has no committed offset in one of the partitions to shift from"
                )
            return old.offset + int(way.value or 0)
        case "from-file":
            return from_file
        case _:
            # No record is that young: go to the end.
            return end if timed < 0 else timed
