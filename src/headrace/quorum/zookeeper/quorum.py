"""Metadata in ZooKeeper: one node is the controller and writes it, all follow.

Everything is looked at again whenever anything may have changed (`_turn`): who holds `/controller`, how far metadata
has come, which brokers are there. So a watch only ever says "look", and nothing depends on which one fired, or on one
that a lost connection swallowed.

Fencing. A controller writes in multis that check the version of `/controller_epoch`, which its election raised in the
same multi that created its ephemeral `/controller`. Each also sets `/headrace/metadata` at the version that the last
one left. So (1) a controller that was deposed, paused or cut off changes nothing once another was elected; (2) of
several multis sent at once, one that fails takes all later ones with it.

A controller that loses its connection stops deciding at once: what it had sent may or may not be written, and whoever
asked is told to ask again. It reads everything anew before it goes on.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from headrace.clock import Clock
from headrace.errors import Err, KafkaError
from headrace.metadata.delta import Delta
from headrace.metadata.difference import difference
from headrace.metadata.image import Endpoint, Image
from headrace.metadata.loader import Loader
from headrace.metadata.outcome import RECORDS_PER_BATCH_MAX, Outcome
from headrace.metadata.records import Record
from headrace.protocol.api import ApiKey
from headrace.quorum import DepartureListener, LeadershipListener, Listener, Network, QuorumError, RequestListener
from headrace.quorum.folder import Identity, bootstrap_records
from headrace.quorum.leading import Pending, Tip, bootstrap, build_batch, is_new
from headrace.quorum.zookeeper import paths, znodes
from headrace.quorum.zookeeper.client import Disconnected, Refused, Session, ZooKeeperError
from headrace.quorum.zookeeper.controller_watch import ControllerWatch
from headrace.quorum.zookeeper.describing import describe
from headrace.quorum.zookeeper.operations import MULTI_BYTES_MAX, Check, Create, Delete, Operation, Set, size_of
from headrace.quorum.zookeeper.presence import Presence
from headrace.quorum.zookeeper.snapshot import Snapshot, changes_since, leftovers, read_all
from headrace.quorum.zookeeper.ways_in import AGAIN_S, WaysIn
from headrace.quorum.zookeeper.writing import Plan, plan
from headrace.quorum.zookeeper.znodes import Head

logger = logging.getLogger("headrace.zookeeper")

NOBODY = -1
CHANGES_KEPT = 1_000
"""Batches of records that brokers can follow by; one that missed more reads everything."""
CHANGE_BYTES_MAX = 200_000
"""A batch that is larger is not kept: brokers read everything after it."""


class ZooKeeperQuorum:
    """See the module. Made by `opening.open_zookeeper`; `start` lets it take part. All calls are made on the loop."""

    def __init__(
        self,
        session: Session,
        identity: Identity,
        address: tuple[str, int] | None,
        clock: Clock,
        network: Network,
        *,
        session_timeout_ms: int,
        min_insync_replicas: int,
    ) -> None:
        """`address`: where this node's controller listens; None for a node that never is one."""
        self.node_id = identity.node_id
        self.on_failure: Callable[[Exception], None] | None = None
        self._session = session
        self._address = address
        self._clock = clock
        self._min_insync_replicas = min_insync_replicas
        self._session_timeout_ms = session_timeout_ms
        self._not_before_ms = -1
        """When this node may run for controller again."""
        self._gave_way = False
        """Whether it has given way, and nobody else has led since."""
        self._presence = Presence(session, identity, clock, session_timeout_ms)
        self._watch = ControllerWatch(network, self.peer_gone)
        self._ways_in = WaysIn(session, self, clock, self._look_later)
        self._there: set[str] = set()
        """Znodes that others have put where one of an option's would be made."""
        self._loader = Loader()
        self._number = -1
        """The version of `/headrace/metadata` that `image` stands for: so many changes were made. -1: none is known."""
        self._made: int | None = None
        """The transaction that made `/headrace/metadata`."""
        self._tip: Tip | None = None
        """While this node is the controller."""
        self._tip_number = -1
        self._fence: Check | None = None
        self._elected = 0
        """The session that this node was elected with."""
        self._kept: deque[int] = deque()
        """The changes whose batches are there, oldest first."""
        self._controller: tuple[int, tuple[str, int] | None] = (NOBODY, None)
        self._epoch = 0
        self._members: frozenset[int] | None = None
        """Brokers that have a session, once the controller has looked."""
        self._listeners: list[Listener] = []
        self._leadership_listeners: list[LeadershipListener] = []
        self._departure_listeners: list[DepartureListener] = []
        self._told = (NOBODY, 0, False)
        self._wake = asyncio.Event()
        self._caught_up = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._closed = False
        self._complaint = ""
        self._hears = False
        session.listen(self._wake.set)

    # --- what is known ------------------------------------------------------------------------------------------------

    @property
    def image(self) -> Image:
        return self._loader.image

    @property
    def tip(self) -> Image:
        return self._tip.image if self._tip is not None else self._loader.image

    @property
    def next_offset(self) -> int:
        return self.tip.offset + 1

    @property
    def leader_id(self) -> int:
        return self._controller[0]

    @property
    def leader_epoch(self) -> int:
        return self._epoch

    @property
    def kraft_version(self) -> int:
        return 0

    @property
    def is_voter(self) -> bool:
        """Whether it may become the controller: there are no votes here."""
        return self._address is not None

    @property
    def is_active(self) -> bool:
        tip = self._tip
        return tip is not None and 0 <= tip.active_from <= self.image.offset + 1 and not self._closed

    @property
    def is_starved(self) -> bool:
        return False

    @property
    def hears_changes(self) -> bool:
        """Whether ZooKeeper could be read when it was last looked at."""
        return self._hears

    def controller_address(self) -> tuple[int, str, int] | None:
        node_id, address = self._controller
        return (node_id, *address) if address is not None else None

    def is_present(self, broker_id: int) -> bool:
        return self._members is None or broker_id in self._members

    def listen(self, listener: Listener) -> None:
        self._listeners.append(listener)

    def on_leadership(self, listener: LeadershipListener) -> None:
        self._leadership_listeners.append(listener)

    def give_way(self) -> bool:
        """Its session lives, so that nobody else would take over. Others get the time of a session to do so. Where
        nobody could, or nobody did, it has to decide by itself: else those that are silent would never be fenced."""
        others = any(node_id != self.node_id for node_id in self.tip.controllers)
        if self._tip is None or self._fence is None or self._gave_way or not others:
            return False
        self._gave_way = True
        self._not_before_ms = self._clock.monotonic_ms() + self._session_timeout_ms
        sent = self._session.multi([self._fence, Delete(paths.CONTROLLER)])
        self._stop_leading("most brokers are there, and silent to it alone")
        sent.add_done_callback(lambda _: self._wake.set())
        self._tell_leadership()
        return True

    def on_request(self, listener: RequestListener) -> None:
        self._ways_in.answer = listener

    def on_departure(self, listener: DepartureListener) -> None:
        self._departure_listeners.append(listener)

    async def caught_up(self) -> None:
        await self._caught_up.wait()

    # --- taking part --------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Returns when this node knows what the znodes say."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name="zookeeper")
        self._task.add_done_callback(self._ended)
        self._wake.set()
        await self._caught_up.wait()

    async def announce(self, endpoints: Sequence[Endpoint], rack: str | None) -> None:
        self._presence.want(endpoints, rack)
        self._wake.set()
        await self._presence.settled()

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            try:
                await self._turn()
                self._complaint, self._hears = "", True
            except Disconnected:
                self._hears = False
                self._stop_leading("it has lost its connection to ZooKeeper")
                self._look_later()
            except (ZooKeeperError, QuorumError) as error:
                self._hears = False
                self._stop_leading(str(error))
                if str(error) != self._complaint:
                    logger.error("metadata in ZooKeeper cannot be used: %s", error)
                self._complaint = str(error)
                self._look_later()
            self._tell_leadership()

    def _look_later(self, after_s: float = AGAIN_S) -> None:
        asyncio.get_running_loop().call_later(after_s, self._wake.set)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error if isinstance(error, Exception) else RuntimeError(str(error)))

    def _fail(self, error: Exception) -> None:
        """Metadata that cannot be used here was committed all the same: nothing can be built upon it."""
        self._stop_leading(str(error))
        if self.on_failure is not None:
            self.on_failure(error)

    async def _turn(self) -> None:
        """Look at everything, and do what follows from it."""
        session = self._session
        if not session.connected:
            raise Disconnected
        if not await self._presence.renew():
            self._look_later()
        found = await session.get(paths.CONTROLLER, watch=True)
        if found is None:
            # Also where this node is elected again: others may have decided between the two.
            self._stop_leading("it was deposed")
        if found is None and self._address is not None and not self._closed:
            if self._clock.monotonic_ms() < self._not_before_ms:
                self._look_later()
            else:
                await self._run_for_controller(self._address)
                found = await session.get(paths.CONTROLLER, watch=True)
        self._epoch, _ = await self._read_epoch()
        mine = found is not None and found[1].owner == session.id
        if not mine:
            self._stop_leading("another is the controller")
        if found is not None and mine and not self._names_this_node(found[0]):
            logger.error("%s was written by somebody else: this node stands for election again", paths.CONTROLLER)
            await session.multi([Delete(paths.CONTROLLER, found[1].version)])
            self._wake.set()
            return
        node = znodes.decode_controller(paths.CONTROLLER, found[0]) if found is not None else None
        self._controller = (node.broker_id, node.address) if node is not None else (NOBODY, None)
        if self._controller[0] not in (NOBODY, self.node_id):
            self._gave_way = False
        if found is None or not mine:
            await self._follow()
        elif self._tip is None:
            await self._start_leading(found[1].created)
        self._watch.follow(None if self._controller[0] == self.node_id else self.controller_address())
        self._caught_up.set()
        self._tell_leadership()
        if self.is_active:
            await self._look_at_members()
            self._ways_in.look()

    async def _read_epoch(self) -> tuple[int, int]:
        """Of controllers, and the version of its znode."""
        found = await self._session.get(paths.CONTROLLER_EPOCH)
        if found is None:
            raise QuorumError(f"{paths.CONTROLLER_EPOCH} is missing in ZooKeeper")
        return znodes.decode_controller_epoch(paths.CONTROLLER_EPOCH, found[0]), found[1].version

    def _names_this_node(self, data: bytes) -> bool:
        try:
            found = znodes.decode_controller(paths.CONTROLLER, data)
        except QuorumError:
            return False
        return found == (self.node_id, self._address)

    def _tell_leadership(self) -> None:
        now = (self.leader_id, self.leader_epoch, self.is_active)
        if now == self._told:
            return
        if now[:2] != self._told[:2]:
            who = f"node {now[0]}" if now[0] != NOBODY else "nobody"
            logger.info("ZooKeeper: %s is the controller in epoch %d", who, now[1])
        self._told = now
        for listener in self._leadership_listeners:
            listener(*now)

    # --- being the controller -----------------------------------------------------------------------------------------

    async def _run_for_controller(self, address: tuple[str, int]) -> None:
        """Whether that worked is seen in the znode, also where the answer is lost."""
        head, _ = await self._find_metadata()
        found, version = await self._read_epoch()
        epoch = max(found, head.epoch) + 1  # it does not go back, even if somebody has set it back
        me = znodes.encode_controller(self.node_id, address, self._clock.wall_ms())
        try:
            await self._session.multi(
                [
                    Create(paths.CONTROLLER, me, ephemeral=True),
                    Set(paths.CONTROLLER_EPOCH, str(epoch).encode(), version),
                ]
            )
        except Refused as refused:
            logger.debug("another was faster: %s", refused)

    async def _start_leading(self, created: int) -> None:
        """`created`: which `/controller` is this node's."""
        epoch, version = await self._read_epoch()
        mine = await self._session.get(paths.CONTROLLER, watch=True)
        if mine is None or mine[1].created != created:
            # Deposed between the two: the epoch that was read may be another's, and writing in it would not be fenced.
            self._wake.set()
            return
        await self._find_metadata()
        self._epoch = epoch
        self._fence = Check(paths.CONTROLLER_EPOCH, version)
        self._ways_in.begin(await self._session.children(paths.CONFIG_CHANGES) or ())
        followed, known = self._number, self.image
        found = await read_all(self._session, thorough=True)
        await self._clean_up(found)
        self._elected = mine[1].owner
        if self._session.id != self._elected:
            raise Disconnected("the session has ended meanwhile")
        self._there = set(found.bare_configs)
        self._replace(found)
        self._kept = deque(sorted(int(name) for name in await self._session.children(paths.CHANGES) or ()))
        tip = self._tip = Tip(self._loader.copy())
        self._tip_number = self._number
        if is_new(self.image):
            self._append_batch(bootstrap(bootstrap_records(), self._min_insync_replicas))
        elif followed != found.number or not known.same_content(self.image):
            self._send(Plan([], [], []), b"", self.image)  # others may have missed something too
        tip.active_from = self.next_offset

    async def _clean_up(self, found: Snapshot) -> None:
        """What earlier controllers have left half done."""
        assert self._fence is not None
        for multi in await leftovers(self._session, found):
            await self._session.multi([self._fence, *multi])

    def _stop_leading(self, why: str) -> None:
        tip, self._tip = self._tip, None
        if tip is None:
            return
        level = logging.DEBUG if self._closed else logging.WARNING
        logger.log(level, "node %d is not the controller any more: %s", self.node_id, why)
        self._controller = (NOBODY, None)
        self._members = None
        tip.refuse(KafkaError(Err.NOT_CONTROLLER, "this node is no longer the active controller"))

    async def _look_at_members(self) -> None:
        """Brokers whose session has ended are gone, whatever else is known of them."""
        children = await self._session.children(paths.BROKER_IDS, watch=True)
        self._members = frozenset(int(name) for name in children or () if name.isdecimal())
        for broker in self.tip.brokers.values():
            if not broker.fenced and broker.id not in self._members:
                for listener in self._departure_listeners:
                    listener(broker.id)

    def peer_gone(self, node_id: int) -> None:
        """The controller's process is dead: its session need not run out before there is another."""
        if node_id == self.leader_id != self.node_id and self._address is not None:
            task = asyncio.get_running_loop().create_task(self._depose(node_id))
            task.add_done_callback(lambda done: done.cancelled() or done.exception())

    async def _depose(self, node_id: int) -> None:
        _, version = await self._read_epoch()
        found = await self._session.get(paths.CONTROLLER)
        if found is None:
            return
        if znodes.decode_controller(paths.CONTROLLER, found[0]).broker_id == node_id:
            logger.info("node %d, the controller, is gone", node_id)
            # The check: by now another may have been elected, who must not lose its place.
            await self._session.multi([Check(paths.CONTROLLER_EPOCH, version), Delete(paths.CONTROLLER)])

    # --- writing ------------------------------------------------------------------------------------------------------

    def append(self, records: Sequence[Record]) -> "asyncio.Future[int]":
        assert records, "an empty batch commits nothing"
        if self._session.id != self._elected:
            # The fence would hold until another is elected; but an end that has not been heard of here is one, too.
            raise KafkaError(Err.NOT_CONTROLLER, "the session of this controller has ended")
        for start in range(0, len(records), RECORDS_PER_BATCH_MAX):
            done = self._append_batch(records[start : start + RECORDS_PER_BATCH_MAX])
        return done

    def _append_batch(self, records: Sequence[Record]) -> "asyncio.Future[int]":
        tip = self._check_writable()
        now_ms, base_offset = self._clock.wall_ms(), tip.image.offset + 1
        loader = tip.loader.copy()
        delta = loader.load(records, base_offset, self._epoch, now_ms)
        planned = plan(delta, loader.image, records, self._epoch, MULTI_BYTES_MAX).over(self._there)
        largest = planned.largest
        if largest is not None and size_of(largest) > MULTI_BYTES_MAX:
            # To divide the change would not make the znode smaller, and would leave the first part of it done.
            raise KafkaError(Err.RECORD_LIST_TOO_LARGE, f"{largest.path} would be larger than ZooKeeper takes")
        if planned.size > MULTI_BYTES_MAX:
            return self._append_halves(records)
        if self._there:
            self._there.difference_update(operation.path for operation in planned.commit)
        batch = build_batch(records, base_offset, self._epoch, now_ms)
        done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        tip.add(Pending(base_offset, base_offset + len(records), len(batch), delta, loader, done))
        self._send(planned, batch if len(batch) <= CHANGE_BYTES_MAX else b"", loader.image)
        return done

    def _append_halves(self, records: Sequence[Record]) -> "asyncio.Future[int]":
        """What does not fit into one multi is about many partitions or resources, each of which stands for itself."""
        if len(records) == 1:
            raise KafkaError(Err.RECORD_LIST_TOO_LARGE, "the change does not fit into one request to ZooKeeper")
        middle = len(records) // 2
        self._append_batch(records[:middle])
        return self._append_batch(records[middle:])

    def _send(self, planned: Plan, batch: bytes, image: Image) -> None:
        """One change, without waiting. An empty `batch` makes brokers read everything."""
        fence = self._fence
        assert fence is not None
        self._tip_number += 1
        number = self._tip_number
        head = znodes.encode_head(Head(image.offset, image.epoch, image.timestamp_ms))
        commit: list[Operation] = [
            fence,
            *planned.commit,
            Create(paths.change(number), batch),
            Set(paths.METADATA, head, number - 1),
        ]
        self._kept.append(number)
        surplus = min(2, len(self._kept) - CHANGES_KEPT)
        commit += [Delete(paths.change(self._kept.popleft())) for _ in range(surplus)]
        leading = self._tip
        for multi in planned.before:
            self._watch_over(self._session.multi([fence, *multi]), leading, None)
        self._watch_over(self._session.multi(commit), leading, (number, image.offset + 1))
        for multi in planned.after:
            self._watch_over(self._session.multi([fence, *multi]), leading, None)

    def _watch_over(self, sent: "asyncio.Future[None]", tip: Tip | None, commits: tuple[int, int] | None) -> None:
        """`commits`: which change it completes, and how far metadata has come by it."""

        def done(answer: "asyncio.Future[None]") -> None:
            if answer.cancelled() or self._tip is not tip or tip is None:
                return
            refused = answer.exception()
            if refused is not None:
                self._stop_leading(f"a change was not written: {refused}")
                self._wake.set()
            elif commits is not None:
                self._number = commits[0]
                try:
                    self._committed(tip, commits[1])
                except Exception as error:
                    self._fail(error)
            self._tell_leadership()

        sent.add_done_callback(done)

    def _committed(self, tip: Tip, end_offset: int) -> None:
        for entry in tip.take_committed(end_offset):
            self._loader = entry.loader
            assert entry.delta is not None
            self._publish(entry.delta)
            if entry.done is not None and not entry.done.done():
                entry.done.set_result(entry.base_offset)

    async def write(self, decide: Callable[[Image], Outcome[Any]]) -> Any:
        """Decide on `tip` and append in one step; the response once all that it rests on is committed."""
        tip = self._check_writable()
        outcome = decide(tip.image)
        if outcome.records:
            await self.append(outcome.records)
        elif (done := tip.last_done()) is not None:
            await asyncio.shield(done)
        return outcome.response

    def _check_writable(self) -> Tip:
        if self._closed or self._tip is None:
            raise KafkaError(Err.NOT_CONTROLLER, "this node is not the active controller")
        return self._tip

    async def raise_version(self, version: int, validate_only: bool = False) -> None:
        raise KafkaError(Err.UNSUPPORTED_VERSION, "metadata is in ZooKeeper: there is no kraft.version")

    async def fenced(self, operations: Sequence[Operation]) -> None:
        """Something beside the metadata, for as long as this node is the controller. Raises ZooKeeperError."""
        if self._fence is None or self._tip is None or self._session.id != self._elected:
            raise Disconnected("this node is not the controller")
        await self._session.multi([self._fence, *operations])

    def note_there(self, path: str, is_there: bool) -> None:
        (self._there.add if is_there else self._there.discard)(path)

    # --- following ----------------------------------------------------------------------------------------------------

    async def _find_metadata(self, *, watch: bool = False) -> tuple[Head, int]:
        """How far it has come, and by how many changes. Raises QuorumError where it is not what this node has followed:
        the topics that are missing now would be taken for deleted, and their records with them."""
        head = await self._session.get(paths.METADATA, watch=watch)
        if head is None:
            raise QuorumError(
                f"{paths.METADATA} is missing in ZooKeeper: this cluster's metadata is not there any more"
            )
        if self._made not in (None, head[1].created):
            raise QuorumError(
                f"{paths.METADATA} in ZooKeeper was made anew: it is not the metadata that this node has followed;"
                " restore ZooKeeper, or restart the node to go on from what is there"
            )
        if head[1].version < self._number:
            raise QuorumError(
                f"metadata in ZooKeeper went back from change {self._number} to {head[1].version}, as an old copy does:"
                " restore a newer one, or restart the node to go on from what is there"
            )
        self._made = head[1].created
        return znodes.decode_head(paths.METADATA, head[0]), head[1].version

    async def _follow(self) -> None:
        _, version = await self._find_metadata(watch=True)
        if self._number == version:
            return
        batches = None
        if 0 <= self._number < version <= self._number + CHANGES_KEPT:
            batches = await changes_since(self._session, self._number, version)
        if batches is None:
            self._replace(await read_all(self._session, thorough=False))
            return
        for number, batch in batches:
            loader, header = self._loader.copy(), batch.header
            delta = loader.load(batch.records, header.base_offset, header.leader_epoch, header.max_timestamp)
            self._loader, self._number = loader, number
            self._publish(delta)

    def _replace(self, found: Snapshot) -> None:
        """What this node knew, by what the znodes say."""
        old = self._loader.image
        self._loader, self._number = Loader(found.image), found.number
        delta = difference(old, found.image)
        if not delta.empty or old.offset != found.image.offset:
            self._publish(delta)

    def _publish(self, delta: Delta) -> None:
        image = self._loader.image
        for listener in self._listeners:
            listener(delta, image)

    # --- being asked, and the end -------------------------------------------------------------------------------------

    def serve(self, key: ApiKey, request: Any, version: int, peer: str) -> Awaitable[Any]:
        return describe(self, key, request, version)

    async def maintain(self) -> None:
        """Nothing is kept here that has to be looked after."""

    async def close(self) -> None:
        """End the session: its znodes go at once, and others take over."""
        self._closed = True
        self._watch.follow(None)
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._ways_in.close()
        self._stop_leading("it stops")
        await self._session.close()
