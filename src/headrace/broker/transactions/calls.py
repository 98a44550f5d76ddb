"""Requests to other brokers, many things in one: what comes while one is under way is sent with the next."""

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Generic, TypeVar

T = TypeVar("T")

ITEMS_MAX = 1_000
"""In one request; the rest goes with the next."""


class BatchedCalls(Generic[T]):
    """One request at a time to each broker."""

    def __init__(
        self, send: Callable[[int, list[T]], Awaitable[None]], spawn: Callable[[Coroutine[Any, Any, Any]], Any]
    ) -> None:
        self._send = send
        """Sends items to a broker and deals with the answer. Must not raise: there is nobody to tell."""
        self._spawn = spawn
        self._queued: dict[int, list[T]] = {}
        self._running: set[int] = set()

    def add(self, broker_id: int, item: T) -> None:
        self._queued.setdefault(broker_id, []).append(item)
        if broker_id not in self._running:
            self._running.add(broker_id)
            self._spawn(self._run(broker_id))

    async def _run(self, broker_id: int) -> None:
        try:
            while items := self._queued.pop(broker_id, None):
                if len(items) > ITEMS_MAX:
                    self._queued[broker_id] = items[ITEMS_MAX:]
                    del items[ITEMS_MAX:]
                await self._send(broker_id, items)
        finally:
            self._running.discard(broker_id)
