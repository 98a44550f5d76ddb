"""The verdict: what came out, read back without Spark, against what the feed says must come out."""

import json
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from headrace.client.admin.admin import Admin
from headrace.client.consume.records import Record, visible_batches
from headrace.client.raw import fetch
from headrace.demo.expected import Expected, KeyValue, Totals, Window
from headrace.demo.ledger import Book, Ledger, compare, digest
from headrace.records.batch import iter_headers

Origin = tuple[int, int]
"""Partition and offset, as a dead letter's headers have them."""

FILES_LOG = "_spark_metadata"
EXAMPLES_MAX = 3
OPEN_LIMIT_S = 60.0
"""How long a topic may take to be read: a transaction that nobody ends would hold the reader back for longer."""


class Check(msgspec.Struct, frozen=True):
    """One promise, and whether it was kept."""

    name: str
    kept: bool
    detail: str
    missing: int = 0
    """How many events that were sent did not come."""


def check_group(name: str, promise: str, ledger: Ledger, book: Book, expulsions: int) -> Check:
    """Every event once. A group that has gone on without a member may read again what that one had not committed."""
    found = compare(ledger, book)
    kept = found.is_exact or (expulsions > 0 and not (found.missing or found.changed or found.unknown))
    detail = f"{found.sent:,} sent, {found.got:,} received by {promise}"
    wrong = {
        "missing": found.missing, "changed": found.changed, "never sent": found.unknown,
        "received again": found.repeated, "out of order": found.backwards,
    }  # fmt: skip
    detail += "; " + ", ".join(f"{count:,} {what}" for what, count in wrong.items())
    if expulsions:
        detail += f"; the group went on {expulsions} times without a member that did not answer"
    return Check(f"group {name}", kept, detail, found.missing)


def check_windows(
    where: str, expected: Mapping[Window, Totals], found: Iterable[tuple[Window, Totals]], *, exactly_once: bool
) -> Check:
    """Every window as computed here. What is written at least once may be there again, but never different."""
    seen: dict[Window, Totals] = {}
    again = 0
    wrong: list[str] = []
    for window, totals in found:
        if window in seen:
            again += 1
        if window not in expected:
            wrong.append(f"{window} should not be there")
        elif totals != expected[window]:
            wrong.append(f"{window}: {totals} instead of {expected[window]}")
        seen[window] = totals
    missing = [window for window in expected if window not in seen]
    kept = not wrong and not missing and not (exactly_once and again)
    detail = (
        f"{len(expected):,} windows computed here, {len(seen):,} found; {len(wrong):,} different, {len(missing):,}"
        f" missing, {again:,} there again"
    )
    examples = [*wrong, *(f"{window} is missing" for window in missing)][:EXAMPLES_MAX]
    return Check(where, kept, "; ".join([detail, *examples]))


def check_rejects(expected: Expected, ledger: Ledger, letters: Iterable[Record]) -> Check:
    """Each broken event is in the topic of rejects as it was sent, with where it came from; at least once."""
    kept: dict[Origin, KeyValue] = {}
    again = 0
    wrong: list[str] = []
    for letter in letters:
        origin, record = origin_of(letter), (letter.key, letter.value)
        again += origin in kept
        if origin is None or not _was_sent(ledger, origin, record) or kept.get(origin, record) != record:
            wrong.append(f"{record} is not what was sent as {origin}")
        else:
            kept[origin] = record
    found, wanted = Counter(kept.values()), Counter(expected.rejected)
    missing = list((wanted - found).elements())
    wrong += [f"{record} is not broken" for record in (found - wanted).elements()]
    detail = (
        f"{len(expected.rejected):,} broken events sent, {len(kept):,} set aside; {len(missing):,} missing,"
        f" {len(wrong):,} wrong, {again:,} there again"
    )
    examples = [*wrong, *(f"{record} is missing" for record in missing)][:EXAMPLES_MAX]
    return Check("rejects in the topic, at least once", not missing and not wrong, "; ".join([detail, *examples]))


def _was_sent(ledger: Ledger, origin: Origin, record: KeyValue) -> bool:
    partition, offset = origin
    return (
        partition < len(ledger.sums)
        and offset < len(ledger.sums[partition])
        and ledger.sums[partition][offset] == digest(*record)
    )


# -- reading back


async def read_topic(admin: Admin, topic: str) -> list[Record]:
    """Every committed record of a topic, from its start to where it ends now."""
    found: list[Record] = []
    for index, end in (await admin.list_offsets(topic)).items():
        offset, deadline = 0, time.monotonic() + OPEN_LIMIT_S
        while offset < end.offset:
            got = await fetch(admin.cluster, topic, index, offset, read_committed=True)
            for _, records in visible_batches(got.records, topic, index, offset, got.aborted):
                found += records
            # A batch that reads nothing waits for the end of a transaction, or of a fetch's patience.
            offset = max((header.end_offset for _, header in iter_headers(got.records)), default=offset)
            if time.monotonic() > deadline:
                raise RuntimeError(f"{topic}-{index}: {offset} cannot be read although the topic ends at {end.offset}")
    return found


def origin_of(letter: Record) -> Origin | None:
    headers = dict(letter.headers)
    try:
        return int(headers["headrace.error.partition"] or b""), int(headers["headrace.error.offset"] or b"")
    except (KeyError, ValueError):
        return None


def windows_in_topic(records: Iterable[Record]) -> list[tuple[Window, Totals]]:
    return [_window(json.loads(record.value or b"{}")) for record in records]


def windows_in_parquet(folder: Path) -> list[tuple[Window, Totals]]:
    """Rows of the files that Spark has committed: its log of files counts, not what else a crash has left there."""
    import pyarrow.parquet as parquet

    rows = [row for path in committed_files(folder) for row in parquet.ParquetFile(path).read().to_pylist()]
    return [_window(row) for row in rows]


def committed_files(folder: Path) -> list[Path]:
    """Files in Spark's log: one entry per batch, now and then one that stands for all before it."""
    entries = {
        int(path.name.split(".")[0]): path
        for path in (folder / FILES_LOG).glob("[0-9]*")
        if path.suffix in ("", ".compact")
    }
    compacted = [number for number, path in entries.items() if path.suffix == ".compact"]
    start = max(compacted, default=-1)
    files: dict[str, None] = {}
    for number in sorted(number for number in entries if number >= start):
        for text in entries[number].read_text().splitlines()[1:]:
            entry = json.loads(text)
            if entry["action"] == "add":
                files[entry["path"]] = None
            else:
                files.pop(entry["path"], None)
    return [folder / Path(path).name for path in files]


def _window(row: Mapping[str, Any]) -> tuple[Window, Totals]:
    return (row["window_ms"], row["category"]), Totals(row["events"], row["orders"], row["cents"])
