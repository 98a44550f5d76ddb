"""One answer from several shards: some of its parts are there at once, some come later."""

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from headrace.errors import Err

T = TypeVar("T")


class Part(Generic[T]):
    """Who asks a shard for its part of a `Gathering`."""

    __slots__ = ("_at", "_gathering", "refusal")

    def __init__(self, gathering: "Gathering[T]", at: int, refusal: Callable[[Err], T]) -> None:
        self._gathering = gathering
        self._at = at
        self.refusal = refusal

    def answer(self, response: T) -> None:
        self._gathering.put(self._at, response)


class Gathering(Generic[T]):
    """Parts of one answer from several shards, some at once and some later."""

    def __init__(self, count: int, finish: Callable[[list[T]], Any], answer: Callable[[Any], None]) -> None:
        self._parts: list[T | None] = [None] * count
        self._left = count
        self._finish = finish
        self._answer = answer
        self._parked = False

    def take(self, at: int, part: T | None) -> None:
        """A part that came at once, or None when it will come by `put`."""
        if part is not None:
            self._parts[at] = part
            self._left -= 1

    def put(self, at: int, part: T) -> None:
        self._parts[at] = part
        self._left -= 1
        if self._left == 0 and self._parked:
            self._answer(self._whole())

    def result(self) -> Any:
        """The answer, if all parts are there; None: it is given later."""
        if self._left == 0:
            return self._whole()
        self._parked = True
        return None

    def _whole(self) -> Any:
        return self._finish([part for part in self._parts if part is not None])
