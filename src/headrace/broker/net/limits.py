"""What clients may take of the broker: connections and memory. Over a limit comes backpressure or a clear refusal."""

from collections.abc import Callable


class MemoryBudget:
    """Bytes that all connections together may hold in receive buffers.

    A connection that cannot grow stops reading and waits its turn. The first in line may always overdraw, so that one
    frame at a time completes even when everyone holds half of one; with its frame handled it gives way to the next.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self._line: dict[object, Callable[[], None]] = {}  # first come, first served
        self._waking = False

    @property
    def pressed(self) -> bool:
        """Somebody waits: whoever can do with less should."""
        return bool(self._line)

    def has_room(self, amount: int) -> bool:
        """For what is only convenient: never a reason to make others wait."""
        return not self._line and self.used_bytes + amount <= self.limit_bytes

    def take(self, owner: object, amount: int, on_room: Callable[[], None]) -> bool:
        """Take `amount`, or stand in line: then `on_room` is called when it is worth asking again."""
        line = self._line
        if self.used_bytes + amount <= self.limit_bytes:
            line.pop(owner, None)
        elif not line or next(iter(line)) is owner:
            line[owner] = on_room  # stays the first: nobody else may overdraw while it does
        else:
            line.setdefault(owner, on_room)
            return False
        self.used_bytes += amount
        return True

    def give(self, owner: object, amount: int) -> None:
        """Give bytes back, and with them the place in line."""
        self.used_bytes -= amount
        self.leave(owner)

    def leave(self, owner: object) -> None:
        """No longer interested: its frame is handled, or its connection closed."""
        line = self._line
        if not line:
            return
        line.pop(owner, None)
        if self._waking:
            return  # the loop further up the stack sees it
        self._waking = True
        try:
            for waiting in list(line):
                on_room = line.get(waiting)
                if on_room is not None:
                    on_room()
                    if waiting in line and self.used_bytes >= self.limit_bytes:
                        break  # it overdraws, or is not its turn yet: nothing is left for those behind it
        finally:
            self._waking = False


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
