"""`format("headrace-log")`: topics read straight from a broker's data folder, in parallel, without a broker.

Closed segments are read, and on demand the active one's valid part. Indexes spare what offsets and times rule out.
Nothing in the folder is ever written; Apache Kafka's folders read the same. The columns are those of
format("headrace").
"""

import logging
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from crc32c import crc32c
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from headrace.client.columnar.decode import Decoder
from headrace.errors import KafkaError
from headrace.records.layout import CRC_FROM, HEADER, HEADER_BYTES, LENGTH_MIN, LOG_OVERHEAD
from headrace.spark.log.folder import OFFSET_MAX, Bounds, PartitionFolder, Piece, partition_folders
from headrace.spark.log.options import COMMITTED, read_log_options
from headrace.spark.options import OptionError
from headrace.spark.plain_errors import hang_up_quietly, plain_errors
from headrace.spark.source.filters import FilterBounds
from headrace.spark.source.offsets import EARLIEST, LATEST, Position, ending_position, starting_position
from headrace.spark.source.range_reader import CorruptRecords, DataLost
from headrace.spark.source.schema import check_schema, default_schema

log = logging.getLogger(__name__)

CHUNK_BYTES = 16 << 20
"""Read at a time. A larger batch is read whole all the same."""


class HeadraceLogDataSource(DataSource):
    """What PySpark makes of format("headrace-log")."""

    @classmethod
    def name(cls) -> str:
        return "headrace-log"

    @plain_errors
    def schema(self) -> StructType:
        return default_schema(read_log_options(dict(self.options.items())))

    @plain_errors
    def reader(self, schema: StructType) -> DataSourceReader:
        values = read_log_options(dict(self.options.items()))
        check_schema(schema, values)
        return (FilteringLogReader if values["pushFilters"] else LogReader)(schema, values)


@dataclass(frozen=True)
class PiecesPartition(InputPartition):
    """What one task reads: pieces of one partition, in order."""

    pieces: tuple[Piece, ...]


class LogReader(DataSourceReader):
    """One query. Segments are listed when it is planned; what is rolled later it does not see."""

    def __init__(self, schema: StructType, values: Mapping[str, Any]) -> None:
        self._schema = schema
        self._values = values
        self._start = starting_position(values, streaming=False)
        self._end = ending_position(values)
        self._filter_bounds = FilterBounds()

    @plain_errors
    def partitions(self) -> list[InputPartition]:
        values, filter_bounds = self._values, self._filter_bounds
        tasks: list[InputPartition] = []
        for folder in self._folders():
            if filter_bounds.topics is not None and folder.topic not in filter_bounds.topics:
                continue
            if filter_bounds.partitions is not None and folder.partition not in filter_bounds.partitions:
                continue
            pieces = folder.pieces(
                self._bounds(folder),
                active_end=self._active_end(folder),
                split_bytes=values["splitBytes"],
                read_committed=self._read_committed,
            )
            tasks += _grouped(pieces, values["splitBytes"])
        return tasks

    @plain_errors
    def read(self, partition: InputPartition) -> Iterator[Any]:
        if not isinstance(partition, PiecesPartition):
            return
        hang_up_quietly()
        arrow = to_arrow_schema(self._schema, timezone="UTC")
        start_ms, end_ms = _times(self._start, self._end)
        names = arrow.names
        timed = start_ms is not None or end_ms is not None
        columns = [*names, "timestamp"] if timed and "timestamp" not in names else names
        for piece in partition.pieces:
            decoder = Decoder(
                piece.topic, piece.partition, columns, read_committed=self._read_committed, check_crc=False
            )
            for batch in self._decoded(decoder, piece):
                wanted = _within(batch, start_ms, end_ms) if timed else batch
                if wanted.num_rows:
                    yield pa.RecordBatch.from_arrays([wanted.column(name) for name in names], schema=arrow)

    def _active_end(self, folder: PartitionFolder) -> int:
        """How far the segment that is being written is read. What is not committed yet may be taken back."""
        wanted = self._values["includeActive"]
        if wanted == COMMITTED:
            return 0 if self._read_committed else folder.committed
        return OFFSET_MAX if wanted == "true" else 0

    @property
    def _read_committed(self) -> bool:
        return bool(self._values["kafka.isolation.level"] == "read_committed")

    def _folders(self) -> list[PartitionFolder]:
        values = self._values
        try:
            found = partition_folders(values["path"])
        except OSError as error:
            raise OptionError(
                "option 'path'",
                f"{error.filename} cannot be read ({error.strerror}): give a broker's data folder",
                option="path",
            ) from None
        if values["subscribe"] is not None:
            missing = set(values["subscribe"]) - {folder.topic for folder in found}
            if missing:
                there = ", ".join(sorted({folder.topic for folder in found})) or "none"
                raise OptionError(
                    f"option 'subscribe' names {', '.join(sorted(missing))}, of which the folder has no segment; its"
                    f" topics",
                    f"{there}",
                    option="subscribe",
                )
            return [folder for folder in found if folder.topic in values["subscribe"]]
        if values["subscribePattern"] is not None:
            return [folder for folder in found if re.fullmatch(values["subscribePattern"], folder.topic)]
        return found

    def _bounds(self, folder: PartitionFolder) -> Bounds:
        start = _offset(self._start, folder, 0)
        end = _offset(self._end, folder, OFFSET_MAX)
        filter_bounds = self._filter_bounds
        start_ms = self._start.timestamp if self._start.kind == "timestamp" else -1
        return Bounds(
            max(start, filter_bounds.start_offset or 0),
            min(end, OFFSET_MAX if filter_bounds.end_offset is None else filter_bounds.end_offset),
            max(start_ms, -1 if filter_bounds.start_ms is None else filter_bounds.start_ms),
        )

    def _decoded(self, decoder: Decoder, piece: Piece) -> Iterator[Any]:
        """Arrow batches of a piece. Damage ends an active segment; in a closed one it is a loss."""
        try:
            for chunk, first_offset, last_offset in self._chunks(piece):
                aborted = [
                    (one.producer_id, one.first_offset)
                    for one in piece.aborted
                    if one.first_offset <= last_offset and one.last_offset >= first_offset
                ]
                yield from decoder.decode(chunk, piece.start_offset, piece.end_offset, aborted)
        except FileNotFoundError:
            self._lost(DataLost(f"{piece.path} is gone: its broker has deleted it since the query was planned"))
        except KafkaError as error:
            self._lost(CorruptRecords(f"{piece.path}: {error}"))

    def _chunks(self, piece: Piece) -> Iterator[tuple[bytes, int, int]]:
        """Whole batches with right checksums, some megabytes at a time, with the first and last offset in them.

        Read, not mapped: a broker may shorten a file, and a page that is gone would end the process.
        """
        with open(_path(piece.path), "rb") as file:
            position = piece.position
            want = CHUNK_BYTES
            while position < piece.end_position:
                data = os.pread(file.fileno(), min(want, piece.end_position - position), position)
                end, first, last = _good_batches(data)
                if end:
                    yield data[:end], first, last
                    position += end
                    want = CHUNK_BYTES
                    continue
                size = _batch_size(data)
                if size is not None and len(data) < size <= piece.end_position - position:
                    want = size
                    continue
                if piece.is_active:
                    return
                what = "there is no whole record batch" if size is None else "CRC mismatch of the record batch"
                self._lost(CorruptRecords(f"{piece.path}: {what} at byte {position}"))
                if size is None:
                    return
                position += size

    def _lost(self, error: RuntimeError) -> None:
        if self._values["failOnDataLoss"]:
            raise type(error)(f"{error}. Set failOnDataLoss to false to go on without what is lost")
        log.warning("%s", error)


class FilteringLogReader(LogReader):
    """The same with filters pushed down; see FilteringBatchReader of format("headrace")."""

    def pushFilters(self, filters: list[Any]) -> Iterator[Any]:
        for one in filters:
            self._filter_bounds.take(one)
            yield one


def _grouped(pieces: Iterator[Piece], split_bytes: int) -> list[InputPartition]:
    """Small segments share a task."""
    tasks: list[InputPartition] = []
    held: list[Piece] = []
    size_bytes = 0
    for piece in pieces:
        if held and size_bytes + piece.size_bytes > split_bytes:
            tasks.append(PiecesPartition(tuple(held)))
            held, size_bytes = [], 0
        held.append(piece)
        size_bytes += piece.size_bytes
    if held:
        tasks.append(PiecesPartition(tuple(held)))
    return tasks


def _offset(position: Position, folder: PartitionFolder, otherwise: int) -> int:
    found = position.by_partition.get((folder.topic, folder.partition)) if position.kind == "offsets" else None
    return otherwise if found is None or found in (EARLIEST, LATEST) else found


def _times(start: Position, end: Position) -> tuple[int | None, int | None]:
    return (
        start.timestamp if start.kind == "timestamp" else None,
        end.timestamp if end.kind == "timestamp" else None,
    )


def _within(batch: pa.RecordBatch, start_ms: int | None, end_ms: int | None) -> pa.RecordBatch:
    """Rows of start_ms <= timestamp < end_ms: a batch is read for the sake of some of its records."""
    times = batch.column("timestamp")
    keep = None
    if start_ms is not None:
        keep = pc.greater_equal(times, pa.scalar(start_ms * 1000, pa.int64()).cast(times.type))
    if end_ms is not None:
        below = pc.less(times, pa.scalar(end_ms * 1000, pa.int64()).cast(times.type))
        keep = below if keep is None else pc.and_(keep, below)
    return batch.filter(keep)


def _good_batches(data: bytes) -> tuple[int, int, int]:
    """(where the last whole batch ends before any that is cut off or damaged, first offset, last offset)"""
    position, first, last = 0, -1, -1
    view = memoryview(data)
    while len(data) - position >= HEADER_BYTES:
        base_offset, length, _, magic, crc, _, delta, *_ = HEADER.unpack_from(data, position)
        after = position + length + LOG_OVERHEAD
        if magic != 2 or length < LENGTH_MIN or after > len(data):
            break
        if crc32c(view[position + CRC_FROM : after]) != crc:
            break
        first = base_offset if first < 0 else first
        last = base_offset + delta
        position = after
    return position, first, last


def _batch_size(data: bytes) -> int | None:
    """The size that the first batch says it has; None if there is none."""
    if len(data) < HEADER_BYTES:
        return None
    _, length, _, magic, *_ = HEADER.unpack_from(data)
    return None if magic != 2 or length < LENGTH_MIN else length + LOG_OVERHEAD


def _path(path: str) -> str:
    """The file as it is called now: retention renames a segment a minute before it removes it."""
    deleted = path + ".deleted"
    return path if Path(path).exists() or not Path(deleted).exists() else deleted
