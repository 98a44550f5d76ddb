"""Several nodes of one cluster on one machine: folders, ports and options, laid out once and found again.

    <folder>/node-1/             data of node 1
    <folder>/node-1.properties   its options in Kafka's format; `headrace up --config` runs the node by itself
    <folder>/node-1.log          what it has logged

Used by `headrace up --brokers` and by tests; nothing here runs a node.
"""

import errno
import random
import re
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from headrace.broker.cluster.opening import layout_of
from headrace.config import BrokerConfig, ConfigError, parse_properties
from headrace.quorum import QuorumError
from headrace.quorum.folder import format_folders, open_zookeeper_folders
from headrace.quorum.snapshots import Voter
from headrace.storage.checkpoints import (
    META_PROPERTIES,
    CorruptCheckpoint,
    MetaProperties,
    encode_uuid,
    new_uuid,
)
from headrace.storage.files import RealDisk

LOOPBACK = "127.0.0.1"
CONTROLLER = "CONTROLLER"
VOTERS_MAX = 3
REPLICAS_MAX = 3
PORT_LOW, PORT_HIGH = 20_000, 32_000
"""Free ports are taken from below those that the kernel gives to outgoing connections: one of these could take the port
of a node while it is down."""

_PROPERTIES = re.compile(r"node-(\d+)\.properties")

PLACE_OPTIONS = (
    "node.id", "broker.id", "process.roles", "listeners", "advertised.listeners", "controller.listener.names",
    "log.dir",
    "log.dirs", "metadata.log.dir", "controller.quorum.bootstrap.servers", "controller.quorum.voters", "broker.rack",
)  # fmt: skip
"""What tells the nodes apart: the same value for all would make them one."""


class LocalClusterError(Exception):
    """Why the folder cannot be used as a cluster, in one line."""


class LocalNode(NamedTuple):
    node_id: int
    folder: Path
    config: BrokerConfig

    @property
    def data(self) -> Path:
        return self.folder / f"node-{self.node_id}"

    @property
    def properties(self) -> Path:
        return self.folder / f"node-{self.node_id}.properties"

    @property
    def log(self) -> Path:
        return self.folder / f"node-{self.node_id}.log"

    @property
    def port(self) -> int:
        """Where clients connect; -1 for a node that is only a controller."""
        return next((listener.port for listener in self.config.broker_listeners), -1)

    @property
    def controller_port(self) -> int:
        return next((listener.port for listener in self.config.controller_listeners), -1)

    @property
    def address(self) -> str:
        """For clients on this machine."""
        (listener,) = self.config.broker_listeners[:1] or self.config.controller_listeners[:1]
        host = listener.host if listener.host not in ("", "0.0.0.0", "::") else LOOPBACK
        return f"[{host}]:{listener.port}" if ":" in host else f"{host}:{listener.port}"

    @property
    def is_controller(self) -> bool:
        return "controller" in self.config.roles


class LocalCluster(NamedTuple):
    folder: Path
    cluster_id: str
    nodes: dict[int, LocalNode]

    @property
    def bootstrap(self) -> str:
        return ",".join(node.address for node in self.nodes.values() if node.port > 0)


class Wish(NamedTuple):
    """What a new cluster, or what is added to one, should be like."""

    brokers: int
    port: int = 9092
    """Of the first node; the others follow. 0: any free ones."""
    host: str = LOOPBACK
    racks: Sequence[str] = ()
    """One after the other to the nodes, from the start again when there are fewer; this machine's name if empty."""
    settings: Mapping[str, str] = {}
    voters: int | None = None
    hosts: Sequence[str] = ()
    """Addresses of the nodes, one each, for clients and controllers alike; all on `host` and loopback if empty."""

    @property
    def in_zookeeper(self) -> bool:
        """Whether the metadata is there; then each node may become the controller."""
        return "zookeeper.connect" in self.settings

    def host_of(self, node_id: int) -> str:
        return self.hosts[node_id - 1] if self.hosts else self.host

    def controller_host_of(self, node_id: int) -> str:
        return self.hosts[node_id - 1] if self.hosts else LOOPBACK


# --- finding ----------------------------------------------------------------------------------------------------------


def find_cluster(folder: Path) -> LocalCluster | None:
    """The cluster that was laid out in `folder`. Raises LocalClusterError where it is not whole."""
    nodes = {}
    for path in sorted(folder.glob("node-*.properties")):
        if found := _PROPERTIES.fullmatch(path.name):
            node_id = int(found[1])
            nodes[node_id] = LocalNode(node_id, folder, _read_config(path, node_id))
    if not nodes:
        return None
    ids = {_cluster_id(node) for node in nodes.values()}
    if len(ids) != 1:
        raise LocalClusterError(f"the nodes in {folder} belong to different clusters: {', '.join(sorted(ids))}")
    return LocalCluster(folder, ids.pop(), dict(sorted(nodes.items())))


def _read_config(path: Path, node_id: int) -> BrokerConfig:
    try:
        config = BrokerConfig.load(parse_properties(path.read_text()))
    except (OSError, ConfigError) as error:
        raise LocalClusterError(f"{path}: {error}") from None
    if config.node_id != node_id:
        raise LocalClusterError(f"{path} is of node {config.node_id}")
    return config


def _cluster_id(node: LocalNode) -> str:
    path = Path(node.config.metadata_log_dir) / META_PROPERTIES
    try:
        found = MetaProperties.decode(path.read_bytes()).cluster_id
    except FileNotFoundError:
        raise LocalClusterError(
            f"{path.parent} is not formatted. If its data is lost: headrace format --no-initial-controllers --config"
            f" {node.properties} --cluster-id ..."
        ) from None
    except (OSError, CorruptCheckpoint) as error:
        raise LocalClusterError(f"{path}: {error}") from None
    if found is None:
        raise LocalClusterError(f"{path} names no cluster")
    return found


# --- laying out -------------------------------------------------------------------------------------------------------


def open_cluster(folder: Path, wish: Wish) -> LocalCluster:
    """The cluster in `folder`, laid out now if there is none, with brokers added if more are wanted."""
    folder = folder.absolute()
    found = find_cluster(folder)
    try:
        if found is None:
            _check_new(folder)
            return lay_out(folder, wish)
        _check_same_quorum(found, wish)
        if wish.brokers < len(found.nodes):
            raise LocalClusterError(_too_few(found, wish.brokers))
        return add_brokers(found, wish)
    except QuorumError as error:
        raise LocalClusterError(str(error)) from None


def _check_same_quorum(cluster: LocalCluster, wish: Wish) -> None:
    """Where the metadata is cannot be changed by starting a cluster elsewhere: it would find nothing there."""
    known = next(iter(cluster.nodes.values())).config.zookeeper_connect
    wanted = wish.settings.get("zookeeper.connect")
    if wanted is not None and wanted != known:
        place = f"ZooKeeper at {known}" if known is not None else "KRaft"
        raise LocalClusterError(f"{cluster.folder} holds a cluster whose metadata is in {place}, not in {wanted}")


def _too_few(cluster: LocalCluster, wanted: int) -> str:
    """Why a cluster does not become smaller by being started so, and the commands that make it smaller."""
    count, folder = len(cluster.nodes), cluster.folder
    # The latest comers go first, and those that do not vote before those that do.
    leaving = sorted(cluster.nodes.values(), key=lambda node: (node.is_controller, -node.node_id))[: count - wanted]
    ids = [str(node.node_id) for node in leaving]
    files = [str(path) for node in leaving for path in (node.data, node.properties, node.log)]
    at = f"-b {cluster.bootstrap}"
    steps = [f"headrace up --brokers {count} --data {folder} --detach"]
    if wanted < REPLICAS_MAX:
        steps.append(f"headrace cluster reassign --replication-factor {wanted} {at}")
    steps.append(f"headrace cluster drain {' '.join(ids)} {at}")
    steps += [f"headrace cluster quorum remove {node.node_id} {at}" for node in leaving if node.is_controller]
    steps += [
        f"headrace down --data {folder}",
        f"rm -r {' '.join(files)}",
        f"headrace up --brokers {wanted} --data {folder} --detach",
        *(f"headrace cluster forget {node} {at}" for node in ids),
    ]
    return (
        f"{folder} holds a cluster of {count} brokers: start it with --brokers {count}. To go on with {wanted}, move"
        f" all replicas off {' and '.join(ids)} and remove {'its' if len(ids) == 1 else 'their'} files:\n  "
        + "\n  ".join(steps)
    )


def _check_new(folder: Path) -> None:
    if (folder / META_PROPERTIES).exists():
        raise LocalClusterError(f"{folder} holds the data of a single broker: choose another folder with --data")
    if any(folder.glob("node-*/" + META_PROPERTIES)):
        raise LocalClusterError(f"{folder} holds data of nodes whose .properties are missing")


def refuse_taken_ports(folder: Path, wish: Wish) -> None:
    """Raise LocalClusterError if somebody else listens where clients should find the cluster.

    Said once, before anything is made or started, and not by every node.
    """
    found = find_cluster(folder.absolute())
    if found is not None:
        addresses = [
            (node.config.broker_listeners[0].host, node.port) for node in found.nodes.values() if node.port > 0
        ]
        hint = f"is this cluster running already? Its ports are in {found.folder}/node-*.properties"
    else:
        addresses = [(wish.host_of(1 + index), wish.port + index) for index in range(wish.brokers)] if wish.port else []
        hint = "choose another with --port"
    for host, port in addresses:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError as error:
                if error.errno == errno.EADDRINUSE:
                    raise LocalClusterError(f"cannot listen on {host}:{port}: address already in use; {hint}") from None


def lay_out(folder: Path, wish: Wish) -> LocalCluster:
    """A new cluster: the first nodes vote, all serve."""
    folder.mkdir(parents=True, exist_ok=True)
    dice = random.SystemRandom()
    cluster_id = encode_uuid(new_uuid(dice))
    count = wish.voters if wish.voters is not None else (VOTERS_MAX if wish.brokers >= VOTERS_MAX else 1)
    if wish.in_zookeeper:
        count = wish.brokers
    ports, of_voters = _ports_of(wish, count)
    controller_ports = dict(enumerate(of_voters, 1))
    configs = {
        node_id: _options(folder, node_id, wish, port, controller_ports) for node_id, port in enumerate(ports, 1)
    }
    voters = [
        Voter(node, new_uuid(dice), ((CONTROLLER, wish.controller_host_of(node), port),))
        for node, port in controller_ports.items()
    ]
    nodes = {
        node_id: _make(folder, node_id, options, cluster_id, voters if node_id in controller_ports else (), dice)
        for node_id, options in configs.items()
    }
    for node in nodes.values():
        _write_options(node, configs[node.node_id])
    return LocalCluster(folder, cluster_id, nodes)


def add_brokers(cluster: LocalCluster, wish: Wish) -> LocalCluster:
    """The same cluster with brokers added until there are as many as wished; they serve and do not vote."""
    missing = wish.brokers - len(cluster.nodes)
    first = max(cluster.nodes) + 1
    controller_ports = {node.node_id: node.controller_port for node in cluster.nodes.values() if node.is_controller}
    base = 0 if wish.port == 0 else max(wish.port, 1 + max(node.port for node in cluster.nodes.values()))
    dice = random.SystemRandom()
    nodes = dict(cluster.nodes)
    for node_id, port in enumerate(_ports(base, missing), first):
        if wish.in_zookeeper:
            (controller_ports[node_id],) = free_ports(1)
        options = _options(cluster.folder, node_id, wish, port, controller_ports)
        nodes[node_id] = _make(cluster.folder, node_id, options, cluster.cluster_id, (), dice)
        _write_options(nodes[node_id], options)
    return cluster._replace(nodes=nodes)


def _options(folder: Path, node_id: int, wish: Wish, port: int, controller_ports: Mapping[int, int]) -> dict[str, str]:
    host = wish.host_of(node_id)
    host = f"[{host}]" if ":" in host and not host.startswith("[") else host
    listeners = [f"PLAINTEXT://{host}:{port}"]
    roles = "broker"
    if node_id in controller_ports:
        listeners.append(f"{CONTROLLER}://{wish.controller_host_of(node_id)}:{controller_ports[node_id]}")
        roles = "broker,controller"
    racks = wish.racks or (socket.gethostname(),)
    replicas = str(min(wish.brokers, REPLICAS_MAX))
    # One copy may be lost without stopping writers; with two brokers that takes one copy being enough.
    least = "2" if wish.brokers >= REPLICAS_MAX else "1"
    quorum = {
        "controller.quorum.bootstrap.servers": ",".join(
            f"{wish.controller_host_of(node)}:{p}" for node, p in controller_ports.items()
        )
    }
    return {
        "node.id": str(node_id),
        "process.roles": roles,
        "listeners": ",".join(listeners),
        "controller.listener.names": CONTROLLER,
        **({} if wish.in_zookeeper else quorum),
        "log.dirs": str(folder / f"node-{node_id}"),
        "broker.rack": racks[(node_id - 1) % len(racks)],
        "default.replication.factor": replicas,
        "min.insync.replicas": least,
        "offsets.topic.replication.factor": replicas,
        "transaction.state.log.replication.factor": replicas,
        "transaction.state.log.min.isr": least,
        **wish.settings,
    }


def _make(
    folder: Path,
    node_id: int,
    options: Mapping[str, str],
    cluster_id: str,
    voters: Sequence[Voter],
    dice: random.Random,
) -> LocalNode:
    """Format a node's folder. Its options are written when all are formatted: they say that the cluster is there."""
    try:
        config = BrokerConfig.load(options)
    except ConfigError as error:
        raise LocalClusterError(str(error)) from None
    node = LocalNode(node_id, folder, config)
    if config.zookeeper_connect is not None:
        open_zookeeper_folders(
            RealDisk(), layout_of(config), uuid=lambda: new_uuid(dice), cluster_id=cluster_id, may_format=True
        )
        return node
    format_folders(
        RealDisk(),
        layout_of(config),
        uuid=lambda: new_uuid(dice),
        now_ms=time.time_ns() // 1_000_000,
        cluster_id=cluster_id,
        voters=voters,
    )
    return node


def _write_options(node: LocalNode, options: Mapping[str, str]) -> None:
    node.properties.write_text("".join(f"{name}={value}\n" for name, value in options.items()))


# --- ports ------------------------------------------------------------------------------------------------------------


def _ports(first: int, count: int) -> list[int]:
    if first == 0:
        return list(free_ports(count))
    if first + count > 65_536:
        raise LocalClusterError(f"--port {first}: there are not {count} ports from there on")
    return [first + index for index in range(count)]


def _ports_of(wish: Wish, voters: int) -> tuple[list[int], list[int]]:
    """For clients, and for controllers a hundred above, so that they can be told at a glance."""
    if wish.port == 0:
        # All at once: nobody listens on any yet, so that two searches could find the same.
        found = list(free_ports(wish.brokers + voters))
        return found[: wish.brokers], found[wish.brokers :]
    return _ports(wish.port, wish.brokers), _ports(wish.port + max(100, wish.brokers), voters)


def free_ports(count: int) -> Iterator[int]:
    """Loopback ports on which nobody listens, found from a random start."""
    start = random.SystemRandom().randrange(PORT_LOW, PORT_HIGH)
    found = 0
    for step in range(PORT_HIGH - PORT_LOW):
        if found == count:
            return
        port = PORT_LOW + (start - PORT_LOW + step) % (PORT_HIGH - PORT_LOW)
        with socket.socket() as probe:
            try:
                probe.bind((LOOPBACK, port))
            except OSError:
                continue
        found += 1
        yield port
    if found < count:
        raise LocalClusterError("there are no free ports")
