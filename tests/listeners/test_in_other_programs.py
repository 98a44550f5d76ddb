"""Clients and apps inside of programs whose main loop is somebody else's: a web application, a server of one's own."""

import asyncio
import contextlib
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

import headrace
import headrace.sync
from headrace.testing.broker import TestBroker

SERVER = """
import asyncio, signal, sys
import headrace

app = headrace.App("billing", bootstrap=sys.argv[1], on_failure="terminate")

@app.listener("broken", retry=headrace.Retry(attempts=1))
async def bill(value: bytes) -> None:
    raise RuntimeError("no money")

async def main() -> None:
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    await app.start()
    print("serving", flush=True)
    await ended.wait()
    print("told to end:", app.health().ok, app.failure, flush=True)
    await app.stop()

asyncio.run(main())
"""


def test_a_web_application_owns_a_producer_and_listeners(broker_of_ours: TestBroker) -> None:
    async def work() -> None:
        billed: asyncio.Queue[str] = asyncio.Queue()
        listeners = headrace.App("billing", bootstrap=broker_of_ours.bootstrap)

        @listeners.listener("web-orders")
        async def bill(order: str) -> None:
            billed.put_nowait(order)

        @contextlib.asynccontextmanager
        async def lifespan(web: Starlette) -> AsyncIterator[dict[str, Any]]:
            async with headrace.Producer(broker_of_ours.bootstrap) as producer, listeners:
                yield {"producer": producer}

        async def order(request: Request) -> JSONResponse:
            where = await request.state.producer.send("web-orders", request.path_params["name"])
            return JSONResponse({"offset": where.offset})

        web = Starlette(routes=[Route("/order/{name}", order)], lifespan=lifespan)
        async with headrace.Admin(broker_of_ours.bootstrap) as admin:
            await admin.create_topic("web-orders", 1, 1)
        async with web.router.lifespan_context(web) as state:
            assert await _get(web, "/order/coffee", state) == b'{"offset":0}'
            assert await asyncio.wait_for(billed.get(), 30) == "coffee"
            assert listeners.health().ok
        left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        assert not left and not listeners.health().ok

    asyncio.run(work())


async def _get(web: Starlette, path: str, state: Any) -> bytes:
    """One request, as a server hands it to an application."""
    scope = {
        "type": "http",
        "method": "GET",
        "path": path,
        "query_string": b"",
        "headers": [],
        "app": web,
        "state": state,
    }
    body = bytearray()

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        body.extend(message.get("body", b""))

    await web(scope, receive, send)
    return bytes(body)


def test_a_listener_that_fails_ends_the_process_it_is_in(broker_of_ours: TestBroker) -> None:
    with headrace.sync.Admin(broker_of_ours.bootstrap) as admin:
        admin.create_topic("broken", 1, 1)
    with headrace.sync.Producer(broker_of_ours.bootstrap) as producer:
        producer.send("broken", b"x")
    done = subprocess.run(
        [sys.executable, "-c", SERVER, broker_of_ours.bootstrap],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("serving\ntold to end: False listener 'bill' has failed: no money")


def test_without_a_handler_of_its_own_the_process_dies_of_the_signal(broker_of_ours: TestBroker) -> None:
    with headrace.sync.Admin(broker_of_ours.bootstrap) as admin:
        admin.create_topic("dying", 1, 1)
    with headrace.sync.Producer(broker_of_ours.bootstrap) as producer:
        producer.send("dying", b"x")
    handler = "asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)"
    assert handler in SERVER
    plain = SERVER.replace('"broken"', '"dying"').replace(handler, "pass")
    done = subprocess.run(
        [sys.executable, "-c", plain, broker_of_ours.bootstrap], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == -signal.SIGTERM and "no money" in done.stderr


@pytest.fixture(scope="module")
def broker_of_ours() -> Any:
    with TestBroker(settings={"group.initial.rebalance.delay.ms": "0"}) as running:
        yield running
