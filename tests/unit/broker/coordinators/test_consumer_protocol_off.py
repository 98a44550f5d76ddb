"""Requests of KIP-848 are refused where the protocol is off: by an option, or as the cluster has agreed."""

from typing import Any

from headrace.errors import Err
from headrace.metadata.features import SAFE_DOWNGRADE, UPGRADE
from headrace.protocol import messages as m
from headrace.protocol.api import ApiKey
from tests.unit.broker.controlled import Node, in_world

REFUSED = (Err.UNSUPPORTED_VERSION, Err.UNSUPPORTED_VERSION)


async def errors(node: Node) -> tuple[int, int]:
    """Of a heartbeat that joins a group, and of describing it."""
    client = await node.client()
    beat: Any = m.ConsumerGroupHeartbeatRequest(
        group_id="g",
        member_id="AAAAAAAAAAAAAAAAAAAAAA",
        member_epoch=0,
        rebalance_timeout_ms=60_000,
        subscribed_topic_names=["t"],
        topic_partitions=[],
    )
    await client.request(ApiKey.FIND_COORDINATOR, m.FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]))
    joined = await client.request(ApiKey.CONSUMER_GROUP_HEARTBEAT, beat)
    described = await client.request(ApiKey.CONSUMER_GROUP_DESCRIBE, m.ConsumerGroupDescribeRequest(group_ids=["g"]))
    client.close()
    return joined.error_code, described.groups[0].error_code


async def finalize(node: Node, level: int, how: int) -> None:
    update = m.UpdateFeaturesRequest.FeatureUpdateKey(
        feature="group.version", max_version_level=level, upgrade_type=how
    )
    client = await node.client()
    answer = await client.request(ApiKey.UPDATE_FEATURES, m.UpdateFeaturesRequest(feature_updates=[update]))
    client.close()
    assert answer.error_code == 0, answer


def test_the_option_switches_it_off() -> None:
    async def main(node: Node) -> None:
        assert await errors(node) == REFUSED

    in_world(main, group_coordinator_rebalance_protocols="classic")


def test_the_level_of_group_version_switches_it_off_and_on() -> None:
    async def main(node: Node) -> None:
        assert await errors(node) == (0, 0)
        await finalize(node, 0, SAFE_DOWNGRADE)
        assert await errors(node) == REFUSED
        await finalize(node, 1, UPGRADE)
        assert await errors(node) == (0, 0)

    in_world(main)
