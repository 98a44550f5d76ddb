"""The quorum's way to other nodes: the broker's own connections, with their errors in the quorum's words."""

from typing import Any

from headrace.broker.cluster.peers import CONTROL, Peers
from headrace.client.errors import ClientError, ConnectionRefused
from headrace.protocol.api import ApiKey
from headrace.quorum import Address, PeerError


class QuorumNetwork:
    """`headrace.quorum.Network` over `Peers`."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers

    async def request(
        self,
        address: Address,
        key: ApiKey,
        body: Any,
        *,
        timeout_s: float,
        lane: str = CONTROL,
        version_max: int | None = None,
    ) -> Any:
        try:
            return await self._peers.request(
                address, key, body, timeout_s=timeout_s, lane=lane, version_max=version_max
            )
        except ClientError as error:
            raise PeerError(str(error), refused=isinstance(error, ConnectionRefused)) from error

    def drop(self, address: Address, lane: str = CONTROL) -> None:
        self._peers.drop(address, lane)
