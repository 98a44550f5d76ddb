"""The active controller at work: over its listener, in envelopes, by its clocks and by closed sockets."""

import asyncio
import logging

import pytest

from headrace.client.errors import UnsupportedApi
from headrace.errors import Err
from headrace.protocol import messages as m
from headrace.protocol.api import API, ApiKey
from headrace.protocol.frames import decode_response, encode_request
from tests.unit.broker.controlled import Node, Stranger, in_world
from tests.unit.broker.sim import Sim, run as alone

BROKERS_ONLY = {ApiKey.PRODUCE, ApiKey.METADATA, ApiKey.FIND_COORDINATOR, ApiKey.LIST_OFFSETS, ApiKey.JOIN_GROUP}
CONTROLLERS_ONLY = {
    ApiKey.BROKER_REGISTRATION,
    ApiKey.BROKER_HEARTBEAT,
    ApiKey.CONTROLLER_REGISTRATION,
    ApiKey.ALTER_PARTITION,
    ApiKey.ALLOCATE_PRODUCER_IDS,
    ApiKey.ASSIGN_REPLICAS_TO_DIRS,
    ApiKey.ENVELOPE,
    ApiKey.VOTE,
    ApiKey.BEGIN_QUORUM_EPOCH,
    ApiKey.END_QUORUM_EPOCH,
    ApiKey.FETCH_SNAPSHOT,
    ApiKey.UPDATE_RAFT_VOTER,
}


def test_each_listener_serves_its_own_apis_only() -> None:
    async def main(node: Node) -> None:
        client, controller = await node.client(), await node.controller()
        assert not CONTROLLERS_ONLY & set(client.versions)
        assert set(controller.versions) >= CONTROLLERS_ONLY and not BROKERS_ONLY & set(controller.versions)
        for key in client.versions:
            assert "broker" in API[key].listeners, API[key].name
        for key in controller.versions:
            assert "controller" in API[key].listeners, API[key].name
        with pytest.raises(UnsupportedApi):
            await client.request(
                ApiKey.BROKER_HEARTBEAT, m.BrokerHeartbeatRequest(broker_id=1, current_metadata_offset=0)
            )
        client.close()
        controller.close()

    in_world(main)


def test_a_node_without_roles_has_no_controller_listener() -> None:
    async def main(node: Sim) -> None:
        assert not node.broker.controller_listeners
        assert node.broker.controller is not None and node.broker.quorum.is_active
        assert [listener.endpoint.name for listener in node.broker.listeners] == ["PLAINTEXT"]

    alone(main)


def test_describe_cluster_shows_controllers_on_their_listener() -> None:
    async def main(node: Node) -> None:
        await asyncio.sleep(1)
        controller = await node.controller()
        answer = await controller.request(ApiKey.DESCRIBE_CLUSTER, m.DescribeClusterRequest(endpoint_type=2))
        assert (answer.error_code, answer.controller_id) == (0, 1)
        assert [(b.broker_id, b.host, b.port) for b in answer.brokers] == [(1, "b1", 9093)]
        answer = await controller.request(ApiKey.DESCRIBE_CLUSTER, m.DescribeClusterRequest())
        assert answer.error_code == Err.MISMATCHED_ENDPOINT_TYPE
        controller.close()

    in_world(main)


def test_a_broker_joins_leads_and_leaves() -> None:
    async def main(node: Node) -> None:
        two = await Stranger(node, 2).join()
        await node.create("t", [2, 1])
        assert node.leader("t") == 2
        answer = await two.beat(want_shut_down=True)
        assert not answer.should_shut_down and not answer.is_fenced
        assert node.leader("t") == 1
        await asyncio.sleep(1)  # broker 1 has told by now that it knows
        answer = await two.beat(want_shut_down=True)
        assert answer.should_shut_down and two.fenced

    in_world(main)


def test_registrations_are_refused_for_a_reason() -> None:
    async def main(node: Node) -> None:
        two = Stranger(node, 2)
        assert await two.register(cluster_id="another") == Err.INCONSISTENT_CLUSTER_ID
        assert await two.register(features=[]) == Err.INVALID_REGISTRATION
        assert await two.register(log_dirs=[]) == Err.INVALID_REGISTRATION
        assert await two.register() == 0
        assert (await two.beat(epoch=two.epoch + 1)).error_code == Err.STALE_BROKER_EPOCH

    in_world(main)


def test_silence_ends_a_session() -> None:
    """A machine that is there and says nothing."""

    async def main(node: Node) -> None:
        two = Stranger(node, 2)
        await two.listen()
        await two.join()
        await node.create("t", [2, 1])
        for _ in range(8):
            await asyncio.sleep(1)
            assert not (await two.beat()).is_fenced
        await asyncio.sleep(2.8)
        assert not two.fenced
        await asyncio.sleep(0.4)
        assert two.fenced and node.leader("t") == 1
        assert not (await two.beat()).is_fenced, "one that comes back is unfenced by its next heartbeat"

    in_world(main)


def test_one_that_could_not_be_fenced_is_fenced_later() -> None:
    """The controller's disk is full when a broker falls silent, and has room again some time later."""

    async def main(node: Node) -> None:
        two = Stranger(node, 2)
        await two.listen()
        await two.join()
        await node.create("t", [2, 1])
        disk = node.node.disk
        disk.capacity_bytes = disk.used_bytes()
        await asyncio.sleep(10)
        assert not two.fenced
        assert await Stranger(node, 2).register(2) == Err.KAFKA_STORAGE_ERROR, "its next life is not called a duplicate"
        disk.capacity_bytes = None
        await asyncio.sleep(2)
        assert two.fenced and node.leader("t") == 1

    in_world(main)


def test_a_dead_process_is_fenced_at_once() -> None:
    """The socket closes and nobody listens."""

    async def main(node: Node) -> None:
        node.world.node("b2")  # the machine is there, the process is not
        two = await Stranger(node, 2).join()
        await node.create("t", [2, 1])
        two.connection.close()
        await asyncio.sleep(0.2)
        assert two.fenced and node.leader("t") == 1

    in_world(main)


def test_a_connection_that_breaks_does_not_fence_a_live_process() -> None:
    async def main(node: Node) -> None:
        two = Stranger(node, 2)
        await two.listen()
        await two.join()
        two.connection.close()
        await asyncio.sleep(1)
        assert not two.fenced
        two.connection = await node.controller()
        assert not (await two.beat()).is_fenced

    in_world(main)


def test_a_second_broker_of_the_same_id_waits_for_the_first_to_be_gone() -> None:
    async def main(node: Node) -> None:
        two = Stranger(node, 2)
        await two.listen()
        await two.join()
        twin = Stranger(node, 2)
        assert await twin.register(2) == Err.DUPLICATE_BROKER_REGISTRATION
        node.world.node("b2").kill()
        assert await twin.register(2) == Err.DUPLICATE_BROKER_REGISTRATION, (
            "asked just now; but this makes the controller look"
        )
        await asyncio.sleep(0.2)
        assert await twin.register(2) == 0
        assert (await two.beat()).error_code == Err.STALE_BROKER_EPOCH

    in_world(main)


def test_the_same_incarnation_may_register_again() -> None:
    async def main(node: Node) -> None:
        two = await Stranger(node, 2).join()
        epoch = two.epoch
        assert await two.register() == 0 and two.epoch == epoch
        assert not two.fenced

    in_world(main)


def test_a_restarted_controller_finds_who_died_meanwhile() -> None:
    async def main(node: Node) -> None:
        two, three = Stranger(node, 2), Stranger(node, 3, host="b3")
        await two.listen()
        node.world.node("b3")
        await two.join()
        await three.join()
        node.node.kill()
        await node.start()
        await asyncio.sleep(0.3)
        assert not two.fenced and three.fenced
        await asyncio.sleep(3)
        assert two.fenced, "alive, but silent for a whole session"

    in_world(main)


def test_a_controller_that_stood_still_blames_nobody() -> None:
    async def main(node: Node) -> None:
        two = Stranger(node, 2)
        await two.listen()
        await two.join()
        node.node.pause()
        await asyncio.sleep(10)
        node.node.resume()
        await asyncio.sleep(1)
        assert not two.fenced and not node.image.brokers[1].fenced

    in_world(main)


def test_an_unclean_election_is_told(caplog: pytest.LogCaptureFixture) -> None:
    async def main(node: Node) -> None:
        node.world.node("b2")
        two = await Stranger(node, 2).join()
        topic_id = await node.create("t", [2, 1])
        Q = m.AlterPartitionRequest
        row = Q.PartitionData(
            partition_index=0, leader_epoch=0, partition_epoch=0,
            new_isr_with_epochs=[Q.BrokerState(broker_id=2, broker_epoch=two.epoch)],
        )  # fmt: skip
        request = Q(broker_id=2, broker_epoch=two.epoch, topics=[Q.TopicData(topic_id=topic_id, partitions=[row])])
        answer = await two.connection.request(ApiKey.ALTER_PARTITION, request)
        assert answer.topics[0].partitions[0].isr == [2]
        two.connection.close()
        await asyncio.sleep(0.5)
        assert two.fenced and node.leader("t") == -1
        client = await node.client()
        Elect = m.ElectLeadersRequest
        elect = Elect(election_type=1, topic_partitions=[Elect.TopicPartitions(topic="t", partitions=[0])])
        answer = await client.request(ApiKey.ELECT_LEADERS, elect)
        assert answer.replica_election_results[0].partition_result[0].error_code == 0
        assert node.leader("t") == 1
        client.close()

    with caplog.at_level(logging.ERROR, "headrace.controller"):
        in_world(main)
    assert "unclean election: broker 1 leads t-0" in caplog.text


def test_leadership_goes_back_by_itself() -> None:
    async def main(node: Node) -> None:
        two = Stranger(node, 2)
        await two.listen()
        await two.join()
        topic_id = await node.create("t", [2, 1])
        await two.beat(want_fence=True)
        assert node.leader("t") == 1
        await two.beat()
        partition = node.image.topics[topic_id].partitions[0]
        Q = m.AlterPartitionRequest
        row = Q.PartitionData(
            partition_index=0, leader_epoch=partition.leader_epoch, partition_epoch=partition.partition_epoch,
            new_isr_with_epochs=[Q.BrokerState(broker_id=b) for b in (1, 2)],
        )  # fmt: skip
        request = Q(
            broker_id=1, broker_epoch=node.broker.registration.broker_epoch,
            topics=[Q.TopicData(topic_id=topic_id, partitions=[row])],
        )  # fmt: skip
        await two.connection.request(ApiKey.ALTER_PARTITION, request)
        for _ in range(30):
            await asyncio.sleep(0.5)
            await two.beat()
        assert node.leader("t") == 2

    in_world(main, leader_imbalance_check_interval_seconds="10", replica_lag_time_max_ms="60000")


def envelope_of(key: ApiKey, version: int, body: object) -> m.EnvelopeRequest:
    frame = b"".join(encode_request(API[key], version, 77, "somebody", body))
    return m.EnvelopeRequest(request_data=frame[4:], request_principal=None, client_host_address=bytes(4))


def test_an_envelope_is_opened_and_answered_as_a_whole() -> None:
    async def main(node: Node) -> None:
        controller = await node.controller()
        kind = m.CreateTopicsRequest
        body = kind(topics=[kind.CreatableTopic(name="t", num_partitions=2, replication_factor=1)])
        answer = await controller.request(ApiKey.ENVELOPE, envelope_of(ApiKey.CREATE_TOPICS, 5, body))
        assert answer.error_code == 0
        correlation_id, inner = decode_response(API[ApiKey.CREATE_TOPICS], 5, bytes(answer.response_data))
        assert (correlation_id, inner.topics[0].error_code, inner.topics[0].num_partitions) == (77, 0, 2)
        answer = await controller.request(ApiKey.ENVELOPE, envelope_of(ApiKey.CREATE_TOPICS, 5, body))
        _, inner = decode_response(API[ApiKey.CREATE_TOPICS], 5, bytes(answer.response_data))
        assert inner.topics[0].error_code == Err.TOPIC_ALREADY_EXISTS
        controller.close()

    in_world(main)


def test_envelopes_with_strange_contents_are_refused() -> None:
    async def main(node: Node) -> None:
        controller = await node.controller()
        heartbeat = envelope_of(
            ApiKey.BROKER_HEARTBEAT, 1, m.BrokerHeartbeatRequest(broker_id=1, current_metadata_offset=0)
        )
        assert (await controller.request(ApiKey.ENVELOPE, heartbeat)).error_code == Err.INVALID_REQUEST
        garbage = m.EnvelopeRequest(request_data=b"\0\x13\0\x05", client_host_address=b"")
        assert (await controller.request(ApiKey.ENVELOPE, garbage)).error_code == Err.INVALID_REQUEST
        cut = envelope_of(ApiKey.DELETE_TOPICS, 1, m.DeleteTopicsRequest(topic_names=["t"]))
        cut.request_data = cut.request_data[:-3]
        assert (await controller.request(ApiKey.ENVELOPE, cut)).error_code == Err.INVALID_REQUEST
        future = envelope_of(ApiKey.DELETE_TOPICS, 1, m.DeleteTopicsRequest(topic_names=["t"]))
        future.request_data = b"\0\x14\0\x63" + bytes(future.request_data)[4:]
        assert (await controller.request(ApiKey.ENVELOPE, future)).error_code == Err.UNSUPPORTED_VERSION
        controller.close()

    in_world(main)


def test_brokers_and_features_can_be_administered_through_any_broker() -> None:
    async def main(node: Node) -> None:
        node.world.node("b2")
        two = await Stranger(node, 2).join()
        client = await node.client()
        answer = await client.request(ApiKey.UNREGISTER_BROKER, m.UnregisterBrokerRequest(broker_id=7))
        assert answer.error_code == Err.BROKER_ID_NOT_REGISTERED
        answer = await client.request(ApiKey.UNREGISTER_BROKER, m.UnregisterBrokerRequest(broker_id=2))
        assert answer.error_code == 0 and 2 not in node.image.brokers
        assert (await two.beat()).error_code == Err.STALE_BROKER_EPOCH
        client.close()

    in_world(main)


def test_a_broker_that_was_unregistered_by_mistake_registers_again() -> None:
    async def main(node: Node) -> None:
        client = await node.client()
        answer = await client.request(ApiKey.UNREGISTER_BROKER, m.UnregisterBrokerRequest(broker_id=1))
        assert answer.error_code == 0
        await asyncio.sleep(3)
        assert not node.image.brokers[1].fenced
        assert node.image.brokers[1].epoch == node.broker.registration.broker_epoch
        client.close()

    in_world(main)
