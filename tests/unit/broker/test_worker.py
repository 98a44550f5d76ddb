"""Work in a process of its own: it ends with whoever takes its steps, however that ends."""

import asyncio
import multiprocessing
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from headrace.broker.worker import in_process


def count(connection: Any) -> None:
    for number in range(1000):
        connection.send(number)
        connection.recv()


def test_a_worker_is_ended_though_the_brokers_threads_have_ended_before() -> None:
    """A stop in the middle of a pass: the task is cancelled last of all, when no thread can be had any more."""

    async def main() -> None:
        threads = ThreadPoolExecutor(2)
        loop = asyncio.get_running_loop()

        async def take() -> None:
            async for _ in in_process(lambda *work: loop.run_in_executor(threads, *work), "counting", 5.0, count):
                started.set()
                await asyncio.sleep(60)

        started = asyncio.Event()
        taking = asyncio.create_task(take())
        await started.wait()
        threads.shutdown()
        taking.cancel()
        (ended,) = await asyncio.gather(taking, return_exceptions=True)
        assert isinstance(ended, asyncio.CancelledError), ended

    asyncio.run(main())
    assert not [child for child in multiprocessing.active_children() if child.name == "counting"]
