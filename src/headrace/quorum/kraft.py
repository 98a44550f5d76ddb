"""The metadata log of a cluster with one controller: written, synced, applied, told.

Group commit: appends that arrive while a sync runs are committed together by the next one. A record is committed, and
`image` has it, once it is on the disk; `tip` has it as soon as it is written, so that the next decision sees it.
Snapshots bound what a restart has to replay. All calls are made on the loop.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

from headrace.clock import Clock
from headrace.config import LogConfig
from headrace.errors import Err, KafkaError
from headrace.metadata.delta import Delta
from headrace.metadata.image import Image
from headrace.metadata.loader import Loader
from headrace.metadata.outcome import Outcome
from headrace.metadata.records import Record, encode_record
from headrace.protocol import messages as m
from headrace.protocol.api import ApiKey
from headrace.quorum import Address, LeadershipListener, Listener, Network, QuorumError
from headrace.quorum.cleaning import SnapshotKeeper, SnapshotLimits
from headrace.quorum.folder import Identity, Layout, read_bootstrap
from headrace.quorum.loading import Loaded, load
from headrace.quorum.snapshots import Voter, voters_record
from headrace.quorum.state import ElectionState, write_state
from headrace.records.builder import BatchBuilder
from headrace.records.control import ControlType, encode_control
from headrace.records.layout import read_header
from headrace.storage.files import Disk
from headrace.storage.manager import METADATA_FOLDER

BATCH_BYTES_MAX = 8 << 20
"""As Kafka's quorum: a follower has to take a batch whole."""

RunInThread = Callable[[Callable[[], Any]], Awaitable[Any]]


class KraftOptions(NamedTuple):
    """The metadata.* and controller.quorum.* options, and whether this node is a controller at all."""

    segment_bytes: int = 1 << 30
    segment_ms: int = 604_800_000
    limits: SnapshotLimits = SnapshotLimits()
    static_voters: tuple[Voter, ...] = ()
    """Who has a vote where the log does not say (kraft.version 0)."""
    is_controller: bool = True
    """False for a node that only follows: it never votes, whatever the voters say."""
    bootstrap_servers: tuple[Address, ...] = ()
    """Where to ask who leads, while no voters are known or none of them answers."""
    election_timeout_ms: int = 1000
    fetch_timeout_ms: int = 2000
    election_backoff_ms_max: int = 1000
    request_timeout_ms: int = 2000
    retry_backoff_ms: int = 20
    auto_join: bool = False
    """controller.quorum.auto.join.enable: a controller without a vote asks for one."""


class VoterFacts(NamedTuple):
    id: int
    directory_id: bytes
    log_end_offset: int
    endpoints: tuple[tuple[str, str, int], ...]


class QuorumFacts(NamedTuple):
    """What DescribeQuorum tells."""

    leader_id: int
    leader_epoch: int
    high_watermark: int
    voters: tuple[VoterFacts, ...]
    observers: tuple[VoterFacts, ...]


class _Pending(NamedTuple):
    """A batch that is written and not yet committed."""

    base_offset: int
    end_offset: int
    size: int
    delta: Delta | None
    image: Image
    done: "asyncio.Future[int]"


class KraftQuorum:
    """See the module. Opened by `open_quorum`; `start` makes it the leader of a new epoch."""

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
        self.log = loaded.log
        self.leader_id = -1
        self.leader_epoch = loaded.state.leader_epoch
        self.kraft_version = loaded.kraft_version
        self.voters = loaded.voters
        self.failed: Exception | None = None
        self.on_failure: Callable[[Exception], None] | None = None
        """Told once when the log can no longer be written: the node has to step down."""
        self._disk = disk
        self._layout = layout
        self._loaded = loaded
        self._loader = loaded.loader
        self._image = loaded.loader.image
        self._clock = clock
        self._run_in_thread = run_in_thread
        self._listeners: list[Listener] = []
        self._leadership_listeners: list[LeadershipListener] = []
        self._active = False
        self._pending: deque[_Pending] = deque()
        self._syncing: asyncio.Task[None] | None = None
        self._closed = False
        self._keeper = SnapshotKeeper(
            disk,
            self.log,
            options.limits,
            loaded.snapshots,
            loaded.bytes_since_snapshot,
            clock,
            run_in_thread,
            self._fail,
        )

    # --- what is known ------------------------------------------------------------------------------------------------

    @property
    def image(self) -> Image:
        return self._image

    @property
    def tip(self) -> Image:
        return self._loader.image

    @property
    def next_offset(self) -> int:
        return self.log.end_offset

    @property
    def high_watermark(self) -> int:
        """With one voter, what is durable is committed."""
        return self.log.durable_end

    @property
    def is_voter(self) -> bool:
        return any(voter.id == self.node_id for voter in self.voters)

    @property
    def is_active(self) -> bool:
        return self._active and self.failed is None and not self._closed

    def controller_address(self) -> tuple[int, str, int] | None:
        for voter in self.voters:
            if voter.id == self.leader_id and voter.endpoints:
                _, host, port = voter.endpoints[0]
                return voter.id, host, port
        return None

    def facts(self) -> QuorumFacts:
        voters = tuple(
            VoterFacts(v.id, v.directory_id, self.log.end_offset if v.id == self.node_id else -1, v.endpoints)
            for v in self.voters
        )
        return QuorumFacts(self.leader_id, self.leader_epoch, self.high_watermark, voters, ())

    def listen(self, listener: Listener) -> None:
        """From the next commit on. What is committed already is in `image`."""
        self._listeners.append(listener)

    def on_leadership(self, listener: LeadershipListener) -> None:
        """From the next change on. What is known already: `leader_id`, `leader_epoch`, `is_active`."""
        self._leadership_listeners.append(listener)

    def _leadership_changed(self) -> None:
        for listener in self._leadership_listeners:
            listener(self.leader_id, self.leader_epoch, self.is_active)

    def peer_gone(self, node_id: int) -> None:
        """With one voter there is nobody to wait for."""

    async def serve(self, key: ApiKey, request: Any, version: int, peer: str) -> Any:
        raise KafkaError(Err.UNSUPPORTED_VERSION, f"{key.name} is not served by a quorum of one")

    # --- becoming leader ----------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Lead a new epoch: on disk before anything is written in it. Ends what the last leader left undone."""
        epoch = max(self.leader_epoch, self.log.epochs.latest_epoch, self._image.epoch, 0) + 1
        state = ElectionState(leader_epoch=epoch, leader_id=self.node_id)
        voter_ids = [voter.id for voter in self.voters]
        await self._run_in_thread(
            lambda: write_state(self._disk, self.log.path, state, self.kraft_version, voter_ids)
        )
        self.leader_epoch, self.leader_id = epoch, self.node_id
        self._leadership_changed()
        committed = self._append_control(self._first_control_records())
        records = self._first_records()
        if records:
            committed = self.append(records)
        await committed
        self._active = True
        self._leadership_changed()

    def _first_control_records(self) -> list[tuple[ControlType, Any]]:
        voters = [m.LeaderChangeMessage.Voter(voter_id=voter.id) for voter in self.voters]
        own = m.LeaderChangeMessage.Voter(voter_id=self.node_id)
        change = m.LeaderChangeMessage(
            version=0, leader_id=self.node_id, voters=voters, granting_voters=[own]
        )
        messages: list[tuple[ControlType, Any]] = [(ControlType.LEADER_CHANGE, change)]
        if self.kraft_version == 0:
            return messages
        moved = self._with_own_endpoints()
        if not self._loaded.voters_in_log:
            version = m.KRaftVersionRecord(version=0, k_raft_version=self.kraft_version)
            messages.append((ControlType.KRAFT_VERSION, version))
        if not self._loaded.voters_in_log or moved != self.voters:
            self.voters = moved
            messages.append((ControlType.KRAFT_VOTERS, voters_record(moved)))
        return messages

    def _with_own_endpoints(self) -> tuple[Voter, ...]:
        """The voters, with this node where its configuration now has it."""
        own = self._layout.controller_endpoints
        return tuple(
            Voter(v.id, v.directory_id, own, v.kraft_versions) if v.id == self.node_id and own else v
            for v in self.voters
        )

    def _first_records(self) -> list[Record]:
        records: list[Record] = []
        if self._loader.in_transaction:
            records.append((m.AbortTransactionRecord(reason="a new leader took over"), 0))
        image = self._loader.image
        if not (image.features or image.brokers or image.topics):
            records.append((m.BeginTransactionRecord(name="Bootstrap records"), 0))
            records += read_bootstrap(self._disk, self._layout.metadata_log_dir)
            records.append((m.EndTransactionRecord(), 0))
        return records

    # --- writing ------------------------------------------------------------------------------------------------------

    def append(self, records: Sequence[Record]) -> "asyncio.Future[int]":
        """Write one atomic batch now; the future has its first offset once it is committed.

        Raises KafkaError, with nothing changed, when the batch cannot be written.
        """
        assert records, "an empty batch commits nothing"
        self._check_writable()
        now_ms = self._clock.wall_ms()
        base_offset = self.log.end_offset
        builder = BatchBuilder(base_offset=base_offset, leader_epoch=self.leader_epoch)
        for message, version in records:
            builder.append(now_ms, None, encode_record(message, version))
        if builder.size_bytes > BATCH_BYTES_MAX:
            raise KafkaError(
                Err.RECORD_LIST_TOO_LARGE, f"{builder.size_bytes} bytes of changes in one request"
            )
        loader = self._loader.copy()
        delta = loader.load(records, base_offset, self.leader_epoch, now_ms)
        done = self._write(builder.build(), delta, loader.image, now_ms)
        self._loader = loader
        return done

    async def write(self, decide: Callable[[Image], Outcome[Any]]) -> Any:
        """Decide on `tip` and append in one step; the response once all that it rests on is committed."""
        self._check_writable()
        outcome = decide(self.tip)
        if outcome.records:
            await self.append(outcome.records)
        elif self._pending:
            # The decision may rest on what is not yet safe: "exists already" must not be said too early.
            await asyncio.shield(self._pending[-1].done)
        return outcome.response

    def _append_control(self, messages: list[tuple[ControlType, Any]]) -> "asyncio.Future[int]":
        now_ms = self._clock.wall_ms()
        batch = encode_control(
            messages, timestamp=now_ms, base_offset=self.log.end_offset, leader_epoch=self.leader_epoch
        )
        return self._write(batch, None, self._loader.image, now_ms)

    def _check_writable(self) -> None:
        if self.failed is not None:
            raise KafkaError(Err.KAFKA_STORAGE_ERROR, f"the metadata log has failed: {self.failed}")
        if self._closed or self.leader_id != self.node_id:
            raise KafkaError(Err.NOT_CONTROLLER, "this node is not the active controller")

    def _write(self, batch: bytes, delta: Delta | None, image: Image, now_ms: int) -> "asyncio.Future[int]":
        header = read_header(batch, 0)
        base_offset, end_offset = header.base_offset, header.last_offset + 1
        try:
            self.log.append(
                batch, base_offset, header.last_offset, self.leader_epoch, header.max_timestamp, now_ms
            )
        except OSError as error:
            if self.log.failed is not None:
                self._fail(error)
            raise KafkaError(
                Err.KAFKA_STORAGE_ERROR, f"the metadata log cannot be written: {error}"
            ) from error
        done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._pending.append(_Pending(base_offset, end_offset, len(batch), delta, image, done))
        if self._syncing is None:
            self._syncing = asyncio.get_running_loop().create_task(self._sync(), name="metadata log sync")
        return done

    async def _sync(self) -> None:
        """Runs while something is written and not yet durable."""
        try:
            while self._pending and self.failed is None:
                plan = self.log.sync_plan()
                if plan is not None:
                    try:
                        await self._run_in_thread(plan.run)
                    finally:
                        self.log.mark_durable(plan)
                self._commit()
        except Exception as error:
            self._fail(error)
        finally:
            self._syncing = None

    def _commit(self) -> None:
        durable_end = self.log.durable_end
        while self._pending and self._pending[0].end_offset <= durable_end:
            entry = self._pending.popleft()
            self._image = entry.image
            self._keeper.wrote(entry.size)
            if entry.delta is not None:
                for listener in self._listeners:
                    listener(entry.delta, entry.image)
            if not entry.done.done():
                entry.done.set_result(entry.base_offset)
        if not self._loader.in_transaction:
            self._keeper.maybe_start(self._image, self.kraft_version, self.voters)

    def _fail(self, error: Exception) -> None:
        """A failed sync is final: what the kernel still holds is unknown, so nothing more may be promised."""
        if self.failed is not None:
            return
        self.failed = error
        self.leader_id = -1
        self._active = False
        self._loader = Loader(self._image)
        refusal = KafkaError(Err.KAFKA_STORAGE_ERROR, f"the metadata log has failed: {error}")
        while self._pending:
            done = self._pending.popleft().done
            if not done.done():
                done.set_exception(refusal)
                done.exception()  # whoever waits gets it; that nobody does is no error of its own
        self._leadership_changed()
        if self.on_failure is not None:
            self.on_failure(error)

    # --- housekeeping -------------------------------------------------------------------------------------------------

    async def maintain(self) -> None:
        """Now and then: a snapshot that has become due by time, and files that are no longer needed."""
        if self.failed is None and not self._closed and not self._loader.in_transaction:
            await self._keeper.maintain(self._image, self.kraft_version, self.voters)

    async def close(self) -> None:
        """Commit what is written and let go of the files. Appends are refused from here on."""
        self._closed = True
        if self._syncing is not None:
            await self._syncing
        await self._keeper.close()
        if self.failed is None:
            await self._run_in_thread(self.log.close)
        else:
            self.log.abandon()


def open_quorum(
    disk: Disk,
    identity: Identity,
    layout: Layout,
    options: KraftOptions,
    clock: Clock,
    run_in_thread: RunInThread,
    network: Network | None = None,
    randrange: Callable[[int], int] | None = None,
) -> KraftQuorum:
    """Load what is on the disk. Blocking; raises QuorumError with one line for a person when it cannot be used."""
    folder = f"{layout.metadata_log_dir}/{METADATA_FOLDER}"
    config = LogConfig(segment_bytes=options.segment_bytes, segment_ms=options.segment_ms, retention_ms=-1)
    loaded = load(disk, folder, config, options.static_voters, clock.wall_ms())
    try:
        _check_voters(loaded.voters, identity, layout, loaded.kraft_version)
    except QuorumError:
        loaded.log.abandon()
        raise
    return KraftQuorum(disk, identity, layout, loaded, options, clock, run_in_thread, network, randrange)


def _check_voters(voters: tuple[Voter, ...], identity: Identity, layout: Layout, kraft_version: int) -> None:
    ids = [voter.id for voter in voters]
    if not ids:
        raise QuorumError(
            f"{layout.metadata_log_dir} names no voters, and neither does controller.quorum.voters"
        )
    if identity.node_id not in ids:
        raise QuorumError(f"node {identity.node_id} has no vote: the voters are {', '.join(map(str, ids))}")
    if len(ids) > 1:
        raise QuorumError(
            f"the cluster has the voters {', '.join(map(str, ids))}; this version runs with one"
        )
    own = identity.directory_ids[layout.metadata_log_dir]
    if kraft_version > 0 and voters[0].directory_id != own:
        raise QuorumError(
            f"node {identity.node_id} has its vote in another directory than {layout.metadata_log_dir}:"
            " this is a new or a foreign disk, and it must not vote"
        )
