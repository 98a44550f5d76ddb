"""An asyncio event loop on virtual time: nothing sleeps, nothing depends on the machine, one seed is one history.

Ready callbacks run in asyncio's order; only timers and the work of threads may be late, by the seed's choice.
"""

import asyncio
import heapq
from asyncio.base_events import BaseEventLoop
from collections.abc import Callable, Coroutine, Sequence
from contextvars import Context, copy_context
from random import Random
from socket import AF_INET, IPPROTO_TCP, SOCK_STREAM
from types import AsyncGeneratorType
from typing import Any, TypeVar

from headrace.testing.simulator.faults import PowerCut
from headrace.testing.simulator.network import Network
from headrace.testing.simulator.process import CURRENT, Process, State

T = TypeVar("T")

STEP_SECONDS = 1e-6
"""Virtual cost of one turn of the loop, so that time passes for code that only ever calls itself."""


class DeadlockError(RuntimeError):
    """Nothing is ready and no timer is set: the program under test can never go on."""


class SimLoop(BaseEventLoop):
    """Single-threaded, seeded. `timer_jitter_s` makes timers late by up to so much; threads take `work_s` (min,
    max)."""

    def __init__(
        self,
        random: Random | None = None,
        *,
        timer_jitter_s: float = 0.0,
        work_s: tuple[float, float] = (0.00005, 0.005),
    ) -> None:
        super().__init__()
        self.random = random if random is not None else Random(0)
        self.timer_jitter_s = timer_jitter_s
        self.work_s = work_s
        self.errors: list[dict[str, Any]] = []
        """What asyncio would have logged: exceptions nobody handled."""
        self.network = Network(self, Random(self.random.getrandbits(64)))
        self._now_s = 0.0
        self._selector = _TimeMachine(self)
        self._clock_resolution = 1e-9
        self.set_debug(False)

    # Time and the ready queue

    def time(self) -> float:
        return self._now_s

    def jump(self, timeout_s: float | None) -> None:
        """In the place of a select: wait for the next timer by moving the clock to it."""
        self._now_s += STEP_SECONDS
        if timeout_s is None:
            raise DeadlockError("nothing is scheduled; waiting for ever:\n" + self.describe_tasks())
        if timeout_s > 0:
            scheduled: list[asyncio.TimerHandle] = self._scheduled  # type: ignore[attr-defined]
            self._now_s = max(self._now_s, scheduled[0].when())

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        if context is None:
            context = copy_context()
        owner = context.get(CURRENT)
        if owner is None or owner.state is State.RUNNING:
            return super().call_soon(callback, *args, context=context)
        handle = asyncio.Handle(callback, args, self, context)
        if owner.state is State.PAUSED:
            owner.backlog.append(handle)
        else:
            handle.cancel()
        return handle

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        if context is None:
            context = copy_context()
        if self.timer_jitter_s:
            when += self.random.random() * self.timer_jitter_s
        owner = context.get(CURRENT)
        if owner is None or owner.state is State.RUNNING:
            return super().call_at(when, callback, *args, context=context)
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        if owner.state is State.PAUSED:
            owner.timers.append(timer)
        else:
            timer.cancel()
        return timer

    def create_task(  # type: ignore[override]
        self, coro: Coroutine[Any, Any, T], *, name: str | None = None, context: Context | None = None
    ) -> asyncio.Task[T]:
        if context is None:
            context = copy_context()
        task = super().create_task(coro, name=name, context=context)
        owner = context.get(CURRENT)
        if owner is not None:
            owner.tasks[task] = context
            if not owner.alive:
                # Started by a finally block of the dead: it will never run, and should not complain about that.
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                coro.close()
        return task

    # Processes

    def pause(self, process: Process) -> None:
        if process.state is State.RUNNING:
            process.state = State.PAUSED
            process.backlog, process.timers = self._take_handles(process)

    def resume(self, process: Process) -> None:
        if process.state is not State.PAUSED:
            return
        process.state = State.RUNNING
        self._ready.extend(process.backlog)  # type: ignore[attr-defined]
        for timer in process.timers:
            if not timer.cancelled():
                timer._scheduled = True  # type: ignore[attr-defined]
                heapq.heappush(self._scheduled, timer)  # type: ignore[attr-defined]
        process.backlog, process.timers = [], []

    def kill(self, process: Process) -> None:
        """From now on nothing of this process runs."""
        if process.state is State.DEAD:
            return
        process.state = State.DEAD
        ready, timers = self._take_handles(process)
        for handle in [*ready, *timers, *process.backlog, *process.timers]:
            handle.cancel()
        process.backlog, process.timers = [], []

    def _take_handles(self, process: Process) -> tuple[list[asyncio.Handle], list[asyncio.TimerHandle]]:
        ready = [handle for handle in self._ready if _owner(handle) is process]  # type: ignore[attr-defined]
        # The loop has counted what it runs in this turn: what is taken out leaves a gap that is passed over.
        gap = asyncio.Handle(_nothing, (), self)
        gap.cancel()
        kept = [gap if _owner(handle) is process else handle for handle in self._ready]  # type: ignore[attr-defined]
        self._ready.clear()  # type: ignore[attr-defined]
        self._ready.extend(kept)  # type: ignore[attr-defined]
        scheduled: list[asyncio.TimerHandle] = self._scheduled  # type: ignore[attr-defined]
        timers = [timer for timer in scheduled if _owner(timer) is process]
        scheduled[:] = [timer for timer in scheduled if _owner(timer) is not process]
        heapq.heapify(scheduled)
        for timer in timers:
            timer._scheduled = False  # type: ignore[attr-defined]
            if timer.cancelled():
                self._timer_cancelled_count -= 1  # type: ignore[attr-defined]
        return ready, timers

    # Threads, names and the network

    def run_in_executor(  # type: ignore[override]
        self, executor: object, func: Callable[..., T], *args: Any
    ) -> "asyncio.Future[T]":
        """The work happens at one later moment, its result is seen at another: whatever the loop does meanwhile races
        it."""
        future: asyncio.Future[T] = self.create_future()
        start_s, report_s = (self.random.uniform(*self.work_s) / 2 for _ in range(2))
        self.call_later(start_s, self._work, future, func, args, report_s)
        return future

    def _work(
        self, future: "asyncio.Future[T]", func: Callable[..., T], args: tuple[Any, ...], report_s: float
    ) -> None:
        if future.cancelled():
            return
        try:
            result = func(*args)
        except PowerCut:
            # The thread died with its machine: nobody is left to be told.
            return
        except Exception as error:
            self.call_later(report_s, _settle, future, None, error)
        else:
            self.call_later(report_s, _settle, future, result, None)

    async def getaddrinfo(  # type: ignore[override]
        self, host: str, port: int, **_options: object
    ) -> Sequence[tuple[int, int, int, str, tuple[str, int]]]:
        """Hosts go by their names; there is nothing to resolve."""
        return [(AF_INET, SOCK_STREAM, IPPROTO_TCP, "", (host, port))]

    async def create_server(  # type: ignore[override]
        self,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        host: str | Sequence[str] | None = None,
        port: int = 0,
        **_options: object,
    ) -> asyncio.AbstractServer:
        hosts = [host] if isinstance(host, str) or host is None else list(host)
        return self.network.listen(protocol_factory, hosts, port)

    async def create_connection(  # type: ignore[override]
        self,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        host: str | None = None,
        port: int | None = None,
        **_options: object,
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        if host is None or port is None:
            raise ValueError("the simulated network knows hosts and ports, no sockets")
        return await self.network.connect(protocol_factory, host, port)

    # asyncio's inner seams

    def _process_events(self, event_list: list[object]) -> None: ...

    def _write_to_self(self) -> None: ...

    def _asyncgen_finalizer_hook(self, agen: AsyncGeneratorType[Any, Any]) -> None:
        """One that is let go of while it waits was a dead process's: nothing of it runs any more, not even to be
        closed."""
        if not agen.ag_running:
            super()._asyncgen_finalizer_hook(agen)  # type: ignore[misc]

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        owner = CURRENT.get()
        if isinstance(context.get("exception"), PowerCut) or (owner is not None and not owner.alive):
            return
        self.errors.append(context)
        super().call_exception_handler(context)

    def describe_tasks(self) -> str:
        lines = []
        for task in asyncio.all_tasks(self):
            frames = task.get_stack(limit=1)
            where = f"{frames[0].f_code.co_qualname} line {frames[0].f_lineno}" if frames else "?"
            lines.append(f"  {task.get_name()}: {where}")
        return "\n".join(sorted(lines)) or "  (no tasks)"


class _TimeMachine:
    """What BaseEventLoop believes to be its selector."""

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop

    def select(self, timeout: float | None) -> tuple[()]:
        self._loop.jump(timeout)
        return ()

    def close(self) -> None: ...


def _owner(handle: asyncio.Handle) -> Process | None:
    context: Context | None = handle._context  # type: ignore[attr-defined]
    return None if context is None else context.get(CURRENT)


def _settle(future: "asyncio.Future[Any]", result: Any, error: Exception | None) -> None:
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)


class SimClock:
    """headrace.clock.Clock on a SimLoop. Each node has its own wall clock, wrong by `skew_ms`, and its own boot
    time."""

    EPOCH_MS = 1_767_225_600_000

    def __init__(self, loop: asyncio.AbstractEventLoop, *, skew_ms: int = 0, boot_ms: int = 1_000_000) -> None:
        self._loop = loop
        self.skew_ms = skew_ms
        self.boot_ms = boot_ms

    def wall_ms(self) -> int:
        return self.EPOCH_MS + self.skew_ms + int(self._loop.time() * 1000)

    def monotonic_ms(self) -> int:
        return self.boot_ms + int(self._loop.time() * 1000)


def _nothing() -> None:
    """What a gap in the loop's queue would run, if it were not cancelled."""
