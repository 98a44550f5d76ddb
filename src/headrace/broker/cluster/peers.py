"""Connections from this node to other nodes of its cluster: one per address and lane, opened when first needed.

Answers on a connection come in order, so a request that may be parked at the other end (Fetch) has a lane of its own:
a vote must not wait behind a long poll. A broken connection is dropped; the next request opens another.
"""

import asyncio
from typing import Any

from headrace.client.errors import BrokerUnreachable
from headrace.client.net.connection import Connection
from headrace.protocol.api import ApiKey

Address = tuple[str, int]
CONTROL = "control"
CONNECT_TIMEOUT_S = 2.0


class Peers:
    """Use from one loop. `client_id` is what the other side sees in its logs."""

    def __init__(self, client_id: str) -> None:
        self._client_id = client_id
        self._connections: dict[tuple[Address, str], Connection] = {}
        self._opening: dict[tuple[Address, str], asyncio.Task[Connection]] = {}
        self._closed = False

    async def connection(self, address: Address, lane: str = CONTROL) -> Connection:
        """The open connection of a lane, or a new one. Raises ClientError: BrokerUnreachable when refused."""
        key = (address, lane)
        found = self._connections.get(key)
        if found is not None and found.is_open:
            return found
        if self._closed:
            raise BrokerUnreachable("this node is stopping")
        opening = self._opening.get(key)
        if opening is None:
            opening = self._opening[key] = asyncio.create_task(
                self._open(key), name=f"connect to {address[0]}:{address[1]}"
            )
            opening.add_done_callback(lambda done: self._opened(key, done))
        # Others may wait for the same attempt: one of them that gives up must not end it for all.
        return await asyncio.shield(opening)

    def _opened(self, key: tuple[Address, str], done: "asyncio.Task[Connection]") -> None:
        self._opening.pop(key, None)
        if not done.cancelled():
            done.exception()  # whoever waited has it, but all may have given up meanwhile

    async def _open(self, key: tuple[Address, str]) -> Connection:
        (host, port), _ = key
        connection = await Connection.open(host, port, client_id=self._client_id, timeout_s=CONNECT_TIMEOUT_S)
        if self._closed:
            connection.close()
            raise BrokerUnreachable("this node is stopping")
        self._connections[key] = connection
        return connection

    async def request(
        self,
        address: Address,
        key: ApiKey,
        body: Any,
        *,
        timeout_s: float,
        lane: str = CONTROL,
        version_max: int | None = None,
    ) -> Any:
        """Send a request and return the answer's message. Raises ClientError; the caller decides whether to try
        again."""
        connection = await self.connection(address, lane)
        return await connection.request(key, body, timeout_s=timeout_s, version_max=version_max)

    def drop(self, address: Address, lane: str = CONTROL) -> None:
        """Close a lane, and with it whatever waits on it."""
        connection = self._connections.pop((address, lane), None)
        if connection is not None:
            connection.close()

    def close(self) -> None:
        self._closed = True
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()
