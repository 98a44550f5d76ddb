"""What the `encode` and `partition` kernels do, without numba: the same bytes, and the same choice of partitions."""

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.client.columnar.columns import BinaryColumn, RecordColumns
from headrace.client.produce.partitioner import partition_for_key
from headrace.records.builder import encode_record
from headrace.records.reader import Headers


def encode_rows_python(
    columns: RecordColumns, rows: npt.NDArray[np.int64], batch_bytes_max: int, header_room: int
) -> tuple[bytearray, list[list[int]]]:
    """(the bytes, [start, end, first row, count, base timestamp, maximum timestamp] of each batch)"""
    order = pa.array(rows)
    keys = as_bytes(columns.key.array.take(order))
    values = as_bytes(columns.value.array.take(order))
    headers = _headers(columns, order)
    times: list[int] = columns.timestamps[rows].tolist()
    out = bytearray()
    found: list[list[int]] = []
    batch: list[int] = []
    for index, timestamp in enumerate(times):
        record = b""
        if batch:
            record = encode_record(batch[3], timestamp - batch[4], keys[index], values[index], headers[index])
        if not batch or len(out) - batch[0] + len(record) > batch_bytes_max:
            batch = [len(out), 0, index, 0, timestamp, timestamp]
            found.append(batch)
            out += bytes(header_room)
            record = encode_record(0, 0, keys[index], values[index], headers[index])
        out += record
        batch[1] = len(out)
        batch[3] += 1
        batch[5] = max(batch[5], timestamp)
    return out, found


def partitions_python(keys: BinaryColumn, partitions: int) -> npt.NDArray[np.int32]:
    """The partition of each key, -1 where there is none."""
    chosen = [-1 if key is None else partition_for_key(key, partitions) for key in as_bytes(keys.array)]
    return np.array(chosen, np.int32)


def as_bytes(array: pa.Array) -> list[bytes | None]:
    """A binary or string array as Python bytes."""
    found: list[bytes | None] = array.cast(pa.binary()).to_pylist()
    return found


def _headers(columns: RecordColumns, order: pa.Array) -> list[Headers]:
    if columns.headers is None:
        return [()] * len(order)
    lists = columns.headers.array.take(order).to_pylist()
    return [tuple((one["key"], one["value"]) for one in row) if row else () for row in lists]
