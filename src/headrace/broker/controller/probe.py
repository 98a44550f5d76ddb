"""Is there a process behind a broker's address? Faster than its silence, and surer than a closed connection.

A refused connection means that nobody listens there: the kernel of that machine says so at once. Anything else, a
timeout for one, says nothing, and the broker's session decides.
"""

import asyncio
from enum import Enum

from headrace.client.net.connecting import connect
from headrace.metadata.image import Endpoint

CONNECT_TIMEOUT_S = 1.0
AGAIN_AFTER_S = 0.05
"""A process that is being replaced may be between two sockets."""


class Presence(Enum):
    THERE = "there"
    GONE = "gone"
    UNKNOWN = "unknown"


async def probe(endpoint: Endpoint | None) -> Presence:
    """GONE only when refused twice."""
    if endpoint is None:
        return Presence.UNKNOWN
    found = await _connect(endpoint)
    if found is Presence.GONE:
        await asyncio.sleep(AGAIN_AFTER_S)
        found = await _connect(endpoint)
    return found


async def _connect(endpoint: Endpoint) -> Presence:
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            transport = await connect(asyncio.Protocol, endpoint.host, endpoint.port)
    except ConnectionRefusedError:
        return Presence.GONE
    except OSError:
        return Presence.UNKNOWN
    transport.abort()
    return Presence.THERE
