"""How tests wait: for a condition and up to a limit, never for a while and in hope."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

PATIENCE_S = 60.0
PAUSE_S = 0.01


def run(coroutine: Coroutine[Any, Any, T], limit_s: float = PATIENCE_S) -> T:
    """The result of a coroutine on a loop of its own."""
    return asyncio.run(asyncio.wait_for(coroutine, limit_s))


def eventually(condition: Callable[[], object], what: str, limit_s: float = PATIENCE_S) -> None:
    """Return as soon as the condition holds; fail with `what` if it never does."""
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {limit_s} s: {what}"
        time.sleep(PAUSE_S)


async def until(condition: Callable[[], object], what: str, limit_s: float = PATIENCE_S) -> None:
    """The same on an event loop, in real or virtual time."""
    deadline = asyncio.get_running_loop().time() + limit_s
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, f"not within {limit_s} s: {what}"
        await asyncio.sleep(PAUSE_S)
