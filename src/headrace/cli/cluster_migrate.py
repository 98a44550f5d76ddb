"""`headrace cluster migrate`: the metadata of a stopped cluster from KRaft to ZooKeeper, or back."""

import asyncio
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from headrace.cli.dump.report import counted
from headrace.cli.output import JSON, YES, pairs, print_json
from headrace.client.errors import ClientError
from headrace.config import BrokerConfig, ConfigError, parse_properties

if TYPE_CHECKING:
    from headrace.local_cluster.layout import LocalCluster
    from headrace.quorum.migration.moving import Contents, ToKraft, ToZooKeeper
    from headrace.quorum.migration.nodes import Node
    from headrace.quorum.zookeeper.session import KazooSession

DATA = Path("headrace-data")


class Quorum(StrEnum):
    KRAFT = "kraft"
    ZOOKEEPER = "zookeeper"


class Place(NamedTuple):
    """Which nodes, and where their options are."""

    configs: dict[int, BrokerConfig]
    local: "LocalCluster | None"
    """Laid out by `up --brokers`: then its files are changed, too."""
    start: str
    """How to start it afterwards, without what is about the quorum."""


def migrate(
    to: Annotated[Quorum, typer.Option("--to", help="Where the metadata goes.", show_default=False)],
    data: Annotated[
        Path, typer.Option("--data", metavar="DIR", help="Of a cluster, or a broker, that `headrace up` runs.")
    ] = DATA,
    config: Annotated[
        list[Path] | None,
        typer.Option("--config", metavar="FILE", help="Instead: options of each node, once per node."),
    ] = None,
    zookeeper: Annotated[
        str | None, typer.Option("--zookeeper", metavar="HOST:PORT,.../PATH", help="Where ZooKeeper is.")
    ] = None,
    voters: Annotated[
        str | None,
        typer.Option("--voters", metavar="ID,...", help="Who votes in KRaft [the first three, or the first]."),
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="A zookeeper.* option; may be repeated.")
    ] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Remove what this cluster left in the other quorum when it moved away.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and do nothing.")] = False,
    yes: bool = YES,
    as_json: bool = JSON,
) -> None:
    """Move the metadata of a stopped cluster to ZooKeeper, or to KRaft.

    Topics, ids, options, records, groups, producer ids and epochs stay. Asks before it changes anything. If it is
    interrupted, run it again. The old quorum is left as it is.
    """
    from headrace.broker.runtime import StartupError
    from headrace.quorum import QuorumError
    from headrace.quorum.migration.moving import AlreadyThere
    from headrace.quorum.zookeeper.client import ZooKeeperError

    try:
        place = _find(data, config or [])
        options = _zookeeper_options(place, to, zookeeper, settings or [])
        chosen = _voters(place, to, voters)
        try:
            facts = asyncio.run(
                _run(place, to, options, chosen, replace=replace, dry_run=dry_run, yes=yes, quiet=as_json)
            )
        except AlreadyThere:
            # Its folders were marked, and then it was interrupted before its files were changed.
            if dry_run or not _finish_files(place, to, options, chosen):
                raise
            facts = {"to": to.value, "done": True}
            _print_next(place, to, options, chosen, print if not as_json else lambda line: None)
    except (ConfigError, StartupError, QuorumError, ZooKeeperError) as error:
        raise ClientError(str(error)) from None
    except OSError as error:
        raise ClientError(f"cannot use {error.filename}: {error.strerror}") from None
    if as_json:
        print_json(facts)


# --- what is meant ----------------------------------------------------------------------------------------------------


def _find(data: Path, files: Sequence[Path]) -> Place:
    from headrace.local_cluster.layout import LocalClusterError, find_cluster
    from headrace.storage.checkpoints import META_PROPERTIES, CorruptCheckpoint, MetaProperties

    if files:
        found = [BrokerConfig.load(parse_properties(path.read_text())) for path in files]
        return Place({one.node_id: one for one in found}, None, "headrace up --config ...")
    try:
        cluster = find_cluster(data.absolute())
    except LocalClusterError as error:
        raise ClientError(str(error)) from None
    if cluster is not None:
        configs = {node_id: node.config for node_id, node in cluster.nodes.items()}
        return Place(configs, cluster, f"headrace up --brokers {len(configs)} --data {data}")
    properties = data / META_PROPERTIES
    if not properties.exists():
        raise ClientError(
            f"{data} holds no broker and no cluster: name its folder with --data, or --config of each node"
        )
    try:
        node_id = MetaProperties.decode(properties.read_bytes()).node_id
    except CorruptCheckpoint as error:
        raise ClientError(f"{properties}: {error}") from None
    options = {"node.id": str(node_id), "log.dirs": str(data.absolute())}
    return Place({node_id or 0: BrokerConfig.load(options)}, None, f"headrace up --data {data}")


def _zookeeper_options(place: Place, to: Quorum, connect: str | None, settings: Sequence[str]) -> dict[str, str]:
    """The zookeeper.* options: those of the nodes, and those given."""
    known: dict[str, str] = {}
    for config in place.configs.values():
        known |= {name: value for name, value in config.raw.items() if name.startswith("zookeeper.")}
    given = pairs(settings, example="zookeeper.ssl.client.enable=true")
    for name in given:
        if not name.startswith("zookeeper."):
            raise ClientError(f"--set {name}: only zookeeper.* options are about the move")
    known |= given
    if connect is not None:
        known["zookeeper.connect"] = connect
    if "zookeeper.connect" not in known:
        what = "where the metadata goes" if to is Quorum.ZOOKEEPER else "where the metadata is"
        raise ClientError(f"--zookeeper HOST:PORT/PATH is missing: {what}")
    BrokerConfig.load(known)
    return known


def _voters(place: Place, to: Quorum, text: str | None) -> list[int]:
    from headrace.local_cluster.quorum_options import first_voters

    if text is None:
        return first_voters(place.configs)
    if to is Quorum.ZOOKEEPER:
        raise ClientError("--voters goes with --to kraft only: in ZooKeeper no node votes, and each may be elected")
    try:
        chosen = [int(one) for one in text.split(",")]
    except ValueError:
        raise ClientError(f"--voters {text}: write numbers of nodes, such as 1,2,3") from None
    if len(set(chosen)) < len(chosen):
        raise ClientError(f"--voters {text}: names a node twice")
    return chosen


def _nodes(place: Place) -> "list[Node]":
    from headrace.broker.cluster.opening import layout_of, quorum_options
    from headrace.quorum.migration.nodes import Node

    return [Node(layout_of(config), quorum_options(config).static_voters) for config in place.configs.values()]


# --- doing it ---------------------------------------------------------------------------------------------------------


async def _run(
    place: Place,
    to: Quorum,
    options: Mapping[str, str],
    voters: list[int],
    *,
    replace: bool,
    dry_run: bool,
    yes: bool,
    quiet: bool,
) -> dict[str, Any]:
    from headrace.broker.cluster.zookeeper_security import zookeeper_options
    from headrace.quorum.migration import moving
    from headrace.quorum.migration.nodes import locked
    from headrace.quorum.zookeeper.session import KazooSession
    from headrace.storage.files import RealDisk

    disk, nodes = RealDisk(), _nodes(place)
    session = KazooSession(zookeeper_options(BrokerConfig.load(options)), asyncio.get_running_loop())

    def tell(line: str) -> None:
        if not quiet:
            print(line, flush=True)

    with locked(disk, nodes):
        session.open(prepare=False)
        try:
            planned: ToZooKeeper | ToKraft
            if to is Quorum.ZOOKEEPER:
                planned = await moving.plan_to_zookeeper(disk, nodes, session, replace=replace)
                steps = _steps_to_zookeeper(planned, options)
            else:
                planned = await moving.plan_to_kraft(disk, nodes, voters, session, replace=replace)
                steps = _steps_to_kraft(planned, voters)
            changes = _changes(place, to, options, voters)
            steps += [f"change {place.local.nodes[one].properties}" for one in changes if place.local is not None]
            if not quiet:
                _print_plan(planned.contents, to, steps)
            facts = {"to": to.value, "cluster_id": planned.contents.cluster_id, "steps": steps, "done": not dry_run}
            if dry_run:
                tell("nothing was changed: --dry-run")
                return facts
            if not yes and not typer.confirm("Go on?", err=True):
                raise typer.Exit(1)
            await _do(disk, nodes, planned, session, tell)
            if place.local is not None:
                from headrace.local_cluster import quorum_options

                quorum_options.write(place.local, changes)
        finally:
            await session.close()
    _print_next(place, to, options, voters, tell)
    return facts


async def _do(
    disk: Any, nodes: "Iterable[Node]", planned: "ToZooKeeper | ToKraft", session: "KazooSession", tell: Any
) -> None:
    from headrace.quorum.migration import moving

    if isinstance(planned, moving.ToZooKeeper):
        session.prepare()
        await moving.to_zookeeper(disk, planned, session, tell)
    else:
        by_id = {node.id: node for node in nodes}
        moving.to_kraft(disk, by_id, planned, time.time_ns() // 1_000_000, tell)


def _changes(
    place: Place, to: Quorum, options: Mapping[str, str], voters: Sequence[int]
) -> dict[int, dict[str, str | None]]:
    from headrace.local_cluster import quorum_options

    if place.local is None:
        return {}
    if to is Quorum.ZOOKEEPER:
        return quorum_options.in_zookeeper(place.local, options)
    return quorum_options.in_kraft(place.local, voters)


def _finish_files(place: Place, to: Quorum, options: Mapping[str, str], voters: Sequence[int]) -> bool:
    """Whether anything in them had to be changed."""
    from headrace.local_cluster import quorum_options

    if place.local is None or all(
        (config.zookeeper_connect is None) == (to is Quorum.KRAFT) for config in place.configs.values()
    ):
        return False
    quorum_options.write(place.local, _changes(place, to, options, voters))
    return True


# --- what is said -----------------------------------------------------------------------------------------------------


def _steps_to_zookeeper(planned: "ToZooKeeper", options: Mapping[str, str]) -> list[str]:
    copy = [f"copy the metadata to ZooKeeper at {options['zookeeper.connect']}, and read it back"]
    return (copy if planned.copy else []) + [f"mark the folders of node {node.id}" for node in planned.to_mark]


def _steps_to_kraft(planned: "ToKraft", voters: Sequence[int]) -> list[str]:
    writes = [f"write the metadata to node {node.id}" for node in planned.to_write if node.id in voters]
    return writes + [f"mark the folders of node {node.id}" for node in planned.to_mark]


def _print_plan(contents: "Contents", to: Quorum, steps: Sequence[str]) -> None:
    image = contents.image
    print(
        f"cluster {contents.cluster_id}: {counted(len(image.topics), 'topic')},"
        f" {counted(contents.partitions, 'partition')}, {counted(len(image.brokers), 'broker')},"
        f" metadata up to offset {contents.position.offset} of epoch {contents.position.epoch}"
    )
    print(f"to {'ZooKeeper' if to is Quorum.ZOOKEEPER else 'KRaft'}:")
    for number, step in enumerate(steps, 1):
        print(f"  {number}. {step}")
    sys.stdout.flush()


def _print_next(place: Place, to: Quorum, options: Mapping[str, str], voters: Sequence[int], tell: Any) -> None:
    if place.local is not None:
        tell(f"done; start it: {place.start}")
    elif len(place.configs) == 1 and "--data" in place.start:
        more = f" --zookeeper {options['zookeeper.connect']}" if to is Quorum.ZOOKEEPER else ""
        tell(f"done; start it: {place.start}{more}")
    elif to is Quorum.ZOOKEEPER:
        tell("done; in the options of each node remove process.roles and controller.quorum.*, and set")
        for name, value in options.items():
            tell(f"  {name}={value}")
    else:
        at = ",".join(
            f"{host}:{port}"
            for one in voters
            for _, host, port in _nodes(Place({one: place.configs[one]}, None, ""))[0].layout.controller_endpoints[:1]
        )
        tell("done; in the options of each node remove zookeeper.*, and set")
        tell(f"  process.roles=broker,controller   (nodes {', '.join(map(str, voters))}; broker for others)")
        tell(f"  controller.quorum.bootstrap.servers={at}")
