"""Columns through the compiled `encode` and `partition` kernels: sizes the buffers, calls, says what came out."""

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from headrace.client.columnar.columns import NO_BYTES, NO_OFFSETS, BinaryColumn, RecordColumns
from headrace.client.columnar.kernels import ENCODED_FIELDS, OK
from headrace.client.columnar.native import Native
from headrace.records.layout import HEADER_BYTES

Rows: TypeAlias = npt.NDArray[np.int64]

RECORD_OVERHEAD_MAX = 40
"""Length, attributes, both deltas, two field lengths and a header count, each as long as it can get."""
FIELD_OVERHEAD_MAX = 10


def encode_rows_native(
    kernels: Native, columns: RecordColumns, rows: Rows, batch_bytes_max: int
) -> tuple[npt.NDArray[np.uint8], list[list[int]]]:
    """(the bytes, where each batch lies in them: the fields of ENCODED_FIELDS)"""
    key, value, headers = columns.key, columns.value, columns.headers
    body_bytes = _body_bytes(columns, rows)
    # Two batches side by side always hold more records than one may.
    batches_max = min(len(rows), 2 * body_bytes // max(batch_bytes_max - HEADER_BYTES, 1) + 1)
    out: Any = np.empty(body_bytes + batches_max * HEADER_BYTES, np.uint8)
    found: Any = np.empty(batches_max * ENCODED_FIELDS, np.int64)
    totals: Any = np.zeros(1, np.int64)
    rows = np.ascontiguousarray(rows, np.int64)
    if headers is None:
        nothing, no_offsets = _at(NO_BYTES), _at(NO_OFFSETS)
        header_arguments = no_offsets, nothing, -1, nothing, no_offsets, nothing, no_offsets, nothing, -1, 0
    else:
        header_arguments = (
            _at(headers.offsets),
            _at(headers.validity),
            headers.first,
            _at(headers.names.data),
            _at(headers.names.offsets),
            _at(headers.contents.data),
            _at(headers.contents.offsets),
            _at(headers.contents.validity),
            headers.contents.first,
            1,
        )
    status = kernels.encode(
        _at(rows),
        len(rows),
        _at(columns.timestamps),
        _at(key.data),
        _at(key.offsets),
        _at(key.validity),
        key.first,
        _at(value.data),
        _at(value.offsets),
        _at(value.validity),
        value.first,
        *header_arguments,
        batch_bytes_max,
        HEADER_BYTES,
        _at(out),
        len(out),
        _at(found),
        batches_max,
        _at(totals),
    )
    assert status == OK, "the room for encoded rows was reckoned too small"
    count = int(totals[0])
    return out, found[: count * ENCODED_FIELDS].reshape(count, ENCODED_FIELDS).tolist()


def partitions_native(kernels: Native, keys: BinaryColumn, partitions: int) -> npt.NDArray[np.int32]:
    """The partition of each key, -1 where there is none."""
    chosen: Any = np.empty(len(keys.array), np.int32)
    kernels.partition(
        _at(keys.data), _at(keys.offsets), _at(keys.validity), keys.first, len(chosen), partitions, _at(chosen)
    )
    return chosen


def _body_bytes(columns: RecordColumns, rows: Rows) -> int:
    """An upper bound for the records of `rows`, without batch headers."""
    total = len(rows) * RECORD_OVERHEAD_MAX + int(columns.sizes()[rows].sum())
    headers = columns.headers
    if headers is not None:
        ends: Any = headers.offsets.astype(np.int64)
        names: Any = headers.names.offsets.astype(np.int64)
        contents: Any = headers.contents.offsets.astype(np.int64)
        first, last = ends[rows], ends[rows + 1]
        total += int((last - first).sum()) * FIELD_OVERHEAD_MAX
        total += int((names[last] - names[first]).sum() + (contents[last] - contents[first]).sum())
    return total


def _at(array: Any) -> int:
    address: int = array.ctypes.data
    return address
