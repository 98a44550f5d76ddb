"""A cluster seen from a client: which brokers there are, who leads what, and how to get a request to the right one.

Errors that a fresh look at the cluster may cure are retried with growing pauses until a deadline; all others, and
the last one, reach the caller.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, Self, TypeVar

import msgspec

from headrace.client.errors import (
    BrokerUnreachable,
    ClientError,
    ConnectionLost,
    ConnectionRefused,
    NotKafka,
    RequestFailed,
    RequestTimedOut,
    SecurityFailed,
    check,
    err_of,
)
from headrace.client.net.address import DEFAULT_BOOTSTRAP, Address, format_address, parse_bootstrap
from headrace.client.net.connection import CONNECT_TIMEOUT_S, FRAME_BYTES_MAX, REQUEST_TIMEOUT_S, Connection
from headrace.client.net.watch import Watch
from headrace.client.security.channel import PLAINTEXT, Security
from headrace.errors import Err
from headrace.protocol import messages as m
from headrace.protocol.api import ApiKey

T = TypeVar("T")

RETRY_TIMEOUT_S = 30.0
BACKOFF_S_MIN = 0.02
BACKOFF_S_MAX = 1.0
UNKNOWN_TOPIC_WAIT_S = 3.0
"""A topic just created may take a moment to be known everywhere; one that was misspelt never is."""

NO_TOPIC_ID = bytes(16)
NOT_THERE = "there is no topic of this name"
NO_TOPIC = f"{NOT_THERE}: create it, or check how it is spelt"


class Broker(msgspec.Struct, frozen=True):
    """Where a broker says that clients can reach it."""

    node_id: int
    host: str
    port: int
    rack: str | None = None

    @property
    def address(self) -> str:
        return format_address(self.host, self.port)


class Partition(msgspec.Struct, frozen=True):
    """One partition; `leader` is -1 when there is none."""

    index: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    offline: tuple[int, ...]
    error: Err = Err.NONE


class Topic(msgspec.Struct, frozen=True):
    """A topic and its partitions by index."""

    name: str
    topic_id: bytes
    is_internal: bool
    partitions: Mapping[int, Partition]


class Cluster:
    """Connections to the brokers of one cluster, opened when needed. Use as `async with Cluster(...)`."""

    def __init__(
        self,
        bootstrap: str | Iterable[str] = DEFAULT_BOOTSTRAP,
        *,
        client_id: str = "headrace",
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
        request_timeout_s: float = REQUEST_TIMEOUT_S,
        retry_timeout_s: float = RETRY_TIMEOUT_S,
        frame_bytes_max: int = FRAME_BYTES_MAX,
        security: Security = PLAINTEXT,
    ) -> None:
        self.bootstrap: list[Address] = parse_bootstrap(bootstrap)
        self.client_id = client_id
        self.connect_timeout_s = connect_timeout_s
        self.request_timeout_s = request_timeout_s
        self.retry_timeout_s = retry_timeout_s
        self.frame_bytes_max = frame_bytes_max
        self.allocate: Callable[[int], bytearray | memoryview] = bytearray
        """`Connection.allocate` of connections to come."""
        self.security = security
        self.cluster_id: str | None = None
        self.controller_id = -1
        self.brokers: dict[int, Broker] = {}
        self.topics: dict[str, Topic] = {}
        """Topics that were asked about; `refresh` renews them."""
        self.looks = 0
        """How often `topics` was renewed: who keeps something that follows from it looks again."""
        self._connections: dict[Address, Connection] = {}
        self._doubtful: Address | None = None
        """It was asked last and hung up: others are asked first."""
        self._asked: Address | None = None
        self._opening: dict[Address, asyncio.Lock] = {}
        self._is_ended = False
        self.advertised: set[Address] = set()
        """Of all brokers there ever were."""
        self._watch = Watch(self)

    async def __aenter__(self) -> Self:
        await self.refresh(())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def beside(self) -> "Cluster":
        """The same brokers by connections of its own: a broker answers a connection's requests in order, and one that
        waits for others would hold back what it can answer by itself."""
        found = Cluster(
            [format_address(host, port) for host, port in self.bootstrap],
            client_id=self.client_id,
            connect_timeout_s=self.connect_timeout_s,
            request_timeout_s=self.request_timeout_s,
            retry_timeout_s=self.retry_timeout_s,
            frame_bytes_max=self.frame_bytes_max,
            security=self.security,
        )
        # What has just answered is asked first.
        live = [address for address, connection in self._connections.items() if connection.is_open]
        found.bootstrap = [*dict.fromkeys([*live, *self.bootstrap])]
        found.cluster_id, found.controller_id = self.cluster_id, self.controller_id
        return found

    def close(self) -> None:
        self._watch.close()
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def end(self) -> None:
        """As `close`, and for good: nothing is opened again for a caller who goes on by mistake."""
        self._is_ended = True
        self.close()

    # -- connections

    async def connect(self, host: str, port: int) -> Connection:
        """The open connection to an address, or a new one."""
        address = host, port
        found = self._connections.get(address)
        if found is not None and found.is_open:
            return found
        if self._is_ended:
            raise ClientError("the client is closed: make a new one")
        async with self._opening.setdefault(address, asyncio.Lock()):
            found = self._connections.get(address)
            if found is None or not found.is_open:
                found = self._connections[address] = await Connection.open(
                    host,
                    port,
                    client_id=self.client_id,
                    timeout_s=self.connect_timeout_s,
                    frame_bytes_max=self.frame_bytes_max,
                    security=self.security,
                )
                found.allocate = self.allocate
                self._watch.begin()
            return found

    @property
    def connections(self) -> Mapping[Address, Connection]:
        return self._connections

    def open_connection(self, node_id: int) -> Connection | None:
        """The connection to a broker, if it is open."""
        broker = self.brokers.get(node_id)
        found = None if broker is None else self._connections.get((broker.host, broker.port))
        return found if found is not None and found.is_open else None

    async def any_connection(self) -> Connection:
        """A connection to whichever broker answers: one already open, a known broker, a bootstrap address."""
        for address, connection in self._connections.items():
            if connection.is_open and address != self._doubtful:
                self._asked = address
                return connection
        known = [(broker.host, broker.port) for broker in self.brokers.values()]
        failures: list[ClientError] = []
        # Bootstrap addresses last: the brokers' own are fresher, but only the former are sure to be reachable.
        for host, port in sorted(
            dict.fromkeys([*known, *self.bootstrap]), key=lambda address: address == self._doubtful
        ):
            self._asked = host, port
            try:
                return await self.connect(host, port)
            except SecurityFailed:
                # All brokers have the same users: a wrong password tried at each of them may lock its owner out.
                raise
            except ClientError as error:
                failures.append(error)
        if len(failures) == 1:
            raise failures[0]
        kind = ConnectionRefused if all(isinstance(e, ConnectionRefused) for e in failures) else BrokerUnreachable
        raise kind("no broker can be reached: " + "; ".join(map(str, failures)))

    async def broker_connection(self, node_id: int) -> Connection:
        """The connection to one broker, at the address it advertises."""
        broker = self.brokers.get(node_id)
        if broker is None:
            await self.refresh(())
            broker = self.brokers.get(node_id)
        if broker is None:
            raise RequestFailed(
                f"broker {node_id}", Err.BROKER_NOT_AVAILABLE, "the cluster does not know it, or it is down"
            )
        try:
            return await self.connect(broker.host, broker.port)
        except BrokerUnreachable as error:
            if (broker.host, broker.port) in self.bootstrap:
                raise
            raise type(error)(
                f"{error}. This is the address that broker {node_id} advertises; set its advertised.listeners "
                "to an address that this machine can reach"
            ) from None

    # -- metadata

    async def refresh(self, topics: Iterable[str] | None = None) -> None:
        """Ask for brokers and for topics: the named ones, or all that were asked about before."""
        names = list(self.topics) if topics is None else list(topics)
        answer = await self.metadata(names)
        self.looks += bool(answer.topics)
        for row in answer.topics:
            if row.error_code == 0:
                name = row.name or ""
                self.topics[name] = _newest(topic_from(row), self.topics.get(name))
            else:
                self.topics.pop(row.name or "", None)

    async def metadata(self, topics: Iterable[str] | None) -> m.MetadataResponse:
        """A Metadata answer, for all topics with None; brokers and controller are remembered. Never creates a topic."""
        rows = None if topics is None else [m.MetadataRequest.MetadataRequestTopic(name=name) for name in topics]
        request = m.MetadataRequest(topics=rows, allow_auto_topic_creation=False)

        async def attempt() -> m.MetadataResponse:
            connection = await self.any_connection()
            answer: m.MetadataResponse = await connection.request(
                ApiKey.METADATA, request, timeout_s=self.request_timeout_s
            )
            if self._doubtful == self._asked:
                self._doubtful = None
            return answer

        try:
            answer = await attempt()
        except (ConnectionLost, RequestTimedOut):
            # The open connection was dead already, as after a restart of the broker: a new one shows if that was all.
            self._doubtful = self._asked
            answer = await attempt()
        check(answer.error_code, "metadata")
        self.cluster_id = answer.cluster_id
        self.controller_id = answer.controller_id
        self.brokers = {row.node_id: Broker(row.node_id, row.host, row.port, row.rack) for row in answer.brokers}
        self.advertised |= {(row.host, row.port) for row in answer.brokers}
        return answer

    async def topic(self, name: str) -> Topic:
        """A topic as last seen, asked for if never seen."""
        if name not in self.topics:
            await self.refresh([name])
        found = self.topics.get(name)
        if found is None:
            raise RequestFailed(f"topic {name!r}", Err.UNKNOWN_TOPIC_OR_PARTITION, NO_TOPIC)
        return found

    async def leader(self, topic: str, partition: int) -> tuple[Topic, Partition, Connection]:
        """The connection to a partition's leader. Raises a retriable RequestFailed while there is none."""
        found = await self.topic(topic)
        row = found.partitions.get(partition)
        if row is None:
            raise no_partition(topic, partition, len(found.partitions))
        if row.leader < 0:
            raise RequestFailed(f"{topic}-{partition}", Err.LEADER_NOT_AVAILABLE)
        return found, row, await self.broker_connection(row.leader)

    # -- requests

    async def to_any(self, key: ApiKey, body: Any) -> Any:
        """Ask any broker that can be reached."""
        connection = await self.any_connection()
        return await connection.request(key, body, timeout_s=self.request_timeout_s)

    async def to_controller(self, key: ApiKey, body: Any) -> Any:
        """Through the broker that Metadata names as the controller: the active one, or one that forwards to it."""
        if self.controller_id < 0:
            await self.refresh(())
        if self.controller_id < 0:
            raise RequestFailed("cluster", Err.NOT_CONTROLLER, "the cluster has no controller at the moment")
        connection = await self.broker_connection(self.controller_id)
        return await connection.request(key, body, timeout_s=self.request_timeout_s)

    async def retrying(
        self,
        attempt: Callable[[], Awaitable[T]],
        *,
        topics: Iterable[str] = (),
        can_retry: Callable[[ClientError], bool] | None = None,
        unknown_topic_wait_s: float = 0.0,
    ) -> T:
        """Run `attempt` until it succeeds, fails for good, or time is up; look at the cluster again in between."""
        judge = can_retry or is_retriable
        loop = asyncio.get_running_loop()
        start = loop.time()
        pause_s = BACKOFF_S_MIN
        while True:
            try:
                return await attempt()
            except ClientError as error:
                if isinstance(error, ConnectionLost):
                    self._doubtful = self._asked
                waited_s = loop.time() - start
                limit_s = self.retry_timeout_s
                if isinstance(error, RequestFailed) and error.error is Err.UNKNOWN_TOPIC_OR_PARTITION:
                    limit_s = min(limit_s, unknown_topic_wait_s)
                if not (judge(error) or self._may_have_moved(error)) or waited_s + pause_s > limit_s:
                    raise
            # Clients that fail together must not come back together.
            await asyncio.sleep(pause_s * random.uniform(0.8, 1.2))
            pause_s = min(pause_s * 2, BACKOFF_S_MAX)
            try:
                await self.refresh([*topics])
            except ClientError:
                # The next attempt tells what is wrong.
                continue

    def _may_have_moved(self, error: ClientError) -> bool:
        """Nothing was sent to a broker that is gone, and what it did another may do soon. A cluster of one has no
        other."""
        return isinstance(error, BrokerUnreachable) and len(self.brokers) > 1


def no_partition(topic: str, partition: int, count: int) -> RequestFailed:
    """What is to be said of a partition that a topic of `count` partitions does not have."""
    has = "1 partition, number 0" if count == 1 else f"{count} partitions, 0 to {count - 1}"
    return RequestFailed(f"{topic}-{partition}", Err.UNKNOWN_TOPIC_OR_PARTITION, f"the topic has {has}")


def is_retriable(error: ClientError) -> bool:
    """Whether a request that may safely be sent twice is worth sending again."""
    if isinstance(error, RequestFailed):
        return error.error.retriable
    return isinstance(error, ConnectionLost)


def may_pass(error: ClientError) -> bool:
    """Whether time may cure it: all that a retry does, and brokers that are away or just starting."""
    return is_retriable(error) or isinstance(error, BrokerUnreachable | NotKafka | RequestTimedOut)


def _newest(told: Topic, known: Topic | None) -> Topic:
    """Keep the partitions of which newer leaders were known already: a broker may be behind, and name deposed ones."""
    if known is None or known.topic_id != told.topic_id or told.topic_id == NO_TOPIC_ID:
        return told
    newer = {
        index: row
        for index, row in known.partitions.items()
        if index in told.partitions and 0 <= told.partitions[index].leader_epoch < row.leader_epoch
    }
    return msgspec.structs.replace(told, partitions={**told.partitions, **newer}) if newer else told


def topic_from(row: m.MetadataResponse.MetadataResponseTopic) -> Topic:
    partitions = {
        p.partition_index: Partition(
            p.partition_index,
            p.leader_id,
            p.leader_epoch,
            tuple(p.replica_nodes),
            tuple(p.isr_nodes),
            tuple(p.offline_replicas),
            err_of(p.error_code),
        )
        for p in row.partitions
    }
    return Topic(row.name or "", row.topic_id, row.is_internal, dict(sorted(partitions.items())))
