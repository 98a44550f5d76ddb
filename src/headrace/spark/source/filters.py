"""Filters of a query as bounds on what is fetched: partitions, offsets and times. Only ever narrows."""

import math
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from headrace.spark.source.offsets import OffsetRange

if TYPE_CHECKING:
    from headrace.spark.source.lookup import Lookup

EQUAL = (EqualTo, EqualNullSafe)


@dataclass
class FilterBounds:
    """What is known of the rows that a query wants. None: anything."""

    topics: set[str] | None = None
    partitions: set[int] | None = None
    start_offset: int | None = None
    end_offset: int | None = None
    start_ms: int | None = None

    def take(self, one: Any) -> None:
        """Learn from one filter; those of other kinds and columns say nothing."""
        path: tuple[str, ...] = getattr(one, "attribute", ())
        if len(path) != 1:
            return
        name, value = path[0], getattr(one, "value", None)
        if value is None:
            return
        if name in ("topic", "partition"):
            self._take_set(name, one, value)
        elif name == "offset" and isinstance(value, int):
            self._take_offset(one, value)
        elif name == "timestamp" and isinstance(value, datetime):
            self._take_time(one, value)

    def _take_set(self, name: str, one: Any, value: Any) -> None:
        if isinstance(one, EQUAL):
            wanted = {value}
        elif isinstance(one, In):
            wanted = {item for item in value if item is not None}
        else:
            return
        field_name = "topics" if name == "topic" else "partitions"
        known = getattr(self, field_name)
        setattr(self, field_name, wanted if known is None else known & wanted)

    def _take_offset(self, one: Any, value: int) -> None:
        if isinstance(one, (*EQUAL, GreaterThanOrEqual)):
            self._start_at(value)
        if isinstance(one, (*EQUAL, LessThanOrEqual)):
            self._end_at(value + 1)
        if isinstance(one, GreaterThan):
            self._start_at(value + 1)
        if isinstance(one, LessThan):
            self._end_at(value)

    def _start_at(self, offset: int) -> None:
        self.start_offset = offset if self.start_offset is None else max(self.start_offset, offset)

    def _end_at(self, offset: int) -> None:
        self.end_offset = offset if self.end_offset is None else min(self.end_offset, offset)

    def _take_time(self, one: Any, value: datetime) -> None:
        # Only the lower bound: a broker finds the first record that is as young, and older ones may follow any.
        if not isinstance(one, (*EQUAL, GreaterThan, GreaterThanOrEqual)):
            return
        aware = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
        start_ms = math.floor(aware.timestamp() * 1000)
        self.start_ms = start_ms if self.start_ms is None else max(self.start_ms, start_ms)

    def narrow(self, ranges: list[OffsetRange], lookup: "Lookup") -> list[OffsetRange]:
        """The parts of the ranges that the filters leave."""
        kept = [
            OffsetRange(
                one.topic,
                one.partition,
                one.start_offset if self.start_offset is None else max(one.start_offset, self.start_offset),
                one.end_offset if self.end_offset is None else min(one.end_offset, self.end_offset),
            )
            for one in ranges
            if (self.topics is None or one.topic in self.topics)
            and (self.partitions is None or one.partition in self.partitions)
        ]
        if self.start_ms is None or self.start_ms < 0:
            return kept
        first = lookup.first_at(self.start_ms, [(one.topic, one.partition) for one in kept])
        return [
            one._replace(start_offset=max(one.start_offset, found if found >= 0 else one.end_offset))
            for one, found in ((one, first[one.topic, one.partition]) for one in kept)
        ]
