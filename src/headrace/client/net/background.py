"""An event loop on a thread of its own, for callers that cannot await: Spark's tasks, scripts.

The thread is a daemon: a task that is killed must not be held back by it.
"""

import asyncio
import os
import threading
import weakref
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

import uvloop

T = TypeVar("T")

STOP_LIMIT_S = 5.0

_all: "weakref.WeakSet[LoopThread]" = weakref.WeakSet()


def _after_fork() -> None:
    """Threads do not live on in a child process: who waits for one there waits for ever."""
    for one in _all:
        one.is_lost = True


os.register_at_fork(after_in_child=_after_fork)


class LoopThread:
    """`with LoopThread() as loop: loop.run(coroutine)`."""

    def __init__(self, name: str = "headrace-client") -> None:
        self.is_lost = False
        """Whether this is a child process, and the thread runs only in its parent."""
        _all.add(self)
        self.loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    def run(self, work: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        """Run on the loop's thread and wait for what comes of it."""
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return future.result(timeout_s)
        except BaseException:
            future.cancel()
            raise

    def close(self) -> None:
        if self.loop.is_closed() or self.is_lost:
            return
        self.run(_cancel_others(), STOP_LIMIT_S)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(STOP_LIMIT_S)
        if not self._thread.is_alive():
            self.loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


async def _cancel_others() -> None:
    others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
