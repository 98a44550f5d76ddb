"""The options by which the nodes of a local cluster find their metadata, changed when it moves to the other quorum."""

from collections.abc import Iterable, Mapping, Sequence

from headrace.config import parse_properties
from headrace.local_cluster.layout import CONTROLLER, LOOPBACK, VOTERS_MAX, LocalCluster, LocalNode, free_ports

QUORUM_OPTIONS = ("controller.quorum.bootstrap.servers", "controller.quorum.voters")


def first_voters(node_ids: Iterable[int]) -> list[int]:
    """Who would vote, had the cluster been made for KRaft: the first three, or the first."""
    nodes = sorted(node_ids)
    return nodes[:VOTERS_MAX] if len(nodes) >= VOTERS_MAX else nodes[:1]


def in_zookeeper(cluster: LocalCluster, options: Mapping[str, str]) -> dict[int, dict[str, str | None]]:
    """What changes in each node's file; None for what goes. Each node may become the controller there."""
    missing = [node for node in cluster.nodes.values() if not node.config.controller_listeners]
    ports = dict(zip((node.node_id for node in missing), free_ports(len(missing))))
    changes: dict[int, dict[str, str | None]] = {}
    for node in cluster.nodes.values():
        change = changes[node.node_id] = {**dict.fromkeys(QUORUM_OPTIONS), **options}
        change["process.roles"] = "broker,controller"
        if node.node_id in ports:
            listener = f"{CONTROLLER}://{LOOPBACK}:{ports[node.node_id]}"
            change["listeners"] = f"{_options(node)['listeners']},{listener}"
    return changes


def in_kraft(cluster: LocalCluster, voters: Sequence[int]) -> dict[int, dict[str, str | None]]:
    """The same for the way back: those without a vote are brokers only."""
    at = ",".join(_controller_address(cluster.nodes[one]) for one in voters)
    changes: dict[int, dict[str, str | None]] = {}
    for node in cluster.nodes.values():
        known = _options(node)
        gone = dict.fromkeys(name for name in known if name.startswith("zookeeper."))
        change = changes[node.node_id] = {**gone, "controller.quorum.bootstrap.servers": at}
        votes = node.node_id in voters
        change["process.roles"] = "broker,controller" if votes else "broker"
        if not votes:
            names = {listener.name for listener in node.config.controller_listeners}
            rest = [one for one in known["listeners"].split(",") if one.partition("://")[0].strip() not in names]
            change["listeners"] = ",".join(rest)
    return changes


def _controller_address(node: LocalNode) -> str:
    listener = node.config.controller_listeners[0]
    host = listener.host or LOOPBACK
    return f"[{host}]:{listener.port}" if ":" in host else f"{host}:{listener.port}"


def _options(node: LocalNode) -> dict[str, str]:
    return parse_properties(node.properties.read_text())


def write(cluster: LocalCluster, changes: Mapping[int, Mapping[str, str | None]]) -> None:
    """Other lines of the files stay as they are, comments too."""
    for node_id, change in changes.items():
        path = cluster.nodes[node_id].properties
        kept = [line for line in path.read_text().splitlines() if _name(line) not in change]
        added = [f"{name}={value}" for name, value in change.items() if value is not None]
        part = path.with_suffix(".properties.part")
        part.write_text("".join(f"{line}\n" for line in [*kept, *added]))
        part.replace(path)


def _name(line: str) -> str:
    return next(iter(parse_properties(line)), "")
