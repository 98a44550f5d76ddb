"""DescribeQuorum v0-2, the only one of the quorum's requests that has a meaning with ZooKeeper: who decides, in which
epoch, how far metadata has come."""

from typing import Any, Protocol

from headrace.errors import Err
from headrace.metadata.image import Image
from headrace.protocol import messages as m
from headrace.protocol.api import ApiKey
from headrace.raft.wire import TOPIC, refusal

NO_LEADER = -1


class Described(Protocol):
    @property
    def image(self) -> Image: ...

    @property
    def is_active(self) -> bool: ...

    @property
    def leader_id(self) -> int: ...

    @property
    def leader_epoch(self) -> int: ...

    def controller_address(self) -> tuple[int, str, int] | None: ...

    def is_present(self, broker_id: int) -> bool: ...


async def describe(quorum: Described, key: ApiKey, request: Any, version: int) -> Any:
    """The controller is shown as the only voter, brokers that have a session as observers."""
    if key is not ApiKey.DESCRIBE_QUORUM:
        return refusal(key, Err.UNSUPPORTED_VERSION)
    kind = m.DescribeQuorumResponse
    if not quorum.is_active:
        error = Err.NOT_LEADER_OR_FOLLOWER
        partition = kind.PartitionData(error_code=error, error_message=error.text)
        return kind(topics=[kind.TopicData(topic_name=TOPIC, partitions=[partition])])
    end_offset = quorum.image.offset + 1

    def replica(node_id: int) -> m.DescribeQuorumResponse.ReplicaState:
        return kind.ReplicaState(replica_id=node_id, log_end_offset=end_offset)

    others = [i for i in sorted(quorum.image.brokers) if i != quorum.leader_id and quorum.is_present(i)]
    partition = kind.PartitionData(
        leader_id=quorum.leader_id,
        leader_epoch=quorum.leader_epoch,
        high_watermark=end_offset,
        current_voters=[replica(quorum.leader_id)],
        observers=list(map(replica, others)),
    )
    response = kind(topics=[kind.TopicData(topic_name=TOPIC, partitions=[partition])])
    at = quorum.controller_address()
    if version >= 2 and at is not None:
        listener = kind.Listener(name="CONTROLLER", host=at[1], port=at[2])
        response.nodes = [kind.Node(node_id=at[0], listeners=[listener])]
    return response
