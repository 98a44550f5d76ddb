"""Administration that takes more than the core's decision; the rest is a table in `controller_registry`.

CreateTopics v2-7 (v4: defaults for partitions and replicas, v5: configs in the answer, v7: topic ids). CreatePartitions
v0-3. DeleteTopics v1-6 (v5: messages, v6: topic ids). UpdateFeatures v0-2. ListPartitionReassignments v0.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from headrace.broker.controller.refusals import refusal
from headrace.errors import Err, KafkaError
from headrace.metadata.features import asked_kraft_version, refusal as features_refusal
from headrace.metadata.image import Image
from headrace.metadata.outcome import Outcome
from headrace.metadata.reassignment import list_reassignments
from headrace.metadata.topic_portions import creation_portions, deletion_portions, is_large
from headrace.protocol import messages as m
from headrace.protocol.api import ApiKey

if TYPE_CHECKING:
    from headrace.broker.controller.active import ActiveController, Caller

Request = TypeVar("Request")
Answer = TypeVar("Answer")


async def create_topics(
    controller: "ActiveController", message: m.CreateTopicsRequest, caller: "Caller"
) -> m.CreateTopicsResponse:
    core, image = controller.core, controller.quorum.tip
    response = await _in_portions(
        controller,
        ApiKey.CREATE_TOPICS,
        creation_portions(image, message, core.config_of(image)["num.partitions"]),
        lambda part, image: core.create_topics(image, part),
        lambda answer: answer.topics,
    )
    await controller.settled()
    if caller.version < 5:
        for topic in response.topics:
            topic.topic_config_error_code = 0
            topic.num_partitions = topic.replication_factor = -1
            topic.configs = []
    return response


async def delete_topics(
    controller: "ActiveController", message: m.DeleteTopicsRequest, caller: "Caller"
) -> m.DeleteTopicsResponse:
    return await _in_portions(
        controller,
        ApiKey.DELETE_TOPICS,
        deletion_portions(controller.quorum.tip, message),
        lambda part, image: controller.core.delete_topics(image, part, caller.version),
        lambda answer: answer.responses,
    )


async def _in_portions(
    controller: "ActiveController",
    key: ApiKey,
    parts: Sequence[Request],
    decision: Callable[[Request, Image], Outcome[Answer]],
    rows: Callable[[Answer], list[Any]],
) -> Answer:
    """The joined answer to one request that is decided in parts, others being served in between."""
    answer: Answer | None = None
    for at, part in enumerate(parts):
        if at:
            await asyncio.sleep(0)  # a decision that changes nothing waits for nobody
        try:
            decide = controller.decide_ahead if is_large(part) else controller.decide
            response: Answer = await decide(partial(decision, part))
        except KafkaError as error:
            if answer is None:
                raise
            # What is done is done, and its rows say so. NOT_CONTROLLER would have clients ask for all of it again.
            if error.error is Err.NOT_CONTROLLER:
                error = KafkaError(Err.REQUEST_TIMED_OUT, "the controller changed meanwhile; ask for this one again")
            response = refusal(key, part, error)
        if answer is None:
            answer = response
        else:
            rows(answer).extend(rows(response))
    assert answer is not None, "there is always one portion"
    return answer


async def create_partitions(
    controller: "ActiveController", message: m.CreatePartitionsRequest, caller: "Caller"
) -> m.CreatePartitionsResponse:
    decide = controller.decide_ahead if is_large(message) else controller.decide
    response: m.CreatePartitionsResponse = await decide(lambda image: controller.core.create_partitions(image, message))
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
            return features_refusal(error)
    response: m.UpdateFeaturesResponse = await controller.decide(decide)
    return response


async def list_partition_reassignments(
    controller: "ActiveController", message: m.ListPartitionReassignmentsRequest, caller: "Caller"
) -> m.ListPartitionReassignmentsResponse:
    return list_reassignments(controller.quorum.image, message)
