"""A broker: its parts put together, started and stopped in the right order.

Start: lock and open the folders, load the metadata, recover the logs, apply the metadata to them, and only then
listen. Stop: finish what is in flight, hand over, flush, mark the shutdown as clean.
"""

import asyncio
import errno
import gc
import logging
import os
import resource
import signal
import socket
import sys
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple

from headrace.broker.connection import Connection
from headrace.broker.controller import ActiveController
from headrace.broker.controller_channel import ControllerChannel
from headrace.broker.coordinator_runtime import GroupCoordinator
from headrace.broker.departures import Departures
from headrace.broker.farewell import LINGER_S
from headrace.broker.frame_memory import FrameMemory
from headrace.broker.handlers.fetch import FetchHandler
from headrace.broker.handlers.metadata import TopicEntries
from headrace.broker.handlers.produce import ProduceHandler
from headrace.broker.handlers.record_checks import RecordChecks
from headrace.broker.handlers.registry import CONTROLLER_HANDLERS, HANDLERS
from headrace.broker.lag import LagWatch
from headrace.broker.limits import ConnectionLimits, MemoryBudget
from headrace.broker.maintenance import Maintenance
from headrace.broker.metrics import Collector, GcWatch, Metrics
from headrace.broker.node import ClientEndpoint, Node
from headrace.broker.node import StartupError as StartupError
from headrace.broker.partition import FSYNC, Environment, Partition
from headrace.broker.peers import Peers
from headrace.broker.repair import Repairs
from headrace.broker.replicas import Replicas
from headrace.broker.room import RoomWatch
from headrace.broker.router import HotHandler, Router
from headrace.broker.runtime import Runtime, SocketOptions, SystemRuntime
from headrace.broker.syncer import Syncer
from headrace.broker.turns import Turns
from headrace.broker.waiters import TimerWheel
from headrace.config import BrokerConfig, conflicts
from headrace.config.listeners import Listener as Endpoint
from headrace.metadata.delta import Delta
from headrace.metadata.image import BROKER_CONFIG, Image
from headrace.protocol.api import ApiKey
from headrace.replication.fetch_sessions import SessionCache
from headrace.storage.log import Log
from headrace.storage.manager import LogManager

logger = logging.getLogger("headrace.server")

SWITCH_SECONDS = 0.001
DESCRIPTORS_MAX = 1_000_000
DESCRIPTORS_SPARE = 200
"""For the metadata log, checkpoints, listeners and libraries."""
DRAIN_SECONDS = 10.0
"""How long a stop waits for requests in flight."""


class Ready(NamedTuple):
    """What a user wants to know once clients can connect."""

    address: str
    data: str
    node_id: int


class Settings(NamedTuple):
    """Options read on the way of every request, looked up once."""

    request_bytes_max: int
    control_bytes_max: int
    fetch_bytes_max: int
    parked_requests_max: int

    @staticmethod
    def of(config: BrokerConfig) -> "Settings":
        return Settings(
            config["socket.request.max.bytes"],
            config["control.request.max.bytes"],
            config["fetch.max.bytes"],
            config["max.parked.requests.per.connection"],
        )


class Listener:
    """One address that clients, or other nodes, connect to."""

    def __init__(self, broker: "Broker", endpoint: Endpoint, router: Router) -> None:
        self.broker = broker
        self.endpoint = endpoint
        self.router = router
        self.port = endpoint.port
        self._server: asyncio.AbstractServer | None = None

    async def bind(self) -> None:
        """Take the port, so that it is known; nobody is served yet."""
        host = self.endpoint.host or "::"
        try:
            options = SocketOptions.of(self.broker.config)
            self._server, self.port = await self.broker.runtime.listen(
                self._accept, host, self.endpoint.port, options
            )
        except OSError as error:
            advice = "choose another with --port, or port 0 for any free one"
            if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
                advice = "--host must be a name or an address of this machine, or 0.0.0.0 for all it has"
            raise StartupError(
                f"cannot listen on {self.endpoint.host or '*'}:{self.endpoint.port}: {_reason(error)}; {advice}"
            ) from error

    async def serve(self) -> None:
        assert self._server is not None
        await self._server.start_serving()

    def _accept(self) -> Connection:
        return Connection(self)

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None

    @property
    def address(self) -> str:
        host = self.endpoint.host or "0.0.0.0"
        return f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"


class Broker:
    """One node of a cluster: a broker, a controller, or both; alone, both in one."""

    def __init__(self, config: BrokerConfig, runtime: Runtime) -> None:
        self.config = config
        self.runtime = runtime
        self.node_id = config.node_id
        self.settings = Settings.of(config)
        self.metrics = Metrics()
        self.budget = MemoryBudget(_memory_budget(config))
        self.turns = Turns(runtime.loop)
        self.frame_memory = FrameMemory(runtime.loop, self.budget)
        self.descriptors = Descriptors.take()
        self.connection_limits = ConnectionLimits(
            min(config["max.connections"], self.descriptors.connections), config["max.connections.per.ip"], config.max_connections_per_ip_overrides
        )
        self.topic_entries = TopicEntries()
        self.connections: dict[Connection, None] = {}  # a set's order would not be repeatable
        self.wheel = TimerWheel(runtime.loop, runtime.clock)
        self.idle_poll = runtime.idle_poll()
        self.sessions = SessionCache(
            config["max.incremental.fetch.session.cache.slots"], lambda: runtime.random.randrange(1, 1 << 31)
        )
        self.syncer = Syncer(runtime, self.metrics.sync_seconds, self.dir_failed)
        self.environment = Environment(
            node_id=self.node_id,
            wall_ms=runtime.clock.wall_ms,
            syncer=self.syncer,
            durable_acks=config["durability"] == FSYNC,
            validate_records=config["record.validation"] == "records",
            fetchable=self._fetchable,
            dir_failed=self.dir_failed,
            run_in_thread=runtime.run_in_thread,
        )
        self.repairs = Repairs(self)
        self.replicas = Replicas(self, self.environment)
        self.groups = GroupCoordinator(self)
        self.lag = LagWatch(self)
        self.departures = Departures(self)
        self.peers = Peers(f"headrace-{self.node_id}")
        self.controller: ActiveController | None = None
        """On a node with that role, whether or not it is the active one; set when its folders are open."""
        self.channel = ControllerChannel(self)
        self.node = Node(self)
        self.maintenance = Maintenance(self)
        self.room = RoomWatch(self)
        self.listeners: list[Listener] = []
        self.controller_listeners: list[Listener] = []
        self._tasks: set[asyncio.Task[Any]] = set()
        self._woken: dict[Partition, None] = {}
        self._gc_watch = GcWatch(self.metrics, runtime.perf_counter)
        self._metrics_server: Any = None
        self.stopping = asyncio.Event()
        self.draining = False
        """Connections are answered and closed, one after the other."""
        self.failure: BaseException | None = None

    # ---- what handlers ask for

    @property
    def image(self) -> Image:
        """The committed metadata."""
        return self.node.image

    @property
    def logs(self) -> LogManager:
        return self.node.logs

    def spawn(self, work: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        """Run a task that belongs to the broker. What it does not handle stops the broker, loudly."""
        task = self.runtime.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._task_done)
        return task

    def _task_done(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.critical("an internal task failed; stopping", exc_info=error)
            self.fail(error)

    def fail(self, error: BaseException) -> None:
        """Nothing more can be promised: stop, and do not call the end clean."""
        self.failure = self.failure or error
        self.stopping.set()

    def nodes(self, connection: Connection) -> list[ClientEndpoint]:
        """The live brokers, with the addresses that the client behind `connection` should use."""
        return self.node.client_endpoints(connection)

    # ---- life

    async def start(self) -> None:
        for line in conflicts.warnings(self.config):
            logger.warning("%s", line)
        self._make_listeners()
        # First, since this fails most often, and a broker that cannot start should have touched nothing.
        for listener in (*self.listeners, *self.controller_listeners):
            await listener.bind()
        self._check_metrics_port()
        await self.node.open()
        if self.config.is_broker:
            self.room.start()
        for listener in self.controller_listeners:
            await listener.serve()
        await self.node.join()
        if self.node.alone and self.config.is_broker:
            # Nobody else can answer for it: whoever connects should find a broker that leads.
            await self.node.lead()
            await self._settle()
        self.maintenance.start()
        self._start_metrics()
        self._freeze()
        for listener in self.listeners:
            await listener.serve()
        if self.config.is_broker and not self.node.lifecycle.running:
            # Others must reach this broker before they are told that it leads something.
            await self.node.lead()
            await self._settle()

    def _make_listeners(self) -> None:
        if self.config.is_broker:
            hot: dict[int, HotHandler] = {ApiKey.PRODUCE: RecordChecks(self, ProduceHandler(self)), ApiKey.FETCH: FetchHandler(self)}
            router = Router(self, hot, HANDLERS)
            self.listeners = [Listener(self, endpoint, router) for endpoint in self.config.broker_listeners]
        if self.config.is_controller:
            router = Router(self, {}, CONTROLLER_HANDLERS)
            self.controller_listeners = [
                Listener(self, endpoint, router) for endpoint in self.config.controller_listeners
            ]

    def _freeze(self) -> None:
        """Everything alive now stays alive: the collector need not look at it again and again."""
        gc.collect()
        gc.freeze()
        gc.set_threshold(50_000, 20, 50)
        gc.enable()
        self._gc_watch.start()

    async def _settle(self) -> None:
        """After an unclean stop, sync what recovery found before anyone asks: no reader may see less than before."""
        while not self.syncer.idle and self.failure is None:
            await asyncio.sleep(0.001)

    def ready(self) -> Ready:
        listeners = self.listeners or self.controller_listeners
        return Ready(
            ", ".join(listener.address for listener in listeners), ", ".join(self.config.log_dirs), self.node_id
        )

    async def stop(self) -> None:
        """Hand over, finish, flush and close. Safe to call after a failed start."""
        await self.node.leave()
        for listener in self.listeners:
            await listener.stop()
        self.draining = True
        for connection in self._client_connections():
            connection.finish()
        await self._drain()
        self.replicas.close()
        self.room.stop()
        self.maintenance.stop()
        self.repairs.stop()
        self._gc_watch.stop()
        if self._metrics_server is not None:
            self._metrics_server.shutdown()
        await self.node.close()
        for task in list(self._tasks):
            task.cancel()
        for listener in self.controller_listeners:
            await listener.stop()
        for connection in list(self.connections):
            connection.transport.abort()
        self.peers.close()
        self.wheel.close()

    def _client_connections(self) -> list[Connection]:
        return [connection for connection in self.connections if connection.listener in self.listeners]

    async def _drain(self) -> None:
        """Give waiting requests a moment; long polls need not run out, nor rebalances."""
        self.groups.close()
        for partition in self.replicas:
            for waiter in list(partition.fetch_waiters):
                waiter.expire()
        deadline = self.runtime.clock.monotonic_ms() + DRAIN_SECONDS * 1000
        while self.runtime.clock.monotonic_ms() < deadline:
            if all(not c.waiting and not c.outbox.blocked for c in self._client_connections()):
                break
            await asyncio.sleep(0.005)
        deadline = self.runtime.clock.monotonic_ms() + LINGER_S * 1000
        while self._client_connections() and self.runtime.clock.monotonic_ms() < deadline:
            await asyncio.sleep(0.005)
        # A sync that fails is told to one caller only: the logs must not be closed, and called whole, over its head.
        deadline = self.runtime.clock.monotonic_ms() + DRAIN_SECONDS * 1000
        while not self.syncer.idle and self.runtime.clock.monotonic_ms() < deadline:
            await asyncio.sleep(0.001)

    # ---- what happens to partitions

    def metadata_loaded(self, image: Image) -> None:
        """At start: what the last run knew. Nothing is led before this broker has registered."""
        if image.config(BROKER_CONFIG, "") or image.config(BROKER_CONFIG, str(self.node_id)):
            self._reconfigure(image)
        if self.config.is_broker:
            self.replicas.load(image)

    def metadata_changed(self, delta: Delta, image: Image) -> None:
        """Called in commit order, after the image has changed."""
        if delta.brokers:
            self.departures.metadata_changed(delta, delta.image)
        if any(kind == BROKER_CONFIG for kind, _ in delta.configs):
            self._reconfigure(image)
        if self.config.is_broker:
            self.replicas.apply(delta, image, self.groups.metadata_changed)

    def _reconfigure(self, image: Image) -> None:
        self.config = self.config.with_dynamic(
            image.config(BROKER_CONFIG, ""), image.config(BROKER_CONFIG, str(self.node_id))
        )
        for name, reason in self.config.ignored.items():
            logger.warning("dynamic option %s is ignored: %s", name, reason)
        self.settings = Settings.of(self.config)
        self.connection_limits.total = min(self.config["max.connections"], self.descriptors.connections)
        self.connection_limits.per_address = self.config["max.connections.per.ip"]
        self.connection_limits.overrides = self.config.max_connections_per_ip_overrides
        for topic in list(self.replicas.by_name):
            self.replicas.reconfigure(topic, image)

    def _fetchable(self, partition: Partition) -> None:
        """Readers of `partition` can go on; together with all others of this turn of the loop."""
        if not self._woken:
            self.runtime.loop.call_soon(self._wake)
        self._woken[partition] = None

    def _wake(self) -> None:
        woken, self._woken = self._woken, {}
        for partition in woken:
            for waiter in list(partition.fetch_waiters):
                waiter.advanced(partition)

    def dir_failed(self, log: Log, error: OSError) -> None:
        """A write or fsync failed: the directory is offline until a restart, the others serve on."""
        self.node.dir_failed(log, error)
        self.groups.refresh_soon()

    # ---- metrics

    def _check_metrics_port(self) -> None:
        """What the metrics show exists only later, but whether their port is free should be known before."""
        port = self.config["metrics.port"]
        if port is not None and port > 0:
            try:
                socket.create_server((self.config["metrics.host"], port)).close()
            except OSError as error:
                raise self._no_metrics(error) from error

    def _no_metrics(self, error: OSError) -> StartupError:
        host, port = self.config["metrics.host"], self.config["metrics.port"]
        return StartupError(f"cannot serve metrics on {host}:{port}: {_reason(error)}; choose another with --metrics-port")

    def _start_metrics(self) -> None:
        port = self.config["metrics.port"]
        if port is None or port < 0:
            return
        from prometheus_client import CollectorRegistry, start_http_server

        registry = CollectorRegistry()
        registry.register(Collector(self))
        host = self.config["metrics.host"]
        try:
            self._metrics_server, _ = start_http_server(port, host, registry)
        except OSError as error:
            raise self._no_metrics(error) from error
        logger.info("metrics on http://%s:%d/metrics", host, self._metrics_server.server_port)


async def serve(config: BrokerConfig, runtime: Runtime, ready: Callable[[Broker], None]) -> None:
    """Run a broker until it is told to stop. Raises StartupError, or what stopped it."""
    broker = Broker(config, runtime)
    loop = runtime.loop
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _stop_or_die, broker)
    try:
        if await _started(broker):
            ready(broker)
            await broker.stopping.wait()
    finally:
        await broker.stop()
    if broker.failure is not None:
        raise broker.failure


async def _started(broker: Broker) -> bool:
    """False if it was told to stop before: a node may wait long for others of its cluster."""
    starting = asyncio.ensure_future(broker.start())
    told = asyncio.ensure_future(broker.stopping.wait())
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


def _reason(error: OSError) -> str:
    # Only the resolver's numbers are its own; the text of a failed bind says more than is needed.
    if isinstance(error, socket.gaierror) or not error.errno:
        return (error.strerror or str(error)).lower()
    return os.strerror(error.errno).lower()


def _stop_or_die(broker: Broker) -> None:
    """The first signal stops in order; the second is for those who cannot wait."""
    if broker.stopping.is_set():
        os._exit(130)
    broker.stopping.set()


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


def _memory_budget(config: BrokerConfig) -> int:
    """Receive buffers of all connections together: what is configured, or an eighth of the machine's memory."""
    configured: int = config["queued.max.request.bytes"]
    if configured > 0:
        return configured
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(256 << 20, int(total) // 8)


class Descriptors(NamedTuple):
    """How the file descriptors that the system grants are shared out."""

    segments: int
    connections: int

    @staticmethod
    def take() -> "Descriptors":
        """Raise the soft limit to the hard one and divide it, some left for all the rest."""
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft != hard:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        granted = hard if hard != resource.RLIM_INFINITY else DESCRIPTORS_MAX
        granted = min(granted, DESCRIPTORS_MAX)
        # Never more than there are: a broker whose segments took them all could accept nobody.
        granted = max(granted - DESCRIPTORS_SPARE, granted // 2)
        # A segment that has to be opened again costs more than a connection refused costs anybody.
        segments = granted * 6 // 10
        return Descriptors(segments, granted - segments)
