"""A connection's surroundings, made of plain objects: a transport that keeps what is written, a route under control."""

import struct
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from headrace.broker.metrics import Metrics
from headrace.broker.net.connection import Connection
from headrace.broker.net.connections import Connections, RequestLimits
from headrace.broker.net.limits import ConnectionLimits, MemoryBudget
from headrace.broker.net.loop_time import LoopTime
from headrace.broker.net.request import Answer, Request
from headrace.config.listeners import Listener as Endpoint

PRODUCE, FETCH, METADATA = 0, 1, 3


def frame(correlation_id: int, api_key: int = PRODUCE, body: bytes = b"", version: int = 3) -> bytes:
    """A request with a null client id."""
    head = struct.pack(">hhih", api_key, version, correlation_id, -1)
    return struct.pack(">i", len(head) + len(body)) + head + body


def answer_to(correlation_id: int, size: int = 0) -> bytes:
    return struct.pack(">ii", 4 + size, correlation_id) + bytes(size)


def answered(data: bytes) -> list[int]:
    """Correlation ids of whole answers, in order; there must be nothing else."""
    found = []
    pos = 0
    while pos < len(data):
        length, correlation_id = struct.unpack_from(">ii", data, pos)
        found.append(correlation_id)
        pos += 4 + length
    assert pos == len(data), "half an answer"
    return found


class FakeLoop:
    """Only call_soon and call_later, run by hand."""

    def __init__(self) -> None:
        self.ready: list[tuple[Callable[..., object], tuple[Any, ...]]] = []
        self.later: list[tuple[Callable[..., object], tuple[Any, ...]]] = []

    def call_later(self, delay_s: float, callback: Callable[..., object], *arguments: Any) -> None:
        self.later.append((callback, arguments))

    def call_soon(self, callback: Callable[..., object], *arguments: Any) -> None:
        self.ready.append((callback, arguments))

    def turn(self) -> None:
        ready, self.ready = self.ready, []
        for callback, arguments in ready:
            callback(*arguments)


class FakeTransport:
    """Takes `window` bytes at once; the rest waits until the test lets the peer read."""

    def __init__(self) -> None:
        self.protocol: Connection
        self.delivered = bytearray()
        self.pending = bytearray()
        self.window: int | None = None
        self.reading = True
        self.closing = False
        self.aborted = False
        self.paused_protocol = False
        self.pauses = 0

    def get_extra_info(self, name: str) -> object:
        return {"peername": ("10.0.0.7", 4711), "sockname": ("10.0.0.1", 9092)}.get(name)

    def set_write_buffer_limits(self, high: int) -> None:
        assert high == 0

    def get_write_buffer_size(self) -> int:
        return len(self.pending)

    def is_closing(self) -> bool:
        return self.closing

    def write(self, data: bytes) -> None:
        if self.closing:
            return
        self.pending += data
        self._flow()
        if self.pending and not self.paused_protocol:
            self.paused_protocol = True
            self.protocol.pause_writing()

    def _flow(self) -> None:
        count = len(self.pending) if self.window is None else min(self.window, len(self.pending))
        self.delivered += self.pending[:count]
        del self.pending[:count]
        if self.window is not None:
            self.window -= count

    def peer_reads(self, count: int | None) -> None:
        """The peer takes `count` more bytes; None: everything from now on."""
        self.window = None if count is None else (self.window or 0) + count
        self._flow()
        if self.paused_protocol and not self.pending:
            self.paused_protocol = False
            self.protocol.resume_writing()

    def pause_reading(self) -> None:
        assert self.reading and not self.closing
        self.reading = False
        self.pauses += 1

    def resume_reading(self) -> None:
        assert not self.reading and not self.closing
        self.reading = True

    def close(self) -> None:
        self.closing = True

    def abort(self) -> None:
        self.closing = self.aborted = True


class Route:
    """Answers at once, or parks; keeps the bodies it was shown."""

    def __init__(self) -> None:
        self.seen: list[int] = []
        self.bodies: list[bytes] = []
        self.parked: dict[int, Request] = {}
        self.answered_in_turns = 0
        self.decide: Callable[[Request], Answer | None] = lambda request: answer_to(request.correlation_id)

    def route(self, request: Request) -> Answer | None:
        self.seen.append(request.correlation_id)
        self.bodies.append(bytes(request.view[request.pos : request.end]))
        answer = self.decide(request)
        if answer is None:
            self.parked[request.correlation_id] = request
        return answer

    def turn_done(self, produced: int, fetched: int, seconds: float) -> None:
        self.answered_in_turns += produced + fetched

    def waited(self, request: Request) -> None:
        self.answered_in_turns += 1

    def respond(self, request: Request, message: Any) -> None:
        raise AssertionError("no handler here answers with a message")

    def park_all(self) -> None:
        self.decide = lambda request: None

    def complete(self, correlation_id: int, answer: Answer | None = None) -> None:
        request = self.parked.pop(correlation_id)
        request.complete(answer if answer is not None else answer_to(correlation_id))


PARKED_MAX = 256
CONTROL_BYTES_MAX = 16 << 20
ENDPOINT = Endpoint("PLAINTEXT", "", 9092, "PLAINTEXT")


class Peer:
    """One connection with everything around it faked."""

    def __init__(
        self, *, budget: MemoryBudget | None = None, frame_bytes_max: int = 100 << 20,
        limits: ConnectionLimits | None = None,
        loop: FakeLoop | None = None, loop_time: LoopTime | None = None,
    ) -> None:  # fmt: skip
        self.router = Route()
        self.loop = loop if loop is not None else FakeLoop()
        self.now = 0.0
        self.budget = budget if budget is not None else MemoryBudget(1 << 30)
        runtime: Any = SimpleNamespace(perf_counter=lambda: self.now, loop=self.loop, can_sendfile=False)
        requests = RequestLimits(frame_bytes_max, CONTROL_BYTES_MAX, PARKED_MAX)
        if limits is None:
            limits = ConnectionLimits(10**9, 10**9, {})
        disk: Any = SimpleNamespace(idle=True)
        self.connections = Connections(runtime, requests, limits, self.budget, Metrics(), None, disk)
        if loop_time is not None:
            self.connections.loop_time = loop_time
        self.connection = Connection(self.connections, self.router, ENDPOINT)
        self.transport = FakeTransport()
        self.transport.protocol = self.connection
        self.backlog = bytearray()  # sent by the peer, still in the kernel
        self.connection.connection_made(self.transport)  # type: ignore[arg-type]

    def send(self, data: bytes, chunk: int | None = None) -> None:
        """Bytes from the peer, at most `chunk` per read; what is not read waits, as in a kernel."""
        self.backlog += data
        self.pump(chunk)

    def pump(self, chunk: int | None = None) -> None:
        while self.backlog and self.transport.reading and not self.transport.closing:
            room = self.connection.get_buffer(-1)
            assert len(room) > 0, "an empty buffer: uvloop would kill the connection"
            count = min(len(room), len(self.backlog), chunk or len(self.backlog))
            room[:count] = self.backlog[:count]
            room.release()
            del self.backlog[:count]
            self.connection.buffer_updated(count)

    @property
    def answers(self) -> list[int]:
        return answered(bytes(self.transport.delivered))

    def lose(self) -> None:
        self.transport.closing = True
        self.connection.connection_lost(None)
