"""One address that clients, or other nodes, connect to."""

import asyncio
from collections.abc import Callable
from functools import partial

from headrace.broker.net.connection import Connection
from headrace.broker.net.connections import Connections
from headrace.broker.net.router import Router
from headrace.broker.runtime import Runtime, SocketOptions
from headrace.config.listeners import Listener as Endpoint


class Listener:
    """Bound before it is known who answers, so that a port that is taken stops a start before it has touched
    anything."""

    def __init__(self, runtime: Runtime, endpoint: Endpoint, options: SocketOptions) -> None:
        self.endpoint = endpoint
        self.port = endpoint.port
        self._runtime = runtime
        self._options = options
        self._accept: Callable[[], Connection] = _refuse
        self._server: asyncio.AbstractServer | None = None

    async def bind(self) -> None:
        """Take the port, so that it is known; nobody is served yet. Raises OSError."""
        host = self.endpoint.host or "::"
        options = self._options
        self._server, self.port = await self._runtime.listen(lambda: self._accept(), host, self.endpoint.port, options)

    async def serve(self, router: Router, connections: Connections) -> None:
        """Make a connection of everybody who comes; `router` answers."""
        assert self._server is not None
        self._accept = partial(Connection, connections, router, self.endpoint)
        await self._server.start_serving()

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None

    @property
    def address(self) -> str:
        host = self.endpoint.host or "0.0.0.0"
        return f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"


def _refuse() -> Connection:
    raise AssertionError("a connection before anybody is served")
