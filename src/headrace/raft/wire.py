"""The quorum's messages in Kafka's protocol: requests out and in, replies out and in.

A request that is not about the metadata log, or comes from another cluster, is refused here. Fields that a version does
not have are left to the encoder, which leaves them out.
"""

from typing import Any

from headrace.errors import Err
from headrace.protocol import messages as m
from headrace.protocol.api import ApiKey
from headrace.raft.messages import (
    AddVoter,
    BeginEpoch,
    EndEpoch,
    EpochReply,
    Fetch,
    FetchReply,
    FetchSnapshot,
    Leadership,
    RemoveVoter,
    Reply,
    Request,
    SnapshotReply,
    UpdateVoter,
    Vote,
    VoteReply,
    VoterReply,
)
from headrace.raft.types import NO_DIRECTORY, NOBODY, Endpoints, OffsetEpoch, ReplicaKey
from headrace.raft.voters import Voter

TOPIC = "__cluster_metadata"
TOPIC_ID = bytes(15) + b"\x01"
FETCH_BYTES_MAX = 8 << 20
"""As Kafka's quorum asks for, and as large as a batch may be."""
FETCH_BY_ID = 13
NO_EPOCH = -1
_ERRORS = {int(error): error for error in Err}


class Refused(Exception):
    """A request whose answer needs no decision. `response` is the whole answer."""

    def __init__(self, response: Any) -> None:
        super().__init__()
        self.response = response


class Nonsense(Exception):
    """An answer that is none."""


# --- requests out -----------------------------------------------------------------------------------------------------


def encode_request(request: Request, cluster_id: str) -> tuple[ApiKey, Any]:
    match request:
        case Vote():
            return ApiKey.VOTE, _vote(request, cluster_id)
        case BeginEpoch():
            return ApiKey.BEGIN_QUORUM_EPOCH, _begin(request, cluster_id)
        case EndEpoch():
            return ApiKey.END_QUORUM_EPOCH, _end(request, cluster_id)
        case Fetch():
            return ApiKey.FETCH, _fetch(request, cluster_id)
        case FetchSnapshot():
            return ApiKey.FETCH_SNAPSHOT, _fetch_snapshot(request, cluster_id)
        case AddVoter(voter, timeout_ms, ack):
            add = m.AddRaftVoterRequest
            return ApiKey.ADD_RAFT_VOTER, add(
                cluster_id=cluster_id,
                timeout_ms=timeout_ms,
                voter_id=voter.id,
                voter_directory_id=voter.directory_id,
                listeners=[add.Listener(name=n, host=h, port=p) for n, h, p in voter.endpoints],
                ack_when_committed=ack,
            )
        case RemoveVoter(key):
            return ApiKey.REMOVE_RAFT_VOTER, m.RemoveRaftVoterRequest(
                cluster_id=cluster_id, voter_id=key.id, voter_directory_id=key.directory_id
            )
        case UpdateVoter(epoch, voter):
            update = m.UpdateRaftVoterRequest
            low, high = voter.kraft_versions
            return ApiKey.UPDATE_RAFT_VOTER, update(
                cluster_id=cluster_id,
                current_leader_epoch=epoch,
                voter_id=voter.id,
                voter_directory_id=voter.directory_id,
                listeners=[update.Listener(name=n, host=h, port=p) for n, h, p in voter.endpoints],
                k_raft_version_feature=update.KRaftVersionFeature(
                    min_supported_version=low, max_supported_version=high
                ),
            )


def _vote(request: Vote, cluster_id: str) -> m.VoteRequest:
    kind = m.VoteRequest
    voter = request.voter or ReplicaKey(NOBODY)
    partition = kind.PartitionData(
        partition_index=0,
        replica_epoch=request.epoch,
        replica_id=request.candidate.id,
        replica_directory_id=request.candidate.directory_id,
        voter_directory_id=voter.directory_id,
        last_offset_epoch=request.last.epoch,
        last_offset=request.last.offset,
        pre_vote=request.pre_vote,
    )
    topic = kind.TopicData(topic_name=TOPIC, partitions=[partition])
    return kind(cluster_id=cluster_id, voter_id=voter.id, topics=[topic])


def _begin(request: BeginEpoch, cluster_id: str) -> m.BeginQuorumEpochRequest:
    kind = m.BeginQuorumEpochRequest
    voter = request.voter or ReplicaKey(NOBODY)
    partition = kind.PartitionData(
        partition_index=0,
        voter_directory_id=voter.directory_id,
        leader_id=request.leader_id,
        leader_epoch=request.epoch,
    )
    return kind(
        cluster_id=cluster_id,
        voter_id=voter.id,
        topics=[kind.TopicData(topic_name=TOPIC, partitions=[partition])],
        leader_endpoints=[kind.LeaderEndpoint(name=n, host=h, port=p) for n, h, p in request.endpoints],
    )


def _end(request: EndEpoch, cluster_id: str) -> m.EndQuorumEpochRequest:
    kind = m.EndQuorumEpochRequest
    partition = kind.PartitionData(
        partition_index=0,
        leader_id=request.leader_id,
        leader_epoch=request.epoch,
        preferred_successors=[key.id for key in request.successors],
        preferred_candidates=[
            kind.ReplicaInfo(candidate_id=key.id, candidate_directory_id=key.directory_id) for key in request.successors
        ],
    )
    return kind(
        cluster_id=cluster_id,
        topics=[kind.TopicData(topic_name=TOPIC, partitions=[partition])],
        leader_endpoints=[kind.LeaderEndpoint(name=n, host=h, port=p) for n, h, p in request.endpoints],
    )


def _fetch(request: Fetch, cluster_id: str) -> m.FetchRequest:
    kind = m.FetchRequest
    partition = kind.FetchPartition(
        partition=0,
        current_leader_epoch=request.epoch,
        fetch_offset=request.offset,
        last_fetched_epoch=request.last_epoch,
        partition_max_bytes=FETCH_BYTES_MAX,
        replica_directory_id=request.replica.directory_id,
        high_watermark=min(request.high_watermark, (1 << 63) - 1),
    )
    return kind(
        cluster_id=cluster_id,
        replica_state=kind.ReplicaState(replica_id=request.replica.id),
        max_wait_ms=request.wait_ms,
        min_bytes=0,
        max_bytes=FETCH_BYTES_MAX,
        topics=[kind.FetchTopic(topic=TOPIC, topic_id=TOPIC_ID, partitions=[partition])],
    )


def _fetch_snapshot(request: FetchSnapshot, cluster_id: str) -> m.FetchSnapshotRequest:
    kind = m.FetchSnapshotRequest
    partition = kind.PartitionSnapshot(
        partition=0,
        current_leader_epoch=request.epoch,
        snapshot_id=kind.SnapshotId(end_offset=request.snapshot.offset, epoch=request.snapshot.epoch),
        position=request.position,
        replica_directory_id=request.replica.directory_id,
    )
    return kind(
        cluster_id=cluster_id,
        replica_id=request.replica.id,
        max_bytes=FETCH_BYTES_MAX,
        topics=[kind.TopicSnapshot(name=TOPIC, partitions=[partition])],
    )


# --- requests in ------------------------------------------------------------------------------------------------------


def decode_request(key: ApiKey, message: Any, version: int, cluster_id: str) -> Request:
    """Raises Refused."""
    foreign = message.cluster_id is not None and message.cluster_id != cluster_id
    if foreign:
        raise Refused(_foreign(key, message.cluster_id, cluster_id))
    match key:
        case ApiKey.VOTE:
            at = _only_partition(message, m.VoteResponse(error_code=Err.INVALID_REQUEST))
            voter = None if message.voter_id < 0 else ReplicaKey(message.voter_id, at.voter_directory_id)
            candidate = ReplicaKey(at.replica_id, at.replica_directory_id)
            last = OffsetEpoch(at.last_offset, at.last_offset_epoch)
            return Vote(at.replica_epoch, candidate, last, at.pre_vote, voter)
        case ApiKey.BEGIN_QUORUM_EPOCH:
            at = _only_partition(message, m.BeginQuorumEpochResponse(error_code=Err.INVALID_REQUEST))
            voter = None if message.voter_id < 0 else ReplicaKey(message.voter_id, at.voter_directory_id)
            return BeginEpoch(at.leader_epoch, at.leader_id, _endpoints(message.leader_endpoints), voter)
        case ApiKey.END_QUORUM_EPOCH:
            at = _only_partition(message, m.EndQuorumEpochResponse(error_code=Err.INVALID_REQUEST))
            named = [ReplicaKey(c.candidate_id, c.candidate_directory_id) for c in at.preferred_candidates]
            successors = tuple(named or map(ReplicaKey, at.preferred_successors))
            return EndEpoch(at.leader_epoch, at.leader_id, successors, _endpoints(message.leader_endpoints))
        case ApiKey.FETCH:
            return _decode_fetch(message, version)
        case ApiKey.FETCH_SNAPSHOT:
            return _decode_fetch_snapshot(message)
        case ApiKey.ADD_RAFT_VOTER:
            added = Voter(message.voter_id, message.voter_directory_id, _endpoints(message.listeners))
            return AddVoter(added, message.timeout_ms, message.ack_when_committed)
        case ApiKey.REMOVE_RAFT_VOTER:
            return RemoveVoter(ReplicaKey(message.voter_id, message.voter_directory_id))
        case ApiKey.UPDATE_RAFT_VOTER:
            range_ = message.k_raft_version_feature
            updated = Voter(
                message.voter_id,
                message.voter_directory_id,
                _endpoints(message.listeners),
                (range_.min_supported_version, range_.max_supported_version),
            )
            return UpdateVoter(message.current_leader_epoch, updated)
    raise AssertionError(key)


def refusal(key: ApiKey, error: Err) -> Any:
    """The whole answer to a request that is not even looked at."""
    response: Any = {
        ApiKey.VOTE: m.VoteResponse,
        ApiKey.BEGIN_QUORUM_EPOCH: m.BeginQuorumEpochResponse,
        ApiKey.END_QUORUM_EPOCH: m.EndQuorumEpochResponse,
        ApiKey.FETCH: m.FetchResponse,
        ApiKey.FETCH_SNAPSHOT: m.FetchSnapshotResponse,
        ApiKey.ADD_RAFT_VOTER: m.AddRaftVoterResponse,
        ApiKey.REMOVE_RAFT_VOTER: m.RemoveRaftVoterResponse,
        ApiKey.UPDATE_RAFT_VOTER: m.UpdateRaftVoterResponse,
    }[key]
    return response(error_code=error)


def _foreign(key: ApiKey, given: str, own: str) -> Any:
    answer = refusal(key, Err.INCONSISTENT_CLUSTER_ID)
    if key in (ApiKey.ADD_RAFT_VOTER, ApiKey.REMOVE_RAFT_VOTER):
        answer.error_message = f"this is cluster {own}, not {given}"
    return answer


def _only_partition(message: Any, refusal: Any) -> Any:
    """The one partition of the one topic that the quorum has."""
    topics = message.topics
    if len(topics) != 1 or topics[0].topic_name != TOPIC or len(topics[0].partitions) != 1:
        raise Refused(refusal)
    if topics[0].partitions[0].partition_index != 0:
        raise Refused(refusal)
    return topics[0].partitions[0]


def _decode_fetch(message: m.FetchRequest, version: int) -> Fetch:
    topics = message.topics
    known = len(topics) == 1 and len(topics[0].partitions) == 1 and topics[0].partitions[0].partition == 0
    named = known and (topics[0].topic_id == TOPIC_ID if version >= FETCH_BY_ID else topics[0].topic == TOPIC)
    if not named:
        raise Refused(m.FetchResponse(error_code=Err.INVALID_REQUEST))
    at = topics[0].partitions[0]
    replica_id = message.replica_state.replica_id if version >= 15 else message.replica_id
    return Fetch(
        at.current_leader_epoch,
        ReplicaKey(replica_id, at.replica_directory_id or NO_DIRECTORY),
        at.fetch_offset,
        at.last_fetched_epoch,
        message.max_wait_ms,
        at.high_watermark,
    )


def _decode_fetch_snapshot(message: m.FetchSnapshotRequest) -> FetchSnapshot:
    kind = m.FetchSnapshotResponse
    if len(message.topics) != 1 or len(message.topics[0].partitions) != 1:
        raise Refused(kind(error_code=Err.INVALID_REQUEST))
    topic = message.topics[0]
    at = topic.partitions[0]
    if topic.name != TOPIC or at.partition != 0:
        unknown = kind.PartitionSnapshot(index=at.partition, error_code=Err.UNKNOWN_TOPIC_OR_PARTITION)
        raise Refused(kind(topics=[kind.TopicSnapshot(name=topic.name, partitions=[unknown])]))
    return FetchSnapshot(
        at.current_leader_epoch,
        ReplicaKey(message.replica_id, at.replica_directory_id or NO_DIRECTORY),
        OffsetEpoch(at.snapshot_id.end_offset, at.snapshot_id.epoch),
        at.position,
    )


def _endpoints(listed: Any) -> Endpoints:
    return tuple((e.name, e.host, e.port) for e in listed)


# --- replies out ------------------------------------------------------------------------------------------------------


def encode_reply(key: ApiKey, reply: Reply, version: int, listener: str) -> Any:
    """`listener` is by which of the leader's endpoints the asking node should reach it."""
    said = reply.leadership
    match key, reply:
        case ApiKey.VOTE, VoteReply():
            kind: Any = m.VoteResponse
            partition = kind.PartitionData(
                partition_index=0,
                error_code=reply.error,
                leader_id=said.leader_id,
                leader_epoch=said.epoch,
                vote_granted=reply.granted,
            )
            answer = kind(topics=[kind.TopicData(topic_name=TOPIC, partitions=[partition])])
            return _with_endpoint(answer, kind, said, listener, version >= 1)
        case ((ApiKey.BEGIN_QUORUM_EPOCH | ApiKey.END_QUORUM_EPOCH), EpochReply()):
            begins = key is ApiKey.BEGIN_QUORUM_EPOCH
            kind = m.BeginQuorumEpochResponse if begins else m.EndQuorumEpochResponse
            partition = kind.PartitionData(
                partition_index=0, error_code=reply.error, leader_id=said.leader_id, leader_epoch=said.epoch
            )
            answer = kind(topics=[kind.TopicData(topic_name=TOPIC, partitions=[partition])])
            return _with_endpoint(answer, kind, said, listener, version >= 1)
        case ApiKey.FETCH, FetchReply():
            return _encode_fetch(reply, version, listener)
        case ApiKey.FETCH_SNAPSHOT, SnapshotReply():
            return _encode_snapshot(reply, version, listener)
        case ApiKey.ADD_RAFT_VOTER, VoterReply():
            return m.AddRaftVoterResponse(error_code=reply.error, error_message=reply.message)
        case ApiKey.REMOVE_RAFT_VOTER, VoterReply():
            return m.RemoveRaftVoterResponse(error_code=reply.error, error_message=reply.message)
        case ApiKey.UPDATE_RAFT_VOTER, VoterReply():
            leader = m.UpdateRaftVoterResponse.CurrentLeader(leader_id=said.leader_id, leader_epoch=said.epoch)
            endpoint = _endpoint(said, listener)
            if endpoint is not None:
                leader.host, leader.port = endpoint
            return m.UpdateRaftVoterResponse(error_code=reply.error, current_leader=leader)
    raise AssertionError((key, reply))


def _encode_fetch(reply: FetchReply, version: int, listener: str) -> m.FetchResponse:
    kind = m.FetchResponse
    said = reply.leadership
    partition = kind.PartitionData(
        partition_index=0,
        error_code=reply.error,
        high_watermark=reply.high_watermark,
        log_start_offset=reply.start_offset,
        current_leader=kind.LeaderIdAndEpoch(leader_id=said.leader_id, leader_epoch=said.epoch),
        aborted_transactions=None,
        records=reply.records if reply.records is not None else b"",
    )
    if reply.diverging is not None:
        partition.diverging_epoch = kind.EpochEndOffset(epoch=reply.diverging.epoch, end_offset=reply.diverging.offset)
    if reply.snapshot is not None:
        partition.snapshot_id = kind.SnapshotId(end_offset=reply.snapshot.offset, epoch=reply.snapshot.epoch)
    topic = kind.FetchableTopicResponse(topic=TOPIC, topic_id=TOPIC_ID, partitions=[partition])
    answer: m.FetchResponse = _with_endpoint(kind(responses=[topic]), kind, said, listener, version >= 17)
    return answer


def _encode_snapshot(reply: SnapshotReply, version: int, listener: str) -> m.FetchSnapshotResponse:
    kind = m.FetchSnapshotResponse
    said = reply.leadership
    snapshot = reply.snapshot or OffsetEpoch(-1, -1)
    partition = kind.PartitionSnapshot(
        index=0,
        error_code=reply.error,
        snapshot_id=kind.SnapshotId(end_offset=snapshot.offset, epoch=snapshot.epoch),
        current_leader=kind.LeaderIdAndEpoch(leader_id=said.leader_id, leader_epoch=said.epoch),
        size=reply.size,
        position=reply.position,
        unaligned_records=reply.chunk if reply.chunk is not None else b"",
    )
    answer = kind(topics=[kind.TopicSnapshot(name=TOPIC, partitions=[partition])])
    done: m.FetchSnapshotResponse = _with_endpoint(answer, kind, said, listener, version >= 1)
    return done


def _endpoint(said: Leadership, listener: str) -> tuple[str, int] | None:
    if said.leader_id == NOBODY:
        return None
    return Voter(said.leader_id, NO_DIRECTORY, said.endpoints).address(listener)


def _with_endpoint(answer: Any, kind: Any, said: Leadership, listener: str, has_field: bool) -> Any:
    endpoint = _endpoint(said, listener)
    if has_field and endpoint is not None:
        host, port = endpoint
        answer.node_endpoints = [kind.NodeEndpoint(node_id=said.leader_id, host=host, port=port)]
    return answer


# --- replies in -------------------------------------------------------------------------------------------------------


def decode_reply(request: Request, message: Any, listener: str) -> Reply:
    """Raises Nonsense."""
    error = _error(message.error_code)
    match request:
        case Vote():
            if error is not Err.NONE:
                return VoteReply(error, Leadership(NO_EPOCH))
            at = _answered_partition(message.topics, "partition_index")
            said = _leadership(at.leader_id, at.leader_epoch, message, listener)
            return VoteReply(_error(at.error_code), said, at.vote_granted)
        case BeginEpoch() | EndEpoch():
            if error is not Err.NONE:
                return EpochReply(error, Leadership(NO_EPOCH))
            at = _answered_partition(message.topics, "partition_index")
            said = _leadership(at.leader_id, at.leader_epoch, message, listener)
            return EpochReply(_error(at.error_code), said)
        case Fetch():
            return _decode_fetched(message, error, listener)
        case FetchSnapshot():
            return _decode_snapshot(message, error, listener)
        case UpdateVoter():
            leader = message.current_leader
            endpoints = ((listener, leader.host, leader.port),) if leader.host else ()
            return VoterReply(error, Leadership(leader.leader_epoch, leader.leader_id, endpoints))
        case AddVoter() | RemoveVoter():
            return VoterReply(error, Leadership(NO_EPOCH), message.error_message)


def _decode_fetched(message: m.FetchResponse, error: Err, listener: str) -> FetchReply:
    if error is not Err.NONE:
        return FetchReply(error, Leadership(NO_EPOCH))
    at = _answered_partition(message.responses, "partition_index")
    leader = at.current_leader
    diverging, snapshot = at.diverging_epoch, at.snapshot_id
    return FetchReply(
        _error(at.error_code),
        _leadership(leader.leader_id, leader.leader_epoch, message, listener),
        at.high_watermark,
        at.log_start_offset,
        OffsetEpoch(diverging.end_offset, diverging.epoch) if diverging.epoch >= 0 else None,
        OffsetEpoch(snapshot.end_offset, snapshot.epoch) if snapshot.epoch >= 0 and snapshot.end_offset >= 0 else None,
        records=at.records,
    )


def _decode_snapshot(message: m.FetchSnapshotResponse, error: Err, listener: str) -> SnapshotReply:
    if error is not Err.NONE:
        return SnapshotReply(error, Leadership(NO_EPOCH))
    at = _answered_partition(message.topics, "index")
    leader = at.current_leader
    return SnapshotReply(
        _error(at.error_code),
        _leadership(leader.leader_id, leader.leader_epoch, message, listener),
        OffsetEpoch(at.snapshot_id.end_offset, at.snapshot_id.epoch),
        at.size,
        at.position,
        at.unaligned_records,
    )


def _answered_partition(topics: Any, index: str) -> Any:
    if len(topics) != 1 or len(topics[0].partitions) != 1 or getattr(topics[0].partitions[0], index) != 0:
        raise Nonsense("the answer is not about the metadata log")
    return topics[0].partitions[0]


def _leadership(leader_id: int, epoch: int, message: Any, listener: str) -> Leadership:
    for node in message.node_endpoints or ():
        if node.node_id == leader_id:
            return Leadership(epoch, leader_id, ((listener, node.host, node.port),))
    return Leadership(epoch, leader_id if leader_id >= 0 else NOBODY)


def _error(code: int) -> Err:
    return _ERRORS.get(code, Err.UNKNOWN_SERVER_ERROR)
