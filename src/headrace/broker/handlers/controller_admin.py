"""Administration, decided by the active controller; brokers forward it here.

CreateTopics v2-7 (v4: defaults for partitions and replicas, v5: configs in the answer, v7: topic ids). DeleteTopics v1-6
(v6: by id). CreatePartitions v0-3. AlterConfigs v0-2, IncrementalAlterConfigs v0-1. AlterClientQuotas v0-1.
UpdateFeatures v0-2.
"""

from typing import TYPE_CHECKING

from headrace.protocol import messages as m

if TYPE_CHECKING:
    from headrace.broker.controller import ActiveController, Caller


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


async def delete_topics(
    controller: "ActiveController", message: m.DeleteTopicsRequest, caller: "Caller"
) -> m.DeleteTopicsResponse:
    response: m.DeleteTopicsResponse = await controller.decide(
        lambda image: controller.core.delete_topics(image, message, caller.version)
    )
    return response


async def create_partitions(
    controller: "ActiveController", message: m.CreatePartitionsRequest, caller: "Caller"
) -> m.CreatePartitionsResponse:
    response: m.CreatePartitionsResponse = await controller.decide(
        lambda image: controller.core.create_partitions(image, message)
    )
    await controller.settled()
    return response


async def alter_configs(
    controller: "ActiveController", message: m.AlterConfigsRequest, caller: "Caller"
) -> m.AlterConfigsResponse:
    response: m.AlterConfigsResponse = await controller.decide(
        lambda image: controller.core.alter_configs(image, message)
    )
    return response


async def incremental_alter_configs(
    controller: "ActiveController", message: m.IncrementalAlterConfigsRequest, caller: "Caller"
) -> m.IncrementalAlterConfigsResponse:
    response: m.IncrementalAlterConfigsResponse = await controller.decide(
        lambda image: controller.core.incremental_alter_configs(image, message)
    )
    return response


async def alter_client_quotas(
    controller: "ActiveController", message: m.AlterClientQuotasRequest, caller: "Caller"
) -> m.AlterClientQuotasResponse:
    response: m.AlterClientQuotasResponse = await controller.decide(
        lambda image: controller.core.alter_client_quotas(image, message)
    )
    return response


async def update_features(
    controller: "ActiveController", message: m.UpdateFeaturesRequest, caller: "Caller"
) -> m.UpdateFeaturesResponse:
    response: m.UpdateFeaturesResponse = await controller.decide(
        lambda image: controller.core.update_features(image, message, caller.version)
    )
    return response
