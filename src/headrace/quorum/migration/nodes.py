"""The folders of a stopped cluster's nodes: locked for the time of a move, and marked as those of one mode or the
other."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from headrace.quorum import QuorumError
from headrace.quorum.folder import Layout, all_dirs, read_properties, write_properties
from headrace.quorum.snapshots import Voter
from headrace.storage.checkpoints import LOCK, META_PROPERTIES, MetaProperties
from headrace.storage.files import Disk

NOTE = ".headrace_migration"
"""In the metadata log dir of a node that was moved to KRaft: how far the metadata was that it got."""
ZOOKEEPER_MODE, KRAFT_MODE = 0, 1
"""Versions of `meta.properties`."""


class Position(NamedTuple):
    """How far metadata had come: the last record's epoch and offset."""

    epoch: int
    offset: int


class Node(NamedTuple):
    layout: Layout
    static_voters: tuple[Voter, ...] = ()
    """From the configuration, for a cluster of kraft.version 0."""

    @property
    def id(self) -> int:
        return self.layout.node_id

    @property
    def metadata_dir(self) -> str:
        return self.layout.metadata_log_dir


class Folders(NamedTuple):
    """What a node's `meta.properties` say, by log dir."""

    cluster_id: str
    properties: dict[str, MetaProperties]

    def mode(self, node: Node) -> int:
        """The metadata log dir is marked last, and counts."""
        return self.properties[node.metadata_dir].version


@contextmanager
def locked(disk: Disk, nodes: Sequence[Node]) -> Iterator[None]:
    """No node can start meanwhile. Raises QuorumError if one runs."""
    locks = []
    try:
        for node in nodes:
            for path in all_dirs(node.layout):
                if not disk.exists(path):
                    raise QuorumError(f"{path}, a folder of node {node.id}, is not there")
                lock = disk.lock(f"{path}/{LOCK}")
                if lock is None:
                    raise QuorumError(f"node {node.id} is running: {path} is in use; stop the whole cluster first")
                locks.append(lock)
        yield
    finally:
        for lock in locks:
            disk.unlock(lock)


def read_folders(disk: Disk, nodes: Sequence[Node]) -> dict[int, Folders]:
    """Of all nodes, which must be of one cluster. Raises QuorumError."""
    found = {}
    for node in nodes:
        properties = {}
        for path in all_dirs(node.layout):
            known = read_properties(disk, path)
            if known is None or known.cluster_id is None or known.directory_id is None:
                raise QuorumError(f"{path} has no {META_PROPERTIES} of a node: start the cluster once as it is, first")
            if known.node_id != node.id:
                raise QuorumError(f"{path} belongs to node {known.node_id}; this is node {node.id}")
            properties[path] = known
        found[node.id] = Folders(properties[node.metadata_dir].cluster_id or "", properties)
    clusters = {known.cluster_id for folders in found.values() for known in folders.properties.values()}
    if len(clusters) > 1:
        raise QuorumError(f"the nodes belong to different clusters: {', '.join(sorted(map(str, clusters)))}")
    return found


def mark_folders(disk: Disk, node: Node, folders: Folders, mode: int) -> None:
    """The metadata log dir last: until then nothing has changed."""
    for path in sorted(folders.properties, key=lambda path: path == node.metadata_dir):
        known = folders.properties[path]
        if known.version != mode:
            write_properties(disk, path, known._replace(version=mode))


# --- the note ---------------------------------------------------------------------------------------------------------


def read_note(disk: Disk, node: Node) -> Position | None:
    path = f"{node.metadata_dir}/{NOTE}"
    if not disk.exists(path):
        return None
    try:
        fields = json.loads(disk.read_bytes(path))
        return Position(int(fields["epoch"]), int(fields["offset"]))
    except (ValueError, TypeError, KeyError) as error:
        raise QuorumError(f"{path} is damaged: {error}") from None


def write_note(disk: Disk, node: Node, position: Position) -> None:
    text = json.dumps({"version": 1, "epoch": position.epoch, "offset": position.offset})
    disk.replace_bytes(f"{node.metadata_dir}/{NOTE}", text.encode() + b"\n")


def remove_note(disk: Disk, node: Node) -> None:
    path = f"{node.metadata_dir}/{NOTE}"
    if disk.exists(path):
        disk.remove(path)
