"""One address that clients, or other nodes, connect to."""

import asyncio
import errno
import socket
from collections.abc import Callable
from functools import partial

from headrace.broker.net.connection import Connection, Routing
from headrace.broker.net.connections import Connections
from headrace.broker.runtime import Runtime, SocketOptions, StartupError, os_reason
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
        """Take the port, so that it is known; nobody is served yet. Raises StartupError."""
        host, port = self.endpoint.host or "::", self.endpoint.port
        try:
            self._server, self.port = await self._runtime.listen(lambda: self._accept(), host, port, self._options)
        except OSError as error:
            advice = "choose another with --port, or port 0 for any free one"
            if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
                advice = "--host must be a name or an address of this machine, or 0.0.0.0 for all it has"
            raise StartupError(
                f"cannot listen on {self.endpoint.host or '*'}:{port}: {os_reason(error)}; {advice}"
            ) from error

    async def serve(self, router: Routing, connections: Connections) -> None:
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
