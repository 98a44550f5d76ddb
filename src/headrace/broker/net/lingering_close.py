"""The end of a connection that this side closes: no answer that was sent may be lost with what the peer still sends.

1. The broker sends its last answers and closes the socket. 2. Further requests are on their way, or unread. 3. The
kernel answers them with a reset. 4. The peer fails to send, gives the connection up, and never reads the answers: what
they acknowledged is sent again. So the sending half is closed first, and whatever comes is thrown away until the peer
closes, too.
"""

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.broker.net.connection import Connection

LINGER_S = 0.5
"""A peer that does not look at its socket for so long is not waiting for an answer."""
SCRAP_BYTES = 64 * 1024


class LingeringClose(asyncio.BufferedProtocol):
    """Takes the place of the connection at its transport."""

    def __init__(self, connection: "Connection") -> None:
        self._connection = connection
        self._scrap = bytearray(SCRAP_BYTES)

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._scrap

    def buffer_updated(self, nbytes: int) -> None:
        pass  # never handled, so it may be sent again elsewhere

    def eof_received(self) -> bool:
        return False  # the transport closes

    def connection_lost(self, exc: Exception | None) -> None:
        self._connection.connection_lost(exc)


def linger(connection: "Connection") -> None:
    """Close a connection whose answers are all out."""
    transport = connection.transport
    if transport.is_closing() or isinstance(transport.get_protocol(), LingeringClose):
        return
    if not transport.can_write_eof():
        transport.close()  # TLS says itself that it ends
        return
    transport.set_protocol(LingeringClose(connection))
    transport.write_eof()
    transport.resume_reading()
    asyncio.get_running_loop().call_later(LINGER_S, transport.close)
