"""From committed batches to images: records replayed in order, metadata transactions as a whole or not at all."""

from collections.abc import Iterable

from headrace.metadata.delta import Delta, ReplayError
from headrace.metadata.image import EMPTY, Image
from headrace.metadata.records import Record
from headrace.protocol import messages as m


class Loader:
    """Holds the image after the last batch. Between a transaction's begin and end its records wait aside."""

    __slots__ = ("_pending", "image", "transaction_offset")

    def __init__(self, image: Image = EMPTY) -> None:
        self.image = image
        self.transaction_offset = -1
        """Where the open transaction begins, -1 outside of one."""
        self._pending: list[Record] = []

    @property
    def in_transaction(self) -> bool:
        return self.transaction_offset >= 0

    def copy(self) -> "Loader":
        other = Loader(self.image)
        other.transaction_offset = self.transaction_offset
        other._pending = list(self._pending)
        return other

    def load(self, records: Iterable[Record], base_offset: int, epoch: int, timestamp_ms: int) -> Delta:
        """Replay one batch, which stands at `base_offset`; `image` is then the one after it. After an error it is of no
        use."""
        delta = Delta(self.image)
        offset = base_offset - 1
        for record in records:
            offset += 1
            kind = type(record[0])
            if kind is m.BeginTransactionRecord:
                if self.in_transaction:
                    raise ReplayError(f"transaction at offset {offset} begins in that of {self.transaction_offset}")
                self.transaction_offset = offset
            elif kind is m.EndTransactionRecord or kind is m.AbortTransactionRecord:
                if not self.in_transaction:
                    raise ReplayError(f"transaction ends at offset {offset} and never began")
                if kind is m.EndTransactionRecord:
                    delta.replay_all(self._pending)
                self._pending, self.transaction_offset = [], -1
            elif self.in_transaction:
                self._pending.append(record)
            else:
                delta.replay(record[0])
        self.image = delta.apply(offset, epoch, timestamp_ms)
        return delta
