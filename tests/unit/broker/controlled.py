"""One node that is broker and controller, on virtual time, and strangers who speak to its controller as brokers do."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from headrace.broker.server import Broker
from headrace.client.net.connection import Connection
from headrace.config import BrokerConfig
from headrace.metadata.versions import KNOWN_FEATURES
from headrace.protocol import messages as m
from headrace.protocol.api import ApiKey
from headrace.testing.simulator.world import SimRuntime, Stop, World

HOST, PORT, CONTROLLER_PORT = "b1", 9092, 9093


class Node:
    """The node under test."""

    def __init__(self, world: World, **options: str) -> None:
        self.world = world
        self.node = world.node(HOST)
        self.broker: Broker
        self.options = options

    async def start(self) -> "Node":
        async def factory(runtime: SimRuntime) -> Stop:
            settings = {
                "node.id": "1",
                "process.roles": "broker,controller",
                "log.dirs": "/data",
                "listeners": f"PLAINTEXT://{HOST}:{PORT},CONTROLLER://{HOST}:{CONTROLLER_PORT}",
                **{name.replace("_", "."): value for name, value in self.options.items()},
            }
            self.broker = Broker(BrokerConfig.load({}, {}, settings), runtime)
            await self.broker.start()
            return self.broker.stop

        await self.node.start(factory)
        return self

    @property
    def image(self) -> Any:
        return self.broker.image

    def leader(self, topic: str, index: int = 0) -> int:
        found = self.image.topic_named(topic)
        assert found is not None
        return int(found.partitions[index].leader)

    async def client(self) -> Connection:
        return await Connection.open(HOST, PORT)

    async def controller(self) -> Connection:
        return await Connection.open(HOST, CONTROLLER_PORT)

    async def create(self, topic: str, *assignments: list[int]) -> bytes:
        kind = m.CreateTopicsRequest
        request = kind(
            topics=[
                kind.CreatableTopic(
                    name=topic, num_partitions=-1, replication_factor=-1,
                    assignments=[
                        kind.CreatableReplicaAssignment(partition_index=n, broker_ids=ids)
                        for n, ids in enumerate(assignments)
                    ],
                )
            ]
        )  # fmt: skip
        client = await self.client()
        answer = await client.request(ApiKey.CREATE_TOPICS, request)
        client.close()
        assert answer.topics[0].error_code == 0, answer
        return bytes(answer.topics[0].topic_id)


class Stranger:
    """A broker as the controller sees one: a registration, heartbeats, and a port that answers or does not."""

    def __init__(self, node: Node, broker_id: int, *, host: str = "b2", port: int = 7000) -> None:
        self.node = node
        self.id = broker_id
        self.host = host
        self.port = port
        self.epoch = -1
        self.connection: Connection
        self._server: asyncio.AbstractServer | None = None

    async def listen(self) -> None:
        """Be reachable, as a live process is."""
        machine = self.node.world.node(self.host)

        async def factory(runtime: SimRuntime) -> Stop:
            server, _ = await runtime.listen(asyncio.Protocol, self.host, self.port)
            await server.start_serving()

            async def stop() -> None:
                server.close()

            return stop

        await machine.start(factory)

    def request(self, incarnation: int = 1, **fields: Any) -> m.BrokerRegistrationRequest:
        Q = m.BrokerRegistrationRequest
        request = Q(
            broker_id=self.id,
            cluster_id=self.node.broker.node.cluster_id,
            incarnation_id=(self.id * 1000 + incarnation).to_bytes(16, "big"),
            listeners=[Q.Listener(name="PLAINTEXT", host=self.host, port=self.port, security_protocol=0)],
            features=[
                Q.Feature(name=name, min_supported_version=low, max_supported_version=high)
                for name, (low, high) in KNOWN_FEATURES.items()
            ],
            log_dirs=[(self.id * 1000).to_bytes(16, "big")],
        )
        for name, value in fields.items():
            setattr(request, name, value)
        return request

    async def register(self, incarnation: int = 1, **fields: Any) -> int:
        self.connection = await self.node.controller()
        answer = await self.connection.request(ApiKey.BROKER_REGISTRATION, self.request(incarnation, **fields))
        if not answer.error_code:
            self.epoch = answer.broker_epoch
        return int(answer.error_code)

    async def beat(self, **fields: Any) -> Any:
        request = m.BrokerHeartbeatRequest(
            broker_id=self.id,
            broker_epoch=fields.pop("epoch", self.epoch),
            current_metadata_offset=fields.pop("offset", self.node.image.offset),
            **fields,
        )
        return await self.connection.request(ApiKey.BROKER_HEARTBEAT, request)

    async def join(self) -> "Stranger":
        assert await self.register() == 0
        answer = await self.beat()
        assert not answer.is_fenced
        return self

    @property
    def fenced(self) -> bool:
        return bool(self.node.image.brokers[self.id].fenced)


def in_world(scenario: Callable[[Node], Coroutine[Any, Any, None]], seed: int = 1, **options: str) -> None:
    async def main(world: World) -> None:
        node = await Node(world, **options).start()
        await scenario(node)
        if node.node.running:
            await node.node.stop()

    with World(seed, timer_jitter_s=0) as world:
        world.run(main(world), timeout_s=600)
