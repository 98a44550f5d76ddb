"""Clients used where they cannot work: on another event loop, after a loop's end, in a forked process. Each says so and
nothing hangs."""

import asyncio
import gc
import os
import subprocess
import sys
import warnings

import pytest

import headrace
from headrace.testing.broker import TestBroker
from tests.client.support import QUICK, read_all, run

FORKING = """
import os, sys
import headrace.sync
bootstrap, topic = sys.argv[1:]
with headrace.sync.Producer(bootstrap) as producer:
    producer.send(topic, "parent")
    child = os.fork()
    if child == 0:
        for use in (lambda: producer.send(topic, "lost"), lambda: producer.send_soon(topic, "lost"), producer.flush):
            try:
                use()
            except headrace.ClientError as error:
                assert "forked" in str(error), error
            else:
                sys.exit("it was sent")
        with headrace.sync.Producer(bootstrap) as own:
            own.send(topic, "child")
        sys.exit(0)
    assert os.waitpid(child, 0)[1] == 0
    producer.send(topic, "parent again")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_process_is_told_to_make_clients_of_its_own(broker: TestBroker) -> None:
    async def work(topic: str) -> None:
        words = [sys.executable, "-c", FORKING, broker.bootstrap, topic]
        done = await asyncio.to_thread(subprocess.run, words, timeout=40, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        found = [record.value for record in await read_all(broker, topic)]
        assert found == [b"parent", b"child", b"parent again"]

    run(broker, work)


def test_after_the_end_of_its_event_loop_a_client_says_so(broker: TestBroker) -> None:
    async def begin() -> tuple[headrace.Producer, headrace.Consumer]:
        producer, consumer = headrace.Producer(broker.bootstrap), headrace.Consumer(bootstrap=broker.bootstrap)
        await producer.start()
        await consumer.start()
        return producer, consumer

    async def go_on(producer: headrace.Producer, consumer: headrace.Consumer) -> None:
        for use in (producer.send("t", b""), consumer.poll(), producer.close(), consumer.close()):
            with pytest.raises(headrace.ClientError, match="another event loop"):
                await asyncio.wait_for(use, 10)

    asyncio.run(go_on(*asyncio.run(begin())))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of sockets that nobody can close any more
        gc.collect()


def test_on_another_event_loop_a_client_says_whose_it_is(broker: TestBroker) -> None:
    async def work(topic: str) -> None:
        async with (
            headrace.Producer(broker.bootstrap) as producer,
            headrace.Consumer(topic, bootstrap=broker.bootstrap, **QUICK) as consumer,
        ):
            await producer.send(topic, b"x")

            def elsewhere() -> None:
                for use in (producer.send(topic, b"y"), producer.flush(), consumer.poll()):
                    with pytest.raises(headrace.ClientError, match=r"another event loop.*headrace\.sync"):
                        asyncio.run(use)

            await asyncio.to_thread(elsewhere)
            await producer.send(topic, b"z")
        assert [record.value for record in await read_all(broker, topic)] == [b"x", b"z"]

    run(broker, work)
