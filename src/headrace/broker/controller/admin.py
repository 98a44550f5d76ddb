"""Administration that takes more than the core's decision; the rest is a table in `controller_registry`.

CreateTopics v2-7 (v4: defaults for partitions and replicas, v5: configs in the answer, v7: topic ids). CreatePartitions
v0-3. UpdateFeatures v0-2. ListPartitionReassignments v0.
"""

from typing import TYPE_CHECKING

from headrace.errors import KafkaError
from headrace.metadata.features import asked_kraft_version, refusal
from headrace.metadata.image import Image
from headrace.metadata.outcome import Outcome
from headrace.metadata.reassignment import list_reassignments
from headrace.protocol import messages as m

if TYPE_CHECKING:
    from headrace.broker.controller.active import ActiveController, Caller


async def create_topics(
    controller: "ActiveController", message: m.CreateTopicsRequest, caller: "Caller"
) -> m.CreateTopicsResponse:
    response: m.CreateTopicsResponse = await controller.decide(
        lambda image: controller.core.create_topics(image, message)
    )
    await controller.settled()
    if caller.version < 5:
        for topic in response.topics:
            topic.topic_config_error_code = 0
            topic.num_partitions = topic.replication_factor = -1
            topic.configs = []
    return response


async def create_partitions(
    controller: "ActiveController", message: m.CreatePartitionsRequest, caller: "Caller"
) -> m.CreatePartitionsResponse:
    response: m.CreatePartitionsResponse = await controller.decide(
        lambda image: controller.core.create_partitions(image, message)
    )
    await controller.settled()
    return response


async def update_features(
    controller: "ActiveController", message: m.UpdateFeaturesRequest, caller: "Caller"
) -> m.UpdateFeaturesResponse:
    """`kraft.version` is the quorum's own: raised once everything that is asked for beside it has been found right."""

    def decide(image: Image) -> Outcome[m.UpdateFeaturesResponse]:
        return controller.core.update_features(image, message, caller.version, controller.quorum.kraft_version)

    asked = asked_kraft_version(message)
    if asked is not None and asked != controller.quorum.kraft_version:
        refused = decide(controller.quorum.tip).response
        if refused.error_code:
            return refused
        try:
            await controller.quorum.raise_version(asked, message.validate_only)
        except KafkaError as error:
            return refusal(error)
    response: m.UpdateFeaturesResponse = await controller.decide(decide)
    return response


async def list_partition_reassignments(
    controller: "ActiveController", message: m.ListPartitionReassignmentsRequest, caller: "Caller"
) -> m.ListPartitionReassignmentsResponse:
    return list_reassignments(controller.quorum.image, message)
