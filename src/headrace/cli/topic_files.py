"""`headrace topic describe --files`: a partition's folder, drawn. Files are read where they are, so on a broker's own
machine only."""

import time
from pathlib import Path
from typing import Any

from headrace.cli.dump.report import counted
from headrace.client.admin.admin import Admin
from headrace.client.errors import ClientError
from headrace.client.net.cluster import Topic
from headrace.records.batch import HEADER_BYTES, BatchHeader
from headrace.records.layout import HEADER
from headrace.terminal import can_show, shown, size_text

KINDS = {".index": "offset to position", ".timeindex": "time to offset", ".txnindex": "aborted transactions"}


async def folders_of(admin: Admin, topic: Topic) -> list[dict[str, Any]]:
    """Every replica with its broker, its folder, and the segments in it as far as this machine has them."""
    found: list[dict[str, Any]] = []
    nodes = sorted({node for partition in topic.partitions.values() for node in partition.replicas})
    for node in nodes:
        try:
            dirs = await admin.describe_log_dirs(node, {topic.name: list(topic.partitions)})
        except ClientError:
            continue
        for log_dir in dirs:
            for replica in log_dir.replicas:
                folder = Path(log_dir.path) / f"{topic.name}-{replica.partition}"
                found.append(
                    {
                        "partition": replica.partition,
                        "broker": node,
                        "leads": topic.partitions[replica.partition].leader == node,
                        "folder": str(folder),
                        "size_bytes": replica.size_bytes,
                        "segments": segments_in(folder) if folder.is_dir() else None,
                    }
                )
    return sorted(found, key=lambda row: (row["partition"], not row["leads"], row["broker"]))


def segments_in(folder: Path) -> list[dict[str, Any]]:
    """The segments of a partition, oldest first. One that retention removes meanwhile is left out."""
    logs = sorted(folder.glob("*.log"))
    rows = []
    for position, log in enumerate(logs):
        try:
            with log.open("rb") as file:
                head = file.read(HEADER_BYTES)
            size, written_ms = log.stat().st_size, int(log.stat().st_mtime * 1000)
            sizes = {path.name: path.stat().st_size for path in folder.glob(f"{log.stem}.*") if path.suffix in KINDS}
        except OSError:
            continue
        first = BatchHeader._make(HEADER.unpack(head)) if len(head) == HEADER_BYTES else None
        active = position == len(logs) - 1
        rows.append(
            {
                "file": log.name,
                "size_bytes": size,
                "start_offset": int(log.stem),
                "end_offset": None if active else int(logs[position + 1].stem),
                "first_ms": first.base_timestamp if first is not None else None,
                "written_ms": written_ms,
                "active": active,
                "indexes": dict(sorted(sizes.items())),
            }
        )
    return rows


def print_folders(folders: list[dict[str, Any]]) -> None:
    for row in folders:
        role = "leader" if row["leads"] else "follower"
        print(f"\nbroker {row['broker']} ({role}): {shown(row['folder'])}/  {size_text(row['size_bytes'])}")
        if row["segments"] is None:
            print("  on another machine: run this command there to see its files")
            continue
        print(f"  {counted(len(row['segments']), 'segment')}")
        for segment in row["segments"]:
            _print_segment(segment)


def _print_segment(segment: dict[str, Any]) -> None:
    branch, trunk = ("├─", "│ ") if can_show("├─│") else ("+-", "| ")
    last = "..." if segment["active"] else str(segment["end_offset"] - 1)
    state = "active: records are appended here" if segment["active"] else "closed"
    since = _when(segment["first_ms"]) if segment["first_ms"] is not None else "empty"
    size = size_text(segment["size_bytes"])
    print(f"  {branch} {segment['file']}  {size:>9}  offsets {segment['start_offset']} to {last}")
    print(f"  {trunk}   {since}, written {_when(segment['written_ms'])}; {state}")
    for name, index_bytes in segment["indexes"].items():
        print(f"  {trunk} {name}  {size_text(index_bytes)}  {KINDS[Path(name).suffix]}")


def _when(ms: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(ms / 1000)) if ms >= 0 else "without a time"
