"""Runs a `RaftNode`: events in, effects executed in order, timers, requests to other nodes, votes to the disk.

Nothing that a node says leaves before the epoch and the vote that it rests on are on disk.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Protocol

from headrace.clock import Clock
from headrace.errors import Err
from headrace.protocol import messages as m
from headrace.protocol.api import ApiKey
from headrace.quorum import Network, PeerError, QuorumError
from headrace.raft.leader import NEVER_MS
from headrace.raft.messages import (
    Answer,
    Answered,
    AppendControl,
    AppendFetched,
    Effect,
    Event,
    Failed,
    Fetch,
    FetchSnapshot,
    Persist,
    Persisted,
    Probe,
    Probed,
    Reply,
    Send,
    StoreChunk,
    Truncate,
)
from headrace.raft.node import RaftNode
from headrace.raft.types import Election
from headrace.raft.voters import Voter
from headrace.raft.wire import Nonsense, decode_reply, encode_request
from headrace.storage.files import NO_SPACE

logger = logging.getLogger("headrace.quorum")

FETCH_LANE = "raft-fetch"
"""Fetches are parked at the other end: a vote must not wait behind one."""
CONTROL_LANE = "raft"
KRAFT_VERSION = "kraft.version"
FULL_DISK_S = 1.0
"""How long after there was no room for the election state it is written again."""


class Host(Protocol):
    """Who owns the log that the node decides about."""

    def append_control(self, effect: AppendControl) -> None: ...

    def append_fetched(self, effect: AppendFetched) -> None: ...

    def truncate(self, effect: Truncate) -> None: ...

    def store_chunk(self, effect: StoreChunk) -> None: ...

    def node_changed(self) -> None:
        """After every event: who leads and what is committed may be another than before."""
        ...

    def fail(self, error: Exception) -> None:
        """Nothing more may be promised: the disk has failed, or the rules have been broken."""
        ...


class Driver:
    """All calls are made on the loop."""

    def __init__(
        self,
        node: RaftNode,
        host: Host,
        network: Network | None,
        clock: Clock,
        save: Callable[[Election], Awaitable[None]],
        cluster_id: str,
    ) -> None:
        self.node = node
        self._host = host
        self._network = network
        self._clock = clock
        self._save = save
        self._cluster_id = cluster_id
        self._events: deque[Event] = deque()
        self._stepping = False
        self._started = False
        self._closed = False
        self._unsaved: Election | None = None
        self._saving: asyncio.Task[None] | None = None
        self._held: list[Send | Answer] = []
        """What may be said once the election state is on disk."""
        self.waits_for_room = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at_ms = NEVER_MS
        self._tasks: set[asyncio.Task[None]] = set()
        self._complained: set[tuple[str, Err]] = set()
        self._welcome = False
        """Whether any other node has taken this one for one of its cluster."""
        self._refusers: set[tuple[str, int]] = set()

    @property
    def running(self) -> bool:
        return self._started and not self._closed

    def start(self) -> None:
        self._started = True
        self._run(self.node.tick(self._clock.monotonic_ms()))

    def step(self, event: Event) -> None:
        """Something happened. What it leads to is done when this returns, but for what waits for a disk or a
        network."""
        if self._closed or not self._started:
            return
        self._events.append(event)
        if not self._stepping:
            self._run([])

    def _run(self, effects: list[Effect]) -> None:
        self._stepping = True
        try:
            self._execute(effects)
            while self._events and not self._closed:
                self._execute(self.node.step(self._events.popleft(), self._clock.monotonic_ms()))
        except Exception as error:
            self._host.fail(error)
            return
        finally:
            self._stepping = False
        if not self._closed:
            self._host.node_changed()
            self._set_timer()

    def _execute(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Send() | Answer():
                    if self._unsaved is None:
                        self._say(effect)
                    elif self.waits_for_room and isinstance(effect, Answer):
                        effect.token.cancel()
                    else:
                        self._held.append(effect)
                case Persist(election):
                    self._unsaved = election
                    if self._saving is None:
                        self._saving = asyncio.get_running_loop().create_task(
                            self._save_election(), name="quorum state"
                        )
                case AppendControl():
                    self._host.append_control(effect)
                case AppendFetched():
                    self._host.append_fetched(effect)
                case Truncate():
                    self._host.truncate(effect)
                case StoreChunk():
                    self._host.store_chunk(effect)
                case Probe(voter):
                    self.spawn(self._probe(voter))

    def _say(self, effect: Send | Answer) -> None:
        if isinstance(effect, Send):
            self.spawn(self._request(effect))
        elif not effect.token.done():
            effect.token.set_result(effect.reply)

    # --- the disk -----------------------------------------------------------------------------------------------------

    async def _save_election(self) -> None:
        try:
            while self._unsaved is not None:
                election = self._unsaved
                try:
                    await self._save(election)
                except OSError as error:
                    if error.errno not in NO_SPACE:
                        raise
                    if self._closed:
                        # Nobody was told of it, so the next start goes on from what was saved last.
                        logger.warning("no room for the state of the quorum: this node stops without its last vote")
                        self._unsaved = None
                        return
                    await self._wait_for_room()
                    continue
                self.waits_for_room = False
                if self._unsaved is election:
                    self._unsaved = None
                    held, self._held = self._held, []
                    for effect in held:
                        self._say(effect)
                    self.step(Persisted(election))
        except Exception as error:
            self._host.fail(error)
        finally:
            self._saving = None
            if self._unsaved is not None:
                self._host.fail(OSError("the quorum state was not written"))

    async def _wait_for_room(self) -> None:
        """The disk is full. A node that says nothing harms nobody: others elect, and this one goes on when there is
        room."""
        if not self.waits_for_room:
            self.waits_for_room = True
            logger.error("no room for the state of the quorum: this node takes part again when there is some")
        held, self._held = self._held, []
        for effect in held:
            if isinstance(effect, Send):
                self.step(Failed(effect.to, effect.request))
            else:
                effect.token.cancel()  # the peer is told that this node takes no part, and asks again
        await asyncio.sleep(FULL_DISK_S)

    # --- time ---------------------------------------------------------------------------------------------------------

    def _set_timer(self) -> None:
        at_ms = self.node.deadline_ms
        if self._timer is not None:
            if at_ms == self._timer_at_ms:
                return
            self._timer.cancel()
            self._timer = None
        self._timer_at_ms = at_ms
        if at_ms < NEVER_MS:
            delay_s = max(0, at_ms - self._clock.monotonic_ms()) / 1000
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._tick)

    def _tick(self) -> None:
        self._timer = None
        if self._closed:
            return
        now_ms = self._clock.monotonic_ms()
        if now_ms < self._timer_at_ms:
            self._set_timer()  # this loop's clock is a little ahead of the node's
        else:
            self._run(self.node.tick(now_ms))

    # --- other nodes --------------------------------------------------------------------------------------------------

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._host.fail(error if isinstance(error, Exception) else RuntimeError(str(error)))

    async def _request(self, effect: Send) -> None:
        request, to, address = effect.request, effect.to, effect.address
        if self._network is None:
            self.step(Failed(to, request))
            return
        key, body = encode_request(request, self._cluster_id)
        lane = FETCH_LANE if isinstance(request, Fetch | FetchSnapshot) else CONTROL_LANE
        timeout_ms = self.node.options.request_timeout_ms + (request.wait_ms if isinstance(request, Fetch) else 0)
        try:
            message = await self._network.request(address, key, body, timeout_s=timeout_ms / 1000, lane=lane)
            reply = decode_reply(request, message, self.node.listener)
        except PeerError as error:
            self._network.drop(address, lane)
            logger.debug("%s to %s:%d: %s", key.name, *address, error)
            self.step(Failed(to, request, error.refused))
        except Nonsense as error:
            logger.warning("%s:%d gave a strange answer to %s: %s", *address, key.name, error)
            self.step(Failed(to, request))
        else:
            if reply.error is Err.BROKER_NOT_AVAILABLE:
                # It is about to end; its successor at this address is reached by a new connection.
                self._network.drop(address, lane)
            self._complain(address, key, reply)
            self._check_welcome(address, reply)
            self.step(Answered(to, request, reply))

    def _complain(self, address: tuple[str, int], key: ApiKey, reply: Reply) -> None:
        """Once per address: what does not pass by itself, and somebody has to put right."""
        if reply.error not in (Err.INCONSISTENT_CLUSTER_ID, Err.INVALID_VOTER_KEY, Err.UNKNOWN_SERVER_ERROR):
            return
        host, port = address
        known = (f"{host}:{port}", reply.error)
        if known not in self._complained:
            self._complained.add(known)
            logger.warning("%s:%d refuses %s: %s [%s]", host, port, key.name, reply.error.text, reply.error.name)

    def _check_welcome(self, address: tuple[str, int], reply: Reply) -> None:
        """A node that most others refuse, and none has ever taken, is in the wrong place: trying again changes
        nothing."""
        mine = self.node.key.id
        if reply.error is Err.INCONSISTENT_CLUSTER_ID:
            self._refusers.add(address)
            others = {voter.address(self.node.listener) for voter in self.node.voters if voter.id != mine}
            others.update(self.node.options.bootstrap_servers)
            if not self._welcome and len(self._refusers) > len(others - {None}) // 2:
                self._host.fail(
                    QuorumError(
                        f"this node's folder belongs to cluster {self._cluster_id}, its controllers to another cluster:"
                        " give it a folder of theirs, or the right controllers"
                    )
                )
        elif (
            reply.error is Err.UNKNOWN_SERVER_ERROR and reply.leadership.leader_id == mine and self.node.leader is None
        ):
            self._host.fail(
                QuorumError(f"another node with the id {mine} leads the quorum: every node needs an id of its own")
            )
        else:
            self._welcome = True

    async def _probe(self, voter: Voter) -> None:
        address = voter.address(self.node.listener)
        versions: tuple[int, int] | None = None
        if address is not None and self._network is not None:
            body = m.ApiVersionsRequest(client_software_name="headrace", client_software_version="1")
            timeout_s = self.node.options.request_timeout_ms / 1000
            try:
                answer = await self._network.request(address, ApiKey.API_VERSIONS, body, timeout_s=timeout_s)
            except PeerError as error:
                logger.warning("node %d cannot be reached at %s:%d: %s", voter.id, *address, error)
            else:
                known = {f.name: (f.min_version, f.max_version) for f in answer.supported_features or ()}
                versions = known.get(KRAFT_VERSION)
        self.step(Probed(voter.id, versions))

    def halt(self) -> None:
        """Say and do nothing more: what this node has promised can no longer be kept."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()

    # --- the end ------------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Requests under way are given up."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._saving is not None:
            await self._saving
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
