"""`headrace log dump` and `scrub`: show and check the files in a data folder, without a broker and without changing
anything."""

import glob
import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import typer

from headrace.cli.dump.decode import BY_TOPIC, Decode, Describe, describer
from headrace.cli.dump.kinds import Kind, base_offset_of, is_set_aside, kind_of, partition_of
from headrace.cli.dump.report import JsonReport, Report, counted
from headrace.cli.dump.segments import VALUE_BYTES_SHOWN, dump_segment
from headrace.cli.dump.sidecars import dump_sidecar
from headrace.cli.dump.verify import verify_indexes
from headrace.cli.output import command_group
from headrace.cli.scrub import scrub_folders
from headrace.client.errors import ClientError
from headrace.storage.file_names import CORRUPT_SUFFIX

app = command_group("Look into the files that a broker keeps.", no_args_is_help=True)


app.command("scrub")(scrub_folders)


@app.command("dump")
def dump(
    paths: list[Path] = typer.Argument(
        ..., metavar="PATH", help="Files, partition folders or whole data folders.", show_default=False
    ),
    records: bool = typer.Option(False, "--records", help="Print every record, not only batches."),
    index: bool = typer.Option(False, "--index", help="Print the entries of indexes when a folder is dumped."),
    decode: Decode | None = typer.Option(
        None,
        "--decode",
        metavar="WHAT",
        help=(
            "Decode records as those of an internal topic: metadata, offsets, transactions or share; found by the"
            " folder's name if not given."
        ),
    ),
    verify: bool = typer.Option(
        False, "--verify", help="Hold indexes against the log; the exit code is 1 if anything is wrong."
    ),
    value_bytes: int = typer.Option(
        VALUE_BYTES_SHOWN, "--value-bytes", metavar="N", min=1, help="How much of a key or value to print."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print JSON, with keys and values whole."),
) -> None:
    """Print any file of a broker in readable lines.

    Segments, indexes, snapshots, checkpoints and the metadata log.

    Checksums are always computed. Damage is reported with its place and makes the exit code 1.
    """
    report = JsonReport(print) if as_json else Report(print)
    for path in paths:
        for file, is_alone in _files(path):
            if is_set_aside(file) and not is_alone:
                _note_set_aside(file, report)
            else:
                _dump_file(file, report, records, index or is_alone, decode, verify, value_bytes)
    if isinstance(report, JsonReport):
        report.close()
    if report.damaged:
        sys.stdout.flush()
        print(f"headrace: {counted(len(report.damaged), 'damaged place')}:", file=sys.stderr)
        for place in report.damaged:
            print(f"  {place}", file=sys.stderr)
        raise typer.Exit(1)
    if verify and not as_json:
        print("everything agrees")


def _of_a_node(path: Path) -> str:
    """The same folder in those of a cluster's nodes, for whoever names that of the cluster."""
    found = sorted(str(other) for other in path.parent.glob(f"*/{glob.escape(path.name)}"))
    return f": did you mean {' or '.join(found)}?" if found else ""


def _files(path: Path) -> Iterator[tuple[str, bool]]:
    """Files of Kafka's under a path in order, and whether each was named by itself.

    What cannot be looked into is an error: `--verify` must not find everything in order where it has seen nothing.
    """
    try:
        if not stat.S_ISDIR(path.stat().st_mode):
            yield str(path), True
            return
    except FileNotFoundError:
        raise ClientError(f"there is no {path}{_of_a_node(path)}") from None
    except OSError as error:
        raise _unreadable(error) from error
    is_empty = True
    for folder, names, files in os.walk(path, onerror=_refuse):
        names.sort()
        for name in sorted(files):
            if kind_of(name) is not None:
                is_empty = False
                yield os.path.join(folder, name), False
    if is_empty:
        raise ClientError(f"{path} holds none of the files that a broker keeps")


def _refuse(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):  # deleted meanwhile, by a broker that runs
        raise _unreadable(error) from error


def _unreadable(error: OSError) -> ClientError:
    return ClientError(f"cannot look into {error.filename}: {(error.strerror or str(error)).lower()}")


def _dump_file(
    path: str, report: Report, records: bool, entries: bool, decode: Decode | None, verify: bool, value_bytes: int
) -> None:
    kind = kind_of(path)
    if kind is None:
        raise ClientError(f"{path} is none of the files that a broker keeps")
    report.title(path, kind.value)
    try:
        if kind in (Kind.LOG, Kind.METADATA_SNAPSHOT):
            meaning = decode or _meaning(path, kind)
            describe: Describe | None = describer(meaning) if meaning is not None else None
            # Batches of the metadata log say nothing by themselves, and somebody who names a decoding wants to see it.
            show = records or decode is not None or meaning is Decode.METADATA
            dump_segment(path, report, records=show, describe=describe, values=value_bytes)
            if verify and path.endswith(".log"):
                verify_indexes(path, report)
        else:
            dump_sidecar(kind, path, report, entries=entries)
    except OSError as error:
        report.damage(path, f"cannot be read: {error.strerror}")


def _note_set_aside(path: str, report: Report) -> None:
    """Its damage is known and dealt with; a hole in the offsets that are served is still worth a word."""
    report.title(path, "set aside by recovery")
    if path.endswith(CORRUPT_SUFFIX):
        what = (
            "a damaged segment: its offsets"
            if os.path.getsize(path)
            else "keeps the place of records that are gone: offsets"
        )
        report.damage(path, f"{what}, from {base_offset_of(path)} on, are not served")
    else:
        report.line("bytes behind the place where the log was cut; name the file to look into it")


def _meaning(path: str, kind: Kind) -> Decode | None:
    if kind is Kind.METADATA_SNAPSHOT:
        return Decode.METADATA
    partition = partition_of(os.path.dirname(os.path.abspath(path)))
    return BY_TOPIC.get(partition[0]) if partition else None
