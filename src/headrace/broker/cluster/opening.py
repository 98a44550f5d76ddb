"""Opens what is on this node's disks: the logs of its partitions and the metadata log."""

import logging
import socket
from collections.abc import Callable, Mapping
from typing import NamedTuple

from headrace.broker.cluster.zookeeper_security import zookeeper_options
from headrace.broker.metadata_cache import MetadataCache
from headrace.broker.runtime import Runtime, StartupError
from headrace.clock import Clock
from headrace.config import BrokerConfig
from headrace.quorum import Network, Quorum, QuorumError
from headrace.quorum.cleaning import SnapshotLimits
from headrace.quorum.folder import Layout, open_folders
from headrace.quorum.mark import Mark, Marker
from headrace.quorum.opening import open_quorum
from headrace.quorum.options import KraftOptions
from headrace.quorum.snapshots import Voter
from headrace.quorum.zookeeper.opening import open_zookeeper
from headrace.raft.types import RaftOptions
from headrace.storage.checkpoints import PARTITION_METADATA
from headrace.storage.epochs import FILE_NAME as EPOCHS
from headrace.storage.manager import METADATA_FOLDER, LogDirError, LogManager
from headrace.storage.not_files import set_aside_in_log_dir

logger = logging.getLogger("headrace.node")

LOOPBACK = "127.0.0.1"
CONTROLLER_LISTENER = "CONTROLLER"
CONTROLLER_PORT = 9093
EVERY_ADDRESS = ("", "0.0.0.0", "::")
LOAD_REPORT_MS = 2_000
"""How often a long recovery says how far it is."""


class Opened(NamedTuple):
    """A node's part in the quorum, as its disks have it."""

    cluster_id: str
    quorum: Quorum
    marker: Marker | None
    """Of the metadata on this node's disk, if it has any."""


def open_node(
    config: BrokerConfig,
    runtime: Runtime,
    logs: LogManager,
    metadata: MetadataCache,
    network: Network,
    new_id: Callable[[], bytes],
    controller_ports: Mapping[str, int],
) -> Opened:
    """Lock the folders, load metadata and logs. Raises StartupError; then nothing is locked any more."""
    try:
        opened = _open(config, runtime, logs, metadata, network, new_id, layout_of(config, controller_ports))
        metadata.image = opened.quorum.image
        if config.is_broker:
            _load_logs(logs, runtime.clock)
        return opened
    except BaseException:
        logs.close(clean=False)
        raise


def _open(
    config: BrokerConfig,
    runtime: Runtime,
    logs: LogManager,
    metadata: MetadataCache,
    network: Network,
    new_id: Callable[[], bytes],
    layout: Layout,
) -> Opened:
    try:
        logs.lock()
        if config.zookeeper_connect is not None:
            return _open_zookeeper(config, runtime, logs, network, new_id, layout)
        identity = open_folders(
            runtime.disk,
            layout,
            standalone=not config.quorum_voters and not config.quorum_bootstrap_servers,
            uuid=new_id,
            now_ms=runtime.clock.wall_ms(),
        )
        logs.open()
        metadata_folder = f"{layout.metadata_log_dir}/{METADATA_FOLDER}"
        if runtime.disk.exists(metadata_folder):
            logs.notes += set_aside_in_log_dir(runtime.disk, metadata_folder, (EPOCHS, PARTITION_METADATA))
        quorum = open_quorum(
            runtime.disk, identity, layout, quorum_options(config), runtime.clock, runtime.run_sync, network,
            runtime.random.randrange,
        )  # fmt: skip
    except (LogDirError, QuorumError) as error:
        raise StartupError(str(error)) from error
    except OSError as error:  # such as a disk that is full before anything was written
        reason = (error.strerror or str(error)).lower()
        raise StartupError(f"cannot use {error.filename or ', '.join(config.log_dirs)}: {reason}") from error

    def known() -> Mark:
        return Mark(min(metadata.image.offset + 1, quorum.log.durable_end), quorum.saved_epoch)

    directory = layout.metadata_log_dir
    marker = Marker(runtime.disk, directory, identity.directory_ids[directory], known, runtime.run_in_thread)
    return Opened(identity.cluster_id, quorum, marker)


def _open_zookeeper(
    config: BrokerConfig,
    runtime: Runtime,
    logs: LogManager,
    network: Network,
    new_id: Callable[[], bytes],
    layout: Layout,
) -> Opened:
    identity, quorum = open_zookeeper(
        runtime.disk, layout, zookeeper_options(config), runtime.clock, network, new_id,
        is_controller=config.is_controller, min_insync_replicas=config["min.insync.replicas"],
    )  # fmt: skip
    logs.open()
    return Opened(identity.cluster_id, quorum, None)


def _load_logs(logs: LogManager, clock: Clock) -> None:
    """Open and, where the last stop was not clean, recover every log."""
    last_report = clock.monotonic_ms()
    try:
        for done, total, what in logs.load(clock.wall_ms()):
            if clock.monotonic_ms() - last_report > LOAD_REPORT_MS:
                last_report = clock.monotonic_ms()
                logger.info("opening logs: %d of %d, now %s", done, total, what)
    except LogDirError as error:
        raise StartupError(str(error)) from error
    tell_notes(logs)


def tell_notes(logs: LogManager) -> None:
    """What opening or closing the logs found that a person should know."""
    for note in logs.notes:
        logger.warning("%s", note)
    logs.notes.clear()


def quorum_options(config: BrokerConfig) -> KraftOptions:
    """What a configuration says of this node's part in the quorum."""
    raft = RaftOptions(
        is_controller=config.is_controller,
        bootstrap_servers=tuple(config.quorum_bootstrap_servers),
        election_timeout_ms=config["controller.quorum.election.timeout.ms"],
        fetch_timeout_ms=config["controller.quorum.fetch.timeout.ms"],
        election_backoff_ms_max=config["controller.quorum.election.backoff.max.ms"],
        request_timeout_ms=config["controller.quorum.request.timeout.ms"],
        retry_backoff_ms=config["controller.quorum.retry.backoff.ms"],
        auto_join=config["controller.quorum.auto.join.enable"],
    )
    return KraftOptions(
        raft=raft,
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
        min_insync_replicas=config["min.insync.replicas"],
    )


def _reachable(host: str) -> str:
    if host not in EVERY_ADDRESS:
        return host
    return socket.gethostname() if host else LOOPBACK


def controller_listener_name(config: BrokerConfig) -> str:
    return next(iter(config.controller_listener_names), CONTROLLER_LISTENER)


def layout_of(config: BrokerConfig, ports: Mapping[str, int] | None = None) -> Layout:
    """The folders that a configuration names, and where it puts this node's controller: `ports` that are bound
    already."""
    advertised = {e.name: e for e in config.advertised_listeners}
    endpoints = tuple(
        (
            e.name,
            _reachable(advertised.get(e.name, e).host),
            advertised.get(e.name, e).port or (ports or {}).get(e.name, 0),
        )
        for e in config.controller_listeners
    )
    return Layout(
        config.node_id,
        config.log_dirs,
        config.metadata_log_dir,
        endpoints or ((controller_listener_name(config), LOOPBACK, CONTROLLER_PORT),),
    )
