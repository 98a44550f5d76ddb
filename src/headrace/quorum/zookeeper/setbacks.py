"""Work that failed for reasons nobody foresaw: tried again after longer and longer pauses, while other work goes on."""

import logging
from collections.abc import Container
from typing import NamedTuple

logger = logging.getLogger("headrace.zookeeper")

PAUSE_MS_MIN, PAUSE_MS_MAX = 200, 30_000


class Setback(NamedTuple):
    since_ms: int
    pause_ms: int
    due_ms: int
    """When it is tried again."""


class Setbacks:
    """By a name for each piece of work. Times are monotonic."""

    def __init__(self) -> None:
        self._found: dict[str, Setback] = {}

    def waits(self, name: str, now_ms: int) -> bool:
        found = self._found.get(name)
        return found is not None and now_ms < found.due_ms

    def failed(self, name: str, now_ms: int, error: Exception) -> Setback:
        """Told with all that is known of it the first time, briefly after that."""
        last = self._found.get(name)
        if last is None:
            logger.error("%s could not be carried out, and is tried again later", name, exc_info=error)
        else:
            logger.warning("%s could not be carried out again: %r", name, error)
        pause_ms = PAUSE_MS_MIN if last is None else min(2 * last.pause_ms, PAUSE_MS_MAX)
        found = Setback(now_ms if last is None else last.since_ms, pause_ms, now_ms + pause_ms)
        self._found[name] = found
        return found

    def settled(self, name: str) -> None:
        self._found.pop(name, None)

    def age_ms(self, name: str, now_ms: int) -> int:
        """For how long it has failed by now; 0 if it has not."""
        found = self._found.get(name)
        return now_ms - found.since_ms if found is not None else 0

    def keep(self, names: Container[str]) -> None:
        self._found = {name: found for name, found in self._found.items() if name in names}

    def clear(self) -> None:
        self._found.clear()
