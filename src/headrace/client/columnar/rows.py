"""What both decoders give: the rows of a few record batches, column by column."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

HEADERS_TYPE = pa.list_(pa.field("element", pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])))
"""Rows without headers are null, as in Spark's Kafka source."""

Int64s = np.ndarray[tuple[int], np.dtype[np.int64]]


@dataclass(slots=True)
class Rows:
    """`key`, `value` and `headers` are Arrow arrays, or None where they were not asked for."""

    offsets: Int64s
    timestamps: Int64s
    kept: Sequence[int] | Int64s
    """How many rows each body gave."""
    one_time: Sequence[bool] | Int64s
    """Of each body, whether its rows have the time at which the log took it."""
    key: Any = None
    value: Any = None
    headers: Any = None


def header_names(names: Any) -> Any:
    """Header names as strings. Clients may write any bytes; Java shows what is no UTF-8 as replacement characters."""
    try:
        return names.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([name.decode("utf-8", "replace") for name in names.to_pylist()], pa.string())
