"""Everything a broker takes from its surroundings, in one object: time, disk, dice, threads and the network.

Production hands it the kernel's; the simulator hands it a seeded world. No other broker code may reach for them.
"""

import asyncio
import errno
import gc
import os
import random
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from threading import Thread
from typing import Any, NamedTuple, Protocol, TypeVar

from headrace.broker.idle_poll import IdlePoll
from headrace.broker.worker import UNLIMITED, in_process, take_steps
from headrace.clock import Clock, LoopSchedule, Schedule, SystemClock
from headrace.config import BrokerConfig
from headrace.platform import CAN_SENDFILE, keep_alive, open_files_max
from headrace.storage.compaction import Compaction, serve
from headrace.storage.files import Disk, RealDisk
from headrace.storage.swap import Cleaned

T = TypeVar("T")

SYNC_THREADS = 8
WORK_THREADS = 4
WAITING_THREADS = 2
END_WAIT_S = 1.0
"""How long a compaction may take to end by itself when nobody waits for it any more."""
EVERY_ADDRESS = "::"
NO_IPV6 = frozenset({errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL})
"""What a kernel says that was told to do without: then every address means every IPv4 address."""
DESCRIPTORS_MAX = 1_000_000
DESCRIPTORS_SPARE = 200
"""For the metadata log, checkpoints, listeners and libraries."""
KEEPALIVE_IDLE_S = 120
KEEPALIVE_PROBE_S = 15
KEEPALIVE_PROBES = 5
SYSTEM_DEFAULT = -1


class StartupError(Exception):
    """Why the broker cannot start, in one line that says what to do."""


class SocketOptions(NamedTuple):
    """How the kernel should keep connections; None leaves a buffer to the kernel, which knows better than a number."""

    backlog: int = 1024
    send_bytes: int | None = None
    receive_bytes: int | None = None

    @staticmethod
    def of(config: BrokerConfig) -> "SocketOptions":
        def given(name: str) -> int | None:
            # Kafka's defaults are from another age: only what somebody has written down is taken.
            return config[name] if name in config.raw and config[name] != SYSTEM_DEFAULT else None

        return SocketOptions(
            given("socket.listen.backlog.size") or 1024,
            given("socket.send.buffer.bytes"),
            given("socket.receive.buffer.bytes"),
        )


DEFAULT_SOCKETS = SocketOptions()


class Runtime(Protocol):
    """The seam between the broker and the world."""

    clock: Clock
    schedule: Schedule
    disk: Disk
    random: random.Random
    loop: asyncio.AbstractEventLoop
    can_sendfile: bool
    """Sockets and files have kernel descriptors, so a slice of a file can go out without being read."""
    disk_can_wait: bool
    """Reading a file may have to wait for a disk, and everybody with it."""

    def perf_counter(self) -> float:
        """Seconds of high resolution for latency metrics."""
        ...

    def idle_poll(self) -> IdlePoll | None:
        """What keeps the loop awake between small requests; None where waiting takes no time."""
        ...

    def run_sync(self, work: Callable[[], T]) -> "asyncio.Future[T]":
        """Run an fsync in a thread. Kept apart from other work, which may take seconds: an ack waits for this."""
        ...

    def sync(self, work: Callable[[], None], done: Callable[[], None]) -> None:
        """Like `run_sync` for the hot path: `work`, which never raises, in a thread, then `done` on the loop."""
        ...

    def run_in_thread(self, work: Callable[..., T], *arguments: Any) -> "asyncio.Future[T]":
        """Run blocking calls that release the interpreter lock: cold reads, deletions, recovery."""
        ...

    def compact(self, job: Compaction, pace: Callable[[int], None] | None) -> AsyncIterator[Cleaned]:
        """Compact where it cannot hold the loop's interpreter lock; each group is in place before the next is made."""
        ...

    def steps(
        self, work: Callable[..., Iterator[T]], *arguments: Any, bytes_per_second: float = UNLIMITED
    ) -> AsyncIterator[T]:
        """Run `work(disk, *arguments, pace)` where it cannot hold the loop's interpreter lock, and after everybody
        else.

        Each of its steps is taken here before it makes the next. Only OSErrors come back. `pace` is told of bytes that
        were read, and sleeps off what was too fast.
        """
        ...

    def run_all(self, work: list[Callable[[], None]]) -> None:
        """Run blocking work side by side and wait for all of it; raises what one of them raised. Only while
        stopping."""
        ...

    async def listen(
        self,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        host: str,
        port: int,
        options: SocketOptions = DEFAULT_SOCKETS,
    ) -> tuple[asyncio.AbstractServer, int]:
        """Take an address; returns the server, which serves from `start_serving` on, and the port it got."""
        ...

    def keep_memory(self) -> None:
        """Everything alive now stays alive: the collector need not look at it again and again."""
        ...

    def close(self) -> None: ...


class SystemRuntime:
    """The machine itself."""

    can_sendfile = CAN_SENDFILE
    disk_can_wait = True

    def __init__(self, loop: asyncio.AbstractEventLoop, disk: Disk | None = None) -> None:
        self.loop = loop
        self.clock: Clock = SystemClock()
        self.schedule: Schedule = LoopSchedule(loop, self.clock)
        self.disk: Disk = disk if disk is not None else RealDisk()
        self.random: random.Random = random.SystemRandom()
        self._sync_threads = ThreadPoolExecutor(SYNC_THREADS, "headrace-sync")
        self._syncs: SimpleQueue[tuple[Callable[[], None], Callable[[], None]] | None] = SimpleQueue()
        self._syncers: list[Thread] = []
        self._threads = ThreadPoolExecutor(WORK_THREADS, "headrace-work")
        self._waiting = ThreadPoolExecutor(WAITING_THREADS, "headrace-waiting")

    perf_counter = staticmethod(time.perf_counter)

    def idle_poll(self) -> IdlePoll:
        return IdlePoll(self.loop, self.perf_counter)

    def run_sync(self, work: Callable[[], T]) -> "asyncio.Future[T]":
        return self.loop.run_in_executor(self._sync_threads, work)

    def sync(self, work: Callable[[], None], done: Callable[[], None]) -> None:
        # An executor's futures cost more than a small fsync does: a queue and a callback are all this needs.
        if len(self._syncers) < SYNC_THREADS:
            thread = Thread(target=self._run_syncs, name=f"headrace-group-commit-{len(self._syncers)}", daemon=True)
            self._syncers.append(thread)
            thread.start()
        self._syncs.put((work, done))

    def _run_syncs(self) -> None:
        while (job := self._syncs.get()) is not None:
            work, done = job
            work()
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                self.loop.call_soon_threadsafe(done)

    def run_in_thread(self, work: Callable[..., T], *arguments: Any) -> "asyncio.Future[T]":
        return self.loop.run_in_executor(self._threads, work, *arguments)

    def compact(self, job: Compaction, pace: Callable[[int], None] | None) -> AsyncIterator[Cleaned]:
        return in_process(self.run_in_thread, "headrace-compaction", END_WAIT_S, serve, job, pace)

    def steps(
        self, work: Callable[..., Iterator[T]], *arguments: Any, bytes_per_second: float = UNLIMITED
    ) -> AsyncIterator[T]:
        # In threads of its own: who waits for a slow reading of disks must not take one from those who serve.
        run = partial(self.loop.run_in_executor, self._waiting)
        return in_process(run, "headrace-scrub", 0.0, take_steps, work, arguments, bytes_per_second)

    def run_all(self, work: list[Callable[[], None]]) -> None:
        for done in [self._sync_threads.submit(step) for step in work]:
            done.result()

    async def listen(
        self,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        host: str,
        port: int,
        options: SocketOptions = DEFAULT_SOCKETS,
    ) -> tuple[asyncio.AbstractServer, int]:
        try:
            listener = _bound(host, port, options)
        except OSError as error:
            if host != EVERY_ADDRESS or error.errno not in NO_IPV6:
                raise
            listener = _bound("0.0.0.0", port, options)
        try:
            server = await self.loop.create_server(
                protocol_factory, sock=listener, backlog=options.backlog, start_serving=False
            )
        except BaseException:
            listener.close()
            raise
        return server, listener.getsockname()[1]

    def keep_memory(self) -> None:
        keep_memory()
        gc.enable()

    def close(self) -> None:
        for _ in self._syncers:
            self._syncs.put(None)
        for thread in self._syncers:
            thread.join()
        self._sync_threads.shutdown(wait=True)
        self._threads.shutdown(wait=True, cancel_futures=True)
        self._waiting.shutdown(wait=True, cancel_futures=True)


def keep_memory() -> None:
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


def _bound(host: str, port: int, options: SocketOptions) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Accepted sockets inherit this: a client that vanished without a word, while its request waits, is noticed.
        keep_alive(listener, KEEPALIVE_IDLE_S, KEEPALIVE_PROBE_S, KEEPALIVE_PROBES)
        if family == socket.AF_INET6:
            # "::" serves IPv4 as well, as it does for every Java server.
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        # Set before anybody connects, since a window is agreed on when a connection is made.
        for name, size in ((socket.SO_SNDBUF, options.send_bytes), (socket.SO_RCVBUF, options.receive_bytes)):
            if size is not None:
                listener.setsockopt(socket.SOL_SOCKET, name, size)
        listener.bind((host, port))
        listener.setblocking(False)
    except BaseException:
        listener.close()
        raise
    return listener


def os_reason(error: OSError) -> str:
    """Why an address could not be taken, in a few words."""
    # Only the resolver's numbers are its own; the text of a failed bind says more than is needed.
    if isinstance(error, socket.gaierror) or not error.errno:
        return (error.strerror or str(error)).lower()
    return os.strerror(error.errno).lower()


def memory_budget(config: BrokerConfig) -> int:
    """Receive buffers of all connections together: what is configured, or an eighth of the machine's memory."""
    configured: int = config["queued.max.request.bytes"]
    if configured > 0:
        return configured
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(256 << 20, int(total) // 8)


class Descriptors(NamedTuple):
    """How the file descriptors that the system grants are shared out."""

    segments: int
    connections: int

    @staticmethod
    def take() -> "Descriptors":
        """Raise the soft limit to the hard one and divide it, some left for all the rest."""
        granted = open_files_max(DESCRIPTORS_MAX)
        # Never more than there are: a broker whose segments took them all could accept nobody.
        granted = max(granted - DESCRIPTORS_SPARE, granted // 2)
        # A segment that has to be opened again costs more than a connection refused costs anybody.
        segments = granted * 6 // 10
        return Descriptors(segments, granted - segments)
