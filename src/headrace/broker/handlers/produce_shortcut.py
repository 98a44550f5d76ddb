"""The short way for a connection that says the same again: one batch for a partition of the same topic."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from headrace.broker.connection import PRODUCE, Connection, Request
from headrace.broker.partition import Partition
from headrace.errors import KafkaError
from headrace.protocol.headers import CLIENT_ID_AT
from headrace.protocol.hot import ProduceResult
from headrace.protocol.produce_shape import ProduceShape

if TYPE_CHECKING:
    from headrace.broker.handlers.produce import ProduceHandler

Hosted = Mapping[Any, Mapping[int, Partition]]
"""This node's partitions, by the name or the id of their topic."""


class ProduceShortcut:
    """Serves requests of one shape. Whatever is unusual is left to the long way."""

    __slots__ = (
        "_answer", "_find", "_handler", "_hosted", "_needs_commit", "_timeout_ms", "_topic", "said", "version",
    )  # fmt: skip

    def __init__(
        self,
        handler: "ProduceHandler",
        shape: ProduceShape,
        topic: str | bytes,
        hosted: Hosted,
        needs_commit: bool,
        timeout_ms: int,
    ) -> None:
        self.version = shape.version
        self.said = shape.said
        self._find = shape.find
        self._answer = shape.answer
        self._handler = handler
        self._topic = topic
        self._hosted = hosted
        self._needs_commit = needs_commit
        self._timeout_ms = timeout_ms

    def take(
        self, connection: Connection, pos: int, end: int, correlation_id: int, started: float
    ) -> bytes | Request | None:
        """The answer to the frame at `pos`, or its place in the queue if it has to wait; None: nothing was done."""
        if connection.refused is not None:
            return None  # what comes behind a refused batch is looked at more closely
        buf = connection.buf
        found = self._find(buf, pos, end)
        if found is None:
            return None
        index, start, stop = found
        # Looked up each time: a topic that is gone may have a successor of the same name.
        partitions = self._hosted.get(self._topic)
        partition = partitions.get(index) if partitions is not None else None
        if partition is None or not partition.plain:
            return None
        try:
            base_offset, append_time, end_offset = partition.append(buf, connection.view, start, stop, self._needs_commit)
        except KafkaError as error:
            refusal = self._handler.refusal(connection, self._topic, index, partition, error, None, buf, start, stop)
            request = self._request(connection, pos, end, correlation_id, started)
            return self._handler.encode(request, [(self._topic, [refusal])])
        if base_offset < 0:
            return None  # a duplicate of long ago, which the long way finds again
        log_start = partition.log.log_start_offset
        leader = partition.leader
        assert leader is not None
        if self._needs_commit and leader.high_watermark < end_offset:
            request = self._request(connection, pos, end, correlation_id, started)
            answers: list[ProduceResult] = [(index, 0, base_offset, append_time, log_start, None)]
            waiting = [(partition, end_offset, leader, answers, 0)]
            self._handler.park(request, [(self._topic, answers)], waiting, self._timeout_ms)
            return request
        return self._answer(correlation_id, index, base_offset, append_time, log_start)

    def _request(self, connection: Connection, pos: int, end: int, correlation_id: int, started: float) -> Request:
        request = Request(connection, PRODUCE, self.version, correlation_id, -1, pos + CLIENT_ID_AT, end, started)
        request.let_go()
        return request
