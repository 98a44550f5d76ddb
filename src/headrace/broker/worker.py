"""Runs work that reads whole files in another process: here it would hold the interpreter lock, and every request would
wait.

The broker's end is an async iterator, the worker's a loop that sends one step and waits until it was taken.
"""

import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from headrace.platform import end_with_parent, use_idle_disk_time
from headrace.storage.files import RealDisk

if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess

UNLIMITED = float("inf")
NICE = 10


class Throttler:
    """A limit of bytes in a second: sleeps off what was too fast. Travels to the process that works."""

    def __init__(self, bytes_per_second: float) -> None:
        self._rate = bytes_per_second
        self._started: float | None = None
        self._done = 0

    def __call__(self, length: int) -> None:
        now = time.monotonic()
        if self._started is None:
            self._started = now
        self._done += length
        ahead = self._done / self._rate - (now - self._started)
        if ahead > 0:
            time.sleep(ahead)


async def in_process(
    run: Callable[..., Awaitable[Any]], name: str, end_wait_s: float, serve: Callable[..., None], *arguments: Any
) -> AsyncIterator[Any]:
    """What `serve(pipe, *arguments)` sends from another process. `run` runs what blocks in a thread."""
    # Spawned, not forked: a fork would inherit listening sockets and locks.
    from multiprocessing import get_context

    context = get_context("spawn")
    here, there = context.Pipe()
    worker = context.Process(target=_serve, args=(there, serve, arguments), name=name, daemon=True)
    await run(worker.start)
    there.close()
    try:
        while (answer := await run(here.recv)) is not None:
            if isinstance(answer, Exception):
                raise answer
            yield answer
            here.send(True)
    except EOFError:
        raise OSError(f"the process {name} died") from None
    finally:
        here.close()  # whatever it waits for, it then ends
        try:
            await run(_end, worker, end_wait_s)
        except RuntimeError:
            _end(worker, 0)  # the broker has stopped, and its threads before this


def _serve(connection: Any, serve: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    """In the worker: it must not die of the Ctrl-C that its parent turns into an orderly stop, and gives way to it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if not _die_with_parent():
        return
    os.nice(NICE)
    with suppress(EOFError, BrokenPipeError):
        serve(connection, *arguments)


def take_steps(
    connection: Any, work: Callable[..., Iterator[Any]], arguments: tuple[Any, ...], bytes_per_second: float
) -> None:
    """`work` at the far end of a pipe: sends steps, waits for True after each, ends with None or an OSError."""
    use_idle_disk_time()
    try:
        for step in work(RealDisk(), *arguments, Throttler(bytes_per_second)):
            connection.send(step)
            if not connection.recv():
                return
    except OSError as error:
        connection.send(error)
    else:
        connection.send(None)


def _die_with_parent() -> bool:
    """Have the kernel end this process when the broker is killed. False if that has happened already.

    The next broker compacts the same log into files of the same names: two writers would make one broken segment.
    """
    from multiprocessing import parent_process

    parent = parent_process()
    end_with_parent(signal.SIGKILL)
    return parent is None or parent.is_alive()


def _end(worker: "BaseProcess", wait_s: float) -> None:
    if wait_s:
        worker.join(timeout=wait_s)
    if worker.is_alive():
        worker.kill()
        worker.join()
