"""One client's connection: bytes into requests, answers back in request order.

Requests are handled synchronously as their bytes arrive; one that must wait takes a slot in the connection's queue.
A Produce may be appended behind a waiting Produce (so that one fsync serves many); any other request waits until the
answers before it are out, as Kafka's does. Nothing is parsed while the peer does not read its answers.
"""

import asyncio
import logging
from asyncio import Transport
from collections.abc import Callable
from enum import Enum, auto
from struct import Struct
from typing import Any, Protocol, cast

from headrace.broker.idle_poll import SMALL_BYTES
from headrace.broker.net.answer_queue import AnswerQueue, joined
from headrace.broker.net.connections import Connections
from headrace.broker.net.lingering_close import linger
from headrace.broker.net.loop_time import SHARE_S
from headrace.broker.net.outbox import Chunk, Outbox, SocketOutbox, TransportOutbox
from headrace.broker.net.receive_buffer import BUFFER_BYTES, ReceiveBuffer
from headrace.broker.net.request import FETCH, PRODUCE, Answer, Request
from headrace.config.listeners import Listener as Endpoint
from headrace.errors import KafkaError
from headrace.protocol.api import API
from headrace.protocol.headers import CLIENT_ID_AT
from headrace.protocol.primitives import ProtocolError
from headrace.replication.fetch_pacing import FetchPacing
from headrace.replication.refused_batches import RefusedBatches

log = logging.getLogger("headrace.connection")

HEADER_BYTES_MIN = 10
LARGE_READ_BYTES = 64 * 1024
"""Reads from here on count as work: the kernel copies while the loop waits."""
ANSWERS_BYTES_MAX = 256 * 1024
"""Answers of one turn leave together, up to this much: small requests may have large answers."""
TURN_FRAMES = 256
"""What one connection may ask before others get their turn."""
MAPPED_IPV4 = "::ffff:"

_int32 = Struct(">i").unpack_from
_header = Struct(">ihhih").unpack_from  # length, API, version, correlation id, length of the client id


class State(Enum):
    """Of a connection. Only an open one takes requests; a finishing one answers those it has taken."""

    NEW = auto()
    OPEN = auto()
    FINISHING = auto()
    CLOSED = auto()


NEW, OPEN, FINISHING, CLOSED = State
NEXT = {
    NEW: {OPEN, CLOSED},  # admitted, or refused since there are too many
    OPEN: {FINISHING, CLOSED},  # the broker stops, or the peer broke the protocol; or the peer is gone
    FINISHING: {CLOSED},
    CLOSED: set(),
}
"""Which state may follow which."""


class Routing(Protocol):
    """Whom a connection hands its requests to."""

    def route(self, request: Request) -> Answer | None:
        """The answer; None: it comes later, by `request.done` or `request.respond`."""
        ...

    def respond(self, request: Request, message: Any) -> None:
        """Encode the answer to a request that waited, and send it."""
        ...

    def waited(self, request: Request) -> None:
        """Count a request that had to wait."""
        ...

    def turn_done(self, produced: int, fetched: int, seconds: float) -> None:
        """Count what was answered in one turn of a connection."""
        ...


class Connection(asyncio.BufferedProtocol):
    """The protocol object of one socket."""

    def __init__(self, connections: Connections, router: Routing, endpoint: Endpoint) -> None:
        self.router = router
        self.endpoint = endpoint
        """Of the listener that it came by."""
        self._all = connections
        self._route = router.route
        self._clock = connections.perf_counter
        self._idle_poll = connections.idle_poll
        self._disk = connections.disk
        self._loop_time = connections.loop_time
        self._frame_bytes_max, self._control_bytes_max, self._parked_max = connections.requests
        self._any_bytes_max = min(self._frame_bytes_max, self._control_bytes_max)
        """What a request of any kind may have."""
        self.inbox = ReceiveBuffer(
            connections.budget, connections.frame_memory, connections.loop_time, self._room_again
        )
        self._read_began = 0.0
        self._slots = AnswerQueue()
        self.state = NEW
        self._is_reading = True
        self._is_handling = False  # frames; their own answers come first
        self._has_turn = False  # its next turn of the loop is waited for
        self._produced = self._fetched = 0  # requests that were answered in this turn
        self.last_active = 0.0
        self.peer_host = ""
        self.local_address: tuple[str, int] = ("", 0)
        self.client_software: tuple[str, str] = ("", "")
        self.fast = connections.fast_path()
        """What it is likely to say again; None where nothing is to be recognised."""
        self.has_produced = False
        self.refused: RefusedBatches | None = None
        """Batches that a producer was told to send again, while there are any."""
        self.pacing: FetchPacing | None = None
        """Of a consumer that may pause, where that is looked for."""
        self.when_lost: Callable[[], None] | None = None
        """Who wants to know that the other side is gone."""
        self.transport: Transport
        self.outbox: Outbox

    def _enter(self, state: State) -> None:
        assert state in NEXT[self.state], f"{self.state} is not followed by {state}"
        self.state = state

    @property
    def closed(self) -> bool:
        return self.state is CLOSED

    # ---- transport callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast(Transport, transport)  # uvloop's is one in all but name
        self.transport = transport
        self.peer_host, _ = _address(transport.get_extra_info("peername"))
        self.local_address = _address(transport.get_extra_info("sockname"))
        self.last_active = self._clock()
        plain = self._all.can_sendfile and transport.get_extra_info("ssl_object") is None
        self.outbox = (SocketOutbox if plain else TransportOutbox)(transport, self._all.loop, self.resume_writing)
        refusal = self._all.admit(self)
        if refusal is not None:
            log.warning("connection from %s refused: %s", self.peer_host, refusal)
            transport.abort()
            return
        self._enter(OPEN)

    def connection_lost(self, exc: Exception | None) -> None:
        was_admitted = self.state is not NEW
        self._enter(CLOSED)
        self.outbox.close()
        self._slots.abandon()
        if was_admitted:
            self._all.release(self)
        self.inbox.close()
        self.fast = None  # a follower's session, which it may refer to, refers to this
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
        inbox = self.inbox
        filled, room = inbox.filled, inbox.room
        if room - filled > LARGE_READ_BYTES:
            if self._loop_time.used_up:
                room = filled + BUFFER_BYTES
            else:
                self._read_began = self._clock()
        return inbox.view[filled:room]

    def buffer_updated(self, nbytes: int) -> None:
        self.inbox.filled += nbytes
        if nbytes > LARGE_READ_BYTES:
            self._loop_time.spent(self._clock() - self._read_began)
        self._process()

    def receive_now(self) -> None:
        """Take what the peer has sent already, a little before the loop would bring it."""
        if self.state is OPEN and self._is_reading and not self._is_handling:
            count = self.outbox.receive(self.get_buffer(-1))
            if count:
                self.buffer_updated(count)

    def _process(self) -> None:
        """Handle every whole frame that may be handled now, send the answers, make room for more."""
        if self._is_handling or self.state is CLOSED:
            return
        loop_time, inbox = self._loop_time, self.inbox
        if loop_time.used_up and self.state is OPEN:
            self._wait_for_turn()
            self._read(False)
            return
        self._is_handling = True
        failure: Exception | None = None
        before = inbox.start
        small = inbox.filled - before <= SMALL_BYTES
        started = self.last_active = self._clock()
        try:
            small = self._handle_frames(inbox, started) and small
        except (ProtocolError, KafkaError) as error:
            failure = error
        seconds = self._clock() - started
        loop_time.spent(seconds)
        if self._produced or self._fetched:
            self.router.turn_done(self._produced, self._fetched, seconds)
        if self._idle_poll is not None:
            self._idle_poll.served(started, small and self._disk.idle, self)
        self._is_handling = False
        if failure is not None:
            self._fail(failure)
        if self.state is not CLOSED:
            self._make_room(inbox.start > before)
            self.slot_filled()

    def _handle_frames(self, inbox: ReceiveBuffer, started: float) -> bool:
        """Handle them and send their answers. False: some of these were large."""
        buf, pos, filled, slots, outbox, clock = (
            inbox.buf,
            inbox.start,
            inbox.filled,
            self._slots,
            self.outbox,
            self._clock,
        )
        # Frames in memory of their own cannot be compared in place; nor would they gain by it.
        fast = self.fast if buf.__class__ is bytearray else None
        out: list[Chunk] = []
        out_bytes = produced = fetched = api_key = 0
        frames_left, deadline, small = TURN_FRAMES, started + SHARE_S, True
        try:
            while self.state is OPEN:
                if filled - pos < CLIENT_ID_AT:
                    if filled - pos >= 4:
                        self._check_length(*_int32(buf, pos))  # at once: a wrong one is followed by nothing
                    break
                length, api_key, version, correlation_id, client_id_length = _header(buf, pos)
                if not HEADER_BYTES_MIN <= length <= self._any_bytes_max:
                    self._check_length(length, api_key)
                end = pos + 4 + length
                if end > filled or outbox.blocked:
                    break
                if slots and (api_key != PRODUCE or slots[-1].api_key != PRODUCE or len(slots) >= self._parked_max):
                    if api_key == FETCH:
                        slots.give_way()
                    break
                if not frames_left or (frames_left != TURN_FRAMES and clock() > deadline):
                    self._wait_for_turn()
                    break
                frames_left -= 1
                frame, pos = pos, end
                answer: Answer | Request | None = None
                if fast is not None:
                    answer = fast.take(self, api_key, version, frame, end, correlation_id, started)
                if answer is None or (slots and answer.__class__ is not Request):
                    at = frame + CLIENT_ID_AT
                    request = Request(self, api_key, version, correlation_id, client_id_length, at, end, started)
                    answer = self._queued(request, answer)  # type: ignore[arg-type]
                if answer.__class__ is bytes:
                    if api_key == PRODUCE:
                        produced += 1
                    elif api_key == FETCH:
                        fetched += 1
                    if answer:  # acks=0 has none
                        out.append(answer)
                        out_bytes += len(answer)
                        if out_bytes > ANSWERS_BYTES_MAX:
                            outbox.send(joined(out))
                            out, out_bytes = [], 0
                elif answer.__class__ is list:
                    # Slices of files leave at once: no telling how long the peer takes to read them.
                    small = False
                    fetched += 1
                    out.extend(answer)
                    outbox.send(joined(out) if out_bytes else out)
                    out, out_bytes = [], 0
                else:
                    slots.append(answer)  # type: ignore[arg-type]
        except (ProtocolError, KafkaError):
            raise
        except Exception:
            self.request_failed(api_key)
        finally:
            inbox.start, self._produced, self._fetched = pos, produced, fetched
            if out:
                outbox.send(out if len(out) == 1 else joined(out))
        return small

    def _queued(self, request: Request, answer: Answer | None) -> Answer | Request:
        """The answer to a request, or the request itself: then it has to wait for its answer or for its turn."""
        if answer is None:
            answer = self._route(request)
        if answer is not None and not self._slots:
            return answer
        request.let_go()
        request.answer = request.answer or answer  # it may have come meanwhile
        return request

    def _check_length(self, length: int, api_key: int = PRODUCE) -> None:
        if not HEADER_BYTES_MIN <= length <= self._frame_bytes_max:
            raise ProtocolError(f"frame of {length} bytes; the limit is {self._frame_bytes_max}")
        if length > self._control_bytes_max and api_key != PRODUCE and api_key != FETCH:
            raise ProtocolError(f"request {api_key} of {length} bytes; the limit is {self._control_bytes_max}")

    def _wait_for_turn(self) -> None:
        """Let other connections have their turn, then go on."""
        if not self._has_turn:
            self._has_turn = True
            self._loop_time.wait(self)

    def next_turn(self) -> None:
        self._has_turn = False
        if self.state is not CLOSED:
            self._process()

    def _make_room(self, progress: bool) -> None:
        """Leave room to read into, or stop reading until there is some."""
        if self.state is not OPEN:
            self.inbox.leave_line()
            self._read(False)
            return
        is_waiting = bool(self._slots) or self._has_turn or self.outbox.blocked
        try:
            self._read(self.inbox.make_room(progress, is_waiting))
        except OSError as error:
            log.warning("no memory for a large request from %s: %s", self.peer_host, error)
            self.transport.abort()

    def _room_again(self) -> None:
        # While frames are being handled their bytes must stay where they are; the end of that makes room itself.
        if self.state is not CLOSED and not self._is_handling:
            self._make_room(False)

    def _read(self, reading: bool) -> None:
        if reading != self._is_reading and not self.transport.is_closing():
            self._is_reading = reading
            if reading:
                self.transport.resume_reading()
            else:
                self.transport.pause_reading()

    # ---- answering

    def slot_filled(self) -> None:
        """An answer is ready: send it and those behind it, if it is the first."""
        # While frames are being handled their own answers come first; the end of that looks here again.
        if self._is_handling or self.state is CLOSED:
            return
        ready = self._slots.pop_ready()
        if ready is not None:
            if ready:
                self.outbox.send(ready)
            self.go_on()

    def go_on(self) -> None:
        """What waited for answers to leave may now be handled."""
        if self.state is FINISHING and not self._slots and not self.outbox.blocked:
            linger(self) if self._all.draining else self.transport.close()
        elif self.inbox.filled > self.inbox.start:
            self._process()

    def shrink(self) -> None:
        """Called when idle for a while: give back what a burst needed."""
        self.inbox.shrink()

    def finish(self) -> None:
        """Answer what is in flight, take nothing more, then close."""
        if self.state is OPEN:
            self._enter(FINISHING)
        if self.state is FINISHING:
            self._read(False)
            self._slots.give_way()
            self.go_on()

    @property
    def waiting(self) -> int:
        """Requests of this connection that wait for something."""
        return len(self._slots)

    @property
    def unfinished(self) -> int:
        """Bytes of a frame whose end is awaited; 0 where it needs no more memory than every connection has."""
        waits = self._slots or self._has_turn or not self._is_reading or self.outbox.blocked
        return 0 if waits or not self.inbox.charged else self.inbox.filled - self.inbox.start

    # ---- failing

    def _fail(self, error: Exception) -> None:
        """Bytes that are not Kafka's protocol: there is no way to answer, and no telling where the next frame
        starts."""
        self._all.metrics.protocol_errors += 1
        log.warning("closing connection from %s: %s", self.peer_host, error)
        if self.state is OPEN:
            self._enter(FINISHING)
        self.go_on()  # answers to earlier requests still leave, then it closes

    def request_failed(self, api_key: int) -> None:
        """While an exception is handled: a bug, of which the client learns by the closed connection."""
        name = API[api_key].name if api_key in API else f"request {api_key}"
        log.exception("%s from %s failed; closing its connection", name, self.peer_host)
        self._all.metrics.requests_failed += 1
        self.transport.abort()

    def unreadable(self, error: Exception) -> None:
        """A request that has a place in the queue turns out not to be Kafka's protocol. Those before it are
        answered."""
        if self.state is not CLOSED:
            self._fail(error)
            self.transport.abort()


def _address(name: tuple[str, int] | None) -> tuple[str, int]:
    """Host and port. An IPv4 peer of a socket that serves both families is known by its IPv4 address."""
    if not name:
        return "", 0
    return name[0].removeprefix(MAPPED_IPV4), name[1]
