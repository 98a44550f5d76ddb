"""`headrace export`: a topic's records to one file, partition after partition."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from headrace.client.admin.admin import Admin
from headrace.client.consume.range_fetcher import OffsetsGone, RangeFetcher
from headrace.client.errors import ClientError
from headrace.client.security.channel import PLAINTEXT, Security
from headrace.tools.archive.files import LineWriter, ParquetWriter, Writer
from headrace.tools.archive.progress import Done, Progress, WorkFolder
from headrace.tools.ranges import FROM_EARLIEST, TO_LATEST, Start, describe, ranges_of

CHECKPOINT_S = 5.0
PART_S = 60.0
"""Parquet starts a new file with each checkpoint, so they come more rarely."""


class ExportRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What to export. `asked` is how the user said it: an interrupted run goes on only with the same."""

    topic: str
    file: Path
    format: str
    start: Start = FROM_EARLIEST
    end: Start = TO_LATEST
    partitions: frozenset[int] | None = None
    committed: bool = True
    codec: str = "zstd"
    asked: str = ""
    restart: bool = False
    overwrite: bool = False


class Exporting:
    """One run. `progress` can be looked at while it works."""

    def __init__(self, request: ExportRequest, bootstrap: str, security: Security = PLAINTEXT) -> None:
        self.request = request
        self.progress: Progress | None = None
        self._bootstrap = bootstrap
        self._security = security
        self._folder = WorkFolder(request.file)

    async def run(self, on_progress: Callable[[Progress], None] = lambda progress: None) -> Progress:
        """Export everything. Interrupted at any time, the same request goes on where the files are whole."""
        if self.request.file.exists() and not self.request.overwrite:
            raise ClientError(f"{self.request.file} is there already; --overwrite replaces it")
        async with Admin(self._bootstrap, security=self._security) as admin:
            self._folder.open()
            try:
                progress = self.progress = await self._begin(admin)
                count = len((await describe(admin, self.request.topic)).partitions)
                writer = self._writer(progress, count)
                try:
                    await self._write_all(admin, writer, progress, on_progress)
                    whole = await asyncio.to_thread(writer.finish)
                finally:
                    writer.close()
                self._folder.publish(whole)
                return progress
            finally:
                self._folder.close()

    async def _begin(self, admin: Admin) -> Progress:
        request = self.request
        cluster_id = (await admin.describe_cluster()).cluster_id or ""
        topic_id = (await describe(admin, request.topic)).topic_id.hex()
        left = None if request.restart else self._folder.load()
        if left is None:
            self._folder.clear()
            ranges = await ranges_of(
                admin, request.topic, request.start, request.end, request.partitions, committed=request.committed
            )
            fresh = Progress.begin(request.asked, cluster_id, request.topic, topic_id, ranges)
            self._folder.save(fresh)
            return fresh
        if (left.topic, left.topic_id, left.cluster_id) != (request.topic, topic_id, cluster_id):
            raise ClientError(
                f"{self._folder.path} is of an interrupted export of {left.topic!r}, and that topic is another one"
                " now; --restart begins anew"
            )
        if left.asked != request.asked:
            raise ClientError(
                f"{self._folder.path} is of an interrupted export with other options ({left.asked or 'none'}): give"
                " the same again to go on, or --restart to begin anew"
            )
        left.is_resumed = True
        return left

    def _writer(self, progress: Progress, partition_count: int) -> Writer:
        request = self.request
        if request.format == "jsonl":
            return LineWriter(self._folder, progress, committed=request.committed)
        return ParquetWriter(
            self._folder, progress, committed=request.committed, codec=request.codec, partition_count=partition_count
        )

    async def _write_all(
        self, admin: Admin, writer: Writer, progress: Progress, on_progress: Callable[[Progress], None]
    ) -> None:
        every_s = CHECKPOINT_S if self.request.format == "jsonl" else PART_S
        saved = time.monotonic()
        try:
            for row in progress.partitions:
                fetcher = RangeFetcher(
                    admin.cluster,
                    progress.topic,
                    row.partition,
                    row.next_offset,
                    row.end_offset,
                    read_committed=self.request.committed,
                )
                try:
                    while not row.is_done:
                        await self._take_one(fetcher, writer, progress, row)
                        on_progress(progress)
                        if writer.is_due or time.monotonic() - saved > every_s:
                            await asyncio.to_thread(self._save, writer, progress)
                            saved = time.monotonic()
                finally:
                    fetcher.close()
        except ClientError:
            # What is here need not be fetched again. Not when cancelled: the thread that writes goes on meanwhile, and
            # what it writes would be kept without counting as there. That is left to the last save, as by a kill.
            self._save(writer, progress)
            raise

    def _save(self, writer: Writer, progress: Progress) -> None:
        writer.checkpoint()
        self._folder.save(progress)

    async def _take_one(self, fetcher: RangeFetcher, writer: Writer, progress: Progress, row: Done) -> None:
        try:
            got = await fetcher.next()
        except OffsetsGone as gone:
            if gone.log_start <= row.next_offset:
                raise  # the log ends before what it had: it is not what it was
            skipped_to = min(gone.log_start, row.end_offset)
            progress.missing += skipped_to - row.next_offset
            row.next_offset = skipped_to
            fetcher.skip_to(skipped_to)
            return
        if got is None:
            row.next_offset = row.end_offset
            return
        progress.records += await asyncio.to_thread(writer.take, row.partition, got, row.next_offset, row.end_offset)
        row.next_offset = min(fetcher.position, row.end_offset)
