"""Every API that a broker's listener serves, by key. What is not here is not advertised."""

from headrace.broker.handlers import (
    cluster,
    configs,
    log_dirs,
    metadata,
    offsets,
    producers,
    topics,
    versions,
)
from headrace.broker.router import Handler
from headrace.protocol.api import ApiKey

HANDLERS: dict[int, Handler] = {
    ApiKey.API_VERSIONS: versions.api_versions,
    ApiKey.METADATA: metadata.metadata,
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: metadata.describe_topic_partitions,
    ApiKey.DESCRIBE_CLUSTER: cluster.describe_cluster,
    ApiKey.DESCRIBE_QUORUM: cluster.describe_quorum,
    ApiKey.LIST_PARTITION_REASSIGNMENTS: cluster.list_partition_reassignments,
    ApiKey.DESCRIBE_CLIENT_QUOTAS: cluster.describe_quotas,
    ApiKey.DESCRIBE_ACLS: cluster.describe_acls,
    ApiKey.CREATE_TOPICS: topics.create_topics,
    ApiKey.DELETE_TOPICS: topics.delete_topics,
    ApiKey.CREATE_PARTITIONS: topics.create_partitions,
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
}
