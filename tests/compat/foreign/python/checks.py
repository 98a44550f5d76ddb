"""What the Python programs share: named checks, one line of output each, and patience. Run as scripts, without
Headrace."""

import sys
import time
from collections.abc import Awaitable, Callable

PATIENCE_S = 60.0
_failed = False


def check(name: str, body: Callable[[], object]) -> None:
    """Runs one named check and prints `ok name` or `failed name: why`."""
    start = time.monotonic()
    try:
        body()
    except Exception as why:
        _say_failed(name, why)
    else:
        _say_ok(name, start)


async def check_async(name: str, body: Callable[[], Awaitable[object]]) -> None:
    start = time.monotonic()
    try:
        await body()
    except Exception as why:
        _say_failed(name, why)
    else:
        _say_ok(name, start)


def _say_ok(name: str, start: float) -> None:
    print(f"ok {name} ({(time.monotonic() - start) * 1000:.0f} ms)", flush=True)


def _say_failed(name: str, why: Exception) -> None:
    global _failed
    _failed = True
    text = f"{type(why).__name__} {why}".replace("\n", " ")
    print(f"failed {name}: {text[:600]}", flush=True)


def same(got: object, wanted: object) -> None:
    if got != wanted:
        raise AssertionError(f"got {str(got)[:250]}, wanted {str(wanted)[:250]}")


def until(what: str, look: Callable[[], object]) -> None:
    """Asks again and again: what was agreed by controllers reaches each broker a moment later."""
    end = time.monotonic() + PATIENCE_S
    while not look():
        if time.monotonic() > end:
            raise AssertionError(f"not in time: {what}")
        time.sleep(0.05)


def done() -> None:
    """Ends the process, with 1 if a check failed."""
    sys.exit(int(_failed))
