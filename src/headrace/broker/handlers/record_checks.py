"""Checks the records of large or compressed batches in a thread, for topics that need it, before Produce is handled as usual.

A batch of a few kilobytes may hold hundreds of megabytes, or hundreds of thousands of records: half a second of work, for
which everybody else would have to wait. What stands behind such a request on its connection waits for it, as order demands.
"""

import asyncio
import logging
from typing import TYPE_CHECKING

from headrace.broker.connection import PRODUCE, Answer, Request
from headrace.broker.environment import Environment, Findings
from headrace.broker.handlers.produce import ProduceHandler
from headrace.broker.handlers.produce_shortcut import Hosted
from headrace.broker.partition import Partition
from headrace.errors import KafkaError
from headrace.metadata.names import INTERNAL
from headrace.protocol.headers import CLIENT_ID_AT
from headrace.protocol.hot import decode_produce
from headrace.protocol.primitives import ProtocolError
from headrace.protocol.produce_shape import BY_ID
from headrace.records.batch import validate
from headrace.records.layout import CODEC_MASK, HEADER, HEADER_BYTES, LOG_OVERHEAD
from headrace.records.validation import Prepared, Rules, prepare

if TYPE_CHECKING:
    from headrace.broker.server import Broker

logger = logging.getLogger("headrace.produce")

UNFOLDED_BYTES_MAX = 100 << 20
"""As many as a request may have by default: what holds more could not have been sent as it is. Memory takes it twice."""
FEW_RECORDS = 1000
FEW_BYTES = 128 * 1024
"""Plain batches up to here are looked at on the loop: a millisecond."""
AT_ONCE = 2
HELD = -1
"""In place of its API: nothing may be handled behind it yet."""

Heavy = list[tuple[Partition, int, int]]


class RecordChecks:
    """Stands before the handler of Produce."""

    def __init__(self, broker: "Broker", handler: ProduceHandler) -> None:
        self._broker = broker
        self._environment: Environment = broker.environment
        self._handler = handler
        self._turn = asyncio.Semaphore(AT_ONCE)

    def __call__(self, request: Request, pos: int) -> Answer | None:
        if not self._environment.checks_records:
            return self._handler(request, pos)
        heavy = self._heavy(request, pos)
        if not heavy:
            return self._handler(request, pos)
        start = request.frame
        frame = bytearray(request.view[start : request.end])
        request.api_key = HELD
        self._broker.spawn(
            self._check_then_append(request, frame, pos - start, [(partition, a - start, b - start) for partition, a, b in heavy])
        )
        return None

    def _heavy(self, request: Request, pos: int) -> Heavy:
        """Batches that take long to look at, as far as their headers tell."""
        replicas = self._broker.replicas
        hosted: Hosted = replicas.by_id if request.version >= BY_ID else replicas.by_name
        found: Heavy = []
        for topic, partitions in decode_produce(request.buf, pos, request.end, request.version)[3]:
            here = hosted.get(topic) or {}
            for index, start, end in partitions:
                partition = here.get(index)
                if partition is None or partition.plain or partition.topic in INTERNAL or end - start < HEADER_BYTES:
                    continue
                header = HEADER.unpack_from(request.buf, start)
                attributes, count = header[5], header[12]
                if attributes & CODEC_MASK or count > FEW_RECORDS or end - start > FEW_BYTES:
                    found.append((partition, start, end))
        return found

    async def _check_then_append(self, request: Request, frame: bytearray, pos: int, heavy: Heavy) -> None:
        # Of this request only: others come while it waits, with batches for the same partitions at the same places.
        prepared: Findings = {}
        connection = request.connection
        view = memoryview(frame)
        try:
            async with self._turn:
                for partition, start, end in heavy:
                    if connection.closed:
                        return  # whoever sent it will send it again
                    config, now_ms = partition.log.config, self._environment.wall_ms()
                    prepared[partition, start] = config, await self._broker.runtime.run_in_thread(
                        _prepared, bytearray(view[start:end]), Rules.of(config), now_ms
                    )
                if connection.closed:
                    return
                request.api_key = PRODUCE
                request.buf, request.view = frame, view
                request.pos, request.end = CLIENT_ID_AT, len(frame)
                try:
                    self._environment.prepared = prepared
                    answer = self._handler(request, pos)
                finally:
                    self._environment.prepared = {}
        except ProtocolError as error:
            connection.unreadable(error)
            return
        except Exception:
            logger.exception("Produce from %s failed; closing its connection", connection.peer_host)
            self._broker.metrics.requests_failed += 1
            connection.transport.abort()
            return
        finally:
            request.let_go()
        if answer is None:
            connection.go_on()
        else:
            connection.listener.router.parked_done(request)
            request.complete(answer)


def _prepared(batch: bytearray, rules: Rules, now_ms: int) -> tuple[Prepared, bytearray] | KafkaError:
    """In a thread, on a copy: what the topic stores of a batch, or why it does not."""
    try:
        header = validate(batch, memoryview(batch), 0, len(batch), rules.log_append_time)
        del batch[LOG_OVERHEAD + header[1] :]  # a piece of another one, which is left out
        return prepare(memoryview(batch), rules, now_ms, UNFOLDED_BYTES_MAX), batch
    except KafkaError as error:
        return error
