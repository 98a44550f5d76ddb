"""The controller's eye on `/admin` and `/config/changes`: what is asked for there is done, and the znode removed.

1. Read what is there, with a watch on it.
2. Have the controller decide, as upon a client's request, and wait until that is written.
3. Remove the znode, in a multi with the controller's fence.

A controller that dies between 2 and 3 leaves a request that the next one finds done already: a topic that is gone, a
partition that is where it should be.

What fails unforeseen is tried again by itself, and nothing else waits for it.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Protocol

from headrace.clock import Clock
from headrace.errors import KafkaError
from headrace.metadata.image import Image
from headrace.quorum import QuorumError, RequestListener
from headrace.quorum.zookeeper import paths, requests, znodes
from headrace.quorum.zookeeper.client import Disconnected, Refused, Session, Stat
from headrace.quorum.zookeeper.operations import ANY_VERSION, Create, Delete, Operation, Set
from headrace.quorum.zookeeper.requests import AGAIN, Asked
from headrace.quorum.zookeeper.setbacks import Setbacks

logger = logging.getLogger("headrace.zookeeper")

NOTES_KEPT_MS = 15 * 60_000
"""As long as Kafka keeps them, for others who look; and as long as one that cannot be carried out is tried again."""
NOTES_MAX = 1_000
AGAIN_S = 0.2
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

    def __init__(self, session: Session, leading: Leading, clock: Clock, later: Callable[[float], None]) -> None:
        """`later` has everything looked at again after so many seconds."""
        self._session = session
        self._leading = leading
        self._clock = clock
        self._later = later
        self.answer: RequestListener | None = None
        self._task: asyncio.Task[None] | None = None
        self._again = False
        self._notes: dict[str, int] = {}
        """Those whose changes are in the metadata, and since when."""
        self._setbacks = Setbacks()
        self._ways: dict[str, Callable[[], Awaitable[None]]] = {
            paths.DELETE_TOPICS: self._deletions,
            paths.REASSIGN: partial(self._single, paths.REASSIGN, requests.reassign_partitions),
            paths.ELECTION: partial(self._single, paths.ELECTION, requests.elect_preferred),
            paths.CONFIG_CHANGES: self._config_changes,
        }

    def begin(self, notes: Sequence[str]) -> None:
        """This node is the controller. `notes` were there before it read the metadata, which so has what they say."""
        self._notes = dict.fromkeys(notes, self._clock.monotonic_ms())
        self._setbacks.clear()

    def look(self) -> None:
        if self.answer is None:
            return
        self._again = True
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="requests by znodes")
            self._task.add_done_callback(self._ended)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._task = None
        if task.cancelled():
            return
        if (error := task.exception()) is not None:
            # The connection, or the office: whoever has both next looks again.
            logger.debug("requests by znodes wait: %s", error)
            self._later(AGAIN_S)
        elif self._again and self._leading.is_active:
            self.look()  # asked for after the task's last turn, and before this

    async def _run(self) -> None:
        while self._again and self._leading.is_active:
            self._again = False
            for name, way in self._ways.items():
                await self._attempt(name, way)

    async def _attempt(self, name: str, work: Callable[[], Awaitable[bool | None]]) -> bool | None:
        """What `work` says; None if it failed unforeseen, now or a short time ago."""
        if self._setbacks.waits(name, self._clock.monotonic_ms()):
            return None
        try:
            done = await work()
        except (Disconnected, Refused):
            raise  # the connection, or the office
        except Exception as error:
            self._later(self._setbacks.failed(name, self._clock.monotonic_ms(), error).pause_ms / 1000)
            return None
        self._setbacks.settled(name)
        return done

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
            self._later(AGAIN_S)
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
        now_ms, there = self._clock.monotonic_ms(), set(names)
        self._notes = {name: since_ms for name, since_ms in self._notes.items() if name in there}
        self._setbacks.keep({*map(_note, names), *self._ways})
        for name in names:
            if name not in self._notes:
                done = await self._attempt(_note(name), partial(self._take_over, name))
                if done is False or not self._leading.is_active:
                    break  # it stays new
                if done or self._setbacks.age_ms(_note(name), now_ms) > NOTES_KEPT_MS:
                    self._notes[name] = now_ms
        surplus = max(0, len(names) - NOTES_MAX)
        old = [
            name
            for at, name in enumerate(names)
            if name in self._notes and (at < surplus or now_ms - self._notes[name] > NOTES_KEPT_MS)
        ]
        await self._remove([(_note(name), ANY_VERSION) for name in old])

    async def _take_over(self, name: str) -> bool:
        """Notes of changes that this controller made itself find nothing to change. False: look at it again."""
        path = _note(name)
        note = await self._session.get(path)
        try:
            resource = requests.changed_resource(path, note[0]) if note is not None else None
            return resource is None or await self._take_options(*resource)
        except QuorumError as error:
            logger.error("a change of options in ZooKeeper was passed over: %s", error)
            return True

    async def _take_options(self, kind: int, name: str) -> bool:
        """Have the metadata say what the znode says. False: look at it again.

        What this controller has decided by now is sent before the reading, and so is in what is read. What it decides
        during the reading is not, and would be undone by what was read:

        1. A change of this controller's own wakes it; it reads the znode.
        2. A client's next change of the same options is written, and acknowledged.
        3. The reading arrives, without that change, and differs from the metadata.
        """
        path = paths.config(kind, name)
        known = self._known(kind, name)
        found = await self._session.get(path)
        if self._known(kind, name) != known:
            return self._read_again()
        try:
            wanted = _options(path, found)
        except QuorumError as error:
            logger.error("a change of options in ZooKeeper was passed over: %s", error)
            return await self._restore(path, kind, name)
        if wanted == known:
            return True
        if found is not None and not known:
            self._leading.note_there(path, True)
        if found is None and known:
            made = await self._put([Create(path, znodes.encode_config(known))])
            if not made or self._known(kind, name) != known:
                return self._read_again()
        return await self._done(requests.alter_config(kind, name, wanted)) and await self._restore(path, kind, name)

    async def _restore(self, path: str, kind: int, name: str) -> bool:
        """What was refused does not stay in the znode: it would be read there by the next controller. False: somebody
        changed it meanwhile."""
        known = self._known(kind, name)
        found = await self._session.get(path)
        if self._known(kind, name) != known:
            return self._read_again()
        if found is None or _holds(path, found, known):
            return True
        version = found[1].version
        self._leading.note_there(path, False)
        change: Operation = Set(path, znodes.encode_config(known), version) if known else Delete(path, version)
        return await self._put([change]) or self._read_again()

    def _known(self, kind: int, name: str) -> dict[str, Any]:
        return dict(self._leading.tip.config(kind, name))

    def _read_again(self) -> bool:
        self._again = True
        return False

    async def _put(self, operations: Sequence[Operation]) -> bool:
        """False: somebody else was faster."""
        try:
            await self._leading.fenced(operations)
        except Refused as refused:
            if refused.operation not in operations:
                raise  # this node is the controller no more
            return False
        return True


def _note(name: str) -> str:
    return f"{paths.CONFIG_CHANGES}/{name}"


def _options(path: str, found: tuple[bytes, Stat] | None) -> dict[str, str]:
    """Raises QuorumError."""
    return znodes.decode_config(path, found[0]) if found is not None else {}


def _holds(path: str, found: tuple[bytes, Stat], config: dict[str, str]) -> bool:
    with suppress(QuorumError):
        return _options(path, found) == config
    return False
