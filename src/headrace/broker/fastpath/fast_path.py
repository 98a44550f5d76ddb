"""What one connection is likely to say again.

A handler that has read a request in full may have its connection `learn` a template of it. The next request of that
API is compared with the template (`take`), and what is new in it goes to the handler, with nothing left to decode.
Whatever does not match takes the way of all requests.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from headrace.broker.net.request import Answer, Request
from headrace.protocol.headers import CLIENT_ID_AT, PREFIX_AT
from headrace.protocol.templates import RequestTemplate

if TYPE_CHECKING:
    from headrace.broker.net.connection import Connection

Serve = Callable[["Connection", Any, "Frame"], Answer | Request | None]
"""Serves what a template found in a frame: the answer, or its place in the queue if it has to wait; None: nothing was
done, and the request is to be read in full."""
Frame = tuple[int, int, int, float]
"""(position, end, correlation id, when its turn began)."""


class FastPath:
    """All that is remembered of one connection for this."""

    __slots__ = ("_last", "_templates")

    def __init__(self) -> None:
        self._templates: dict[int, tuple[int, bytes, Callable[[bytearray, int, int], Any], Serve]] = {}
        self._last: dict[int, Any] = {}

    def repeats(self, api_key: int, key: object) -> bool:
        """Whether the last request of this API was about the same: then the next one is likely to be, too."""
        if self._last.get(api_key) == key:
            return True
        self._last[api_key] = key
        return False

    def learn(self, api_key: int, template: RequestTemplate, serve: Serve) -> None:
        """From now on `serve` is given what matches `template`."""
        self._templates[api_key] = template.version, template.prefix, template.match, serve

    def knows(self, api_key: int) -> Serve | None:
        """Who serves requests of this API that are recognised."""
        known = self._templates.get(api_key)
        return None if known is None else known[3]

    def take(
        self, connection: "Connection", api_key: int, version: int, pos: int, end: int, correlation_id: int,
        started: float,
    ) -> Answer | Request | None:  # fmt: skip
        """Serve the frame at `pos` if it is recognised."""
        known = self._templates.get(api_key)
        if known is None:
            return None
        known_version, prefix, match, serve = known
        buf = connection.inbox.buf
        if version != known_version or not buf.startswith(prefix, pos + PREFIX_AT):
            return None
        values = match(buf, pos, end)
        return None if values is None else serve(connection, values, (pos, end, correlation_id, started))


def recognized_request(connection: "Connection", api_key: int, version: int, frame: Frame) -> Request:
    """For a request that was recognised and has to wait, or be answered by the encoder. Its bytes are let go."""
    pos, end, correlation_id, started = frame
    request = Request(connection, api_key, version, correlation_id, -1, pos + CLIENT_ID_AT, end, started)
    request.let_go()
    return request
