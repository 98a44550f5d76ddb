"""A whole broker on virtual time, memory and a simulated network, open to inspection; and a client that sends
frames."""

import asyncio
import gc
import struct
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Self

from headrace.broker.replicas.partition import Partition
from headrace.broker.server import Broker
from headrace.config import BrokerConfig
from headrace.testing.simulator.world import Node, SimRuntime, Stop, World
from tests.compat.raw import batch, decode_response, encode_request

HOST, PORT = "b1", 9092


class Wire:
    """One connection to the broker: requests by name, pipelined if the test likes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self._asked: list[tuple[str, int]] = []

    def send(self, api: str, version: int, fields: Mapping[str, Any]) -> None:
        request = encode_request(api, version, fields)
        self.writer.write(struct.pack(">i", len(request)) + request)
        self._asked.append((api, version))

    def unanswered(self) -> None:
        """The last request has no answer (acks=0)."""
        self._asked.pop()

    async def receive(self) -> Any:
        """The answer to the oldest request that has none yet."""
        api, version = self._asked.pop(0)
        (length,) = struct.unpack(">i", await self.reader.readexactly(4))
        return decode_response(api, version, await self.reader.readexactly(length))

    async def ask(self, api: str, version: int, fields: Mapping[str, Any]) -> Any:
        self.send(api, version, fields)
        return await self.receive()

    def close(self) -> None:
        self.writer.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        self.close()


class Sim:
    """The running broker and short words for what tests ask of it."""

    def __init__(self, world: World, node: Node, broker: Broker) -> None:
        self.world = world
        self.node = node
        self.broker = broker

    @property
    def disk(self) -> Any:
        return self.node.disk

    def now_ms(self) -> float:
        return self.world.loop.time() * 1000

    async def wire(self) -> Wire:
        return Wire(*await asyncio.open_connection(HOST, PORT))

    async def create(self, topic: str, partitions: int = 1, **configs: str) -> bytes:
        """Returns the topic's id."""
        async with await self.wire() as wire:
            settings = [{"name": name.replace("_", "."), "value": value} for name, value in configs.items()]
            answer = await wire.ask(
                "CreateTopics", 7,
                {"topics": [{"name": topic, "num_partitions": partitions, "replication_factor": 1,
                 "configs": settings}]},
            )  # fmt: skip
        assert answer.topics[0].error_code == 0, answer
        return bytes(answer.topics[0].topic_id)

    async def delete(self, topic: str) -> None:
        async with await self.wire() as wire:
            answer = await wire.ask("DeleteTopics", 5, {"topic_names": [topic]})
        assert answer.responses[0].error_code == 0, answer

    def partition(self, topic: str, index: int = 0) -> Partition:
        return self.broker.replicas.by_name[topic][index]

    def pins(self) -> int:
        """Slices and syncs that hold a file right now."""
        return sum(handle.pins for handle in self.broker.logs.pool._open)

    def parked(self) -> int:
        return len(self.broker.wheel) + sum(len(p.fetch_waiters) for p in self.broker.replicas)

    async def quiet(self) -> None:
        """Let what is under way finish; no timer of a second or more fires."""
        await asyncio.sleep(0.2)


class HeldSyncs:
    """From now on nothing becomes durable until the test lets it."""

    def __init__(self, sim: Sim) -> None:
        self._inner: Any = sim.broker.syncer._runtime
        self.held: list[tuple[Callable[[], None], Callable[[], None]]] | None = []
        sim.broker.syncer._runtime = self

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def sync(self, work: Callable[[], None], done: Callable[[], None]) -> None:
        if self.held is None:
            self._inner.sync(work, done)
        else:
            self.held.append((work, done))

    def let_go(self) -> None:
        held, self.held = self.held or [], None
        for work, done in held:
            work()
            done()


def produce(topic: str, *batches: bytes, acks: int = -1, timeout_ms: int = 30_000, first: int = 0) -> dict[str, Any]:
    """A Produce request (v3 to v12) with one batch for each partition from `first` on."""
    rows = [{"index": first + at, "records": data} for at, data in enumerate(batches)]
    return {"acks": acks, "timeout_ms": timeout_ms, "topic_data": [{"name": topic, "partition_data": rows}]}


def fetch(topic: str | bytes, *offsets: int, partition_bytes: int = 1 << 20, **more: Any) -> dict[str, Any]:
    """A Fetch request with one offset for each partition; by name up to v12, by id from v13."""
    rows = [
        {"partition": index, "fetch_offset": offset, "partition_max_bytes": partition_bytes}
        for index, offset in enumerate(offsets)
    ]
    named = {"topic": topic} if isinstance(topic, str) else {"topic_id": topic}
    defaults = {"max_wait_ms": 0, "min_bytes": 1, "max_bytes": 50 << 20, "session_epoch": -1}
    return {**defaults, **more, "topics": [{**named, "partitions": rows}]}


def records(count: int = 1, size: int = 10) -> bytes:
    return batch(*[bytes(size)] * count)


@contextmanager
def no_collector() -> Iterator[None]:
    """What only the garbage collector would find stays."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def alive(kind: type) -> int:
    """How many there are of a kind."""
    return sum(type(found) is kind for found in gc.get_objects())


def run(
    scenario: Callable[[Sim], Coroutine[Any, Any, None]], *, seed: int = 1, timeout_s: float = 600, **options: str
) -> None:
    """Start a broker, play, and check that nothing is left behind."""
    with World(seed, timer_jitter_s=0) as world:
        world.run(
            _play(world, scenario, {name.replace("_", "."): value for name, value in options.items()}),
            timeout_s=timeout_s,
        )


async def _play(world: World, scenario: Callable[[Sim], Coroutine[Any, Any, None]], options: dict[str, str]) -> None:
    started: list[Broker] = []

    async def start(runtime: SimRuntime) -> Stop:
        settings = {"node.id": "1", "log.dirs": "/data", "listeners": f"PLAINTEXT://0.0.0.0:{PORT}", **options}
        broker = Broker(BrokerConfig.load({}, {}, settings), runtime)
        started.append(broker)
        await broker.start()
        return broker.stop

    node = world.node(HOST)
    await node.start(start)
    sim = Sim(world, node, started[0])
    await scenario(sim)
    if node.running:
        await sim.quiet()
        assert sim.pins() == 0, "files are still pinned"
        await node.stop()
