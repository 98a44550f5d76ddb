"""Metadata in the folders of stopped KRaft nodes: read without a change to anything, and written as a snapshot that all
voters begin with."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from headrace.errors import KafkaError
from headrace.metadata.delta import ReplayError
from headrace.metadata.image import Image
from headrace.metadata.loader import Loader
from headrace.metadata.records import Record
from headrace.metadata.snapshot import image_records
from headrace.protocol import messages as m
from headrace.protocol.primitives import ProtocolError
from headrace.quorum import DamagedMetadata, QuorumError
from headrace.quorum.damage import check_log
from headrace.quorum.folder import BOOTSTRAP
from headrace.quorum.loading import load_snapshot
from headrace.quorum.mark import read_mark
from headrace.quorum.migration.nodes import Folders, Node, Position
from headrace.quorum.snapshots import (
    Snapshot,
    SnapshotId,
    Voter,
    decode_batch,
    encode_snapshot,
    list_snapshots,
    read_snapshot,
    voters_of,
    write_snapshot,
)
from headrace.quorum.state import read_state, write_state
from headrace.raft.types import Election, ReplicaKey
from headrace.raft.voters import VoterSet
from headrace.records.batch import check_stored
from headrace.records.layout import HEADER_BYTES, BatchHeader
from headrace.storage.files import Disk, make_durable_dirs
from headrace.storage.manager import METADATA_FOLDER

KRAFT_VERSION = 1
WORK = ".headrace_migrating"
"""A metadata folder in the making; it gets its name when it is whole."""


class KraftMetadata(NamedTuple):
    """As one node's disk has it."""

    image: Image
    position: Position
    epoch: int
    """The latest that the node has known."""
    voters: VoterSet


def metadata_folder(node: Node) -> str:
    return f"{node.metadata_dir}/{METADATA_FOLDER}"


# --- reading ----------------------------------------------------------------------------------------------------------


def read_newest(disk: Disk, nodes: Sequence[Node], folders: Mapping[int, Folders]) -> KraftMetadata:
    """What a majority of the voters agreed on: everything committed is in the longest of their logs.

    Raises QuorumError where so many of them are not among `nodes`.
    """
    found = {node.id: read_node(disk, node, folders[node.id]) for node in nodes if disk.exists(metadata_folder(node))}
    if not found:
        raise QuorumError(f"none of these nodes has a {METADATA_FOLDER}: it is no KRaft cluster")
    voters = max(found.values(), key=_age).voters
    there = {
        node.id: found[node.id]
        for node in nodes
        if node.id in found and voters.has(ReplicaKey(node.id, _directory(node, folders[node.id])))
    }
    if len(there) < voters.majority:
        missing = ", ".join(str(one) for one in voters.ids if one not in there)
        raise QuorumError(
            f"{len(there)} of the {len(voters)} controllers are here, and what was committed takes"
            f" {voters.majority} to tell: name the folders of {missing}, too"
        )
    newest = max(there.values(), key=_age)
    return newest._replace(epoch=max(one.epoch for one in found.values()))


def _age(metadata: KraftMetadata) -> Position:
    return metadata.position


def _directory(node: Node, folders: Folders) -> bytes:
    directory = folders.properties[node.metadata_dir].directory_id
    assert directory is not None, "checked when it was read"
    return directory


def read_node(disk: Disk, node: Node, folders: Folders) -> KraftMetadata:
    """All that one node has, committed or not: what is not may become so, if that node is elected."""
    folder = metadata_folder(node)
    mark = read_mark(disk, node.metadata_dir, _directory(node, folders))
    snapshots = list_snapshots(disk, folder)
    covered = snapshots[-1].end_offset if snapshots else 0
    check_log(disk, folder, covered=covered, committed=mark.end_offset)
    snapshot = read_snapshot(disk, folder, snapshots[-1]) if snapshots else None
    loader = load_snapshot(snapshot) if snapshot is not None else Loader()
    known = snapshot.voters if snapshot is not None else None
    voters = VoterSet(known if known is not None else node.static_voters)
    position = Position(snapshot.id.epoch if snapshot is not None else 0, covered - 1)
    for view, pos, header in _behind(disk, folder, snapshot):
        try:
            batch = decode_batch(view, pos, header)
            skip = max(0, covered - header.base_offset)
            if not header.is_control:
                loader.load(batch.records[skip:], header.base_offset + skip, header.leader_epoch, header.max_timestamp)
        except (KafkaError, ProtocolError, ReplayError) as error:
            raise DamagedMetadata(f"{folder} cannot be replayed at offset {header.base_offset}: {error}") from None
        for _, message in batch.control:
            if isinstance(message, m.VotersRecord):
                voters = VoterSet(voters_of(message))
        position = Position(header.leader_epoch, header.last_offset)
    epoch = max(position.epoch, mark.epoch, read_state(disk, folder).epoch)
    return KraftMetadata(loader.image, position, epoch, voters)


def _behind(disk: Disk, folder: str, snapshot: Snapshot | None) -> Iterator[tuple[memoryview, int, BatchHeader]]:
    """Batches of the log that a snapshot has not; what a crash left half written at the end is none."""
    batches = []
    for name in disk.list(folder):
        if name.endswith(".log"):
            view = memoryview(disk.read_bytes(f"{folder}/{name}"))
            batches += [(view, pos, header) for pos, header in _whole(view)]
    if snapshot is None:
        yield from batches
    elif batches and batches[-1][2].leader_epoch >= snapshot.id.epoch:
        # A log that ends in an earlier epoch than a snapshot that was fetched is another leader's.
        yield from (one for one in batches if one[2].last_offset >= snapshot.id.end_offset)


def _whole(view: memoryview) -> Iterator[tuple[int, BatchHeader]]:
    pos, end = 0, len(view)
    while end - pos >= HEADER_BYTES:
        try:
            header = check_stored(view, pos, end)
        except KafkaError:
            return
        yield pos, header
        pos += header.size


# --- writing ----------------------------------------------------------------------------------------------------------


def write_voter(disk: Disk, node: Node, image: Image, position: Position, voters: Sequence[Voter], now_ms: int) -> None:
    """The node's metadata folder, with `image` as the snapshot that it begins with, in the place of any other."""
    work = f"{node.metadata_dir}/{WORK}"
    if disk.exists(work):
        disk.remove_tree(work)
    make_durable_dirs(disk, work)
    batches = encode_snapshot(
        image_records(image),
        epoch=position.epoch,
        now_ms=now_ms,
        timestamp_ms=image.timestamp_ms,
        kraft_version=KRAFT_VERSION,
        voters=voters,
    )
    write_snapshot(disk, work, SnapshotId(position.offset + 1, position.epoch), batches)
    write_state(disk, work, Election(position.epoch), KRAFT_VERSION, [voter.id for voter in voters])
    levels: list[Record] = [
        (m.FeatureLevelRecord(name=name, feature_level=level), 0) for name, level in image.features.items()
    ]
    bootstrap = b"".join(encode_snapshot(levels, epoch=0, now_ms=now_ms, timestamp_ms=0))
    disk.replace_bytes(f"{node.metadata_dir}/{BOOTSTRAP}", bootstrap)
    remove_metadata(disk, node)
    disk.rename(work, metadata_folder(node))
    disk.sync_dir(node.metadata_dir)


def remove_metadata(disk: Disk, node: Node) -> None:
    """What the node had before: a node without a vote fetches everything."""
    folder = metadata_folder(node)
    if disk.exists(folder):
        disk.remove_tree(folder)
        disk.sync_dir(node.metadata_dir)
