"""Which leader epoch began at which offset: KIP-101's cache and its `leader-epoch-checkpoint` file.

Changes stay in memory until the log's next sync writes them: every batch carries its epoch too, so recovery finds
again whatever a crash took from the file.
"""

from bisect import bisect_left, bisect_right

from headrace.storage.checkpoints import CorruptCheckpoint, decode_lines, encode_lines

UNDEFINED_EPOCH = -1
UNDEFINED_OFFSET = -1
FILE_NAME = "leader-epoch-checkpoint"


class EpochCache:
    """Entries with epochs and start offsets both strictly growing."""

    __slots__ = ("_epochs", "_starts", "dirty", "latest_epoch")

    def __init__(self) -> None:
        self._epochs: list[int] = []
        self._starts: list[int] = []
        self.latest_epoch = UNDEFINED_EPOCH
        self.dirty = False
        """Ahead of the file."""

    @property
    def entries(self) -> list[tuple[int, int]]:
        return list(zip(self._epochs, self._starts))

    def assign(self, epoch: int, start_offset: int) -> None:
        """Note that `epoch` began at `start_offset`. What contradicts it was written by a deposed leader and goes."""
        assert epoch >= 0 and start_offset >= 0, (epoch, start_offset)
        epochs, starts = self._epochs, self._starts
        if epochs and epochs[-1] == epoch and starts[-1] <= start_offset:
            return
        while epochs and (epochs[-1] >= epoch or starts[-1] >= start_offset):
            epochs.pop()
            starts.pop()
        epochs.append(epoch)
        starts.append(start_offset)
        self._changed()

    def end_offset_for(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """(largest known epoch <= `epoch`, where it ends), or (-1, -1) if this log cannot tell."""
        epochs = self._epochs
        if epoch == UNDEFINED_EPOCH or not epochs or epoch > epochs[-1]:
            return UNDEFINED_EPOCH, UNDEFINED_OFFSET
        if epoch == epochs[-1]:
            return epoch, log_end_offset
        slot = bisect_right(epochs, epoch)
        # Older than everything known: answer with the asked epoch, so that the follower goes to the log's start.
        return (epochs[slot - 1] if slot else epoch), self._starts[slot]

    def epoch_for(self, offset: int) -> int:
        """The epoch that wrote `offset`, -1 if unknown."""
        slot = bisect_right(self._starts, offset)
        return self._epochs[slot - 1] if slot else UNDEFINED_EPOCH

    def truncate_from_end(self, end_offset: int) -> None:
        """Forget epochs that began at or after `end_offset`."""
        slot = bisect_left(self._starts, end_offset)
        if slot < len(self._starts):
            del self._epochs[slot:]
            del self._starts[slot:]
            self._changed()

    def truncate_from_start(self, start_offset: int) -> None:
        """Forget epochs that ended before `start_offset`; the one it falls into now starts there."""
        slot = bisect_right(self._starts, start_offset)
        if slot and (slot > 1 or self._starts[0] < start_offset):
            del self._epochs[: slot - 1]
            del self._starts[: slot - 1]
            self._starts[0] = start_offset
            self._changed()

    def clear(self) -> None:
        if self._epochs:
            self._epochs.clear()
            self._starts.clear()
            self._changed()

    def _changed(self) -> None:
        self.latest_epoch = self._epochs[-1] if self._epochs else UNDEFINED_EPOCH
        self.dirty = True

    def encode(self) -> bytes:
        return encode_lines((f"{epoch} {start}" for epoch, start in self.entries), sealed=True)

    @classmethod
    def decode(cls, data: bytes) -> "EpochCache":
        cache = cls()
        for line in decode_lines(data):
            try:
                epoch, start = map(int, line.split())
            except ValueError:
                raise CorruptCheckpoint(f"leader epoch line {line!r}") from None
            cache.assign(epoch, start)
        cache.dirty = False
        return cache
