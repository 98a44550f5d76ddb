"""The answer that refuses a whole request, for every API that a controller serves: where the error stands differs by
API."""

from collections.abc import Callable, Iterable
from typing import Any

from headrace.errors import Err, KafkaError
from headrace.protocol import messages as m
from headrace.protocol.api import API, ApiKey

Refuse = Callable[[Any, KafkaError], Any]


def refusal(key: ApiKey, message: Any, error: KafkaError) -> Any:
    """The response to `message` that says `error` of all it asks for."""
    special = _SPECIAL.get(key)
    if special is not None:
        return special(message, error)
    response = API[key].response.struct()
    response.error_code = error.error
    if hasattr(response, "error_message"):
        response.error_message = error.message
    return response


def is_from_inactive(response: Any) -> bool:
    """Whether an answer says NOT_CONTROLLER, wherever its API has it."""
    if getattr(response, "error_code", 0) == Err.NOT_CONTROLLER:
        return True
    for name in ("topics", "responses", "results", "entries"):
        for item in getattr(response, name, None) or ():
            if getattr(item, "error_code", 0) == Err.NOT_CONTROLLER:
                return True
    return False


def _create_topics(message: m.CreateTopicsRequest, error: KafkaError) -> m.CreateTopicsResponse:
    R = m.CreateTopicsResponse
    return R(
        topics=[
            R.CreatableTopicResult(name=topic.name, error_code=error.error, error_message=error.message)
            for topic in message.topics
        ]
    )


def _delete_topics(message: m.DeleteTopicsRequest, error: KafkaError) -> m.DeleteTopicsResponse:
    R = m.DeleteTopicsResponse
    named = [(topic.name, topic.topic_id) for topic in message.topics]
    named += [(name, bytes(16)) for name in message.topic_names]
    return R(
        responses=[
            R.DeletableTopicResult(name=name, topic_id=topic_id, error_code=error.error, error_message=error.message)
            for name, topic_id in named
        ]
    )


def _create_partitions(message: m.CreatePartitionsRequest, error: KafkaError) -> m.CreatePartitionsResponse:
    R = m.CreatePartitionsResponse
    return R(
        results=[
            R.CreatePartitionsTopicResult(name=topic.name, error_code=error.error, error_message=error.message)
            for topic in message.topics
        ]
    )


def _elect_leaders(message: m.ElectLeadersRequest, error: KafkaError) -> m.ElectLeadersResponse:
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


def _configs(answer: Any, wrap: Callable[[list[Any]], Any]) -> Refuse:
    def refuse(message: Any, error: KafkaError) -> Any:
        return wrap(
            [
                answer(
                    error_code=error.error,
                    error_message=error.message,
                    resource_type=resource.resource_type,
                    resource_name=resource.resource_name,
                )
                for resource in message.resources
            ]
        )

    return refuse


def _reassignments(
    message: m.AlterPartitionReassignmentsRequest, error: KafkaError
) -> m.AlterPartitionReassignmentsResponse:
    R = m.AlterPartitionReassignmentsResponse

    def partitions(rows: Iterable[Any]) -> list[Any]:
        return [
            R.ReassignablePartitionResponse(
                partition_index=row.partition_index, error_code=error.error, error_message=error.message
            )
            for row in rows
        ]

    return R(
        error_code=error.error,
        error_message=error.message,
        responses=[
            R.ReassignableTopicResponse(name=topic.name, partitions=partitions(topic.partitions))
            for topic in message.topics
        ],
    )


def _quotas(message: m.AlterClientQuotasRequest, error: KafkaError) -> m.AlterClientQuotasResponse:
    R = m.AlterClientQuotasResponse
    return R(
        entries=[
            R.EntryData(
                error_code=error.error,
                error_message=error.message,
                entity=[R.EntityData(entity_type=e.entity_type, entity_name=e.entity_name) for e in entry.entity],
            )
            for entry in message.entries
        ]
    )


_SPECIAL: dict[int, Refuse] = {
    ApiKey.CREATE_TOPICS: _create_topics,
    ApiKey.DELETE_TOPICS: _delete_topics,
    ApiKey.CREATE_PARTITIONS: _create_partitions,
    ApiKey.ELECT_LEADERS: _elect_leaders,
    ApiKey.ALTER_CONFIGS: _configs(
        m.AlterConfigsResponse.AlterConfigsResourceResponse, lambda rows: m.AlterConfigsResponse(responses=rows)
    ),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: _configs(
        m.IncrementalAlterConfigsResponse.AlterConfigsResourceResponse,
        lambda rows: m.IncrementalAlterConfigsResponse(responses=rows),
    ),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: _reassignments,
    ApiKey.ALTER_CLIENT_QUOTAS: _quotas,
}
