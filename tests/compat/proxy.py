"""A TCP proxy between a client and a broker that loses chosen answers: the request reaches the broker, the answer
never reaches the client and the connection breaks, which is how acknowledgements get lost in practice."""

import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Self

PRODUCE = 0


class Proxy:
    """`lose(api_key)` is asked for every answer on its way back; True loses it. Set `target_port` before use."""

    def __init__(self, lose: Callable[[int], bool], target_port: int = 0) -> None:
        self.lose = lose
        self.target_port = target_port
        self.lost = 0
        self._open: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
                broker = socket.create_connection(("127.0.0.1", self.target_port))
            except OSError:
                return
            for sock in (client, broker):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._open.add(sock)
            asked: deque[int] = deque()
            threading.Thread(target=self._requests, args=(client, broker, asked), daemon=True).start()
            threading.Thread(target=self._answers, args=(broker, client, asked), daemon=True).start()

    def _requests(self, client: socket.socket, broker: socket.socket, asked: deque[int]) -> None:
        for frame in frames(client):
            asked.append(struct.unpack_from(">h", frame, 4)[0])
            try:
                broker.sendall(frame)
            except OSError:
                break
        self._cut(client, broker)

    def _answers(self, broker: socket.socket, client: socket.socket, asked: deque[int]) -> None:
        for frame in frames(broker):
            if self.lose(asked.popleft()):
                self.lost += 1
                break
            try:
                client.sendall(frame)
            except OSError:
                break
        self._cut(client, broker)

    def _cut(self, *pair: socket.socket) -> None:
        for sock in pair:
            self._open.discard(sock)
            # shutdown wakes the other thread out of recv; close alone would leave it there.
            try:
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            sock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._cut(self._listener, *self._open)


def frames(sock: socket.socket) -> Iterator[bytes]:
    """Whole frames, length prefix included, until the connection ends."""
    stream = sock.makefile("rb")
    while True:
        try:
            head = stream.read(4)
            if len(head) < 4:
                return
            body = stream.read(struct.unpack(">i", head)[0])
        except OSError:
            return
        yield head + body


def every(nth: int, api_key: int = PRODUCE) -> Callable[[int], bool]:
    """Loses every nth answer to this API, beginning with the first."""
    seen = 0

    def lose(key: int) -> bool:
        nonlocal seen
        if key != api_key:
            return False
        seen += 1
        return seen % nth == 1

    return lose
