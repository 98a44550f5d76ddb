"""Which batches were refused on one connection, so that nothing of the same producer overtakes them.

An idempotent producer has up to five batches on their way. When the first is refused with an error that makes it try
again (NOT_LEADER_OR_FOLLOWER, say), the others are still coming, and this broker may have become the leader meanwhile:

1. Batches 265, 266 and 267 are refused: another broker leads.
2. This broker is elected.
3. It finds 268, with nothing before it.

OUT_OF_ORDER_SEQUENCE_NUMBER would be the truth, and harm: librdkafka then begins a new epoch and sends everything again
that has no answer yet, also what an earlier leader had appended. Of a producer that is unknown here, 268 would even be
taken, since any sequence may come first; librdkafka takes the answer as one to 265, too, and 265 is lost. So 268 gets
an answer that says the same as theirs: not now, send it again in order. See
docs/decisions/0014-batches-behind-a-refused-one.md.
"""

from struct import Struct

from headrace.errors import Err, KafkaError
from headrace.records.layout import HEADER_BYTES, SEQUENCE_MAX
from headrace.replication.producers import ProducerStates

BATCHES_BEHIND = 4
"""As many may be on their way behind a refused one. What comes later was sent by a client that knew of the refusal: if
it still leaves a gap, the client has given the missing batch up, and is to hear so."""
PARTITIONS_MAX = 1024
"""Remembered for each connection; of any further one, the oldest is forgotten."""

_PRODUCER_AT = 43
_producer = Struct(">qhi").unpack_from  # id, epoch, base sequence

Key = tuple[str | bytes, int]
"""A partition as the connection's requests name it: by the topic's name or id."""


class Behind(KafkaError):
    """The batch before this one was refused on the same connection, and has not come again."""

    def __init__(self) -> None:
        super().__init__(Err.NOT_LEADER_OR_FOLLOWER, "a batch before this one was refused: send both again, in order")


class _Gap:
    __slots__ = ("epoch", "left", "producer_id", "sequence")

    def __init__(self, producer_id: int, epoch: int, sequence: int) -> None:
        self.producer_id = producer_id
        self.epoch = epoch
        self.sequence = sequence
        """Of the first batch that was refused; -1 where only its offset was at hand."""
        self.left = BATCHES_BEHIND


class RefusedBatches(dict[Key, _Gap]):
    """What a connection has to remember; it has none of this as long as nothing is refused."""

    def note(self, key: Key, error: Err, buf: bytes | bytearray, start: int, end: int) -> None:
        """The batch at `buf[start:end]` was not appended. Only one that its producer sends again matters."""
        if not error.retriable or end - start < HEADER_BYTES:
            return
        producer_id, epoch, sequence = _producer(buf, start + _PRODUCER_AT)
        if producer_id >= 0:
            self._remember(key, producer_id, epoch, sequence)

    def note_lost(self, key: Key) -> None:
        """A batch was appended, and its producer told to send it again: the next leader may not have it."""
        gap = self.get(key)
        if gap is not None:
            gap.left = BATCHES_BEHIND
        else:
            self._remember(key, -1, -1, -1)

    def _remember(self, key: Key, producer_id: int, epoch: int, sequence: int) -> None:
        gap = self.get(key)
        if (
            gap is not None
            and (gap.producer_id, gap.epoch) == (producer_id, epoch)
            and not _before(sequence, gap.sequence)
        ):
            gap.left = BATCHES_BEHIND
            return
        if gap is None and len(self) >= PARTITIONS_MAX:
            del self[next(iter(self))]
        self[key] = _Gap(producer_id, epoch, sequence)

    def judge(self, key: Key, producers: ProducerStates, buf: bytes | bytearray, start: int, end: int) -> None:
        """Raises Behind if the batch has to wait for one that was refused before it. Changes nothing in the log."""
        gap = self.get(key)
        if gap is None or not gap.left or end - start < HEADER_BYTES:
            return
        producer_id, epoch, sequence = _producer(buf, start + _PRODUCER_AT)
        if producer_id < 0 or (producer_id, epoch, sequence) == (gap.producer_id, gap.epoch, gap.sequence):
            return
        if producers.leaves_gap(producer_id, epoch, sequence):
            gap.left -= 1
            raise Behind


def _before(sequence: int, other: int) -> bool:
    """Sequences wrap around."""
    return (sequence - other) & SEQUENCE_MAX > SEQUENCE_MAX >> 1
