"""The two formats: lines of JSON, and Parquet through the compiled kernels. Writers grow in a `WorkFolder`."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

from headrace.client.consume.records import visible_batches
from headrace.client.errors import ClientError
from headrace.client.raw import Fetched
from headrace.tools.archive.lines import line_of
from headrace.tools.archive.progress import Progress, WorkFolder, sync_folder

FORMATS = {".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl", ".parquet": "parquet", ".pq": "parquet"}
PARQUET_COLUMNS = ("partition", "offset", "timestamp", "key", "value", "headers")
ROW_GROUP_BYTES = 32 << 20
PART_BYTES = 128 << 20
"""Parquet has its index at its end, so only a closed file survives a kill: one is closed after so many bytes."""
TOPIC_KEY, PARTITIONS_KEY = b"headrace.topic", b"headrace.partitions"


def format_of(file: Path, given: str | None) -> str:
    """jsonl or parquet, by --format or by the file's name. Raises ClientError."""
    if given is not None:
        if given not in ("jsonl", "parquet"):
            raise ClientError(f"--format {given}: write jsonl or parquet")
        return given
    found = FORMATS.get(file.suffix.lower())
    if found is None:
        raise ClientError(f"{file}: the format is not clear from the name; give --format jsonl or parquet")
    return found


class Writer(Protocol):
    """Takes what was fetched; `is_due` says that a checkpoint is wanted for the writer's own sake."""

    @property
    def is_due(self) -> bool: ...

    def take(self, partition: int, got: Fetched, start_offset: int, end_offset: int) -> int:
        """Write the records within the offsets, and return how many there were."""

    def checkpoint(self) -> None:
        """Sync everything taken, and note in the progress how far the files go."""

    def finish(self) -> Path:
        """The whole file, synced; nothing is taken behind it."""

    def close(self) -> None: ...


class LineWriter:
    """Lines of JSON. On going on, what progress does not know of is cut off."""

    is_due = False

    def __init__(self, folder: WorkFolder, progress: Progress, *, committed: bool) -> None:
        self._progress = progress
        self._committed = committed
        self._path = folder.path / "records.jsonl"
        self._file = self._path.open("r+b" if self._path.exists() else "w+b")
        self._file.truncate(progress.bytes_written)
        self._file.seek(progress.bytes_written)

    def take(self, partition: int, got: Fetched, start_offset: int, end_offset: int) -> int:
        lines: list[bytes] = []
        aborted = got.aborted if self._committed else ()
        for _, records in visible_batches(got.records, self._progress.topic, partition, start_offset, aborted):
            lines += [line_of(record) for record in records if record.offset < end_offset]
        self._file.write(b"".join(lines))
        return len(lines)

    def checkpoint(self) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())
        self._progress.bytes_written = self._file.tell()

    def finish(self) -> Path:
        self.checkpoint()
        self._file.close()
        return self._path

    def close(self) -> None:
        self._file.close()


class ParquetWriter:
    """Closed Parquet files, one after the other; several become one at the end."""

    def __init__(
        self, folder: WorkFolder, progress: Progress, *, committed: bool, codec: str, partition_count: int
    ) -> None:
        needed()
        import pyarrow as pa

        from headrace.client.columnar.decode import COLUMNS

        self._committed = committed
        self._decoders: dict[int, Any] = {}
        self._folder = folder
        self._progress = progress
        self._codec = codec
        fields = [pa.field(name, COLUMNS[name]) for name in PARQUET_COLUMNS]
        fields[2] = pa.field("timestamp", pa.timestamp("ms", tz="UTC"))
        about = {TOPIC_KEY: progress.topic.encode(), PARTITIONS_KEY: b"%d" % partition_count}
        self._schema = pa.schema(fields, about)
        self._writer: Any = None
        self._waiting: list[Any] = []
        self._waiting_bytes = self._part_bytes = 0

    @property
    def is_due(self) -> bool:
        return self._part_bytes >= PART_BYTES

    def take(self, partition: int, got: Fetched, start_offset: int, end_offset: int) -> int:
        decoder = self._decoders.get(partition)
        if decoder is None:
            self._decoders.clear()  # partitions come one after the other: the memory of the last serves nobody
            from headrace.client.columnar.decode import Decoder

            decoder = self._decoders[partition] = Decoder(
                self._progress.topic, partition, PARQUET_COLUMNS, read_committed=self._committed
            )
        rows = 0
        for batch in decoder.decode(got.records, start_offset, end_offset, got.aborted):
            rows += batch.num_rows
            self._waiting.append(batch)
            self._waiting_bytes += batch.nbytes
            if self._waiting_bytes >= ROW_GROUP_BYTES:
                self._write_group()
        # Batches may point into the answer's memory, which stays alive with them until their group is written.
        return rows

    def _write_group(self) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        if not self._waiting:
            return
        table = pa.Table.from_batches(self._waiting).cast(self._schema)
        self._waiting = []
        self._part_bytes += self._waiting_bytes
        self._waiting_bytes = 0
        if self._writer is None:
            self._writer = pq.ParquetWriter(self._part(self._progress.parts), self._schema, compression=self._codec)
        self._writer.write_table(table)

    def _part(self, number: int) -> Path:
        return self._folder.path / f"{number:05}.parquet"

    def checkpoint(self) -> None:
        self._write_group()
        if self._writer is None:
            return
        self._writer.close()
        self._writer = None
        self._part_bytes = 0
        sync_file(self._part(self._progress.parts))
        self._progress.parts += 1

    def finish(self) -> Path:
        import pyarrow.parquet as pq

        self.checkpoint()
        if self._progress.parts == 1:
            return self._part(0)
        whole = self._folder.path / "whole.parquet"
        with pq.ParquetWriter(whole, self._schema, compression=self._codec) as writer:
            for number in range(self._progress.parts):
                with pq.ParquetFile(self._part(number)) as part:
                    for group in range(part.num_row_groups):
                        writer.write_table(part.read_row_group(group).cast(self._schema))
        sync_file(whole)
        sync_folder(self._folder.path)
        return whole

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None


def needed() -> None:
    """Raises ClientError that says what to install."""
    try:
        import numpy  # noqa: F401
        import pyarrow  # noqa: F401
    except ImportError as missing:
        raise ClientError(f"Parquet needs {missing.name}: pip install 'headrace[columnar]'") from None


def sync_file(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def read_lines(file: Path) -> Iterator[tuple[int, bytes]]:
    """The lines of a file that are not blank, with their numbers."""
    with file.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if line.strip():
                yield number, line


def open_parquet(file: Path) -> Any:
    """A `pyarrow.parquet.ParquetFile` of `headrace export`. Raises ClientError for another."""
    needed()
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        opened = pq.ParquetFile(file)
    except (pa.ArrowInvalid, OSError) as error:
        raise ClientError(f"{file} cannot be read as Parquet: {str(error).splitlines()[0]}") from None
    lacking = [name for name in PARQUET_COLUMNS if name not in opened.schema_arrow.names]
    if lacking:
        opened.close()
        raise ClientError(f"{file} has no column {', '.join(lacking)}: it is none of `headrace export`")
    return opened
