"""Every decision that can be asked of the active controller, by API key: over its listener, in an envelope, or directly by
this node's own broker."""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from headrace.broker.handlers import controller_admin as admin
from headrace.broker.handlers import controller_brokers as brokers
from headrace.broker.handlers import controller_partitions as partitions
from headrace.protocol.api import ApiKey

if TYPE_CHECKING:
    from headrace.broker.controller import ActiveController, Caller

Decide = Callable[["ActiveController", Any, "Caller"], Awaitable[Any]]

DECISIONS: dict[int, Decide] = {
    ApiKey.BROKER_REGISTRATION: brokers.broker_registration,
    ApiKey.BROKER_HEARTBEAT: brokers.broker_heartbeat,
    ApiKey.CONTROLLER_REGISTRATION: brokers.controller_registration,
    ApiKey.UNREGISTER_BROKER: brokers.unregister_broker,
    ApiKey.ALTER_PARTITION: partitions.alter_partition,
    ApiKey.ASSIGN_REPLICAS_TO_DIRS: partitions.assign_replicas_to_dirs,
    ApiKey.ALLOCATE_PRODUCER_IDS: partitions.allocate_producer_ids,
    ApiKey.ELECT_LEADERS: partitions.elect_leaders,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: partitions.alter_partition_reassignments,
    ApiKey.LIST_PARTITION_REASSIGNMENTS: partitions.list_partition_reassignments,
    ApiKey.CREATE_TOPICS: admin.create_topics,
    ApiKey.DELETE_TOPICS: admin.delete_topics,
    ApiKey.CREATE_PARTITIONS: admin.create_partitions,
    ApiKey.ALTER_CONFIGS: admin.alter_configs,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: admin.incremental_alter_configs,
    ApiKey.ALTER_CLIENT_QUOTAS: admin.alter_client_quotas,
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
