"""The quorum's own requests, served only on a controller listener. All that is decided is decided by `broker.node.quorum`.

Vote v0-2 (v1: voter and directory ids, v2: pre-vote). BeginQuorumEpoch v0-1, EndQuorumEpoch v0-1 (v1: directory ids,
endpoints). Fetch v4-18 of the metadata log (v12: diverging epochs, v17: directory ids, v18: the fetcher's high
watermark). FetchSnapshot v0-1. DescribeQuorum v0-2. AddRaftVoter v0-1, RemoveRaftVoter v0, UpdateRaftVoter v0.
"""

from collections.abc import Awaitable, Mapping
from typing import TYPE_CHECKING, Any

from headrace.broker.connection import Request
from headrace.protocol.api import ApiKey

if TYPE_CHECKING:
    from headrace.broker.router import Handler
    from headrace.broker.server import Broker


def serve(broker: "Broker", request: Request, message: Any) -> Awaitable[Any]:
    return broker.node.quorum.serve(
        ApiKey(request.api_key), message, request.version, request.connection.peer_host
    )


RAFT_HANDLERS: "Mapping[int, Handler]" = dict.fromkeys(
    (
        ApiKey.VOTE,
        ApiKey.BEGIN_QUORUM_EPOCH,
        ApiKey.END_QUORUM_EPOCH,
        ApiKey.FETCH,
        ApiKey.FETCH_SNAPSHOT,
        ApiKey.DESCRIBE_QUORUM,
        ApiKey.ADD_RAFT_VOTER,
        ApiKey.REMOVE_RAFT_VOTER,
        ApiKey.UPDATE_RAFT_VOTER,
    ),
    serve,
)
"""For a controller listener's router."""
