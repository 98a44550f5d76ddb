"""Spark's rows as records to be written: which column means what, and Arrow batches taken apart accordingly.

Columns are those of Spark's Kafka sink: value, and optionally key, headers, topic, partition. Their types are checked
once, on the driver, before any task runs.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructType,
    TimestampType,
)

from headrace.client.columnar.rows import HEADERS_TYPE
from headrace.spark.plain_errors import UserError

CHUNK_BYTES = 1 << 20
"""Small Arrow batches are joined up to this: records of few rows spread over many partitions make poor batches."""

DEDUP_HEADERS = ("headrace.query", "headrace.batch", "headrace.partition", "headrace.row")


class SchemaError(UserError, ValueError):
    """The columns to be written cannot be; names the column and what to do about it."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Where each part of a record comes from: an index of a column, or None."""

    value: int | None
    key: int | None = None
    headers: int | None = None
    topic: int | None = None
    partition: int | None = None
    timestamp: int | None = None
    fields: tuple[int, ...] = ()
    """Columns that make up a typed value, where there is no value column."""


def layout_of(schema: StructType, *, topic: str | None, timestamp_column: str | None, typed: bool) -> Layout:
    """The meaning of each column by its name, as in Spark's Kafka sink; others are left out. Raises SchemaError."""
    found = {name.lower(): index for index, name in enumerate(schema.fieldNames())}
    if len(found) < len(schema.fieldNames()):
        raise SchemaError(f"two columns differ only in case: {', '.join(schema.fieldNames())}; rename one of them")

    def column(name: str, wanted: str, fix: str, *types: type[DataType]) -> int | None:
        index = found.get(name.lower())
        if index is not None and not isinstance(schema[index].dataType, types):
            kind = schema[index].dataType.simpleString()
            raise SchemaError(f"column '{name}' is {kind}, but must be {wanted}: {fix}")
        return index

    key = column("key", "string or binary", "use CAST(key AS STRING)", StringType, BinaryType)
    topic_column = column("topic", "string", "use CAST(topic AS STRING)", StringType)
    partition = column("partition", "int", "use CAST(partition AS INT)", IntegerType)
    timestamp = None
    if timestamp_column is not None:
        if timestamp_column.lower() not in found:
            raise SchemaError(f"there is no column '{timestamp_column}', which option timestampColumn names")
        timestamp = column(
            timestamp_column,
            "timestamp, or bigint milliseconds",
            f"use CAST({timestamp_column} AS TIMESTAMP)",
            TimestampType,
            LongType,
        )
    headers = _headers_column(schema, found)
    if topic is None and topic_column is None:
        raise SchemaError("nothing says which topic to write to: set option 'topic', or add a column 'topic'")
    value, fields = _value_column(schema, found, typed, timestamp)
    return Layout(value, key, headers, topic_column, partition, timestamp, fields)


def _headers_column(schema: StructType, found: dict[str, int]) -> int | None:
    index = found.get("headers")
    if index is None:
        return None
    kind = schema[index].dataType
    element = kind.elementType if isinstance(kind, ArrayType) else None
    types = [type(field.dataType) for field in element] if isinstance(element, StructType) else []
    if types != [StringType, BinaryType]:
        raise SchemaError(
            f"column 'headers' is {kind.simpleString()}, but must be array<struct<key:string,value:binary>>: "
            "use array(struct('name' AS key, CAST('content' AS BINARY) AS value))"
        )
    return index


def _value_column(
    schema: StructType, found: dict[str, int], typed: bool, timestamp: int | None
) -> tuple[int | None, tuple[int, ...]]:
    index = found.get("value")
    if not typed:
        if index is None:
            raise SchemaError(
                "there is no column 'value': name the column to be written so, build one with "
                "to_json(struct(*)) AS value, or set option valueFormat to have all columns encoded"
            )
        kind = schema[index].dataType
        if not isinstance(kind, StringType | BinaryType):
            raise SchemaError(
                f"column 'value' is {kind.simpleString()}, but must be string or binary: use CAST(value AS STRING), "
                "to_json(value), or option valueFormat"
            )
        return index, ()
    if index is not None:
        if not isinstance(schema[index].dataType, StructType):
            raise SchemaError(
                f"column 'value' is {schema[index].dataType.simpleString()}, but valueFormat encodes a struct: "
                "use struct(...) AS value, or rename it to have it encoded as a field"
            )
        return index, ()
    meaning = {found.get(name) for name in ("key", "headers", "topic", "partition")} | {timestamp}
    fields = tuple(index for index in range(len(schema.fieldNames())) if index not in meaning)
    if not fields:
        raise SchemaError(
            "valueFormat is set, but no column is left to be encoded: add one, or a struct column 'value'"
        )
    return None, fields


# -- Arrow batches


def chunks(batches: Iterator[pa.RecordBatch], size_bytes: int = CHUNK_BYTES) -> Iterator[pa.RecordBatch]:
    """The same rows in batches of at least `size_bytes`, but for the last."""
    held: list[pa.RecordBatch] = []
    held_bytes = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        held.append(batch)
        held_bytes += batch.nbytes
        if held_bytes >= size_bytes:
            yield _joined(held)
            held, held_bytes = [], 0
    if held:
        yield _joined(held)


def _joined(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def timestamps_of(column: pa.Array, now_ms: int) -> npt.NDArray[np.int64]:
    """Milliseconds; rows without a time get `now_ms`."""
    per_ms = 1
    if pa.types.is_timestamp(column.type):
        # As numbers: Arrow rounds times on the clocks of their zone, which show an hour twice when summer ends.
        column, per_ms = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64()), 1000
    times: npt.NDArray[np.int64] = column.fill_null(now_ms * per_ms).to_numpy(zero_copy_only=False) // per_ms
    return times


def with_dedup_headers(
    headers: pa.ListArray | None, identity: Sequence[str], first_row: int, rows: int
) -> pa.ListArray:
    """`headers` with four more behind them: query, batch and partition as in `identity`, and the row's own number."""
    own = len(DEDUP_HEADERS)
    if headers is None:
        headers = pa.nulls(rows, HEADERS_TYPE)
    headers = headers.fill_null([]) if headers.null_count else headers
    old_names, old_contents = headers.flatten().flatten()
    numbers = pa.array(np.arange(first_row, first_row + rows)).cast(pa.string()).cast(pa.binary())
    constants = pa.array([text.encode() for text in identity], pa.binary())
    old = len(old_names)
    names = pa.concat_arrays([old_names.cast(pa.string()), pa.array(DEDUP_HEADERS, pa.string())])
    contents = pa.concat_arrays([old_contents.cast(pa.binary()), constants, numbers])
    lengths: Any = headers.value_lengths().to_numpy(zero_copy_only=False).astype(np.int64)
    ends: Any = np.cumsum(lengths + own)
    name_at: Any = np.empty(old + own * rows, np.int64)
    content_at: Any = np.empty_like(name_at)
    places: Any = (ends - own)[:, None] + np.arange(own)
    is_old: Any = np.ones(len(name_at), bool)
    is_old[places.ravel()] = False
    name_at[is_old] = content_at[is_old] = np.arange(old)
    name_at[places] = old + np.arange(own)
    content_at[places] = old + np.arange(own)
    content_at[ends - 1] = old + len(constants) + np.arange(rows)
    pairs = pa.StructArray.from_arrays(
        [names.take(pa.array(name_at)), contents.take(pa.array(content_at))], ["key", "value"]
    )
    offsets: Any = np.concatenate(([0], ends)).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), pairs)
