"""The log dirs of a node before anything runs on them: formatting new ones, recognising and checking formatted ones.

A folder is formatted as Kafka's own storage tool does: for a controller of its own or for the first controllers of a
cluster (kraft.version 1), or for a node that finds its controllers elsewhere. `meta.properties` is written last: a
folder that has it is complete, one that has none and no data may be formatted (again).
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from headrace.metadata.image import METADATA_VERSION
from headrace.metadata.records import Record
from headrace.metadata.versions import (
    ELR_VERSION,
    ELR_VERSION_LATEST,
    GROUP_VERSION,
    GROUP_VERSION_LATEST,
    METADATA_VERSION_LATEST,
    TRANSACTION_VERSION,
    TRANSACTION_VERSION_LATEST,
)
from headrace.protocol import messages as m
from headrace.quorum import DamagedMetadata, QuorumError
from headrace.quorum.mark import FILE_NAME as MARK
from headrace.quorum.snapshots import (
    SnapshotId,
    Voter,
    decode_snapshot,
    encode_snapshot,
    snapshot_id,
    write_snapshot,
)
from headrace.storage.checkpoints import (
    CLEAN_SHUTDOWN,
    META_PROPERTIES,
    VOUCHED,
    CorruptCheckpoint,
    MetaProperties,
    encode_uuid,
)
from headrace.storage.files import Disk, make_durable_dirs
from headrace.storage.manager import METADATA_FOLDER, is_log_folder

BOOTSTRAP = "bootstrap.checkpoint"

_MARKS = (CLEAN_SHUTDOWN, VOUCHED, MARK)
"""Of an earlier run: `rm -r data/*` leaves them behind."""
_HARMLESS = frozenset({".lock", "lost+found", BOOTSTRAP, f"{BOOTSTRAP}.tmp", f"{META_PROPERTIES}.tmp", *_MARKS})
"""What a new disk, or a format that was interrupted, may leave in an otherwise empty folder."""


class Layout(NamedTuple):
    """What the configuration says about this node's folders."""

    node_id: int
    log_dirs: Sequence[str]
    metadata_log_dir: str
    controller_endpoints: tuple[tuple[str, str, int], ...]
    """(listener name, host, port) of this node as a controller."""


class Identity(NamedTuple):
    """Who this node is, as its folders say."""

    cluster_id: str
    node_id: int
    directory_ids: dict[str, bytes]
    """By log dir, the metadata log dir included."""


def bootstrap_records() -> list[Record]:
    """What a new cluster begins with: only the features that are served are finalized."""
    levels = {
        METADATA_VERSION: METADATA_VERSION_LATEST,
        ELR_VERSION: ELR_VERSION_LATEST,
        GROUP_VERSION: GROUP_VERSION_LATEST,
        TRANSACTION_VERSION: TRANSACTION_VERSION_LATEST,
    }
    return [(m.FeatureLevelRecord(name=name, feature_level=level), 0) for name, level in levels.items()]


# --- opening ----------------------------------------------------------------------------------------------------------


def open_folders(
    disk: Disk,
    layout: Layout,
    *,
    standalone: bool,
    uuid: Callable[[], bytes],
    now_ms: int,
    cluster_id: str | None = None,
    voters: Sequence[Voter] | None = None,
) -> Identity:
    """Check this node's folders, formatting them first if they are new and the node is `standalone`.

    `voters` are as in `format_folders`. A node of a cluster is never formatted here: an empty folder may be a disk that
    was lost, and a voter that has forgotten its votes must not vote again.
    """
    found = {path: read_properties(disk, path) for path in all_dirs(layout)}
    if all(properties is None for properties in found.values()):
        for path in found:
            _check_empty(disk, path)
        if not standalone:
            raise QuorumError(
                f"{layout.metadata_log_dir} is not formatted: run `headrace format` with the same configuration or, if"
                " its disk was lost, remove this node from the voters first"
            )
        return format_folders(disk, layout, uuid=uuid, now_ms=now_ms, cluster_id=cluster_id, voters=voters)
    identity = _verify(found, layout, cluster_id)
    return _complete(disk, found, identity, layout, uuid)


def open_zookeeper_folders(
    disk: Disk, layout: Layout, *, uuid: Callable[[], bytes], cluster_id: str | None, may_format: bool
) -> Identity | None:
    """The folders of a node whose metadata is in ZooKeeper: as Kafka's of that time, by `meta.properties` of version 0,
    so that neither is taken for the other. None where they are new and are not to be formatted."""
    found = {path: read_properties(disk, path) for path in all_dirs(layout)}
    known = [properties for properties in found.values() if properties is not None]
    for path, properties in found.items():
        if properties is None:
            _check_empty(disk, path)
        elif properties.version != 0:
            raise QuorumError(
                f"{path} belongs to a node of a KRaft cluster, by its {META_PROPERTIES}: choose another with --data or"
                " log.dirs, or start it without zookeeper.connect"
            )
        elif properties.node_id not in (None, layout.node_id):
            raise QuorumError(f"{path} belongs to node {properties.node_id}; this is node {layout.node_id}")
    clusters = {properties.cluster_id for properties in known if properties.cluster_id is not None}
    if cluster_id is not None:
        clusters.add(cluster_id)
    if len(clusters) > 1:
        raise QuorumError(f"log dirs belong to different clusters: {', '.join(sorted(clusters))}")
    if not clusters or not (known or may_format):
        return None
    (cluster,) = clusters
    directories = {}
    for path, properties in found.items():
        wanted = MetaProperties(cluster, layout.node_id, (properties and properties.directory_id) or uuid(), 0)
        if may_format and wanted != properties:
            write_properties(disk, path, wanted)
        assert wanted.directory_id is not None
        directories[path] = wanted.directory_id
    return Identity(cluster, layout.node_id, directories)


def all_dirs(layout: Layout) -> list[str]:
    return list(dict.fromkeys([layout.metadata_log_dir, *layout.log_dirs]))


def holds_records(disk: Disk, layout: Layout) -> str | None:
    """A log dir in which there are logs of partitions, if there is one."""
    return next(
        (path for path in layout.log_dirs if disk.exists(path) and any(map(is_log_folder, disk.list(path)))), None
    )


def read_properties(disk: Disk, path: str) -> MetaProperties | None:
    file = f"{path}/{META_PROPERTIES}"
    if not disk.exists(file):
        return None
    try:
        return MetaProperties.decode(disk.read_bytes(file))
    except CorruptCheckpoint as error:
        raise DamagedMetadata(f"{file} is damaged: {error}") from None


def _check_empty(disk: Disk, path: str) -> None:
    """Refuse to format over data: what is not ours, or has lost its meta.properties, stays as it is."""
    if not disk.exists(path):
        return
    for name in disk.list(path):
        if name in _HARMLESS:
            continue
        if name == METADATA_FOLDER:
            inside = [n for n in disk.list(f"{path}/{name}") if not _is_first_snapshot(n)]
            if not inside:
                continue
        raise DamagedMetadata(
            f"{path} holds {name} but no {META_PROPERTIES}: it is no folder of this node, or a damaged one; "
            f"choose another with --data or log.dirs, or restore its {META_PROPERTIES}"
        )


def _is_first_snapshot(name: str) -> bool:
    return snapshot_id(name.removesuffix(".part")) == SnapshotId(0, 0)


def _verify(found: dict[str, MetaProperties | None], layout: Layout, cluster_id: str | None) -> tuple[str, int]:
    first: str | None = None
    for path, properties in found.items():
        if properties is None:
            continue
        file = f"{path}/{META_PROPERTIES}"
        if properties.version != 1 and not (properties.cluster_id is None and properties.node_id is None):
            raise QuorumError(
                f"{file} is of version {properties.version}, from ZooKeeper mode: start this node with"
                " zookeeper.connect, or choose another folder"
            )
        if properties.cluster_id is None or properties.node_id is None:
            raise DamagedMetadata(f"{file} is damaged: it names no cluster.id or no node.id")
        if properties.node_id != layout.node_id:
            raise QuorumError(f"{path} belongs to node {properties.node_id}; this is node {layout.node_id}")
        if cluster_id is not None and properties.cluster_id != cluster_id:
            raise QuorumError(f"{path} belongs to cluster {properties.cluster_id}; this node is to be of {cluster_id}")
        if first is not None and properties.cluster_id != first:
            raise QuorumError(f"{path} belongs to cluster {properties.cluster_id}, another log dir to {first}")
        first = properties.cluster_id
    if found[layout.metadata_log_dir] is None:
        raise QuorumError(
            f"{layout.metadata_log_dir} has no {META_PROPERTIES} while other log dirs do: the metadata log is missing"
        )
    assert first is not None
    ids = [p.directory_id for p in found.values() if p is not None and p.directory_id is not None]
    if len(set(ids)) != len(ids):
        raise QuorumError("two log dirs have the same directory.id: one is a copy of the other")
    return first, layout.node_id


def _complete(
    disk: Disk,
    found: dict[str, MetaProperties | None],
    identity: tuple[str, int],
    layout: Layout,
    uuid: Callable[[], bytes],
) -> Identity:
    """Give a directory id to log dirs that were added since, or formatted before Kafka 3.7."""
    cluster_id, node_id = identity
    directories: dict[str, bytes] = {}
    for path, properties in found.items():
        directory = properties.directory_id if properties is not None else None
        if directory is None:
            if properties is None:
                _check_empty(disk, path)
            directory = uuid()
            write_properties(disk, path, MetaProperties(cluster_id, node_id, directory))
        directories[path] = directory
    return Identity(cluster_id, node_id, directories)


# --- formatting -------------------------------------------------------------------------------------------------------


def format_folders(
    disk: Disk,
    layout: Layout,
    *,
    uuid: Callable[[], bytes],
    now_ms: int,
    cluster_id: str | None = None,
    voters: Sequence[Voter] | None = None,
) -> Identity:
    """Make this node the only controller of a new cluster, with None for `voters`, or one of its first controllers.

    Without any voters the node learns who they are from its configuration, or from the quorum itself.
    """
    cluster = cluster_id if cluster_id is not None else encode_uuid(uuid())
    directories = {path: uuid() for path in all_dirs(layout)}
    metadata = layout.metadata_log_dir
    if voters is None:
        voters = [Voter(layout.node_id, directories[metadata], layout.controller_endpoints)]
    elif voters:
        directories[metadata] = _place_among(voters, layout)
    for path in directories:
        make_durable_dirs(disk, path)
        for name in _MARKS:
            if disk.exists(f"{path}/{name}"):
                disk.remove(f"{path}/{name}")
    folder = f"{metadata}/{METADATA_FOLDER}"
    make_durable_dirs(disk, folder)
    if voters:
        first = encode_snapshot([], epoch=0, now_ms=now_ms, timestamp_ms=now_ms, kraft_version=1, voters=voters)
        write_snapshot(disk, folder, SnapshotId(0, 0), first)
    bootstrap = b"".join(encode_snapshot(bootstrap_records(), epoch=0, now_ms=now_ms, timestamp_ms=0))
    disk.replace_bytes(f"{metadata}/{BOOTSTRAP}", bootstrap)
    # The metadata log dir comes last: as long as it has no meta.properties, nothing else counts.
    for path in sorted(directories, key=lambda path: path == metadata):
        write_properties(disk, path, MetaProperties(cluster, layout.node_id, directories[path]))
    return Identity(cluster, layout.node_id, directories)


def _place_among(voters: Sequence[Voter], layout: Layout) -> bytes:
    """The directory id that this node has as one of the first voters. Raises QuorumError."""
    mine = [voter for voter in voters if voter.id == layout.node_id]
    if len({voter.id for voter in voters}) != len(voters):
        raise QuorumError("two of the first controllers have the same node id")
    if len({voter.directory_id for voter in voters}) != len(voters):
        raise QuorumError("two of the first controllers have the same directory id")
    if not mine:
        ids = ", ".join(str(voter.id) for voter in voters)
        raise QuorumError(f"node {layout.node_id} is not among the first controllers, {ids}")
    return mine[0].directory_id


def write_properties(disk: Disk, path: str, properties: MetaProperties) -> None:
    make_durable_dirs(disk, path)
    disk.replace_bytes(f"{path}/{META_PROPERTIES}", properties.encode())


def read_bootstrap(disk: Disk, metadata_log_dir: str) -> list[Record]:
    """The records that an empty metadata log begins with."""
    path = f"{metadata_log_dir}/{BOOTSTRAP}"
    if not disk.exists(path):
        return bootstrap_records()
    return decode_snapshot(SnapshotId(0, 0), disk.read_bytes(path), path).records
