"""How long batches wait for more records: to the end of a turn of the event loop, or for `linger_s`."""

import asyncio
from collections.abc import Callable

from headrace.client.produce.partition_queue import PartitionQueue


class Lingering:
    """Queues with an open batch that is not due yet; `on_due` is told when one is."""

    def __init__(self, linger_s: float, on_due: Callable[[PartitionQueue], None]) -> None:
        self.linger_s = linger_s
        self._on_due = on_due
        self._since: dict[PartitionQueue, float] = {}
        self._timer: asyncio.Handle | None = None

    def add(self, queue: PartitionQueue, now: float) -> None:
        self._since[queue] = now
        if self._timer is None:
            # At least to the end of this turn of the loop: what is sent together goes together.
            loop = asyncio.get_running_loop()
            self._timer = (
                loop.call_later(self.linger_s, self._time_is_up) if self.linger_s else loop.call_soon(self._time_is_up)
            )

    def discard(self, queue: PartitionQueue) -> None:
        self._since.pop(queue, None)
        if not self._since and self._timer is not None and not self.linger_s:
            self._timer.cancel()
            self._timer = None

    def end_all(self) -> None:
        """Wait no longer for any."""
        waiting, self._since = self._since, {}
        for queue in waiting:
            self._on_due(queue)

    def close(self) -> None:
        self._since.clear()
        if self._timer is not None:
            self._timer.cancel()

    def _time_is_up(self) -> None:
        """The oldest has waited long enough; those not much younger go along."""
        self._timer = None
        limit = asyncio.get_running_loop().time() - self.linger_s / 2
        due = [queue for queue, since in self._since.items() if since <= limit or not self.linger_s]
        for queue in due:
            del self._since[queue]
            self._on_due(queue)
        if self._since and self._timer is None:
            oldest = min(self._since.values())
            self._timer = asyncio.get_running_loop().call_at(oldest + self.linger_s, self._time_is_up)
