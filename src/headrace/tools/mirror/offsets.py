"""What an offset of the source is in the target. Pure.

Records come to the target in their order, but not with their offsets: the source has gaps (compaction, markers of
transactions), and each transaction of the mirror ends with a marker of its own. So what is known is runs: consecutive
records of both sides. Between them there is no record to be missed.
"""

from bisect import bisect_right

import msgspec

RUNS_MAX = 20_000
"""Remembered of each partition. Before the oldest, only the beginning of the target is known to be safe."""


class Run(msgspec.Struct, array_like=True, gc=False):
    """Records with the offsets source, source + 1, ... that are target, target + 1, ... over there."""

    source: int
    target: int
    count: int


class Translation:
    """The runs of one partition, in their order."""

    def __init__(self) -> None:
        self._sources: list[int] = []
        self._runs: list[Run] = []

    def __len__(self) -> int:
        return len(self._runs)

    def add(self, run: Run) -> None:
        """One that lies behind all others; the same again changes nothing."""
        if self._runs and run.source <= self._runs[-1].source:
            return
        self._runs.append(run)
        self._sources.append(run.source)
        if len(self._runs) > RUNS_MAX:
            del self._runs[: RUNS_MAX // 10]
            del self._sources[: RUNS_MAX // 10]

    def target_of(self, source: int, target_start: int) -> int:
        """Where a reader goes on whose next record is `source`: never behind a record that it has not read.

        What lies before all that is known begins at `target_start`, the first offset that the target has.
        """
        at = bisect_right(self._sources, source) - 1
        if at < 0:
            return target_start
        run = self._runs[at]
        return run.target + min(source - run.source, run.count)


def runs_of(pairs: list[tuple[int, int]]) -> list[Run]:
    """Pairs of offsets, in their order, as runs."""
    found: list[Run] = []
    for source, target in pairs:
        last = found[-1] if found else None
        if last is not None and source == last.source + last.count and target == last.target + last.count:
            last.count += 1
        else:
            found.append(Run(source, target, 1))
    return found
