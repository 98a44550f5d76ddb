"""A broker's own znode, `/brokers/ids/N`: there for as long as its session lasts, and made again by the next one."""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress

from headrace.clock import Clock
from headrace.metadata.image import Endpoint
from headrace.quorum import QuorumError
from headrace.quorum.folder import Identity
from headrace.quorum.zookeeper import paths, znodes
from headrace.quorum.zookeeper.client import Refused, Session, Stat
from headrace.quorum.zookeeper.operations import Create, Delete

logger = logging.getLogger("headrace.zookeeper")

MARGIN_MS = 5_000


class Presence:
    """Nothing is there before `want`; after that `renew` is called whenever the session may be another."""

    def __init__(self, session: Session, identity: Identity, clock: Clock, session_timeout_ms: int) -> None:
        self._session = session
        self._path = paths.broker_id(identity.node_id)
        self._node_id = identity.node_id
        self._directories = sorted(identity.directory_ids.values())
        self._clock = clock
        self._patience_ms = 2 * session_timeout_ms + MARGIN_MS
        self._wanted: tuple[Sequence[Endpoint], str | None] | None = None
        self._since_ms = 0
        self._settled: asyncio.Future[None] | None = None

    def want(self, endpoints: Sequence[Endpoint], rack: str | None) -> None:
        self._wanted = (endpoints, rack)
        self._since_ms = self._clock.monotonic_ms()
        self._settled = asyncio.get_running_loop().create_future()

    async def settled(self) -> None:
        """Until the znode is there. Raises QuorumError if another broker has it."""
        assert self._settled is not None
        await asyncio.shield(self._settled)

    async def renew(self) -> bool:
        """Make the znode, if it is not there or not of this session. False: an earlier one is in the way, and it has to
        be tried again."""
        if self._wanted is None:
            return True
        session_id = self._session.id
        endpoints, rack = self._wanted
        found = await self._session.get(self._path, watch=True)
        if found is not None and not await self._is_mine(session_id, *found):
            return False
        if found is not None:
            return self._settle()
        data = znodes.encode_broker_id(list(endpoints), rack, self._clock.wall_ms(), self._directories)
        try:
            await self._session.multi([Create(self._path, data, ephemeral=True)])
        except Refused:
            return False
        return self._settle()

    def _settle(self) -> bool:
        if self._settled is not None and not self._settled.done():
            self._settled.set_result(None)
        return True

    async def _is_mine(self, session_id: int, data: bytes, stat: Stat) -> bool:
        """It is there already: this session's, an earlier one's of this broker, or another broker's."""
        if stat.owner == session_id:
            return True
        if set(self._directories) & set(znodes.decode_directories(self._path, data)):
            # Whoever made it had the lock on a directory that this process has locked now: it is dead, and its session
            # is only waiting to be told.
            with suppress(Refused):
                await self._session.multi([Delete(self._path, stat.version)])
        elif self._clock.monotonic_ms() - self._since_ms > self._patience_ms:
            self._refuse()
        return False

    def _refuse(self) -> None:
        if self._settled is not None and not self._settled.done():
            self._settled.set_exception(
                QuorumError(
                    f"another broker with the id {self._node_id} is registered in ZooKeeper: stop it, or choose another"
                    " node.id"
                )
            )
