"""The active controller's decisions in one place: an image and a request in, records and a response out.

Nothing is kept here but this node's configuration, its dice, and which brokers said last that they are full, so that
any image, past or speculative, may be asked.
The caller appends the records and answers when they are committed; `headrace.quorum` does both in `write`.
"""

from collections.abc import Callable, Mapping
from typing import Any

from headrace.config import BrokerConfig
from headrace.config.describe import describe_topic
from headrace.config.topic import validate_topic
from headrace.metadata import (
    brokers,
    configs,
    directories,
    elections,
    features,
    heartbeats,
    isr,
    producer_ids,
    quotas,
    reassignment,
    topics,
)
from headrace.metadata.image import BROKER_CONFIG, Image
from headrace.metadata.outcome import Outcome
from headrace.metadata.placement import Dice
from headrace.metadata.policy import ElectionPolicy
from headrace.metadata.records import Record
from headrace.protocol import messages as m

Allowed = Callable[[str], bool]


def _everything(name: str) -> bool:
    return True


class Controller:
    """`config` is this node's static configuration: what the cluster overrides is read from the image."""

    def __init__(self, config: BrokerConfig, cluster_id: str, dice: Dice, new_uuid: Callable[[], bytes]) -> None:
        self.config = config
        self.cluster_id = cluster_id
        self.dice = dice
        self.new_uuid = new_uuid
        self.policy = ElectionPolicy(
            node_id=config.node_id,
            unclean_leader_election=config["unclean.leader.election.enable"],
            min_insync_replicas=config["min.insync.replicas"],
        )

    def config_of(self, image: Image) -> BrokerConfig:
        """As the cluster has changed it while running."""
        cluster = image.config(BROKER_CONFIG, "")
        own = image.config(BROKER_CONFIG, str(self.config.node_id))
        if not cluster and not own:
            return self.config
        return self.config.with_dynamic(cluster, own)

    # --- topics -------------------------------------------------------------------------------------------------------

    def create_topics(
        self, image: Image, request: m.CreateTopicsRequest, describable: Allowed = _everything
    ) -> Outcome[m.CreateTopicsResponse]:
        config = self.config_of(image)
        described: dict[tuple[tuple[str, str], ...], list[Any]] = {}

        def effective(overrides: Mapping[str, str]) -> list[Any]:
            """Topics of one request mostly have the same options: to describe these is most of the work, and done
            once."""
            key = tuple(overrides.items())
            if key not in described:
                described[key] = describe(overrides)
            return described[key]

        def describe(overrides: Mapping[str, str]) -> list[Any]:
            return [
                m.CreateTopicsResponse.CreatableTopicConfigs(
                    name=entry.name,
                    # As it was given, not as it was understood: " 100 " stays what it is.
                    value=entry.value if entry.sensitive else overrides.get(entry.name, entry.value),
                    read_only=entry.read_only,
                    config_source=entry.source,
                    is_sensitive=entry.sensitive,
                )
                for entry in sorted(describe_topic(overrides, config), key=lambda entry: entry.name)
            ]

        rules = topics.TopicRules(
            default_partitions=config["num.partitions"],
            default_replication_factor=config["default.replication.factor"],
            dice=self.dice,
            new_topic_id=self.new_uuid,
            check_configs=lambda overrides: validate_topic(overrides, config),
            effective_configs=effective,
            disk_space=self.policy.disk_space,
            placer=config["replica.placement"],
        )
        return topics.create_topics(image, request, rules, describable)

    def delete_topics(
        self,
        image: Image,
        request: m.DeleteTopicsRequest,
        version: int,
        describable: Allowed = _everything,
        deletable: Allowed = _everything,
    ) -> Outcome[m.DeleteTopicsResponse]:
        return topics.delete_topics(
            image,
            request,
            enabled=self.config["delete.topic.enable"],
            version=version,
            describable=describable,
            deletable=deletable,
        )

    def create_partitions(
        self, image: Image, request: m.CreatePartitionsRequest, alterable: Allowed = _everything
    ) -> Outcome[m.CreatePartitionsResponse]:
        placer = self.config_of(image)["replica.placement"]
        return topics.create_partitions(image, request, self.dice, self.policy.disk_space, alterable, placer)

    def elect_leaders(self, image: Image, request: m.ElectLeadersRequest) -> Outcome[m.ElectLeadersResponse]:
        return elections.elect_leaders(image, request, self.policy)

    def balance_leaders(self, image: Image, limit: int) -> list[Record]:
        return elections.balance_leaders(image, self.policy, limit)

    def elect_leaderless(self, image: Image) -> list[Record]:
        return brokers.elect_leaderless(image, self.policy)

    def alter_reassignments(
        self, image: Image, request: m.AlterPartitionReassignmentsRequest
    ) -> Outcome[m.AlterPartitionReassignmentsResponse]:
        return reassignment.alter_reassignments(image, request, self.policy)

    def alter_partition(
        self, image: Image, request: m.AlterPartitionRequest, version: int
    ) -> Outcome[m.AlterPartitionResponse]:
        return isr.alter_partition(image, request, version, self.policy)

    def assign_replicas(
        self, image: Image, request: m.AssignReplicasToDirsRequest
    ) -> Outcome[m.AssignReplicasToDirsResponse]:
        return directories.assign_replicas(image, request, self.policy)

    # --- configuration, quotas, features, producer ids ----------------------------------------------------------------

    def incremental_alter_configs(
        self, image: Image, request: m.IncrementalAlterConfigsRequest, loggers: configs.Loggers | None = None
    ) -> Outcome[m.IncrementalAlterConfigsResponse]:
        return configs.incremental_alter_configs(image, request, self.config_of(image), loggers)

    def alter_configs(self, image: Image, request: m.AlterConfigsRequest) -> Outcome[m.AlterConfigsResponse]:
        return configs.alter_configs(image, request, self.config_of(image))

    def alter_client_quotas(
        self, image: Image, request: m.AlterClientQuotasRequest, resolvable: Allowed = quotas.is_ip_literal
    ) -> Outcome[m.AlterClientQuotasResponse]:
        return quotas.alter_client_quotas(image, request, resolvable)

    def update_features(
        self, image: Image, request: m.UpdateFeaturesRequest, version: int, kraft_version: int = 1
    ) -> Outcome[m.UpdateFeaturesResponse]:
        return features.update_features(
            image, request, version, self.config["min.insync.replicas"], kraft_version, self.config.node_id
        )

    def allocate_producer_ids(
        self, image: Image, request: m.AllocateProducerIdsRequest
    ) -> Outcome[m.AllocateProducerIdsResponse]:
        return producer_ids.allocate_producer_ids(image, request)

    # --- brokers ------------------------------------------------------------------------------------------------------

    def register_broker(
        self, image: Image, request: m.BrokerRegistrationRequest, next_offset: int, *, session_alive: bool
    ) -> Outcome[int]:
        """The response is the broker epoch."""
        return brokers.register_broker(
            image,
            request,
            cluster_id=self.cluster_id,
            next_offset=next_offset,
            policy=self.policy,
            session_alive=session_alive,
        )

    def register_controller(self, request: m.ControllerRegistrationRequest) -> list[Record]:
        return brokers.register_controller(request)

    def unregister_broker(self, image: Image, broker_id: int) -> list[Record]:
        return brokers.unregister_broker(image, broker_id, self.policy)

    def heartbeat(
        self, image: Image, request: m.BrokerHeartbeatRequest, others_know: Callable[[], bool]
    ) -> Outcome[heartbeats.Reply]:
        return heartbeats.heartbeat(image, request, self.policy, others_know)

    def fence_broker(self, image: Image, broker_id: int) -> list[Record]:
        return brokers.fence_broker(image, broker_id, self.policy)

    def unfence_broker(self, image: Image, broker_id: int) -> list[Record]:
        return brokers.unfence_broker(image, broker_id, self.policy)

    def controlled_shutdown(self, image: Image, broker_id: int) -> list[Record]:
        return brokers.controlled_shutdown(image, broker_id, self.policy)
