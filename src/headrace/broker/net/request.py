"""One request on its way through the broker, and what becomes of its answer."""

from typing import TYPE_CHECKING, Any, Protocol

from headrace.broker.net.outbox import Chunk, release
from headrace.protocol.headers import CLIENT_ID_AT

if TYPE_CHECKING:
    from headrace.broker.net.connection import Connection

PRODUCE = 0
FETCH = 1

Answer = bytes | list[Chunk]
"""A whole frame: bytes, or bytes and slices of log files."""

NO_BYTES = bytearray()
NO_VIEW = memoryview(NO_BYTES)


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
        inbox = connection.inbox
        self.buf = inbox.buf
        self.view = inbox.view
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

    @property
    def is_whole(self) -> bool:
        """Whether its bytes are still there, all of them."""
        return True

    def let_go(self) -> None:
        """The buffer is for the next request now; a large one must not live on with this."""
        self.buf = NO_BYTES
        self.view = NO_VIEW

    def complete(self, answer: Answer) -> None:
        """Fill the slot of a request that waited."""
        self.answer = answer
        self.connection.slot_filled()

    def done(self, answer: Answer) -> None:
        """Answer a request that waited with a whole frame, and count it."""
        connection = self.connection
        if connection.closed:
            if answer.__class__ is list:
                release(answer)
            return
        connection.router.waited(self)
        self.answer = answer
        connection.slot_filled()

    def respond(self, message: Any) -> None:
        """Answer a request whose handler returned None. Never raises: whoever calls has others to answer."""
        self.connection.router.respond(self, message)

    def fail(self) -> None:
        """To be called while an exception is handled, which is a bug: the client learns of it by the closed
        connection, and nobody else is affected."""
        self.connection.request_failed(self.api_key)
