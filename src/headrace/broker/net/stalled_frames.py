"""Finds connections with a half-sent request that holds shared memory and hardly gets on; they are closed.

A slow link is allowed: a kilobyte in a second is enough while there is memory for everybody. Where others wait for
memory, frames of megabytes have to come faster. Time in which the broker itself does not read does not count.
"""

from collections.abc import Iterable, Iterator
from typing import Generic, Protocol, TypeVar

RATE_MIN = 1024
"""Bytes in a second, on average over the time that is allowed."""
RATE_MIN_PRESSED = 64 * 1024
LARGE_BYTES = 1 << 20


class Receiving(Protocol):
    """A connection."""

    @property
    def unfinished(self) -> int:
        """Bytes of a frame whose end has not come; 0 if there is none, if it costs others nothing, or if nobody
        reads."""
        ...


C = TypeVar("C", bound=Receiving)


class StalledFrames(Generic[C]):
    """Looks at all connections from time to time."""

    def __init__(self) -> None:
        self._marks: dict[C, tuple[float, int]] = {}  # when it last had made progress, and how much there was

    def found(self, connections: Iterable[C], now: float, limit_s: float, pressed: bool) -> Iterator[C]:
        """Those whose frame has not got on for `limit_s` seconds; `pressed` when others wait for memory."""
        before, self._marks = self._marks, {}
        for connection in list(connections):
            have = connection.unfinished
            if not have:
                continue
            since, had = before.get(connection, (now, have))
            needed = RATE_MIN_PRESSED if pressed and have > LARGE_BYTES else RATE_MIN
            if now - since < limit_s:
                # Fewer bytes than before are of another frame.
                self._marks[connection] = (since, had) if have >= had else (now, have)
            elif have < had or have - had >= needed * (now - since):
                self._marks[connection] = now, have
            else:
                yield connection
