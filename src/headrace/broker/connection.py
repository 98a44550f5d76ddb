"""One client's connection: bytes into requests, answers back in request order.

Requests are handled synchronously as their bytes arrive; one that must wait takes a slot in the connection's queue.
A Produce may be appended behind a waiting Produce (so that one fsync serves many); any other request waits until the
answers before it are out, as Kafka's does. Nothing is parsed while the peer does not read its answers.
"""

import asyncio
import logging
from asyncio import Transport
from collections import deque
from collections.abc import Callable
from mmap import mmap
from struct import Struct
from typing import TYPE_CHECKING, Protocol, cast

from headrace.broker.farewell import part
from headrace.broker.frame_memory import reserve
from headrace.broker.idle_poll import SMALL_BYTES
from headrace.broker.outbox import Chunk, Outbox, SocketOutbox, TransportOutbox, release
from headrace.broker.turns import CLEAR_S, SHARE_S
from headrace.errors import KafkaError
from headrace.protocol.headers import CLIENT_ID_AT, SAID_AT
from headrace.protocol.primitives import ProtocolError

if TYPE_CHECKING:
    from headrace.broker.handlers.produce_order import Refused
    from headrace.broker.server import Listener

log = logging.getLogger("headrace.connection")

PRODUCE = 0
FETCH = 1
HEADER_BYTES_MIN = 10
BUFFER_BYTES = 16 * 1024
"""What every connection has; more is charged to the common budget."""
BUFFER_BYTES_BUSY = 512 * 1024
"""How far a connection's buffer grows just to receive more at a time."""
BUFFER_BYTES_KEPT = 4 << 20
"""A buffer may stay this large while its connection is busy. A larger frame gets memory of its own, until it is handled."""
MAPPED_STEP_BYTES = 1 << 20
"""Such a frame takes so much of the common budget at a time."""
LARGE_READ_BYTES = 64 * 1024
"""Reads from here on count as work: the kernel copies while the loop waits."""
ANSWERS_BYTES_MAX = 256 * 1024
"""Answers of one turn leave together, up to this much: small requests may have large answers."""
TURN_FRAMES = 256
"""What one connection may ask before others get their turn."""
MAPPED_IPV4 = "::ffff:"

_int32 = Struct(">i").unpack_from
_header = Struct(">ihhih").unpack_from  # length, API, version, correlation id, length of the client id

Answer = bytes | list[Chunk]

_nothing = bytearray()
_nothing_view = memoryview(_nothing)
_no_shortcuts: dict[int, "Shortcut"] = {}
"""For frames in memory of their own, which cannot be compared in place; nor would they gain by it."""


class Abandonable(Protocol):
    """What waits on behalf of a request."""

    def abandon(self) -> None:
        """Nobody will read the answer: wait no longer."""
        ...


class Request:
    """One request: where it stands in the connection's buffer, and its answer's place in the queue.

    `buf`, `view`, `pos` and `end` are good only until the handler returns: the buffer is reused afterwards.
    """

    __slots__ = (
        "answer", "api_key", "buf", "client_id_length", "connection", "correlation_id", "end", "pos", "started",
        "version", "view", "waiter",
    )  # fmt: skip

    def __init__(
        self, connection: "Connection", api_key: int, version: int, correlation_id: int, client_id_length: int,
        pos: int, end: int, started: float,
    ) -> None:  # fmt: skip
        self.connection = connection
        self.api_key = api_key
        self.version = version
        self.correlation_id = correlation_id
        self.client_id_length = client_id_length
        self.buf = connection.buf
        self.view = connection.view
        self.pos = pos  # of the client id
        self.end = end
        self.started = started
        self.answer: Answer | None = None
        self.waiter: Abandonable | None = None

    @property
    def frame(self) -> int:
        """Where it begins, with its length."""
        return self.pos - CLIENT_ID_AT

    @property
    def client_id(self) -> str | None:
        """The name the client gave itself. Read it before the handler first waits."""
        if self.client_id_length < 0:
            return None
        return str(self.view[self.pos : self.pos + self.client_id_length], "utf-8", "replace")

    def let_go(self) -> None:
        """The buffer is for the next request now; a large one must not live on with this."""
        self.buf = _nothing
        self.view = _nothing_view

    def complete(self, answer: Answer) -> None:
        """Fill the slot of a request that waited."""
        self.answer = answer
        self.connection.slot_filled()


class Shortcut(Protocol):
    """A quicker way for requests that say again what an earlier one of their connection said."""

    version: int
    said: bytes
    """What stands behind the correlation id."""

    def take(
        self, connection: "Connection", pos: int, end: int, correlation_id: int, started: float
    ) -> Answer | Request | None:
        """The answer to the frame at `pos`, or its place in the queue if it has to wait; None: nothing was done."""
        ...


class Connection(asyncio.BufferedProtocol):
    """The protocol object of one socket."""

    def __init__(self, listener: "Listener") -> None:
        self.listener = listener
        self.broker = listener.broker
        self._route = listener.router.route
        self._clock = listener.broker.runtime.perf_counter
        self._budget = listener.broker.budget
        self._idle_poll = listener.broker.idle_poll
        self._turns = listener.broker.turns
        self._frame_bytes_max = listener.broker.settings.request_bytes_max
        self._control_bytes_max = listener.broker.settings.control_bytes_max
        self._parked_max = listener.broker.settings.parked_requests_max
        self.buf = bytearray(BUFFER_BYTES)
        self.view = memoryview(self.buf)
        self._room = BUFFER_BYTES  # bytes of the buffer that may be used: all of it, but in a frame's own memory
        self._charged = 0  # bytes of the budget held for that
        self._start = 0  # first byte not handled yet
        self._filled = 0  # end of what was received
        self._read_began = 0.0
        self._slots: deque[Request] = deque()
        self._paused = False  # reading is off
        self._processing = False
        self._yielded = False  # waits for its next turn
        self._admitted = False
        self.closed = False
        self.closing = False  # no more requests are taken; what is in flight is answered
        self.last_active = 0.0
        self.peer_host = ""
        self.local_address: tuple[str, int] = ("", 0)
        self.client_software: tuple[str, str] = ("", "")
        self.shortcuts: dict[int, Shortcut] = {}
        """By API; learnt by their handlers from what came before."""
        self.last_topic: str | bytes = ""
        """That a Produce wrote to."""
        self.refused: Refused | None = None
        """Batches that a producer was told to send again, while there are any."""
        self.last_commit: tuple[int, str, str, int] | None = None
        """An OffsetCommit's length, group, first topic and first partition."""
        self.when_lost: Callable[[], None] | None = None
        """Who wants to know that the other side is gone."""
        self.transport: Transport
        self.outbox: Outbox

    # ---- transport callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast(Transport, transport)  # uvloop's is one in all but name
        self.transport = transport
        self.peer_host, _ = _address(transport.get_extra_info("peername"))
        self.local_address = _address(transport.get_extra_info("sockname"))
        self.last_active = self._clock()
        plain = self.broker.runtime.can_sendfile and transport.get_extra_info("ssl_object") is None
        self.outbox = (SocketOutbox if plain else TransportOutbox)(
            transport, self.broker.runtime.loop, self.resume_writing
        )
        refusal = self.broker.connection_limits.admit(self.peer_host)
        if refusal is not None:
            log.warning("connection from %s refused: %s", self.peer_host, refusal)
            self.broker.metrics.connections_refused += 1
            transport.abort()
            return
        self._admitted = True
        self.broker.connections[self] = None

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        self.outbox.close()
        slots, self._slots = self._slots, deque()
        for request in slots:
            if request.answer is not None:
                release(request.answer if isinstance(request.answer, list) else ())
            elif request.waiter is not None:
                request.waiter.abandon()
        if self._admitted:
            self.broker.connections.pop(self, None)
            self.broker.connection_limits.release(self.peer_host)
        old, charged = self.buf, self._charged
        self.buf, self.view = _nothing, _nothing_view
        self._start = self._filled = self._room = self._charged = 0
        self._give_back(old, charged)
        if self.when_lost is not None:
            self.when_lost()

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        pass  # the outbox asks the transport itself

    def resume_writing(self) -> None:
        self.outbox.resume()
        if not self.outbox.blocked:
            self.last_active = self._clock()
            self.go_on()

    # ---- receiving

    def get_buffer(self, sizehint: int) -> memoryview:
        filled, room = self._filled, self._room
        if room - filled > LARGE_READ_BYTES:
            if self._turns.over:
                room = filled + BUFFER_BYTES
            else:
                self._read_began = self._clock()
        return self.view[filled:room]

    def buffer_updated(self, nbytes: int) -> None:
        self._filled += nbytes
        if nbytes > LARGE_READ_BYTES:
            self._turns.spent(self._clock() - self._read_began)
        self._process()

    def receive_now(self) -> None:
        """Take what the peer has sent already, a little before the loop would bring it."""
        if not (self.closed or self.closing or self._paused or self._processing):
            count = self.outbox.receive(self.get_buffer(-1))
            if count:
                self.buffer_updated(count)

    def _process(self) -> None:
        """Handle every whole frame that may be handled now, send the answers, make room for more."""
        if self._processing or self.closed:
            return
        turns = self._turns
        if turns.over and not self.closing:
            self._yield()
            self._set_paused(True)
            return
        self._processing = True
        failure: Exception | None = None
        buf, pos, filled, slots = self.buf, self._start, self._filled, self._slots
        out: list[Chunk] = []
        out_bytes = produced = fetched = 0
        turn = TURN_FRAMES
        frame_bytes_max, control_bytes_max = self._frame_bytes_max, self._control_bytes_max
        shortcuts = self.shortcuts if buf.__class__ is bytearray else _no_shortcuts
        small = filled - pos <= SMALL_BYTES
        clock = self._clock
        started = self.last_active = clock()
        deadline = started + SHARE_S
        try:
            while not self.closing:
                if filled - pos < CLIENT_ID_AT:
                    if filled - pos >= 4:
                        self._check_length(*_int32(buf, pos))  # at once: a wrong one is followed by nothing
                    break
                length, api_key, version, correlation_id, client_id_length = _header(buf, pos)
                if not HEADER_BYTES_MIN <= length <= frame_bytes_max:
                    self._check_length(length)
                if length > control_bytes_max and api_key != PRODUCE and api_key != FETCH:
                    raise ProtocolError(f"request {api_key} of {length} bytes; the limit is {control_bytes_max}")
                end = pos + 4 + length
                if end > filled:
                    break
                if slots and (api_key != PRODUCE or slots[-1].api_key != PRODUCE or len(slots) >= self._parked_max):
                    if api_key == FETCH:
                        self._give_way_to_fetch(slots[-1])
                    break
                if self.outbox.blocked:
                    break
                if not turn or (turn != TURN_FRAMES and clock() > deadline):
                    self._yield()
                    break
                turn -= 1
                frame, pos = pos, end
                answer: Answer | None = None
                shortcut = shortcuts.get(api_key)
                if (
                    shortcut is not None
                    and version == shortcut.version
                    and buf.startswith(shortcut.said, frame + SAID_AT)
                ):
                    taken = shortcut.take(self, frame, end, correlation_id, started)
                    if taken.__class__ is Request:
                        slots.append(taken)
                        continue
                    answer = taken  # type: ignore[assignment]
                if answer is None or slots:
                    request = Request(
                        self, api_key, version, correlation_id, client_id_length, frame + CLIENT_ID_AT, end, started
                    )
                    if answer is None:
                        answer = self._route(request)
                    if answer is None or slots:
                        request.let_go()
                        request.answer = request.answer or answer  # it may have come meanwhile
                        slots.append(request)
                        continue
                if answer.__class__ is bytes:
                    if api_key == PRODUCE:
                        produced += 1
                    elif api_key == FETCH:
                        fetched += 1
                    if answer:  # acks=0 has none
                        out.append(answer)
                        out_bytes += len(answer)
                        if out_bytes > ANSWERS_BYTES_MAX:
                            self.outbox.send(_joined(out))
                            out, out_bytes = [], 0
                else:
                    # Slices of files leave at once: no telling how long the peer takes to read them.
                    small = False
                    fetched += 1
                    if out:
                        out.extend(answer)  # type: ignore[arg-type]
                        self.outbox.send(_joined(out))
                        out, out_bytes = [], 0
                    else:
                        self.outbox.send(answer)  # type: ignore[arg-type]
        except (ProtocolError, KafkaError) as error:
            failure = error
        except Exception:
            log.exception("request from %s failed; closing its connection", self.peer_host)
            self.broker.metrics.requests_failed += 1
            self.transport.abort()
        progress = pos > self._start
        self._start = pos
        if out:
            self.outbox.send(out if len(out) == 1 else _joined(out))
        seconds = clock() - started
        turns.spent(seconds)
        if produced or fetched:
            self.listener.router.turn_done(produced, fetched, seconds)
        if self._idle_poll is not None:
            self._idle_poll.served(started, small and self.broker.syncer.idle, self)
        self._processing = False
        if failure is not None:
            self._fail(failure)
        if not self.closed:
            self._make_room(progress)
            self.slot_filled()

    def _check_length(self, length: int) -> None:
        if not HEADER_BYTES_MIN <= length <= self._frame_bytes_max:
            raise ProtocolError(f"frame of {length} bytes; the limit is {self._frame_bytes_max}")

    @staticmethod
    def _give_way_to_fetch(waiting: Request) -> None:
        """A follower sends a second Fetch when it has something to add: then the first need not wait any longer.

        Nor when this broker stops.
        """
        if getattr(waiting.waiter, "gives_way", False):
            waiting.waiter.expire()  # type: ignore[union-attr]

    def _yield(self) -> None:
        """Let other connections have their turn, then go on."""
        if not self._yielded:
            self._yielded = True
            self._turns.wait(self)

    def next_turn(self) -> None:
        self._yielded = False
        if not self.closed:
            self._process()

    def _make_room(self, progress: bool) -> None:
        """Leave room to read into, or stop reading until there is some."""
        if self.closing:
            self._budget.leave(self)
            self._set_paused(True)
            return
        if progress and self._charged and self._budget.pressed:
            self._give_way()
        size = len(self.buf)
        if self._start == self._filled:
            was_full = self._filled == size
            self._start = self._filled = 0
            if size > BUFFER_BYTES_KEPT:
                self._replace_buffer(BUFFER_BYTES_BUSY)
            elif was_full and size < BUFFER_BYTES_BUSY:
                # The peer has more to say than fits.
                size = min(4 * size, BUFFER_BYTES_BUSY)
                if self._budget.has_room(size - len(self.buf)):
                    self._replace_buffer(size)
        elif self._slots or self._yielded or self.outbox.blocked:
            # The rest waits for answers to leave; what the kernel still holds waits in the kernel.
            if self._filled == self._room:
                self._compact()
                if self._filled == self._room:
                    self._set_paused(True)
                    return
        elif self._filled - self._start < 4:
            self._compact()
        else:
            (length,) = _int32(self.buf, self._start)
            if self._start + 4 + length > self._room:
                self._compact()
                if self._filled == self._room and not self._grow(4 + length):
                    self._set_paused(True)
                    return
        self._set_paused(False)

    def _grow(self, wanted: int) -> bool:
        """Room for more of a frame of `wanted` bytes: by what has arrived, not by what was announced."""
        room = self._room
        if room < BUFFER_BYTES_BUSY or wanted <= BUFFER_BYTES_KEPT:
            return self._replace_buffer(max(min(max(4 * room, BUFFER_BYTES_BUSY), wanted), min(4 * room, BUFFER_BYTES_BUSY)))
        step = min(MAPPED_STEP_BYTES, wanted - room)
        if not self._budget.take(self, step, self._room_again):
            return False
        self._charged += step
        self._room += step
        if len(self.buf) < wanted:
            try:
                # It reads and is written like a bytearray.
                self._move_to(cast(bytearray, reserve(wanted)))
            except OSError as error:
                log.warning("no memory for a request of %d bytes from %s: %s", wanted, self.peer_host, error)
                self.transport.abort()
        return True

    def _give_way(self) -> None:
        """Others wait for memory and this one has just handled a frame: it keeps what holds the rest, no more."""
        size = max(BUFFER_BYTES, self._filled - self._start)
        if size < self._room:
            self._replace_buffer(size)
        else:
            self._budget.leave(self)

    def _compact(self) -> None:
        if self._start:
            rest = self._filled - self._start
            self.view[:rest] = self.view[self._start : self._filled]
            self._start, self._filled = 0, rest

    def _replace_buffer(self, size: int) -> bool:
        """Change to a new buffer. Never resized in place: views of the old one may still be alive."""
        change = size - self._room
        if change > 0 and not self._budget.take(self, change, self._room_again):
            return False
        old = self.buf
        self._move_to(bytearray(size))
        self._turns.spent(size * CLEAR_S)
        self._charged += change
        self._room = size
        if change <= 0:
            self._give_back(old, -change)
        return True

    def _move_to(self, new: bytearray) -> None:
        rest = self._filled - self._start
        view = memoryview(new)
        view[:rest] = self.view[self._start : self._filled]
        self.buf, self.view = new, view
        self._start, self._filled = 0, rest

    def _give_back(self, old: bytearray, charged: int) -> None:
        """A buffer is no longer needed, nor is the place in line."""
        if isinstance(old, mmap):
            self._budget.leave(self)
            self.broker.frame_memory.retire(old, charged)
        else:
            self._budget.give(self, charged)

    def _room_again(self) -> None:
        # While frames are being handled their bytes must stay where they are; the end of that makes room itself.
        if not self.closed and not self._processing:
            self._make_room(False)

    def _set_paused(self, paused: bool) -> None:
        if paused != self._paused and not self.transport.is_closing():
            self._paused = paused
            if paused:
                self.transport.pause_reading()
            else:
                self.transport.resume_reading()

    # ---- answering

    def slot_filled(self) -> None:
        """An answer is ready: send it and those behind it, if it is the first."""
        slots = self._slots
        # While frames are being handled their own answers come first; the end of that looks here again.
        if self.closed or self._processing or not slots or slots[0].answer is None:
            return
        out: list[Chunk] = []
        answers = 0
        while slots and slots[0].answer is not None:
            answer = slots.popleft().answer
            answers += 1
            if isinstance(answer, bytes):
                if answer:
                    out.append(answer)
            else:
                out.extend(answer)  # type: ignore[arg-type]
        if out:
            self.outbox.send(out if answers == 1 else _joined(out))
        self.go_on()

    def go_on(self) -> None:
        """What waited for answers to leave may now be handled."""
        if self.closing and not self._slots and not self.outbox.blocked:
            part(self) if self.broker.draining else self.transport.close()
        elif self._filled > self._start:
            self._process()

    def shrink(self) -> None:
        """Called when idle for a while: give back what a burst needed."""
        if self._charged and self._start == self._filled:
            self._start = self._filled = 0
            self._replace_buffer(BUFFER_BYTES)

    def finish(self) -> None:
        """Answer what is in flight, take nothing more, then close."""
        self.closing = True
        if not self.closed:
            self._set_paused(True)
            if self._slots:
                self._give_way_to_fetch(self._slots[-1])
            self.go_on()

    @property
    def waiting(self) -> int:
        """Requests of this connection that wait for something."""
        return len(self._slots)

    @property
    def unfinished(self) -> int:
        """Bytes of a frame whose end is awaited; 0 where it needs no more memory than every connection has."""
        waits = self._slots or self._yielded or self._paused or self.outbox.blocked
        return 0 if waits or not self._charged else self._filled - self._start

    def _fail(self, error: Exception) -> None:
        """Bytes that are not Kafka's protocol: there is no way to answer, and no telling where the next frame starts."""
        self.broker.metrics.protocol_errors += 1
        log.warning("closing connection from %s: %s", self.peer_host, error)
        self.closing = True
        self.go_on()  # answers to earlier requests still leave, then it closes

    def unreadable(self, error: Exception) -> None:
        """A request that has a place in the queue turns out not to be Kafka's protocol. Those before it are answered."""
        if not self.closed:
            self._fail(error)
            self.transport.abort()


def _address(name: tuple[str, int] | None) -> tuple[str, int]:
    """Host and port. An IPv4 peer of a socket that serves both families is known by its IPv4 address."""
    if not name:
        return "", 0
    return name[0].removeprefix(MAPPED_IPV4), name[1]


def _joined(chunks: list[Chunk]) -> list[Chunk]:
    """Neighbouring bytes as one, so that they leave in one call."""
    if all(chunk.__class__ is bytes for chunk in chunks):
        return [b"".join(chunks)]  # type: ignore[arg-type]
    result: list[Chunk] = []
    run: list[bytes] = []
    for chunk in chunks:
        if isinstance(chunk, bytes):
            run.append(chunk)
        else:
            if run:
                result.append(b"".join(run))
                run = []
            result.append(chunk)
    if run:
        result.append(b"".join(run))
    return result
