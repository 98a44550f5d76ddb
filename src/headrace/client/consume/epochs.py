"""Which leader epochs wrote what a consumer has fetched of a partition, so that a cut of the log is noticed. Pure.

A leader that is told an offset and the epoch of the record before it says whether its own log has that record, too
(KIP-320). After an unclean election it may not have: offsets then mean other records than those that were read.
"""

RUNS_MAX = 16
"""Elections that are remembered of each partition; what is older is taken for unknown."""
UNKNOWN = -1


class FetchedEpochs:
    """Runs of records of one epoch each: (first offset, epoch), in the order of both."""

    __slots__ = ("_runs",)

    def __init__(self, offset: int, epoch: int = UNKNOWN) -> None:
        """`epoch` wrote the record before `offset`, as far as is known."""
        self._runs: tuple[tuple[int, int], ...] = ((offset - 1, epoch),) if epoch >= 0 else ()

    @property
    def last(self) -> int:
        return self._runs[-1][1] if self._runs else UNKNOWN

    def note(self, offset: int, epoch: int) -> None:
        """A batch that begins at `offset` was written in `epoch`."""
        if epoch != self.last:
            self.cut(offset)
            self._runs = (*self._runs[1 - RUNS_MAX :], (offset, epoch))

    def before(self, offset: int) -> int:
        """The epoch of the record before `offset`, which must not be behind what was fetched."""
        return next((epoch for first, epoch in reversed(self._runs) if first < offset), UNKNOWN)

    def shared_end(self, epoch: int, end_offset: int) -> int:
        """Up to where the leader has the same records: `epoch` is the last that both may have, and ends there."""
        return min([end_offset, *(first for first, own in self._runs if own > epoch)])

    def cut(self, offset: int) -> None:
        """Forget what lies at `offset` or behind it."""
        self._runs = tuple(run for run in self._runs if run[0] < offset)
