"""A Produce with acks=all between append and commit."""

from typing import Protocol

from headrace.broker.net.connection import Connection
from headrace.broker.net.request import Request
from headrace.broker.net.waiters import Bucket
from headrace.broker.replicas.partition import Partition
from headrace.errors import Err
from headrace.protocol.hot import LeaderHint, ProduceDetail, ProduceResult
from headrace.protocol.templates.produce import BY_ID
from headrace.replication.partition import LeaderState
from headrace.replication.refused_batches import RefusedBatches

Results = list[tuple[str | bytes, list[ProduceResult]]]
Waiting = tuple[Partition, int, LeaderState, list[ProduceResult], int]
"""(partition, end offset of what was appended, who led it then, the answers of its topic, its place among them)."""
LOST = 1 << 63
"""An end offset that is never committed."""


class Answering(Protocol):
    """The handler, as far as a waiting request needs it."""

    @property
    def is_cut_off(self) -> bool:
        """Whether this node itself is the one that is gone."""
        ...

    def has_too_few(self, partition: Partition) -> bool:
        """Whether fewer replicas are in sync than the minimum, whoever leads them."""
        ...

    def encode(self, request: Request, results: Results) -> bytes: ...


def refused_of(connection: Connection) -> RefusedBatches:
    """What was refused on a connection and has not come again."""
    return connection.refused if connection.refused is not None else RefusedBatches()


class ProduceWaiter:
    """A Produce with acks=all between append and commit."""

    __slots__ = ("_handler", "_remaining", "_request", "_results", "_waiting", "bucket")

    outlives_leader = True

    def __init__(
        self,
        handler: Answering,
        request: Request,
        results: Results,
        waiting: list[Waiting],
    ) -> None:
        self.bucket: Bucket | None = None
        self._handler = handler
        self._request = request
        self._results = results
        self._waiting = waiting
        self._remaining = len(waiting)
        for partition, end_offset, _, _, _ in waiting:
            partition.ack_waiters.append((end_offset, self))

    def look_again(self) -> None:
        """A disk that failed under a later partition of the request may have taken earlier ones with it."""
        for partition, _, leader, _, _ in self._waiting:
            if partition.leader is not leader:
                self._note_lost(partition)
                self.committed()

    def committed(self) -> None:
        self._remaining -= 1
        if self._remaining == 0 and self.bucket is not None:
            self.bucket.pop(self, None)
            self.bucket = None
            self._finish()

    def lost(self, partition: Partition) -> None:
        """Noted at once, not when the whole request is answered: what comes behind it may be judged before that."""
        request = self._request
        refused = refused_of(request.connection)
        refused.note_lost((partition.topic_id if request.version >= BY_ID else partition.topic, partition.index))
        request.connection.refused = refused
        self._note_lost(partition)
        self.committed()

    def _note_lost(self, partition: Partition) -> None:
        for at, (lost, _, leader, answers, position) in enumerate(self._waiting):
            if lost is partition:
                self._waiting[at] = partition, LOST, leader, answers, position

    def expire(self) -> None:
        self._finish()

    def _finish(self) -> None:
        for partition, end_offset, leader, answers, position in self._waiting:
            index = partition.index
            if partition.leader is leader:
                if leader.high_watermark < end_offset:
                    # A timeout is tried again here, for ever. Cut off from all others, this node is no leader any more.
                    error = Err.NOT_LEADER_OR_FOLLOWER if self._handler.is_cut_off else Err.REQUEST_TIMED_OUT
                    answers[position] = (index, error, -1, -1, -1, None)
                elif leader.too_few:
                    # Committed, and since then too few are in sync to call it safe.
                    answers[position] = (index, Err.NOT_ENOUGH_REPLICAS_AFTER_APPEND, -1, -1, -1, None)
            elif partition.high_watermark < end_offset:
                error = Err.KAFKA_STORAGE_ERROR if partition.failed else Err.NOT_LEADER_OR_FOLLOWER
                detail = ProduceDetail(leader=LeaderHint(partition.leader_id, partition.leader_epoch))
                answers[position] = (index, error, -1, -1, -1, detail)
            elif self._handler.has_too_few(partition):
                answers[position] = (index, Err.NOT_ENOUGH_REPLICAS_AFTER_APPEND, -1, -1, -1, None)
            # Else it is committed, though another node has led since. The offset alone would not prove that: another
            # leader may have put other records there. But this log was cut before it took them, and whoever waited is
            # LOST since.
        self._request.done(self._handler.encode(self._request, self._results))
