"""A broker's process as the kit starts it: `headrace up`, with a line to the test, faults and a clock to advance.

`python -m headrace.testing.node DESCRIPTOR AHEAD_MS WORDS...`, or the same in a fork of `nursery`.
"""

import asyncio
import gc
import logging
import socket
import sys
from collections.abc import Callable, Sequence
from typing import Any

import uvloop

from headrace.broker.server import SWITCH_SECONDS, Broker, serve
from headrace.cli.up import main as up
from headrace.config import BrokerConfig
from headrace.testing.control import ControlServer
from headrace.testing.faults.clock import AdvancedRuntime
from headrace.testing.faults.router import Interceptor
from headrace.testing.faults.rules import Rules, read_rule

logger = logging.getLogger("headrace.testing")


def run_node(words: Sequence[str], line: socket.socket, ahead_ms: int) -> int:
    """`headrace up` with these words until it is stopped, or its test is gone. Returns the exit code."""

    def run(config: BrokerConfig, on_ready: Callable[[Any], None]) -> None:
        sys.setswitchinterval(SWITCH_SECONDS)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_serve(config, on_ready, line, ahead_ms))

    gc.disable()  # as `headrace up` does; the broker turns it on again once it runs
    return up(words, run)


async def _serve(config: BrokerConfig, on_ready: Callable[[Any], None], line: socket.socket, ahead_ms: int) -> None:
    loop = asyncio.get_running_loop()
    runtime = AdvancedRuntime(loop, ahead_ms)
    rules = Rules()

    def inject(**said: Any) -> int:
        rule = read_rule(said)
        logger.info("a test injects %s", {name: value for name, value in said.items() if value})
        return rules.add(rule)

    def advance(ms: int) -> None:
        logger.info("a test advances the clock by %g s", ms / 1000)
        runtime.advanced.advance(ms)

    def ready(broker: Broker) -> None:
        on_ready(broker.ready())
        actions: dict[str, Callable[..., Any]] = {
            "inject": inject,
            "hits": rules.hits,
            "remove": rules.remove,
            "advance": advance,
        }
        control = ControlServer(loop, line, actions, broker.tasks.stopping.set)
        control.say({"ready": broker.ready().address})

    try:
        await serve(config, runtime, ready, Interceptor(rules, loop))
    finally:
        runtime.close()


if __name__ == "__main__":
    sys.exit(run_node(sys.argv[3:], socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2])))
