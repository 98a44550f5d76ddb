"""The broker itself, unmodified, as something a simulated node can run."""

import asyncio
from collections.abc import Mapping

from headrace.broker.server import Broker
from headrace.config import BrokerConfig
from headrace.testing.simulator.world import Factory, SimRuntime, Stop

PORT = 9092
DATA = "/data"


def broker(options: Mapping[str, str] | None = None, *, node_id: int = 1) -> Factory:
    """A factory of brokers with one log dir, listening on every address of their node."""

    async def start(runtime: SimRuntime) -> Stop:
        settings = {
            "node.id": str(node_id),
            "log.dirs": DATA,
            "listeners": f"PLAINTEXT://0.0.0.0:{PORT}",
            **(options or {}),
        }
        running = Broker(BrokerConfig.load({}, {}, settings), runtime)
        try:
            await running.start()
        except Exception:
            await running.stop()
            raise
        # In production this is what keeps the process alive, and what ends it when the broker gives up.
        watch = asyncio.create_task(_exit_when_failed(running, runtime))

        async def stop() -> None:
            watch.cancel()
            await running.stop()

        return stop

    return start


async def _exit_when_failed(running: Broker, runtime: SimRuntime) -> None:
    await running.tasks.stopping.wait()
    try:
        await running.stop()
    finally:
        runtime.exit()
