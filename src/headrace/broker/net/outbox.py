"""Answers on their way out: bytes and slices of log files, strictly in order.

A slice goes out by sendfile, without being read. That shares the socket with the event loop's transport, so one
rule governs everything here: while the transport holds unsent bytes, nobody else may write.
"""

import socket
from asyncio import AbstractEventLoop, BaseTransport, Transport
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from headrace.platform import MORE_FOLLOWS, send_file, send_unpaced
from headrace.storage.log import Slice

Chunk = bytes | Slice

SLICE_COPY_BYTES = 64 * 1024
"""What is read into memory at a time where sendfile cannot go on: enough to be woken when the socket drains."""

SMALL_SLICE_BYTES = 8 * 1024
"""Slices up to this are read, and leave together with what stands around them. By itself each would cost two calls, and
the end of an answer behind it would wake a waiting peer once more."""

GATHER_BYTES = 64 * 1024
"""How much leaves in one call then."""

LEAD_BYTES = 4096
"""How much of a large slice is read, and leaves with what stands before it, so that the first pages that sendfile
brings make one whole segment of a loopback's 64 KB. Behind the few bytes of a head they fall short of it by up to a
page: then a peer that reads 1 MB slept 1.7 times instead of once, and to wake it cost both ends a seventh of their
CPU."""

LED_BYTES = 512 * 1024
"""Slices from this on. Smaller ones are there before the peer is awake."""

LOOKS = 6
"""How often a socket is asked in a row whether something has come: about as long as one turn of the loop."""

TURN_BYTES = 4 << 20
"""What one connection may send before others get their turn."""


class SliceTruncated(Exception):
    """The file is shorter than the answer that promised it: the connection cannot be saved."""


class Outbox(Protocol):
    """Where a connection puts its answers."""

    blocked: bool
    """Something is waiting for the peer to read, or nothing can be sent any more."""

    def send(self, chunks: Sequence[Chunk]) -> None: ...

    def resume(self) -> None:
        """The transport has sent all it had."""
        ...

    def receive(self, room: memoryview) -> int:
        """Read what is there already, past the transport; 0 where there is nothing, or no way past it."""
        ...

    def close(self) -> None:
        """Forget what was not sent and release the files."""
        ...


class SocketOutbox:
    """Writes straight to the socket; the transport only gets what did not fit.

    `resumed` is called when it is this connection's turn again; it has to call `resume`.
    """

    __slots__ = (
        "_closed", "_fd", "_loop", "_position", "_queue", "_resumed", "_socket", "_transport", "_turn", "blocked",
    )  # fmt: skip

    def __init__(self, transport: Transport, loop: AbstractEventLoop, resumed: Callable[[], None]) -> None:
        self._transport = transport
        self._loop = loop
        self._resumed = resumed
        self._fd: int = transport.get_extra_info("socket").fileno()
        # A second object on the same descriptor, for send() with flags. Detached in close(), so that it never closes
        # it.
        self._socket = socket.socket(fileno=self._fd)
        if is_on_this_host(transport):
            # There is no network to be kept from congestion. Where BBR is the system's choice it paces all the same, by
            # a timer for every piece: a fetch of 1 MB cost a seventh more CPU. Linux's own default does not pace.
            send_unpaced(self._socket)
        self._queue: deque[Chunk] = deque()
        self._position = 0  # bytes of the first chunk, if it is a slice, that are gone already
        self._turn = 0
        self._closed = False
        self.blocked = False
        # Zero: resume() comes when the transport holds nothing at all, which is when this may write again.
        transport.set_write_buffer_limits(0)

    def send(self, chunks: Sequence[Chunk]) -> None:
        if self.blocked:
            if self._closed:
                release(chunks)
            else:
                self._queue.extend(chunks)
            return
        if len(chunks) == 1:
            data = chunks[0]
            if data.__class__ is bytes:
                try:
                    self._send_bytes(data, 0)
                except OSError:
                    self._break()
                return
        self._queue.extend(chunks)
        self._pump()

    def resume(self) -> None:
        if not self._closed:
            self.blocked = False
            self._pump()

    def _pump(self) -> None:
        """Send until everything is gone, the socket is full or this connection's turn is over."""
        queue = self._queue
        self._turn = TURN_BYTES
        try:
            while queue:
                if self._turn <= 0:
                    self.blocked = True
                    self._loop.call_soon(self._resumed)
                    return
                first = queue[0]
                if first.__class__ is bytes or (first.length <= SMALL_SLICE_BYTES and not self._position):  # type: ignore[union-attr]
                    data = self._gathered()
                    self._turn -= len(data)
                    self._send_bytes(data, MORE_FOLLOWS if queue else 0)
                else:
                    self._send_slice(first)  # type: ignore[arg-type]
                if self.blocked:
                    return
        except (OSError, SliceTruncated):
            self._break()

    def _send_bytes(self, data: bytes, flags: int) -> None:
        try:
            sent = self._socket.send(data, flags)
        except BlockingIOError:
            sent = 0
        if sent < len(data):
            self._hand_over(memoryview(data)[sent:])

    def _gathered(self) -> bytes:
        """Bytes from the head of the queue, with slices that are too small to be sent by themselves, and the lead of a
        large one."""
        queue, size = self._queue, 0
        parts: list[bytes] = []
        while queue and size < GATHER_BYTES and not self._position:
            chunk = queue[0]
            if isinstance(chunk, bytes):
                data = chunk
            elif chunk.length <= SMALL_SLICE_BYTES:
                data = chunk.read()
                if len(data) != chunk.length:
                    raise SliceTruncated
                chunk.release()
            else:
                if parts and chunk.length >= LED_BYTES:
                    lead = chunk.read(LEAD_BYTES)
                    self._position = len(lead)
                    parts.append(lead)
                break
            queue.popleft()
            parts.append(data)
            size += len(data)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _send_slice(self, piece: Slice) -> None:
        """The slice at the head of the queue, as far as it goes."""
        length, position, turn = piece.length, self._position, self._turn
        try:
            while position < length and turn > 0:
                count = min(length - position, turn)
                try:
                    sent = send_file(self._fd, piece.fd, piece.position + position, count)
                except BlockingIOError:
                    # The loop cannot watch this descriptor for us while the transport owns it, but it calls resume()
                    # when the transport has drained: give it a little to drain.
                    data = piece.read(min(SLICE_COPY_BYTES, count), position)
                    sent = len(data)
                    if sent:
                        self._hand_over(data)
                if sent == 0:
                    raise SliceTruncated
                position += sent
                turn -= sent
                if self.blocked:
                    break
        finally:
            self._position, self._turn = position, turn
        if position == length:
            self._queue.popleft()
            self._position = 0
            piece.release()

    def _hand_over(self, data: bytes | memoryview) -> None:
        """The socket is full: the transport has to wait for it."""
        self._transport.write(data)
        # It tries once more itself. If the peer has just read, nothing is left and nobody would call resume().
        if self._transport.get_write_buffer_size():
            self.blocked = True

    def receive(self, room: memoryview) -> int:
        for _ in range(LOOKS):
            try:
                return self._socket.recv_into(room)
            except BlockingIOError:
                continue
            except OSError:
                break
        return 0  # also at the end of the stream, where the transport finds nothing more either

    def _break(self) -> None:
        """The stream is cut short where it is: not one byte may follow."""
        self.close()
        self._transport.abort()

    def close(self) -> None:
        if not self._closed:
            self._closed = self.blocked = True
            self._resumed = _nobody  # was the connection, which has this: neither should wait for the garbage collector
            self._socket.detach()
            release(self._queue)
            self._queue.clear()


class TransportOutbox:
    """Everything through the transport, slices read piece by piece: for TLS and for the simulator."""

    __slots__ = ("_closed", "_position", "_queue", "_transport", "blocked")

    def __init__(self, transport: Transport, loop: AbstractEventLoop, resumed: Callable[[], None]) -> None:
        del loop, resumed
        self._transport = transport
        self._queue: deque[Chunk] = deque()
        self._position = 0
        self._closed = False
        self.blocked = False
        transport.set_write_buffer_limits(0)

    def send(self, chunks: Sequence[Chunk]) -> None:
        if self._closed:
            release(chunks)
            return
        self._queue.extend(chunks)
        if not self.blocked:
            self._pump()

    def resume(self) -> None:
        if not self._closed:
            self.blocked = False
            self._pump()

    def _pump(self) -> None:
        try:
            while self._queue and not self.blocked:
                self._transport.write(self._next_bytes())
                if self._transport.get_write_buffer_size():
                    self.blocked = True
        except (OSError, SliceTruncated):
            self.close()
            self._transport.abort()

    def _next_bytes(self) -> bytes:
        queue = self._queue
        chunk = queue[0]
        if isinstance(chunk, bytes):
            queue.popleft()
            return chunk
        data = chunk.read(min(SLICE_COPY_BYTES, chunk.length - self._position), self._position)
        if not data:
            raise SliceTruncated
        self._position += len(data)
        if self._position == chunk.length:
            queue.popleft()
            self._position = 0
            chunk.release()
        return data

    def receive(self, room: memoryview) -> int:
        return 0

    def close(self) -> None:
        if not self._closed:
            self._closed = self.blocked = True
            release(self._queue)
            self._queue.clear()


def _nobody() -> None:
    """Whose turn it is once all is over."""


def is_on_this_host(transport: BaseTransport) -> bool:
    """Both ends of the connection have the same address."""
    here, there = transport.get_extra_info("sockname"), transport.get_extra_info("peername")
    return bool(here and there) and here[0] == there[0]


def release(chunks: Iterable[Chunk]) -> None:
    """Let go of the files of an answer that will not be sent."""
    for chunk in chunks:
        if not isinstance(chunk, bytes):
            chunk.release()
