"""A cluster in one process: a seeded loop, a network, and nodes with a disk and a clock each.

Servers run unmodified on a `SimRuntime`; the test starts, stops, freezes, kills and cuts the power of nodes while
virtual time passes. One seed is one history.
"""

import asyncio
import gc
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from random import Random
from types import TracebackType
from typing import Any, TypeVar

from headrace.broker.runtime import DEFAULT_SOCKETS, SocketOptions, keep_memory
from headrace.clock import Clock, LoopSchedule, Schedule
from headrace.storage.compaction import Compaction, compact
from headrace.storage.files import Disk
from headrace.storage.swap import Cleaned
from headrace.testing.simulator.disk import CrashMode, MemoryDisk
from headrace.testing.simulator.loop import SimClock, SimLoop
from headrace.testing.simulator.network import NOBODY, Network
from headrace.testing.simulator.process import Process

T = TypeVar("T")
Stop = Callable[[], Awaitable[None]]
Factory = Callable[["SimRuntime"], Coroutine[Any, Any, Stop]]
"""Starts a server on a runtime, and returns what stops it in an orderly way."""


class NodeDied(Exception):
    """The node crashed or was killed while something waited for it."""


class SimRuntime:
    """headrace.broker.runtime.Runtime on a simulated machine."""

    can_sendfile = False
    disk_can_wait = False

    def __init__(
        self, loop: SimLoop, clock: Clock, disk: Disk, random: Random, exit: Callable[[], None] = lambda: None
    ) -> None:
        self.loop: asyncio.AbstractEventLoop = loop
        self.clock = clock
        self.schedule: Schedule = LoopSchedule(loop, clock)
        self.disk = disk
        self.random = random
        self.exit = exit
        """End the process from inside, as a server does that has given up."""

    def idle_poll(self) -> None:
        return None

    def perf_counter(self) -> float:
        return self.loop.time()

    def run_sync(self, work: Callable[[], T]) -> "asyncio.Future[T]":
        return self.loop.run_in_executor(None, work)

    def sync(self, work: Callable[[], None], done: Callable[[], None]) -> None:
        self.loop.run_in_executor(None, work).add_done_callback(lambda _: done())

    def run_in_thread(self, work: Callable[..., T], *arguments: Any) -> "asyncio.Future[T]":
        return self.loop.run_in_executor(None, work, *arguments)

    async def compact(self, job: Compaction, pace: Callable[[int], None] | None) -> AsyncIterator[Cleaned]:
        groups = compact(self.disk, job)
        while (group := await self.run_in_thread(next, groups, None)) is not None:
            yield group

    async def steps(
        self, work: Callable[..., Iterator[T]], *arguments: Any, bytes_per_second: float = 0.0
    ) -> AsyncIterator[T]:
        steps = work(self.disk, *arguments, lambda _: None)
        while (step := await self.run_in_thread(next, steps, None)) is not None:
            yield step

    def run_all(self, work: list[Callable[[], None]]) -> None:
        for step in work:
            step()

    async def listen(
        self,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        host: str,
        port: int,
        options: SocketOptions = DEFAULT_SOCKETS,
    ) -> tuple[asyncio.AbstractServer, int]:
        assert isinstance(self.loop, SimLoop)
        listener = self.loop.network.listen(protocol_factory, [host], port)
        listener.serving = False
        return listener, listener.port

    def keep_memory(self) -> None:
        """A world keeps the memory of its process, and is let go of as a whole."""

    def close(self) -> None: ...


class Node:
    """One machine: its disk outlives its processes. The node's name is its host's name."""

    def __init__(self, world: "World", name: str) -> None:
        self.world = world
        self.name = name
        self.random = world.dice(f"node {name}")
        self.clock = SimClock(world.loop, boot_ms=self.random.randrange(10**6, 10**9))
        self.disk = MemoryDisk(now_ms=self.clock.wall_ms)
        self.disk.faults.on_cut = self._power_failed
        self.process: Process | None = None
        self.factory: Factory | None = None
        self._stop: Stop | None = None
        self._exited: asyncio.Future[None] | None = None

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.alive

    async def start(self, factory: Factory | None = None) -> None:
        """Start a process by `factory`, or by the last one given. Raises what it raises, or NodeDied."""
        assert not self.running, f"{self.name} is running already"
        if factory is not None:
            self.factory = factory
        assert self.factory is not None, "a node starts for the first time with a factory"
        loop = self.world.loop
        self.world.network.power_on(self.name)
        process = self.process = Process(self.name, self.name)
        self._exited = loop.create_future()
        self._stop = None
        dice = Random(self.random.getrandbits(64))
        runtime = SimRuntime(loop, self.clock, self.disk.session(), dice, lambda: self._exit(process))
        try:
            self._stop = await self._inside(process, self.factory(runtime), "start")
        except NodeDied:
            raise
        except BaseException:
            self._end(process)
            self.world.network.release(process)
            self.disk.kill()
            raise

    async def stop(self) -> None:
        """Ask the server to stop, then end its process."""
        process = self._running_process()
        if self._stop is not None:
            await self._inside(process, _awaiting(self._stop), "stop")
        self.kill()

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run something inside the node's process, with the node's place in the network."""
        return await self._inside(self._running_process(), work, "work")

    def kill(self) -> None:
        """kill -9: the kernel keeps what was written and closes the connections."""
        process = self._running_process()
        self._end(process)
        self.world.network.release(process)
        self.disk.kill()

    def crash(self, mode: CrashMode = CrashMode.RANDOM) -> None:
        """Power cut: what was not synced is at the dice's mercy, and nobody hears a goodbye."""
        process = self._running_process()
        self._end(process)
        self.world.network.power_off(process)
        self.disk.crash(self.random, mode)

    def pause(self) -> None:
        """SIGSTOP."""
        self.world.loop.pause(self._running_process())

    def resume(self) -> None:
        self.world.loop.resume(self._running_process())

    def cut_after(self, operations: int | None) -> None:
        """Cut the power at the change of the disk after so many from now; None: not any more."""
        self.disk.cut_after(operations)

    async def died(self) -> None:
        """Wait until the process is gone."""
        if self._exited is not None:
            await asyncio.shield(self._exited)

    def _running_process(self) -> Process:
        process = self.process
        assert process is not None and process.alive, f"{self.name} is not running"
        return process

    def _exit(self, process: Process) -> None:
        """Called from inside the process, so it cannot be taken apart before the caller has returned."""

        def finish() -> None:
            if process.alive:
                self.kill()

        self.world.loop.call_soon(finish, context=NOBODY)

    def _power_failed(self) -> None:
        """Called from inside the dying process: it must not do one step more, but cannot be taken apart yet."""
        process = self.process
        if process is None or not process.alive:
            return
        self.world.loop.kill(process)
        self.world.network.power_off(process)

        def finish() -> None:
            self._end(process)
            self.disk.crash(self.random)

        self.world.loop.call_soon(finish, context=NOBODY)

    def _end(self, process: Process) -> None:
        self.world.loop.kill(process)
        # Off while the dead unwind: their finally blocks must find nothing to touch.
        self.disk.power_off()
        process.bury()
        if self._exited is not None and not self._exited.done():
            self._exited.set_result(None)

    async def _inside(self, process: Process, work: Coroutine[Any, Any, T], what: str) -> T:
        exited = self._exited  # of this process: by the time it is dead, another one may run
        assert exited is not None
        task = self.world.loop.create_task(work, name=f"{self.name} {what}", context=process.context.copy())
        either: list[asyncio.Future[Any]] = [task, exited]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not process.alive:
            # Also when the power failed in the task's last step, before the machine was taken apart.
            await asyncio.shield(exited)
            raise NodeDied(self.name)
        return task.result()


class World:
    """Everything, from one seed. Use as a context manager; errors that nobody handled are raised at the end."""

    def __init__(
        self, seed: int, *, timer_jitter_s: float = 0.001, work_s: tuple[float, float] = (0.00005, 0.005)
    ) -> None:
        self.seed = seed
        self._outside = _ProcessWide()
        self.loop = SimLoop(self.dice("loop"), timer_jitter_s=timer_jitter_s, work_s=work_s)
        self.network: Network = self.loop.network
        self.nodes: dict[str, Node] = {}
        random.seed(self.dice("clients").getrandbits(64))

    def dice(self, purpose: str) -> Random:
        """Dice of its own for each purpose: more throws for one do not change the others."""
        return Random(f"{self.seed} {purpose}")

    def node(self, name: str) -> Node:
        found = self.nodes.get(name)
        if found is None:
            found = self.nodes[name] = Node(self, name)
        return found

    def run(self, main: Coroutine[Any, Any, T], *, timeout_s: float = 3600.0) -> T:
        """Run the test's own coroutine to its end; virtual seconds bound it."""

        async def bounded() -> T:
            try:
                async with asyncio.timeout(timeout_s):
                    return await main
            except TimeoutError:
                if self.loop.time() < timeout_s:
                    raise
                raise TimeoutError(f"seed {self.seed}: not done at {self.loop.time():.3f} s") from None

        return self.loop.run_until_complete(bounded())

    def close(self) -> None:
        """End every process."""
        for node in self.nodes.values():
            if node.running:
                node.kill()
        for task in asyncio.all_tasks(self.loop):
            task.cancel()
        if not self.loop.is_closed():
            self.loop.run_until_complete(asyncio.sleep(0))
            self.loop.close()
        self._outside.restore()

    def check(self) -> None:
        """Raise what asyncio would only have logged."""
        gc.collect()
        for context in self.loop.errors:
            error = context.get("exception")
            raise AssertionError(f"seed {self.seed}: unhandled: {context['message']}: {error!r}") from error

    def __enter__(self) -> "World":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
        if error is None:
            self.check()
        else:
            error.add_note(f"simulation seed: {self.seed}")


class _ProcessWide:
    """What brokers and clients change in the whole Python process, to be put back when their world ends.

    What is there before a world is frozen for good: the collections of a world look at that world alone, which is a
    thousandth of a process with many tests.
    """

    def __init__(self) -> None:
        self.dice = random.getstate()
        self.gc_callbacks = list(gc.callbacks)
        self.gc_threshold = gc.get_threshold()
        keep_memory()

    def restore(self) -> None:
        random.setstate(self.dice)
        gc.callbacks[:] = self.gc_callbacks
        gc.set_threshold(*self.gc_threshold)


async def _awaiting(stop: Stop) -> None:
    await stop()
