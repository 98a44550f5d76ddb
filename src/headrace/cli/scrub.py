"""`headrace log scrub` checks the segments in a folder; `headrace cluster scrub` has every broker check its own."""

import asyncio
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from headrace.cli.dump.kinds import base_offset_of
from headrace.cli.dump.report import counted
from headrace.cli.output import BOOTSTRAP, JSON, print_json, with_admin
from headrace.cli.topic import checked_text
from headrace.client.admin.admin import Admin
from headrace.client.errors import ClientError
from headrace.protocol.private_fields.scrub import ScrubQuestion, ScrubStatus
from headrace.storage.file_names import CORRUPT_SUFFIX
from headrace.storage.files import RealDisk
from headrace.storage.scrub import EVERYTHING, Target, check
from headrace.terminal import print_table, size_text

POLL_S = 0.25
LOOKS_MAX = 3
AGAIN_S = 0.1
"""A broker may write, compact or cut a segment while it is read: what looks damaged is looked at again."""


def scrub_folders(
    paths: list[Path] = typer.Argument(
        ..., metavar="PATH", help="Log files, partition folders or whole data folders.", show_default=False
    ),
    as_json: bool = JSON,
) -> None:
    """Check segments in a folder: checksums, offsets and epochs.

    Changes nothing, and works beside a running broker, Headrace's or Apache Kafka's.

    The exit code is 1 if anything is damaged or was set aside as damaged before.
    """
    files = sorted({file for path in paths for file in _segments(path)})
    if not files:
        raise ClientError("there are no segments in " + ", ".join(map(str, paths)))
    found = [_look(file, files) for file in files]
    rows = [row for row in found if row["damage"]]
    if as_json:
        print_json({"segments": len(found), "bytes": sum(row["bytes"] for row in found), "damaged": rows})
    else:
        print(f"{counted(len(found), 'segment')}, {size_text(sum(row['bytes'] for row in found))}: ", end="")
        print(f"{len(rows)} damaged" if rows else "all whole")
        if rows:
            print_table(("SEGMENT", "DAMAGE"), [(row["path"], row["damage"]) for row in rows])
    if rows:
        raise typer.Exit(1)


def _segments(path: Path) -> Iterator[str]:
    if path.is_file():
        yield str(path)
        return
    if not path.is_dir():
        raise ClientError(f"there is no {path}")
    for folder, _, names in os.walk(path):
        for name in names:
            stem = name.removesuffix(CORRUPT_SUFFIX).removesuffix(".log")
            if stem != name and stem.isdigit() and name.endswith((".log", ".log" + CORRUPT_SUFFIX)):
                yield os.path.join(folder, name)


def _look(path: str, files: list[str]) -> dict[str, Any]:
    if path.endswith(CORRUPT_SUFFIX):
        whole = path.removesuffix(CORRUPT_SUFFIX) in files
        return {
            "path": path,
            "bytes": 0,
            "damage": None if whole else "set aside as damaged; its offsets are not served",
        }
    for look in range(LOOKS_MAX):
        if look:
            time.sleep(AGAIN_S)
        try:
            found = check(RealDisk(), Target(path, base_offset_of(path), EVERYTHING, os.path.getsize(path)))
        except FileNotFoundError:
            return {"path": path, "bytes": 0, "damage": None}
        if found.damage is None:
            break
    return {"path": path, "bytes": found.bytes_read, "damage": found.damage}


def scrub_cluster(
    topics: list[str] = typer.Option(
        [], "--topic", metavar="TOPIC", help="Check this topic only; may be given several times."
    ),
    wait: bool = typer.Option(
        False, "--wait", help="Wait until everything is checked and what other replicas have is repaired."
    ),
    look: bool = typer.Option(False, "--status", help="Begin nothing: show how far the brokers are."),
    bootstrap: str = BOOTSTRAP,
    as_json: bool = JSON,
) -> None:
    """Have brokers check their segments now and repair damage.

    What is damaged on one broker is fetched again from another. Without --wait it returns at once; the checks go on.
    The exit code is 1 if something is damaged and not repaired.
    """

    async def work(admin: Admin) -> dict[int, ScrubStatus | None]:
        nodes = [broker.node_id for broker in (await admin.describe_cluster()).brokers]
        before = await _ask_all(admin, nodes, ScrubQuestion())
        if not look:
            await _ask_all(admin, nodes, ScrubQuestion(start=True, topics=topics or None))
        while True:
            now = await _ask_all(admin, nodes, ScrubQuestion())
            if look or not wait or all(_is_done(before[node], now[node]) for node in nodes):
                return now
            await asyncio.sleep(POLL_S)

    found = with_admin(bootstrap, work)
    if as_json:
        print_json({str(node): status for node, status in found.items()})
    else:
        columns = ("BROKER", "STATE", "READ", "DAMAGED", "REPAIRED", "MISSING", "LAST WHOLE PASS")
        print_table(columns, [_row(node, status) for node, status in found.items()], numbers=columns[2:6])
    if any(status is not None and status.missing for status in found.values()):
        raise typer.Exit(1)


async def _ask_all(admin: Admin, nodes: list[int], question: ScrubQuestion) -> dict[int, ScrubStatus | None]:
    answers = await asyncio.gather(*(admin.scrub(node, question) for node in nodes))
    return dict(zip(nodes, answers))


def _is_done(before: ScrubStatus | None, now: ScrubStatus | None) -> bool:
    if before is None or now is None:
        return True  # Apache Kafka: it checks nothing
    return now.passes > before.passes and not now.is_running and not now.missing_here_only


def _row(node: int, status: ScrubStatus | None) -> tuple[object, ...]:
    if status is None:
        return node, "does not check", "-", "-", "-", "-", "-"
    share = f" {100 * status.bytes_done // status.bytes_total} %" if status.bytes_total and status.is_running else ""
    state = (
        f"checking{share}"
        if status.is_running
        else "repairing"
        if status.missing_here_only
        else "done"
        if status.passes
        else "idle"
    )
    return (
        node, state, size_text(status.bytes_done), status.damaged, status.mended, status.missing,
        checked_text(status.last_pass_ms),
    )  # fmt: skip
