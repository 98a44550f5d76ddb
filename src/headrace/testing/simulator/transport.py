"""The two ends of a simulated connection, as asyncio transports.

A `Pipe` carries one direction: what the kernels have taken but the reader's program has not. What a pipe has no
room for waits in the writer's transport, which pauses its protocol.
"""

import asyncio
import errno
import os
from collections import deque
from collections.abc import Callable, Iterable
from contextvars import Context, copy_context
from enum import Enum
from typing import Any

from headrace.testing.simulator.network import NOBODY, Link, Network
from headrace.testing.simulator.process import CURRENT

HIGH_WATER_BYTES = 65_536


class Signal(Enum):
    """What a stream carries besides bytes."""

    END = "end of stream"
    RESET = "reset"


Segment = bytes | Signal


class Pipe:
    """One direction of a connection, from a transport's write to the other protocol's read."""

    def __init__(self, network: Network, link: Link, back: Link, writer: "Endpoint", reader: "Endpoint") -> None:
        self.network = network
        self.link = link
        self.back = back
        self.writer = writer
        self.reader = reader
        self.held_bytes = 0
        """Taken from the writer, not yet read by the other side; bounded by the window."""
        self.arrived_bytes = 0
        self.reset_at: int | None = None
        """Reset the connection once so many bytes have arrived."""
        self._in_flight: deque[Segment] = deque()
        self._free_at_s = 0.0
        self._unanswered = False

    @property
    def room_bytes(self) -> int:
        return max(0, self.link.conditions.window_bytes - self.held_bytes)

    def send(self, segment: Segment) -> None:
        """Bytes within the room there is, or a signal behind them."""
        loop = self.network.loop
        for piece in self._pieces(segment):
            self._in_flight.append(piece)
            # Segments overtake nothing: the stream arrives in order however long one takes.
            self._free_at_s = max(self._free_at_s, loop.time() + self.link.delay_s())
            loop.call_at(self._free_at_s, self.link.arrive, self._deliver, context=NOBODY)

    def _pieces(self, segment: Segment) -> Iterable[Segment]:
        if isinstance(segment, Signal):
            return (segment,)
        self.held_bytes += len(segment)
        sizes = self.link.conditions.chunk_bytes
        if sizes is None:
            return (segment,)
        pieces: list[Segment] = []
        position = 0
        while position < len(segment):
            size = self.network.random.randint(*sizes)
            pieces.append(segment[position : position + size])
            position += size
        return pieces

    def _deliver(self) -> None:
        # Not bound to one piece: whichever event comes first takes the first piece, so delays keep the order.
        if not self._in_flight:
            return
        segment = self._in_flight.popleft()
        if self.reader.gone:
            self._nobody_home(segment)
        elif isinstance(segment, Signal):
            self.reader.arrived(segment)
        else:
            self._deliver_bytes(segment)

    def _deliver_bytes(self, data: bytes) -> None:
        cut = self._cut(len(data))
        if cut is not None:
            data = data[:cut]
        self.arrived_bytes += len(data)
        if data:
            self.reader.arrived(data)
        if cut is not None:
            self.reader.break_connection()

    def _cut(self, length: int) -> int | None:
        if self.reset_at is not None and self.arrived_bytes + length >= self.reset_at:
            return max(0, self.reset_at - self.arrived_bytes)
        chance = self.link.conditions.reset_chance
        if chance and self.network.random.random() < chance:
            return self.network.random.randint(0, length)
        return None

    def _nobody_home(self, segment: Segment) -> None:
        """A segment for a connection that its host does not know: answered with a reset, unless the host is off."""
        if isinstance(segment, Signal):
            return
        if self.reader.host not in self.network.down:
            self.back.carry(self.writer.reset_by_peer)
        elif not self._unanswered:
            # Not acknowledged, so it stays held: the writer fills its buffers and waits.
            self._unanswered = True
            self.network.unanswered(self)

    def consumed(self, count: int) -> None:
        """The reader took bytes: its kernel tells the writer's as soon as the way back is open."""
        self.held_bytes -= count
        self.back.arrive(self.writer.room_again)

    def drop(self) -> None:
        """Lose what has not arrived."""
        self.held_bytes -= sum(len(piece) for piece in self._in_flight if not isinstance(piece, Signal))
        self._in_flight.clear()


class Endpoint(asyncio.Transport):
    """One end. Talks to its protocol only in its own process's context, and to nobody once that process is dead."""

    def __init__(self, network: Network, host: str, port: int, context: Context) -> None:
        super().__init__()
        self.network = network
        self.host = host
        self.port = port
        self.context = context
        self.owner = context.get(CURRENT)
        self.peer: Endpoint
        self.outgoing: Pipe | None = None
        """None until the handshake has met a listener."""
        self.incoming: Pipe
        self.gone = False
        """No connection any more as far as this kernel is concerned."""
        self.number = network.register(self)
        self._protocol: asyncio.BaseProtocol | None = None
        self._made = False
        self._closing = False
        self._eof_sent = False
        self._fin_sent = False
        self._backlog: deque[bytes] = deque()
        self._backlog_bytes = 0
        self._high_bytes, self._low_bytes = HIGH_WATER_BYTES, HIGH_WATER_BYTES // 4
        self._writing_paused = False
        self._reading_paused = False
        self._received: deque[Segment] = deque()
        self._read_scheduled = False
        self._lost_scheduled = False

    def __repr__(self) -> str:
        return f"<Endpoint {self.number} {self.host}:{self.port}{' gone' if self.gone else ''}>"

    # Starting

    def start(self, factory: Callable[[], asyncio.BaseProtocol]) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        """Build the protocol and hand it the transport: before any data, and before create_connection returns."""
        protocol = self._protocol = factory()
        self._made = True
        protocol.connection_made(self)
        self._schedule_read()
        return self, protocol

    # asyncio.Transport

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "peername":
            return (self.peer.host, self.peer.port)
        if name == "sockname":
            return (self.host, self.port)
        return default

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        assert self._protocol is not None
        return self._protocol

    def is_closing(self) -> bool:
        return self._closing

    def is_reading(self) -> bool:
        return not self._reading_paused and not self._closing

    def pause_reading(self) -> None:
        self._reading_paused = True

    def resume_reading(self) -> None:
        if self._reading_paused:
            self._reading_paused = False
            self._schedule_read()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        if high is None:
            high = HIGH_WATER_BYTES if low is None else 4 * low
        if low is None:
            low = high // 4
        if not high >= low >= 0:
            raise ValueError(f"high ({high!r}) must be >= low ({low!r}) must be >= 0")
        self._high_bytes, self._low_bytes = high, low
        self._maybe_pause_writing()

    def get_write_buffer_size(self) -> int:
        return self._backlog_bytes

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low_bytes, self._high_bytes

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not isinstance(data, (bytes, bytearray, memoryview)):
            raise TypeError(f"data: expecting a bytes-like object, got {type(data).__name__}")
        if self._eof_sent:
            raise RuntimeError("Cannot call write() after write_eof()")
        if self._dead() or self._closing or self.gone:
            return
        copied = bytes(data)
        if copied:
            self._backlog.append(copied)
            self._backlog_bytes += len(copied)
            self._pump()
            self._maybe_pause_writing()

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        self.write(b"".join(list_of_data))

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        if self._eof_sent or self._closing or self._dead():
            return
        self._eof_sent = True
        self._finish_if_flushed()

    def close(self) -> None:
        if self._closing or self._dead():
            return
        self._closing = True
        self._finish_if_flushed()

    def abort(self) -> None:
        if self._dead():
            return
        self._reset_peer()
        self._lose(None)

    # Out

    def _pump(self) -> None:
        pipe = self.outgoing
        assert pipe is not None
        while self._backlog and (room_bytes := pipe.room_bytes):
            data = self._backlog.popleft()
            if len(data) > room_bytes:
                self._backlog.appendleft(data[room_bytes:])
                data = data[:room_bytes]
            self._backlog_bytes -= len(data)
            pipe.send(data)

    def room_again(self) -> None:
        """The way out has room again."""
        if self.gone or not self._backlog:
            return
        self._soon(self._flush)

    def _flush(self) -> None:
        if self.gone:
            return
        self._pump()
        if self._writing_paused and self._backlog_bytes <= self._low_bytes:
            self._writing_paused = False
            self._tell("resume_writing")
        self._finish_if_flushed()

    def _maybe_pause_writing(self) -> None:
        if self._backlog_bytes > self._high_bytes and not self._writing_paused:
            self._writing_paused = True
            self._tell("pause_writing")

    def _finish_if_flushed(self) -> None:
        """Say goodbye once everything written before it is on its way."""
        if self._backlog or self.gone or not (self._closing or self._eof_sent):
            return
        if not self._fin_sent and self.outgoing is not None:
            self._fin_sent = True
            self.outgoing.send(Signal.END)
        if self._closing:
            self._lose(None)

    # In

    def arrived(self, segment: Segment) -> None:
        """In this host's kernel; the program reads it when it runs."""
        if segment is Signal.RESET:
            self.reset_by_peer()
            return
        self._received.append(segment)
        self._schedule_read()

    def _schedule_read(self) -> None:
        if not self._read_scheduled and self._received and self._made:
            self._read_scheduled = True
            self._soon(self._read)

    def _read(self) -> None:
        """One read of the socket: as much as the protocol's buffer takes."""
        self._read_scheduled = False
        if not self._received or self._reading_paused or self._lost_scheduled or self._protocol is None:
            return
        segment = self._received.popleft()
        protocol = self._protocol
        try:
            if isinstance(segment, Signal):
                self._read_signal(protocol, segment)
            elif self._closing:
                self.incoming.consumed(len(segment))
            elif isinstance(protocol, asyncio.BufferedProtocol):
                self._read_into(protocol, segment)
            else:
                assert isinstance(protocol, asyncio.Protocol)
                self.incoming.consumed(len(segment))
                protocol.data_received(segment)
        except Exception as error:
            self._fatal(error)
        self._schedule_read()

    def _read_into(self, protocol: asyncio.BufferedProtocol, data: bytes) -> None:
        view = memoryview(protocol.get_buffer(-1)).cast("B")
        if not len(view):
            raise RuntimeError("get_buffer() returned an empty buffer")
        count = min(len(view), len(data))
        view[:count] = data[:count]
        view.release()
        if count < len(data):
            self._received.appendleft(data[count:])
        self.incoming.consumed(count)
        protocol.buffer_updated(count)

    def _read_signal(self, protocol: asyncio.BaseProtocol, signal: Signal) -> None:
        if signal is Signal.RESET:
            self._lose(_reset_error())
        elif not self._closing:
            assert isinstance(protocol, asyncio.Protocol | asyncio.BufferedProtocol)
            if not protocol.eof_received():
                self.close()

    # Ends

    def break_connection(self) -> None:
        """A reset in the network: both ends learn of it, each after what it has already received."""
        self._reset_peer()
        self.reset_by_peer()

    def reset_by_peer(self) -> None:
        """This kernel forgets the connection; the program finds out when it has read what came before."""
        if self.gone:
            return
        self._forget()
        if self._received and not self._reading_paused:
            self._received.append(Signal.RESET)
            self._schedule_read()
        else:
            self._lose(_reset_error())

    def process_died(self) -> None:
        """The kernel closes for a dead process: with a reset if anything was left unread, else with the end of
        stream."""
        if self.gone:
            return
        if self._received:
            self._reset_peer()
        elif self.outgoing is not None and not self._fin_sent:
            self.outgoing.send(Signal.END)
        self.vanish()

    def vanish(self) -> None:
        """This kernel forgets the connection, the program is no more, and nobody is told."""
        self._forget()
        self._closing = True
        self._lost_scheduled = True
        self._protocol = None
        self._received.clear()

    def _forget(self) -> None:
        self.gone = True
        self._backlog.clear()
        self._backlog_bytes = 0
        self.network.endpoints.pop(self.number, None)

    def _reset_peer(self) -> None:
        if not self.gone and self.outgoing is not None:
            self.outgoing.drop()
            self.outgoing.send(Signal.RESET)

    def _fatal(self, error: Exception) -> None:
        if not isinstance(error, OSError):
            self._report("Fatal error: the protocol raised", error)
        self._reset_peer()
        self._lose(error)

    def _lose(self, error: Exception | None) -> None:
        self._closing = True
        if self._lost_scheduled:
            return
        self._lost_scheduled = True
        self._forget()
        self._soon(self._connection_lost, error)

    def _connection_lost(self, error: Exception | None) -> None:
        protocol, self._protocol = self._protocol, None
        self._received.clear()
        if protocol is not None:
            protocol.connection_lost(error)

    # Inside

    def _tell(self, method: str) -> None:
        protocol = self._protocol
        if protocol is None:
            return
        try:
            getattr(protocol, method)()
        except Exception as error:
            self._report(f"protocol.{method}() failed", error)

    def _report(self, message: str, error: Exception) -> None:
        self.network.loop.call_exception_handler(
            {"message": message, "exception": error, "transport": self, "protocol": self._protocol}
        )

    def _soon(self, callback: Callable[..., object], *arguments: object) -> None:
        self.network.loop.call_soon(callback, *arguments, context=self.context)

    def _dead(self) -> bool:
        return self.owner is not None and not self.owner.alive


def _reset_error() -> ConnectionResetError:
    return ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))


class Handshake:
    """Opening a connection: one packet there, one back, either of which may be slow or never arrive."""

    def __init__(self, network: Network, here: str, there: str, port: int) -> None:
        self.network = network
        self.there = there
        self.port = port
        self.link = network.link(here, there)
        self.back = network.link(there, here)
        self.client = Endpoint(network, here, network.free_port(here), copy_context())
        self.answer: asyncio.Future[Endpoint] = network.loop.create_future()

    async def run(self) -> Endpoint:
        self.link.carry(self._knock, 1.0)
        return await self.answer

    def give_up(self) -> None:
        if not self.client.gone:
            self.client.break_connection()

    def _knock(self, retry_s: float) -> None:
        """The first packet is at the door."""
        network = self.network
        if self.client.gone:
            return
        if self.there in network.down:
            network.loop.call_later(retry_s, self.link.arrive, self._knock, retry_s * 2, context=NOBODY)
            return
        listener = network.listener(self.there, self.port)
        if listener is None:
            self.back.carry(self._refused)
            return
        server = Endpoint(network, self.there, self.port, listener.context)
        self._join(server)
        network.loop.call_soon(_accept, server, listener.factory, context=listener.context)
        self.back.carry(self._established)

    def _join(self, server: Endpoint) -> None:
        client, network = self.client, self.network
        client.peer, server.peer = server, client
        client.outgoing = server.incoming = Pipe(network, self.link, self.back, client, server)
        server.outgoing = client.incoming = Pipe(network, self.back, self.link, server, client)

    def _established(self) -> None:
        if not self.answer.done():
            self.answer.set_result(self.client)

    def _refused(self) -> None:
        self.client.vanish()
        if not self.answer.done():
            error = ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
            self.answer.set_exception(error)
            self.answer.exception()  # whoever connects gets it; one that died meanwhile leaves nobody to complain


def _accept(server: Endpoint, factory: Callable[[], asyncio.BaseProtocol]) -> None:
    if not server.gone:
        server.start(factory)
