"""What this node knows of its cluster: the committed metadata, how to reach other brokers, and who this broker is."""

import asyncio
from collections.abc import Callable

from headrace.metadata.image import EMPTY, Image

Address = tuple[str, int]


class Registration:
    """This broker's own place in the metadata."""

    __slots__ = ("broker_epoch", "incarnation_id", "node_id")

    def __init__(self, node_id: int, incarnation_id: bytes) -> None:
        self.node_id = node_id
        self.incarnation_id = incarnation_id
        """New with each start."""
        self.broker_epoch = -1
        """Given by the controller with each registration; -1 before the first."""


class MetadataCache:
    """The image as it was last committed, and those who wait for it to say something."""

    def __init__(self, node_id: int, inter_broker_listener: str) -> None:
        self.image: Image = EMPTY
        self._node_id = node_id
        self._listener = inter_broker_listener
        self._waiting: list[tuple[Callable[[Image], bool], asyncio.Future[None]]] = []

    def address(self, broker_id: int) -> Address | None:
        """Where other brokers reach a broker."""
        known = self.image.brokers.get(broker_id)
        if known is None:
            return None
        return next(((e.host, e.port) for e in known.endpoints if e.name == self._listener), None)

    @property
    def alone(self) -> bool:
        """Whether no other broker has ever joined: nobody to take over, nobody to wait for."""
        return all(broker_id == self._node_id for broker_id in self.image.brokers)

    async def until(self, predicate: Callable[[Image], bool], timeout_ms: int | None = None) -> bool:
        """Wait for the metadata that this node knows to satisfy something. False: not in time."""
        if predicate(self.image):
            return True
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((predicate, done))
        try:
            async with asyncio.timeout(None if timeout_ms is None else timeout_ms / 1000):
                await done
        except TimeoutError:
            return False
        return True

    def tell_waiting(self) -> None:
        """Once a new image has taken effect: let those go on who waited for it."""
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            for entry in waiting:
                predicate, done = entry
                if done.done():
                    continue
                if predicate(self.image):
                    done.set_result(None)
                else:
                    self._waiting.append(entry)
