"""Quorum nodes and nothing else on simulated machines: the real driver, disk format, connections and wire format."""

import asyncio
from collections.abc import Iterable
from typing import Any

from headrace.broker.cluster.peers import Peers
from headrace.broker.cluster.quorum_network import QuorumNetwork
from headrace.errors import KafkaError
from headrace.metadata.image import TOPIC_CONFIG, Image
from headrace.metadata.versions import SERVED_FEATURES
from headrace.protocol import messages as m
from headrace.protocol.api import API, ApiKey
from headrace.protocol.frames import LENGTH, decode_request, encode_response
from headrace.quorum.folder import Identity, Layout, format_folders, open_folders
from headrace.quorum.kraft import KraftOptions, KraftQuorum
from headrace.quorum.opening import open_quorum
from headrace.quorum.snapshots import Voter
from headrace.raft.types import RaftOptions
from headrace.storage.checkpoints import new_uuid
from headrace.testing.simulator.world import Factory, Node, SimRuntime, Stop, World

PORT = 9093
DATA = "/data"
CLUSTER = "AAAAAAAAAAAAAAAAAAAAAQ"
SERVED = (
    ApiKey.API_VERSIONS,
    ApiKey.VOTE,
    ApiKey.BEGIN_QUORUM_EPOCH,
    ApiKey.END_QUORUM_EPOCH,
    ApiKey.FETCH,
    ApiKey.FETCH_SNAPSHOT,
    ApiKey.DESCRIBE_QUORUM,
    ApiKey.ADD_RAFT_VOTER,
    ApiKey.REMOVE_RAFT_VOTER,
    ApiKey.UPDATE_RAFT_VOTER,
)


def host(node_id: int) -> str:
    return f"c{node_id}"


def directory(node_id: int, disk: int = 0) -> bytes:
    return bytes([0x40 + disk]) * 8 + bytes([node_id]) * 8


def voter(node_id: int, disk: int = 0) -> Voter:
    return Voter(node_id, directory(node_id, disk), (("CONTROLLER", host(node_id), PORT),))


def layout(node_id: int) -> Layout:
    return Layout(node_id, [DATA], DATA, (("CONTROLLER", host(node_id), PORT),))


class Listener(asyncio.Protocol):
    """A controller listener in miniature: frames in, `quorum.serve`, frames out in order."""

    def __init__(self, quorum: KraftQuorum) -> None:
        self._quorum = quorum
        self._buffer = b""
        self._last: asyncio.Task[None] | None = None
        self._transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while len(self._buffer) >= 4:
            (length,) = LENGTH.unpack_from(self._buffer)
            if len(self._buffer) < 4 + length:
                return
            frame, self._buffer = self._buffer[4 : 4 + length], self._buffer[4 + length :]
            self._last = asyncio.get_running_loop().create_task(self._answer(frame, self._last))

    async def _answer(self, frame: bytes, before: "asyncio.Task[None] | None") -> None:
        api, version, correlation_id, _, message = decode_request(frame)
        try:
            if api.key == ApiKey.API_VERSIONS:
                answer = self._versions(version)
            else:
                answer = await self._quorum.serve(ApiKey(api.key), message, version, "test")
        except KafkaError:
            self._transport.abort()
            return
        if before is not None:
            await asyncio.wait([before])
        if not self._transport.is_closing():
            self._transport.write(b"".join(bytes(c) for c in encode_response(api, version, correlation_id, answer)))

    def _versions(self, version: int) -> m.ApiVersionsResponse:
        kind = m.ApiVersionsResponse
        response = kind(
            api_keys=[
                kind.ApiVersion(api_key=key, min_version=API[key].min_version, max_version=API[key].latest_stable)
                for key in SERVED
            ]
        )
        if version >= 4:
            response.supported_features = [
                kind.SupportedFeatureKey(name=name, min_version=low, max_version=high)
                for name, (low, high) in SERVED_FEATURES.items()
            ]
        return response


class QuorumCluster:
    """`voters` are formatted in; a node beyond them is a controller or a broker without a vote."""

    def __init__(self, world: World, voters: Iterable[int], **options: Any) -> None:
        self.world = world
        self.first = [voter(node_id) for node_id in voters]
        raft = {name: options.pop(name) for name in list(options) if name in RaftOptions._fields}
        self.options = KraftOptions(RaftOptions(**raft), **options)
        self.quorums: dict[int, KraftQuorum] = {}
        self.failures: list[tuple[int, Exception]] = []
        self.leaders: dict[int, int] = {}
        """Epoch -> leader, as any node has ever said."""
        self.disks: dict[int, int] = {}

    def node(self, node_id: int) -> Node:
        return self.world.node(host(node_id))

    def factory(self, node_id: int, *, is_controller: bool = True, **more: Any) -> Factory:
        async def start(runtime: SimRuntime) -> Stop:
            identity = self._identity(node_id, runtime)
            servers = tuple((host(v.id), PORT) for v in self.first)
            raft = self.options.raft._replace(is_controller=is_controller, bootstrap_servers=servers, **more)
            options = self.options._replace(raft=raft)
            peers = Peers(f"node {node_id}")
            quorum = open_quorum(
                runtime.disk,
                identity,
                layout(node_id),
                options,
                runtime.clock,
                runtime.run_sync,
                QuorumNetwork(peers),
                runtime.random.randrange,
            )
            self.quorums[node_id] = quorum
            quorum.on_failure = lambda error: self._failed(node_id, error)
            quorum.on_leadership(lambda leader, epoch, active: self._led(leader, epoch))
            server, _ = await runtime.listen(lambda: Listener(quorum), "0.0.0.0", PORT)
            await server.start_serving()
            await quorum.start()

            async def stop() -> None:
                await quorum.close()
                server.close()
                peers.close()

            return stop

        return start

    def _identity(self, node_id: int, runtime: SimRuntime) -> Identity:
        now_ms = runtime.clock.wall_ms()
        if not runtime.disk.exists(f"{DATA}/meta.properties"):
            disk = self.disks.get(node_id, 0)
            mine = any(v.id == node_id for v in self.first) and disk == 0 and not self.options.static_voters
            ids = iter([directory(node_id, disk)])
            format_folders(
                runtime.disk,
                layout(node_id),
                uuid=lambda: next(ids, new_uuid(runtime.random)),
                now_ms=now_ms,
                cluster_id=CLUSTER,
                voters=self.first if mine else [],
            )
        return open_folders(
            runtime.disk, layout(node_id), standalone=False, uuid=lambda: new_uuid(runtime.random), now_ms=now_ms
        )

    def _failed(self, node_id: int, error: Exception) -> None:
        if self.node(node_id).running:  # the dead have nothing left to write on
            self.failures.append((node_id, error))

    def _led(self, leader: int, epoch: int) -> None:
        if leader >= 0:
            assert self.leaders.setdefault(epoch, leader) == leader, f"two leaders in epoch {epoch}"

    async def start(self, *node_ids: int) -> None:
        for node_id in node_ids or [v.id for v in self.first]:
            await self.node(node_id).start(self.factory(node_id))

    def running(self) -> list[int]:
        return [node_id for node_id in self.quorums if self.node(node_id).running]

    async def leader(self, timeout_s: float = 30.0) -> int:
        """Wait for an active controller among the running nodes."""
        async with asyncio.timeout(timeout_s):
            while True:
                for node_id in self.running():
                    if self.quorums[node_id].is_active:
                        return node_id
                await asyncio.sleep(0.005)

    async def write(self, node_id: int, name: str) -> int:
        """A record that says so."""
        record = m.ConfigRecord(resource_type=TOPIC_CONFIG, resource_name=name, name="k", value=name)
        return await self.node(node_id).run(self._append(node_id, record))

    async def _append(self, node_id: int, record: Any) -> int:
        return await self.quorums[node_id].append([(record, 0)])

    async def wait_for(self, node_ids: Iterable[int], names: Iterable[str], timeout_s: float = 30.0) -> None:
        async with asyncio.timeout(timeout_s):
            while any(not set(names) <= written(self.quorums[i].image) for i in node_ids):
                await asyncio.sleep(0.005)


def written(image: Image) -> set[str]:
    return {name for kind, name in image.configs if kind == TOPIC_CONFIG}


async def ask(cluster: QuorumCluster, node_id: int, key: ApiKey, body: Any) -> Any:
    quorum = cluster.quorums[node_id]
    return await cluster.node(node_id).run(quorum.serve(key, body, API[key].latest_stable, "test"))
