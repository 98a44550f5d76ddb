"""The handlers of each kind of listener, by API key. What is not here is not advertised.

Produce and Fetch are listed apart (`hot_handlers`): they read their requests themselves. What only the active
controller decides is listed in `broker/controller/registry.py`.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from headrace.broker.cluster.forwarding import Forwarding
from headrace.broker.cluster.isolation import Isolation
from headrace.broker.cluster.lost_brokers import LostBrokers
from headrace.broker.cluster.node import Node
from headrace.broker.cluster.producer_ids import ProducerIds
from headrace.broker.controller.active import ActiveController, Caller
from headrace.broker.controller.envelopes import answer_envelope
from headrace.broker.controller.registry import DECISIONS, FORWARDED
from headrace.broker.coordinators.runtime import GroupCoordinator
from headrace.broker.coordinators.transaction_partitions import TransactionPartitions
from headrace.broker.coordinators.transactions import TransactionCoordinator
from headrace.broker.handlers import sasl
from headrace.broker.handlers.cluster import ClusterHandlers
from headrace.broker.handlers.configs import ConfigHandlers
from headrace.broker.handlers.coordinators import CoordinatorHandlers, CreateStateTopic
from headrace.broker.handlers.fetch.consumers import FetchHandler, reads_from_followers
from headrace.broker.handlers.fetch.followers import FollowerFetches
from headrace.broker.handlers.fetch.reader import Reader
from headrace.broker.handlers.groups.members import GroupHandlers
from headrace.broker.handlers.groups.offsets import GroupOffsetHandlers
from headrace.broker.handlers.log_dirs import LogDirHandlers
from headrace.broker.handlers.metadata import AutoCreate, MetadataHandlers
from headrace.broker.handlers.offsets import OffsetHandlers
from headrace.broker.handlers.produce.handler import ProduceHandler
from headrace.broker.handlers.produce.record_checks import RecordChecks
from headrace.broker.handlers.produce.transaction_checks import TransactionChecks
from headrace.broker.handlers.producers import ProducerHandlers
from headrace.broker.handlers.raft import RaftHandlers
from headrace.broker.handlers.security import SecurityHandlers
from headrace.broker.handlers.transactions import TransactionHandlers
from headrace.broker.handlers.versions import VersionHandlers
from headrace.broker.maintenance.scrubber import Scrubber
from headrace.broker.metrics import Metrics
from headrace.broker.net.request import Request
from headrace.broker.net.router import Handler, HotHandler, Spawn, served_apis
from headrace.broker.net.waiters import TimerWheel
from headrace.broker.replicas.checkpoints import Checkpoints
from headrace.broker.replicas.disk_space import DiskSpace
from headrace.broker.replicas.environment import Environment
from headrace.broker.replicas.hosted import Replicas
from headrace.broker.replicas.isr import IsrChanges
from headrace.broker.runtime import Runtime
from headrace.broker.transactions.marker_writer import MarkerWriter
from headrace.broker.transactions.membership import Membership
from headrace.config import BrokerConfig
from headrace.protocol import messages as m
from headrace.protocol.api import ApiKey
from headrace.quorum import RAFT_APIS, Quorum
from headrace.replication.fetch_sessions import SessionCache
from headrace.replication.throttle import Throttle
from headrace.storage.manager import LogManager


@dataclass(frozen=True)
class Parts:
    """What handlers are made of. Each is given the parts that it uses, and never this."""

    runtime: Runtime
    config: Callable[[], BrokerConfig]
    """As it is now: some options change while the broker runs."""
    metrics: Metrics
    spawn: Spawn
    wheel: TimerWheel
    sessions: SessionCache
    environment: Environment
    replicas: Replicas
    isr: IsrChanges
    leader_throttle: Throttle
    logs: LogManager
    checkpoints: Checkpoints
    disk_space: DiskSpace
    scrubber: Scrubber
    groups: GroupCoordinator
    transactions: TransactionCoordinator
    transaction_partitions: TransactionPartitions
    membership: Membership
    marker_writer: MarkerWriter
    node: Node
    quorum: Quorum
    producer_ids: ProducerIds
    lost_brokers: LostBrokers
    isolation: Isolation
    controller: ActiveController | None
    """On a node with that role."""
    forwarding: Forwarding
    auto_create: AutoCreate
    create_state_topic: CreateStateTopic


def unstable_apis(config: BrokerConfig) -> frozenset[int]:
    """APIs whose latest version Kafka does not call stable yet, and that are served in it all the same."""
    # InitProducerId v6 is how a client asks for two-phase commit.
    return frozenset({ApiKey.INIT_PRODUCER_ID} if config["transaction.two.phase.commit.enable"] else ())


def hot_handlers(parts: Parts) -> dict[int, HotHandler]:
    """Produce and Fetch, on a listener for clients and other brokers."""
    produce = ProduceHandler(parts.replicas, parts.node, parts.isolation, parts.wheel, parts.metrics)
    config = parts.config()
    reader = Reader(parts.runtime, parts.replicas, parts.spawn, parts.scrubber.suspect, config["fetch.max.bytes"])
    followers = FollowerFetches(
        reader, parts.runtime, parts.config, parts.node, parts.replicas, parts.isr, parts.leader_throttle, parts.wheel,
        parts.metrics, reads_from_followers(config),
    )  # fmt: skip
    fetch = FetchHandler(
        reader, followers, parts.runtime, parts.config, parts.node, parts.replicas, parts.sessions, parts.wheel,
        parts.metrics,
    )  # fmt: skip
    return {
        ApiKey.PRODUCE: RecordChecks(
            produce,
            TransactionChecks(parts.replicas, parts.membership),
            parts.replicas,
            parts.environment,
            parts.runtime,
            parts.spawn,
        ),
        ApiKey.FETCH: fetch,
    }


def broker_handlers(parts: Parts) -> dict[int, Handler]:
    """All other APIs of a listener for clients and other brokers."""
    node, node_id, replicas, config = parts.node, parts.environment.node_id, parts.replicas, parts.config
    versions = VersionHandlers(node, lambda: apis.values())
    metadata = MetadataHandlers(node_id, node, parts.lost_brokers, parts.isolation, config, parts.auto_create)
    cluster = ClusterHandlers(node, parts.quorum)
    security = SecurityHandlers(node)
    configs = ConfigHandlers(node_id, node, config, parts.forwarding.forward, parts.forwarding.forward_part)
    offsets = OffsetHandlers(replicas, node, parts.checkpoints, parts.runtime)
    producers = ProducerHandlers(node, parts.producer_ids, replicas, parts.transactions)
    log_dirs = LogDirHandlers(parts.logs, replicas, parts.runtime.disk, parts.scrubber, parts.disk_space)
    coordinators = CoordinatorHandlers(
        node, parts.isolation, parts.groups, parts.transactions, parts.create_state_topic
    )
    groups = GroupHandlers(parts.groups)
    group_offsets = GroupOffsetHandlers(parts.groups, node, parts.membership)
    transactions = TransactionHandlers(
        parts.transactions, parts.transaction_partitions, parts.groups, parts.marker_writer, parts.runtime.run_in_thread
    )
    handlers: dict[int, Handler] = {
        **dict.fromkeys(FORWARDED, parts.forwarding.forward),
        ApiKey.API_VERSIONS: versions.api_versions,
        ApiKey.SASL_HANDSHAKE: sasl.sasl_handshake,
        ApiKey.SASL_AUTHENTICATE: sasl.sasl_authenticate,
        ApiKey.METADATA: metadata.metadata,
        ApiKey.DESCRIBE_TOPIC_PARTITIONS: metadata.describe_topic_partitions,
        ApiKey.DESCRIBE_CLUSTER: cluster.describe_cluster,
        ApiKey.DESCRIBE_CLIENT_QUOTAS: cluster.describe_quotas,
        **_access(security),
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
        ApiKey.TXN_OFFSET_COMMIT: group_offsets.txn_offset_commit,
        ApiKey.ADD_PARTITIONS_TO_TXN: transactions.add_partitions,
        ApiKey.ADD_OFFSETS_TO_TXN: transactions.add_offsets,
        ApiKey.END_TXN: transactions.end,
        ApiKey.WRITE_TXN_MARKERS: transactions.write_markers,
        ApiKey.DESCRIBE_TRANSACTIONS: transactions.describe,
        ApiKey.LIST_TRANSACTIONS: transactions.list_transactions,
    }
    apis = served_apis((ApiKey.PRODUCE, ApiKey.FETCH), handlers, unstable=unstable_apis(config()))
    return handlers


def controller_handlers(parts: Parts) -> dict[int, Handler]:
    """All APIs of a controller's listener, which clients have no business with."""
    assert parts.controller is not None
    node = parts.node
    versions = VersionHandlers(node, lambda: apis.values())
    configs = ConfigHandlers(
        parts.environment.node_id, node, parts.config, parts.forwarding.forward, parts.forwarding.forward_part
    )
    handlers: dict[int, Handler] = {
        ApiKey.API_VERSIONS: versions.api_versions,
        ApiKey.SASL_HANDSHAKE: sasl.sasl_handshake,
        ApiKey.SASL_AUTHENTICATE: sasl.sasl_authenticate,
        ApiKey.DESCRIBE_CLUSTER: ClusterHandlers(node, parts.quorum).describe_controllers,
        ApiKey.DESCRIBE_CONFIGS: configs.describe_configs,
        **_access(SecurityHandlers(node)),
        ApiKey.ENVELOPE: _envelope(parts.controller),
        **dict.fromkeys(DECISIONS, _decide(parts.controller)),
        **dict.fromkeys(RAFT_APIS, RaftHandlers(parts.quorum).serve),
    }
    apis = served_apis(handlers)
    return handlers


def _access(security: SecurityHandlers) -> dict[int, Handler]:
    return {
        ApiKey.DESCRIBE_ACLS: security.describe_acls,
        ApiKey.CREATE_ACLS: security.create_acls,
        ApiKey.DELETE_ACLS: security.delete_acls,
    }


def _envelope(controller: ActiveController) -> Handler:
    def envelope(request: Request, message: m.EnvelopeRequest) -> Awaitable[m.EnvelopeResponse]:
        return answer_envelope(controller, message, request.connection)

    return envelope


def _decide(controller: ActiveController) -> Handler:
    def decide(request: Request, message: Any) -> Awaitable[Any]:
        return controller.handle(ApiKey(request.api_key), message, Caller(request.version, request.connection))

    return decide
