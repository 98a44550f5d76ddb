"""The line between a test and a broker that the kit has started: one JSON object to a line, both ways.

It is one half of a pair of sockets that a broker's process is born with. It has no address, so nobody else can find it,
and a broker that was started in any other way has none.
"""

import json
import socket
import time
from asyncio import AbstractEventLoop
from collections.abc import Callable, Mapping
from typing import Any

LIMIT_S = 60.0
RECEIVE_BYTES = 64 << 10


class ControlLost(Exception):
    """The process at the other end is gone."""


class Control:
    """The test's end."""

    def __init__(self, line: socket.socket) -> None:
        self._line = line
        self._received = b""

    def wait(self, limit_s: float = LIMIT_S) -> Any:
        """The next message. Raises ControlLost or TimeoutError."""
        deadline = time.monotonic() + limit_s
        while b"\n" not in self._received:
            self._line.settimeout(max(0.001, deadline - time.monotonic()))
            try:
                received = self._line.recv(RECEIVE_BYTES)
            except ConnectionError:
                received = b""
            if not received:
                raise ControlLost("the broker's process has ended")
            self._received += received
        message, _, self._received = self._received.partition(b"\n")
        return json.loads(message)

    def call(self, action: str, **arguments: Any) -> Any:
        """Have the broker do something. Raises ValueError where it is refused, ControlLost and TimeoutError."""
        __tracebackhide__ = True
        self._line.settimeout(LIMIT_S)
        try:
            self._line.sendall(json.dumps({"action": action, "arguments": arguments}).encode() + b"\n")
        except ConnectionError:
            raise ControlLost("the broker's process has ended") from None
        answer = self.wait()
        if "refused" in answer:
            raise ValueError(answer["refused"])
        return answer["result"]

    def close(self) -> None:
        self._line.close()


class ControlServer:
    """The broker's end, on its event loop. `gone` is called when the test is."""

    def __init__(
        self,
        loop: AbstractEventLoop,
        line: socket.socket,
        actions: Mapping[str, Callable[..., Any]],
        gone: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._line = line
        self._actions = actions
        self._gone = gone
        self._received = b""
        line.setblocking(False)
        loop.add_reader(line, self._read)

    def say(self, message: Mapping[str, Any]) -> None:
        # A few bytes, and the other end waits for them: they always fit.
        self._line.send(json.dumps(message).encode() + b"\n")

    def _read(self) -> None:
        try:
            received = self._line.recv(RECEIVE_BYTES)
        except BlockingIOError:
            return
        except ConnectionError:
            received = b""
        if not received:
            self._loop.remove_reader(self._line)
            self._gone()
            return
        *lines, self._received = (self._received + received).split(b"\n")
        for line in lines:
            self.say(self._answer(json.loads(line)))

    def _answer(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        try:
            return {"result": self._actions[asked["action"]](**asked["arguments"])}
        except (ValueError, KeyError) as error:
            return {"refused": str(error)}
