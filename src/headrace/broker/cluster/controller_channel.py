"""A broker's way to the active controller, wherever it is: a call when it is this node, else a connection.

Whoever leads may change while a request waits: then it is asked again of the next leader, until its time is up. All
requests that go this way may be repeated: the controller knows what it has done.
"""

import asyncio
import logging
from typing import Any

from headrace.broker.cluster.peers import Peers
from headrace.broker.controller.active import ActiveController, Caller
from headrace.broker.controller.envelopes import answer_envelope
from headrace.broker.controller.refusals import is_from_inactive
from headrace.client.errors import ClientError, UnsupportedApi
from headrace.clock import Clock
from headrace.errors import Err, KafkaError
from headrace.protocol.api import API, ApiKey
from headrace.quorum import Quorum

logger = logging.getLogger("headrace.channel")

CONTROLLER_LANE = "controller"
BACKOFF_S = 0.05
TIMEOUT_MS = 30_000


class ControllerChannel:
    """One per node. Requests of one lane are answered in order; what must not wait for others has a lane of its own."""

    def __init__(self, clock: Clock, quorum: Quorum, controller: ActiveController | None, peers: Peers) -> None:
        """`controller`: this node's own, if it has that role."""
        self._clock = clock
        self._quorum = quorum
        self._controller = controller
        self._peers = peers
        self._changed: asyncio.Event = asyncio.Event()
        quorum.on_leadership(self._leadership_changed)

    @property
    def local(self) -> ActiveController | None:
        """The active controller, if it is this node's own."""
        return self._controller if self._controller is not None and self._quorum.is_active else None

    def _leadership_changed(self, leader_id: int, leader_epoch: int, active: bool) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def request(
        self,
        key: ApiKey,
        body: Any,
        *,
        timeout_ms: int = TIMEOUT_MS,
        version_max: int | None = None,
        lane: str = CONTROLLER_LANE,
    ) -> Any:
        """The active controller's answer; its error codes are the caller's to read, but for NOT_CONTROLLER.

        Raises REQUEST_TIMED_OUT when none was found in time, UNSUPPORTED_VERSION when it does not know the request.
        """
        clock = self._clock
        deadline_ms = clock.monotonic_ms() + timeout_ms
        reason = "no controller is known"
        while (left_ms := deadline_ms - clock.monotonic_ms()) > 0:
            changed = self._changed
            try:
                async with asyncio.timeout(left_ms / 1000):
                    answer = await self._ask(key, body, left_ms, version_max, lane, changed)
            except UnsupportedApi as error:
                raise KafkaError(Err.UNSUPPORTED_VERSION, str(error)) from error
            except (ClientError, TimeoutError) as error:
                reason, answer = str(error) or "no answer", None
            if answer is not None and not is_from_inactive(answer):
                return answer
            await self._pause(changed, min(BACKOFF_S, max(0.0, left_ms / 1000)))
        raise KafkaError(Err.REQUEST_TIMED_OUT, f"{key.name} was not answered within {timeout_ms} ms: {reason}")

    async def _ask(
        self, key: ApiKey, body: Any, left_ms: int, version_max: int | None, lane: str, changed: asyncio.Event
    ) -> Any:
        """The answer of whoever leads now, or None if that is nobody, or no longer who it was."""
        local = self.local
        if local is not None:
            if key is ApiKey.ENVELOPE:  # packed for another node, and meanwhile this one leads
                return await answer_envelope(local, body)
            highest = API[key].latest_stable
            version = highest if version_max is None else min(highest, version_max)
            return await local.handle(key, body, Caller(version))
        leader = self._quorum.controller_address()
        if leader is None or leader[0] == self._quorum.node_id:
            await changed.wait()
            return None
        address = leader[1], leader[2]
        asking = asyncio.ensure_future(
            self._peers.request(address, key, body, timeout_s=left_ms / 1000, lane=lane, version_max=version_max)
        )
        deposed = asyncio.ensure_future(self._deposed(leader))
        try:
            await asyncio.wait((asking, deposed), return_when=asyncio.FIRST_COMPLETED)
            if asking.done():
                return asking.result()
            # Leadership has moved: a node that was stopped would keep us waiting for nothing.
            self._peers.drop(address, lane)
            return None
        finally:
            for task in (asking, deposed):
                task.cancel()
            await asyncio.gather(asking, deposed, return_exceptions=True)

    async def _deposed(self, leader: tuple[int, str, int]) -> None:
        while self._quorum.controller_address() == leader:
            await self._changed.wait()

    async def _pause(self, changed: asyncio.Event, delay_s: float) -> None:
        """Before the next attempt: a moment, or less if there is a new leader."""
        try:
            async with asyncio.timeout(delay_s):
                await changed.wait()
        except TimeoutError:
            pass
