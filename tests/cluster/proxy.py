"""A door between a node and a server, which can be shut: connections break, and new ones get no answer."""

import socket
import threading
from contextlib import suppress


class Proxy:
    """Listens on a port of its own and passes bytes on to `target`."""

    def __init__(self, target: tuple[str, int], host: str = "127.0.0.1") -> None:
        self._target = target
        self._listener = socket.create_server((host, 0))
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._shut = False
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    def shut(self) -> None:
        with self._lock:
            self._shut = True
            found, self._open = self._open, set()
        for one in found:
            _close(one)

    def reopen(self) -> None:
        with self._lock:
            self._shut = False
            found, self._open = self._open, set()
        for one in found:  # those that have waited in vain: their owner tries again
            _close(one)

    def close(self) -> None:
        self.shut()
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                self._open.add(near)
                if self._shut:
                    continue
            try:
                far = socket.create_connection(self._target, timeout=5)
            except OSError:
                _close(near)
                continue
            far.settimeout(None)
            with self._lock:
                self._open.add(far)
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=_pump, args=(source, sink), daemon=True).start()


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65_536):
            sink.sendall(data)
    _close(source)
    _close(sink)


def _close(one: socket.socket) -> None:
    with suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    one.close()
