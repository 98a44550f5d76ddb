"""This node's place in its cluster: who it is, its logs, the metadata it follows, and its registration."""

import logging
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.broker.connection import Connection
from headrace.broker.handlers.producers import ProducerIds
from headrace.config import BrokerConfig, LogConfig
from headrace.errors import KafkaError
from headrace.metadata.controller import Controller
from headrace.metadata.features import UPGRADE
from headrace.metadata.image import EMPTY, TOPIC_CONFIG, Endpoint, Image
from headrace.metadata.outcome import Outcome
from headrace.metadata.versions import GROUP_VERSION, GROUP_VERSION_LATEST, KRAFT_VERSION, SERVED_FEATURES
from headrace.protocol import messages as m
from headrace.quorum import QuorumError
from headrace.quorum.cleaning import SnapshotLimits
from headrace.quorum.folder import Layout, open_folders
from headrace.quorum.kraft import KraftOptions, KraftQuorum, open_quorum
from headrace.quorum.registration import LocalNode, leave, register, unfence
from headrace.quorum.snapshots import Voter
from headrace.storage.checkpoints import new_uuid
from headrace.storage.log import Log
from headrace.storage.manager import LogDirError, LogManager

if TYPE_CHECKING:
    from headrace.broker.server import Broker

logger = logging.getLogger("headrace.node")

PLAINTEXT = 0
LOOPBACK = "127.0.0.1"
CONTROLLER_LISTENER = "CONTROLLER"
CONTROLLER_PORT = 9093
UPDATE_FEATURES_VERSION = 2
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
        self.producer_ids = ProducerIds(broker)
        self.cluster_id = ""
        self.broker_epoch = -1
        self._opened = False
        self._loaded = False

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
            layout = layout_of(self._broker.config)
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
                runtime.disk, identity, layout, self._quorum_options(), runtime.clock, runtime.run_sync
            )
        except (LogDirError, QuorumError) as error:
            raise StartupError(str(error)) from error
        self.quorum.on_failure = self._broker.fail
        self._opened = True
        self._load_logs()
        self.controller = Controller(config.static, self.cluster_id, runtime.random.randrange, self.new_id)
        self._broker.metadata_loaded(self.quorum.image)
        self.quorum.listen(self._broker.metadata_changed)
        await self.quorum.start()

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
        self._loaded = True
        self._tell_notes()

    async def register(self) -> None:
        """Tell the cluster that this broker is here, now that its ports are known, and take over its partitions."""
        config = self._broker.config
        live = self.logs.live_dirs()
        # A clean stop noted the epoch it ended in: then the controller knows that this log has lost nothing.
        clean = all(log_dir.clean for log_dir in live)
        node = LocalNode(
            node_id=config.node_id,
            cluster_id=self.cluster_id,
            incarnation_id=self.new_id(),
            endpoints=self._registered_listeners(),
            controller_endpoints=[
                Endpoint(name, host, port, PLAINTEXT) for name, host, port in layout_of(self._broker.config).controller_endpoints
            ],
            rack=config["broker.rack"],
            directory_ids=sorted(log_dir.directory_id for log_dir in live),
            previous_broker_epoch=max((log_dir.broker_epoch for log_dir in live), default=-1) if clean else -1,
        )
        self.broker_epoch = await register(self.quorum, self.controller, node)
        await self._finalize_groups()
        await self._broker.replicas.assign_all()
        await unfence(self.quorum, self.controller, config.node_id)
        self._broker.replicas.lead_all(self.image)
        self._broker.groups.refresh()

    async def _finalize_groups(self) -> None:
        """A folder from before groups were served names no level for them: clients of KIP-848 rely on it."""
        if GROUP_VERSION in self.image.features:
            return
        kind = m.UpdateFeaturesRequest
        update = kind.FeatureUpdateKey(feature=GROUP_VERSION, max_version_level=GROUP_VERSION_LATEST, upgrade_type=UPGRADE)
        request = kind(feature_updates=[update])
        answer = await self.decide(lambda image: self.controller.update_features(image, request, UPDATE_FEATURES_VERSION))
        if answer.error_code:
            logger.warning("%s stays off: %s", GROUP_VERSION, answer.error_message)

    def _registered_listeners(self) -> list[Endpoint]:
        advertised = {e.name: e for e in self._broker.config.advertised_listeners}
        found = []
        for listener in self._broker.listeners:
            endpoint = advertised.get(listener.endpoint.name, listener.endpoint)
            explicit = "advertised.listeners" in self._broker.config.raw
            port = endpoint.port if explicit and endpoint.port else listener.port
            host = endpoint.host if endpoint.host not in ("", "0.0.0.0", "::") else socket.gethostname()
            found.append(Endpoint(endpoint.name, host, port, PLAINTEXT))
        return found

    # ---- serving

    async def decide(self, decision: Callable[[Image], Outcome[Any]]) -> Any:
        """Make a controller's decision durable, then answer."""
        return await self.quorum.write(decision)

    def client_endpoints(self, connection: Connection) -> list[ClientEndpoint]:
        """Live brokers; this one by the address its client already reached, unless something else is advertised."""
        listener = connection.listener
        found = []
        for broker in self.image.brokers.values():
            if broker.fenced:
                continue
            if broker.id == self._broker.node_id and "advertised.listeners" not in self._broker.config.raw:
                host, port = connection.local_address
                found.append(ClientEndpoint(broker.id, host, port, broker.rack))
                continue
            found += [
                ClientEndpoint(broker.id, endpoint.host, endpoint.port, broker.rack)
                for endpoint in broker.endpoints
                if endpoint.name == listener.endpoint.name
            ]
        return found

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
        return {(p.topic, p.index): p.high_watermark for p in self._broker.replicas if p.leader is not None}

    def dir_failed(self, log: Log, error: OSError) -> None:
        if log.abandoned:
            return  # deleted meanwhile: that its files are gone says nothing about the disk
        log_dir = self.logs.dir_of(log)
        if log_dir.failed is None:
            logger.critical("log directory %s failed and is offline: %s", log_dir.path, error)
            self.logs.fail_dir(log_dir, error)
            self._broker.replicas.fail(log_dir.path)
            if not self.logs.live_dirs():
                self._broker.fail(error)

    # ---- stop

    async def close(self) -> None:
        """Hand over, make everything durable, say that it was a clean end."""
        if not self._opened:
            if hasattr(self, "logs"):
                self.logs.close(clean=False)
            return
        watermarks = self.high_watermarks()
        try:
            if self._in_order() and self.broker_epoch >= 0:
                await leave(self.quorum, self.controller, self._broker.node_id)
            await self.quorum.close()
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


def controller_listener_name(config: BrokerConfig) -> str:
    return next(iter(config.controller_listener_names), CONTROLLER_LISTENER)


def layout_of(config: BrokerConfig) -> Layout:
    """The folders that a configuration names, and where it puts this node's controller."""
    endpoints = tuple((e.name, e.host or LOOPBACK, e.port) for e in config.controller_listeners)
    return Layout(
        config.node_id,
        config.log_dirs,
        config.metadata_log_dir,
        endpoints or ((controller_listener_name(config), LOOPBACK, CONTROLLER_PORT),),
    )
