"""One broker in a simulated world, and members of groups that talk to it."""

from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from headrace.broker.server import Broker
from headrace.client.admin.admin import Admin
from headrace.client.admin.groups import Groups
from headrace.client.net.connection import Connection
from headrace.config import BrokerConfig
from headrace.errors import Err
from headrace.protocol import messages as m
from headrace.protocol.api import ApiKey
from headrace.testing.simulator.world import SimRuntime, Stop, World

T = TypeVar("T")


HOST, PORT = "b1", 9092


BOOTSTRAP = f"{HOST}:{PORT}"


class Machine:
    """A node whose broker the test can look into."""

    def __init__(self, world: World, **options: str) -> None:
        self.node = world.node(HOST)
        self.broker: Broker
        self._options = {
            "node.id": "1", "log.dirs": "/data", "listeners": f"PLAINTEXT://0.0.0.0:{PORT}",
            "offsets.topic.num.partitions": "4", "group.initial.rebalance.delay.ms": "0", **options,
        }  # fmt: skip

    async def start(self) -> None:
        async def factory(runtime: SimRuntime) -> Stop:
            self.broker = Broker(BrokerConfig.load({}, {}, self._options), runtime)
            await self.broker.start()
            return self.broker.stop

        await self.node.start(factory)

    @property
    def disk(self) -> Any:
        return self.node.disk


def in_world(main: Callable[[World], Coroutine[Any, Any, T]], seed: int = 1) -> T:
    with World(seed) as world:
        return world.run(main(world))


async def connect() -> Connection:
    return await Connection.open(HOST, PORT, client_id="test", timeout_s=5)


async def commit(connection: Connection, group: str, offset: int, *, partition: int = 0, metadata: str = "") -> Err:
    kind = m.OffsetCommitRequest
    row = kind.OffsetCommitRequestPartition(
        partition_index=partition, committed_offset=offset, committed_metadata=metadata
    )
    request = kind(
        group_id=group,
        generation_id_or_member_epoch=-1,
        topics=[kind.OffsetCommitRequestTopic(name="t", partitions=[row])],
    )
    answer = await connection.request(ApiKey.OFFSET_COMMIT, request, version_max=9)
    return Err(answer.topics[0].partitions[0].error_code)


async def with_topic(world: World, **options: str) -> Machine:
    machine = Machine(world, **options)
    await machine.start()
    async with Admin(BOOTSTRAP) as admin:
        await admin.create_topic("t", 3)
        await Groups(admin).coordinator("g")
    return machine


async def committed(group: str) -> dict[int, int]:
    async with Admin(BOOTSTRAP) as admin:
        return {index: found.offset for (_, index), found in (await Groups(admin).committed(group)).items()}
