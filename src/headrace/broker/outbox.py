"""Answers on their way out: bytes and slices of log files, strictly in order.

A slice goes out by sendfile, without being read. That shares the socket with the event loop's transport, so one
rule governs everything here: while the transport holds unsent bytes, nobody else may write.
"""

import os
import socket
from asyncio import AbstractEventLoop, Transport
from collections import deque
from collections.abc import Sequence
from typing import Protocol

from headrace.storage.log import Slice

Chunk = bytes | Slice

SLICE_COPY_BYTES = 64 * 1024
"""What is read into memory at a time where sendfile cannot go on: enough to be woken when the socket drains."""

TURN_BYTES = 4 << 20
"""What one connection may send before others get their turn."""


class SliceTruncated(Exception):
    """The file is shorter than the answer that promised it: the connection cannot be saved."""


class Outbox(Protocol):
    """Where a connection puts its answers."""

    blocked: bool
    """Something is waiting for the peer to read."""

    def send(self, chunks: Sequence[Chunk]) -> None: ...

    def resume(self) -> None:
        """The transport has sent all it had."""
        ...

    def close(self) -> None:
        """Forget what was not sent and release the files."""
        ...


class SocketOutbox:
    """Writes straight to the socket; the transport only gets what did not fit."""

    __slots__ = ("_closed", "_fd", "_loop", "_position", "_queue", "_socket", "_transport", "blocked")

    def __init__(self, transport: Transport, loop: AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._fd: int = transport.get_extra_info("socket").fileno()
        # A second object on the same descriptor, for send() with flags. Detached in close(), so that it never closes it.
        self._socket = socket.socket(fileno=self._fd)
        self._queue: deque[Chunk] = deque()
        self._position = 0  # bytes of the first chunk that are gone already
        self._closed = False
        self.blocked = False
        # Zero: resume() comes when the transport holds nothing at all, which is when this may write again.
        transport.set_write_buffer_limits(0)

    def send(self, chunks: Sequence[Chunk]) -> None:
        if self.blocked or self._closed:
            if self._closed:
                _release(chunks)
            else:
                self._queue.extend(chunks)
            return
        if len(chunks) == 1:
            data = chunks[0]
            if data.__class__ is bytes:
                try:
                    sent = self._socket.send(data)
                except BlockingIOError:
                    sent = 0
                except OSError:
                    self._transport.abort()
                    return
                if sent < len(data):
                    self.blocked = True
                    self._transport.write(memoryview(data)[sent:])
                return
        self._queue.extend(chunks)
        self._pump()

    def resume(self) -> None:
        if self._closed:
            return
        self.blocked = False
        if self._queue:
            self._pump()

    def _pump(self) -> None:
        """Send until everything is gone, the socket is full or this connection's turn is over."""
        queue = self._queue
        turn = TURN_BYTES
        try:
            while queue and turn > 0:
                chunk = queue[0]
                if isinstance(chunk, bytes):
                    if not self._send_bytes(chunk, more=len(queue) > 1):
                        return
                    turn -= len(chunk)
                    queue.popleft()
                else:
                    if not self._send_slice(chunk):
                        return
                    turn -= chunk.length
                    queue.popleft()
                    chunk.release()
                    self._position = 0
        except (OSError, SliceTruncated):
            self._transport.abort()
            return
        if queue:
            self.blocked = True
            self._loop.call_soon(self.resume)

    def _send_bytes(self, data: bytes, *, more: bool) -> bool:
        try:
            sent = self._socket.send(data, socket.MSG_MORE if more else 0)
        except BlockingIOError:
            sent = 0
        if sent == len(data):
            return True
        self._queue.popleft()
        self.blocked = True
        self._transport.write(memoryview(data)[sent:])
        return False

    def _send_slice(self, piece: Slice) -> bool:
        length, start = piece.length, piece.position
        while self._position < length:
            try:
                sent = os.sendfile(self._fd, piece.fd, start + self._position, length - self._position)
            except BlockingIOError:
                # The loop cannot watch this descriptor for us while the transport owns it, but it calls resume()
                # when the transport has drained: give it a little to drain.
                data = piece.read(min(SLICE_COPY_BYTES, length - self._position), self._position)
                if not data:
                    raise SliceTruncated from None
                self._position += len(data)
                self.blocked = True
                self._transport.write(data)
                if self._position == length:
                    self._queue.popleft()
                    piece.release()
                    self._position = 0
                return False
            if sent == 0:
                raise SliceTruncated
            self._position += sent
        return True

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._socket.detach()
            _release(self._queue)
            self._queue.clear()


class TransportOutbox:
    """Everything through the transport, slices read piece by piece: for TLS and for the simulator."""

    __slots__ = ("_closed", "_position", "_queue", "_transport", "blocked")

    def __init__(self, transport: Transport, loop: AbstractEventLoop) -> None:
        del loop
        self._transport = transport
        self._queue: deque[Chunk] = deque()
        self._position = 0
        self._closed = False
        self.blocked = False
        transport.set_write_buffer_limits(0)

    def send(self, chunks: Sequence[Chunk]) -> None:
        if self._closed:
            _release(chunks)
            return
        self._queue.extend(chunks)
        if not self.blocked:
            self._pump()

    def resume(self) -> None:
        if self._closed:
            return
        self.blocked = False
        self._pump()

    def _pump(self) -> None:
        queue = self._queue
        while queue:
            chunk = queue[0]
            if isinstance(chunk, bytes):
                queue.popleft()
                self._transport.write(chunk)
            else:
                data = chunk.read(min(SLICE_COPY_BYTES, chunk.length - self._position), self._position)
                if not data:
                    self._transport.abort()
                    return
                self._position += len(data)
                if self._position == chunk.length:
                    queue.popleft()
                    chunk.release()
                    self._position = 0
                self._transport.write(data)
            if self._transport.get_write_buffer_size():
                self.blocked = True
                return

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            _release(self._queue)
            self._queue.clear()


def _release(chunks: Sequence[Chunk] | deque[Chunk]) -> None:
    for chunk in chunks:
        if not isinstance(chunk, bytes):
            chunk.release()
