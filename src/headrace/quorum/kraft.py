"""The metadata log of a cluster, replicated by consensus: written by the leader, committed by a majority, applied by
all.

Group commit: appends that arrive while a sync runs are synced together by the next one. A record is committed, and
`image` has it, once a majority of the voters has it on disk; with one voter, once this node has. The leader's `tip` has
it as soon as it is written, so that the next decision sees it. Snapshots bound what a restart has to replay. All calls
are made on the loop.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from headrace.clock import Clock
from headrace.errors import Err, KafkaError
from headrace.metadata.delta import Delta
from headrace.metadata.difference import difference
from headrace.metadata.image import Image
from headrace.metadata.loader import Loader
from headrace.metadata.outcome import RECORDS_PER_BATCH_MAX, Outcome
from headrace.metadata.records import Record
from headrace.protocol import messages as m
from headrace.protocol.api import ApiKey
from headrace.quorum import LeadershipListener, Listener, Network, QuorumError
from headrace.quorum.cleaning import SnapshotKeeper
from headrace.quorum.downloading import finish, store_chunk
from headrace.quorum.driver import Driver
from headrace.quorum.folder import Identity, Layout, read_bootstrap
from headrace.quorum.known_by_heartbeats import KnownByHeartbeats
from headrace.quorum.leading import Pending, Tip, bootstrap, build_batch, is_new
from headrace.quorum.loading import Applied, Loaded, apply_log, check_features
from headrace.quorum.metadata_log import Damaged, encode_control_records
from headrace.quorum.options import KraftOptions, raft_member
from headrace.quorum.serving import QuorumFacts, Server, VoterFacts, facts_of
from headrace.quorum.snapshots import Snapshot, SnapshotId, Voter
from headrace.quorum.state import write_state
from headrace.raft.messages import (
    AppendControl,
    Appended,
    AppendFetched,
    Durable,
    PeerGone,
    Rejected,
    Resign,
    StoreChunk,
    Stored,
    Truncate,
    Unwritten,
    Upgrade,
    VoterReply,
)
from headrace.raft.node import RaftNode
from headrace.raft.types import NOBODY, Election
from headrace.raft.voters import VoterSet
from headrace.records.layout import read_header
from headrace.storage.files import Disk

__all__ = ["KraftOptions", "KraftQuorum", "QuorumFacts", "VoterFacts"]

logger = logging.getLogger("headrace.quorum")

RunInThread = Callable[[Callable[[], Any]], Awaitable[Any]]


class KraftQuorum(KnownByHeartbeats):
    """See the module. Opened by `opening.open_quorum`; `start` lets it take part."""

    hears_changes = True  # from the controllers themselves

    def __init__(
        self,
        disk: Disk,
        identity: Identity,
        layout: Layout,
        loaded: Loaded,
        options: KraftOptions,
        clock: Clock,
        run_in_thread: RunInThread,
        network: Network | None = None,
        randrange: Callable[[int], int] | None = None,
    ) -> None:
        self.identity = identity
        self.node_id = identity.node_id
        self.log = loaded.log.log
        self.failed: Exception | None = None
        self.on_failure: Callable[[Exception], None] | None = None
        """Told once when the log can no longer be written: the node has to step down."""
        self._disk = disk
        self._layout = layout
        self._options = options
        self._clock = clock
        self._run_in_thread = run_in_thread
        self._metadata_log = loaded.log
        self._loader = loaded.loader
        """After the last committed record that was applied, which ends at `_applied_end`."""
        self._applied_end = loaded.applied_end
        self._tip: Tip | None = None
        """While this node leads."""
        self._listeners: list[Listener] = []
        self._leadership_listeners: list[LeadershipListener] = []
        self._told = (NOBODY, loaded.election.epoch, False)
        self._syncing: asyncio.Task[None] | None = None
        self._closed = False
        self._caught_up: asyncio.Event = asyncio.Event()
        self._new_leader: asyncio.Event = asyncio.Event()
        self.saved_epoch = loaded.election.epoch
        self._keeper = SnapshotKeeper(
            disk,
            self.log,
            options.limits,
            loaded.log.snapshots,
            loaded.bytes_since_snapshot,
            clock,
            run_in_thread,
            self.fail,
        )
        self._metadata_log.snapshots = self._keeper.snapshots
        node = RaftNode(
            raft_member(identity, layout, is_controller=options.raft.is_controller),
            options.raft,
            self._metadata_log,
            loaded.election,
            clock.monotonic_ms(),
            randrange or (lambda bound: 0),
        )
        self._node = node
        self._driver = Driver(node, self, network, clock, self._save, identity.cluster_id)
        self._server = Server(self._driver, self._metadata_log, identity.cluster_id, disk, clock, run_in_thread)

    # --- what is known ------------------------------------------------------------------------------------------------

    @property
    def image(self) -> Image:
        return self._loader.image

    @property
    def tip(self) -> Image:
        return self._tip.image if self._tip is not None else self._loader.image

    @property
    def next_offset(self) -> int:
        return self.log.end_offset

    @property
    def high_watermark(self) -> int:
        return self._node.high_watermark

    @property
    def leader_id(self) -> int:
        if self.failed is not None:
            return NOBODY
        return self._node.leader_id

    @property
    def leader_epoch(self) -> int:
        return self._node.epoch

    @property
    def kraft_version(self) -> int:
        return self._metadata_log.kraft_versions.last

    @property
    def voters(self) -> tuple[Voter, ...]:
        return tuple(self._metadata_log.voters.last)

    @property
    def is_voter(self) -> bool:
        return self._node.is_voter

    @property
    def is_active(self) -> bool:
        return (
            self._tip is not None
            and 0 <= self._tip.active_from <= self._applied_end
            and self.failed is None
            and not self._closed
        )

    def controller_address(self) -> tuple[int, str, int] | None:
        leader_id = self.leader_id
        if leader_id == NOBODY:
            return None
        address = self._node.address_of(leader_id, self._node.leader_endpoints)
        return (leader_id, *address) if address is not None else None

    def facts(self) -> QuorumFacts:
        return facts_of(self._node, self._clock)

    def listen(self, listener: Listener) -> None:
        """From the next commit on. What is committed already is in `image`."""
        self._listeners.append(listener)

    def on_leadership(self, listener: LeadershipListener) -> None:
        """From the next change on. What is known already: `leader_id`, `leader_epoch`, `is_active`."""
        self._leadership_listeners.append(listener)

    async def caught_up(self) -> None:
        """Until `image` has all that was committed when this node joined: what it shows before may be long out of
        date."""
        await self._caught_up.wait()
        self._check_alive()

    # --- taking part --------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Take part. A node that is the only voter leads when this returns; others learn later who leads."""
        self._driver.start()
        if self._node.is_only_voter:
            await self._caught_up.wait()
            self._check_alive()

    def _check_alive(self) -> None:
        if self.failed is not None:
            raise KafkaError(Err.KAFKA_STORAGE_ERROR, f"the metadata log has failed: {self.failed}")

    def peer_gone(self, node_id: int) -> None:
        self._driver.step(PeerGone(node_id))

    async def serve(self, key: ApiKey, request: Any, version: int, peer: str) -> Any:
        return await self._server.serve(key, request, version)

    @property
    def is_starved(self) -> bool:
        """Whether there is no room for what the leader sends: then what this node knows is out of date."""
        return self._metadata_log.starved > 0 or self._driver.waits_for_room

    def node_changed(self) -> None:
        """After each step of the node."""
        if self.failed is not None:
            return
        try:
            if self._tip is not None and self._node.leader is None:
                self._stop_leading()
            self._apply()
            if self._tip is None and self._node.leader is not None and not self._closed:
                self._start_leading()
        except Exception as error:
            # Metadata that cannot be replayed here was committed all the same: nothing can be built upon this image.
            self.fail(error)
            return
        self._tell_leadership()
        self._check_caught_up()

    def _tell_leadership(self) -> None:
        now = (self.leader_id, self.leader_epoch, self.is_active)
        if now == self._told:
            return
        if now[:2] != self._told[:2]:
            who = f"node {now[0]}" if now[0] != NOBODY else "nobody that is known"
            level = logging.DEBUG if self._node.is_only_voter else logging.INFO  # nobody else could
            logger.log(level, "metadata quorum: %s leads epoch %d", who, now[1])
        self._told = now
        if self.leader_id not in (NOBODY, self.node_id):
            self._new_leader.set()
        for listener in self._leadership_listeners:
            listener(*now)

    def _check_caught_up(self) -> None:
        if self._caught_up.is_set():
            return
        known = self._node.fetcher.leader_high_watermark
        if self.is_active or (self._node.leader is None and 0 <= known <= self._applied_end):
            self._caught_up.set()

    def _start_leading(self) -> None:
        """What the log holds beyond what is committed is part of every decision from here on, and ends unfinished
        work."""
        loader = self._loader.copy()
        tip = self._tip = Tip(loader)
        start = self._applied_end
        for applied in apply_log(self.log, loader, self._applied_end, self.log.end_offset):
            tip.add(Pending(start, applied.end_offset, applied.size, applied.delta, loader.copy(), None))
            start = applied.end_offset
        records: list[Record] = []
        if loader.in_transaction:
            records.append((m.AbortTransactionRecord(reason="a new leader took over"), 0))
        if is_new(loader.image):
            features = read_bootstrap(self._disk, self._layout.metadata_log_dir)
            records += bootstrap(features, self._options.min_insync_replicas)
        if records:
            try:
                _quiet(self.append(records))
            except KafkaError as error:
                self._cannot_lead(error)
                return
        tip.active_from = self.log.end_offset

    def _cannot_lead(self, error: Exception) -> None:
        """What a leader has to write cannot be. If that is for want of room, another may have some."""
        if self.log.failed is not None:
            self.fail(error)
            return
        logger.error("this node cannot lead the metadata quorum: %s", error)
        self._driver.step(Unwritten())

    def _stop_leading(self) -> None:
        """Whether what is pending will be committed is up to another leader now."""
        self._refuse_pending(KafkaError(Err.NOT_CONTROLLER, "this node is no longer the active controller"))

    def _refuse_pending(self, refusal: KafkaError) -> None:
        tip, self._tip = self._tip, None
        if tip is not None:
            tip.refuse(refusal)

    # --- writing ------------------------------------------------------------------------------------------------------

    def append(self, records: Sequence[Record]) -> "asyncio.Future[int]":
        """Write an atomic batch now, or several of too many records; the future has the first offset of the last one
        once all are committed.

        Raises KafkaError when a batch cannot be written: then nothing has changed but by those before it.
        """
        assert records, "an empty batch commits nothing"
        for start in range(0, len(records), RECORDS_PER_BATCH_MAX):
            done = self._append_batch(records[start : start + RECORDS_PER_BATCH_MAX])
        return done

    def _append_batch(self, records: Sequence[Record]) -> "asyncio.Future[int]":
        tip = self._check_writable()
        now_ms = self._clock.wall_ms()
        epoch = self._node.epoch
        base_offset = self.log.end_offset
        batch = build_batch(records, base_offset, epoch, now_ms)
        loader = tip.loader.copy()
        delta = loader.load(records, base_offset, epoch, now_ms)
        done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        try:
            self._write(tip, batch, delta, loader, now_ms, done)
        except KafkaError as error:
            if self.log.failed is not None or self._node.is_only_voter:
                raise
            # Without room nothing can be decided here, not even that this node's partitions are led elsewhere.
            self._cannot_lead(error)
            raise KafkaError(
                Err.NOT_CONTROLLER, f"this node is handing over to another controller: {error.message}"
            ) from error
        self._driver.step(Appended())
        return done

    async def write(self, decide: Callable[[Image], Outcome[Any]]) -> Any:
        """Decide on `tip` and append in one step; the response once all that it rests on is committed."""
        tip = self._check_writable()
        outcome = decide(tip.image)
        if outcome.records:
            await self.append(outcome.records)
        elif (done := tip.last_done()) is not None:
            # The decision may rest on what is not yet safe: "exists already" must not be said too early.
            await asyncio.shield(done)
        return outcome.response

    async def raise_version(self, version: int, validate_only: bool = False) -> None:
        """Finalize another kraft.version. Returns once that is committed; raises KafkaError."""
        self._check_writable()
        reply = await self._server.decide(lambda token: Upgrade(token, version, validate_only))
        if reply is None:
            raise KafkaError(Err.NOT_CONTROLLER, "this node takes no part in the quorum")
        assert isinstance(reply, VoterReply)
        error, _, message = reply
        if error is not Err.NONE:
            raise KafkaError(Err.NOT_CONTROLLER if error is Err.NOT_LEADER_OR_FOLLOWER else error, message)

    def _check_writable(self) -> Tip:
        self._check_alive()
        if self._closed or self._tip is None:
            raise KafkaError(Err.NOT_CONTROLLER, "this node is not the active controller")
        return self._tip

    def _write(
        self,
        tip: Tip,
        batch: bytes,
        delta: Delta | None,
        loader: Loader,
        now_ms: int,
        done: "asyncio.Future[int] | None",
    ) -> None:
        header = read_header(batch, 0)
        try:
            self._metadata_log.append(batch, header, now_ms)
        except OSError as error:
            if self.log.failed is not None:
                self.fail(error)
            raise KafkaError(Err.KAFKA_STORAGE_ERROR, f"the metadata log cannot be written: {error}") from error
        end_offset = header.last_offset + 1
        tip.add(Pending(header.base_offset, end_offset, len(batch), delta, loader, done))
        self._start_sync()

    # --- what the node wants done to the log --------------------------------------------------------------------------

    def append_control(self, effect: AppendControl) -> None:
        now_ms = self._clock.wall_ms()
        batch = encode_control_records(
            effect.records, base_offset=self.log.end_offset, leader_epoch=effect.epoch, now_ms=now_ms
        )
        try:
            if self._tip is not None:
                self._write(self._tip, batch, None, self._tip.loader, now_ms, None)
            else:
                # The first record of this node's leadership: what follows in `_start_leading` replays the log, and
                # this.
                self._metadata_log.append(batch, read_header(batch, 0), now_ms)
                self._start_sync()
        except (OSError, KafkaError) as error:
            self._cannot_lead(error)
        else:
            self._driver.step(Appended())

    def append_fetched(self, effect: AppendFetched) -> None:
        try:
            self._metadata_log.append_fetched(effect.records, self._node.epoch, self._clock.wall_ms())
        except Damaged as error:
            logger.warning("node %d sent what cannot be appended: %s", self._node.leader_id, error)
            self._driver.step(Rejected())
        except OSError as error:
            if self.log.failed is not None:
                raise
            logger.log(
                logging.WARNING if self._metadata_log.starved <= 1 else logging.DEBUG,
                "the metadata log cannot be written: %s",
                error,
            )
            self._driver.step(Rejected())
            self._start_sync()  # some of it may have been written, and the next fetch has to wait for that
        else:
            self._driver.step(Appended())
            if not self._node.options.is_controller:
                # It has no vote to lose, so that nobody counts on what it has: it need not wait for its disk.
                self._driver.step(Durable())
            self._start_sync()

    def truncate(self, effect: Truncate) -> None:
        logger.info("metadata log cut from %d to %d", self.log.end_offset, effect.end_offset)
        self._metadata_log.truncate(effect.end_offset)
        # On disk before anything follows: else a crash could leave old batches behind new ones.
        self._driver.spawn(self._sync_cut())

    async def _sync_cut(self) -> None:
        handle = self.log.active.handle
        file = handle.pin()
        try:
            await self._run_in_thread(file.sync)
        except OSError as error:
            self.fail(error)
            return
        finally:
            handle.unpin()
        self._start_sync()
        while self._syncing is not None:
            await asyncio.wait([self._syncing])
        if self.failed is None:
            self._driver.step(Stored())

    def store_chunk(self, effect: StoreChunk) -> None:
        self._driver.spawn(self._store_chunk(effect))

    async def _store_chunk(self, effect: StoreChunk) -> None:
        snapshot = SnapshotId(*effect.snapshot)
        chunk, folder = bytes(effect.chunk), self.log.path
        try:
            await self._run_in_thread(lambda: store_chunk(self._disk, folder, snapshot, effect.position, chunk))
            if effect.last:
                found, loader = await self._run_in_thread(lambda: finish(self._disk, folder, snapshot))
                check_features(loader.image, found.kraft_version, folder)
                self._install(found, loader)
        except (OSError, QuorumError) as error:
            logger.warning("snapshot %s cannot be stored: %s", snapshot.file_name, error)
            self._driver.step(Rejected())
        else:
            self._driver.step(Stored())

    def _install(self, snapshot: Snapshot, loader: Loader) -> None:
        old, new = self._loader.image, loader.image
        voters = VoterSet(snapshot.voters) if snapshot.voters is not None else None
        self._metadata_log.restart(snapshot.id, voters, snapshot.kraft_version)
        self._loader = loader
        self._applied_end = snapshot.id.end_offset
        self._start_sync()
        logger.info("metadata loaded from snapshot %s of node %d", snapshot.id.file_name, self._node.leader_id)
        delta = difference(old, new)
        for listener in self._listeners:
            listener(delta, new)

    async def _save(self, election: Election) -> None:
        kraft_version, voter_ids = self.kraft_version, self._metadata_log.voters.last.ids
        await self._run_in_thread(lambda: write_state(self._disk, self.log.path, election, kraft_version, voter_ids))
        self.saved_epoch = election.epoch

    # --- durable, committed, applied ----------------------------------------------------------------------------------

    def _start_sync(self) -> None:
        if self._syncing is None:
            self._syncing = asyncio.get_running_loop().create_task(self._sync(), name="metadata log sync")

    async def _sync(self) -> None:
        """Runs while something is written and not yet durable."""
        try:
            while self.failed is None and (plan := self.log.sync_plan()) is not None:
                try:
                    await self._run_in_thread(plan.run)
                finally:
                    self.log.mark_durable(plan)
                self._driver.step(Durable())
        except Exception as error:
            self.fail(error)
        finally:
            self._syncing = None

    def _apply(self) -> None:
        """Bring `image` to the high watermark, and tell."""
        end_offset = min(self._node.high_watermark, self.log.end_offset)
        if end_offset <= self._applied_end:
            return
        if self._tip is not None:
            for entry in self._tip.take_committed(end_offset):
                self._loader = entry.loader
                self._applied(Applied(entry.end_offset, entry.size, entry.delta))
                if entry.done is not None and not entry.done.done():
                    entry.done.set_result(entry.base_offset)
        else:
            for applied in apply_log(self.log, self._loader, self._applied_end, end_offset):
                if applied.delta is not None and applied.delta.features is not None:
                    check_features(self._loader.image, self.kraft_version, self.log.path)
                self._applied(applied)
        if not self._loader.in_transaction:
            self._keeper.maybe_start(self.image, *self._voters_at(self.image))

    def _applied(self, applied: Applied) -> None:
        self._applied_end = applied.end_offset
        self._keeper.wrote(applied.size)
        if applied.delta is not None:
            image = self._loader.image
            for listener in self._listeners:
                listener(applied.delta, image)

    def _voters_at(self, image: Image) -> tuple[int, tuple[Voter, ...]]:
        log = self._metadata_log
        return log.kraft_versions.at(image.offset), tuple(log.voters.at(image.offset))

    def fail(self, error: Exception) -> None:
        """A failed sync is final: what the kernel still holds is unknown, so nothing more may be promised."""
        if self.failed is not None:
            return
        self.failed = error
        self._driver.halt()
        self._server.drop()
        self._refuse_pending(KafkaError(Err.KAFKA_STORAGE_ERROR, f"the metadata log has failed: {error}"))
        self._tell_leadership()
        self._caught_up.set()
        if self.on_failure is not None:
            self.on_failure(error)

    # --- housekeeping -------------------------------------------------------------------------------------------------

    async def maintain(self) -> None:
        """Now and then: a snapshot that has become due by time, and files that are no longer needed."""
        if self.failed is None and not self._closed and not self._loader.in_transaction:
            await self._keeper.maintain(self.image, *self._voters_at(self.image))

    async def resign(self, timeout_s: float = 1.0) -> None:
        """Give the others a chance to choose another leader before this node goes. Nothing to do where it does not
        lead."""
        if self._node.leader is None or self._node.is_only_voter or self.failed is not None:
            return
        self._new_leader.clear()
        self._driver.step(Resign())
        try:
            await asyncio.wait_for(self._new_leader.wait(), timeout_s)
        except TimeoutError:
            logger.info("no other node took over the metadata quorum in %g s", timeout_s)

    async def close(self) -> None:
        """Commit what is written, as far as this node alone can, and let go of the files. Appends are refused from here
        on."""
        await self.resign()
        self._closed = True
        while self._syncing is not None:
            await self._syncing
        await self._driver.close()
        self._server.drop()
        self._refuse_pending(KafkaError(Err.NOT_CONTROLLER, "this node is stopping"))
        await self._keeper.close()
        if self.failed is None:
            await self._run_in_thread(self.log.close)
        else:
            self.log.abandon()


def _quiet(done: "asyncio.Future[int]") -> None:
    """Nobody waits for it: what becomes of it shows in what is committed."""
    done.add_done_callback(lambda future: future.cancelled() or future.exception())
