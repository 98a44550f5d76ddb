"""A node's quorum on a simulated disk, driven as the server drives it."""

import base64
import json
from pathlib import Path
from random import Random
from typing import Any

from headrace.broker.cluster.lifecycle import Member, controller_registration_request, registration_request
from headrace.config import BrokerConfig
from headrace.metadata.brokers import leads_any
from headrace.metadata.controller import Controller
from headrace.metadata.image import Endpoint
from headrace.metadata.outcome import Outcome
from headrace.protocol import messages as m
from headrace.quorum.folder import Identity, Layout, open_folders
from headrace.quorum.kraft import KraftOptions, KraftQuorum
from headrace.quorum.opening import open_quorum
from headrace.storage.checkpoints import new_uuid
from headrace.storage.files import Disk
from headrace.testing.simulator.disk import MemoryDisk

DATA = "/data"
METADATA = f"{DATA}/__cluster_metadata-0"
CONTROLLER = (("CONTROLLER", "127.0.0.1", 19893),)


class Clock:
    def __init__(self) -> None:
        self.now_ms = 1_700_000_000_000

    def wall_ms(self) -> int:
        return self.now_ms

    def monotonic_ms(self) -> int:
        return self.now_ms


async def inline(work: Any) -> Any:
    return work()


def config(**more: str) -> BrokerConfig:
    return BrokerConfig.load(
        {
            "node.id": "1",
            "process.roles": "broker,controller",
            "listeners": "PLAINTEXT://127.0.0.1:19892,CONTROLLER://127.0.0.1:19893",
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.bootstrap.servers": "127.0.0.1:19893",
            "log.dirs": DATA,
            **more,
        }
    )


def layout(node_id: int = 1, log_dirs: tuple[str, ...] = (DATA,)) -> Layout:
    return Layout(node_id, log_dirs, log_dirs[0], CONTROLLER)


class Node:
    """One life of a node."""

    def __init__(
        self, disk: Disk, seed: int = 0, options: KraftOptions | None = None, clock: Clock | None = None
    ) -> None:
        self.random = Random(seed)
        self.clock = clock or Clock()
        self.identity: Identity = open_folders(
            disk, layout(), standalone=True, uuid=self.uuid, now_ms=self.clock.wall_ms()
        )
        self.quorum: KraftQuorum = open_quorum(
            disk, self.identity, layout(), options or KraftOptions(), self.clock, inline
        )
        self.controller = Controller(config(), self.identity.cluster_id, self.random.randrange, self.uuid)
        self.broker_epoch = -1

    def uuid(self) -> bytes:
        return new_uuid(self.random)

    async def start(self, previous_broker_epoch: int = -1) -> "Node":
        await self.quorum.start()
        incarnation_id = self.uuid()
        controller = controller_registration_request(1, incarnation_id, [Endpoint("CONTROLLER", "127.0.0.1", 19893, 0)])
        await self.quorum.append(self.controller.register_controller(controller))
        broker = registration_request(
            Member(
                node_id=1,
                cluster_id=self.identity.cluster_id,
                incarnation_id=incarnation_id,
                endpoints=[Endpoint("PLAINTEXT", "127.0.0.1", 19892, 0)],
                rack=None,
                directory_ids=[self.identity.directory_ids[DATA]],
                previous_broker_epoch=previous_broker_epoch,
            )
        )
        self.broker_epoch = await self.quorum.write(
            lambda image: self.controller.register_broker(image, broker, self.quorum.next_offset, session_alive=False)
        )
        await self.quorum.write(lambda image: Outcome(self.controller.unfence_broker(image, 1), None))
        return self

    async def create(self, name: str, partitions: int = 1) -> Any:
        topic = m.CreateTopicsRequest.CreatableTopic(name=name, num_partitions=partitions, replication_factor=1)
        request = m.CreateTopicsRequest(topics=[topic])
        response = await self.quorum.write(lambda image: self.controller.create_topics(image, request))
        return response.topics[0]

    async def stop(self) -> None:
        """Leadership first, then the broker itself."""
        if leads_any(self.quorum.tip, 1):
            await self.quorum.write(lambda image: Outcome(self.controller.controlled_shutdown(image, 1), None))
        await self.quorum.write(lambda image: Outcome(self.controller.fence_broker(image, 1), None))
        await self.quorum.close()


def golden(name: str) -> dict[str, bytes]:
    """Files that Apache Kafka wrote, by path within the log dir."""
    stored = json.loads((Path(__file__).parent / "golden" / f"{name}.json").read_text())
    return {path: base64.b64decode(data) for path, data in stored["files"].items()}


def golden_disk(name: str) -> MemoryDisk:
    disk = MemoryDisk()
    for path, data in golden(name).items():
        full = f"{DATA}/{path}"
        disk.make_dirs(full.rpartition("/")[0])
        file = disk.open(full, create=True)
        file.append(data)
        file.close()
    disk.sync_all()
    return disk
