"""What clients may take of the broker: connections and memory. Over a limit comes backpressure or a clear refusal."""

from collections import deque
from collections.abc import Callable


class MemoryBudget:
    """Bytes that all connections together may hold in receive buffers.

    A connection that cannot grow stops reading and waits its turn. The first in the queue may always overdraw: its
    frame completes, is handled and gives the bytes back, so the queue moves even when everyone holds half a frame.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self._waiting: deque[tuple[object, Callable[[], None]]] = deque()

    def take(self, owner: object, amount: int, on_room: Callable[[], None]) -> bool:
        """Take `amount`, or queue up: then `on_room` is called when it is worth asking again."""
        first = self._waiting and self._waiting[0][0] is owner
        if self.used_bytes + amount <= self.limit_bytes and (not self._waiting or first):
            if first:
                self._waiting.popleft()
            self.used_bytes += amount
            return True
        if first or not self._waiting:
            if not first:
                self._waiting.append((owner, on_room))
            self.used_bytes += amount  # overdraft of the one at the head
            return True
        if not any(waiting is owner for waiting, _ in self._waiting):
            self._waiting.append((owner, on_room))
        return False

    def give(self, owner: object, amount: int) -> None:
        """Give bytes back and, if `owner` held the head of the queue, pass that on."""
        self.used_bytes -= amount
        if self._waiting:
            self.leave(owner)
            if self._waiting:
                self._waiting[0][1]()

    def leave(self, owner: object) -> None:
        """No longer interested (its connection closed, or its frame is complete)."""
        if any(waiting is owner for waiting, _ in self._waiting):
            self._waiting = deque(entry for entry in self._waiting if entry[0] is not owner)


class ConnectionLimits:
    """How many connections, in all and from one address."""

    def __init__(self, total: int, per_address: int, overrides: dict[str, int]) -> None:
        self.total = total
        self.per_address = per_address
        self.overrides = overrides
        self._count = 0
        self._by_address: dict[str, int] = {}

    def __len__(self) -> int:
        return self._count

    def admit(self, address: str) -> str | None:
        """Count one more from `address`; or say why not."""
        here = self._by_address.get(address, 0)
        if self._count >= self.total:
            return f"max.connections={self.total} reached"
        allowed = self.overrides.get(address, self.per_address)
        if here >= allowed:
            return f"max.connections.per.ip={allowed} reached for {address}"
        self._count += 1
        self._by_address[address] = here + 1
        return None

    def release(self, address: str) -> None:
        self._count -= 1
        here = self._by_address[address] - 1
        if here:
            self._by_address[address] = here
        else:
            del self._by_address[address]
