"""The quorum's own requests, served only on a controller listener. The quorum decides them all.

Vote v0-2 (v1: voter and directory ids, v2: pre-vote). BeginQuorumEpoch v0-1, EndQuorumEpoch v0-1 (v1: directory ids,
endpoints). Fetch v4-18 of the metadata log (v12: diverging epochs, v17: directory ids, v18: the fetcher's high
watermark). FetchSnapshot v0-1. DescribeQuorum v0-2. AddRaftVoter v0-1, RemoveRaftVoter v0, UpdateRaftVoter v0.
"""

from collections.abc import Awaitable
from typing import Any

from headrace.broker.net.request import Request
from headrace.protocol.api import ApiKey
from headrace.quorum import Quorum


class RaftHandlers:
    """Hands them to the quorum of this node."""

    def __init__(self, quorum: Quorum) -> None:
        self._quorum = quorum

    def serve(self, request: Request, message: Any) -> Awaitable[Any]:
        peer = request.connection.peer_host
        return self._quorum.serve(ApiKey(request.api_key), message, request.version, peer)
