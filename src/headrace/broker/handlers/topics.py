"""CreateTopics v2-7. v4: defaults for partitions and replicas. v5: configs in the answer. v7: topic ids.
DeleteTopics v1-6. v6: by id. CreatePartitions v0-3. ElectLeaders v0-2. v1: unclean elections. All four: validation and
records by the controller core.
"""

from typing import TYPE_CHECKING

from headrace.broker.connection import Request
from headrace.broker.coordinator_topic import offsets_topic
from headrace.errors import Err, KafkaError
from headrace.metadata.names import OFFSETS_TOPIC
from headrace.protocol import messages as m

if TYPE_CHECKING:
    from headrace.broker.server import Broker


async def create_topics(
    broker: "Broker", request: Request, message: m.CreateTopicsRequest
) -> m.CreateTopicsResponse:
    version = request.version
    try:
        response: m.CreateTopicsResponse = await broker.node.decide(
            lambda image: broker.node.controller.create_topics(image, message)
        )
    except KafkaError as error:
        return m.CreateTopicsResponse(
            topics=[
                m.CreateTopicsResponse.CreatableTopicResult(
                    name=topic.name, error_code=error.error, error_message=error.message
                )
                for topic in message.topics
            ]
        )
    if version < 5:
        for topic in response.topics:
            topic.topic_config_error_code = 0
            topic.num_partitions = topic.replication_factor = -1
            topic.configs = []
    return response


async def delete_topics(
    broker: "Broker", request: Request, message: m.DeleteTopicsRequest
) -> m.DeleteTopicsResponse:
    try:
        response: m.DeleteTopicsResponse = await broker.node.decide(
            lambda image: broker.node.controller.delete_topics(image, message, request.version)
        )
    except KafkaError as error:
        names = [(topic.name, topic.topic_id) for topic in message.topics]
        names += [(name, bytes(16)) for name in message.topic_names]
        return m.DeleteTopicsResponse(
            responses=[
                m.DeleteTopicsResponse.DeletableTopicResult(
                    name=name, topic_id=topic_id, error_code=error.error, error_message=error.message
                )
                for name, topic_id in names
            ]
        )
    return response


async def create_partitions(
    broker: "Broker", request: Request, message: m.CreatePartitionsRequest
) -> m.CreatePartitionsResponse:
    try:
        response: m.CreatePartitionsResponse = await broker.node.decide(
            lambda image: broker.node.controller.create_partitions(image, message)
        )
    except KafkaError as error:
        return m.CreatePartitionsResponse(
            results=[
                m.CreatePartitionsResponse.CreatePartitionsTopicResult(
                    name=topic.name, error_code=error.error, error_message=error.message
                )
                for topic in message.topics
            ]
        )
    return response


async def elect_leaders(
    broker: "Broker", request: Request, message: m.ElectLeadersRequest
) -> m.ElectLeadersResponse:
    try:
        response: m.ElectLeadersResponse = await broker.node.decide(
            lambda image: broker.node.controller.elect_leaders(image, message)
        )
    except KafkaError as error:
        R = m.ElectLeadersResponse
        return R(
            error_code=error.error,
            replica_election_results=[
                R.ReplicaElectionResult(
                    topic=topic.topic,
                    partition_result=[
                        R.PartitionResult(partition_id=number, error_code=error.error, error_message=error.message)
                        for number in topic.partitions
                    ],
                )
                for topic in message.topic_partitions or ()
            ],
        )
    return response


async def auto_create(broker: "Broker", names: list[str]) -> dict[str, int]:
    """Create topics that a client asked about. Returns errors by name, of those that could not be."""
    wanted = m.CreateTopicsRequest(
        topics=[
            offsets_topic(broker)
            if name == OFFSETS_TOPIC
            else m.CreateTopicsRequest.CreatableTopic(name=name, num_partitions=-1, replication_factor=-1)
            for name in dict.fromkeys(names)
        ]
    )
    try:
        response: m.CreateTopicsResponse = await broker.node.decide(
            lambda image: broker.node.controller.create_topics(image, wanted)
        )
    except KafkaError as error:
        return dict.fromkeys(names, error.error)
    return {
        topic.name: topic.error_code
        for topic in response.topics
        if topic.error_code not in (Err.NONE, Err.TOPIC_ALREADY_EXISTS)
    }
