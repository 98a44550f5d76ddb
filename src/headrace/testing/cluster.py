"""A cluster of one's own for tests: real processes on loopback, each of which can be killed, frozen, wiped and
restarted.

    with TestCluster(3) as cluster:
        producer = Producer({"bootstrap.servers": cluster.bootstrap})
        cluster.kill(cluster.leader_of("orders"))

Waiters ask the cluster itself, by Kafka's own requests, and never look into a broker's memory. Faults and time are told
to each node by its line (`control`).
"""

import random
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from headrace.broker.cluster.opening import layout_of
from headrace.client.admin.admin import Admin
from headrace.client.admin.operations import Operations, Quorum
from headrace.client.errors import BrokerUnreachable, ClientError
from headrace.client.net.cluster import Partition, Topic
from headrace.local_cluster.layout import LocalCluster, LocalNode, Wish, add_brokers, open_cluster
from headrace.quorum.folder import format_folders
from headrace.storage.checkpoints import new_uuid
from headrace.storage.files import RealDisk
from headrace.testing import records
from headrace.testing.broker import QUICK
from headrace.testing.child import Child, Injection

if TYPE_CHECKING:
    from headrace.client.api.types import Record

T = TypeVar("T")

PATIENCE_S = 60.0
"""For what must come about by itself: the machine may be busy."""
POLL_S = 0.05


class ClusterFailed(Exception):
    """A node did not start or stop as it should, or something awaited did not come; the message says what nodes
    said."""


class TestNode(Child):
    """One node's process. Made by TestCluster."""

    __test__ = False
    failed = ClusterFailed

    def __init__(self, node: LocalNode, prefix: Sequence[str] = ()) -> None:
        super().__init__(f"node {node.node_id}", node.log, prefix)
        self.node = node
        self.id = node.node_id

    @property
    def address(self) -> str:
        """Where clients reach it, host:port."""
        return self.node.address

    @property
    def data(self) -> Path:
        """Its data folder."""
        return self.node.data

    def launch(self) -> None:
        """Start the process; `wait_ready` returns when it serves."""
        self.run(["--config", str(self.node.properties)])

    def start(self) -> Self:
        """Returns when it serves. Raises ClusterFailed."""
        self.launch()
        self.wait_ready()
        return self


class TestCluster:
    """`brokers` nodes, the first three of them (or the only one or two) also controllers.

    `settings` are options of server.properties for all nodes, before those in `QUICK`; `racks` are given in turn.
    Without `folder` a temporary one is used and removed; a cluster that is in it already is found again, as it is.
    `hosts` and `prefixes` put each node on an address of its own and into a network namespace, say.
    """

    __test__ = False
    """Not a class of tests, whatever its name makes pytest think."""

    def __init__(
        self,
        brokers: int = 3,
        *,
        folder: str | Path | None = None,
        settings: Mapping[str, str] | None = None,
        racks: Sequence[str] = (),
        voters: int | None = None,
        hosts: Sequence[str] = (),
        prefixes: Sequence[Sequence[str]] = (),
    ) -> None:
        self._temporary = tempfile.TemporaryDirectory(prefix="headrace-cluster-") if folder is None else None
        self.folder = Path(self._temporary.name if self._temporary is not None else str(folder))
        self._wish = Wish(
            brokers, port=0, racks=racks, settings={**QUICK, **(settings or {})}, voters=voters, hosts=hosts
        )
        self.layout: LocalCluster = open_cluster(self.folder, self._wish)
        self.nodes: dict[int, TestNode] = {
            n: TestNode(node, prefixes[n - 1] if prefixes else ()) for n, node in self.layout.nodes.items()
        }

    @property
    def bootstrap(self) -> str:
        """What clients call bootstrap.servers: every broker."""
        return self.layout.bootstrap

    @property
    def cluster_id(self) -> str:
        """The cluster's id, as `headrace cluster status` shows it."""
        return self.layout.cluster_id

    def __getitem__(self, node_id: int) -> TestNode:
        return self.nodes[node_id]

    @property
    def running(self) -> list[TestNode]:
        """The nodes whose processes live."""
        return [node for node in self.nodes.values() if node.is_running]

    # -- life

    def start(self, *node_ids: int) -> Self:
        """Start all nodes, or some, and wait until they serve."""
        chosen = [self.nodes[n] for n in node_ids] if node_ids else [n for n in self.nodes.values() if not n.is_running]
        # All first: a majority of the controllers is needed before any of them is ready.
        for node in chosen:
            node.launch()
        for node in chosen:
            node.wait_ready()
        return self

    def stop(self, *node_ids: int) -> None:
        """In order, as by SIGTERM: some nodes, or all, the leader of the quorum last."""
        for node in [self.nodes[n] for n in node_ids] if node_ids else self._leader_last():
            node.stop()

    def _leader_last(self) -> list[TestNode]:
        try:
            leader = self.quorum().leader_id if self.running else -1
        except (ClientError, ClusterFailed):
            leader = -1
        return sorted(self.running, key=lambda node: node.id == leader)

    def kill(self, *node_ids: int) -> None:
        """As by kill -9: some nodes, or all."""
        for node in [self.nodes[n] for n in node_ids] if node_ids else list(self.nodes.values()):
            node.kill()

    def restart(self, node_id: int) -> None:
        """Stop a node in order and start it again; returns when it serves."""
        self.nodes[node_id].stop()
        self.nodes[node_id].start()

    def freeze(self, node_id: int) -> None:
        """As by SIGSTOP: it keeps its connections and says nothing."""
        self.nodes[node_id].freeze()

    def thaw(self, node_id: int) -> None:
        """Let a frozen node go on."""
        self.nodes[node_id].thaw()

    def wipe(self, node_id: int) -> None:
        """The disk of a node that is down is lost and replaced: an empty folder, formatted for the same cluster."""
        node = self.nodes[node_id]
        assert not node.is_running, f"node {node_id} is running"
        shutil.rmtree(node.data)
        dice = random.SystemRandom()
        format_folders(
            RealDisk(),
            layout_of(node.node.config),
            uuid=lambda: new_uuid(dice),
            now_ms=time.time_ns() // 1_000_000,
            cluster_id=self.cluster_id,
            voters=(),
        )

    def add_broker(self) -> TestNode:
        """A further broker, laid out and not yet started."""
        wish = self._wish._replace(brokers=len(self.nodes) + 1)
        self.layout = add_brokers(self.layout, wish)
        node_id = max(self.layout.nodes)
        self.nodes[node_id] = TestNode(self.layout.nodes[node_id])
        return self.nodes[node_id]

    def close(self) -> None:
        """Kill whatever runs and remove the temporary folder."""
        for node in self.nodes.values():
            node.kill()
            node.forget()
        if self._temporary is not None:
            self._temporary.cleanup()

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- faults

    def inject(self, api: str | None = None, *, node: int | None = None, **fault: Any) -> Injection:
        """As `TestBroker.inject`, on one node or on each that runs: then `times` counts for each by itself."""
        chosen = self.running if node is None else [self.nodes[node]]
        return Injection([pair for each in chosen for pair in each.inject(api, **fault).parts])

    def clear_faults(self) -> None:
        """Take all faults of all nodes back."""
        for node in self.running:
            node.clear_faults()

    def advance(self, seconds: float | timedelta) -> None:
        """Have time pass for all nodes that run, as `TestBroker.advance`."""
        for node in self.running:
            node.advance(seconds)

    def move_leader(self, topic: str, partition: int = 0, *, to: int | None = None) -> int:
        """Have another broker lead: `to`, or any other that is in sync. Returns who leads now.

        The new leader becomes the preferred one, so it stays.
        """
        found = self.partition(topic, partition)
        others = [broker for broker in found.isr if broker != found.leader]
        if to is None and not others:
            raise ClusterFailed(f"{topic}-{partition} has no other replica in sync: {found}")
        chosen = others[0] if to is None else to
        order = [chosen, *(replica for replica in found.replicas if replica != chosen)]
        if chosen not in found.replicas:
            order.remove(found.leader)  # as many replicas as before
        at = (topic, partition)
        self.ask(lambda admin: Operations(admin).reassign({at: order}))
        self.wait(f"{topic}-{partition} on {order}", lambda: list(self.partition(topic, partition).replicas) == order)
        self.wait_isr(topic, partition, order)

        def look() -> bool:
            self.ask(lambda admin: Operations(admin).elect([at]))
            return self.partition(topic, partition).leader == chosen

        self.wait(f"broker {chosen} to lead {topic}-{partition}", look)
        return chosen

    # -- records

    def produce(self, topic: str, *values: "records.Value | records.Pair", partition: int | None = None) -> list[int]:
        """As `TestBroker.produce`."""
        return [offset for _, offset in records.produce(self.bootstrap, topic, values, partition)]

    def consume(
        self,
        topic: str,
        count: int | None = None,
        *,
        timeout_s: float = records.LIMIT_S,
        read_committed: bool = False,
    ) -> "list[Record]":
        """As `TestBroker.consume`."""
        __tracebackhide__ = True
        return records.consume(self.bootstrap, topic, count, timeout_s, read_committed)

    # -- asking

    def ask(self, work: Callable[[Admin], Any], *, timeout_s: float = 10.0) -> Any:
        """Run `await work(admin)` against whichever brokers are there."""

        async def connected() -> Any:
            async with Admin(
                self.bootstrap,
                client_id=records.CLIENT_ID,
                connect_timeout_s=2.0,
                request_timeout_s=timeout_s,
                retry_timeout_s=timeout_s,
            ) as admin:
                return await work(admin)

        return records.run_apart(connected)

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        replication_factor: int = -1,
        configs: Mapping[str, str] | None = None,
        assignments: Mapping[int, Sequence[int]] | None = None,
    ) -> None:
        """Create a topic and wait until all of its partitions are led and in sync."""
        made = -1 if assignments is not None else partitions
        factor = -1 if assignments is not None else replication_factor
        self.ask(lambda admin: admin.create_topic(name, made, factor, configs, assignments=assignments))
        self.wait_in_sync(name)

    def topic(self, name: str) -> Topic:
        """The topic with its partitions, as the cluster describes it."""
        found: Topic = self.ask(lambda admin: admin.describe_topic(name))
        return found

    def partition(self, topic: str, index: int = 0) -> Partition:
        """One partition: leader, replicas, in-sync replicas."""
        return self.topic(topic).partitions[index]

    def quorum(self) -> Quorum:
        """Who leads the controllers, and who votes."""
        found: Quorum = self.ask(lambda admin: Operations(admin).quorum())
        return found

    # -- waiting

    def wait(self, what: str, look: Callable[[], T | None], limit_s: float = PATIENCE_S) -> T:
        """Until `look` returns something true; a cluster that cannot answer yet is asked again."""
        deadline = time.monotonic() + limit_s
        last: object = None
        while True:
            try:
                found = look()
                if found:
                    return found
                last = found
            except (ClientError, BrokerUnreachable) as error:
                last = error
            if time.monotonic() > deadline:
                ends = "\n".join(f"-- node {node.id}:\n{node.output(1_500)}" for node in self.nodes.values())
                raise ClusterFailed(f"not within {limit_s:g} s: {what} (last seen: {last})\n{ends}")
            time.sleep(POLL_S)

    def leader_of(self, topic: str, partition: int = 0, *, other_than: int = -1, limit_s: float = PATIENCE_S) -> int:
        """The broker that leads a partition, waited for if there is none, or none but `other_than`."""

        def look() -> int | None:
            leader = self.partition(topic, partition).leader
            return leader if leader >= 0 and leader != other_than else None

        return self.wait(f"a leader of {topic}-{partition}", look, limit_s)

    def quorum_leader(self, *, other_than: int = -1, limit_s: float = PATIENCE_S) -> int:
        """The active controller."""

        def look() -> int | None:
            leader = self.quorum().leader_id
            return leader if leader >= 0 and leader != other_than else None

        return self.wait("a leader of the quorum", look, limit_s)

    def wait_isr(self, topic: str, partition: int, nodes: Iterable[int], limit_s: float = PATIENCE_S) -> None:
        """Until exactly these nodes are in sync."""
        wanted = set(nodes)
        self.wait(
            f"{topic}-{partition} in sync on {sorted(wanted)}",
            lambda: set(self.partition(topic, partition).isr) == wanted,
            limit_s,
        )

    def wait_in_sync(self, topic: str | None = None, limit_s: float = PATIENCE_S) -> None:
        """Until every replica of a topic, or of all, is in sync and every partition led."""

        def look() -> bool:
            topics: list[Topic] = self.ask(lambda admin: admin.list_topics(include_internal=True))
            chosen = [t for t in topics if topic is None or t.name == topic]
            parts = [p for t in chosen for p in t.partitions.values()]
            known = topic is None or bool(chosen)
            return known and all(p.leader >= 0 and set(p.isr) == set(p.replicas) for p in parts)

        self.wait(f"{topic or 'all topics'} in sync", look, limit_s)
