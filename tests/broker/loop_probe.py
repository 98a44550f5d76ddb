"""A broker on a real loop in a thread of this process, with every turn of the loop timed by the CPU that it used.

CPU time of the loop's own thread, not the clock on the wall: what else runs on the machine does not count.
"""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from threading import Thread
from types import TracebackType
from typing import Any, Self, TypeVar

import uvloop

from headrace.broker.runtime import SystemRuntime
from headrace.broker.server import Broker
from headrace.config import BrokerConfig

T = TypeVar("T")


class ProbedBroker:
    """`with ProbedBroker(folder) as broker: ...; assert broker.longest_turn_ms() < 200`."""

    def __init__(self, folder: Path, **settings: object) -> None:
        options = {"log.dirs": str(folder), "listeners": "PLAINTEXT://127.0.0.1:0", "node.id": "1"}
        options |= {name.replace("_", "."): str(value) for name, value in settings.items()}
        self._config = BrokerConfig.load({}, {}, options)
        self._thread = Thread(target=self._run, name="probed-broker", daemon=True)
        self._ready: Future[int] = Future()
        self._stop: asyncio.Event
        self._longest_s = self._longest_wall_s = 0.0
        self._last = self._last_wall = 0.0
        self.turns = 0
        self.broker: Broker
        self.loop: asyncio.AbstractEventLoop
        self.port = 0

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            try:
                runner.run(self._serve())
            except BaseException as error:
                if not self._ready.done():
                    self._ready.set_exception(error)
                raise

    async def _serve(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        runtime = SystemRuntime(self.loop)
        self.broker = Broker(self._config, runtime)
        try:
            await self.broker.start()
            self._last, self._last_wall = time.thread_time(), time.perf_counter()
            self.loop.call_soon(self._turn)
            self._ready.set_result(self.broker.listeners[0].port)
            await self._stop.wait()
        finally:
            await self.broker.stop()
            runtime.close()

    def _turn(self) -> None:
        """Once in every turn: a callback that asks for the next one keeps the loop turning, too."""
        now, wall = time.thread_time(), time.perf_counter()
        self._longest_s = max(self._longest_s, now - self._last)
        self._longest_wall_s = max(self._longest_wall_s, wall - self._last_wall)
        self.turns += 1
        time.sleep(0)
        self._last, self._last_wall = time.thread_time(), time.perf_counter()
        if not self._stop.is_set():
            self.loop.call_soon(self._turn)

    def call(self, work: Callable[[], T]) -> T:
        """Run something on the broker's loop."""

        async def run() -> T:
            return work()

        return asyncio.run_coroutine_threadsafe(run(), self.loop).result(60)

    def reset(self) -> None:
        """Forget the turns so far."""

        def forget() -> None:
            self._longest_s = self._longest_wall_s = 0.0
            self._last, self._last_wall = time.thread_time(), time.perf_counter()

        self.call(forget)

    def longest_turn_ms(self) -> float:
        """CPU time of the longest turn since `reset`."""
        return self.call(lambda: self._longest_s) * 1000

    def longest_wall_ms(self) -> float:
        """The same by the clock: for people, not for tests."""
        return self.call(lambda: self._longest_wall_s) * 1000

    def __enter__(self) -> Self:
        self._thread.start()
        self.port = self._ready.result(60)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        def stop() -> Any:
            self._stop.set()

        self.call(stop)
        self._thread.join(60)
