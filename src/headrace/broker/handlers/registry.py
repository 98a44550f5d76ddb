"""Every API that a node serves, by key, for each kind of listener. What is not here is not advertised."""

from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any

from headrace.broker.connection import Request
from headrace.broker.controller import Caller
from headrace.broker.forwarding import envelope, forward
from headrace.broker.handlers import (
    cluster,
    configs,
    coordinators,
    group_offsets,
    groups,
    log_dirs,
    metadata,
    offsets,
    producers,
    sasl,
    security,
    versions,
)
from headrace.broker.handlers.controller_registry import DECISIONS, FORWARDED
from headrace.broker.handlers.raft import RAFT_HANDLERS
from headrace.broker.router import Handler
from headrace.protocol.api import ApiKey

if TYPE_CHECKING:
    from headrace.broker.server import Broker

ACCESS: dict[int, Handler] = {
    ApiKey.DESCRIBE_ACLS: security.describe_acls,
    ApiKey.CREATE_ACLS: security.create_acls,
    ApiKey.DELETE_ACLS: security.delete_acls,
}

HANDLERS: dict[int, Handler] = {
    **dict.fromkeys(FORWARDED, forward),
    ApiKey.API_VERSIONS: versions.api_versions,
    ApiKey.SASL_HANDSHAKE: sasl.sasl_handshake,
    ApiKey.SASL_AUTHENTICATE: sasl.sasl_authenticate,
    ApiKey.METADATA: metadata.metadata,
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: metadata.describe_topic_partitions,
    ApiKey.DESCRIBE_CLUSTER: cluster.describe_cluster,
    ApiKey.DESCRIBE_CLIENT_QUOTAS: cluster.describe_quotas,
    **ACCESS,
    ApiKey.CREATE_DELEGATION_TOKEN: security.create_token,
    ApiKey.RENEW_DELEGATION_TOKEN: security.renew_token,
    ApiKey.EXPIRE_DELEGATION_TOKEN: security.expire_token,
    ApiKey.DESCRIBE_DELEGATION_TOKEN: security.describe_tokens,
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: security.describe_user_scram_credentials,
    ApiKey.DESCRIBE_CONFIGS: configs.describe_configs,
    ApiKey.ALTER_CONFIGS: configs.alter_configs,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: configs.incremental_alter_configs,
    ApiKey.LIST_CONFIG_RESOURCES: configs.list_config_resources,
    ApiKey.LIST_OFFSETS: offsets.list_offsets,
    ApiKey.OFFSET_FOR_LEADER_EPOCH: offsets.offset_for_leader_epoch,
    ApiKey.DELETE_RECORDS: offsets.delete_records,
    ApiKey.INIT_PRODUCER_ID: producers.init_producer_id,
    ApiKey.DESCRIBE_PRODUCERS: producers.describe_producers,
    ApiKey.DESCRIBE_LOG_DIRS: log_dirs.describe_log_dirs,
    ApiKey.FIND_COORDINATOR: coordinators.find_coordinator,
    ApiKey.JOIN_GROUP: groups.join_group,
    ApiKey.SYNC_GROUP: groups.sync_group,
    ApiKey.HEARTBEAT: groups.heartbeat,
    ApiKey.LEAVE_GROUP: groups.leave_group,
    ApiKey.CONSUMER_GROUP_HEARTBEAT: groups.consumer_group_heartbeat,
    ApiKey.CONSUMER_GROUP_DESCRIBE: groups.consumer_group_describe,
    ApiKey.DESCRIBE_GROUPS: groups.describe_groups,
    ApiKey.LIST_GROUPS: groups.list_groups,
    ApiKey.DELETE_GROUPS: groups.delete_groups,
    ApiKey.OFFSET_COMMIT: group_offsets.offset_commit,
    ApiKey.OFFSET_FETCH: group_offsets.offset_fetch,
    ApiKey.OFFSET_DELETE: group_offsets.offset_delete,
}
"""On a listener for clients and other brokers."""


def _decide(broker: "Broker", request: Request, message: Any) -> Awaitable[Any]:
    assert broker.controller is not None
    return broker.controller.handle(ApiKey(request.api_key), message, Caller(request.version, request.connection))


CONTROLLER_HANDLERS: dict[int, Handler] = {
    ApiKey.API_VERSIONS: versions.api_versions,
    ApiKey.SASL_HANDSHAKE: sasl.sasl_handshake,
    ApiKey.SASL_AUTHENTICATE: sasl.sasl_authenticate,
    ApiKey.DESCRIBE_CLUSTER: cluster.describe_controllers,
    ApiKey.DESCRIBE_CONFIGS: configs.describe_configs,
    **ACCESS,
    ApiKey.ENVELOPE: envelope,
    **dict.fromkeys(DECISIONS, _decide),
    **RAFT_HANDLERS,
}
"""On a controller's listener, which clients have no business with."""
