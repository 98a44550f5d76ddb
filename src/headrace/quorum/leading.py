"""What only the leader of the metadata log has: batches that are written and not yet committed, the state behind the
last of them, and the records with which it begins."""

import asyncio
from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from headrace.errors import Err, KafkaError
from headrace.metadata.delta import Delta
from headrace.metadata.features import one_minimum
from headrace.metadata.image import Image
from headrace.metadata.loader import Loader
from headrace.metadata.records import Record, encode_record
from headrace.metadata.versions import ELR_VERSION
from headrace.protocol import messages as m
from headrace.records.builder import BatchBuilder

BATCH_BYTES_MAX = 8 << 20
"""As Kafka's quorum: a follower has to take a batch whole."""


class Pending(NamedTuple):
    """A batch that is written and not yet committed. `loader` is the state after it."""

    base_offset: int
    end_offset: int
    size: int
    delta: Delta | None
    loader: Loader
    done: "asyncio.Future[int] | None"


class Tip:
    """For as long as this node leads."""

    def __init__(self, loader: Loader) -> None:
        self.loader = loader
        """After the last record written."""
        self.active_from = -1
        """All below it is older than this leadership, or what it began with: once applied, the leader may decide."""
        self._pending: deque[Pending] = deque()

    @property
    def image(self) -> Image:
        return self.loader.image

    def add(self, pending: Pending) -> None:
        self._pending.append(pending)
        self.loader = pending.loader

    def take_committed(self, end_offset: int) -> Iterator[Pending]:
        while self._pending and self._pending[0].end_offset <= end_offset:
            yield self._pending.popleft()

    def last_done(self) -> "asyncio.Future[int] | None":
        """Done when all that is pending now is committed; None if nothing is."""
        if not self._pending:
            return None
        last = self._pending[-1]
        if last.done is None:
            self._pending[-1] = last = last._replace(done=asyncio.get_running_loop().create_future())
        return last.done

    def refuse(self, refusal: KafkaError) -> None:
        """Whether it will be committed is not up to this node any more."""
        while self._pending:
            done = self._pending.popleft().done
            if done is not None and not done.done():
                done.set_exception(refusal)
                done.exception()  # a waiter gets it; that there may be none is no error of its own


def build_batch(records: Sequence[Record], base_offset: int, epoch: int, now_ms: int) -> bytes:
    builder = BatchBuilder(base_offset=base_offset, leader_epoch=epoch)
    for message, version in records:
        builder.append(now_ms, None, encode_record(message, version))
    if builder.size_bytes > BATCH_BYTES_MAX:
        raise KafkaError(Err.RECORD_LIST_TOO_LARGE, f"{builder.size_bytes} bytes of changes in one request")
    return builder.build()


def is_new(image: Image) -> bool:
    """Whether nothing has been decided yet: the cluster begins."""
    return not (image.features or image.brokers or image.topics)


def bootstrap(features: list[Record], min_insync_replicas: int) -> list[Record]:
    """What a new cluster begins with. The number that elections count on is one for all from then on (KIP-966)."""
    records: list[Record] = [(m.BeginTransactionRecord(name="Bootstrap records"), 0), *features]
    if any(isinstance(record, m.FeatureLevelRecord) and record.name == ELR_VERSION for record, _ in features):
        records += one_minimum(Image(), min_insync_replicas)
    records.append((m.EndTransactionRecord(), 0))
    return records
