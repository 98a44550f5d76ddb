"""This node's place in its cluster: who it is, its logs, the metadata it follows, and its registration."""

import asyncio
import logging
import socket
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.broker.connection import Connection
from headrace.broker.controller import ActiveController
from headrace.broker.handlers.producers import ProducerIds
from headrace.broker.lifecycle import Lifecycle, Member, RegistrationRefused
from headrace.broker.partition import FSYNC
from headrace.broker.quorum_network import QuorumNetwork
from headrace.config import BrokerConfig, LogConfig
from headrace.errors import KafkaError
from headrace.metadata.controller import Controller
from headrace.metadata.delta import Delta
from headrace.metadata.features import UPGRADE
from headrace.metadata.image import EMPTY, TOPIC_CONFIG, Endpoint, Image, PartitionKey
from headrace.metadata.outcome import Outcome
from headrace.metadata.versions import GROUP_VERSION, GROUP_VERSION_LATEST, KRAFT_VERSION, SERVED_FEATURES
from headrace.protocol import messages as m
from headrace.protocol.api import ApiKey
from headrace.quorum import QuorumError
from headrace.quorum.cleaning import SnapshotLimits
from headrace.quorum.folder import Layout, open_folders
from headrace.quorum.kraft import KraftOptions, KraftQuorum
from headrace.quorum.mark import Mark, Marker
from headrace.quorum.opening import open_quorum
from headrace.quorum.snapshots import Voter
from headrace.storage.checkpoints import new_uuid
from headrace.storage.files import NOT_THE_DISK
from headrace.storage.log import Log
from headrace.storage.manager import LogDirError, LogManager

if TYPE_CHECKING:
    from headrace.broker.server import Broker

logger = logging.getLogger("headrace.node")

PLAINTEXT = 0
LOOPBACK = "127.0.0.1"
CONTROLLER_LISTENER = "CONTROLLER"
CONTROLLER_PORT = 9093
EVERY_ADDRESS = ("", "0.0.0.0", "::")
LOAD_REPORT_MS = 2_000
"""How often a long recovery says how far it is."""


class StartupError(Exception):
    """Why the broker cannot start, in one line that says what to do."""


class ClientEndpoint(NamedTuple):
    """A broker as a client should address it."""

    node_id: int
    host: str
    port: int
    rack: str | None


class Node:
    """Opened before anything listens, registered once it does, closed last."""

    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self._runtime = broker.runtime
        self.logs: LogManager
        self.quorum: KraftQuorum
        self.controller: Controller
        self.lifecycle = Lifecycle(broker)
        self.producer_ids = ProducerIds(broker)
        self.cluster_id = ""
        self.broker_epoch = -1
        self.incarnation_id = self.new_id()
        self._opened = False
        self._loaded = False
        self._following = False
        self._waiting: list[tuple[Callable[[Image], bool], asyncio.Future[None]]] = []

    @property
    def image(self) -> Image:
        return self.quorum.image if self._opened else EMPTY

    def new_id(self) -> bytes:
        return new_uuid(self._runtime.random)

    # ---- start

    async def open(self) -> None:
        """Lock the folders, load metadata and logs."""
        config, runtime = self._broker.config, self._runtime
        self.logs = LogManager(
            runtime.disk,
            config.log_dirs,
            node_id=config.node_id,
            config_of=self._log_config,
            make_uuid=self.new_id,
            open_files_max=self._broker.descriptors.segments,
            producer_expiration_ms=config["producer.id.expiration.ms"],
        )
        try:
            self.logs.lock()
            layout = layout_of(self._broker.config, self._controller_ports())
            identity = open_folders(
                runtime.disk,
                layout,
                standalone=not config.quorum_voters and not config.quorum_bootstrap_servers,
                uuid=self.new_id,
                now_ms=runtime.clock.wall_ms(),
            )
            self.cluster_id = identity.cluster_id
            self.logs.open()
            self.quorum = open_quorum(
                runtime.disk, identity, layout, self._quorum_options(), runtime.clock, runtime.run_sync,
                QuorumNetwork(self._broker.peers), runtime.random.randrange,
            )  # fmt: skip
        except (LogDirError, QuorumError) as error:
            raise StartupError(str(error)) from error
        except OSError as error:  # such as a disk that is full before anything was written
            raise StartupError(f"cannot use {', '.join(config.log_dirs)}: {(error.strerror or str(error)).lower()}") from error
        self._marker = self._make_marker(layout.metadata_log_dir, identity.directory_ids[layout.metadata_log_dir])
        self.quorum.on_failure = self._broker.fail
        self._opened = True
        if config.is_broker:
            self._load_logs()
        self._loaded = True
        self.controller = Controller(config.static, self.cluster_id, runtime.random.randrange, self.new_id)
        if config.is_controller:
            self._broker.controller = ActiveController(self._broker, self.quorum, self.controller)
        self.quorum.on_leadership(self._broker.channel.leadership_changed)
        self.quorum.listen(self._committed)
        self.quorum.listen(self._marker.changed)
        self.quorum.on_leadership(self._marker.changed)

    async def join(self) -> None:
        """Take part in the quorum and register. Returns when this node knows all that the cluster knew by then."""
        await self.quorum.start()
        if self._broker.config.is_controller:
            endpoints = [
                Endpoint(name, host, port, PLAINTEXT)
                for name, host, port in layout_of(self._broker.config, self._controller_ports()).controller_endpoints
            ]
            self._broker.spawn(self.lifecycle.register_controller(endpoints, self.incarnation_id))
        if self._broker.config.is_broker:
            await self._register()
        else:
            self._follow()

    def _make_marker(self, log_dir: str, directory_id: bytes) -> Marker:
        quorum, runtime = self.quorum, self._runtime

        def known() -> Mark:
            return Mark(min(self.image.offset + 1, quorum.log.durable_end), quorum.saved_epoch)

        return Marker(runtime.disk, log_dir, directory_id, known, runtime.run_in_thread)

    def _controller_ports(self) -> dict[str, int]:
        return {listener.endpoint.name: listener.port for listener in self._broker.controller_listeners}

    def _quorum_options(self) -> KraftOptions:
        config = self._broker.config
        return KraftOptions(
            segment_bytes=config["metadata.log.segment.bytes"],
            segment_ms=config["metadata.log.segment.ms"],
            limits=SnapshotLimits(
                bytes_between=config["metadata.log.max.record.bytes.between.snapshots"],
                interval_ms=config["metadata.log.max.snapshot.interval.ms"],
                retention_bytes=config["metadata.max.retention.bytes"],
                retention_ms=config["metadata.max.retention.ms"],
            ),
            static_voters=tuple(
                Voter(voter_id, bytes(16), ((controller_listener_name(config), host, port),))
                for voter_id, (host, port) in config.quorum_voters.items()
            ),
            is_controller=config.is_controller,
            bootstrap_servers=tuple(config.quorum_bootstrap_servers),
            election_timeout_ms=config["controller.quorum.election.timeout.ms"],
            fetch_timeout_ms=config["controller.quorum.fetch.timeout.ms"],
            election_backoff_ms_max=config["controller.quorum.election.backoff.max.ms"],
            request_timeout_ms=config["controller.quorum.request.timeout.ms"],
            retry_backoff_ms=config["controller.quorum.retry.backoff.ms"],
            min_insync_replicas=config["min.insync.replicas"],
            auto_join=config["controller.quorum.auto.join.enable"],
        )

    def _log_config(self, topic: str) -> LogConfig:
        return LogConfig.from_topic(self.image.config(TOPIC_CONFIG, topic), self._broker.config)

    def _load_logs(self) -> None:
        """Open and, where the last stop was not clean, recover every log."""
        clock = self._runtime.clock
        last_report = clock.monotonic_ms()
        for done, total, what in self.logs.load(clock.wall_ms()):
            if clock.monotonic_ms() - last_report > LOAD_REPORT_MS:
                last_report = clock.monotonic_ms()
                logger.info("opening logs: %d of %d, now %s", done, total, what)
        self._tell_notes()

    async def _register(self) -> None:
        """Tell the cluster that this broker is here, fenced, and catch up with what the cluster knows."""
        config = self._broker.config
        live = self.logs.live_dirs()
        member = Member(
            node_id=config.node_id,
            cluster_id=self.cluster_id,
            incarnation_id=self.incarnation_id,
            endpoints=self._registered_listeners(),
            rack=config["broker.rack"],
            directory_ids=sorted(log_dir.directory_id for log_dir in live),
            previous_broker_epoch=self.logs.whole_since(),
        )
        try:
            epoch = await self.lifecycle.register(member)
        except RegistrationRefused as refused:
            raise StartupError(str(refused)) from refused
        await self.until(lambda image: image.offset >= epoch)
        self._follow()

    async def registered(self, epoch: int) -> None:
        """A new broker epoch begins. With every record on disk before it counts, no end of this life can lose any."""
        self.broker_epoch = epoch
        if self._broker.config["durability"] == FSYNC:
            await self._runtime.run_in_thread(self.logs.vouch, epoch)

    def _follow(self) -> None:
        """From here on metadata takes effect. Not earlier: old metadata would disown folders of newer topics."""
        self._following = True
        self._broker.metadata_loaded(self.image)

    async def lead(self) -> None:
        """Once this node serves what it has: take leadership that waits for it."""
        await self._finalize_groups()
        await self._remember_logs()
        await self._broker.replicas.assign_all()
        await self.lifecycle.unfence()
        self._broker.replicas.lead_all(self.image)
        self._broker.groups.refresh()

    async def _remember_logs(self) -> None:
        """Before this node leads anything there are checkpoints: a later start that finds none knows that files are gone."""
        if any(log_dir.forgetful for log_dir in self.logs.live_dirs()):
            try:
                # With the watermarks that were found: by them a replica knows that it has lost its end.
                await self._runtime.run_in_thread(self.logs.checkpoint_plan().run)
            except OSError as error:
                logger.warning("cannot write checkpoints: %s", error)

    @property
    def alone(self) -> bool:
        """Whether no other broker has ever joined: nobody to take over, nobody to wait for."""
        return all(broker_id == self._broker.node_id for broker_id in self.image.brokers)

    def _committed(self, delta: Delta, image: Image) -> None:
        if self._following:
            self._broker.metadata_changed(delta, image)
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            for entry in waiting:
                predicate, done = entry
                if done.done():
                    continue
                if predicate(image):
                    done.set_result(None)
                else:
                    self._waiting.append(entry)

    async def until(self, predicate: Callable[[Image], bool], timeout_ms: int | None = None) -> bool:
        """Wait for the metadata that this node knows to satisfy something. False: not in time."""
        if predicate(self.image):
            return True
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((predicate, done))
        try:
            async with asyncio.timeout(None if timeout_ms is None else timeout_ms / 1000):
                await done
        except TimeoutError:
            return False
        return True

    async def _finalize_groups(self) -> None:
        """A folder from before groups were served names no level for them: clients of KIP-848 rely on it."""
        if GROUP_VERSION in self.image.features or not self.quorum.is_active:
            return
        kind = m.UpdateFeaturesRequest
        update = kind.FeatureUpdateKey(feature=GROUP_VERSION, max_version_level=GROUP_VERSION_LATEST, upgrade_type=UPGRADE)
        answer = await self._broker.channel.request(ApiKey.UPDATE_FEATURES, kind(feature_updates=[update]))
        if answer.error_code:
            logger.warning("%s stays off: %s", GROUP_VERSION, answer.error_message)

    def _registered_listeners(self) -> list[Endpoint]:
        advertised = {e.name: e for e in self._broker.config.advertised_listeners}
        found = []
        for listener in self._broker.listeners:
            endpoint = advertised.get(listener.endpoint.name, listener.endpoint)
            explicit = "advertised.listeners" in self._broker.config.raw
            port = endpoint.port if explicit and endpoint.port else listener.port
            host = endpoint.host if endpoint.host not in EVERY_ADDRESS else socket.gethostname()
            found.append(Endpoint(endpoint.name, host, port, PLAINTEXT))
        return found

    # ---- serving

    async def decide(self, decision: Callable[[Image], Outcome[Any]]) -> Any:
        """Make a controller's decision durable, then answer. Raises NOT_CONTROLLER where another node decides."""
        return await self.quorum.write(decision)

    async def assign_directories(self, directories: Mapping[PartitionKey, bytes]) -> None:
        """Tell the controller in which log dir each replica lies. Raises KafkaError."""
        await self.lifecycle.assign_directories(directories)

    def client_endpoints(self, connection: Connection) -> list[ClientEndpoint]:
        """Live brokers; this one by the address its client already reached, unless something else is advertised."""
        listener = connection.listener
        found = []
        for broker in self.image.brokers.values():
            if broker.fenced:
                continue
            if broker.id == self._broker.node_id and not self._is_advertised(listener.endpoint.host):
                host, port = connection.local_address
                found.append(ClientEndpoint(broker.id, host, port, broker.rack))
                continue
            found += [
                ClientEndpoint(broker.id, endpoint.host, endpoint.port, broker.rack)
                for endpoint in broker.endpoints
                if endpoint.name == listener.endpoint.name
            ]
        return found

    def _is_advertised(self, host: str) -> bool:
        """Whether clients are to use the address that this broker registered, as they hear it from other brokers."""
        if "advertised.listeners" in self._broker.config.raw:
            return True
        return not self.alone and host not in EVERY_ADDRESS

    def controller_hint(self) -> int:
        """Whom to send admin requests to: in KRaft any live broker, which forwards them."""
        return self._broker.node_id

    @property
    def supported_features(self) -> dict[str, tuple[int, int]]:
        return SERVED_FEATURES

    def finalized_features(self) -> dict[str, int]:
        finalized = {name: level for name, level in self.image.features.items() if name in SERVED_FEATURES}
        if self.quorum.kraft_version:
            finalized[KRAFT_VERSION] = self.quorum.kraft_version
        return finalized

    async def save_log_starts(self) -> None:
        await self._runtime.run_in_thread(self.logs.checkpoint_plan().run)

    def high_watermarks(self) -> dict[tuple[str, int], int]:
        """Of what is here: the next start takes what it does not find below them for lost."""
        return {(p.topic, p.index): min(p.high_watermark, p.countable_end) for p in self._broker.replicas if not p.failed}

    def dir_failed(self, log: Log, error: OSError) -> None:
        if log.abandoned:
            return  # deleted meanwhile: that its files are gone says nothing about the disk
        log_dir = self.logs.dir_of(log)
        if error.errno in NOT_THE_DISK:
            logger.critical("%s cannot be used, the rest of %s can: %s", log.path, log_dir.path, error)
            log.failed = log.failed or error
            self._broker.replicas.fail_log(log)
            return
        if log_dir.failed is None:
            logger.critical("log directory %s failed and is offline: %s", log_dir.path, error)
            self.logs.fail_dir(log_dir, error)
            self.lifecycle.dir_failed(log_dir.directory_id)
            self._broker.replicas.fail(log_dir.path)
            if not self.logs.live_dirs():
                self._broker.fail(error)

    # ---- stop

    async def leave(self) -> None:
        """Have others take over while this node still answers. The last one that is up has nobody to wait for."""
        brokers = self.image.brokers.values()
        others = any(broker.active and broker.id != self._broker.node_id for broker in brokers)
        in_order = self._loaded and self._broker.failure is None
        if self._opened and in_order and others and self._broker.config["controlled.shutdown.enable"]:
            await self.lifecycle.leave()

    async def close(self) -> None:
        """Hand over, make everything durable, say that it was a clean end."""
        if not self._opened:
            if hasattr(self, "logs"):
                self.logs.close(clean=False)
            return
        watermarks = self.high_watermarks()
        try:
            if self._in_order() and self.alone:
                await self.lifecycle.leave()
            self.lifecycle.stop()
            if self._broker.controller is not None:
                self._broker.controller.close()
            await self.quorum.close()
            await self._marker.close()
        except (KafkaError, OSError) as error:
            # A full disk, most likely. What was committed is there; the next start checks the rest.
            logger.error("the metadata log could not be closed in order: %s", error)
        finally:
            # Last, since this lets go of the locks: nobody may find a folder free that is still written to.
            self.logs.close(
                clean=self._in_order(),
                broker_epoch=self.broker_epoch,
                high_watermarks=watermarks,
                run_all=self._runtime.run_all,
            )
            self._tell_notes()

    def _tell_notes(self) -> None:
        for note in self.logs.notes:
            logger.warning("%s", note)
        self.logs.notes.clear()

    def _in_order(self) -> bool:
        """Whether this end may be called clean: every log was opened, and no sync is out that may yet fail."""
        return self._loaded and self._broker.failure is None and self._broker.syncer.idle


def _reachable(host: str) -> str:
    if host not in EVERY_ADDRESS:
        return host
    return socket.gethostname() if host else LOOPBACK


def controller_listener_name(config: BrokerConfig) -> str:
    return next(iter(config.controller_listener_names), CONTROLLER_LISTENER)


def layout_of(config: BrokerConfig, ports: Mapping[str, int] | None = None) -> Layout:
    """The folders that a configuration names, and where it puts this node's controller: `ports` that are bound already."""
    advertised = {e.name: e for e in config.advertised_listeners}
    endpoints = tuple(
        (e.name, _reachable(advertised.get(e.name, e).host), advertised.get(e.name, e).port or (ports or {}).get(e.name, 0))
        for e in config.controller_listeners
    )
    return Layout(
        config.node_id,
        config.log_dirs,
        config.metadata_log_dir,
        endpoints or ((controller_listener_name(config), LOOPBACK, CONTROLLER_PORT),),
    )
