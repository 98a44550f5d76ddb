"""Whether the controller's process is there: a dead one is found by its closed port, long before its session ends."""

import asyncio
import logging
from collections.abc import Callable

from headrace.protocol import messages as m
from headrace.protocol.api import ApiKey
from headrace.quorum import Network, PeerError

logger = logging.getLogger("headrace.zookeeper")

INTERVAL_S = 0.25
AGAIN_S = 0.05
TIMEOUT_S = 2.0
REFUSALS = 2
"""A process that is being replaced may be between two sockets."""


class ControllerWatch:
    """Asks the controller now and then for anything at all. Only a refused connection counts: silence says nothing, and
    the session decides."""

    def __init__(self, network: Network, gone: Callable[[int], None]) -> None:
        self._network = network
        self._gone = gone
        self._whom: tuple[int, str, int] | None = None
        self._task: asyncio.Task[None] | None = None

    def follow(self, whom: tuple[int, str, int] | None) -> None:
        """(node id, host, port), or nobody."""
        if whom == self._whom:
            return
        self._whom = whom
        if self._task is not None:
            self._task.cancel()
            self._task = None
        if whom is not None:
            self._task = asyncio.get_running_loop().create_task(self._ask(*whom), name="controller watch")

    async def _ask(self, node_id: int, host: str, port: int) -> None:
        refused = 0
        body = m.ApiVersionsRequest(client_software_name="headrace", client_software_version="1")
        while True:
            try:
                await self._network.request((host, port), ApiKey.API_VERSIONS, body, timeout_s=TIMEOUT_S)
                refused = 0
            except PeerError as error:
                self._network.drop((host, port))
                refused = refused + 1 if error.refused else 0
                if refused >= REFUSALS:
                    self._gone(node_id)
            await asyncio.sleep(AGAIN_S if refused == 1 else INTERVAL_S)
