"""Every decision that can be asked of the active controller, by API key: over its listener, in an envelope, or directly
by this node's own broker.

Beside what the other files of this kind say: AlterPartition v2-3 (v3: broker epochs of the ISR), AssignReplicasToDirs
v0, AllocateProducerIds v0, ElectLeaders v0-2, AlterPartitionReassignments v0-1, DeleteTopics v1-6 (v6: by id),
AlterConfigs v0-2, IncrementalAlterConfigs v0-1, AlterClientQuotas v0-1.
"""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from headrace.broker.controller import admin as admin, brokers as brokers
from headrace.metadata.controller import Controller
from headrace.metadata.outcome import Outcome
from headrace.protocol.api import ApiKey

if TYPE_CHECKING:
    from headrace.broker.controller.active import ActiveController, Caller

Decide = Callable[["ActiveController", Any, "Caller"], Awaitable[Any]]


def by_core(method: Callable[..., Outcome[Any]], *, versioned: bool = False) -> Decide:
    """What the core decides alone, given the request and, if it differs by that, its version."""

    async def decide(controller: "ActiveController", message: Any, caller: "Caller") -> Any:
        more = (caller.version,) if versioned else ()
        return await controller.decide(lambda image: method(controller.core, image, message, *more))

    return decide


DECISIONS: dict[int, Decide] = {
    ApiKey.BROKER_REGISTRATION: brokers.broker_registration,
    ApiKey.BROKER_HEARTBEAT: brokers.broker_heartbeat,
    ApiKey.CONTROLLER_REGISTRATION: brokers.controller_registration,
    ApiKey.UNREGISTER_BROKER: brokers.unregister_broker,
    ApiKey.ALTER_PARTITION: by_core(Controller.alter_partition, versioned=True),
    ApiKey.ASSIGN_REPLICAS_TO_DIRS: by_core(Controller.assign_replicas),
    ApiKey.ALLOCATE_PRODUCER_IDS: by_core(Controller.allocate_producer_ids),
    ApiKey.ELECT_LEADERS: by_core(Controller.elect_leaders),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: by_core(Controller.alter_reassignments),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: admin.list_partition_reassignments,
    ApiKey.CREATE_TOPICS: admin.create_topics,
    ApiKey.DELETE_TOPICS: admin.delete_topics,
    ApiKey.CREATE_PARTITIONS: admin.create_partitions,
    ApiKey.ALTER_CONFIGS: by_core(Controller.alter_configs),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: by_core(Controller.incremental_alter_configs),
    ApiKey.ALTER_CLIENT_QUOTAS: by_core(Controller.alter_client_quotas),
    ApiKey.UPDATE_FEATURES: admin.update_features,
}

FORWARDED = (
    ApiKey.CREATE_TOPICS,
    ApiKey.DELETE_TOPICS,
    ApiKey.CREATE_PARTITIONS,
    ApiKey.ALTER_CONFIGS,
    ApiKey.INCREMENTAL_ALTER_CONFIGS,
    ApiKey.ELECT_LEADERS,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS,
    ApiKey.LIST_PARTITION_REASSIGNMENTS,
    ApiKey.ALTER_CLIENT_QUOTAS,
    ApiKey.UPDATE_FEATURES,
    ApiKey.UNREGISTER_BROKER,
    ApiKey.DESCRIBE_QUORUM,
    ApiKey.ADD_RAFT_VOTER,
    ApiKey.REMOVE_RAFT_VOTER,
)
"""What a client may ask of any broker and only the active controller can answer."""
