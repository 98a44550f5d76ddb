"""Record batches to Arrow through the compiled kernels: sizes the buffers, calls, wraps what came out."""

import sys
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from crc32c import crc32c

from headrace.client.columnar import kernels
from headrace.client.columnar.native import Native
from headrace.client.columnar.rows import HEADERS_TYPE, Rows, header_names
from headrace.client.columnar.walk import Body
from headrace.records.layout import CRC_FROM
from headrace.records.reader import iter_raw

SOURCE_BYTES_MAX = (1 << 31) - 1
"""Positions are 32-bit numbers, as the offsets of an Arrow binary column are."""
BATCHES_MAX = 1024
"""Record batches in one Arrow batch."""


FREE = 3
"""References to an array that only `Memory` holds, as it looks at it: its list's, its own and the one for counting."""
HELD_MAX = 3
"""Arrays for one purpose, besides the newest, that are worth waiting for: the others go when those who have them let
go."""
SMALL_BYTES = 64 << 10
"""Less is had from malloc at no cost."""


class Memory:
    """Arrays for the columns of one thread's decoders, used again once nobody holds what was cut from them.

    The system clears what it hands out afresh, which takes longer than copying a column into it.
    """

    def __init__(self) -> None:
        self._arrays: dict[str, list[Any]] = {}

    def take(self, purpose: str, size: int) -> Any:
        """Bytes, as a numpy array of uint8. Sizes for one purpose are expected to be alike."""
        if size < SMALL_BYTES:
            return np.empty(size, np.uint8)
        held = self._arrays.setdefault(purpose, [])
        for array in held:
            if sys.getrefcount(array) == FREE and len(array) >= size:
                return array[:size]
        # What is free is too small, then.
        held[:] = [array for array in held if sys.getrefcount(array) > FREE][:HELD_MAX]
        held.append(np.empty(size + size // 8, np.uint8))
        return held[-1][:size]

    def trim(self, bytes_max: int) -> None:
        """Forget arrays that are larger than this."""
        for held in self._arrays.values():
            held[:] = [array for array in held if len(array) <= bytes_max]


class Survey:
    """Batches of one buffer as the kernels see them: whole, not compressed, of no aborted transaction.

    `next` takes them group by group, each enough for one Arrow batch, until there is none left or one that is not so.
    """

    def __init__(
        self, native: Native, view: memoryview, start_offset: int, end_offset: int, *, check_crc: bool
    ) -> None:
        self._native = native
        self._view = view
        self._source: Any = np.frombuffer(view, np.uint8)
        self._start_offset = start_offset
        self._end_offset = end_offset
        self._check_crc = check_crc
        self._progress: Any = np.zeros(1, np.int64)
        self.next_offset = start_offset
        """Behind the last batch that was taken."""

    @property
    def position(self) -> int:
        """Where the first batch begins that was not taken."""
        return int(self._progress[0])

    def next(self, rows_max: int, bytes_max: int) -> Any:
        """The table of the next group, for `decode`; None at the end."""
        batches: Any = np.empty((BATCHES_MAX, kernels.BATCH_FIELDS), np.int64)
        checks: Any = np.empty((BATCHES_MAX, kernels.CHECK_FIELDS), np.int64)
        found = self._native.survey(
            self._source.ctypes.data, len(self._view), self._start_offset, self._end_offset, rows_max, bytes_max,
            BATCHES_MAX, batches.ctypes.data, checks.ctypes.data, self._progress.ctypes.data,
        )  # fmt: skip
        if self._check_crc:
            found = self._sound(checks[:found])
        if not found:
            return None
        self.next_offset = max(self.next_offset, int(checks[found - 1, 3]))
        return batches[:found]

    def _sound(self, checks: Any) -> int:
        """How many come before the first that is damaged, which then is the next to be taken."""
        view = self._view
        for index, (start, end, crc, _) in enumerate(checks.tolist()):
            if crc32c(view[start + CRC_FROM : end]) != crc:
                self._progress[0] = start
                return index
        return len(checks)


def decode(
    native: Native,
    memory: Memory,
    source: Any,
    table: Any,
    start_offset: int,
    end_offset: int,
    wanted: Collection[str],
) -> Rows:
    """The records with start_offset <= offset < end_offset of the batches in `table`, whose bodies lie in `source`.

    `wanted` of key, value and headers.
    """
    assert len(source) <= SOURCE_BYTES_MAX
    count = len(table)
    rows_max = int(table[:, 5].sum())
    src = np.frombuffer(source, np.uint8)
    offsets: Any = np.empty(rows_max, np.int64)
    timestamps: Any = np.empty(rows_max, np.int64)
    places: Any = memory.take("places", 24 * rows_max).view(np.int32).reshape(6, rows_max)
    kept: Any = np.zeros(count, np.int64)
    totals: Any = np.zeros(kernels.TOTALS, np.int64)
    status = native.scan(
        src.ctypes.data, table.ctypes.data, count, start_offset, end_offset,
        offsets.ctypes.data, timestamps.ctypes.data, *(place.ctypes.data for place in places),
        kept.ctypes.data, totals.ctypes.data,
    )  # fmt: skip
    if status:
        start, end, base_offset, _, _, claimed = table[status - 1].tolist()
        for _ in iter_raw(bytes(source[start:end]), claimed):
            # Raises, and says what is wrong with which record.
            continue
        raise AssertionError(f"the kernel refuses the batch at offset {base_offset}, the reader does not")
    rows = int(totals[kernels.ROWS])
    key_at, key_length, value_at, value_length, header_at, header_count = places
    found = Rows(offsets[:rows], timestamps[:rows], kept, table[:, 4])
    if "key" in wanted:
        data = memory.take("key", int(totals[kernels.KEY_BYTES]))
        found.key = _gather(native, src, key_at, key_length, rows, data)
    if "value" in wanted:
        data = memory.take("value", int(totals[kernels.VALUE_BYTES]))
        found.value = _gather(native, src, value_at, value_length, rows, data)
    if "headers" in wanted:
        found.headers = _headers(native, src, header_at, header_count, rows, totals)
    return found


def one_source(bodies: Sequence[Body]) -> tuple[Any, Any]:
    """One buffer that holds all bodies, and the kernel's table of them. No copy where they share one already."""
    fields = [
        (body.start, body.end, body.base_offset, body.base_timestamp, body.one_time, body.count) for body in bodies
    ]
    table = np.array(fields, np.int64).reshape(-1, kernels.BATCH_FIELDS)
    if len(bodies) == 1 or all(body.in_place for body in bodies):
        return bodies[0].data, table
    source = b"".join([memoryview(body.data)[body.start : body.end] for body in bodies])
    sizes = table[:, 1] - table[:, 0]
    table[:, 1] = np.cumsum(sizes)
    table[:, 0] = table[:, 1] - sizes
    return source, table


def _gather(native: Native, src: Any, at: Any, length: Any, rows: int, data: Any) -> Any:
    offsets: Any = np.empty(rows + 1, np.int32)
    validity: Any = np.zeros((rows + 7) >> 3, np.uint8)
    nulls = native.gather(
        src.ctypes.data, at.ctypes.data, length.ctypes.data, rows,
        offsets.ctypes.data, data.ctypes.data, validity.ctypes.data,
    )  # fmt: skip
    buffers = [pa.py_buffer(validity) if nulls else None, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), rows, buffers, nulls)


def _headers(native: Native, src: Any, at: Any, count: Any, rows: int, totals: Any) -> Any:
    total = int(totals[kernels.HEADERS])
    offsets: Any = np.empty(rows + 1, np.int32)
    validity: Any = np.zeros((rows + 7) >> 3, np.uint8)
    places: Any = np.empty((4, total), np.int32)
    nulls = native.headers(
        src.ctypes.data, at.ctypes.data, count.ctypes.data, rows,
        offsets.ctypes.data, validity.ctypes.data, *(place.ctypes.data for place in places),
    )  # fmt: skip
    name_at, name_length, content_at, content_length = places
    names, contents = (
        _gather(native, src, *places, total, np.empty(int(totals[size]), np.uint8))
        for places, size in (
            ((name_at, name_length), kernels.HEADER_KEY_BYTES),
            ((content_at, content_length), kernels.HEADER_VALUE_BYTES),
        )
    )
    pairs = pa.StructArray.from_arrays([header_names(names), contents], fields=list(HEADERS_TYPE.value_type))
    buffers = [pa.py_buffer(validity) if nulls else None, pa.py_buffer(offsets)]
    return pa.Array.from_buffers(HEADERS_TYPE, rows, buffers, nulls, children=[pairs])
