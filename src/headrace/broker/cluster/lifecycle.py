"""A broker's membership of its cluster: registration, heartbeats, and a way down that moves leadership first.

Everything goes through the controller channel, so that it makes no difference whether the controller is in this
process, on another Headrace node or an Apache Kafka one. What the controller decides comes back as metadata.
"""

import asyncio
import logging
from collections.abc import Iterable
from enum import Enum
from typing import Any, NamedTuple

from headrace.broker.cluster.controller_channel import ControllerChannel
from headrace.broker.dynamic_config import DynamicBrokerConfig
from headrace.broker.metadata_cache import MetadataCache, Registration
from headrace.broker.net.connection import Connection
from headrace.broker.replicas.disk_space import DiskSpace
from headrace.broker.replicas.hosted import Replicas
from headrace.broker.replicas.log_dir_failures import LogDirFailures
from headrace.broker.replicas.partition import FSYNC
from headrace.broker.replicas.replica_manager import DECISION_SECONDS
from headrace.broker.runtime import Runtime
from headrace.broker.tasks import Tasks
from headrace.client.errors import err_of
from headrace.errors import Err, KafkaError
from headrace.metadata.image import Endpoint, Image
from headrace.metadata.versions import CONTROLLER_REGISTRATION_LEVEL, KNOWN_FEATURES
from headrace.protocol import messages as m
from headrace.protocol.api import ApiKey
from headrace.protocol.private_fields.disk_space import full_tagged
from headrace.storage.manager import LogDir, LogManager

logger = logging.getLogger("headrace.lifecycle")

HEARTBEAT_LANE = "heartbeat"
"""The controller takes the end of this connection for a sign that this process may have died."""
REGISTRATION_TIMEOUT_MS = 5_000
RETRY_S = 0.2
LEAVE_TIMEOUT_MS = 10_000
"""How long a stop waits for others to take over."""
HURRIED_S = 0.02
ANSWERS_S = 0.005
NEWS_S = 1.0
"""How long clients that were just told of other leaders have for asking who they are."""

FATAL = {
    Err.INCONSISTENT_CLUSTER_ID: (
        "its data folder belongs to another cluster, by cluster.id in meta.properties; give it a folder of its own, or"
        " the right controllers"
    ),
    Err.UNSUPPORTED_VERSION: "it does not support a feature level that the cluster has finalized; run a newer version",
    Err.INVALID_REGISTRATION: "the controller does not accept its registration",
    Err.CLUSTER_AUTHORIZATION_FAILED: "the controller does not accept brokers from here",
}
"""Refusals that trying again does not change, and what to do about them."""


class State(Enum):
    STARTING = "starting"
    REGISTERED = "registered"
    RUNNING = "running"
    LEAVING = "leaving"
    STOPPED = "stopped"


class RegistrationRefused(Exception):
    """Why the cluster does not take this broker: one line for a person."""


class Member(NamedTuple):
    """What a broker says of itself when it registers."""

    node_id: int
    cluster_id: str
    incarnation_id: bytes
    """New with each start."""
    endpoints: list[Endpoint]
    """Where clients and other brokers reach it: the advertised listeners."""
    rack: str | None
    directory_ids: list[bytes]
    """Of the log dirs that are online."""
    previous_broker_epoch: int = -1
    """From the mark that a clean stop leaves: then the controller knows that nothing was lost."""


class Lifecycle:
    """`register` first, then heartbeats run by themselves until `leave`."""

    def __init__(
        self,
        runtime: Runtime,
        tasks: Tasks,
        config: DynamicBrokerConfig,
        metadata: MetadataCache,
        registration: Registration,
        channel: ControllerChannel,
        logs: LogManager,
        failures: LogDirFailures,
        disk_space: DiskSpace,
        replicas: Replicas,
        connections: Iterable[Connection],
    ) -> None:
        self._runtime = runtime
        self._clock = runtime.clock
        self._tasks = tasks
        self._metadata = metadata
        self._registration = registration
        self._channel = channel
        self._logs = logs
        self._disk_space = disk_space
        self._replicas = replicas
        self._connections = connections
        self._interval_s: float = config["broker.heartbeat.interval.ms"] / 1000
        self._session_ms: int = config["broker.session.timeout.ms"]
        self._syncs_acks: bool = config["durability"] == FSYNC
        self.state = State.STARTING
        self._member: Member | None = None
        self._contact_ms = 0
        self._offline: list[bytes] = []
        self._want_fence = True
        self._released = False
        self.is_fenced = True
        """By the controller's last answer. The metadata says it, too, where it can be heard."""
        self._kick = asyncio.Event()
        self._task: asyncio.Task[Any] | None = None
        failures.listen(self._dir_failed)
        disk_space.listen(self.tell_soon)

    @property
    def running(self) -> bool:
        """Whether this broker has been unfenced."""
        return self.state is State.RUNNING

    @property
    def out_of_touch(self) -> bool:
        """Whether no controller has answered for a whole session: if there is one, it has fenced this broker by now."""
        now_ms = self._clock.monotonic_ms()
        return self.state is State.RUNNING and now_ms - self._contact_ms > self._session_ms

    # ---- joining

    async def register(self, member: Member) -> int:
        """Register, fenced; returns the broker epoch. Tries again until it is settled; raises RegistrationRefused."""
        await self._register(member, patient=False)
        self._member = member
        self.state = State.REGISTERED
        self._task = self._tasks.spawn(self._heartbeats())
        return self._registration.broker_epoch

    async def _register(self, member: Member, *, patient: bool) -> None:
        """`patient`: this broker has served already; whatever stands in its way now may yet pass."""
        clock = self._clock
        duplicate_since_ms: int | None = None
        told = False
        while True:
            try:
                answer = await self._channel.request(
                    ApiKey.BROKER_REGISTRATION, registration_request(member),
                    timeout_ms=REGISTRATION_TIMEOUT_MS, lane=HEARTBEAT_LANE,
                )  # fmt: skip
                error = err_of(answer.error_code)
            except KafkaError as failed:
                error = failed.error
            if error is Err.NONE:
                await self._registered(answer.broker_epoch)
                return
            if error in FATAL and not patient:
                raise RegistrationRefused(f"broker {member.node_id} cannot join: {FATAL[error]} [{error.name}]")
            if error is not Err.DUPLICATE_BROKER_REGISTRATION:
                duplicate_since_ms = None
            elif duplicate_since_ms is None:
                # The last incarnation, killed a moment ago, may look alive for one session. Twice, since a new
                # controller starts it afresh; and not from this start on, since there may have been none for long:
                # 1. This broker and a majority of the controllers are killed. 2. It starts, and hears nobody for
                # minutes. 3. The first controller gives a session to all that it knows, the last incarnation too.
                duplicate_since_ms = clock.monotonic_ms()
            elif clock.monotonic_ms() - duplicate_since_ms > 2 * self._session_ms + REGISTRATION_TIMEOUT_MS:
                raise RegistrationRefused(
                    f"broker {member.node_id} cannot join: another broker with this id is running;"
                    f" stop it or choose another node.id [{error.name}]"
                )
            if not told:
                told = True
                logger.warning("not registered yet, trying again: %s", error.name)
            await asyncio.sleep(RETRY_S)

    async def _registered(self, epoch: int) -> None:
        """A new broker epoch begins. With every record on disk before it counts, no end of this life can lose any."""
        self._registration.broker_epoch = epoch
        if self._syncs_acks:
            await self._runtime.run_in_thread(self._logs.vouch, epoch)

    async def unfence(self) -> None:
        """Ask for leadership, now that this node serves all it has; returns when it may have some."""
        self._want_fence = False
        self._kick.set()
        own = self._registration

        def unfenced(image: Image) -> bool:
            broker = image.brokers.get(own.node_id)
            return broker is not None and broker.epoch == own.broker_epoch and not broker.fenced

        await self._metadata.until(unfenced)
        self.state = State.RUNNING

    async def register_controller(self, endpoints: list[Endpoint]) -> None:
        """Tell the cluster where this node's controller is, and what it supports."""
        own = self._registration
        while True:
            if self._metadata.image.metadata_version >= CONTROLLER_REGISTRATION_LEVEL:
                request = controller_registration_request(own.node_id, own.incarnation_id, endpoints)
                try:
                    answer = await self._channel.request(ApiKey.CONTROLLER_REGISTRATION, request)
                except KafkaError as error:
                    logger.info("this controller is not registered yet: %s", error)
                else:
                    if not answer.error_code:
                        return
                    logger.warning("this controller is not registered yet: %s", err_of(answer.error_code).name)
            await asyncio.sleep(RETRY_S)

    # ---- being there

    async def _heartbeats(self) -> None:
        """For as long as this broker runs."""
        while not self._released:
            self._kick.clear()
            try:
                await self._heartbeat()
            except KafkaError as error:
                logger.warning("no controller answers heartbeats: %s", error)
            # On its way in or out a broker asks again soon: somebody waits for it.
            hurried = self.state is State.LEAVING or (self.state is State.REGISTERED and not self._want_fence)
            await self._sleep(HURRIED_S if hurried else self._interval_s)

    async def _sleep(self, delay_s: float) -> None:
        try:
            async with asyncio.timeout(delay_s):
                await self._kick.wait()
        except TimeoutError:
            pass

    async def _heartbeat(self) -> None:
        request = m.BrokerHeartbeatRequest(
            broker_id=self._registration.node_id,
            broker_epoch=self._registration.broker_epoch,
            current_metadata_offset=self._metadata.image.offset,
            want_fence=self._want_fence,
            want_shut_down=self.state is State.LEAVING,
            offline_log_dirs=list(self._offline),
            unknown_tags=full_tagged(self._disk_space.full()),
        )
        # Later than this the next one says more than a repetition.
        answer = await self._channel.request(
            ApiKey.BROKER_HEARTBEAT, request, timeout_ms=self._session_ms, lane=HEARTBEAT_LANE
        )
        self._contact_ms = self._clock.monotonic_ms()
        if answer.error_code == Err.NONE:
            self._released = answer.should_shut_down and self.state is State.LEAVING
            self.is_fenced = answer.is_fenced
        elif answer.error_code in (Err.STALE_BROKER_EPOCH, Err.BROKER_ID_NOT_REGISTERED):
            await self._rejoin(err_of(answer.error_code))
        else:
            logger.warning("heartbeat refused: %s", err_of(answer.error_code).name)

    async def _rejoin(self, error: Err) -> None:
        """The controller does not know this incarnation any more: it was unregistered, or the quorum has lost it."""
        if self.state is State.LEAVING:
            self._released = True
            return
        logger.warning("the controller does not know this broker any more (%s): registering again", error.name)
        assert self._member is not None
        await self._register(self._member, patient=True)

    def _dir_failed(self, log_dir: LogDir) -> None:
        """Tell at once: others must take over what is in there."""
        if log_dir.directory_id not in self._offline:
            self._offline.append(log_dir.directory_id)
            self._kick.set()

    def tell_soon(self) -> None:
        """There is news for the next heartbeat: it need not wait for its time."""
        self._kick.set()

    # ---- leaving

    async def leave(self, timeout_ms: int = LEAVE_TIMEOUT_MS) -> None:
        """Give leadership away while this node still answers; returns when it may go, or when nobody lets it in
        time."""
        if self.state not in (State.REGISTERED, State.RUNNING) or self._task is None:
            return
        self.state = State.LEAVING
        self._kick.set()
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await asyncio.shield(self._task)
        except TimeoutError:
            logger.warning("nobody took over within %d ms: stopping all the same", timeout_ms)
        self.stop()
        await self._last_answers()

    async def _last_answers(self) -> None:
        """Others lead. Producers hear first what became of their last records, and that they have to go elsewhere: by
        answers, not by a connection that breaks, after which clients wait before they look for others."""
        clock = self._clock
        until_ms = clock.monotonic_ms() + DECISION_SECONDS * 1000
        undecided = [partition for partition in self._replicas if partition.ack_waiters]
        while any(p.ack_waiters and p.leader is None for p in undecided) and clock.monotonic_ms() < until_ms:
            await asyncio.sleep(ANSWERS_S)
        if any(connection.has_produced for connection in self._connections):
            await asyncio.sleep(NEWS_S)  # somebody writes here

    def stop(self) -> None:
        self.state = State.STOPPED
        if self._task is not None:
            self._task.cancel()


def registration_request(member: Member) -> m.BrokerRegistrationRequest:
    Q = m.BrokerRegistrationRequest
    return Q(
        broker_id=member.node_id,
        cluster_id=member.cluster_id,
        incarnation_id=member.incarnation_id,
        listeners=[
            Q.Listener(name=e.name, host=e.host, port=e.port, security_protocol=e.security_protocol)
            for e in member.endpoints
        ],
        features=[
            Q.Feature(name=name, min_supported_version=low, max_supported_version=high)
            for name, (low, high) in sorted(KNOWN_FEATURES.items())
        ],
        rack=member.rack,
        log_dirs=list(member.directory_ids),
        previous_broker_epoch=member.previous_broker_epoch,
    )


def controller_registration_request(
    node_id: int, incarnation_id: bytes, endpoints: list[Endpoint]
) -> m.ControllerRegistrationRequest:
    Q = m.ControllerRegistrationRequest
    return Q(
        controller_id=node_id,
        incarnation_id=incarnation_id,
        zk_migration_ready=False,
        listeners=[
            Q.Listener(name=e.name, host=e.host, port=e.port, security_protocol=e.security_protocol) for e in endpoints
        ],
        features=[
            Q.Feature(name=name, min_supported_version=low, max_supported_version=high)
            for name, (low, high) in sorted(KNOWN_FEATURES.items())
        ],
    )
