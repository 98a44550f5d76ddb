"""The move itself, in either direction: what has to be done is found out first, told, and then done.

Everything that a move does can be done again, so that one that was killed is finished by starting it once more. The
old quorum is left as it is: until folders are marked for the other mode, which comes last, the cluster starts as it did
before, and what it kept there stays afterwards, too.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from headrace.metadata.image import Image
from headrace.quorum import QuorumError
from headrace.quorum.migration import kraft_folders, znodes_target
from headrace.quorum.migration.kraft_folders import metadata_folder
from headrace.quorum.migration.nodes import (
    KRAFT_MODE,
    ZOOKEEPER_MODE,
    Folders,
    Node,
    Position,
    mark_folders,
    read_folders,
    read_note,
    remove_note,
    write_note,
)
from headrace.quorum.migration.znodes_target import Found
from headrace.quorum.snapshots import Voter
from headrace.quorum.zookeeper.client import Session
from headrace.storage.files import Disk
from headrace.storage.manager import METADATA_FOLDER

Step = Callable[[str], None]
"""Told of each step when it is done."""

OLD_ZOOKEEPER = (
    "ZooKeeper still has this cluster's metadata from an earlier time: --replace removes it, or choose another chroot"
)
OLD_KRAFT = "is left from before this cluster moved to ZooKeeper: --replace removes it"
BOTH = (
    "both quorums have gone on since the move began, each with some of the nodes: decide which one counts, and restore"
    " the folders of the others from a copy"
)


class AlreadyThere(QuorumError):
    """All nodes are marked for the quorum that they were to be moved to."""


class Contents(NamedTuple):
    """What is moved."""

    cluster_id: str
    image: Image
    position: Position
    epoch: int
    """Of the last controller: the next one's is higher."""

    @property
    def partitions(self) -> int:
        return sum(len(topic.partitions) for topic in self.image.topics.values())


class ToZooKeeper(NamedTuple):
    contents: Contents
    copy: bool
    """False where an earlier attempt has done this part."""
    to_mark: list[Node]


class ToKraft(NamedTuple):
    contents: Contents
    voters: list[Voter]
    to_write: list[Node]
    to_mark: list[Node]


# --- to ZooKeeper -----------------------------------------------------------------------------------------------------


async def plan_to_zookeeper(disk: Disk, nodes: Sequence[Node], session: Session, *, replace: bool) -> ToZooKeeper:
    """Changes nothing. Raises QuorumError where the move cannot or need not be made."""
    folders = read_folders(disk, nodes)
    cluster_id = next(iter(folders.values())).cluster_id
    found = await znodes_target.look(session)
    _refuse_users(found)
    to_mark = [node for node in nodes if _unmarked(folders[node.id], ZOOKEEPER_MODE)]
    moved = [node for node in nodes if folders[node.id].mode(node) == ZOOKEEPER_MODE]
    if not to_mark:
        raise AlreadyThere("these nodes have their metadata in ZooKeeper already")
    source = kraft_folders.read_newest(disk, nodes, folders)
    contents = Contents(cluster_id, source.image, source.position, source.epoch)
    return ToZooKeeper(contents, _needs_copy(found, contents, bool(moved), replace), to_mark)


def _needs_copy(found: Found, contents: Contents, some_moved: bool, replace: bool) -> bool:
    if found.is_empty:
        return True
    copy = found.copy
    owner = copy.cluster_id if copy is not None and not copy.whole else found.cluster_id
    if owner != contents.cluster_id:
        raise QuorumError(
            f"ZooKeeper holds another cluster, {owner} with {found.topics} topics: choose another chroot, such as"
            " HOST:PORT/another"
        )
    if copy is not None and not copy.whole:
        return True
    if copy is not None and Position(copy.epoch, copy.offset) == contents.position:
        return False
    if copy is not None and found.number == 0:
        return True  # the old quorum went on, and nobody has used the copy
    if some_moved:
        raise QuorumError(BOTH)
    if not replace:
        raise QuorumError(OLD_ZOOKEEPER)
    return True


async def to_zookeeper(disk: Disk, planned: ToZooKeeper, session: Session, tell: Step) -> None:
    """The session's nodes above all (`paths.PERSISTENT`) have been made. Raises QuorumError, ZooKeeperError."""
    contents = planned.contents
    if planned.copy:
        await znodes_target.write(session, contents.cluster_id, contents.image, contents.position, contents.epoch)
        tell(f"metadata copied to ZooKeeper and read back: {_amount(contents)}")
    folders = read_folders(disk, planned.to_mark)
    for node in planned.to_mark:
        remove_note(disk, node)
        mark_folders(disk, node, folders[node.id], ZOOKEEPER_MODE)
        tell(f"node {node.id}: its folders are marked for ZooKeeper")


# --- to KRaft ---------------------------------------------------------------------------------------------------------


async def plan_to_kraft(
    disk: Disk, nodes: Sequence[Node], voter_ids: Sequence[int], session: Session, *, replace: bool
) -> ToKraft:
    """Changes nothing. Raises QuorumError where the move cannot or need not be made."""
    folders = read_folders(disk, nodes)
    cluster_id = next(iter(folders.values())).cluster_id
    found = await znodes_target.look(session)
    _refuse_users(found)
    to_mark = [node for node in nodes if _unmarked(folders[node.id], KRAFT_MODE)]
    if not to_mark:
        raise AlreadyThere("these nodes have their metadata in KRaft already")
    if found.number < 0 or found.cluster_id != cluster_id or (found.copy is not None and not found.copy.whole):
        raise QuorumError(f"ZooKeeper does not hold the metadata of cluster {cluster_id}, which these nodes belong to")
    image, position = await znodes_target.read(session)
    by_id = {node.id: node for node in nodes}
    unknown = [str(one) for one in voter_ids if one not in by_id]
    if unknown or not voter_ids:
        raise QuorumError(f"the voters have to be among these nodes; {', '.join(unknown) or 'nobody'} is not")
    to_write = [node for node in nodes if _needs_metadata(disk, node, folders[node.id], position, replace)]
    voters = [_voter(by_id[one], folders[one]) for one in voter_ids]
    for voter in voters:
        if len(voters) > 1 and not all(port for _, _, port in voter.endpoints):
            raise QuorumError(f"node {voter.id}: as one of several voters its controller listener needs a fixed port")
    return ToKraft(Contents(cluster_id, image, position, position.epoch), voters, to_write, to_mark)


def _needs_metadata(disk: Disk, node: Node, folders: Folders, position: Position, replace: bool) -> bool:
    note = read_note(disk, node)
    there = disk.exists(metadata_folder(node))
    if folders.mode(node) == KRAFT_MODE:
        if note == position:
            return False  # it may have run since: what it has goes on from here
        if note is None or (there and kraft_folders.read_node(disk, node, folders).position != note):
            raise QuorumError(BOTH)
        return True
    if there and note is None and not replace:
        raise QuorumError(f"{node.metadata_dir}/{METADATA_FOLDER} {OLD_KRAFT}")
    return True


def _voter(node: Node, folders: Folders) -> Voter:
    directory = folders.properties[node.metadata_dir].directory_id
    assert directory is not None, "checked when it was read"
    return Voter(node.id, directory, node.layout.controller_endpoints)


def to_kraft(disk: Disk, nodes: Mapping[int, Node], planned: ToKraft, now_ms: int, tell: Step) -> None:
    """All voters get the metadata before any node is marked: those that are marked could begin without the others."""
    contents = planned.contents
    voter_ids = {voter.id for voter in planned.voters}
    for node in planned.to_write:
        write_note(disk, node, contents.position)
        if node.id in voter_ids:
            kraft_folders.write_voter(disk, node, contents.image, contents.position, planned.voters, now_ms)
            tell(f"node {node.id}: has the metadata, {_amount(contents)}")
        else:
            kraft_folders.remove_metadata(disk, node)
    folders = read_folders(disk, planned.to_mark)
    for node in planned.to_mark:
        mark_folders(disk, nodes[node.id], folders[node.id], KRAFT_MODE)
        tell(f"node {node.id}: its folders are marked for KRaft")


# --- both -------------------------------------------------------------------------------------------------------------


def _unmarked(folders: Folders, mode: int) -> bool:
    return any(known.version != mode for known in folders.properties.values())


def _refuse_users(found: Found) -> None:
    if found.users:
        raise QuorumError(
            f"a cluster uses this ZooKeeper: {', '.join(found.users)} {'is' if len(found.users) == 1 else 'are'} there;"
            " stop all of its nodes first (after kill -9 these znodes stay until the session ends)"
        )


def _amount(contents: Contents) -> str:
    topics, partitions = len(contents.image.topics), contents.partitions
    return f"{topics} topic{'s' * (topics != 1)}, {partitions} partition{'s' * (partitions != 1)}"
