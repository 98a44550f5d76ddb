"""A broker: its parts put together, started and stopped in the right order.

Start: take the ports, lock and open the folders, load the metadata, recover the logs, build all parts upon that, join
the cluster, apply its metadata to the logs, and only then serve. Stop: finish what is in flight, hand over, flush, mark
the shutdown as clean.
"""

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from headrace.broker.cluster.auto_creation import AutoCreation
from headrace.broker.cluster.controller_channel import ControllerChannel
from headrace.broker.cluster.forwarding import Forwarding
from headrace.broker.cluster.isolation import Isolation
from headrace.broker.cluster.lifecycle import Lifecycle
from headrace.broker.cluster.lost_brokers import LostBrokers
from headrace.broker.cluster.node import Node
from headrace.broker.cluster.opening import Opened, open_node
from headrace.broker.cluster.peers import Peers
from headrace.broker.cluster.producer_ids import ProducerIds
from headrace.broker.cluster.quorum_network import QuorumNetwork
from headrace.broker.controller.active import ActiveController
from headrace.broker.coordinators.lag import LagWatch
from headrace.broker.coordinators.leader_offsets import LeaderOffsets
from headrace.broker.coordinators.runtime import GroupCoordinator
from headrace.broker.coordinators.state_topic import StateTopics
from headrace.broker.coordinators.transaction_partitions import TransactionPartitions
from headrace.broker.coordinators.transactions import TransactionCoordinator
from headrace.broker.dynamic_config import DynamicBrokerConfig
from headrace.broker.fastpath.fast_path import FastPath
from headrace.broker.fastpath.interception import Interception
from headrace.broker.handlers.registry import Parts, broker_handlers, controller_handlers, hot_handlers, unstable_apis
from headrace.broker.health import Health
from headrace.broker.maintenance.cleaner import Cleaner
from headrace.broker.maintenance.comparison import Comparison
from headrace.broker.maintenance.disk_space_watch import DiskSpaceWatch
from headrace.broker.maintenance.freed_memory import FreedMemory
from headrace.broker.maintenance.idle_connections import IdleConnections
from headrace.broker.maintenance.retention import Retention
from headrace.broker.maintenance.schedule import Maintenance
from headrace.broker.maintenance.scrubber import Scrubber
from headrace.broker.metadata_cache import MetadataCache, Registration
from headrace.broker.metadata_publisher import MetadataPublisher
from headrace.broker.metrics import GcWatch, Metrics
from headrace.broker.net.connection import Connection
from headrace.broker.net.connections import Connections, RequestLimits, no_fast_path
from headrace.broker.net.limits import ConnectionLimits, MemoryBudget
from headrace.broker.net.lingering_close import LINGER_S
from headrace.broker.net.listener import Listener
from headrace.broker.net.router import Handler, HotHandler, Router
from headrace.broker.net.waiters import TimerWheel
from headrace.broker.prometheus import Collector, Counted, MetricsServer
from headrace.broker.replicas.assignments import AssignmentsManager
from headrace.broker.replicas.checkpoints import Checkpoints
from headrace.broker.replicas.cleaner_manager import CleanerManager
from headrace.broker.replicas.deletions import DelayedDeletions
from headrace.broker.replicas.deltas import DeltaQueue
from headrace.broker.replicas.disk_space import DiskSpace
from headrace.broker.replicas.environment import Environment
from headrace.broker.replicas.fetchers import Fetchers
from headrace.broker.replicas.hosted import Replicas
from headrace.broker.replicas.isr import IsrChanges
from headrace.broker.replicas.log_dir_failures import LogDirFailures
from headrace.broker.replicas.partition import FSYNC
from headrace.broker.replicas.partition_waiters import Wakeups
from headrace.broker.replicas.repair import Repairs
from headrace.broker.replicas.replica_fetcher import FetcherParts
from headrace.broker.replicas.replica_logs import ReplicaLogs
from headrace.broker.replicas.replica_manager import ReplicaManager
from headrace.broker.replicas.standing import Standing
from headrace.broker.replicas.syncer import Syncer
from headrace.broker.replicas.truncation import TruncationParts
from headrace.broker.runtime import (
    Descriptors,
    Runtime,
    SocketOptions,
    StartupError as StartupError,
    SystemRuntime,
    memory_budget,
)
from headrace.broker.tasks import Tasks
from headrace.broker.transactions.brokers import Brokers
from headrace.broker.transactions.left_open import LeftOpen
from headrace.broker.transactions.marker_writer import MarkerWriter
from headrace.broker.transactions.markers import MarkerSender
from headrace.broker.transactions.membership import Membership
from headrace.config import BrokerConfig, LogConfig, conflicts
from headrace.metadata.controller import Controller
from headrace.metadata.image import TOPIC_CONFIG, Image
from headrace.protocol.api import ApiKey
from headrace.replication.fetch_sessions import SessionCache
from headrace.replication.throttle import Throttle
from headrace.storage.checkpoints import new_uuid
from headrace.storage.manager import LogManager

logger = logging.getLogger("headrace.server")

SWITCH_SECONDS = 0.001
DRAIN_SECONDS = 10.0
"""How long a stop waits for requests in flight."""


class Ready(NamedTuple):
    """What a user wants to know once clients can connect."""

    address: str
    data: str
    node_id: int


class Broker:
    """One node of a cluster: a broker, a controller, or both; alone, both in one.

    What it consists of is built by `start`, in the order of the methods below, each part from those before it.
    """

    def __init__(self, config: BrokerConfig, runtime: Runtime, interception: Interception | None = None) -> None:
        self.runtime = runtime
        self.interception = interception
        self.node_id = config.node_id
        self.dynamic_config = DynamicBrokerConfig(config)
        self.tasks = Tasks(runtime.loop)
        self.metrics = Metrics()
        self.metadata = MetadataCache(self.node_id, config.inter_broker_listener)
        self.registration = Registration(self.node_id, self._new_id())
        self.peers = Peers(f"headrace-{self.node_id}")
        self.idle_poll = runtime.idle_poll()
        self.descriptors = Descriptors.take()
        self.logs = LogManager(
            runtime.disk,
            config.log_dirs,
            node_id=config.node_id,
            config_of=self._log_config,
            make_uuid=self._new_id,
            open_files_max=self.descriptors.segments,
            producer_expiration_ms=config["producer.id.expiration.ms"],
            meta_version=1 if config.zookeeper_connect is None else 0,
        )
        endpoints = config.broker_listeners if config.is_broker else []
        self.listeners = [Listener(runtime, endpoint, SocketOptions.of(config)) for endpoint in endpoints]
        self.controller_listeners = [
            Listener(runtime, endpoint, SocketOptions.of(config)) for endpoint in config.controller_listeners
        ]
        self._metrics_server = MetricsServer(config)
        self._gc_watch = GcWatch(self.metrics, runtime.perf_counter)
        self._is_built = False

    def _new_id(self) -> bytes:
        return new_uuid(self.runtime.random)

    def _log_config(self, topic: str) -> LogConfig:
        return LogConfig.from_topic(self.image.config(TOPIC_CONFIG, topic), self.config)

    # ---- what it consists of

    def _build(self, opened: Opened) -> None:
        self._build_controller(opened)
        self._build_replicas()
        self._build_connections()
        self._build_membership(opened)
        self._build_groups()
        self._build_transactions()
        self._build_maintenance()
        self._build_health()
        self.publisher = MetadataPublisher(
            self.quorum, self.metadata, self.dynamic_config, self.lost_brokers, self.replica_manager, self.groups,
            self.transactions,
        )  # fmt: skip
        self._is_built = True

    def _build_controller(self, opened: Opened) -> None:
        """The controller, and this node's way to it."""
        runtime, config = self.runtime, self.config
        self.quorum = opened.quorum
        self.deltas = DeltaQueue(runtime, self.tasks)
        self.controller: ActiveController | None = None
        """On a node with that role, whether or not it is the active one."""
        if config.is_controller:
            core = Controller(config.static, opened.cluster_id, runtime.random.randrange, self._new_id)
            self.controller = ActiveController(runtime, self.tasks, config, self.quorum, core, self.deltas)
        self.channel = ControllerChannel(runtime.clock, self.quorum, self.controller, self.peers)
        self.forwarding = Forwarding(self.channel, self.dynamic_config)
        self.producer_ids = ProducerIds(self.registration, self.channel, self.tasks.spawn)
        self.lost_brokers = LostBrokers(self.metadata, runtime.clock)

    def _build_replicas(self) -> None:
        """The replicas on this node, and who copies, repairs and counts them."""
        runtime, tasks, config, metadata, logs = self.runtime, self.tasks, self.config, self.metadata, self.logs
        durable_acks = config["durability"] == FSYNC
        lag_ms_max = config["replica.lag.time.max.ms"]
        self.replicas = Replicas(self.node_id, metadata, self.deltas)
        self.failures = LogDirFailures(logs, tasks)
        self.syncer = Syncer(runtime, self.metrics.sync_seconds, self.failures.failed)
        self.disk_space = DiskSpace(runtime, self.dynamic_config, logs, self.replicas)
        self.checkpoints = Checkpoints(runtime, tasks, logs, self.replicas)
        self.deletions = DelayedDeletions(runtime, logs)
        self.cleaner_manager = CleanerManager(runtime, tasks, logs)
        self.assignments = AssignmentsManager(runtime, tasks, metadata, self.registration, logs, self.channel)
        self.standing = Standing(self.node_id, metadata, self.assignments)
        self.repairs = Repairs(runtime, tasks, self.metrics, self.failures, self.cleaner_manager, self.standing)
        self.isr = IsrChanges(runtime, tasks, self.metrics, self.registration, self.replicas, self.channel, lag_ms_max)
        self.leader_throttle = Throttle()
        self.fetchers = Fetchers(
            FetcherParts(
                runtime, tasks, self.dynamic_config, metadata, self.registration, self.syncer, self.metrics,
                self.idle_poll, self.lost_brokers, self.standing, Throttle(),
                TruncationParts(
                    self.node_id, tasks, logs, self.failures, self.disk_space, self.repairs, self.standing, self.metrics
                ),
            )
        )  # fmt: skip
        self.environment = Environment(
            node_id=self.node_id,
            wall_ms=runtime.clock.wall_ms,
            monotonic_ms=runtime.clock.monotonic_ms,
            syncer=self.syncer,
            durable_acks=durable_acks,
            validate_records=config["record.validation"] == "records",
            eligible=self.standing.eligible,
            lag_ms_max=lag_ms_max,
            fetchable=Wakeups(runtime.loop).fetchable,
            dir_failed=self.failures.failed,
            no_space=self.disk_space.write_failed,
            run_in_thread=runtime.run_in_thread,
        )
        replica_logs = ReplicaLogs(
            self.node_id, runtime.clock, self.dynamic_config, logs, self.assignments, self.checkpoints,
            self.cleaner_manager, self.deletions, self.metrics, durable_acks,
        )  # fmt: skip
        self.replica_manager = ReplicaManager(
            runtime, metadata, self.metrics, self.environment, self.replicas, self.deltas, replica_logs,
            self.assignments, self.standing, self.disk_space, self.failures, self.repairs, self.isr, self.fetchers,
        )  # fmt: skip

    def _build_connections(self) -> None:
        """What all connections share."""
        runtime, config = self.runtime, self.config
        limits = ConnectionLimits(
            min(config["max.connections"], self.descriptors.connections),
            config["max.connections.per.ip"],
            config.max_connections_per_ip_overrides,
        )
        self.budget = MemoryBudget(memory_budget(config))
        self.connections = Connections(
            runtime,
            RequestLimits.of(config),
            limits,
            self.budget,
            self.metrics,
            self.idle_poll,
            self.syncer,
            self._fast_path if config["fast.path"] == "on" else no_fast_path,
        )
        self.wheel = TimerWheel(runtime.loop, runtime.clock)
        self.sessions = SessionCache(
            config["max.incremental.fetch.session.cache.slots"], lambda: runtime.random.randrange(1, 1 << 31)
        )
        self.dynamic_config.listen(self._reconfigure)

    def _build_membership(self, opened: Opened) -> None:
        """This node among others."""
        runtime = self.runtime
        self.lifecycle = Lifecycle(
            runtime, self.tasks, self.dynamic_config, self.metadata, self.registration, self.channel, self.logs,
            self.failures, self.disk_space, self.replicas, self.connections,
        )  # fmt: skip
        self.node = Node(
            runtime, self.tasks, self.dynamic_config, self.metadata, self.registration, opened, self.logs,
            self.listeners, self.controller, self.channel, self.syncer, self.replicas, self.replica_manager,
            self.assignments, self.checkpoints, self.lifecycle,
        )  # fmt: skip
        self.isolation = Isolation(
            runtime.clock, self.config["broker.session.timeout.ms"], self.metadata, self.quorum, self.lifecycle,
            self.replicas, self.replica_manager,
        )  # fmt: skip

    def _build_groups(self) -> None:
        """The groups that this node coordinates, and how far they are behind."""
        runtime = self.runtime
        self.groups = GroupCoordinator(
            runtime, self.tasks, self.dynamic_config, self.metadata, self.replicas, self.wheel
        )
        self.replica_manager.listen(self.groups.refresh_soon)
        self.failures.listen(lambda log_dir: self.groups.refresh_soon(), lambda log: self.groups.refresh_soon())
        leaders = LeaderOffsets(self.node_id, runtime.clock, self.metadata, self.peers)
        self.lag = LagWatch(self.node_id, runtime, self.metadata, self.replicas, self.groups, leaders)

    def _build_transactions(self) -> None:
        """The transactions that this node coordinates, and those that write to what it leads."""
        runtime, tasks, config, metadata = self.runtime, self.tasks, self.dynamic_config, self.metadata
        brokers = Brokers(metadata, self.peers)
        self.marker_writer = MarkerWriter(
            self.replicas.by_name, self.groups, self.wheel, lambda: config["request.timeout.ms"], runtime.loop
        )
        sender = MarkerSender(
            self.node_id, brokers, self.marker_writer, partial(brokers.ask, ApiKey.WRITE_TXN_MARKERS), tasks.spawn,
            runtime.loop, runtime.perf_counter,
        )  # fmt: skip
        self.transactions = TransactionCoordinator(
            runtime, tasks, config, metadata, self.replicas, self.wheel, self.producer_ids, sender
        )
        self.transaction_partitions = TransactionPartitions(metadata, self.transactions)
        self.membership = Membership(
            self.node_id, self.transactions.leader_of, self.transaction_partitions.ask,
            partial(brokers.ask, ApiKey.ADD_PARTITIONS_TO_TXN), tasks.spawn, runtime.loop,
        )  # fmt: skip
        ask_about = partial(brokers.ask, ApiKey.LIST_TRANSACTIONS)
        left_open = LeftOpen(self.node_id, self.transactions, ask_about, self.marker_writer, tasks.spawn)
        self.replica_manager.on_leading(left_open.led)
        self.replica_manager.listen(self.transactions.refresh_soon)
        self.failures.listen(
            lambda log_dir: self.transactions.refresh_soon(), lambda log: self.transactions.refresh_soon()
        )

    def _build_maintenance(self) -> None:
        """What is done by the clock."""
        runtime, tasks, config = self.runtime, self.tasks, self.dynamic_config
        comparison = Comparison(self.node_id, self.metadata, self.peers, self.replicas, self.cleaner_manager)
        self.scrubber = Scrubber(
            runtime, tasks, config, self.metrics, self.metadata, self.logs, self.replicas, self.failures,
            self.cleaner_manager, self.repairs, comparison,
        )  # fmt: skip
        self.cleaner = Cleaner(
            runtime, config, self.metrics, self.replicas, self.cleaner_manager, self.checkpoints, self.deletions,
            self.failures, self.scrubber.suspect,
        )  # fmt: skip
        self.retention = Retention(runtime, tasks, self.replicas, self.cleaner_manager, self.deletions, self.failures)
        self.disk_space_watch = DiskSpaceWatch(
            runtime, tasks, self.disk_space, self.isolation, self.retention, self.fetchers
        )
        self.maintenance = Maintenance(
            runtime, tasks, config, self.metrics, self.environment, self.replicas, self.quorum, self.retention,
            self.checkpoints, self.cleaner, self.scrubber, self.groups, self.transactions, self.lag,
            IdleConnections(runtime, config, self.metrics, self.budget, self.connections),
            FreedMemory.of_this_process(),
        )  # fmt: skip

    def _build_health(self) -> None:
        """What probes are told."""
        self.health = Health(
            self.node_id, self.runtime.loop, self.tasks, self.logs, self.metadata, self.quorum, self.replicas,
            self.lifecycle if self.config.is_broker else None,
        )  # fmt: skip

    def _parts(self) -> Parts:
        """What handlers are made of."""
        channel, metadata, config = self.channel, self.metadata, self.dynamic_config
        state_topics = StateTopics(config, metadata, channel)
        return Parts(
            runtime=self.runtime,
            config=lambda: config.current,
            metrics=self.metrics,
            spawn=self.tasks.spawn,
            wheel=self.wheel,
            sessions=self.sessions,
            environment=self.environment,
            replicas=self.replicas,
            isr=self.isr,
            leader_throttle=self.leader_throttle,
            logs=self.logs,
            checkpoints=self.checkpoints,
            disk_space=self.disk_space,
            scrubber=self.scrubber,
            groups=self.groups,
            transactions=self.transactions,
            transaction_partitions=self.transaction_partitions,
            membership=self.membership,
            marker_writer=self.marker_writer,
            node=self.node,
            quorum=self.quorum,
            producer_ids=self.producer_ids,
            lost_brokers=self.lost_brokers,
            isolation=self.isolation,
            controller=self.controller,
            forwarding=self.forwarding,
            auto_create=AutoCreation(channel, metadata, config, state_topics.creatable),
            create_state_topic=state_topics.create,
        )

    def _router(
        self, hot: dict[int, HotHandler], handlers: dict[int, Handler], unstable: frozenset[int] = frozenset()
    ) -> Router:
        return Router(hot, handlers, self.metrics, self.runtime, self.tasks.spawn, unstable)

    def _fast_path(self) -> FastPath:
        return FastPath() if self.interception is None else self.interception.fast_path()

    def collector(self) -> Collector:
        """What Prometheus is shown."""
        counters = None if self.controller is None else self.controller.counters
        return Collector(
            Counted(
                self.metrics, self.connections, self.wheel, self.budget, self.sessions, self.logs, self.disk_space,
                self.replicas, self.fetchers, self.scrubber, self.lag, self.transactions, self.quorum, counters,
            )
        )  # fmt: skip

    @property
    def config(self) -> BrokerConfig:
        """As it is now."""
        return self.dynamic_config.current

    @property
    def image(self) -> Image:
        """The committed metadata."""
        return self.metadata.image

    def _reconfigure(self, config: BrokerConfig) -> None:
        self.connections.requests = RequestLimits.of(config)
        limits = self.connections.limits
        limits.total = min(config["max.connections"], self.descriptors.connections)
        limits.per_address = config["max.connections.per.ip"]
        limits.overrides = config.max_connections_per_ip_overrides

    # ---- life

    async def start(self) -> None:
        """Returns once clients are served. Raises StartupError."""
        config = self.config
        for line in conflicts.warnings(config):
            logger.warning("%s", line)
        # First, since this fails most often, and a broker that cannot start should have touched nothing.
        for listener in (*self.listeners, *self.controller_listeners):
            await listener.bind()
        self._metrics_server.check_port()
        ports = {listener.endpoint.name: listener.port for listener in self.controller_listeners}
        network = QuorumNetwork(self.peers)
        self._build(open_node(config, self.runtime, self.logs, self.metadata, network, self._new_id, ports))
        if config.is_broker:
            self.disk_space_watch.start()
        parts = self._parts()
        for listener in self.controller_listeners:
            await listener.serve(self._router({}, controller_handlers(parts)), self.connections)
        await self.node.join(ports)
        self.publisher.follow()
        if self.metadata.alone and config.is_broker:
            # Nobody else can answer for it: whoever connects should find a broker that leads.
            await self._lead()
        self.maintenance.start()
        self._metrics_server.start(self.collector(), self.health)
        self.runtime.keep_memory()
        self._gc_watch.start()
        if config.is_broker:
            await self._serve(parts)
        if config.is_broker and not self.lifecycle.running:
            # Others must reach this broker before they are told that it leads something.
            await self._lead()
        self.health.serving = True

    async def _serve(self, parts: Parts) -> None:
        self.router = self._router(hot_handlers(parts), broker_handlers(parts), unstable_apis(parts.config()))
        router = self.router if self.interception is None else self.interception.router(self.router)
        for listener in self.listeners:
            await listener.serve(router, self.connections)

    async def _lead(self) -> None:
        """Take leadership that waits for this node.

        After an unclean stop, what recovery found is synced before anyone asks: no reader may see less than before.
        """
        await self.node.lead()
        self.groups.refresh()
        self.transactions.refresh()
        while not self.syncer.idle and self.tasks.failure is None:
            await asyncio.sleep(0.001)

    def ready(self) -> Ready:
        """Where it can be reached."""
        listeners = self.listeners or self.controller_listeners
        return Ready(
            ", ".join(listener.address for listener in listeners), ", ".join(self.config.log_dirs), self.node_id
        )

    async def stop(self) -> None:
        """Hand over, finish, flush and close. Safe to call after a failed start."""
        if self._is_built:
            self.health.serving = False
            await self.node.leave()
        for listener in self.listeners:
            await listener.stop()
        if self._is_built:
            await self._drain()
            self.replica_manager.close()
            self.disk_space_watch.stop()
            self.maintenance.stop()
        self._gc_watch.stop()
        self._metrics_server.stop()
        if self._is_built:
            await self.node.close()
        self.tasks.cancel()
        for listener in self.controller_listeners:
            await listener.stop()
        if self._is_built:
            for connection in list(self.connections):
                connection.transport.abort()
            self.wheel.close()
        self.peers.close()

    def _client_connections(self) -> list[Connection]:
        endpoints = {listener.endpoint for listener in self.listeners}
        return [connection for connection in self.connections if connection.endpoint in endpoints]

    async def _drain(self) -> None:
        """Give waiting requests a moment; long polls need not run out, nor rebalances."""
        self.connections.draining = True
        for connection in self._client_connections():
            connection.finish()
        self.groups.close()
        self.transactions.close()
        for partition in self.replicas:
            for waiter in list(partition.fetch_waiters):
                waiter.expire()
        await self._until(
            lambda: all(not c.waiting and not c.outbox.blocked for c in self._client_connections()), DRAIN_SECONDS
        )
        await self._until(lambda: not self._client_connections(), LINGER_S)
        # A sync that fails is told to one caller only: the logs must not be closed, and called whole, over its head.
        await self._until(lambda: self.syncer.idle, DRAIN_SECONDS, 0.001)

    async def _until(self, condition: Callable[[], bool], patience_s: float, look_s: float = 0.005) -> None:
        deadline_ms = self.runtime.clock.monotonic_ms() + patience_s * 1000
        while not condition() and self.runtime.clock.monotonic_ms() < deadline_ms:
            await asyncio.sleep(look_s)


async def serve(
    config: BrokerConfig,
    runtime: Runtime,
    ready: Callable[[Broker], None],
    interception: Interception | None = None,
) -> None:
    """Run a broker until it is told to stop. Raises StartupError, or what stopped it."""
    broker = Broker(config, runtime, interception)
    loop = runtime.loop
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _stop_or_die, broker)
    try:
        if await _started(broker):
            ready(broker)
            await broker.tasks.stopping.wait()
    finally:
        await broker.stop()
    if broker.tasks.failure is not None:
        raise broker.tasks.failure


async def _started(broker: Broker) -> bool:
    """False if it was told to stop before: a node may wait long for others of its cluster."""
    starting = asyncio.ensure_future(broker.start())
    told = asyncio.ensure_future(broker.tasks.stopping.wait())
    try:
        await asyncio.wait((starting, told), return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            starting.result()
            return True
        return False
    finally:
        for task in (starting, told):
            task.cancel()
        await asyncio.gather(starting, told, return_exceptions=True)


def _stop_or_die(broker: Broker) -> None:
    """The first signal stops in order; the second is for those who cannot wait."""
    if broker.tasks.stopping.is_set():
        os._exit(130)
    broker.tasks.stopping.set()


def run(config: BrokerConfig, on_ready: Callable[[Ready], None]) -> None:
    """Run a broker in this process until SIGTERM or SIGINT. `on_ready` is called once clients are served."""
    import uvloop

    async def main() -> None:
        runtime = SystemRuntime(asyncio.get_running_loop())
        try:
            await serve(config, runtime, lambda broker: on_ready(broker.ready()))
        finally:
            runtime.close()

    # A sync thread that has finished must not wait five milliseconds for a busy loop to let it say so.
    sys.setswitchinterval(SWITCH_SECONDS)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())
