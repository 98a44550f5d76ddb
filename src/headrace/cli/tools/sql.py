"""`headrace sql`: queries over topics."""

import csv
import json
import sys
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import typer

from headrace.cli.output import BOOTSTRAP, SECURITY, print_json
from headrace.client.errors import ClientError, ConnectionRefused
from headrace.tools.sql.query import Query

TABLE_ROWS_MAX = 1_000
"""A table is measured before it is drawn; more rows than this are for --csv or --json."""


def sql(
    query: str = typer.Argument(..., metavar="QUERY", help="One SELECT of DuckDB; topics are its tables."),
    committed: bool = typer.Option(
        True, "--committed/--uncommitted", help="Without records of transactions that are open or aborted."
    ),
    ordered: bool = typer.Option(
        False,
        "--ordered",
        help="Times ascend in each partition: stop reading at an upper bound of timestamp, too.",
    ),
    explain: bool = typer.Option(False, "--explain", help="Only show which offsets would be read."),
    memory: str | None = typer.Option(
        None, "--memory", metavar="SIZE", help="What DuckDB may use, such as 1GB; beyond it spills to disk."
    ),
    as_csv: bool = typer.Option(False, "--csv", help="Print CSV."),
    bootstrap: str = BOOTSTRAP,
    as_json: bool = typer.Option(False, "--json", help="Print a JSON object per line."),
) -> None:
    """Query topics with SQL.

    For instance: headrace sql "select key, count(*) from orders group by key"

    A topic has the columns topic, partition, "offset", timestamp, key, value, headers, key_bytes and value_bytes. value
    is JSON: value->>'amount'. Of what WHERE says of partition, "offset" and timestamp, only that is read. A topic whose
    name has other letters than a to z, 0 to 9 and _ needs double quotes.
    """
    if as_csv and as_json:
        raise ClientError("--csv and --json exclude each other")
    try:
        with Query(
            query, bootstrap, SECURITY.get(), committed=committed, ordered=ordered, memory_limit=memory
        ) as running:
            if explain:
                _print_plan(running, as_json)
                return
            write = _write_json if as_json else _write_csv if as_csv else _write_table
            write(running.batches())
            for read in running.reads:
                if read.missing:
                    print(f"{read.missing:,} offsets of {read.topic} were deleted while it was read", file=sys.stderr)
    except ConnectionRefused as error:
        raise ClientError(f"{error}. Is a broker running? Start one with: headrace up") from None
    except BrokenPipeError:  # whoever reads our output has seen enough, such as `head`
        sys.stdout = None


def _print_plan(running: Query, as_json: bool) -> None:
    if as_json:
        print_json(
            [
                {
                    "topic": read.topic,
                    "offsets": sum(one.offsets for one in read.ranges),
                    "of": read.offsets_held,
                    "partitions": {str(one.partition): [one.start_offset, one.end_offset] for one in read.ranges},
                }
                for read in running.reads
            ]
        )
        return
    for read in running.reads:
        print(f"{read.topic}: {sum(one.offsets for one in read.ranges):,} of {read.offsets_held:,} offsets")
        for one in read.ranges:
            span = f"offsets {one.start_offset} to {one.end_offset - 1}" if one.offsets else "nothing"
            print(f"  partition {one.partition}: {span}")


def _write_json(batches: Iterator[Any]) -> None:
    for batch in batches:
        for row in batch.to_pylist():
            sys.stdout.write(json.dumps(row, default=_plain, ensure_ascii=False) + "\n")
    sys.stdout.flush()


def _write_csv(batches: Iterator[Any]) -> None:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    is_first = True
    for batch in batches:
        if is_first:
            writer.writerow(batch.schema.names)
            is_first = False
        for row in batch.to_pylist():
            writer.writerow(["" if value is None else _text(value) for value in row.values()])
    sys.stdout.flush()


def _write_table(batches: Iterator[Any]) -> None:
    """Columns as wide as their widest value; numbers to the right."""
    rows: list[list[str]] = []
    names: list[str] = []
    right: list[bool] = []
    more = False
    for batch in batches:
        if not names:
            import pyarrow as pa

            names = list(batch.schema.names)
            right = [pa.types.is_integer(one.type) or pa.types.is_floating(one.type) for one in batch.schema]
        for row in batch.to_pylist():
            if len(rows) == TABLE_ROWS_MAX:
                more = True
                break
            rows.append(["-" if value is None else _text(value) for value in row.values()])
        if more:
            break
    if not names:
        print("no rows")
        return
    widths = [
        max(len(names[at]), *(len(row[at]) for row in rows)) if rows else len(names[at]) for at in range(len(names))
    ]
    adjust: list[Callable[[str, int], str]] = [str.rjust if one else str.ljust for one in right]
    for line in [names, *rows]:
        print("  ".join(fit(cell, width) for fit, cell, width in zip(adjust, line, widths)).rstrip())
    if more:
        print(f"... and more: a table ends after {TABLE_ROWS_MAX:,} rows; --csv and --json print all")


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, list | dict):
        return json.dumps(value, default=_plain, ensure_ascii=False)
    return str(_plain(value))


def _plain(value: Any) -> Any:
    """What JSON has no word for."""
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return value.hex()
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    if hasattr(value, "isoformat"):
        return value.isoformat()
    return value if isinstance(value, int | float) else str(value)
