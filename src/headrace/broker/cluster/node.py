"""This node's place in its cluster: how it joins, comes to lead, leaves, and how clients are to address it."""

import logging
import socket
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from headrace.broker.cluster.controller_channel import ControllerChannel
from headrace.broker.cluster.lifecycle import Lifecycle, Member, RegistrationRefused
from headrace.broker.cluster.opening import EVERY_ADDRESS, Opened, layout_of, tell_notes
from headrace.broker.controller.active import ActiveController
from headrace.broker.dynamic_config import DynamicBrokerConfig
from headrace.broker.metadata_cache import MetadataCache, Registration
from headrace.broker.net.connection import Connection
from headrace.broker.replicas.assignments import AssignmentsManager
from headrace.broker.replicas.checkpoints import Checkpoints
from headrace.broker.replicas.hosted import Replicas
from headrace.broker.replicas.replica_manager import ReplicaManager
from headrace.broker.replicas.syncer import Syncer
from headrace.broker.runtime import Runtime, StartupError
from headrace.broker.tasks import Tasks
from headrace.config.listeners import Listener as ListenerName
from headrace.errors import KafkaError
from headrace.metadata.features import UPGRADE
from headrace.metadata.image import Endpoint, Image
from headrace.metadata.versions import GROUP_VERSION, GROUP_VERSION_LATEST, KRAFT_VERSION, SERVED_FEATURES
from headrace.protocol import messages as m
from headrace.protocol.api import ApiKey
from headrace.quorum import QuorumError
from headrace.storage.manager import LogManager

logger = logging.getLogger("headrace.node")

PLAINTEXT = 0


class BoundListener(Protocol):
    """An address that this node has taken."""

    endpoint: ListenerName
    port: int


class ClientEndpoint(NamedTuple):
    """A broker as a client should address it."""

    node_id: int
    host: str
    port: int
    rack: str | None


class Node:
    """Registered once its logs are open, and closed last."""

    def __init__(
        self,
        runtime: Runtime,
        tasks: Tasks,
        config: DynamicBrokerConfig,
        metadata: MetadataCache,
        registration: Registration,
        opened: Opened,
        logs: LogManager,
        listeners: Sequence[BoundListener],
        controller: ActiveController | None,
        channel: ControllerChannel,
        syncer: Syncer,
        replicas: Replicas,
        manager: ReplicaManager,
        assignments: AssignmentsManager,
        checkpoints: Checkpoints,
        lifecycle: Lifecycle,
    ) -> None:
        self._runtime = runtime
        self._tasks = tasks
        self._config = config
        self._metadata = metadata
        self._registration = registration
        self.cluster_id = opened.cluster_id
        self._quorum = opened.quorum
        self._marker = opened.marker
        self._logs = logs
        self._listeners = listeners
        self._controller = controller
        self._channel = channel
        self._syncer = syncer
        self._replicas = replicas
        self._manager = manager
        self._assignments = assignments
        self._checkpoints = checkpoints
        self._lifecycle = lifecycle
        self._quorum.on_failure = tasks.fail
        if self._marker is not None:
            self._quorum.listen(self._marker.changed)
            self._quorum.on_leadership(self._marker.changed)

    # ---- start

    async def join(self, controller_ports: Mapping[str, int]) -> None:
        """Take part in the quorum and register. Returns when this node knows all that the cluster knew by then."""
        await self._quorum.start()
        config = self._config.current
        if config.is_controller:
            endpoints = [
                Endpoint(name, host, port, PLAINTEXT)
                for name, host, port in layout_of(config, controller_ports).controller_endpoints
            ]
            self._tasks.spawn(self._lifecycle.register_controller(endpoints))
        if config.is_broker:
            await self._register()

    async def _register(self) -> None:
        """Tell the cluster that this broker is here, fenced, and catch up with what the cluster knows."""
        config = self._config.current
        member = Member(
            node_id=config.node_id,
            cluster_id=self.cluster_id,
            incarnation_id=self._registration.incarnation_id,
            endpoints=self._registered_listeners(),
            rack=config["broker.rack"],
            directory_ids=sorted(log_dir.directory_id for log_dir in self._logs.live_dirs()),
            previous_broker_epoch=self._logs.whole_since(),
        )
        try:
            await self._quorum.announce(member.endpoints, member.rack)
            epoch = await self._lifecycle.register(member)
        except (QuorumError, RegistrationRefused) as refused:
            raise StartupError(str(refused)) from refused
        await self._metadata.until(lambda image: image.offset >= epoch)

    def _registered_listeners(self) -> list[Endpoint]:
        config = self._config.current
        advertised = {e.name: e for e in config.advertised_listeners}
        found = []
        for listener in self._listeners:
            endpoint = advertised.get(listener.endpoint.name, listener.endpoint)
            explicit = "advertised.listeners" in config.raw
            port = endpoint.port if explicit and endpoint.port else listener.port
            host = endpoint.host if endpoint.host not in EVERY_ADDRESS else socket.gethostname()
            found.append(Endpoint(endpoint.name, host, port, PLAINTEXT))
        return found

    async def lead(self) -> None:
        """Once this node serves what it has: take leadership that waits for it."""
        await self._finalize_groups()
        await self._remember_logs()
        await self._assignments.send_all(self._replicas)
        await self._lifecycle.unfence()
        self._manager.lead_all(self._metadata.image)

    async def _finalize_groups(self) -> None:
        """A folder from before groups were served names no level for them: clients of KIP-848 rely on it."""
        if GROUP_VERSION in self._metadata.image.features or not self._quorum.is_active:
            return
        kind = m.UpdateFeaturesRequest
        update = kind.FeatureUpdateKey(
            feature=GROUP_VERSION, max_version_level=GROUP_VERSION_LATEST, upgrade_type=UPGRADE
        )
        answer = await self._channel.request(ApiKey.UPDATE_FEATURES, kind(feature_updates=[update]))
        if answer.error_code:
            logger.warning("%s stays off: %s", GROUP_VERSION, answer.error_message)

    async def _remember_logs(self) -> None:
        """Before this node leads anything there are checkpoints: a later start that finds none knows that files are
        gone."""
        if any(log_dir.forgetful for log_dir in self._logs.live_dirs()):
            try:
                # With the watermarks that were found: by them a replica knows that it has lost its end.
                await self._checkpoints.write_log_starts()
            except OSError as error:
                logger.warning("cannot write checkpoints: %s", error)

    # ---- serving

    @property
    def image(self) -> Image:
        """The committed metadata."""
        return self._metadata.image

    def client_endpoints(self, connection: Connection) -> list[ClientEndpoint]:
        """Live brokers; this one by the address its client already reached, unless something else is advertised."""
        listener = connection.endpoint
        found = []
        for broker in self._metadata.image.brokers.values():
            if broker.fenced:
                continue
            if broker.id == self._registration.node_id and not self._is_advertised(listener.host):
                host, port = connection.local_address
                found.append(ClientEndpoint(broker.id, host, port, broker.rack))
                continue
            found += [
                ClientEndpoint(broker.id, endpoint.host, endpoint.port, broker.rack)
                for endpoint in broker.endpoints
                if endpoint.name == listener.name
            ]
        return found

    def _is_advertised(self, host: str) -> bool:
        """Whether clients are to use the address that this broker registered, as they hear it from other brokers."""
        if "advertised.listeners" in self._config.current.raw:
            return True
        return not self._metadata.alone and host not in EVERY_ADDRESS

    def controller_hint(self) -> int:
        """Whom to send admin requests to: in KRaft any live broker, which forwards them."""
        return self._registration.node_id

    @property
    def supported_features(self) -> dict[str, tuple[int, int]]:
        return SERVED_FEATURES

    def finalized_features(self) -> dict[str, int]:
        finalized = {name: level for name, level in self._metadata.image.features.items() if name in SERVED_FEATURES}
        if self._quorum.kraft_version:
            finalized[KRAFT_VERSION] = self._quorum.kraft_version
        return finalized

    # ---- stop

    async def leave(self) -> None:
        """Have others take over while this node still answers. The last one that is up has nobody to wait for."""
        brokers = self._metadata.image.brokers.values()
        others = any(broker.active and broker.id != self._registration.node_id for broker in brokers)
        if self._tasks.failure is None and others and self._config["controlled.shutdown.enable"]:
            await self._lifecycle.leave()

    async def close(self) -> None:
        """Hand over, make everything durable, say that it was a clean end."""
        watermarks = self._replicas.high_watermarks()
        try:
            if self._in_order() and self._metadata.alone:
                await self._lifecycle.leave()
            self._lifecycle.stop()
            if self._controller is not None:
                self._controller.close()
            await self._quorum.close()
            if self._marker is not None:
                await self._marker.close()
        except (KafkaError, OSError) as error:
            # A full disk, most likely. What was committed is there; the next start checks the rest.
            logger.error("the metadata log could not be closed in order: %s", error)
        finally:
            # Last, since this lets go of the locks: nobody may find a folder free that is still written to.
            self._logs.close(
                clean=self._in_order(),
                broker_epoch=self._registration.broker_epoch,
                high_watermarks=watermarks,
                run_all=self._runtime.run_all,
            )
            tell_notes(self._logs)

    def _in_order(self) -> bool:
        """Whether this end may be called clean: no sync is out that may yet fail, and nothing has."""
        return self._tasks.failure is None and self._syncer.idle
