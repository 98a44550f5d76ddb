"""What has to be known before a Produce is handled as usual: about its transaction, and about large batches.

The first batch of a transaction is asked about at the coordinator. The records of large or compressed batches are
checked in a thread, for topics that need it: a few kilobytes may hold hundreds of megabytes, or hundreds of thousands
of records, half a second of work for which everybody else would have to wait. What stands behind such a request on its
connection waits for it, as order demands.
"""

import asyncio
from mmap import mmap

from headrace.broker.handlers.produce.handler import Hosted, ProduceHandler
from headrace.broker.handlers.produce.transaction_checks import TransactionChecks, Unverified
from headrace.broker.net.request import PRODUCE, Answer, Request
from headrace.broker.net.router import Spawn
from headrace.broker.replicas.environment import Environment, Findings
from headrace.broker.replicas.hosted import Replicas
from headrace.broker.replicas.partition import Partition
from headrace.broker.runtime import Runtime
from headrace.errors import KafkaError
from headrace.metadata.names import INTERNAL
from headrace.protocol.hot import decode_produce
from headrace.protocol.primitives import ProtocolError
from headrace.protocol.templates.produce import BY_ID
from headrace.records.batch import validate
from headrace.records.layout import CODEC_MASK, HEADER, HEADER_BYTES, LOG_OVERHEAD
from headrace.records.validation import Prepared, Rules, prepare

UNFOLDED_BYTES_MAX = 100 << 20
"""As many as a request may have by default: what holds more could not have been sent as it is. Memory takes it
twice."""
FEW_RECORDS = 1000
FEW_BYTES = 128 * 1024
"""Plain batches up to here are looked at on the loop: a millisecond."""
AT_ONCE = 2
HELD = -1
"""In place of its API: nothing may be handled behind it yet."""

Heavy = list[tuple[Partition, int, int]]


class RecordChecks:
    """Stands before the handler of Produce."""

    def __init__(
        self,
        handler: ProduceHandler,
        transactions: TransactionChecks,
        replicas: Replicas,
        environment: Environment,
        runtime: Runtime,
        spawn: Spawn,
    ) -> None:
        self._handler = handler
        self._transactions = transactions
        self._replicas = replicas
        self._environment = environment
        self._runtime = runtime
        self._spawn = spawn
        self._turn = asyncio.Semaphore(AT_ONCE)

    def __call__(self, request: Request, pos: int) -> Answer | None:
        unverified = self._transactions.needed(request, pos)
        heavy = self._heavy(request, pos) if self._environment.checks_records else []
        if not heavy and unverified is None:
            return self._handler(request, pos)
        moved, frame, view = 0, request.buf, request.view
        if not isinstance(frame, mmap):
            # The next frame overwrites it. One in memory of its own is not copied: that takes 50 ms for 99 MB.
            moved = request.frame
            frame = bytearray(view[moved : request.end])
            view = memoryview(frame)
        request.pos -= moved
        request.end -= moved
        request.api_key = HELD
        self._spawn(
            self._check_then_append(
                request,
                frame,
                view,
                pos - moved,
                moved,
                unverified,
                [(partition, a - moved, b - moved) for partition, a, b in heavy],
            )
        )
        return None

    def _heavy(self, request: Request, pos: int) -> Heavy:
        """Batches that take long to look at, as far as their headers tell."""
        replicas = self._replicas
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

    async def _check_then_append(
        self,
        request: Request,
        frame: bytearray,
        view: memoryview,
        pos: int,
        moved: int,
        unverified: Unverified | None,
        heavy: Heavy,
    ) -> None:
        """Hand the request on once all is known about it; its bytes have been `moved` to a frame of their own."""
        # Of this request only: others come while it waits, with batches for the same partitions at the same places.
        prepared: Findings = {}
        connection = request.connection
        try:
            guards = {} if unverified is None else await self._transactions.verify(unverified, moved)
            for partition, start, end in heavy:
                async with self._turn:
                    if connection.closed:
                        return  # whoever sent it will send it again
                    config, now_ms = partition.log.config, self._environment.wall_ms()
                    prepared[partition, start] = (
                        config,
                        await self._runtime.run_in_thread(_prepared, view[start:end], Rules.of(config), now_ms),
                    )
            if connection.closed:
                return
            request.api_key = PRODUCE
            request.buf, request.view = frame, view
            try:
                self._environment.prepared, self._environment.guards = prepared, guards
                answer = self._handler(request, pos)
            finally:
                self._environment.prepared, self._environment.guards = {}, {}
        except ProtocolError as error:
            connection.unreadable(error)
            return
        except Exception:
            request.api_key = PRODUCE
            request.fail()
            return
        finally:
            request.let_go()
        if answer is None:
            connection.go_on()
        else:
            request.done(answer)


def _prepared(sent: memoryview, rules: Rules, now_ms: int) -> tuple[Prepared, bytearray] | KafkaError:
    """In a thread, on a copy: what the topic stores of a batch, or why it does not."""
    batch = bytearray(sent)
    try:
        header = validate(batch, memoryview(batch), 0, len(batch), rules.log_append_time)
        del batch[LOG_OVERHEAD + header[1] :]  # a piece of another one, which is left out
        return prepare(memoryview(batch), rules, now_ms, UNFOLDED_BYTES_MAX), batch
    except KafkaError as error:
        return error
