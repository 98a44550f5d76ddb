"""Generated from the tables by `python -m headrace.protocol.stubs`; do not edit."""

import msgspec

Records = bytes | bytearray | memoryview

class ProduceRequest(msgspec.Struct):
    class TopicProduceData(msgspec.Struct):
        name: str = ""
        topic_id: bytes = ...
        partition_data: list[ProduceRequest.PartitionProduceData] = ...
        unknown_tags: dict[int, bytes] | None = None

    class PartitionProduceData(msgspec.Struct):
        index: int = 0
        records: Records | None = None
        unknown_tags: dict[int, bytes] | None = None

    transactional_id: str | None = None
    acks: int = 0
    timeout_ms: int = 0
    topic_data: list[ProduceRequest.TopicProduceData] = ...
    unknown_tags: dict[int, bytes] | None = None

class ProduceResponse(msgspec.Struct):
    class TopicProduceResponse(msgspec.Struct):
        name: str = ""
        topic_id: bytes = ...
        partition_responses: list[ProduceResponse.PartitionProduceResponse] = ...
        unknown_tags: dict[int, bytes] | None = None

    class PartitionProduceResponse(msgspec.Struct):
        index: int = 0
        error_code: int = 0
        base_offset: int = 0
        log_append_time_ms: int = -1
        log_start_offset: int = -1
        record_errors: list[ProduceResponse.BatchIndexAndErrorMessage] = ...
        error_message: str | None = None
        current_leader: ProduceResponse.LeaderIdAndEpoch = ...
        unknown_tags: dict[int, bytes] | None = None

    class BatchIndexAndErrorMessage(msgspec.Struct):
        batch_index: int = 0
        batch_index_error_message: str | None = None
        unknown_tags: dict[int, bytes] | None = None

    class LeaderIdAndEpoch(msgspec.Struct):
        leader_id: int = -1
        leader_epoch: int = -1
        unknown_tags: dict[int, bytes] | None = None

    class NodeEndpoint(msgspec.Struct):
        node_id: int = 0
        host: str = ""
        port: int = 0
        rack: str | None = None
        unknown_tags: dict[int, bytes] | None = None

    responses: list[ProduceResponse.TopicProduceResponse] = ...
    throttle_time_ms: int = 0
    node_endpoints: list[ProduceResponse.NodeEndpoint] = ...
    unknown_tags: dict[int, bytes] | None = None

class FetchRequest(msgspec.Struct):
    class ReplicaState(msgspec.Struct):
        replica_id: int = -1
        replica_epoch: int = -1
        unknown_tags: dict[int, bytes] | None = None

    class FetchTopic(msgspec.Struct):
        topic: str = ""
        topic_id: bytes = ...
        partitions: list[FetchRequest.FetchPartition] = ...
        unknown_tags: dict[int, bytes] | None = None

    class FetchPartition(msgspec.Struct):
        partition: int = 0
        current_leader_epoch: int = -1
        fetch_offset: int = 0
        last_fetched_epoch: int = -1
        log_start_offset: int = -1
        partition_max_bytes: int = 0
        replica_directory_id: bytes = ...
        high_watermark: int = 9223372036854775807
        unknown_tags: dict[int, bytes] | None = None

    class ForgottenTopic(msgspec.Struct):
        topic: str = ""
        topic_id: bytes = ...
        partitions: list[int] = ...
        unknown_tags: dict[int, bytes] | None = None

    cluster_id: str | None = None
    replica_id: int = -1
    replica_state: FetchRequest.ReplicaState = ...
    max_wait_ms: int = 0
    min_bytes: int = 0
    max_bytes: int = 2147483647
    isolation_level: int = 0
    session_id: int = 0
    session_epoch: int = -1
    topics: list[FetchRequest.FetchTopic] = ...
    forgotten_topics_data: list[FetchRequest.ForgottenTopic] = ...
    rack_id: str = ""
    unknown_tags: dict[int, bytes] | None = None

class FetchResponse(msgspec.Struct):
    class FetchableTopicResponse(msgspec.Struct):
        topic: str = ""
        topic_id: bytes = ...
        partitions: list[FetchResponse.PartitionData] = ...
        unknown_tags: dict[int, bytes] | None = None

    class PartitionData(msgspec.Struct):
        partition_index: int = 0
        error_code: int = 0
        high_watermark: int = 0
        last_stable_offset: int = -1
        log_start_offset: int = -1
        diverging_epoch: FetchResponse.EpochEndOffset = ...
        current_leader: FetchResponse.LeaderIdAndEpoch = ...
        snapshot_id: FetchResponse.SnapshotId = ...
        aborted_transactions: list[FetchResponse.AbortedTransaction] | None = ...
        preferred_read_replica: int = -1
        records: Records | None = None
        unknown_tags: dict[int, bytes] | None = None

    class EpochEndOffset(msgspec.Struct):
        epoch: int = -1
        end_offset: int = -1
        unknown_tags: dict[int, bytes] | None = None

    class LeaderIdAndEpoch(msgspec.Struct):
        leader_id: int = -1
        leader_epoch: int = -1
        unknown_tags: dict[int, bytes] | None = None

    class SnapshotId(msgspec.Struct):
        end_offset: int = -1
        epoch: int = -1
        unknown_tags: dict[int, bytes] | None = None

    class AbortedTransaction(msgspec.Struct):
        producer_id: int = 0
        first_offset: int = 0
        unknown_tags: dict[int, bytes] | None = None

    class NodeEndpoint(msgspec.Struct):
        node_id: int = 0
        host: str = ""
        port: int = 0
        rack: str | None = None
        unknown_tags: dict[int, bytes] | None = None

    throttle_time_ms: int = 0
    error_code: int = 0
    session_id: int = 0
    responses: list[FetchResponse.FetchableTopicResponse] = ...
    node_endpoints: list[FetchResponse.NodeEndpoint] = ...
    unknown_tags: dict[int, bytes] | None = None

class FetchSnapshotRequest(msgspec.Struct):
    class TopicSnapshot(msgspec.Struct):
        name: str = ""
        partitions: list[FetchSnapshotRequest.PartitionSnapshot] = ...
        unknown_tags: dict[int, bytes] | None = None

    class PartitionSnapshot(msgspec.Struct):
        partition: int = 0
        current_leader_epoch: int = 0
        snapshot_id: FetchSnapshotRequest.SnapshotId = ...
        position: int = 0
        replica_directory_id: bytes = ...
        unknown_tags: dict[int, bytes] | None = None

    class SnapshotId(msgspec.Struct):
        end_offset: int = 0
        epoch: int = 0
        unknown_tags: dict[int, bytes] | None = None

    cluster_id: str | None = None
    replica_id: int = -1
    max_bytes: int = 2147483647
    topics: list[FetchSnapshotRequest.TopicSnapshot] = ...
    unknown_tags: dict[int, bytes] | None = None

class FetchSnapshotResponse(msgspec.Struct):
    class TopicSnapshot(msgspec.Struct):
        name: str = ""
        partitions: list[FetchSnapshotResponse.PartitionSnapshot] = ...
        unknown_tags: dict[int, bytes] | None = None

    class PartitionSnapshot(msgspec.Struct):
        index: int = 0
        error_code: int = 0
        snapshot_id: FetchSnapshotResponse.SnapshotId = ...
        current_leader: FetchSnapshotResponse.LeaderIdAndEpoch = ...
        size: int = 0
        position: int = 0
        unaligned_records: Records | None = None
        unknown_tags: dict[int, bytes] | None = None

    class SnapshotId(msgspec.Struct):
        end_offset: int = 0
        epoch: int = 0
        unknown_tags: dict[int, bytes] | None = None

    class LeaderIdAndEpoch(msgspec.Struct):
        leader_id: int = 0
        leader_epoch: int = 0
        unknown_tags: dict[int, bytes] | None = None

    class NodeEndpoint(msgspec.Struct):
        node_id: int = 0
        host: str = ""
        port: int = 0
        unknown_tags: dict[int, bytes] | None = None

    throttle_time_ms: int = 0
    error_code: int = 0
    topics: list[FetchSnapshotResponse.TopicSnapshot] = ...
    node_endpoints: list[FetchSnapshotResponse.NodeEndpoint] = ...
    unknown_tags: dict[int, bytes] | None = None

class ListOffsetsRequest(msgspec.Struct):
    class ListOffsetsTopic(msgspec.Struct):
        name: str = ""
        partitions: list[ListOffsetsRequest.ListOffsetsPartition] = ...
        unknown_tags: dict[int, bytes] | None = None

    class ListOffsetsPartition(msgspec.Struct):
        partition_index: int = 0
        current_leader_epoch: int = -1
        timestamp: int = 0
        unknown_tags: dict[int, bytes] | None = None

    replica_id: int = 0
    isolation_level: int = 0
    topics: list[ListOffsetsRequest.ListOffsetsTopic] = ...
    timeout_ms: int = 0
    unknown_tags: dict[int, bytes] | None = None

class ListOffsetsResponse(msgspec.Struct):
    class ListOffsetsTopicResponse(msgspec.Struct):
        name: str = ""
        partitions: list[ListOffsetsResponse.ListOffsetsPartitionResponse] = ...
        unknown_tags: dict[int, bytes] | None = None

    class ListOffsetsPartitionResponse(msgspec.Struct):
        partition_index: int = 0
        error_code: int = 0
        timestamp: int = -1
        offset: int = -1
        leader_epoch: int = -1
        unknown_tags: dict[int, bytes] | None = None

    throttle_time_ms: int = 0
    topics: list[ListOffsetsResponse.ListOffsetsTopicResponse] = ...
    unknown_tags: dict[int, bytes] | None = None

class DeleteRecordsRequest(msgspec.Struct):
    class DeleteRecordsTopic(msgspec.Struct):
        name: str = ""
        partitions: list[DeleteRecordsRequest.DeleteRecordsPartition] = ...
        unknown_tags: dict[int, bytes] | None = None

    class DeleteRecordsPartition(msgspec.Struct):
        partition_index: int = 0
        offset: int = 0
        unknown_tags: dict[int, bytes] | None = None

    topics: list[DeleteRecordsRequest.DeleteRecordsTopic] = ...
    timeout_ms: int = 0
    unknown_tags: dict[int, bytes] | None = None

class DeleteRecordsResponse(msgspec.Struct):
    class DeleteRecordsTopicResult(msgspec.Struct):
        name: str = ""
        partitions: list[DeleteRecordsResponse.DeleteRecordsPartitionResult] = ...
        unknown_tags: dict[int, bytes] | None = None

    class DeleteRecordsPartitionResult(msgspec.Struct):
        partition_index: int = 0
        low_watermark: int = 0
        error_code: int = 0
        unknown_tags: dict[int, bytes] | None = None

    throttle_time_ms: int = 0
    topics: list[DeleteRecordsResponse.DeleteRecordsTopicResult] = ...
    unknown_tags: dict[int, bytes] | None = None

class OffsetForLeaderEpochRequest(msgspec.Struct):
    class OffsetForLeaderTopic(msgspec.Struct):
        topic: str = ""
        partitions: list[OffsetForLeaderEpochRequest.OffsetForLeaderPartition] = ...
        unknown_tags: dict[int, bytes] | None = None

    class OffsetForLeaderPartition(msgspec.Struct):
        partition: int = 0
        current_leader_epoch: int = -1
        leader_epoch: int = 0
        unknown_tags: dict[int, bytes] | None = None

    replica_id: int = -2
    topics: list[OffsetForLeaderEpochRequest.OffsetForLeaderTopic] = ...
    unknown_tags: dict[int, bytes] | None = None

class OffsetForLeaderEpochResponse(msgspec.Struct):
    class OffsetForLeaderTopicResult(msgspec.Struct):
        topic: str = ""
        partitions: list[OffsetForLeaderEpochResponse.EpochEndOffset] = ...
        unknown_tags: dict[int, bytes] | None = None

    class EpochEndOffset(msgspec.Struct):
        error_code: int = 0
        partition: int = 0
        leader_epoch: int = -1
        end_offset: int = -1
        unknown_tags: dict[int, bytes] | None = None

    throttle_time_ms: int = 0
    topics: list[OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult] = ...
    unknown_tags: dict[int, bytes] | None = None

class MetadataRequest(msgspec.Struct):
    class MetadataRequestTopic(msgspec.Struct):
        topic_id: bytes = ...
        name: str | None = ""
        unknown_tags: dict[int, bytes] | None = None

    topics: list[MetadataRequest.MetadataRequestTopic] | None = ...
    allow_auto_topic_creation: bool = True
    include_cluster_authorized_operations: bool = False
    include_topic_authorized_operations: bool = False
    unknown_tags: dict[int, bytes] | None = None

class MetadataResponse(msgspec.Struct):
    class MetadataResponseBroker(msgspec.Struct):
        node_id: int = 0
        host: str = ""
        port: int = 0
        rack: str | None = None
        unknown_tags: dict[int, bytes] | None = None

    class MetadataResponseTopic(msgspec.Struct):
        error_code: int = 0
        name: str | None = ""
        topic_id: bytes = ...
        is_internal: bool = False
        partitions: list[MetadataResponse.MetadataResponsePartition] = ...
        topic_authorized_operations: int = -2147483648
        unknown_tags: dict[int, bytes] | None = None

    class MetadataResponsePartition(msgspec.Struct):
        error_code: int = 0
        partition_index: int = 0
        leader_id: int = 0
        leader_epoch: int = -1
        replica_nodes: list[int] = ...
        isr_nodes: list[int] = ...
        offline_replicas: list[int] = ...
        unknown_tags: dict[int, bytes] | None = None

    throttle_time_ms: int = 0
    brokers: list[MetadataResponse.MetadataResponseBroker] = ...
    cluster_id: str | None = None
    controller_id: int = -1
    topics: list[MetadataResponse.MetadataResponseTopic] = ...
    cluster_authorized_operations: int = -2147483648
    error_code: int = 0
    unknown_tags: dict[int, bytes] | None = None

class ApiVersionsRequest(msgspec.Struct):
    client_software_name: str = ""
    client_software_version: str = ""
    unknown_tags: dict[int, bytes] | None = None

class ApiVersionsResponse(msgspec.Struct):
    class ApiVersion(msgspec.Struct):
        api_key: int = 0
        min_version: int = 0
        max_version: int = 0
        unknown_tags: dict[int, bytes] | None = None

    class SupportedFeatureKey(msgspec.Struct):
        name: str = ""
        min_version: int = 0
        max_version: int = 0
        unknown_tags: dict[int, bytes] | None = None

    class FinalizedFeatureKey(msgspec.Struct):
        name: str = ""
        max_version_level: int = 0
        min_version_level: int = 0
        unknown_tags: dict[int, bytes] | None = None

    error_code: int = 0
    api_keys: list[ApiVersionsResponse.ApiVersion] = ...
    throttle_time_ms: int = 0
    supported_features: list[ApiVersionsResponse.SupportedFeatureKey] = ...
    finalized_features_epoch: int = -1
    finalized_features: list[ApiVersionsResponse.FinalizedFeatureKey] = ...
    zk_migration_ready: bool = False
    unknown_tags: dict[int, bytes] | None = None

class DescribeClusterRequest(msgspec.Struct):
    include_cluster_authorized_operations: bool = False
    endpoint_type: int = 1
    include_fenced_brokers: bool = False
    unknown_tags: dict[int, bytes] | None = None

class DescribeClusterResponse(msgspec.Struct):
    class DescribeClusterBroker(msgspec.Struct):
        broker_id: int = 0
        host: str = ""
        port: int = 0
        rack: str | None = None
        is_fenced: bool = False
        unknown_tags: dict[int, bytes] | None = None

    throttle_time_ms: int = 0
    error_code: int = 0
    error_message: str | None = None
    endpoint_type: int = 1
    cluster_id: str = ""
    controller_id: int = -1
    brokers: list[DescribeClusterResponse.DescribeClusterBroker] = ...
    cluster_authorized_operations: int = -2147483648
    unknown_tags: dict[int, bytes] | None = None

class DescribeTopicPartitionsRequest(msgspec.Struct):
    class TopicRequest(msgspec.Struct):
        name: str = ""
        unknown_tags: dict[int, bytes] | None = None

    class Cursor(msgspec.Struct):
        topic_name: str = ""
        partition_index: int = 0
        unknown_tags: dict[int, bytes] | None = None

    topics: list[DescribeTopicPartitionsRequest.TopicRequest] = ...
    response_partition_limit: int = 2000
    cursor: DescribeTopicPartitionsRequest.Cursor | None = None
    unknown_tags: dict[int, bytes] | None = None

class DescribeTopicPartitionsResponse(msgspec.Struct):
    class DescribeTopicPartitionsResponseTopic(msgspec.Struct):
        error_code: int = 0
        name: str | None = ""
        topic_id: bytes = ...
        is_internal: bool = False
        partitions: list[DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponsePartition] = ...
        topic_authorized_operations: int = -2147483648
        unknown_tags: dict[int, bytes] | None = None

    class DescribeTopicPartitionsResponsePartition(msgspec.Struct):
        error_code: int = 0
        partition_index: int = 0
        leader_id: int = 0
        leader_epoch: int = -1
        replica_nodes: list[int] = ...
        isr_nodes: list[int] = ...
        eligible_leader_replicas: list[int] | None = None
        last_known_elr: list[int] | None = None
        offline_replicas: list[int] = ...
        unknown_tags: dict[int, bytes] | None = None

    class Cursor(msgspec.Struct):
        topic_name: str = ""
        partition_index: int = 0
        unknown_tags: dict[int, bytes] | None = None

    throttle_time_ms: int = 0
    topics: list[DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic] = ...
    next_cursor: DescribeTopicPartitionsResponse.Cursor | None = None
    unknown_tags: dict[int, bytes] | None = None

class CreateTopicsRequest(msgspec.Struct):
    class CreatableTopic(msgspec.Struct):
        name: str = ""
        num_partitions: int = 0
        replication_factor: int = 0
        assignments: list[CreateTopicsRequest.CreatableReplicaAssignment] = ...
        configs: list[CreateTopicsRequest.CreatableTopicConfig] = ...
        unknown_tags: dict[int, bytes] | None = None

    class CreatableReplicaAssignment(msgspec.Struct):
        partition_index: int = 0
        broker_ids: list[int] = ...
        unknown_tags: dict[int, bytes] | None = None

    class CreatableTopicConfig(msgspec.Struct):
        name: str = ""
        value: str | None = ""
        unknown_tags: dict[int, bytes] | None = None

    topics: list[CreateTopicsRequest.CreatableTopic] = ...
    timeout_ms: int = 60000
    validate_only: bool = False
    unknown_tags: dict[int, bytes] | None = None

class CreateTopicsResponse(msgspec.Struct):
    class CreatableTopicResult(msgspec.Struct):
        name: str = ""
        topic_id: bytes = ...
        error_code: int = 0
        error_message: str | None = ""
        topic_config_error_code: int = 0
        num_partitions: int = -1
        replication_factor: int = -1
        configs: list[CreateTopicsResponse.CreatableTopicConfigs] | None = ...
        unknown_tags: dict[int, bytes] | None = None

    class CreatableTopicConfigs(msgspec.Struct):
        name: str = ""
        value: str | None = ""
        read_only: bool = False
        config_source: int = -1
        is_sensitive: bool = False
        unknown_tags: dict[int, bytes] | None = None

    throttle_time_ms: int = 0
    topics: list[CreateTopicsResponse.CreatableTopicResult] = ...
    unknown_tags: dict[int, bytes] | None = None

class DeleteTopicsRequest(msgspec.Struct):
    class DeleteTopicState(msgspec.Struct):
        name: str | None = None
        topic_id: bytes = ...
        unknown_tags: dict[int, bytes] | None = None

    topics: list[DeleteTopicsRequest.DeleteTopicState] = ...
    topic_names: list[str] = ...
    timeout_ms: int = 0
    unknown_tags: dict[int, bytes] | None = None

class DeleteTopicsResponse(msgspec.Struct):
    class DeletableTopicResult(msgspec.Struct):
        name: str | None = ""
        topic_id: bytes = ...
        error_code: int = 0
        error_message: str | None = None
        unknown_tags: dict[int, bytes] | None = None

    throttle_time_ms: int = 0
    responses: list[DeleteTopicsResponse.DeletableTopicResult] = ...
    unknown_tags: dict[int, bytes] | None = None

class CreatePartitionsRequest(msgspec.Struct):
    class CreatePartitionsTopic(msgspec.Struct):
        name: str = ""
        count: int = 0
        assignments: list[CreatePartitionsRequest.CreatePartitionsAssignment] | None = ...
        unknown_tags: dict[int, bytes] | None = None

    class CreatePartitionsAssignment(msgspec.Struct):
        broker_ids: list[int] = ...
        unknown_tags: dict[int, bytes] | None = None

    topics: list[CreatePartitionsRequest.CreatePartitionsTopic] = ...
    timeout_ms: int = 0
    validate_only: bool = False
    unknown_tags: dict[int, bytes] | None = None

class CreatePartitionsResponse(msgspec.Struct):
    class CreatePartitionsTopicResult(msgspec.Struct):
        name: str = ""
        error_code: int = 0
        error_message: str | None = None
        unknown_tags: dict[int, bytes] | None = None

    throttle_time_ms: int = 0
    results: list[CreatePartitionsResponse.CreatePartitionsTopicResult] = ...
    unknown_tags: dict[int, bytes] | None = None

class ElectLeadersRequest(msgspec.Struct):
    class TopicPartitions(msgspec.Struct):
        topic: str = ""
        partitions: list[int] = ...
        unknown_tags: dict[int, bytes] | None = None

    election_type: int = 0
    topic_partitions: list[ElectLeadersRequest.TopicPartitions] | None = ...
    timeout_ms: int = 60000
    unknown_tags: dict[int, bytes] | None = None

class ElectLeadersResponse(msgspec.Struct):
    class ReplicaElectionResult(msgspec.Struct):
        topic: str = ""
        partition_result: list[ElectLeadersResponse.PartitionResult] = ...
        unknown_tags: dict[int, bytes] | None = None

    class PartitionResult(msgspec.Struct):
        partition_id: int = 0
        error_code: int = 0
        error_message: str | None = ""
        unknown_tags: dict[int, bytes] | None = None

    throttle_time_ms: int = 0
    error_code: int = 0
    replica_election_results: list[ElectLeadersResponse.ReplicaElectionResult] = ...
    unknown_tags: dict[int, bytes] | None = None

class AlterPartitionReassignmentsRequest(msgspec.Struct):
    class ReassignableTopic(msgspec.Struct):
        name: str = ""
        partitions: list[AlterPartitionReassignmentsRequest.ReassignablePartition] = ...
        unknown_tags: dict[int, bytes] | None = None

    class ReassignablePartition(msgspec.Struct):
        partition_index: int = 0
        replicas: list[int] | None = None
        unknown_tags: dict[int, bytes] | None = None

    timeout_ms: int = 60000
    allow_replication_factor_change: bool = True
    topics: list[AlterPartitionReassignmentsRequest.ReassignableTopic] = ...
    unknown_tags: dict[int, bytes] | None = None

class AlterPartitionReassignmentsResponse(msgspec.Struct):
    class ReassignableTopicResponse(msgspec.Struct):
        name: str = ""
        partitions: list[AlterPartitionReassignmentsResponse.ReassignablePartitionResponse] = ...
        unknown_tags: dict[int, bytes] | None = None

    class ReassignablePartitionResponse(msgspec.Struct):
        partition_index: int = 0
        error_code: int = 0
        error_message: str | None = ""
        unknown_tags: dict[int, bytes] | None = None

    throttle_time_ms: int = 0
    allow_replication_factor_change: bool = True
    error_code: int = 0
    error_message: str | None = ""
    responses: list[AlterPartitionReassignmentsResponse.ReassignableTopicResponse] = ...
    unknown_tags: dict[int, bytes] | None = None

class ListPartitionReassignmentsRequest(msgspec.Struct):
    class ListPartitionReassignmentsTopics(msgspec.Struct):
        name: str = ""
        partition_indexes: list[int] = ...
        unknown_tags: dict[int, bytes] | None = None

    timeout_ms: int = 60000
    topics: list[ListPartitionReassignmentsRequest.ListPartitionReassignmentsTopics] | None = None
    unknown_tags: dict[int, bytes] | None = None

class ListPartitionReassignmentsResponse(msgspec.Struct):
    class OngoingTopicReassignment(msgspec.Struct):
        name: str = ""
        partitions: list[ListPartitionReassignmentsResponse.OngoingPartitionReassignment] = ...
        unknown_tags: dict[int, bytes] | None = None

    class OngoingPartitionReassignment(msgspec.Struct):
        partition_index: int = 0
        replicas: list[int] = ...
        adding_replicas: list[int] = ...
        removing_replicas: list[int] = ...
        unknown_tags: dict[int, bytes] | None = None

    throttle_time_ms: int = 0
    error_code: int = 0
    error_message: str | None = ""
    topics: list[ListPartitionReassignmentsResponse.OngoingTopicReassignment] = ...
    unknown_tags: dict[int, bytes] | None = None

class FindCoordinatorRequest(msgspec.Struct):
    key: str = ""
    key_type: int = 0
    coordinator_keys: list[str] = ...
    unknown_tags: dict[int, bytes] | None = None

class FindCoordinatorResponse(msgspec.Struct):
    class Coordinator(msgspec.Struct):
        key: str = ""
        node_id: int = 0
        host: str = ""
        port: int = 0
        error_code: int = 0
        error_message: str | None = ""
        unknown_tags: dict[int, bytes] | None = None

    throttle_time_ms: int = 0
    error_code: int = 0
    error_message: str | None = ""
    node_id: int = 0
    host: str = ""
    port: int = 0
    coordinators: list[FindCoordinatorResponse.Coordinator] = ...
    unknown_tags: dict[int, bytes] | None = None

class JoinGroupRequest(msgspec.Struct):
    class JoinGroupRequestProtocol(msgspec.Struct):
        name: str = ""
        metadata: bytes = ...
        unknown_tags: dict[int, bytes] | None = None

    group_id: str = ""
    session_timeout_ms: int = 0
    rebalance_timeout_ms: int = -1
    member_id: str = ""
    group_instance_id: str | None = None
    protocol_type: str = ""
    protocols: list[JoinGroupRequest.JoinGroupRequestProtocol] = ...
    reason: str | None = None
    unknown_tags: dict[int, bytes] | None = None

class JoinGroupResponse(msgspec.Struct):
    class JoinGroupResponseMember(msgspec.Struct):
        member_id: str = ""
        group_instance_id: str | None = None
        metadata: bytes = ...
        unknown_tags: dict[int, bytes] | None = None

    throttle_time_ms: int = 0
    error_code: int = 0
    generation_id: int = -1
    protocol_type: str | None = None
    protocol_name: str | None = ""
    leader: str = ""
    skip_assignment: bool = False
    member_id: str = ""
    members: list[JoinGroupResponse.JoinGroupResponseMember] = ...
    unknown_tags: dict[int, bytes] | None = None

class HeartbeatRequest(msgspec.Struct):
    group_id: str = ""
    generation_id: int = 0
    member_id: str = ""
    group_instance_id: str | None = None
    unknown_tags: dict[int, bytes] | None = None

class HeartbeatResponse(msgspec.Struct):
    throttle_time_ms: int = 0
    error_code: int = 0
    unknown_tags: dict[int, bytes] | None = None

class LeaveGroupRequest(msgspec.Struct):
    class MemberIdentity(msgspec.Struct):
        member_id: str = ""
        group_instance_id: str | None = None
        reason: str | None = None
        unknown_tags: dict[int, bytes] | None = None

    group_id: str = ""
    member_id: str = ""
    members: list[LeaveGroupRequest.MemberIdentity] = ...
    unknown_tags: dict[int, bytes] | None = None

class LeaveGroupResponse(msgspec.Struct):
    class MemberResponse(msgspec.Struct):
        member_id: str = ""
        group_instance_id: str | None = ""
        error_code: int = 0
        unknown_tags: dict[int, bytes] | None = None

    throttle_time_ms: int = 0
    error_code: int = 0
    members: list[LeaveGroupResponse.MemberResponse] = ...
    unknown_tags: dict[int, bytes] | None = None

class SyncGroupRequest(msgspec.Struct):
    class SyncGroupRequestAssignment(msgspec.Struct):
        member_id: str = ""
        assignment: bytes = ...
        unknown_tags: dict[int, bytes] | None = None

    group_id: str = ""
    generation_id: int = 0
    member_id: str = ""
    group_instance_id: str | None = None
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignments: list[SyncGroupRequest.SyncGroupRequestAssignment] = ...
    unknown_tags: dict[int, bytes] | None = None

class SyncGroupResponse(msgspec.Struct):
    throttle_time_ms: int = 0
    error_code: int = 0
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = ...
    unknown_tags: dict[int, bytes] | None = None

class DescribeGroupsRequest(msgspec.Struct):
    groups: list[str] = ...
    include_authorized_operations: bool = False
    unknown_tags: dict[int, bytes] | None = None

class DescribeGroupsResponse(msgspec.Struct):
    class DescribedGroup(msgspec.Struct):
        error_code: int = 0
        error_message: str | None = None
        group_id: str = ""
        group_state: str = ""
        protocol_type: str = ""
        protocol_data: str = ""
        members: list[DescribeGroupsResponse.DescribedGroupMember] = ...
        authorized_operations: int = -2147483648
        unknown_tags: dict[int, bytes] | None = None

    class DescribedGroupMember(msgspec.Struct):
        member_id: str = ""
        group_instance_id: str | None = None
        client_id: str = ""
        client_host: str = ""
        member_metadata: bytes = ...
        member_assignment: bytes = ...
        unknown_tags: dict[int, bytes] | None = None

    throttle_time_ms: int = 0
    groups: list[DescribeGroupsResponse.DescribedGroup] = ...
    unknown_tags: dict[int, bytes] | None = None

class ListGroupsRequest(msgspec.Struct):
    states_filter: list[str] = ...
    types_filter: list[str] = ...
    unknown_tags: dict[int, bytes] | None = None

class ListGroupsResponse(msgspec.Struct):
    class ListedGroup(msgspec.Struct):
        group_id: str = ""
        protocol_type: str = ""
        group_state: str = ""
        group_type: str = ""
        unknown_tags: dict[int, bytes] | None = None

    throttle_time_ms: int = 0
    error_code: int = 0
    groups: list[ListGroupsResponse.ListedGroup] = ...
    unknown_tags: dict[int, bytes] | None = None

class DeleteGroupsRequest(msgspec.Struct):
    groups_names: list[str] = ...
    unknown_tags: dict[int, bytes] | None = None

class DeleteGroupsResponse(msgspec.Struct):
    class DeletableGroupResult(msgspec.Struct):
        group_id: str = ""
        error_code: int = 0
        unknown_tags: dict[int, bytes] | None = None

    throttle_time_ms: int = 0
    results: list[DeleteGroupsResponse.DeletableGroupResult] = ...
    unknown_tags: dict[int, bytes] | None = None

class OffsetCommitRequest(msgspec.Struct):
    class OffsetCommitRequestTopic(msgspec.Struct):
        name: str = ""
        topic_id: bytes = ...
        partitions: list[OffsetCommitRequest.OffsetCommitRequestPartition] = ...
        unknown_tags: dict[int, bytes] | None = None

    class OffsetCommitRequestPartition(msgspec.Struct):
        partition_index: int = 0
        committed_offset: int = 0
        committed_leader_epoch: int = -1
        committed_metadata: str | None = ""
        unknown_tags: dict[int, bytes] | None = None

    group_id: str = ""
    generation_id_or_member_epoch: int = -1
    member_id: str = ""
    group_instance_id: str | None = None
    retention_time_ms: int = -1
    topics: list[OffsetCommitRequest.OffsetCommitRequestTopic] = ...
    unknown_tags: dict[int, bytes] | None = None

class OffsetCommitResponse(msgspec.Struct):
    class OffsetCommitResponseTopic(msgspec.Struct):
        name: str = ""
        topic_id: bytes = ...
        partitions: list[OffsetCommitResponse.OffsetCommitResponsePartition] = ...
        unknown_tags: dict[int, bytes] | None = None

    class OffsetCommitResponsePartition(msgspec.Struct):
        partition_index: int = 0
        error_code: int = 0
        unknown_tags: dict[int, bytes] | None = None

    throttle_time_ms: int = 0
    topics: list[OffsetCommitResponse.OffsetCommitResponseTopic] = ...
    unknown_tags: dict[int, bytes] | None = None

class OffsetFetchRequest(msgspec.Struct):
    class OffsetFetchRequestTopic(msgspec.Struct):
        name: str = ""
        partition_indexes: list[int] = ...
        unknown_tags: dict[int, bytes] | None = None

    class OffsetFetchRequestGroup(msgspec.Struct):
        group_id: str = ""
        member_id: str | None = None
        member_epoch: int = -1
        topics: list[OffsetFetchRequest.OffsetFetchRequestTopics] | None = ...
        unknown_tags: dict[int, bytes] | None = None

    class OffsetFetchRequestTopics(msgspec.Struct):
        name: str = ""
        topic_id: bytes = ...
        partition_indexes: list[int] = ...
        unknown_tags: dict[int, bytes] | None = None

    group_id: str = ""
    topics: list[OffsetFetchRequest.OffsetFetchRequestTopic] | None = ...
    groups: list[OffsetFetchRequest.OffsetFetchRequestGroup] = ...
    require_stable: bool = False
    unknown_tags: dict[int, bytes] | None = None

class OffsetFetchResponse(msgspec.Struct):
    class OffsetFetchResponseTopic(msgspec.Struct):
        name: str = ""
        partitions: list[OffsetFetchResponse.OffsetFetchResponsePartition] = ...
        unknown_tags: dict[int, bytes] | None = None

    class OffsetFetchResponsePartition(msgspec.Struct):
        partition_index: int = 0
        committed_offset: int = 0
        committed_leader_epoch: int = -1
        metadata: str | None = ""
        error_code: int = 0
        unknown_tags: dict[int, bytes] | None = None

    class OffsetFetchResponseGroup(msgspec.Struct):
        group_id: str = ""
        topics: list[OffsetFetchResponse.OffsetFetchResponseTopics] = ...
        error_code: int = 0
        unknown_tags: dict[int, bytes] | None = None

    class OffsetFetchResponseTopics(msgspec.Struct):
        name: str = ""
        topic_id: bytes = ...
        partitions: list[OffsetFetchResponse.OffsetFetchResponsePartitions] = ...
        unknown_tags: dict[int, bytes] | None = None

    class OffsetFetchResponsePartitions(msgspec.Struct):
        partition_index: int = 0
        committed_offset: int = 0
        committed_leader_epoch: int = -1
        metadata: str | None = ""
        error_code: int = 0
        unknown_tags: dict[int, bytes] | None = None

    throttle_time_ms: int = 0
    topics: list[OffsetFetchResponse.OffsetFetchResponseTopic] = ...
    error_code: int = 0
    groups: list[OffsetFetchResponse.OffsetFetchResponseGroup] = ...
    unknown_tags: dict[int, bytes] | None = None

class OffsetDeleteRequest(msgspec.Struct):
    class OffsetDeleteRequestTopic(msgspec.Struct):
        name: str = ""
        partitions: list[OffsetDeleteRequest.OffsetDeleteRequestPartition] = ...

    class OffsetDeleteRequestPartition(msgspec.Struct):
        partition_index: int = 0

    group_id: str = ""
    topics: list[OffsetDeleteRequest.OffsetDeleteRequestTopic] = ...

class OffsetDeleteResponse(msgspec.Struct):
    class OffsetDeleteResponseTopic(msgspec.Struct):
        name: str = ""
        partitions: list[OffsetDeleteResponse.OffsetDeleteResponsePartition] = ...

    class OffsetDeleteResponsePartition(msgspec.Struct):
        partition_index: int = 0
        error_code: int = 0

    error_code: int = 0
    throttle_time_ms: int = 0
    topics: list[OffsetDeleteResponse.OffsetDeleteResponseTopic] = ...

class ConsumerGroupHeartbeatRequest(msgspec.Struct):
    class TopicPartitions(msgspec.Struct):
        topic_id: bytes = ...
        partitions: list[int] = ...
        unknown_tags: dict[int, bytes] | None = None

    group_id: str = ""
    member_id: str = ""
    member_epoch: int = 0
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    subscribed_topic_names: list[str] | None = None
    subscribed_topic_regex: str | None = None
    server_assignor: str | None = None
    topic_partitions: list[ConsumerGroupHeartbeatRequest.TopicPartitions] | None = None
    unknown_tags: dict[int, bytes] | None = None

class ConsumerGroupHeartbeatResponse(msgspec.Struct):
    class Assignment(msgspec.Struct):
        topic_partitions: list[ConsumerGroupHeartbeatResponse.TopicPartitions] = ...
        unknown_tags: dict[int, bytes] | None = None

    class TopicPartitions(msgspec.Struct):
        topic_id: bytes = ...
        partitions: list[int] = ...
        unknown_tags: dict[int, bytes] | None = None

    throttle_time_ms: int = 0
    error_code: int = 0
    error_message: str | None = None
    member_id: str | None = None
    member_epoch: int = 0
    heartbeat_interval_ms: int = 0
    assignment: ConsumerGroupHeartbeatResponse.Assignment | None = None
    unknown_tags: dict[int, bytes] | None = None

class ConsumerGroupDescribeRequest(msgspec.Struct):
    group_ids: list[str] = ...
    include_authorized_operations: bool = False
    unknown_tags: dict[int, bytes] | None = None

class ConsumerGroupDescribeResponse(msgspec.Struct):
    class DescribedGroup(msgspec.Struct):
        error_code: int = 0
        error_message: str | None = None
        group_id: str = ""
        group_state: str = ""
        group_epoch: int = 0
        assignment_epoch: int = 0
        assignor_name: str = ""
        members: list[ConsumerGroupDescribeResponse.Member] = ...
        authorized_operations: int = -2147483648
        unknown_tags: dict[int, bytes] | None = None

    class Member(msgspec.Struct):
        member_id: str = ""
        instance_id: str | None = None
        rack_id: str | None = None
        member_epoch: int = 0
        client_id: str = ""
        client_host: str = ""
        subscribed_topic_names: list[str] = ...
        subscribed_topic_regex: str | None = None
        assignment: ConsumerGroupDescribeResponse.Assignment = ...
        target_assignment: ConsumerGroupDescribeResponse.Assignment = ...
        member_type: int = -1
        unknown_tags: dict[int, bytes] | None = None

    class TopicPartitions(msgspec.Struct):
        topic_id: bytes = ...
        topic_name: str = ""
        partitions: list[int] = ...
        unknown_tags: dict[int, bytes] | None = None

    class Assignment(msgspec.Struct):
        topic_partitions: list[ConsumerGroupDescribeResponse.TopicPartitions] = ...
        unknown_tags: dict[int, bytes] | None = None

    throttle_time_ms: int = 0
    groups: list[ConsumerGroupDescribeResponse.DescribedGroup] = ...
    unknown_tags: dict[int, bytes] | None = None

class ShareGroupHeartbeatRequest(msgspec.Struct):
    group_id: str = ""
    member_id: str = ""
    member_epoch: int = 0
    rack_id: str | None = None
    subscribed_topic_names: list[str] | None = None
    unknown_tags: dict[int, bytes] | None = None

class ShareGroupHeartbeatResponse(msgspec.Struct):
    class Assignment(msgspec.Struct):
        topic_partitions: list[ShareGroupHeartbeatResponse.TopicPartitions] = ...
        unknown_tags: dict[int, bytes] | None = None

    class TopicPartitions(msgspec.Struct):
        topic_id: bytes = ...
        partitions: list[int] = ...
        unknown_tags: dict[int, bytes] | None = None

    throttle_time_ms: int = 0
    error_code: int = 0
    error_message: str | None = None
    member_id: str | None = None
    member_epoch: int = 0
    heartbeat_interval_ms: int = 0
    assignment: ShareGroupHeartbeatResponse.Assignment | None = None
    unknown_tags: dict[int, bytes] | None = None

class ShareGroupDescribeRequest(msgspec.Struct):
    group_ids: list[str] = ...
    include_authorized_operations: bool = False
    unknown_tags: dict[int, bytes] | None = None

class ShareGroupDescribeResponse(msgspec.Struct):
    class DescribedGroup(msgspec.Struct):
        error_code: int = 0
        error_message: str | None = None
        group_id: str = ""
        group_state: str = ""
        group_epoch: int = 0
        assignment_epoch: int = 0
        assignor_name: str = ""
        members: list[ShareGroupDescribeResponse.Member] = ...
        authorized_operations: int = -2147483648
        unknown_tags: dict[int, bytes] | None = None

    class Member(msgspec.Struct):
        member_id: str = ""
        rack_id: str | None = None
        member_epoch: int = 0
        client_id: str = ""
        client_host: str = ""
        subscribed_topic_names: list[str] = ...
        assignment: ShareGroupDescribeResponse.Assignment = ...
        unknown_tags: dict[int, bytes] | None = None

    class TopicPartitions(msgspec.Struct):
        topic_id: bytes = ...
        topic_name: str = ""
        partitions: list[int] = ...
        unknown_tags: dict[int, bytes] | None = None

    class Assignment(msgspec.Struct):
        topic_partitions: list[ShareGroupDescribeResponse.TopicPartitions] = ...
        unknown_tags: dict[int, bytes] | None = None

    throttle_time_ms: int = 0
    groups: list[ShareGroupDescribeResponse.DescribedGroup] = ...
    unknown_tags: dict[int, bytes] | None = None

class ShareFetchRequest(msgspec.Struct):
    class FetchTopic(msgspec.Struct):
        topic_id: bytes = ...
        partitions: list[ShareFetchRequest.FetchPartition] = ...
        unknown_tags: dict[int, bytes] | None = None

    class FetchPartition(msgspec.Struct):
        partition_index: int = 0
        partition_max_bytes: int = 0
        acknowledgement_batches: list[ShareFetchRequest.AcknowledgementBatch] = ...
        unknown_tags: dict[int, bytes] | None = None

    class AcknowledgementBatch(msgspec.Struct):
        first_offset: int = 0
        last_offset: int = 0
        acknowledge_types: list[int] = ...
        unknown_tags: dict[int, bytes] | None = None

    class ForgottenTopic(msgspec.Struct):
        topic_id: bytes = ...
        partitions: list[int] = ...
        unknown_tags: dict[int, bytes] | None = None

    group_id: str | None = None
    member_id: str | None = ""
    share_session_epoch: int = 0
    max_wait_ms: int = 0
    min_bytes: int = 0
    max_bytes: int = 2147483647
    max_records: int = 0
    batch_size: int = 0
    share_acquire_mode: int = 0
    is_renew_ack: bool = False
    topics: list[ShareFetchRequest.FetchTopic] = ...
    forgotten_topics_data: list[ShareFetchRequest.ForgottenTopic] = ...
    unknown_tags: dict[int, bytes] | None = None

class ShareFetchResponse(msgspec.Struct):
    class ShareFetchableTopicResponse(msgspec.Struct):
        topic_id: bytes = ...
        partitions: list[ShareFetchResponse.PartitionData] = ...
        unknown_tags: dict[int, bytes] | None = None

    class PartitionData(msgspec.Struct):
        partition_index: int = 0
        error_code: int = 0
        error_message: str | None = None
        acknowledge_error_code: int = 0
        acknowledge_error_message: str | None = None
        current_leader: ShareFetchResponse.LeaderIdAndEpoch = ...
        records: Records | None = None
        acquired_records: list[ShareFetchResponse.AcquiredRecords] = ...
        unknown_tags: dict[int, bytes] | None = None

    class LeaderIdAndEpoch(msgspec.Struct):
        leader_id: int = 0
        leader_epoch: int = 0
        unknown_tags: dict[int, bytes] | None = None

    class AcquiredRecords(msgspec.Struct):
        first_offset: int = 0
        last_offset: int = 0
        delivery_count: int = 0
        unknown_tags: dict[int, bytes] | None = None

    class NodeEndpoint(msgspec.Struct):
        node_id: int = 0
        host: str = ""
        port: int = 0
        rack: str | None = None
        unknown_tags: dict[int, bytes] | None = None

    throttle_time_ms: int = 0
    error_code: int = 0
    error_message: str | None = None
    acquisition_lock_timeout_ms: int = 0
    responses: list[ShareFetchResponse.ShareFetchableTopicResponse] = ...
    node_endpoints: list[ShareFetchResponse.NodeEndpoint] = ...
    unknown_tags: dict[int, bytes] | None = None

class ShareAcknowledgeRequest(msgspec.Struct):
    class AcknowledgeTopic(msgspec.Struct):
        topic_id: bytes = ...
        partitions: list[ShareAcknowledgeRequest.AcknowledgePartition] = ...
        unknown_tags: dict[int, bytes] | None = None

    class AcknowledgePartition(msgspec.Struct):
        partition_index: int = 0
        acknowledgement_batches: list[ShareAcknowledgeRequest.AcknowledgementBatch] = ...
        unknown_tags: dict[int, bytes] | None = None

    class AcknowledgementBatch(msgspec.Struct):
        first_offset: int = 0
        last_offset: int = 0
        acknowledge_types: list[int] = ...
        unknown_tags: dict[int, bytes] | None = None

    group_id: str | None = None
    member_id: str | None = ""
    share_session_epoch: int = 0
    is_renew_ack: bool = False
    topics: list[ShareAcknowledgeRequest.AcknowledgeTopic] = ...
    unknown_tags: dict[int, bytes] | None = None

class ShareAcknowledgeResponse(msgspec.Struct):
    class ShareAcknowledgeTopicResponse(msgspec.Struct):
        topic_id: bytes = ...
        partitions: list[ShareAcknowledgeResponse.PartitionData] = ...
        unknown_tags: dict[int, bytes] | None = None

    class PartitionData(msgspec.Struct):
        partition_index: int = 0
        error_code: int = 0
        error_message: str | None = None
        current_leader: ShareAcknowledgeResponse.LeaderIdAndEpoch = ...
        unknown_tags: dict[int, bytes] | None = None

    class LeaderIdAndEpoch(msgspec.Struct):
        leader_id: int = 0
        leader_epoch: int = 0
        unknown_tags: dict[int, bytes] | None = None

    class NodeEndpoint(msgspec.Struct):
        node_id: int = 0
        host: str = ""
        port: int = 0
        rack: str | None = None
        unknown_tags: dict[int, bytes] | None = None

    throttle_time_ms: int = 0
    error_code: int = 0
    error_message: str | None = None
    acquisition_lock_timeout_ms: int = 0
    responses: list[ShareAcknowledgeResponse.ShareAcknowledgeTopicResponse] = ...
    node_endpoints: list[ShareAcknowledgeResponse.NodeEndpoint] = ...
    unknown_tags: dict[int, bytes] | None = None

class DescribeShareGroupOffsetsRequest(msgspec.Struct):
    class DescribeShareGroupOffsetsRequestGroup(msgspec.Struct):
        group_id: str = ""
        topics: list[DescribeShareGroupOffsetsRequest.DescribeShareGroupOffsetsRequestTopic] | None = ...
        unknown_tags: dict[int, bytes] | None = None

    class DescribeShareGroupOffsetsRequestTopic(msgspec.Struct):
        topic_name: str = ""
        partitions: list[int] = ...
        unknown_tags: dict[int, bytes] | None = None

    groups: list[DescribeShareGroupOffsetsRequest.DescribeShareGroupOffsetsRequestGroup] = ...
    unknown_tags: dict[int, bytes] | None = None

class DescribeShareGroupOffsetsResponse(msgspec.Struct):
    class DescribeShareGroupOffsetsResponseGroup(msgspec.Struct):
        group_id: str = ""
        topics: list[DescribeShareGroupOffsetsResponse.DescribeShareGroupOffsetsResponseTopic] = ...
        error_code: int = 0
        error_message: str | None = None
        unknown_tags: dict[int, bytes] | None = None

    class DescribeShareGroupOffsetsResponseTopic(msgspec.Struct):
        topic_name: str = ""
        topic_id: bytes = ...
        partitions: list[DescribeShareGroupOffsetsResponse.DescribeShareGroupOffsetsResponsePartition] = ...
        unknown_tags: dict[int, bytes] | None = None

    class DescribeShareGroupOffsetsResponsePartition(msgspec.Struct):
        partition_index: int = 0
        start_offset: int = 0
        leader_epoch: int = 0
        lag: int = -1
        error_code: int = 0
        error_message: str | None = None
        unknown_tags: dict[int, bytes] | None = None

    throttle_time_ms: int = 0
    groups: list[DescribeShareGroupOffsetsResponse.DescribeShareGroupOffsetsResponseGroup] = ...
    unknown_tags: dict[int, bytes] | None = None

class AlterShareGroupOffsetsRequest(msgspec.Struct):
    class AlterShareGroupOffsetsRequestTopic(msgspec.Struct):
        topic_name: str = ""
        partitions: list[AlterShareGroupOffsetsRequest.AlterShareGroupOffsetsRequestPartition] = ...
        unknown_tags: dict[int, bytes] | None = None

    class AlterShareGroupOffsetsRequestPartition(msgspec.Struct):
        partition_index: int = 0
        start_offset: int = 0
        unknown_tags: dict[int, bytes] | None = None

    group_id: str = ""
    topics: list[AlterShareGroupOffsetsRequest.AlterShareGroupOffsetsRequestTopic] = ...
    unknown_tags: dict[int, bytes] | None = None

class AlterShareGroupOffsetsResponse(msgspec.Struct):
    class AlterShareGroupOffsetsResponseTopic(msgspec.Struct):
        topic_name: str = ""
        topic_id: bytes = ...
        partitions: list[AlterShareGroupOffsetsResponse.AlterShareGroupOffsetsResponsePartition] = ...
        unknown_tags: dict[int, bytes] | None = None

    class AlterShareGroupOffsetsResponsePartition(msgspec.Struct):
        partition_index: int = 0
        error_code: int = 0
        error_message: str | None = None
        unknown_tags: dict[int, bytes] | None = None

    throttle_time_ms: int = 0
    error_code: int = 0
    error_message: str | None = None
    responses: list[AlterShareGroupOffsetsResponse.AlterShareGroupOffsetsResponseTopic] = ...
    unknown_tags: dict[int, bytes] | None = None

class DeleteShareGroupOffsetsRequest(msgspec.Struct):
    class DeleteShareGroupOffsetsRequestTopic(msgspec.Struct):
        topic_name: str = ""
        unknown_tags: dict[int, bytes] | None = None

    group_id: str = ""
    topics: list[DeleteShareGroupOffsetsRequest.DeleteShareGroupOffsetsRequestTopic] = ...
    unknown_tags: dict[int, bytes] | None = None

class DeleteShareGroupOffsetsResponse(msgspec.Struct):
    class DeleteShareGroupOffsetsResponseTopic(msgspec.Struct):
        topic_name: str = ""
        topic_id: bytes = ...
        error_code: int = 0
        error_message: str | None = None
        unknown_tags: dict[int, bytes] | None = None

    throttle_time_ms: int = 0
    error_code: int = 0
    error_message: str | None = None
    responses: list[DeleteShareGroupOffsetsResponse.DeleteShareGroupOffsetsResponseTopic] = ...
    unknown_tags: dict[int, bytes] | None = None

class InitializeShareGroupStateRequest(msgspec.Struct):
    class InitializeStateData(msgspec.Struct):
        topic_id: bytes = ...
        partitions: list[InitializeShareGroupStateRequest.PartitionData] = ...
        unknown_tags: dict[int, bytes] | None = None

    class PartitionData(msgspec.Struct):
        partition: int = 0
        state_epoch: int = 0
        start_offset: int = 0
        unknown_tags: dict[int, bytes] | None = None

    group_id: str = ""
    topics: list[InitializeShareGroupStateRequest.InitializeStateData] = ...
    unknown_tags: dict[int, bytes] | None = None

class InitializeShareGroupStateResponse(msgspec.Struct):
    class InitializeStateResult(msgspec.Struct):
        topic_id: bytes = ...
        partitions: list[InitializeShareGroupStateResponse.PartitionResult] = ...
        unknown_tags: dict[int, bytes] | None = None

    class PartitionResult(msgspec.Struct):
        partition: int = 0
        error_code: int = 0
        error_message: str | None = None
        unknown_tags: dict[int, bytes] | None = None

    results: list[InitializeShareGroupStateResponse.InitializeStateResult] = ...
    unknown_tags: dict[int, bytes] | None = None

class ReadShareGroupStateRequest(msgspec.Struct):
    class ReadStateData(msgspec.Struct):
        topic_id: bytes = ...
        partitions: list[ReadShareGroupStateRequest.PartitionData] = ...
        unknown_tags: dict[int, bytes] | None = None

    class PartitionData(msgspec.Struct):
        partition: int = 0
        leader_epoch: int = 0
        unknown_tags: dict[int, bytes] | None = None

    group_id: str = ""
    topics: list[ReadShareGroupStateRequest.ReadStateData] = ...
    unknown_tags: dict[int, bytes] | None = None

class ReadShareGroupStateResponse(msgspec.Struct):
    class ReadStateResult(msgspec.Struct):
        topic_id: bytes = ...
        partitions: list[ReadShareGroupStateResponse.PartitionResult] = ...
        unknown_tags: dict[int, bytes] | None = None

    class PartitionResult(msgspec.Struct):
        partition: int = 0
        error_code: int = 0
        error_message: str | None = None
        state_epoch: int = 0
        start_offset: int = 0
        state_batches: list[ReadShareGroupStateResponse.StateBatch] = ...
        unknown_tags: dict[int, bytes] | None = None

    class StateBatch(msgspec.Struct):
        first_offset: int = 0
        last_offset: int = 0
        delivery_state: int = 0
        delivery_count: int = 0
        unknown_tags: dict[int, bytes] | None = None

    results: list[ReadShareGroupStateResponse.ReadStateResult] = ...
    unknown_tags: dict[int, bytes] | None = None

class WriteShareGroupStateRequest(msgspec.Struct):
    class WriteStateData(msgspec.Struct):
        topic_id: bytes = ...
        partitions: list[WriteShareGroupStateRequest.PartitionData] = ...
        unknown_tags: dict[int, bytes] | None = None

    class PartitionData(msgspec.Struct):
        partition: int = 0
        state_epoch: int = 0
        leader_epoch: int = 0
        start_offset: int = 0
        delivery_complete_count: int = -1
        state_batches: list[WriteShareGroupStateRequest.StateBatch] = ...
        unknown_tags: dict[int, bytes] | None = None

    class StateBatch(msgspec.Struct):
        first_offset: int = 0
        last_offset: int = 0
        delivery_state: int = 0
        delivery_count: int = 0
        unknown_tags: dict[int, bytes] | None = None

    group_id: str = ""
    topics: list[WriteShareGroupStateRequest.WriteStateData] = ...
    unknown_tags: dict[int, bytes] | None = None

class WriteShareGroupStateResponse(msgspec.Struct):
    class WriteStateResult(msgspec.Struct):
        topic_id: bytes = ...
        partitions: list[WriteShareGroupStateResponse.PartitionResult] = ...
        unknown_tags: dict[int, bytes] | None = None

    class PartitionResult(msgspec.Struct):
        partition: int = 0
        error_code: int = 0
        error_message: str | None = None
        unknown_tags: dict[int, bytes] | None = None

    results: list[WriteShareGroupStateResponse.WriteStateResult] = ...
    unknown_tags: dict[int, bytes] | None = None

class DeleteShareGroupStateRequest(msgspec.Struct):
    class DeleteStateData(msgspec.Struct):
        topic_id: bytes = ...
        partitions: list[DeleteShareGroupStateRequest.PartitionData] = ...
        unknown_tags: dict[int, bytes] | None = None

    class PartitionData(msgspec.Struct):
        partition: int = 0
        unknown_tags: dict[int, bytes] | None = None

    group_id: str = ""
    topics: list[DeleteShareGroupStateRequest.DeleteStateData] = ...
    unknown_tags: dict[int, bytes] | None = None

class DeleteShareGroupStateResponse(msgspec.Struct):
    class DeleteStateResult(msgspec.Struct):
        topic_id: bytes = ...
        partitions: list[DeleteShareGroupStateResponse.PartitionResult] = ...
        unknown_tags: dict[int, bytes] | None = None

    class PartitionResult(msgspec.Struct):
        partition: int = 0
        error_code: int = 0
        error_message: str | None = None
        unknown_tags: dict[int, bytes] | None = None

    results: list[DeleteShareGroupStateResponse.DeleteStateResult] = ...
    unknown_tags: dict[int, bytes] | None = None

class ReadShareGroupStateSummaryRequest(msgspec.Struct):
    class ReadStateSummaryData(msgspec.Struct):
        topic_id: bytes = ...
        partitions: list[ReadShareGroupStateSummaryRequest.PartitionData] = ...
        unknown_tags: dict[int, bytes] | None = None

    class PartitionData(msgspec.Struct):
        partition: int = 0
        leader_epoch: int = 0
        unknown_tags: dict[int, bytes] | None = None

    group_id: str = ""
    topics: list[ReadShareGroupStateSummaryRequest.ReadStateSummaryData] = ...
    unknown_tags: dict[int, bytes] | None = None

class ReadShareGroupStateSummaryResponse(msgspec.Struct):
    class ReadStateSummaryResult(msgspec.Struct):
        topic_id: bytes = ...
        partitions: list[ReadShareGroupStateSummaryResponse.PartitionResult] = ...
        unknown_tags: dict[int, bytes] | None = None

    class PartitionResult(msgspec.Struct):
        partition: int = 0
        error_code: int = 0
        error_message: str | None = None
        state_epoch: int = 0
        leader_epoch: int = 0
        start_offset: int = 0
        delivery_complete_count: int = -1
        unknown_tags: dict[int, bytes] | None = None

    results: list[ReadShareGroupStateSummaryResponse.ReadStateSummaryResult] = ...
    unknown_tags: dict[int, bytes] | None = None

class StreamsGroupHeartbeatRequest(msgspec.Struct):
    class Topology(msgspec.Struct):
        epoch: int = 0
        subtopologies: list[StreamsGroupHeartbeatRequest.Subtopology] = ...
        unknown_tags: dict[int, bytes] | None = None

    class Subtopology(msgspec.Struct):
        subtopology_id: str = ""
        source_topics: list[str] = ...
        source_topic_regex: list[str] = ...
        state_changelog_topics: list[StreamsGroupHeartbeatRequest.TopicInfo] = ...
        repartition_sink_topics: list[str] = ...
        repartition_source_topics: list[StreamsGroupHeartbeatRequest.TopicInfo] = ...
        copartition_groups: list[StreamsGroupHeartbeatRequest.CopartitionGroup] = ...
        unknown_tags: dict[int, bytes] | None = None

    class CopartitionGroup(msgspec.Struct):
        source_topics: list[int] = ...
        source_topic_regex: list[int] = ...
        repartition_source_topics: list[int] = ...
        unknown_tags: dict[int, bytes] | None = None

    class KeyValue(msgspec.Struct):
        key: str = ""
        value: str = ""
        unknown_tags: dict[int, bytes] | None = None

    class TopicInfo(msgspec.Struct):
        name: str = ""
        partitions: int = 0
        replication_factor: int = 0
        topic_configs: list[StreamsGroupHeartbeatRequest.KeyValue] = ...
        unknown_tags: dict[int, bytes] | None = None

    class Endpoint(msgspec.Struct):
        host: str = ""
        port: int = 0
        unknown_tags: dict[int, bytes] | None = None

    class TaskOffset(msgspec.Struct):
        subtopology_id: str = ""
        partition: int = 0
        offset: int = 0
        unknown_tags: dict[int, bytes] | None = None

    class TaskIds(msgspec.Struct):
        subtopology_id: str = ""
        partitions: list[int] = ...
        unknown_tags: dict[int, bytes] | None = None

    group_id: str = ""
    member_id: str = ""
    member_epoch: int = 0
    endpoint_information_epoch: int = 0
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    topology: StreamsGroupHeartbeatRequest.Topology | None = None
    active_tasks: list[StreamsGroupHeartbeatRequest.TaskIds] | None = None
    standby_tasks: list[StreamsGroupHeartbeatRequest.TaskIds] | None = None
    warmup_tasks: list[StreamsGroupHeartbeatRequest.TaskIds] | None = None
    process_id: str | None = None
    user_endpoint: StreamsGroupHeartbeatRequest.Endpoint | None = None
    client_tags: list[StreamsGroupHeartbeatRequest.KeyValue] | None = None
    task_offsets: list[StreamsGroupHeartbeatRequest.TaskOffset] | None = None
    task_end_offsets: list[StreamsGroupHeartbeatRequest.TaskOffset] | None = None
    shutdown_application: bool = False
    unknown_tags: dict[int, bytes] | None = None

class StreamsGroupHeartbeatResponse(msgspec.Struct):
    class EndpointToPartitions(msgspec.Struct):
        user_endpoint: StreamsGroupHeartbeatResponse.Endpoint = ...
        active_partitions: list[StreamsGroupHeartbeatResponse.TopicPartition] = ...
        standby_partitions: list[StreamsGroupHeartbeatResponse.TopicPartition] = ...
        unknown_tags: dict[int, bytes] | None = None

    class Status(msgspec.Struct):
        status_code: int = 0
        status_detail: str = ""
        unknown_tags: dict[int, bytes] | None = None

    class TopicPartition(msgspec.Struct):
        topic: str = ""
        partitions: list[int] = ...
        unknown_tags: dict[int, bytes] | None = None

    class TaskIds(msgspec.Struct):
        subtopology_id: str = ""
        partitions: list[int] = ...
        unknown_tags: dict[int, bytes] | None = None

    class Endpoint(msgspec.Struct):
        host: str = ""
        port: int = 0
        unknown_tags: dict[int, bytes] | None = None

    throttle_time_ms: int = 0
    error_code: int = 0
    error_message: str | None = None
    member_id: str = ""
    member_epoch: int = 0
    heartbeat_interval_ms: int = 0
    acceptable_recovery_lag: int = 0
    task_offset_interval_ms: int = 0
    status: list[StreamsGroupHeartbeatResponse.Status] | None = ...
    active_tasks: list[StreamsGroupHeartbeatResponse.TaskIds] | None = None
    standby_tasks: list[StreamsGroupHeartbeatResponse.TaskIds] | None = None
    warmup_tasks: list[StreamsGroupHeartbeatResponse.TaskIds] | None = None
    endpoint_information_epoch: int = 0
    partitions_by_user_endpoint: list[StreamsGroupHeartbeatResponse.EndpointToPartitions] | None = None
    unknown_tags: dict[int, bytes] | None = None

class StreamsGroupDescribeRequest(msgspec.Struct):
    group_ids: list[str] = ...
    include_authorized_operations: bool = False
    unknown_tags: dict[int, bytes] | None = None

class StreamsGroupDescribeResponse(msgspec.Struct):
    class DescribedGroup(msgspec.Struct):
        error_code: int = 0
        error_message: str | None = None
        group_id: str = ""
        group_state: str = ""
        group_epoch: int = 0
        assignment_epoch: int = 0
        topology: StreamsGroupDescribeResponse.Topology | None = None
        members: list[StreamsGroupDescribeResponse.Member] = ...
        authorized_operations: int = -2147483648
        unknown_tags: dict[int, bytes] | None = None

    class Topology(msgspec.Struct):
        epoch: int = 0
        subtopologies: list[StreamsGroupDescribeResponse.Subtopology] | None = None
        unknown_tags: dict[int, bytes] | None = None

    class Subtopology(msgspec.Struct):
        subtopology_id: str = ""
        source_topics: list[str] = ...
        repartition_sink_topics: list[str] = ...
        state_changelog_topics: list[StreamsGroupDescribeResponse.TopicInfo] = ...
        repartition_source_topics: list[StreamsGroupDescribeResponse.TopicInfo] = ...
        unknown_tags: dict[int, bytes] | None = None

    class Member(msgspec.Struct):
        member_id: str = ""
        member_epoch: int = 0
        instance_id: str | None = None
        rack_id: str | None = None
        client_id: str = ""
        client_host: str = ""
        topology_epoch: int = 0
        process_id: str = ""
        user_endpoint: StreamsGroupDescribeResponse.Endpoint | None = None
        client_tags: list[StreamsGroupDescribeResponse.KeyValue] = ...
        task_offsets: list[StreamsGroupDescribeResponse.TaskOffset] = ...
        task_end_offsets: list[StreamsGroupDescribeResponse.TaskOffset] = ...
        assignment: StreamsGroupDescribeResponse.Assignment = ...
        target_assignment: StreamsGroupDescribeResponse.Assignment = ...
        is_classic: bool = False
        unknown_tags: dict[int, bytes] | None = None

    class Endpoint(msgspec.Struct):
        host: str = ""
        port: int = 0
        unknown_tags: dict[int, bytes] | None = None

    class TaskOffset(msgspec.Struct):
        subtopology_id: str = ""
        partition: int = 0
        offset: int = 0
        unknown_tags: dict[int, bytes] | None = None

    class Assignment(msgspec.Struct):
        active_tasks: list[StreamsGroupDescribeResponse.TaskIds] = ...
        standby_tasks: list[StreamsGroupDescribeResponse.TaskIds] = ...
        warmup_tasks: list[StreamsGroupDescribeResponse.TaskIds] = ...
        unknown_tags: dict[int, bytes] | None = None

    class TaskIds(msgspec.Struct):
        subtopology_id: str = ""
        partitions: list[int] = ...
        unknown_tags: dict[int, bytes] | None = None

    class KeyValue(msgspec.Struct):
        key: str = ""
        value: str = ""
        unknown_tags: dict[int, bytes] | None = None

    class TopicInfo(msgspec.Struct):
        name: str = ""
        partitions: int = 0
        replication_factor: int = 0
        topic_configs: list[StreamsGroupDescribeResponse.KeyValue] = ...
        unknown_tags: dict[int, bytes] | None = None

    throttle_time_ms: int = 0
    groups: list[StreamsGroupDescribeResponse.DescribedGroup] = ...
    unknown_tags: dict[int, bytes] | None = None

class InitProducerIdRequest(msgspec.Struct):
    transactional_id: str | None = ""
    transaction_timeout_ms: int = 0
    producer_id: int = -1
    producer_epoch: int = -1
    enable2_pc: bool = False
    keep_prepared_txn: bool = False
    unknown_tags: dict[int, bytes] | None = None

class InitProducerIdResponse(msgspec.Struct):
    throttle_time_ms: int = 0
    error_code: int = 0
    producer_id: int = -1
    producer_epoch: int = 0
    ongoing_txn_producer_id: int = -1
    ongoing_txn_producer_epoch: int = -1
    unknown_tags: dict[int, bytes] | None = None

class AddPartitionsToTxnRequest(msgspec.Struct):
    class AddPartitionsToTxnTransaction(msgspec.Struct):
        transactional_id: str = ""
        producer_id: int = 0
        producer_epoch: int = 0
        verify_only: bool = False
        topics: list[AddPartitionsToTxnRequest.AddPartitionsToTxnTopic] = ...
        unknown_tags: dict[int, bytes] | None = None

    class AddPartitionsToTxnTopic(msgspec.Struct):
        name: str = ""
        partitions: list[int] = ...
        unknown_tags: dict[int, bytes] | None = None

    transactions: list[AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction] = ...
    v3_and_below_transactional_id: str = ""
    v3_and_below_producer_id: int = 0
    v3_and_below_producer_epoch: int = 0
    v3_and_below_topics: list[AddPartitionsToTxnRequest.AddPartitionsToTxnTopic] = ...
    unknown_tags: dict[int, bytes] | None = None

class AddPartitionsToTxnResponse(msgspec.Struct):
    class AddPartitionsToTxnResult(msgspec.Struct):
        transactional_id: str = ""
        topic_results: list[AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult] = ...
        unknown_tags: dict[int, bytes] | None = None

    class AddPartitionsToTxnTopicResult(msgspec.Struct):
        name: str = ""
        results_by_partition: list[AddPartitionsToTxnResponse.AddPartitionsToTxnPartitionResult] = ...
        unknown_tags: dict[int, bytes] | None = None

    class AddPartitionsToTxnPartitionResult(msgspec.Struct):
        partition_index: int = 0
        partition_error_code: int = 0
        unknown_tags: dict[int, bytes] | None = None

    throttle_time_ms: int = 0
    error_code: int = 0
    results_by_transaction: list[AddPartitionsToTxnResponse.AddPartitionsToTxnResult] = ...
    results_by_topic_v3_and_below: list[AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult] = ...
    unknown_tags: dict[int, bytes] | None = None

class AddOffsetsToTxnRequest(msgspec.Struct):
    transactional_id: str = ""
    producer_id: int = 0
    producer_epoch: int = 0
    group_id: str = ""
    unknown_tags: dict[int, bytes] | None = None

class AddOffsetsToTxnResponse(msgspec.Struct):
    throttle_time_ms: int = 0
    error_code: int = 0
    unknown_tags: dict[int, bytes] | None = None

class EndTxnRequest(msgspec.Struct):
    transactional_id: str = ""
    producer_id: int = 0
    producer_epoch: int = 0
    committed: bool = False
    unknown_tags: dict[int, bytes] | None = None

class EndTxnResponse(msgspec.Struct):
    throttle_time_ms: int = 0
    error_code: int = 0
    producer_id: int = -1
    producer_epoch: int = -1
    unknown_tags: dict[int, bytes] | None = None

class WriteTxnMarkersRequest(msgspec.Struct):
    class WritableTxnMarker(msgspec.Struct):
        producer_id: int = 0
        producer_epoch: int = 0
        transaction_result: bool = False
        topics: list[WriteTxnMarkersRequest.WritableTxnMarkerTopic] = ...
        coordinator_epoch: int = 0
        transaction_version: int = 0
        unknown_tags: dict[int, bytes] | None = None

    class WritableTxnMarkerTopic(msgspec.Struct):
        name: str = ""
        partition_indexes: list[int] = ...
        unknown_tags: dict[int, bytes] | None = None

    markers: list[WriteTxnMarkersRequest.WritableTxnMarker] = ...
    unknown_tags: dict[int, bytes] | None = None

class WriteTxnMarkersResponse(msgspec.Struct):
    class WritableTxnMarkerResult(msgspec.Struct):
        producer_id: int = 0
        topics: list[WriteTxnMarkersResponse.WritableTxnMarkerTopicResult] = ...
        unknown_tags: dict[int, bytes] | None = None

    class WritableTxnMarkerTopicResult(msgspec.Struct):
        name: str = ""
        partitions: list[WriteTxnMarkersResponse.WritableTxnMarkerPartitionResult] = ...
        unknown_tags: dict[int, bytes] | None = None

    class WritableTxnMarkerPartitionResult(msgspec.Struct):
        partition_index: int = 0
        error_code: int = 0
        unknown_tags: dict[int, bytes] | None = None

    markers: list[WriteTxnMarkersResponse.WritableTxnMarkerResult] = ...
    unknown_tags: dict[int, bytes] | None = None

class TxnOffsetCommitRequest(msgspec.Struct):
    class TxnOffsetCommitRequestTopic(msgspec.Struct):
        name: str = ""
        partitions: list[TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition] = ...
        unknown_tags: dict[int, bytes] | None = None

    class TxnOffsetCommitRequestPartition(msgspec.Struct):
        partition_index: int = 0
        committed_offset: int = 0
        committed_leader_epoch: int = -1
        committed_metadata: str | None = ""
        unknown_tags: dict[int, bytes] | None = None

    transactional_id: str = ""
    group_id: str = ""
    producer_id: int = 0
    producer_epoch: int = 0
    generation_id: int = -1
    member_id: str = ""
    group_instance_id: str | None = None
    topics: list[TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic] = ...
    unknown_tags: dict[int, bytes] | None = None

class TxnOffsetCommitResponse(msgspec.Struct):
    class TxnOffsetCommitResponseTopic(msgspec.Struct):
        name: str = ""
        partitions: list[TxnOffsetCommitResponse.TxnOffsetCommitResponsePartition] = ...
        unknown_tags: dict[int, bytes] | None = None

    class TxnOffsetCommitResponsePartition(msgspec.Struct):
        partition_index: int = 0
        error_code: int = 0
        unknown_tags: dict[int, bytes] | None = None

    throttle_time_ms: int = 0
    topics: list[TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic] = ...
    unknown_tags: dict[int, bytes] | None = None

class DescribeProducersRequest(msgspec.Struct):
    class TopicRequest(msgspec.Struct):
        name: str = ""
        partition_indexes: list[int] = ...
        unknown_tags: dict[int, bytes] | None = None

    topics: list[DescribeProducersRequest.TopicRequest] = ...
    unknown_tags: dict[int, bytes] | None = None

class DescribeProducersResponse(msgspec.Struct):
    class TopicResponse(msgspec.Struct):
        name: str = ""
        partitions: list[DescribeProducersResponse.PartitionResponse] = ...
        unknown_tags: dict[int, bytes] | None = None

    class PartitionResponse(msgspec.Struct):
        partition_index: int = 0
        error_code: int = 0
        error_message: str | None = None
        active_producers: list[DescribeProducersResponse.ProducerState] = ...
        unknown_tags: dict[int, bytes] | None = None

    class ProducerState(msgspec.Struct):
        producer_id: int = 0
        producer_epoch: int = 0
        last_sequence: int = -1
        last_timestamp: int = -1
        coordinator_epoch: int = 0
        current_txn_start_offset: int = -1
        unknown_tags: dict[int, bytes] | None = None

    throttle_time_ms: int = 0
    topics: list[DescribeProducersResponse.TopicResponse] = ...
    unknown_tags: dict[int, bytes] | None = None

class DescribeTransactionsRequest(msgspec.Struct):
    transactional_ids: list[str] = ...
    unknown_tags: dict[int, bytes] | None = None

class DescribeTransactionsResponse(msgspec.Struct):
    class TransactionState(msgspec.Struct):
        error_code: int = 0
        transactional_id: str = ""
        transaction_state: str = ""
        transaction_timeout_ms: int = 0
        transaction_start_time_ms: int = 0
        producer_id: int = 0
        producer_epoch: int = 0
        topics: list[DescribeTransactionsResponse.TopicData] = ...
        unknown_tags: dict[int, bytes] | None = None

    class TopicData(msgspec.Struct):
        topic: str = ""
        partitions: list[int] = ...
        unknown_tags: dict[int, bytes] | None = None

    throttle_time_ms: int = 0
    transaction_states: list[DescribeTransactionsResponse.TransactionState] = ...
    unknown_tags: dict[int, bytes] | None = None

class ListTransactionsRequest(msgspec.Struct):
    state_filters: list[str] = ...
    producer_id_filters: list[int] = ...
    duration_filter: int = -1
    transactional_id_pattern: str | None = None
    unknown_tags: dict[int, bytes] | None = None

class ListTransactionsResponse(msgspec.Struct):
    class TransactionState(msgspec.Struct):
        transactional_id: str = ""
        producer_id: int = 0
        transaction_state: str = ""
        unknown_tags: dict[int, bytes] | None = None

    throttle_time_ms: int = 0
    error_code: int = 0
    unknown_state_filters: list[str] = ...
    transaction_states: list[ListTransactionsResponse.TransactionState] = ...
    unknown_tags: dict[int, bytes] | None = None

class DescribeAclsRequest(msgspec.Struct):
    resource_type_filter: int = 0
    resource_name_filter: str | None = ""
    pattern_type_filter: int = 3
    principal_filter: str | None = ""
    host_filter: str | None = ""
    operation: int = 0
    permission_type: int = 0
    unknown_tags: dict[int, bytes] | None = None

class DescribeAclsResponse(msgspec.Struct):
    class DescribeAclsResource(msgspec.Struct):
        resource_type: int = 0
        resource_name: str = ""
        pattern_type: int = 3
        acls: list[DescribeAclsResponse.AclDescription] = ...
        unknown_tags: dict[int, bytes] | None = None

    class AclDescription(msgspec.Struct):
        principal: str = ""
        host: str = ""
        operation: int = 0
        permission_type: int = 0
        unknown_tags: dict[int, bytes] | None = None

    throttle_time_ms: int = 0
    error_code: int = 0
    error_message: str | None = ""
    resources: list[DescribeAclsResponse.DescribeAclsResource] = ...
    unknown_tags: dict[int, bytes] | None = None

class CreateAclsRequest(msgspec.Struct):
    class AclCreation(msgspec.Struct):
        resource_type: int = 0
        resource_name: str = ""
        resource_pattern_type: int = 3
        principal: str = ""
        host: str = ""
        operation: int = 0
        permission_type: int = 0
        unknown_tags: dict[int, bytes] | None = None

    creations: list[CreateAclsRequest.AclCreation] = ...
    unknown_tags: dict[int, bytes] | None = None

class CreateAclsResponse(msgspec.Struct):
    class AclCreationResult(msgspec.Struct):
        error_code: int = 0
        error_message: str | None = ""
        unknown_tags: dict[int, bytes] | None = None

    throttle_time_ms: int = 0
    results: list[CreateAclsResponse.AclCreationResult] = ...
    unknown_tags: dict[int, bytes] | None = None

class DeleteAclsRequest(msgspec.Struct):
    class DeleteAclsFilter(msgspec.Struct):
        resource_type_filter: int = 0
        resource_name_filter: str | None = ""
        pattern_type_filter: int = 3
        principal_filter: str | None = ""
        host_filter: str | None = ""
        operation: int = 0
        permission_type: int = 0
        unknown_tags: dict[int, bytes] | None = None

    filters: list[DeleteAclsRequest.DeleteAclsFilter] = ...
    unknown_tags: dict[int, bytes] | None = None

class DeleteAclsResponse(msgspec.Struct):
    class DeleteAclsFilterResult(msgspec.Struct):
        error_code: int = 0
        error_message: str | None = ""
        matching_acls: list[DeleteAclsResponse.DeleteAclsMatchingAcl] = ...
        unknown_tags: dict[int, bytes] | None = None

    class DeleteAclsMatchingAcl(msgspec.Struct):
        error_code: int = 0
        error_message: str | None = ""
        resource_type: int = 0
        resource_name: str = ""
        pattern_type: int = 3
        principal: str = ""
        host: str = ""
        operation: int = 0
        permission_type: int = 0
        unknown_tags: dict[int, bytes] | None = None

    throttle_time_ms: int = 0
    filter_results: list[DeleteAclsResponse.DeleteAclsFilterResult] = ...
    unknown_tags: dict[int, bytes] | None = None

class DescribeConfigsRequest(msgspec.Struct):
    class DescribeConfigsResource(msgspec.Struct):
        resource_type: int = 0
        resource_name: str = ""
        configuration_keys: list[str] | None = ...
        unknown_tags: dict[int, bytes] | None = None

    resources: list[DescribeConfigsRequest.DescribeConfigsResource] = ...
    include_synonyms: bool = False
    include_documentation: bool = False
    unknown_tags: dict[int, bytes] | None = None

class DescribeConfigsResponse(msgspec.Struct):
    class DescribeConfigsResult(msgspec.Struct):
        error_code: int = 0
        error_message: str | None = ""
        resource_type: int = 0
        resource_name: str = ""
        configs: list[DescribeConfigsResponse.DescribeConfigsResourceResult] = ...
        unknown_tags: dict[int, bytes] | None = None

    class DescribeConfigsResourceResult(msgspec.Struct):
        name: str = ""
        value: str | None = ""
        read_only: bool = False
        config_source: int = -1
        is_sensitive: bool = False
        synonyms: list[DescribeConfigsResponse.DescribeConfigsSynonym] = ...
        config_type: int = 0
        documentation: str | None = ""
        unknown_tags: dict[int, bytes] | None = None

    class DescribeConfigsSynonym(msgspec.Struct):
        name: str = ""
        value: str | None = ""
        source: int = 0
        unknown_tags: dict[int, bytes] | None = None

    throttle_time_ms: int = 0
    results: list[DescribeConfigsResponse.DescribeConfigsResult] = ...
    unknown_tags: dict[int, bytes] | None = None

class AlterConfigsRequest(msgspec.Struct):
    class AlterConfigsResource(msgspec.Struct):
        resource_type: int = 0
        resource_name: str = ""
        configs: list[AlterConfigsRequest.AlterableConfig] = ...
        unknown_tags: dict[int, bytes] | None = None

    class AlterableConfig(msgspec.Struct):
        name: str = ""
        value: str | None = ""
        unknown_tags: dict[int, bytes] | None = None

    resources: list[AlterConfigsRequest.AlterConfigsResource] = ...
    validate_only: bool = False
    unknown_tags: dict[int, bytes] | None = None

class AlterConfigsResponse(msgspec.Struct):
    class AlterConfigsResourceResponse(msgspec.Struct):
        error_code: int = 0
        error_message: str | None = ""
        resource_type: int = 0
        resource_name: str = ""
        unknown_tags: dict[int, bytes] | None = None

    throttle_time_ms: int = 0
    responses: list[AlterConfigsResponse.AlterConfigsResourceResponse] = ...
    unknown_tags: dict[int, bytes] | None = None

class IncrementalAlterConfigsRequest(msgspec.Struct):
    class AlterConfigsResource(msgspec.Struct):
        resource_type: int = 0
        resource_name: str = ""
        configs: list[IncrementalAlterConfigsRequest.AlterableConfig] = ...
        unknown_tags: dict[int, bytes] | None = None

    class AlterableConfig(msgspec.Struct):
        name: str = ""
        config_operation: int = 0
        value: str | None = ""
        unknown_tags: dict[int, bytes] | None = None

    resources: list[IncrementalAlterConfigsRequest.AlterConfigsResource] = ...
    validate_only: bool = False
    unknown_tags: dict[int, bytes] | None = None

class IncrementalAlterConfigsResponse(msgspec.Struct):
    class AlterConfigsResourceResponse(msgspec.Struct):
        error_code: int = 0
        error_message: str | None = ""
        resource_type: int = 0
        resource_name: str = ""
        unknown_tags: dict[int, bytes] | None = None

    throttle_time_ms: int = 0
    responses: list[IncrementalAlterConfigsResponse.AlterConfigsResourceResponse] = ...
    unknown_tags: dict[int, bytes] | None = None

class ListConfigResourcesRequest(msgspec.Struct):
    resource_types: list[int] = ...
    unknown_tags: dict[int, bytes] | None = None

class ListConfigResourcesResponse(msgspec.Struct):
    class ConfigResource(msgspec.Struct):
        resource_name: str = ""
        resource_type: int = 16
        unknown_tags: dict[int, bytes] | None = None

    throttle_time_ms: int = 0
    error_code: int = 0
    config_resources: list[ListConfigResourcesResponse.ConfigResource] = ...
    unknown_tags: dict[int, bytes] | None = None

class AlterReplicaLogDirsRequest(msgspec.Struct):
    class AlterReplicaLogDir(msgspec.Struct):
        path: str = ""
        topics: list[AlterReplicaLogDirsRequest.AlterReplicaLogDirTopic] = ...
        unknown_tags: dict[int, bytes] | None = None

    class AlterReplicaLogDirTopic(msgspec.Struct):
        name: str = ""
        partitions: list[int] = ...
        unknown_tags: dict[int, bytes] | None = None

    dirs: list[AlterReplicaLogDirsRequest.AlterReplicaLogDir] = ...
    unknown_tags: dict[int, bytes] | None = None

class AlterReplicaLogDirsResponse(msgspec.Struct):
    class AlterReplicaLogDirTopicResult(msgspec.Struct):
        topic_name: str = ""
        partitions: list[AlterReplicaLogDirsResponse.AlterReplicaLogDirPartitionResult] = ...
        unknown_tags: dict[int, bytes] | None = None

    class AlterReplicaLogDirPartitionResult(msgspec.Struct):
        partition_index: int = 0
        error_code: int = 0
        unknown_tags: dict[int, bytes] | None = None

    throttle_time_ms: int = 0
    results: list[AlterReplicaLogDirsResponse.AlterReplicaLogDirTopicResult] = ...
    unknown_tags: dict[int, bytes] | None = None

class DescribeLogDirsRequest(msgspec.Struct):
    class DescribableLogDirTopic(msgspec.Struct):
        topic: str = ""
        partitions: list[int] = ...
        unknown_tags: dict[int, bytes] | None = None

    topics: list[DescribeLogDirsRequest.DescribableLogDirTopic] | None = ...
    unknown_tags: dict[int, bytes] | None = None

class DescribeLogDirsResponse(msgspec.Struct):
    class DescribeLogDirsResult(msgspec.Struct):
        error_code: int = 0
        log_dir: str = ""
        topics: list[DescribeLogDirsResponse.DescribeLogDirsTopic] = ...
        total_bytes: int = -1
        usable_bytes: int = -1
        is_cordoned: bool = False
        unknown_tags: dict[int, bytes] | None = None

    class DescribeLogDirsTopic(msgspec.Struct):
        name: str = ""
        partitions: list[DescribeLogDirsResponse.DescribeLogDirsPartition] = ...
        unknown_tags: dict[int, bytes] | None = None

    class DescribeLogDirsPartition(msgspec.Struct):
        partition_index: int = 0
        partition_size: int = 0
        offset_lag: int = 0
        is_future_key: bool = False
        unknown_tags: dict[int, bytes] | None = None

    throttle_time_ms: int = 0
    error_code: int = 0
    results: list[DescribeLogDirsResponse.DescribeLogDirsResult] = ...
    unknown_tags: dict[int, bytes] | None = None

class AssignReplicasToDirsRequest(msgspec.Struct):
    class DirectoryData(msgspec.Struct):
        id: bytes = ...
        topics: list[AssignReplicasToDirsRequest.TopicData] = ...
        unknown_tags: dict[int, bytes] | None = None

    class TopicData(msgspec.Struct):
        topic_id: bytes = ...
        partitions: list[AssignReplicasToDirsRequest.PartitionData] = ...
        unknown_tags: dict[int, bytes] | None = None

    class PartitionData(msgspec.Struct):
        partition_index: int = 0
        unknown_tags: dict[int, bytes] | None = None

    broker_id: int = 0
    broker_epoch: int = -1
    directories: list[AssignReplicasToDirsRequest.DirectoryData] = ...
    unknown_tags: dict[int, bytes] | None = None

class AssignReplicasToDirsResponse(msgspec.Struct):
    class DirectoryData(msgspec.Struct):
        id: bytes = ...
        topics: list[AssignReplicasToDirsResponse.TopicData] = ...
        unknown_tags: dict[int, bytes] | None = None

    class TopicData(msgspec.Struct):
        topic_id: bytes = ...
        partitions: list[AssignReplicasToDirsResponse.PartitionData] = ...
        unknown_tags: dict[int, bytes] | None = None

    class PartitionData(msgspec.Struct):
        partition_index: int = 0
        error_code: int = 0
        unknown_tags: dict[int, bytes] | None = None

    throttle_time_ms: int = 0
    error_code: int = 0
    directories: list[AssignReplicasToDirsResponse.DirectoryData] = ...
    unknown_tags: dict[int, bytes] | None = None

class SaslHandshakeRequest(msgspec.Struct):
    mechanism: str = ""

class SaslHandshakeResponse(msgspec.Struct):
    error_code: int = 0
    mechanisms: list[str] = ...

class SaslAuthenticateRequest(msgspec.Struct):
    auth_bytes: bytes = ...
    unknown_tags: dict[int, bytes] | None = None

class SaslAuthenticateResponse(msgspec.Struct):
    error_code: int = 0
    error_message: str | None = ""
    auth_bytes: bytes = ...
    session_lifetime_ms: int = 0
    unknown_tags: dict[int, bytes] | None = None

class DescribeUserScramCredentialsRequest(msgspec.Struct):
    class UserName(msgspec.Struct):
        name: str = ""
        unknown_tags: dict[int, bytes] | None = None

    users: list[DescribeUserScramCredentialsRequest.UserName] | None = ...
    unknown_tags: dict[int, bytes] | None = None

class DescribeUserScramCredentialsResponse(msgspec.Struct):
    class DescribeUserScramCredentialsResult(msgspec.Struct):
        user: str = ""
        error_code: int = 0
        error_message: str | None = ""
        credential_infos: list[DescribeUserScramCredentialsResponse.CredentialInfo] = ...
        unknown_tags: dict[int, bytes] | None = None

    class CredentialInfo(msgspec.Struct):
        mechanism: int = 0
        iterations: int = 0
        unknown_tags: dict[int, bytes] | None = None

    throttle_time_ms: int = 0
    error_code: int = 0
    error_message: str | None = ""
    results: list[DescribeUserScramCredentialsResponse.DescribeUserScramCredentialsResult] = ...
    unknown_tags: dict[int, bytes] | None = None

class AlterUserScramCredentialsRequest(msgspec.Struct):
    class ScramCredentialDeletion(msgspec.Struct):
        name: str = ""
        mechanism: int = 0
        unknown_tags: dict[int, bytes] | None = None

    class ScramCredentialUpsertion(msgspec.Struct):
        name: str = ""
        mechanism: int = 0
        iterations: int = 0
        salt: bytes = ...
        salted_password: bytes = ...
        unknown_tags: dict[int, bytes] | None = None

    deletions: list[AlterUserScramCredentialsRequest.ScramCredentialDeletion] = ...
    upsertions: list[AlterUserScramCredentialsRequest.ScramCredentialUpsertion] = ...
    unknown_tags: dict[int, bytes] | None = None

class AlterUserScramCredentialsResponse(msgspec.Struct):
    class AlterUserScramCredentialsResult(msgspec.Struct):
        user: str = ""
        error_code: int = 0
        error_message: str | None = ""
        unknown_tags: dict[int, bytes] | None = None

    throttle_time_ms: int = 0
    results: list[AlterUserScramCredentialsResponse.AlterUserScramCredentialsResult] = ...
    unknown_tags: dict[int, bytes] | None = None

class CreateDelegationTokenRequest(msgspec.Struct):
    class CreatableRenewers(msgspec.Struct):
        principal_type: str = ""
        principal_name: str = ""
        unknown_tags: dict[int, bytes] | None = None

    owner_principal_type: str | None = ""
    owner_principal_name: str | None = ""
    renewers: list[CreateDelegationTokenRequest.CreatableRenewers] = ...
    max_lifetime_ms: int = 0
    unknown_tags: dict[int, bytes] | None = None

class CreateDelegationTokenResponse(msgspec.Struct):
    error_code: int = 0
    principal_type: str = ""
    principal_name: str = ""
    token_requester_principal_type: str = ""
    token_requester_principal_name: str = ""
    issue_timestamp_ms: int = 0
    expiry_timestamp_ms: int = 0
    max_timestamp_ms: int = 0
    token_id: str = ""
    hmac: bytes = ...
    throttle_time_ms: int = 0
    unknown_tags: dict[int, bytes] | None = None

class RenewDelegationTokenRequest(msgspec.Struct):
    hmac: bytes = ...
    renew_period_ms: int = 0
    unknown_tags: dict[int, bytes] | None = None

class RenewDelegationTokenResponse(msgspec.Struct):
    error_code: int = 0
    expiry_timestamp_ms: int = 0
    throttle_time_ms: int = 0
    unknown_tags: dict[int, bytes] | None = None

class ExpireDelegationTokenRequest(msgspec.Struct):
    hmac: bytes = ...
    expiry_time_period_ms: int = 0
    unknown_tags: dict[int, bytes] | None = None

class ExpireDelegationTokenResponse(msgspec.Struct):
    error_code: int = 0
    expiry_timestamp_ms: int = 0
    throttle_time_ms: int = 0
    unknown_tags: dict[int, bytes] | None = None

class DescribeDelegationTokenRequest(msgspec.Struct):
    class DescribeDelegationTokenOwner(msgspec.Struct):
        principal_type: str = ""
        principal_name: str = ""
        unknown_tags: dict[int, bytes] | None = None

    owners: list[DescribeDelegationTokenRequest.DescribeDelegationTokenOwner] | None = ...
    unknown_tags: dict[int, bytes] | None = None

class DescribeDelegationTokenResponse(msgspec.Struct):
    class DescribedDelegationToken(msgspec.Struct):
        principal_type: str = ""
        principal_name: str = ""
        token_requester_principal_type: str = ""
        token_requester_principal_name: str = ""
        issue_timestamp: int = 0
        expiry_timestamp: int = 0
        max_timestamp: int = 0
        token_id: str = ""
        hmac: bytes = ...
        renewers: list[DescribeDelegationTokenResponse.DescribedDelegationTokenRenewer] = ...
        unknown_tags: dict[int, bytes] | None = None

    class DescribedDelegationTokenRenewer(msgspec.Struct):
        principal_type: str = ""
        principal_name: str = ""
        unknown_tags: dict[int, bytes] | None = None

    error_code: int = 0
    tokens: list[DescribeDelegationTokenResponse.DescribedDelegationToken] = ...
    throttle_time_ms: int = 0
    unknown_tags: dict[int, bytes] | None = None

class DescribeClientQuotasRequest(msgspec.Struct):
    class ComponentData(msgspec.Struct):
        entity_type: str = ""
        match_type: int = 0
        match: str | None = ""
        unknown_tags: dict[int, bytes] | None = None

    components: list[DescribeClientQuotasRequest.ComponentData] = ...
    strict: bool = False
    unknown_tags: dict[int, bytes] | None = None

class DescribeClientQuotasResponse(msgspec.Struct):
    class EntryData(msgspec.Struct):
        entity: list[DescribeClientQuotasResponse.EntityData] = ...
        values: list[DescribeClientQuotasResponse.ValueData] = ...
        unknown_tags: dict[int, bytes] | None = None

    class EntityData(msgspec.Struct):
        entity_type: str = ""
        entity_name: str | None = ""
        unknown_tags: dict[int, bytes] | None = None

    class ValueData(msgspec.Struct):
        key: str = ""
        value: float = 0.0
        unknown_tags: dict[int, bytes] | None = None

    throttle_time_ms: int = 0
    error_code: int = 0
    error_message: str | None = ""
    entries: list[DescribeClientQuotasResponse.EntryData] | None = ...
    unknown_tags: dict[int, bytes] | None = None

class AlterClientQuotasRequest(msgspec.Struct):
    class EntryData(msgspec.Struct):
        entity: list[AlterClientQuotasRequest.EntityData] = ...
        ops: list[AlterClientQuotasRequest.OpData] = ...
        unknown_tags: dict[int, bytes] | None = None

    class EntityData(msgspec.Struct):
        entity_type: str = ""
        entity_name: str | None = ""
        unknown_tags: dict[int, bytes] | None = None

    class OpData(msgspec.Struct):
        key: str = ""
        value: float = 0.0
        remove: bool = False
        unknown_tags: dict[int, bytes] | None = None

    entries: list[AlterClientQuotasRequest.EntryData] = ...
    validate_only: bool = False
    unknown_tags: dict[int, bytes] | None = None

class AlterClientQuotasResponse(msgspec.Struct):
    class EntryData(msgspec.Struct):
        error_code: int = 0
        error_message: str | None = ""
        entity: list[AlterClientQuotasResponse.EntityData] = ...
        unknown_tags: dict[int, bytes] | None = None

    class EntityData(msgspec.Struct):
        entity_type: str = ""
        entity_name: str | None = ""
        unknown_tags: dict[int, bytes] | None = None

    throttle_time_ms: int = 0
    entries: list[AlterClientQuotasResponse.EntryData] = ...
    unknown_tags: dict[int, bytes] | None = None

class VoteRequest(msgspec.Struct):
    class TopicData(msgspec.Struct):
        topic_name: str = ""
        partitions: list[VoteRequest.PartitionData] = ...
        unknown_tags: dict[int, bytes] | None = None

    class PartitionData(msgspec.Struct):
        partition_index: int = 0
        replica_epoch: int = 0
        replica_id: int = 0
        replica_directory_id: bytes = ...
        voter_directory_id: bytes = ...
        last_offset_epoch: int = 0
        last_offset: int = 0
        pre_vote: bool = False
        unknown_tags: dict[int, bytes] | None = None

    cluster_id: str | None = None
    voter_id: int = -1
    topics: list[VoteRequest.TopicData] = ...
    unknown_tags: dict[int, bytes] | None = None

class VoteResponse(msgspec.Struct):
    class TopicData(msgspec.Struct):
        topic_name: str = ""
        partitions: list[VoteResponse.PartitionData] = ...
        unknown_tags: dict[int, bytes] | None = None

    class PartitionData(msgspec.Struct):
        partition_index: int = 0
        error_code: int = 0
        leader_id: int = 0
        leader_epoch: int = 0
        vote_granted: bool = False
        unknown_tags: dict[int, bytes] | None = None

    class NodeEndpoint(msgspec.Struct):
        node_id: int = 0
        host: str = ""
        port: int = 0
        unknown_tags: dict[int, bytes] | None = None

    error_code: int = 0
    topics: list[VoteResponse.TopicData] = ...
    node_endpoints: list[VoteResponse.NodeEndpoint] = ...
    unknown_tags: dict[int, bytes] | None = None

class BeginQuorumEpochRequest(msgspec.Struct):
    class TopicData(msgspec.Struct):
        topic_name: str = ""
        partitions: list[BeginQuorumEpochRequest.PartitionData] = ...
        unknown_tags: dict[int, bytes] | None = None

    class PartitionData(msgspec.Struct):
        partition_index: int = 0
        voter_directory_id: bytes = ...
        leader_id: int = 0
        leader_epoch: int = 0
        unknown_tags: dict[int, bytes] | None = None

    class LeaderEndpoint(msgspec.Struct):
        name: str = ""
        host: str = ""
        port: int = 0
        unknown_tags: dict[int, bytes] | None = None

    cluster_id: str | None = None
    voter_id: int = -1
    topics: list[BeginQuorumEpochRequest.TopicData] = ...
    leader_endpoints: list[BeginQuorumEpochRequest.LeaderEndpoint] = ...
    unknown_tags: dict[int, bytes] | None = None

class BeginQuorumEpochResponse(msgspec.Struct):
    class TopicData(msgspec.Struct):
        topic_name: str = ""
        partitions: list[BeginQuorumEpochResponse.PartitionData] = ...
        unknown_tags: dict[int, bytes] | None = None

    class PartitionData(msgspec.Struct):
        partition_index: int = 0
        error_code: int = 0
        leader_id: int = 0
        leader_epoch: int = 0
        unknown_tags: dict[int, bytes] | None = None

    class NodeEndpoint(msgspec.Struct):
        node_id: int = 0
        host: str = ""
        port: int = 0
        unknown_tags: dict[int, bytes] | None = None

    error_code: int = 0
    topics: list[BeginQuorumEpochResponse.TopicData] = ...
    node_endpoints: list[BeginQuorumEpochResponse.NodeEndpoint] = ...
    unknown_tags: dict[int, bytes] | None = None

class EndQuorumEpochRequest(msgspec.Struct):
    class TopicData(msgspec.Struct):
        topic_name: str = ""
        partitions: list[EndQuorumEpochRequest.PartitionData] = ...
        unknown_tags: dict[int, bytes] | None = None

    class PartitionData(msgspec.Struct):
        partition_index: int = 0
        leader_id: int = 0
        leader_epoch: int = 0
        preferred_successors: list[int] = ...
        preferred_candidates: list[EndQuorumEpochRequest.ReplicaInfo] = ...
        unknown_tags: dict[int, bytes] | None = None

    class ReplicaInfo(msgspec.Struct):
        candidate_id: int = 0
        candidate_directory_id: bytes = ...
        unknown_tags: dict[int, bytes] | None = None

    class LeaderEndpoint(msgspec.Struct):
        name: str = ""
        host: str = ""
        port: int = 0
        unknown_tags: dict[int, bytes] | None = None

    cluster_id: str | None = None
    topics: list[EndQuorumEpochRequest.TopicData] = ...
    leader_endpoints: list[EndQuorumEpochRequest.LeaderEndpoint] = ...
    unknown_tags: dict[int, bytes] | None = None

class EndQuorumEpochResponse(msgspec.Struct):
    class TopicData(msgspec.Struct):
        topic_name: str = ""
        partitions: list[EndQuorumEpochResponse.PartitionData] = ...
        unknown_tags: dict[int, bytes] | None = None

    class PartitionData(msgspec.Struct):
        partition_index: int = 0
        error_code: int = 0
        leader_id: int = 0
        leader_epoch: int = 0
        unknown_tags: dict[int, bytes] | None = None

    class NodeEndpoint(msgspec.Struct):
        node_id: int = 0
        host: str = ""
        port: int = 0
        unknown_tags: dict[int, bytes] | None = None

    error_code: int = 0
    topics: list[EndQuorumEpochResponse.TopicData] = ...
    node_endpoints: list[EndQuorumEpochResponse.NodeEndpoint] = ...
    unknown_tags: dict[int, bytes] | None = None

class DescribeQuorumRequest(msgspec.Struct):
    class TopicData(msgspec.Struct):
        topic_name: str = ""
        partitions: list[DescribeQuorumRequest.PartitionData] = ...
        unknown_tags: dict[int, bytes] | None = None

    class PartitionData(msgspec.Struct):
        partition_index: int = 0
        unknown_tags: dict[int, bytes] | None = None

    topics: list[DescribeQuorumRequest.TopicData] = ...
    unknown_tags: dict[int, bytes] | None = None

class DescribeQuorumResponse(msgspec.Struct):
    class TopicData(msgspec.Struct):
        topic_name: str = ""
        partitions: list[DescribeQuorumResponse.PartitionData] = ...
        unknown_tags: dict[int, bytes] | None = None

    class PartitionData(msgspec.Struct):
        partition_index: int = 0
        error_code: int = 0
        error_message: str | None = ""
        leader_id: int = 0
        leader_epoch: int = 0
        high_watermark: int = 0
        current_voters: list[DescribeQuorumResponse.ReplicaState] = ...
        observers: list[DescribeQuorumResponse.ReplicaState] = ...
        unknown_tags: dict[int, bytes] | None = None

    class Node(msgspec.Struct):
        node_id: int = 0
        listeners: list[DescribeQuorumResponse.Listener] = ...
        unknown_tags: dict[int, bytes] | None = None

    class Listener(msgspec.Struct):
        name: str = ""
        host: str = ""
        port: int = 0
        unknown_tags: dict[int, bytes] | None = None

    class ReplicaState(msgspec.Struct):
        replica_id: int = 0
        replica_directory_id: bytes = ...
        log_end_offset: int = 0
        last_fetch_timestamp: int = -1
        last_caught_up_timestamp: int = -1
        unknown_tags: dict[int, bytes] | None = None

    error_code: int = 0
    error_message: str | None = ""
    topics: list[DescribeQuorumResponse.TopicData] = ...
    nodes: list[DescribeQuorumResponse.Node] = ...
    unknown_tags: dict[int, bytes] | None = None

class AddRaftVoterRequest(msgspec.Struct):
    class Listener(msgspec.Struct):
        name: str = ""
        host: str = ""
        port: int = 0
        unknown_tags: dict[int, bytes] | None = None

    cluster_id: str | None = ""
    timeout_ms: int = 0
    voter_id: int = 0
    voter_directory_id: bytes = ...
    listeners: list[AddRaftVoterRequest.Listener] = ...
    ack_when_committed: bool = True
    unknown_tags: dict[int, bytes] | None = None

class AddRaftVoterResponse(msgspec.Struct):
    throttle_time_ms: int = 0
    error_code: int = 0
    error_message: str | None = ""
    unknown_tags: dict[int, bytes] | None = None

class RemoveRaftVoterRequest(msgspec.Struct):
    cluster_id: str | None = ""
    voter_id: int = 0
    voter_directory_id: bytes = ...
    unknown_tags: dict[int, bytes] | None = None

class RemoveRaftVoterResponse(msgspec.Struct):
    throttle_time_ms: int = 0
    error_code: int = 0
    error_message: str | None = ""
    unknown_tags: dict[int, bytes] | None = None

class UpdateRaftVoterRequest(msgspec.Struct):
    class Listener(msgspec.Struct):
        name: str = ""
        host: str = ""
        port: int = 0
        unknown_tags: dict[int, bytes] | None = None

    class KRaftVersionFeature(msgspec.Struct):
        min_supported_version: int = 0
        max_supported_version: int = 0
        unknown_tags: dict[int, bytes] | None = None

    cluster_id: str | None = ""
    current_leader_epoch: int = 0
    voter_id: int = 0
    voter_directory_id: bytes = ...
    listeners: list[UpdateRaftVoterRequest.Listener] = ...
    k_raft_version_feature: UpdateRaftVoterRequest.KRaftVersionFeature = ...
    unknown_tags: dict[int, bytes] | None = None

class UpdateRaftVoterResponse(msgspec.Struct):
    class CurrentLeader(msgspec.Struct):
        leader_id: int = -1
        leader_epoch: int = -1
        host: str = ""
        port: int = 0
        unknown_tags: dict[int, bytes] | None = None

    throttle_time_ms: int = 0
    error_code: int = 0
    current_leader: UpdateRaftVoterResponse.CurrentLeader = ...
    unknown_tags: dict[int, bytes] | None = None

class AlterPartitionRequest(msgspec.Struct):
    class TopicData(msgspec.Struct):
        topic_id: bytes = ...
        partitions: list[AlterPartitionRequest.PartitionData] = ...
        unknown_tags: dict[int, bytes] | None = None

    class PartitionData(msgspec.Struct):
        partition_index: int = 0
        leader_epoch: int = 0
        new_isr: list[int] = ...
        new_isr_with_epochs: list[AlterPartitionRequest.BrokerState] = ...
        leader_recovery_state: int = 0
        partition_epoch: int = 0
        unknown_tags: dict[int, bytes] | None = None

    class BrokerState(msgspec.Struct):
        broker_id: int = 0
        broker_epoch: int = -1
        unknown_tags: dict[int, bytes] | None = None

    broker_id: int = 0
    broker_epoch: int = -1
    topics: list[AlterPartitionRequest.TopicData] = ...
    unknown_tags: dict[int, bytes] | None = None

class AlterPartitionResponse(msgspec.Struct):
    class TopicData(msgspec.Struct):
        topic_id: bytes = ...
        partitions: list[AlterPartitionResponse.PartitionData] = ...
        unknown_tags: dict[int, bytes] | None = None

    class PartitionData(msgspec.Struct):
        partition_index: int = 0
        error_code: int = 0
        leader_id: int = 0
        leader_epoch: int = 0
        isr: list[int] = ...
        leader_recovery_state: int = 0
        partition_epoch: int = 0
        unknown_tags: dict[int, bytes] | None = None

    throttle_time_ms: int = 0
    error_code: int = 0
    topics: list[AlterPartitionResponse.TopicData] = ...
    unknown_tags: dict[int, bytes] | None = None

class UpdateFeaturesRequest(msgspec.Struct):
    class FeatureUpdateKey(msgspec.Struct):
        feature: str = ""
        max_version_level: int = 0
        allow_downgrade: bool = False
        upgrade_type: int = 1
        unknown_tags: dict[int, bytes] | None = None

    timeout_ms: int = 60000
    feature_updates: list[UpdateFeaturesRequest.FeatureUpdateKey] = ...
    validate_only: bool = False
    unknown_tags: dict[int, bytes] | None = None

class UpdateFeaturesResponse(msgspec.Struct):
    class UpdatableFeatureResult(msgspec.Struct):
        feature: str = ""
        error_code: int = 0
        error_message: str | None = ""
        unknown_tags: dict[int, bytes] | None = None

    throttle_time_ms: int = 0
    error_code: int = 0
    error_message: str | None = ""
    results: list[UpdateFeaturesResponse.UpdatableFeatureResult] = ...
    unknown_tags: dict[int, bytes] | None = None

class EnvelopeRequest(msgspec.Struct):
    request_data: bytes = ...
    request_principal: bytes | None = ...
    client_host_address: bytes = ...
    unknown_tags: dict[int, bytes] | None = None

class EnvelopeResponse(msgspec.Struct):
    response_data: bytes | None = None
    error_code: int = 0
    unknown_tags: dict[int, bytes] | None = None

class BrokerRegistrationRequest(msgspec.Struct):
    class Listener(msgspec.Struct):
        name: str = ""
        host: str = ""
        port: int = 0
        security_protocol: int = 0
        unknown_tags: dict[int, bytes] | None = None

    class Feature(msgspec.Struct):
        name: str = ""
        min_supported_version: int = 0
        max_supported_version: int = 0
        unknown_tags: dict[int, bytes] | None = None

    broker_id: int = 0
    cluster_id: str = ""
    incarnation_id: bytes = ...
    listeners: list[BrokerRegistrationRequest.Listener] = ...
    features: list[BrokerRegistrationRequest.Feature] = ...
    rack: str | None = ""
    is_migrating_zk_broker: bool = False
    log_dirs: list[bytes] = ...
    previous_broker_epoch: int = -1
    unknown_tags: dict[int, bytes] | None = None

class BrokerRegistrationResponse(msgspec.Struct):
    throttle_time_ms: int = 0
    error_code: int = 0
    broker_epoch: int = -1
    unknown_tags: dict[int, bytes] | None = None

class BrokerHeartbeatRequest(msgspec.Struct):
    broker_id: int = 0
    broker_epoch: int = -1
    current_metadata_offset: int = 0
    want_fence: bool = False
    want_shut_down: bool = False
    offline_log_dirs: list[bytes] = ...
    cordoned_log_dirs: list[bytes] | None = None
    unknown_tags: dict[int, bytes] | None = None

class BrokerHeartbeatResponse(msgspec.Struct):
    throttle_time_ms: int = 0
    error_code: int = 0
    is_caught_up: bool = False
    is_fenced: bool = True
    should_shut_down: bool = False
    unknown_tags: dict[int, bytes] | None = None

class UnregisterBrokerRequest(msgspec.Struct):
    broker_id: int = 0
    unknown_tags: dict[int, bytes] | None = None

class UnregisterBrokerResponse(msgspec.Struct):
    throttle_time_ms: int = 0
    error_code: int = 0
    error_message: str | None = ""
    unknown_tags: dict[int, bytes] | None = None

class AllocateProducerIdsRequest(msgspec.Struct):
    broker_id: int = 0
    broker_epoch: int = -1
    unknown_tags: dict[int, bytes] | None = None

class AllocateProducerIdsResponse(msgspec.Struct):
    throttle_time_ms: int = 0
    error_code: int = 0
    producer_id_start: int = 0
    producer_id_len: int = 0
    unknown_tags: dict[int, bytes] | None = None

class ControllerRegistrationRequest(msgspec.Struct):
    class Listener(msgspec.Struct):
        name: str = ""
        host: str = ""
        port: int = 0
        security_protocol: int = 0
        unknown_tags: dict[int, bytes] | None = None

    class Feature(msgspec.Struct):
        name: str = ""
        min_supported_version: int = 0
        max_supported_version: int = 0
        unknown_tags: dict[int, bytes] | None = None

    controller_id: int = 0
    incarnation_id: bytes = ...
    zk_migration_ready: bool = False
    listeners: list[ControllerRegistrationRequest.Listener] = ...
    features: list[ControllerRegistrationRequest.Feature] = ...
    unknown_tags: dict[int, bytes] | None = None

class ControllerRegistrationResponse(msgspec.Struct):
    throttle_time_ms: int = 0
    error_code: int = 0
    error_message: str | None = ""
    unknown_tags: dict[int, bytes] | None = None

class GetTelemetrySubscriptionsRequest(msgspec.Struct):
    client_instance_id: bytes = ...
    unknown_tags: dict[int, bytes] | None = None

class GetTelemetrySubscriptionsResponse(msgspec.Struct):
    throttle_time_ms: int = 0
    error_code: int = 0
    client_instance_id: bytes = ...
    subscription_id: int = 0
    accepted_compression_types: list[int] = ...
    push_interval_ms: int = 0
    telemetry_max_bytes: int = 0
    delta_temporality: bool = False
    requested_metrics: list[str] = ...
    unknown_tags: dict[int, bytes] | None = None

class PushTelemetryRequest(msgspec.Struct):
    client_instance_id: bytes = ...
    subscription_id: int = 0
    terminating: bool = False
    compression_type: int = 0
    metrics: bytes = ...
    unknown_tags: dict[int, bytes] | None = None

class PushTelemetryResponse(msgspec.Struct):
    throttle_time_ms: int = 0
    error_code: int = 0
    unknown_tags: dict[int, bytes] | None = None

class RequestHeader(msgspec.Struct):
    request_api_key: int = 0
    request_api_version: int = 0
    correlation_id: int = 0
    client_id: str | None = ""
    unknown_tags: dict[int, bytes] | None = None

class ResponseHeader(msgspec.Struct):
    correlation_id: int = 0
    unknown_tags: dict[int, bytes] | None = None

class RegisterBrokerRecord(msgspec.Struct):
    class BrokerEndpoint(msgspec.Struct):
        name: str = ""
        host: str = ""
        port: int = 0
        security_protocol: int = 0
        unknown_tags: dict[int, bytes] | None = None

    class BrokerFeature(msgspec.Struct):
        name: str = ""
        min_supported_version: int = 0
        max_supported_version: int = 0
        unknown_tags: dict[int, bytes] | None = None

    broker_id: int = 0
    is_migrating_zk_broker: bool = False
    incarnation_id: bytes = ...
    broker_epoch: int = 0
    end_points: list[RegisterBrokerRecord.BrokerEndpoint] = ...
    features: list[RegisterBrokerRecord.BrokerFeature] = ...
    rack: str | None = ""
    fenced: bool = True
    in_controlled_shutdown: bool = False
    log_dirs: list[bytes] = ...
    cordoned_log_dirs: list[bytes] | None = None
    unknown_tags: dict[int, bytes] | None = None

class UnregisterBrokerRecord(msgspec.Struct):
    broker_id: int = 0
    broker_epoch: int = 0
    unknown_tags: dict[int, bytes] | None = None

class TopicRecord(msgspec.Struct):
    name: str = ""
    topic_id: bytes = ...
    unknown_tags: dict[int, bytes] | None = None

class PartitionRecord(msgspec.Struct):
    partition_id: int = -1
    topic_id: bytes = ...
    replicas: list[int] = ...
    isr: list[int] = ...
    removing_replicas: list[int] = ...
    adding_replicas: list[int] = ...
    leader: int = -1
    leader_recovery_state: int = 0
    leader_epoch: int = -1
    partition_epoch: int = -1
    directories: list[bytes] = ...
    eligible_leader_replicas: list[int] | None = None
    last_known_elr: list[int] | None = None
    unknown_tags: dict[int, bytes] | None = None

class ConfigRecord(msgspec.Struct):
    resource_type: int = 0
    resource_name: str = ""
    name: str = ""
    value: str | None = ""
    unknown_tags: dict[int, bytes] | None = None

class PartitionChangeRecord(msgspec.Struct):
    partition_id: int = -1
    topic_id: bytes = ...
    isr: list[int] | None = None
    leader: int = -2
    replicas: list[int] | None = None
    removing_replicas: list[int] | None = None
    adding_replicas: list[int] | None = None
    leader_recovery_state: int = -1
    directories: list[bytes] | None = None
    eligible_leader_replicas: list[int] | None = None
    last_known_elr: list[int] | None = None
    unknown_tags: dict[int, bytes] | None = None

class FenceBrokerRecord(msgspec.Struct):
    id: int = 0
    epoch: int = 0
    unknown_tags: dict[int, bytes] | None = None

class UnfenceBrokerRecord(msgspec.Struct):
    id: int = 0
    epoch: int = 0
    unknown_tags: dict[int, bytes] | None = None

class RemoveTopicRecord(msgspec.Struct):
    topic_id: bytes = ...
    unknown_tags: dict[int, bytes] | None = None

class DelegationTokenRecord(msgspec.Struct):
    owner: str = ""
    requester: str = ""
    renewers: list[str] = ...
    issue_timestamp: int = 0
    max_timestamp: int = 0
    expiration_timestamp: int = 0
    token_id: str = ""
    unknown_tags: dict[int, bytes] | None = None

class UserScramCredentialRecord(msgspec.Struct):
    name: str = ""
    mechanism: int = 0
    salt: bytes = ...
    stored_key: bytes = ...
    server_key: bytes = ...
    iterations: int = 0
    unknown_tags: dict[int, bytes] | None = None

class FeatureLevelRecord(msgspec.Struct):
    name: str = ""
    feature_level: int = 0
    unknown_tags: dict[int, bytes] | None = None

class ClientQuotaRecord(msgspec.Struct):
    class EntityData(msgspec.Struct):
        entity_type: str = ""
        entity_name: str | None = ""
        unknown_tags: dict[int, bytes] | None = None

    entity: list[ClientQuotaRecord.EntityData] = ...
    key: str = ""
    value: float = 0.0
    remove: bool = False
    unknown_tags: dict[int, bytes] | None = None

class ProducerIdsRecord(msgspec.Struct):
    broker_id: int = 0
    broker_epoch: int = -1
    next_producer_id: int = 0
    unknown_tags: dict[int, bytes] | None = None

class BrokerRegistrationChangeRecord(msgspec.Struct):
    broker_id: int = 0
    broker_epoch: int = 0
    fenced: int = 0
    in_controlled_shutdown: int = 0
    log_dirs: list[bytes] = ...
    cordoned_log_dirs: list[bytes] | None = None
    unknown_tags: dict[int, bytes] | None = None

class AccessControlEntryRecord(msgspec.Struct):
    id: bytes = ...
    resource_type: int = 0
    resource_name: str = ""
    pattern_type: int = 0
    principal: str = ""
    host: str = ""
    operation: int = 0
    permission_type: int = 0
    unknown_tags: dict[int, bytes] | None = None

class RemoveAccessControlEntryRecord(msgspec.Struct):
    id: bytes = ...
    unknown_tags: dict[int, bytes] | None = None

class NoOpRecord(msgspec.Struct):
    unknown_tags: dict[int, bytes] | None = None

class ZkMigrationStateRecord(msgspec.Struct):
    zk_migration_state: int = 0
    unknown_tags: dict[int, bytes] | None = None

class RemoveUserScramCredentialRecord(msgspec.Struct):
    name: str = ""
    mechanism: int = 0
    unknown_tags: dict[int, bytes] | None = None

class BeginTransactionRecord(msgspec.Struct):
    name: str | None = None
    unknown_tags: dict[int, bytes] | None = None

class EndTransactionRecord(msgspec.Struct):
    unknown_tags: dict[int, bytes] | None = None

class AbortTransactionRecord(msgspec.Struct):
    reason: str | None = None
    unknown_tags: dict[int, bytes] | None = None

class RemoveDelegationTokenRecord(msgspec.Struct):
    token_id: str = ""
    unknown_tags: dict[int, bytes] | None = None

class RegisterControllerRecord(msgspec.Struct):
    class ControllerEndpoint(msgspec.Struct):
        name: str = ""
        host: str = ""
        port: int = 0
        security_protocol: int = 0
        unknown_tags: dict[int, bytes] | None = None

    class ControllerFeature(msgspec.Struct):
        name: str = ""
        min_supported_version: int = 0
        max_supported_version: int = 0
        unknown_tags: dict[int, bytes] | None = None

    controller_id: int = 0
    incarnation_id: bytes = ...
    zk_migration_ready: bool = False
    end_points: list[RegisterControllerRecord.ControllerEndpoint] = ...
    features: list[RegisterControllerRecord.ControllerFeature] = ...
    unknown_tags: dict[int, bytes] | None = None

class ClearElrRecord(msgspec.Struct):
    topic_name: str = ""
    unknown_tags: dict[int, bytes] | None = None

class LegacyOffsetCommitKey(msgspec.Struct):
    group: str = ""
    topic: str = ""
    partition: int = 0

class LegacyOffsetCommitValue(msgspec.Struct):
    offset: int = 0
    metadata: str = ""
    commit_timestamp: int = 0

class OffsetCommitKey(msgspec.Struct):
    group: str = ""
    topic: str = ""
    partition: int = 0

class OffsetCommitValue(msgspec.Struct):
    offset: int = 0
    leader_epoch: int = -1
    metadata: str = ""
    commit_timestamp: int = 0
    expire_timestamp: int = -1
    topic_id: bytes = ...
    unknown_tags: dict[int, bytes] | None = None

class GroupMetadataKey(msgspec.Struct):
    group: str = ""

class GroupMetadataValue(msgspec.Struct):
    class MemberMetadata(msgspec.Struct):
        member_id: str = ""
        group_instance_id: str | None = None
        client_id: str = ""
        client_host: str = ""
        rebalance_timeout: int = -1
        session_timeout: int = 0
        subscription: bytes = ...
        assignment: bytes = ...
        unknown_tags: dict[int, bytes] | None = None

    protocol_type: str = ""
    generation: int = 0
    protocol: str | None = ""
    leader: str | None = ""
    current_state_timestamp: int = -1
    members: list[GroupMetadataValue.MemberMetadata] = ...
    unknown_tags: dict[int, bytes] | None = None

class ConsumerGroupMetadataKey(msgspec.Struct):
    group_id: str = ""

class ConsumerGroupMetadataValue(msgspec.Struct):
    epoch: int = 0
    metadata_hash: int = 0
    unknown_tags: dict[int, bytes] | None = None

class ConsumerGroupPartitionMetadataKey(msgspec.Struct):
    group_id: str = ""

class ConsumerGroupPartitionMetadataValue(msgspec.Struct):
    class TopicMetadata(msgspec.Struct):
        topic_id: bytes = ...
        topic_name: str = ""
        num_partitions: int = 0
        partition_metadata: list[ConsumerGroupPartitionMetadataValue.PartitionMetadata] = ...
        unknown_tags: dict[int, bytes] | None = None

    class PartitionMetadata(msgspec.Struct):
        partition: int = 0
        racks: list[str] = ...
        unknown_tags: dict[int, bytes] | None = None

    topics: list[ConsumerGroupPartitionMetadataValue.TopicMetadata] = ...
    unknown_tags: dict[int, bytes] | None = None

class ConsumerGroupMemberMetadataKey(msgspec.Struct):
    group_id: str = ""
    member_id: str = ""

class ConsumerGroupMemberMetadataValue(msgspec.Struct):
    class ClassicMemberMetadata(msgspec.Struct):
        session_timeout_ms: int = 0
        supported_protocols: list[ConsumerGroupMemberMetadataValue.ClassicProtocol] = ...
        unknown_tags: dict[int, bytes] | None = None

    class ClassicProtocol(msgspec.Struct):
        name: str = ""
        metadata: bytes = ...
        unknown_tags: dict[int, bytes] | None = None

    instance_id: str | None = ""
    rack_id: str | None = ""
    client_id: str = ""
    client_host: str = ""
    subscribed_topic_names: list[str] = ...
    subscribed_topic_regex: str | None = ""
    rebalance_timeout_ms: int = -1
    server_assignor: str | None = ""
    classic_member_metadata: ConsumerGroupMemberMetadataValue.ClassicMemberMetadata | None = ...
    unknown_tags: dict[int, bytes] | None = None

class ConsumerGroupTargetAssignmentMetadataKey(msgspec.Struct):
    group_id: str = ""

class ConsumerGroupTargetAssignmentMetadataValue(msgspec.Struct):
    assignment_epoch: int = 0
    assignment_timestamp: int = 0
    unknown_tags: dict[int, bytes] | None = None

class ConsumerGroupTargetAssignmentMemberKey(msgspec.Struct):
    group_id: str = ""
    member_id: str = ""

class ConsumerGroupTargetAssignmentMemberValue(msgspec.Struct):
    class TopicPartition(msgspec.Struct):
        topic_id: bytes = ...
        partitions: list[int] = ...
        unknown_tags: dict[int, bytes] | None = None

    topic_partitions: list[ConsumerGroupTargetAssignmentMemberValue.TopicPartition] = ...
    unknown_tags: dict[int, bytes] | None = None

class ConsumerGroupCurrentMemberAssignmentKey(msgspec.Struct):
    group_id: str = ""
    member_id: str = ""

class ConsumerGroupCurrentMemberAssignmentValue(msgspec.Struct):
    class TopicPartitions(msgspec.Struct):
        topic_id: bytes = ...
        partitions: list[int] = ...
        assignment_epochs: list[int] | None = ...
        unknown_tags: dict[int, bytes] | None = None

    member_epoch: int = 0
    previous_member_epoch: int = 0
    state: int = 0
    assigned_partitions: list[ConsumerGroupCurrentMemberAssignmentValue.TopicPartitions] = ...
    partitions_pending_revocation: list[ConsumerGroupCurrentMemberAssignmentValue.TopicPartitions] = ...
    unknown_tags: dict[int, bytes] | None = None

class ShareGroupMemberMetadataKey(msgspec.Struct):
    group_id: str = ""
    member_id: str = ""

class ShareGroupMemberMetadataValue(msgspec.Struct):
    rack_id: str | None = ""
    client_id: str = ""
    client_host: str = ""
    subscribed_topic_names: list[str] = ...
    unknown_tags: dict[int, bytes] | None = None

class ShareGroupMetadataKey(msgspec.Struct):
    group_id: str = ""

class ShareGroupMetadataValue(msgspec.Struct):
    epoch: int = 0
    metadata_hash: int = 0
    unknown_tags: dict[int, bytes] | None = None

class ShareGroupTargetAssignmentMetadataKey(msgspec.Struct):
    group_id: str = ""

class ShareGroupTargetAssignmentMetadataValue(msgspec.Struct):
    assignment_epoch: int = 0
    assignment_timestamp: int = 0
    unknown_tags: dict[int, bytes] | None = None

class ShareGroupTargetAssignmentMemberKey(msgspec.Struct):
    group_id: str = ""
    member_id: str = ""

class ShareGroupTargetAssignmentMemberValue(msgspec.Struct):
    class TopicPartition(msgspec.Struct):
        topic_id: bytes = ...
        partitions: list[int] = ...
        unknown_tags: dict[int, bytes] | None = None

    topic_partitions: list[ShareGroupTargetAssignmentMemberValue.TopicPartition] = ...
    unknown_tags: dict[int, bytes] | None = None

class ShareGroupCurrentMemberAssignmentKey(msgspec.Struct):
    group_id: str = ""
    member_id: str = ""

class ShareGroupCurrentMemberAssignmentValue(msgspec.Struct):
    class TopicPartitions(msgspec.Struct):
        topic_id: bytes = ...
        partitions: list[int] = ...
        unknown_tags: dict[int, bytes] | None = None

    member_epoch: int = 0
    previous_member_epoch: int = 0
    state: int = 0
    assigned_partitions: list[ShareGroupCurrentMemberAssignmentValue.TopicPartitions] = ...
    unknown_tags: dict[int, bytes] | None = None

class ShareGroupStatePartitionMetadataKey(msgspec.Struct):
    group_id: str = ""

class ShareGroupStatePartitionMetadataValue(msgspec.Struct):
    class TopicPartitionsInfo(msgspec.Struct):
        topic_id: bytes = ...
        topic_name: str = ""
        partitions: list[int] = ...
        unknown_tags: dict[int, bytes] | None = None

    class TopicInfo(msgspec.Struct):
        topic_id: bytes = ...
        topic_name: str = ""
        unknown_tags: dict[int, bytes] | None = None

    initializing_topics: list[ShareGroupStatePartitionMetadataValue.TopicPartitionsInfo] = ...
    initialized_topics: list[ShareGroupStatePartitionMetadataValue.TopicPartitionsInfo] = ...
    deleting_topics: list[ShareGroupStatePartitionMetadataValue.TopicInfo] = ...
    unknown_tags: dict[int, bytes] | None = None

class ConsumerGroupRegularExpressionKey(msgspec.Struct):
    group_id: str = ""
    regular_expression: str = ""

class ConsumerGroupRegularExpressionValue(msgspec.Struct):
    topics: list[str] = ...
    version: int = 0
    timestamp: int = 0
    unknown_tags: dict[int, bytes] | None = None

class StreamsGroupMetadataKey(msgspec.Struct):
    group_id: str = ""

class StreamsGroupMetadataValue(msgspec.Struct):
    class LastAssignmentConfig(msgspec.Struct):
        key: str = ""
        value: str = ""
        unknown_tags: dict[int, bytes] | None = None

    epoch: int = 0
    metadata_hash: int = 0
    validated_topology_epoch: int = -1
    last_assignment_configs: list[StreamsGroupMetadataValue.LastAssignmentConfig] | None = ...
    unknown_tags: dict[int, bytes] | None = None

class StreamsGroupMemberMetadataKey(msgspec.Struct):
    group_id: str = ""
    member_id: str = ""

class StreamsGroupMemberMetadataValue(msgspec.Struct):
    class Endpoint(msgspec.Struct):
        host: str = ""
        port: int = 0
        unknown_tags: dict[int, bytes] | None = None

    class KeyValue(msgspec.Struct):
        key: str = ""
        value: str = ""
        unknown_tags: dict[int, bytes] | None = None

    instance_id: str | None = ""
    rack_id: str | None = ""
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int = -1
    topology_epoch: int = 0
    process_id: str = ""
    user_endpoint: StreamsGroupMemberMetadataValue.Endpoint | None = None
    client_tags: list[StreamsGroupMemberMetadataValue.KeyValue] = ...
    unknown_tags: dict[int, bytes] | None = None

class StreamsGroupTargetAssignmentMetadataKey(msgspec.Struct):
    group_id: str = ""

class StreamsGroupTargetAssignmentMetadataValue(msgspec.Struct):
    assignment_epoch: int = 0
    assignment_timestamp: int = 0
    unknown_tags: dict[int, bytes] | None = None

class StreamsGroupTargetAssignmentMemberKey(msgspec.Struct):
    group_id: str = ""
    member_id: str = ""

class StreamsGroupTargetAssignmentMemberValue(msgspec.Struct):
    class TaskIds(msgspec.Struct):
        subtopology_id: str = ""
        partitions: list[int] = ...
        unknown_tags: dict[int, bytes] | None = None

    active_tasks: list[StreamsGroupTargetAssignmentMemberValue.TaskIds] = ...
    standby_tasks: list[StreamsGroupTargetAssignmentMemberValue.TaskIds] = ...
    warmup_tasks: list[StreamsGroupTargetAssignmentMemberValue.TaskIds] = ...
    unknown_tags: dict[int, bytes] | None = None

class StreamsGroupCurrentMemberAssignmentKey(msgspec.Struct):
    group_id: str = ""
    member_id: str = ""

class StreamsGroupCurrentMemberAssignmentValue(msgspec.Struct):
    class TaskIds(msgspec.Struct):
        subtopology_id: str = ""
        partitions: list[int] = ...
        assignment_epochs: list[int] | None = ...
        unknown_tags: dict[int, bytes] | None = None

    member_epoch: int = 0
    previous_member_epoch: int = 0
    state: int = 0
    active_tasks: list[StreamsGroupCurrentMemberAssignmentValue.TaskIds] = ...
    standby_tasks: list[StreamsGroupCurrentMemberAssignmentValue.TaskIds] = ...
    warmup_tasks: list[StreamsGroupCurrentMemberAssignmentValue.TaskIds] = ...
    active_tasks_pending_revocation: list[StreamsGroupCurrentMemberAssignmentValue.TaskIds] = ...
    standby_tasks_pending_revocation: list[StreamsGroupCurrentMemberAssignmentValue.TaskIds] = ...
    warmup_tasks_pending_revocation: list[StreamsGroupCurrentMemberAssignmentValue.TaskIds] = ...
    unknown_tags: dict[int, bytes] | None = None

class StreamsGroupTopologyKey(msgspec.Struct):
    group_id: str = ""

class StreamsGroupTopologyValue(msgspec.Struct):
    class Subtopology(msgspec.Struct):
        subtopology_id: str = ""
        source_topics: list[str] = ...
        source_topic_regex: list[str] = ...
        state_changelog_topics: list[StreamsGroupTopologyValue.TopicInfo] = ...
        repartition_sink_topics: list[str] = ...
        repartition_source_topics: list[StreamsGroupTopologyValue.TopicInfo] = ...
        copartition_groups: list[StreamsGroupTopologyValue.CopartitionGroup] = ...
        unknown_tags: dict[int, bytes] | None = None

    class CopartitionGroup(msgspec.Struct):
        source_topics: list[int] = ...
        source_topic_regex: list[int] = ...
        repartition_source_topics: list[int] = ...
        unknown_tags: dict[int, bytes] | None = None

    class TopicConfig(msgspec.Struct):
        key: str = ""
        value: str = ""
        unknown_tags: dict[int, bytes] | None = None

    class TopicInfo(msgspec.Struct):
        name: str = ""
        partitions: int = 0
        replication_factor: int = 0
        topic_configs: list[StreamsGroupTopologyValue.TopicConfig] = ...
        unknown_tags: dict[int, bytes] | None = None

    epoch: int = 0
    subtopologies: list[StreamsGroupTopologyValue.Subtopology] = ...
    unknown_tags: dict[int, bytes] | None = None

class TransactionLogKey(msgspec.Struct):
    transactional_id: str = ""

class TransactionLogValue(msgspec.Struct):
    class PartitionsSchema(msgspec.Struct):
        topic: str = ""
        partition_ids: list[int] = ...
        unknown_tags: dict[int, bytes] | None = None

    producer_id: int = 0
    previous_producer_id: int = -1
    next_producer_id: int = -1
    producer_epoch: int = 0
    next_producer_epoch: int = -1
    transaction_timeout_ms: int = 0
    transaction_status: int = 0
    transaction_partitions: list[TransactionLogValue.PartitionsSchema] | None = ...
    transaction_last_update_timestamp_ms: int = 0
    transaction_start_timestamp_ms: int = 0
    client_transaction_version: int = 0
    unknown_tags: dict[int, bytes] | None = None

class ShareSnapshotKey(msgspec.Struct):
    group_id: str = ""
    topic_id: bytes = ...
    partition: int = 0

class ShareSnapshotValue(msgspec.Struct):
    class StateBatch(msgspec.Struct):
        first_offset: int = 0
        last_offset: int = 0
        delivery_state: int = 0
        delivery_count: int = 0
        unknown_tags: dict[int, bytes] | None = None

    snapshot_epoch: int = 0
    state_epoch: int = 0
    leader_epoch: int = 0
    start_offset: int = 0
    delivery_complete_count: int = -1
    create_timestamp: int = 0
    write_timestamp: int = 0
    state_batches: list[ShareSnapshotValue.StateBatch] = ...
    unknown_tags: dict[int, bytes] | None = None

class ShareUpdateKey(msgspec.Struct):
    group_id: str = ""
    topic_id: bytes = ...
    partition: int = 0

class ShareUpdateValue(msgspec.Struct):
    class StateBatch(msgspec.Struct):
        first_offset: int = 0
        last_offset: int = 0
        delivery_state: int = 0
        delivery_count: int = 0
        unknown_tags: dict[int, bytes] | None = None

    snapshot_epoch: int = 0
    leader_epoch: int = 0
    start_offset: int = 0
    delivery_complete_count: int = -1
    state_batches: list[ShareUpdateValue.StateBatch] = ...
    unknown_tags: dict[int, bytes] | None = None

class RemoteLogSegmentMetadataRecord(msgspec.Struct):
    class RemoteLogSegmentIdEntry(msgspec.Struct):
        topic_id_partition: RemoteLogSegmentMetadataRecord.TopicIdPartitionEntry = ...
        id: bytes = ...
        unknown_tags: dict[int, bytes] | None = None

    class TopicIdPartitionEntry(msgspec.Struct):
        name: str = ""
        id: bytes = ...
        partition: int = 0
        unknown_tags: dict[int, bytes] | None = None

    class SegmentLeaderEpochEntry(msgspec.Struct):
        leader_epoch: int = 0
        offset: int = 0
        unknown_tags: dict[int, bytes] | None = None

    remote_log_segment_id: RemoteLogSegmentMetadataRecord.RemoteLogSegmentIdEntry = ...
    start_offset: int = 0
    end_offset: int = 0
    broker_id: int = 0
    max_timestamp_ms: int = 0
    event_timestamp_ms: int = 0
    segment_leader_epochs: list[RemoteLogSegmentMetadataRecord.SegmentLeaderEpochEntry] = ...
    segment_size_in_bytes: int = 0
    custom_metadata: bytes | None = None
    remote_log_segment_state: int = 0
    txn_index_empty: bool = False
    unknown_tags: dict[int, bytes] | None = None

class RemoteLogSegmentMetadataUpdateRecord(msgspec.Struct):
    class RemoteLogSegmentIdEntry(msgspec.Struct):
        topic_id_partition: RemoteLogSegmentMetadataUpdateRecord.TopicIdPartitionEntry = ...
        id: bytes = ...
        unknown_tags: dict[int, bytes] | None = None

    class TopicIdPartitionEntry(msgspec.Struct):
        name: str = ""
        id: bytes = ...
        partition: int = 0
        unknown_tags: dict[int, bytes] | None = None

    remote_log_segment_id: RemoteLogSegmentMetadataUpdateRecord.RemoteLogSegmentIdEntry = ...
    broker_id: int = 0
    event_timestamp_ms: int = 0
    custom_metadata: bytes | None = None
    remote_log_segment_state: int = 0
    unknown_tags: dict[int, bytes] | None = None

class RemotePartitionDeleteMetadataRecord(msgspec.Struct):
    class TopicIdPartitionEntry(msgspec.Struct):
        name: str = ""
        id: bytes = ...
        partition: int = 0
        unknown_tags: dict[int, bytes] | None = None

    topic_id_partition: RemotePartitionDeleteMetadataRecord.TopicIdPartitionEntry = ...
    broker_id: int = 0
    event_timestamp_ms: int = 0
    remote_partition_delete_state: int = 0
    unknown_tags: dict[int, bytes] | None = None

class RemoteLogSegmentMetadataSnapshotRecord(msgspec.Struct):
    class SegmentLeaderEpochEntry(msgspec.Struct):
        leader_epoch: int = 0
        offset: int = 0
        unknown_tags: dict[int, bytes] | None = None

    segment_id: bytes = ...
    start_offset: int = 0
    end_offset: int = 0
    broker_id: int = 0
    max_timestamp_ms: int = 0
    event_timestamp_ms: int = 0
    segment_leader_epochs: list[RemoteLogSegmentMetadataSnapshotRecord.SegmentLeaderEpochEntry] = ...
    segment_size_in_bytes: int = 0
    custom_metadata: bytes | None = None
    remote_log_segment_state: int = 0
    txn_index_empty: bool = False
    unknown_tags: dict[int, bytes] | None = None

class ConsumerProtocolAssignment(msgspec.Struct):
    class TopicPartition(msgspec.Struct):
        topic: str = ""
        partitions: list[int] = ...

    assigned_partitions: list[ConsumerProtocolAssignment.TopicPartition] = ...
    user_data: bytes | None = None

class ConsumerProtocolSubscription(msgspec.Struct):
    class TopicPartition(msgspec.Struct):
        topic: str = ""
        partitions: list[int] = ...

    topics: list[str] = ...
    user_data: bytes | None = None
    owned_partitions: list[ConsumerProtocolSubscription.TopicPartition] = ...
    generation_id: int = -1
    rack_id: str | None = None

class ControlRecordTypeSchema(msgspec.Struct):
    type: int = 0

class DefaultPrincipalData(msgspec.Struct):
    type: str = ""
    name: str = ""
    token_authenticated: bool = False
    unknown_tags: dict[int, bytes] | None = None

class EndTxnMarker(msgspec.Struct):
    coordinator_epoch: int = 0

class KRaftVersionRecord(msgspec.Struct):
    version: int = 0
    k_raft_version: int = 0
    unknown_tags: dict[int, bytes] | None = None

class LeaderChangeMessage(msgspec.Struct):
    class Voter(msgspec.Struct):
        voter_id: int = 0
        voter_directory_id: bytes = ...
        unknown_tags: dict[int, bytes] | None = None

    version: int = 0
    leader_id: int = 0
    voters: list[LeaderChangeMessage.Voter] = ...
    granting_voters: list[LeaderChangeMessage.Voter] = ...
    unknown_tags: dict[int, bytes] | None = None

class ProducerSnapshot(msgspec.Struct):
    class ProducerEntry(msgspec.Struct):
        producer_id: int = 0
        epoch: int = 0
        last_sequence: int = 0
        last_offset: int = 0
        offset_delta: int = 0
        timestamp: int = 0
        coordinator_epoch: int = 0
        current_txn_first_offset: int = 0

    crc: int = 0
    producer_entries: list[ProducerSnapshot.ProducerEntry] = ...

class QuorumStateData(msgspec.Struct):
    class Voter(msgspec.Struct):
        voter_id: int = 0
        unknown_tags: dict[int, bytes] | None = None

    cluster_id: str = ""
    leader_id: int = -1
    leader_epoch: int = -1
    voted_id: int = -1
    voted_directory_id: bytes = ...
    applied_offset: int = 0
    current_voters: list[QuorumStateData.Voter] | None = ...
    unknown_tags: dict[int, bytes] | None = None

class SnapshotFooterRecord(msgspec.Struct):
    version: int = 0
    unknown_tags: dict[int, bytes] | None = None

class SnapshotHeaderRecord(msgspec.Struct):
    version: int = 0
    last_contained_log_timestamp: int = 0
    unknown_tags: dict[int, bytes] | None = None

class VotersRecord(msgspec.Struct):
    class Voter(msgspec.Struct):
        voter_id: int = 0
        voter_directory_id: bytes = ...
        endpoints: list[VotersRecord.Endpoint] = ...
        k_raft_version_feature: VotersRecord.KRaftVersionFeature = ...
        unknown_tags: dict[int, bytes] | None = None

    class Endpoint(msgspec.Struct):
        name: str = ""
        host: str = ""
        port: int = 0
        unknown_tags: dict[int, bytes] | None = None

    class KRaftVersionFeature(msgspec.Struct):
        min_supported_version: int = 0
        max_supported_version: int = 0
        unknown_tags: dict[int, bytes] | None = None

    version: int = 0
    voters: list[VotersRecord.Voter] = ...
    unknown_tags: dict[int, bytes] | None = None
