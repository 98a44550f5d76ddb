"""Offsets of a query: how options and checkpoints write them, how a range is cut into tasks, how a batch is limited.

Pure; the JSON is that of Spark's Kafka connector, {"topic": {"0": 23}}, so that its checkpoints' offsets read the same.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from headrace.spark.options import OptionError

TopicPartition = tuple[str, int]
Offsets = dict[TopicPartition, int]

LATEST, EARLIEST = -1, -2
GROUP = "group:"
OFFSET_MAX = (1 << 63) - 1
EXAMPLE = '{"orders": {"0": 23, "1": -2}}'


class Position(NamedTuple):
    """Where to start or end. One of `kind`: earliest, latest, offsets, timestamps, timestamp, group."""

    kind: str
    by_partition: Mapping[TopicPartition, int] = {}
    timestamp: int = -1
    group: str = ""

    @property
    def moves(self) -> bool:
        """Whether it may be somewhere else when it is asked for again. "earliest" only moves past what is gone."""
        return self.kind not in ("earliest", "offsets") or LATEST in self.by_partition.values()


class OffsetRange(NamedTuple):
    """start_offset <= offset < end_offset of one partition."""

    topic: str
    partition: int
    start_offset: int
    end_offset: int

    @property
    def size(self) -> int:
        return self.end_offset - self.start_offset


# -- what options say


def starting_position(values: Mapping[str, Any], *, streaming: bool) -> Position:
    """A timestamp for all wins over timestamps by partition, those over offsets, as in Spark's connector."""
    found = _position(values, "starting")
    if found is None:
        return Position("latest" if streaming else "earliest")
    if not streaming:
        if found.kind == "latest":
            raise OptionError(
                "option 'startingOffsets' is 'latest'",
                "a batch query would be empty; write earliest or offsets",
                option="startingOffsets",
            )
        for (topic, partition), offset in found.by_partition.items():
            if found.kind == "offsets" and offset == LATEST:
                raise OptionError(
                    f"option 'startingOffsets' has -1 (latest) for {topic}-{partition}",
                    "a batch query cannot start there",
                    option="startingOffsets",
                )
    return found


def ending_position(values: Mapping[str, Any]) -> Position:
    found = _position(values, "ending")
    if found is None:
        return Position("latest")
    if found.kind in ("earliest", "group"):
        raise OptionError(
            f"option 'endingOffsets' is {values['endingOffsets']!r}",
            "it must be latest or offsets by partition",
            option="endingOffsets",
        )
    for (topic, partition), offset in found.by_partition.items():
        if found.kind == "offsets" and offset == EARLIEST:
            raise OptionError(
                f"option 'endingOffsets' has -2 (earliest) for {topic}-{partition}",
                "a query cannot end there",
                option="endingOffsets",
            )
    return found


def check_order(start: Position, end: Position) -> None:
    """Bounds by partition must speak of the same partitions, and the first come first."""
    if start.kind != end.kind or start.kind not in ("offsets", "timestamps"):
        return
    if start.by_partition.keys() != end.by_partition.keys():
        odd = sorted(start.by_partition.keys() ^ end.by_partition.keys())
        raise OptionError(
            f"starting and ending {start.kind} name different partitions", f"{listed(odd)} in only one of them"
        )
    for (topic, partition), first in start.by_partition.items():
        last = end.by_partition[topic, partition]
        if first > last >= 0:
            raise OptionError(f"{topic}-{partition} starts at {first}, behind its end at {last}", "swap or mend them")


def _position(values: Mapping[str, Any], side: str) -> Position | None:
    timestamp = values[f"{side}Timestamp"]
    if timestamp is not None:
        return Position("timestamp", timestamp=timestamp)
    name = f"{side}OffsetsByTimestamp"
    if values[name] is not None:
        return Position("timestamps", by_partition=parse_offsets(name, values[name]))
    name = f"{side}Offsets"
    given = values[name]
    if given is None:
        return None
    if given.lower() in ("earliest", "latest"):
        return Position(given.lower())
    if given.lower().startswith(GROUP):
        group = given[len(GROUP) :].strip()
        if not group:
            raise OptionError(f"option {name!r} is {given!r}", "name a group behind the colon", option=name)
        return Position("group", group=group)
    if not given.lstrip().startswith("{"):
        words = "earliest, latest, group:<id>" if side == "starting" else "latest"
        raise OptionError(f"option {name!r} is {given!r}", f"write {words}, or offsets such as {EXAMPLE}", option=name)
    found = parse_offsets(name, given)
    for (topic, partition), offset in found.items():
        if offset < EARLIEST:
            raise OptionError(
                f"option {name!r} has {offset} for {topic}-{partition}",
                "write an offset, -1 (latest) or -2 (earliest)",
                option=name,
            )
    return Position("offsets", by_partition=found)


def parse_offsets(name: str, text: str) -> Offsets:
    """{"topic": {"0": 23, "1": -2}}"""
    found: Offsets = {}
    for topic, partitions in _json_object(name, text, EXAMPLE).items():
        if not isinstance(partitions, dict):
            raise OptionError(
                f"option {name!r}", f'what {topic!r} has is no object of partitions such as {{"0": 23}}', option=name
            )
        for partition, offset in partitions.items():
            if not partition.isdecimal() or not isinstance(offset, int) or isinstance(offset, bool):
                raise OptionError(
                    f"option {name!r}",
                    f"{topic!r} has {partition!r}: {offset!r}, not a partition and a whole number",
                    option=name,
                )
            found[topic, int(partition)] = offset
    if not found:
        raise OptionError(f"option {name!r} names no partition", option=name)
    return found


def parse_assign(text: str) -> tuple[TopicPartition, ...]:
    """{"topic": [0, 1]}"""
    found: list[TopicPartition] = []
    for topic, partitions in _json_object("assign", text, '{"orders": [0, 1]}').items():
        if not isinstance(partitions, list) or not all(type(one) is int and one >= 0 for one in partitions):
            raise OptionError(
                "option 'assign'", f"what {topic!r} has is no list of partitions such as [0, 1]", option="assign"
            )
        found += [(topic, one) for one in partitions]
    if not found:
        raise OptionError("option 'assign' names no partition", option="assign")
    return tuple(sorted(set(found)))


def _json_object(name: str, text: str, example: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except json.JSONDecodeError as error:
        where = f"{error.msg} at character {error.pos}"
        raise OptionError(
            f"option {name!r} is {text!r}, which is no JSON ({where})", f"write it as {example}", option=name
        ) from None
    if not isinstance(found, dict):
        raise OptionError(f"option {name!r} is {text!r}", f"write it as {example}", option=name)
    return found


# -- checkpoints


def to_json(offsets: Mapping[TopicPartition, int]) -> dict[str, dict[str, int]]:
    """In one order, always: Spark compares offsets as texts."""
    found: dict[str, dict[str, int]] = {}
    for topic, partition in sorted(offsets):
        found.setdefault(topic, {})[str(partition)] = offsets[topic, partition]
    return found


def from_json(data: Mapping[str, Mapping[str, int]]) -> Offsets:
    return {(topic, int(partition)): offset for topic, found in data.items() for partition, offset in found.items()}


# -- limits


def limited(start: Offsets, end: Offsets, limit: int) -> Offsets:
    """At most about `limit` offsets in all, shared among partitions by what each has; none is starved."""
    sizes = {one: offset - start.get(one, offset) for one, offset in end.items()}
    total = sum(size for size in sizes.values() if size > 0)
    if total < 1:
        return end
    found = {}
    for one, offset in end.items():
        size = sizes[one]
        if size <= 0:
            found[one] = offset
            continue
        share = limit * (size / total)
        found[one] = min(offset, start[one] + (math.ceil(share) if share < 1 else math.floor(share)))
    return found


def available(start: Offsets, end: Offsets) -> int:
    return sum(offset - start.get(one, 0) for one, offset in end.items())


# -- tasks


def split(ranges: Iterable[OffsetRange], min_partitions: int | None, max_records: int | None) -> list[OffsetRange]:
    """Ranges as tasks, empty ones left out: no more than `max_records` in any, and about `min_partitions` of them."""
    parts = [one for one in ranges if one.size > 0]
    if max_records is not None:
        parts = [piece for one in parts for piece in _cut(one, math.ceil(one.size / max_records))]
    if min_partitions is None or len(parts) >= min_partitions:
        return parts
    total = sum(one.size for one in parts)
    # Small ranges stay whole, and are left out of the sharing among the large ones.
    whole = [one for one in parts if _pieces(one, total, min_partitions) == 1]
    rest = total - sum(one.size for one in whole)
    wanted = max(min_partitions - len(whole), 1)
    kept = set(whole)
    return [piece for one in parts for piece in ([one] if one in kept else _cut(one, _pieces(one, rest, wanted)))]


def _pieces(one: OffsetRange, total: int, wanted: int) -> int:
    return max(math.floor(one.size / total * wanted + 0.5), 1)


def _cut(one: OffsetRange, pieces: int) -> list[OffsetRange]:
    found = []
    start, left = one.start_offset, one.size
    for index in range(pieces):
        size = left // (pieces - index)
        left -= size
        if size:
            found.append(OffsetRange(one.topic, one.partition, start, start + size))
        start += size
    return found


def listed(partitions: Sequence[TopicPartition], limit: int = 5) -> str:
    shown = ", ".join(f"{topic}-{partition}" for topic, partition in partitions[:limit])
    return shown if len(partitions) <= limit else f"{shown} and {len(partitions) - limit} more"
