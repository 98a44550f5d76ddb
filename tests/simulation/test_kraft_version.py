"""`kafka-features upgrade --feature kraft.version=1`: a cluster formatted with `controller.quorum.voters` gets voters
that can be exchanged."""

import asyncio
from typing import Any

import pytest

from headrace.client.net.connection import Connection
from headrace.errors import Err
from headrace.metadata.features import SAFE_DOWNGRADE, UPGRADE
from headrace.protocol import messages as m
from headrace.protocol.api import ApiKey
from headrace.quorum.folder import Layout, format_folders
from headrace.storage.checkpoints import encode_uuid, new_uuid
from headrace.testing.simulator.brokers import DATA, broker
from headrace.testing.simulator.world import World
from tests.simulation.cluster import CLIENT_PORT, CONTROLLER_PORT

NAMES = ("n1", "n2", "n3")
VOTERS = ",".join(f"{number}@{name}:{CONTROLLER_PORT}" for number, name in enumerate(NAMES, 1))


async def _started(world: World) -> None:
    dice = world.dice("formatting")
    cluster_id = encode_uuid(new_uuid(dice))
    starts = []
    for number, name in enumerate(NAMES, 1):
        layout = Layout(number, [DATA], DATA, (("CONTROLLER", name, CONTROLLER_PORT),))
        format_folders(
            world.node(name).disk, layout, uuid=lambda: new_uuid(dice), now_ms=0, cluster_id=cluster_id, voters=[]
        )
        settings = {
            "process.roles": "broker,controller",
            "listeners": f"PLAINTEXT://{name}:{CLIENT_PORT},CONTROLLER://{name}:{CONTROLLER_PORT}",
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.voters": VOTERS,
        }
        starts.append(world.node(name).start(broker(settings, node_id=number)))
    await asyncio.gather(*starts)


async def _update(connection: Connection, level: int, kind: int = UPGRADE, **more: Any) -> Err:
    Q = m.UpdateFeaturesRequest
    update = Q.FeatureUpdateKey(feature="kraft.version", max_version_level=level, upgrade_type=kind)
    answer = await connection.request(ApiKey.UPDATE_FEATURES, Q(feature_updates=[update], **more))
    return Err(answer.error_code)


async def _finalized(connection: Connection) -> int:
    request = m.ApiVersionsRequest(client_software_name="t", client_software_version="1")
    answer = await connection.request(ApiKey.API_VERSIONS, request)
    levels: dict[str, int] = {row.name: row.max_version_level for row in answer.finalized_features}
    return levels.get("kraft.version", 0)


@pytest.mark.parametrize("seed", range(3))
def test_the_level_is_raised_by_any_broker_and_never_lowered(seed: int) -> None:
    async def main(world: World) -> None:
        await _started(world)
        await asyncio.sleep(5)
        connection = await Connection.open("n2", CLIENT_PORT, client_id="test", timeout_s=5)
        assert await _finalized(connection) == 0
        assert await _update(connection, 2) is Err.INVALID_UPDATE_VERSION
        assert await _update(connection, 1, SAFE_DOWNGRADE) is Err.INVALID_UPDATE_VERSION
        assert await _update(connection, 1, validate_only=True) is Err.NONE
        assert await _finalized(connection) == 0
        assert await _update(connection, 1) is Err.NONE
        await asyncio.sleep(1)
        assert await _finalized(connection) == 1
        assert await _update(connection, 1) is Err.NONE, "asked for again"
        assert await _update(connection, 0) is Err.INVALID_UPDATE_VERSION
        assert await _update(connection, 0, SAFE_DOWNGRADE) is Err.INVALID_UPDATE_VERSION
        Q = m.DescribeQuorumRequest
        asked = Q(
            topics=[Q.TopicData(topic_name="__cluster_metadata", partitions=[Q.PartitionData(partition_index=0)])]
        )
        answer = await connection.request(ApiKey.DESCRIBE_QUORUM, asked)
        voters = answer.topics[0].partitions[0].current_voters
        assert [voter.replica_id for voter in voters] == [1, 2, 3]
        assert len({voter.replica_directory_id for voter in voters} - {bytes(16)}) == 3

    with World(seed) as world:
        world.run(main(world))
