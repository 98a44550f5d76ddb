"""A simulated process: the owner of tasks, callbacks, handles and sockets, so that it can die or freeze as a whole.

Ownership travels in a context variable: whatever a process starts inherits it, whatever reaches it from outside is
run in its context.
"""

import asyncio
from contextlib import suppress
from contextvars import Context, ContextVar, copy_context
from enum import Enum
from weakref import WeakKeyDictionary


class State(Enum):
    RUNNING = "running"
    PAUSED = "paused"
    """SIGSTOP: nothing of it runs; time goes on."""
    DEAD = "dead"


class Process:
    """One incarnation. A restart is a new Process: nothing of a dead one ever runs again."""

    def __init__(self, name: str, host: str) -> None:
        self.name = name
        self.host = host
        self.state = State.RUNNING
        self.backlog: list[asyncio.Handle] = []
        """Callbacks that became ready while paused, in order."""
        self.timers: list[asyncio.TimerHandle] = []
        self.tasks: WeakKeyDictionary[asyncio.Task[object], Context] = WeakKeyDictionary()
        self.context = copy_context()
        self.context.run(CURRENT.set, self)

    def __repr__(self) -> str:
        return f"<Process {self.name} {self.state.value}>"

    @property
    def alive(self) -> bool:
        return self.state is not State.DEAD

    def bury(self) -> None:
        """Unwind the coroutines of a dead process. Their finally blocks run, but can reach nothing any more."""
        assert self.state is State.DEAD
        for task, context in list(self.tasks.items()):
            if task.done():
                if not task.cancelled():
                    task.exception()
                continue
            # Else the task would complain, at a time the garbage collector chooses, that it never finished.
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            coroutine = task.get_coro()
            if coroutine is not None:
                with suppress(BaseException):
                    context.run(coroutine.close)
        self.tasks.clear()


CURRENT: ContextVar[Process | None] = ContextVar("headrace_simulated_process", default=None)
