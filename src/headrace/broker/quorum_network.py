"""The quorum's way to other nodes: the broker's own connections, with their errors in the quorum's words."""

import errno
from typing import Any

from headrace.broker.peers import CONTROL, Peers
from headrace.client.errors import BrokerUnreachable, ClientError
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
        except BrokerUnreachable as error:
            raise PeerError(str(error), refused=_refused(error.__context__)) from error
        except ClientError as error:
            raise PeerError(str(error)) from error

    def drop(self, address: Address, lane: str = CONTROL) -> None:
        self._peers.drop(address, lane)


def _refused(error: BaseException | None) -> bool:
    """Whether every address of the host refused: a name with several is one OSError that only lists the others' words."""
    if isinstance(error, ConnectionRefusedError):
        return True
    words = str(error)
    return 0 < words.count("[Errno ") == words.count(f"[Errno {errno.ECONNREFUSED}]")
