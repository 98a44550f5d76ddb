"""Arrow columns to record batches: pick rows, cut them into batches, write records, compress.

Compiled kernels do the writing where they can be had (`encode_native`), `encode_python` does elsewhere, byte for byte
the same. A batch
comes out unsealed: who sends it knows its producer and sequence, and the CRC covers both.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from headrace.client.columnar import native
from headrace.client.columnar.columns import BinaryColumn, RecordColumns
from headrace.client.columnar.encode_native import encode_rows_native, partitions_native
from headrace.client.columnar.encode_python import encode_rows_python, partitions_python
from headrace.records.builder import set_producer
from headrace.records.compression import Codec, compress
from headrace.records.layout import (
    HEADER,
    HEADER_BYTES,
    LOG_OVERHEAD,
    NO_LEADER_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    TRANSACTIONAL,
    next_sequence,
)

Rows: TypeAlias = npt.NDArray[np.int64]

BATCH_BYTES_MAX = 256 << 10


@dataclass(slots=True)
class Unsealed:
    """A whole batch but for its producer, sequence and CRC."""

    view: memoryview
    count: int

    def seal(
        self,
        producer_id: int = NO_PRODUCER_ID,
        producer_epoch: int = NO_PRODUCER_EPOCH,
        base_sequence: int = NO_SEQUENCE,
    ) -> memoryview:
        set_producer(self.view, producer_id, producer_epoch, base_sequence)
        return self.view


def encode_rows(
    columns: RecordColumns,
    rows: Rows | None = None,
    *,
    codec: int = Codec.NONE,
    level: int | None = None,
    batch_bytes_max: int = BATCH_BYTES_MAX,
    transactional: bool = False,
) -> list[Unsealed]:
    """Batches of at most `batch_bytes_max` before compression (a larger record has one of its own), rows in order."""
    if rows is None:
        rows = np.arange(len(columns), dtype=np.int64)
    if not len(rows):
        return []
    kernels = native.load()
    if kernels is None:
        out, found = encode_rows_python(columns, rows, batch_bytes_max, HEADER_BYTES)
    else:
        out, found = encode_rows_native(kernels, columns, rows, batch_bytes_max)
    attributes = int(codec) | (TRANSACTIONAL if transactional else 0)
    whole = memoryview(out)
    return [_finish(whole, piece, int(codec), level, attributes) for piece in found]


def encode_batches(
    columns: RecordColumns,
    rows: Rows | None = None,
    *,
    codec: int = Codec.NONE,
    level: int | None = None,
    batch_bytes_max: int = BATCH_BYTES_MAX,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
) -> list[memoryview]:
    """`encode_rows` with everything filled in, sequences counting on from `base_sequence`."""
    sealed = []
    for batch in encode_rows(columns, rows, codec=codec, level=level, batch_bytes_max=batch_bytes_max):
        sealed.append(batch.seal(producer_id, producer_epoch, base_sequence))
        if base_sequence != NO_SEQUENCE:
            base_sequence = next_sequence(base_sequence, batch.count)
    return sealed


def partitions_of(keys: BinaryColumn, partitions: int) -> npt.NDArray[np.int32]:
    """The partition of each key as Kafka's own clients choose it, -1 where there is no key."""
    kernels = native.load()
    if kernels is None:
        return partitions_python(keys, partitions)
    return partitions_native(kernels, keys, partitions)


def _finish(whole: memoryview, piece: Sequence[int], codec: int, level: int | None, attributes: int) -> Unsealed:
    start, end, _, count, base_timestamp, max_timestamp = piece
    view = whole[start:end]
    if codec:
        body = compress(codec, view[HEADER_BYTES:], level)
        view = memoryview(bytearray(HEADER_BYTES + len(body)))
        view[HEADER_BYTES:] = body
    HEADER.pack_into(
        view,
        0,
        0,
        len(view) - LOG_OVERHEAD,
        NO_LEADER_EPOCH,
        2,
        0,
        attributes,
        count - 1,
        base_timestamp,
        max_timestamp,
        NO_PRODUCER_ID,
        NO_PRODUCER_EPOCH,
        NO_SEQUENCE,
        count,
    )
    return Unsealed(view, count)
