"""`headrace export` and `headrace import`: topics to files and back."""

import asyncio
import time
from pathlib import Path
from typing import Any

import msgspec
import typer

from headrace.cli.completion import topic_names
from headrace.cli.output import BOOTSTRAP, JSON, SECURITY, print_json
from headrace.cli.records.consume import partitions_of
from headrace.cli.records.produce import records_text
from headrace.cli.records.starts import start_of
from headrace.cli.tools.bars import bar
from headrace.client.errors import ClientError, ConnectionRefused
from headrace.terminal import shown
from headrace.tools.archive.exporting import Exporting, ExportRequest
from headrace.tools.archive.files import format_of
from headrace.tools.archive.importing import Importing, ImportReport, ImportRequest, Landed
from headrace.tools.archive.progress import Progress

FORMAT = typer.Option(None, "--format", metavar="FORMAT", help="jsonl or parquet [by the file's name].")


def export_topic(
    topic: str = typer.Argument(..., metavar="TOPIC", help="What to read.", autocompletion=topic_names),
    file: Path = typer.Argument(..., metavar="FILE", help="Where to: NAME.jsonl or NAME.parquet."),
    start: str = typer.Option(
        "earliest",
        "--from",
        metavar="WHERE",
        help="earliest, an offset, -N for the last N of each partition, a time, or 2h for so long ago.",
    ),
    end: str = typer.Option(
        "latest", "--to", metavar="WHERE", help="Up to there, in the same words; latest is what is there now."
    ),
    partitions: str | None = typer.Option(
        None, "--partitions", "-p", metavar="N,...", help="Only these partitions.", show_default=False
    ),
    committed: bool = typer.Option(
        True, "--committed/--uncommitted", help="Without records of transactions that are open or aborted."
    ),
    format_name: str | None = FORMAT,
    codec: str = typer.Option("zstd", "--codec", metavar="CODEC", help="Of Parquet: none, snappy, gzip, lz4, zstd."),
    overwrite: bool = typer.Option(False, "--overwrite", help="Replace a file that is there, once the new is whole."),
    restart: bool = typer.Option(False, "--restart", help="Do not go on where an interrupted run has ended."),
    bootstrap: str = BOOTSTRAP,
    as_json: bool = JSON,
) -> None:
    """Write a topic's records to a file, with all they have.

    Partition, offset, timestamp, key, value and headers are kept byte for byte. The file gets its name when it is
    whole; until then it grows in FILE.partial, and the same command goes on there after an interruption.
    """
    now_ms = time.time_ns() // 1_000_000
    if codec not in ("none", "snappy", "gzip", "lz4", "zstd"):
        raise ClientError(f"--codec {codec}: write none, snappy, gzip, lz4 or zstd")
    kind = format_of(file, format_name)
    asked = f"--from {start} --to {end} --format {kind}" + (f" --partitions {partitions}" if partitions else "")
    request = ExportRequest(
        topic=topic,
        file=file,
        format=kind,
        start=start_of(start, now_ms),
        end=start_of(end, now_ms, "--to"),
        partitions=None if partitions is None else partitions_of(partitions),
        committed=committed,
        codec=codec,
        asked=asked if committed else f"{asked} --uncommitted",
        restart=restart,
        overwrite=overwrite,
    )
    with bar(f"export {topic}", quiet=as_json) as advance:
        done: Progress = _run(
            Exporting(request, bootstrap, SECURITY.get()).run(
                lambda now: advance(now.offsets_done, now.offsets_total, records_text(now.records))
            )
        )
    if as_json:
        print_json(_export_summary(done, file))
        return
    print(f"exported {records_text(done.records)} of {shown(topic)} to {file}" + (", resumed" * done.is_resumed))
    for row in done.partitions:
        if row.end_offset > row.start_offset:
            print(f"  partition {row.partition}: offsets {row.start_offset} to {row.end_offset - 1}")
    if done.missing:
        print(f"  {done.missing:,} offsets were deleted by the broker before they could be read")


def _export_summary(done: Progress, file: Path) -> dict[str, Any]:
    return {
        "topic": done.topic,
        "file": str(file),
        "records": done.records,
        "missing_offsets": done.missing,
        "resumed": done.is_resumed,
        "partitions": {
            str(row.partition): {"start_offset": row.start_offset, "end_offset": row.end_offset}
            for row in done.partitions
        },
    }


def import_file(
    file: Path = typer.Argument(..., metavar="FILE", help="A file of `headrace export`."),
    topic: str | None = typer.Argument(
        None, metavar="[TOPIC]", help="Where to write [the topic it is of].", autocompletion=topic_names
    ),
    create: bool = typer.Option(False, "--create", help="Create the topic if it is not there."),
    partitions: int | None = typer.Option(
        None, "--partitions", metavar="N", min=1, help="With --create: how many [as the source].", show_default=False
    ),
    transactional: bool = typer.Option(
        True,
        "--transactions/--no-transactions",
        help="Write in transactions: exactly once for readers with read_committed, however often it is interrupted."
        " Without, the last records before an interruption may come twice.",
    ),
    again: bool = typer.Option(False, "--again", help="Import a file once more that was imported before."),
    format_name: str | None = FORMAT,
    codec: str = typer.Option("none", "--codec", "-z", metavar="CODEC", help="none, gzip, snappy, lz4 or zstd."),
    bootstrap: str = BOOTSTRAP,
    as_json: bool = JSON,
) -> None:
    """Write the records of an exported file to a topic.

    Each goes to its partition, with its time. The brokers give new offsets; where they differ from those in the file
    is told. Interrupted, the same command goes on behind what is there; a file that was imported already is not
    imported twice.
    """
    if codec not in ("none", "gzip", "snappy", "lz4", "zstd"):
        raise ClientError(f"--codec {codec}: write none, gzip, snappy, lz4 or zstd")
    request = ImportRequest(
        file=file,
        format=format_of(file, format_name),
        topic=topic,
        create=create,
        partitions=partitions,
        transactional=transactional,
        again=again,
        codec=codec,
    )
    with bar(f"import {file.name}", quiet=as_json) as advance:
        report: ImportReport = _run(
            Importing(request, bootstrap, SECURITY.get()).run(
                lambda now: advance(now.position, now.size, records_text(now.report.records if now.report else 0))
            )
        )
    if as_json:
        whole = msgspec.to_builtins(report)
        print_json({**whole, "records": report.records, "skipped": report.skipped})
    else:
        print_report(report, file)


def print_report(report: ImportReport, file: Path) -> None:
    created = " (created)" if report.created else ""
    print(f"imported {records_text(report.records)} of {file} to {shown(report.topic)}{created}")
    if report.skipped:
        print(f"  {report.skipped:,} were there already, from an earlier run")
    for at, landed in sorted(report.partitions.items()):
        if landed.records:
            print(f"  partition {at}: {records_text(landed.records)}, {_offsets_text(landed)}")
    for note in report.notes:
        print(f"  note: {note}")


def _offsets_text(landed: Landed) -> str:
    if landed.is_same:
        return "offsets as in the file"
    first, last = landed.runs[0], landed.runs[-1]
    shifts = {run.target_offset - run.source_offset for run in landed.runs}
    shift = f"{min(shifts):+d}" if len(shifts) == 1 else f"{min(shifts):+d} to {max(shifts):+d}"
    behind = " and more" if landed.more_runs else ""
    return (
        f"offsets {first.source_offset} to {last.source_offset + last.records - 1} are now {first.target_offset} to"
        f" {last.target_offset + last.records - 1} ({shift}{behind})"
    )


def _run(work: Any) -> Any:
    try:
        return asyncio.run(work)
    except ConnectionRefused as error:
        raise ClientError(f"{error}. Is a broker running? Start one with: headrace up") from None
