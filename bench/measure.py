"""What a process and its children have used, from /proc, and the figures made of many samples."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def family(pid: int) -> Iterator[int]:
    """The process and all below it: compaction, say, runs in a process of its own."""
    yield pid
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = task.read_text().split()
        except OSError:
            continue
        for child in children:
            yield from family(int(child))


def cpu_s(pid: int) -> float:
    """User and system time so far."""
    total = 0
    for member in family(pid):
        try:
            fields = Path(f"/proc/{member}/stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue  # it ended meanwhile
        total += int(fields[11]) + int(fields[12])
    return total / TICKS_PER_S


def memory_mb(pid: int) -> dict[str, float]:
    """Resident memory, and the proportional share of it (PSS) that counts a page once over all its users."""
    rss = pss = 0
    for member in family(pid):
        try:
            rollup = Path(f"/proc/{member}/smaps_rollup").read_text()
        except OSError:
            continue
        sizes = {line.split(":")[0]: int(line.split()[1]) for line in rollup.splitlines()[1:]}
        rss, pss = rss + sizes["Rss"], pss + sizes["Pss"]
    return {"RSS MB": rss / 1024, "PSS MB": pss / 1024}


def percentile(ordered: Sequence[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def median(values: Sequence[float]) -> float:
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
