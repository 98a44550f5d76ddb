"""Notices brokers that owe an answer and are gone: frozen, or cut off without a word.

Their connections stay open, and a request would wait until its own time is up, half a minute or a whole one. The other
brokers know sooner: one that they no longer list leads nothing and coordinates nobody. So they are asked, and the
connection is closed; whoever waits on it tries elsewhere, as after any lost connection.
"""

import asyncio
import logging
from collections.abc import Mapping
from typing import Protocol

from headrace.client.errors import ClientError, ConnectionLost
from headrace.client.net.address import Address
from headrace.client.net.connection import Connection
from headrace.protocol import messages as m
from headrace.protocol.api import ApiKey

log = logging.getLogger(__name__)

LOOK_S = 1.0
SUSPICIOUS_S = 3.0
"""An answer may well take so long: a fetch waits for records, a join for the other members. Asking costs little."""
ASK_LIMIT_S = 5.0
ASK_AGAIN_S_MAX = 2.0


class Watched(Protocol):
    """Whose connections they are."""

    @property
    def connections(self) -> Mapping[Address, Connection]: ...

    @property
    def advertised(self) -> set[Address]:
        """The addresses of all brokers that there ever were."""
        ...

    async def connect(self, host: str, port: int) -> Connection: ...


class Watch:
    """`begin` after a connection was opened; it goes on while any is open."""

    def __init__(self, watched: Watched) -> None:
        self._watched = watched
        self._timer: asyncio.TimerHandle | None = None
        self._asking: asyncio.Task[None] | None = None
        self._oldest: dict[Connection, tuple[int, float]] = {}
        """The request of each connection that has waited longest for its answer, and when it was first seen."""
        self._pause_s = LOOK_S
        self._next_s = 0.0

    def begin(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(LOOK_S, self._look)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._asking is not None:
            self._asking.cancel()
            self._asking = None  # one that had not begun does not do that at its end
        self._oldest.clear()

    def _look(self) -> None:
        self._timer = None
        now = asyncio.get_running_loop().time()
        seen: dict[Connection, tuple[int, float]] = {}
        suspects: list[Connection] = []
        is_any_open = False
        for connection in self._watched.connections.values():
            is_any_open = is_any_open or connection.is_open
            oldest = connection.oldest_request
            if oldest is None:
                continue
            before = self._oldest.get(connection)
            since = before[1] if before is not None and before[0] == oldest else now
            seen[connection] = oldest, since
            if now - since >= SUSPICIOUS_S:
                suspects.append(connection)
        self._oldest = seen
        if not suspects:
            self._pause_s = LOOK_S
        elif self._asking is None and now >= self._next_s and self._others(suspects):
            self._next_s, self._pause_s = now + self._pause_s, min(2 * self._pause_s, ASK_AGAIN_S_MAX)
            self._asking = asyncio.create_task(self._ask(suspects), name="look for brokers that are gone")
        if is_any_open:
            self.begin()

    async def _ask(self, suspects: list[Connection]) -> None:
        known = self._watched.advertised
        try:
            for address in self._others(suspects):
                listed = await self._brokers_at(address)
                if listed is None or address not in listed:
                    continue  # one that is starting, or fenced, knows no better of the others than of itself
                for suspect in suspects:
                    # An address that no broker advertises, such as a bootstrap server's, is on nobody's list.
                    at = suspect.host, suspect.port
                    if at in known and at not in listed and suspect.is_open:
                        log.warning("%s owes an answer, and the other brokers say that it is gone", suspect.peer)
                        suspect.fail(ConnectionLost(f"{suspect.peer} does not answer, and its cluster says it is gone"))
                return
        finally:
            self._asking = None

    def _others(self, suspects: list[Connection]) -> list[Address]:
        return sorted(self._watched.advertised - {(one.host, one.port) for one in suspects})

    async def _brokers_at(self, address: Address) -> set[Address] | None:
        try:
            async with asyncio.timeout(ASK_LIMIT_S):
                connection = await self._watched.connect(*address)
                request = m.MetadataRequest(topics=[], allow_auto_topic_creation=False)
                answer: m.MetadataResponse = await connection.request(
                    ApiKey.METADATA, request, timeout_s=2 * ASK_LIMIT_S
                )
        except (ClientError, TimeoutError):
            return None
        return {(row.host, row.port) for row in answer.brokers}
