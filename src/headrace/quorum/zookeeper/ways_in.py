"""The controller's eye on `/admin` and `/config/changes`: what is asked for there is done, and the znode removed.

1. Read what is there, with a watch on it.
2. Have the controller decide, as upon a client's request, and wait until that is written.
3. Remove the znode, in a multi with the controller's fence.

A controller that dies between 2 and 3 leaves a request that the next one finds done already: a topic that is gone, a
partition that is where it should be.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

from headrace.clock import Clock
from headrace.errors import KafkaError
from headrace.metadata.image import Image
from headrace.quorum import QuorumError, RequestListener
from headrace.quorum.zookeeper import paths, requests, znodes
from headrace.quorum.zookeeper.client import Refused, Session
from headrace.quorum.zookeeper.operations import ANY_VERSION, Create, Delete, Operation, Set
from headrace.quorum.zookeeper.requests import AGAIN, Asked

logger = logging.getLogger("headrace.zookeeper")

NOTES_KEPT_MS = 15 * 60_000
"""As long as Kafka keeps them, for others who look."""
NOTES_MAX = 1_000
TOPICS_AT_ONCE = 1_000


class Leading(Protocol):
    """What the controller's quorum lets this do."""

    @property
    def tip(self) -> Image: ...

    @property
    def is_active(self) -> bool: ...

    def fenced(self, operations: Sequence[Operation]) -> Awaitable[None]: ...

    def note_there(self, path: str, is_there: bool) -> None:
        """Whether a znode that is no part of the metadata stands where one of an option's would be made."""
        ...


class WaysIn:
    """`look` is called whenever anything may have changed; it reads on in a task of its own, one at a time."""

    def __init__(self, session: Session, leading: Leading, clock: Clock, later: Callable[[], None]) -> None:
        self._session = session
        self._leading = leading
        self._clock = clock
        self._later = later
        self.answer: RequestListener | None = None
        self._task: asyncio.Task[None] | None = None
        self._again = False
        self._notes: dict[str, int] = {}
        """Those that were seen, and when first."""
        self._is_new = True

    def begin(self) -> None:
        """This node is the controller: what `/config` says by now is in the metadata that it has read."""
        self._notes.clear()
        self._is_new = True

    def look(self) -> None:
        if self.answer is None:
            return
        self._again = True
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="requests by znodes")
            self._task.add_done_callback(self._ended)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._task = None
        if not task.cancelled() and (error := task.exception()) is not None:
            # The connection, or the office: whoever has both next looks again.
            logger.debug("requests by znodes wait: %s", error)
            self._later()

    async def _run(self) -> None:
        while self._again and self._leading.is_active:
            self._again = False
            await self._deletions()
            await self._single(paths.REASSIGN, requests.reassign_partitions)
            await self._single(paths.ELECTION, requests.elect_preferred)
            await self._config_changes()

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    # --- /admin -------------------------------------------------------------------------------------------------------

    async def _deletions(self) -> None:
        names = sorted(await self._session.children(paths.DELETE_TOPICS, watch=True) or ())[:TOPICS_AT_ONCE]
        if not names:
            return
        known = self._leading.tip.topic_ids
        asked = [name for name in names if name in known]
        if asked and not await self._done(requests.delete_topics(asked)):
            return
        await self._remove([(f"{paths.DELETE_TOPICS}/{name}", ANY_VERSION) for name in names])

    async def _single(self, path: str, decode: Callable[[bytes], Asked]) -> None:
        found = await self._session.get(path, watch=True)
        if found is None:
            return
        try:
            if not await self._done(decode(found[0])):
                return
        except QuorumError as error:
            logger.error("a request in ZooKeeper was passed over: %s", error)
        # At the version that was read: what was written since is another request.
        await self._remove([(path, found[1].version)])

    async def _done(self, asked: Asked) -> bool:
        """False: it waits, and is looked at again."""
        assert self.answer is not None
        logger.info("asked by way of ZooKeeper: %s", asked.key.name.lower())
        try:
            answer = await self.answer(asked.key, asked.message, asked.version)
        except KafkaError as error:
            return self._refused([requests.Refusal(asked.key.name.lower(), error.error, str(error))])
        return self._refused(requests.refusals(asked, answer))

    def _refused(self, refusals: list[requests.Refusal]) -> bool:
        if any(one.error in AGAIN for one in refusals):
            self._later()
            return False
        for what, error, message in refusals:
            logger.warning("%s, asked by way of ZooKeeper, was refused: %s", what, message or error.text)
        return True

    async def _remove(self, nodes: list[tuple[str, int]]) -> None:
        for path, version in nodes:
            try:
                await self._leading.fenced([Delete(path, version)])
            except Refused as refused:
                if refused.operation.path != path:
                    raise  # this node is the controller no more
                self._again = True  # it was written anew, or somebody else took it away

    # --- /config ------------------------------------------------------------------------------------------------------

    async def _config_changes(self) -> None:
        names = sorted(await self._session.children(paths.CONFIG_CHANGES, watch=True) or ())
        now_ms = self._clock.monotonic_ms()
        fresh = [name for name in names if name not in self._notes]
        self._notes = {name: self._notes.get(name, now_ms) for name in names}
        if not self._is_new:
            await self._take_over(fresh)
        self._is_new = False
        surplus = max(0, len(names) - NOTES_MAX)
        old = [name for at, name in enumerate(names) if at < surplus or now_ms - self._notes[name] > NOTES_KEPT_MS]
        await self._remove([(f"{paths.CONFIG_CHANGES}/{name}", ANY_VERSION) for name in old])

    async def _take_over(self, names: list[str]) -> None:
        """Notes of changes that this controller made itself find nothing to change."""
        for name in names:
            path = f"{paths.CONFIG_CHANGES}/{name}"
            note = await self._session.get(path)
            try:
                resource = requests.changed_resource(path, note[0]) if note is not None else None
                if resource is not None:
                    await self._take_options(*resource)
            except QuorumError as error:
                logger.error("a change of options in ZooKeeper was passed over: %s", error)

    async def _take_options(self, kind: int, name: str) -> None:
        path = paths.config(kind, name)
        found = await self._session.get(path)
        wanted = znodes.decode_config(path, found[0]) if found is not None else {}
        known: dict[str, Any] = dict(self._leading.tip.config(kind, name))
        if wanted == known:
            return
        if found is not None and not known:
            self._leading.note_there(path, True)
        if found is None and known:
            await self._leading.fenced([Create(path, znodes.encode_config(known))])
        await self._done(requests.alter_config(kind, name, wanted))
        await self._restore(path, kind, name)

    async def _restore(self, path: str, kind: int, name: str) -> None:
        """What was refused does not stay in the znode: it would be read there by the next controller."""
        known = dict(self._leading.tip.config(kind, name))
        found = await self._session.get(path)
        stands = znodes.decode_config(path, found[0]) if found is not None else {}
        if stands == known:
            return
        if found is not None:
            change: Operation = Set(path, znodes.encode_config(known)) if known else Delete(path)
            await self._leading.fenced([change])
            self._leading.note_there(path, False)
