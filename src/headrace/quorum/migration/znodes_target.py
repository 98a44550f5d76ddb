"""Metadata in ZooKeeper as the other end of a move: whether anything is there, who uses it, and writing all of it.

`/headrace/migration` says that a copy was begun, and of what; a node does not start upon one that is not finished.
"""

import asyncio
from typing import NamedTuple

from msgspec.structs import replace

from headrace.metadata.delta import Delta
from headrace.metadata.image import EMPTY, Image
from headrace.metadata.records import Record
from headrace.metadata.snapshot import image_records
from headrace.protocol import messages as m
from headrace.quorum import QuorumError
from headrace.quorum.migration.nodes import Position
from headrace.quorum.zookeeper import paths, znodes
from headrace.quorum.zookeeper.client import Session
from headrace.quorum.zookeeper.operations import Create, Delete, Operation, Set, in_multis
from headrace.quorum.zookeeper.snapshot import read_all
from headrace.quorum.zookeeper.writing import plan
from headrace.quorum.zookeeper.znodes import Copy, Head

MULTIS_AT_ONCE = 20
SAME_MULTI = 1 << 62

TREES = (
    paths.TOPICS, *paths.CONFIGS.values(), "/config/changes", paths.DELETE_TOPICS, paths.BROKERS, paths.CONTROLLERS,
    paths.CHANGES, paths.UNFINISHED, paths.QUOTAS, paths.ACLS, paths.SCRAM, paths.TOKENS,
)  # fmt: skip
"""What is below these, and the nodes named next, is all that a cluster leaves behind."""
SINGLE = (paths.METADATA, paths.CLUSTER_ID, paths.FEATURE, paths.PRODUCER_IDS, paths.CONTROLLER_EPOCH)


class Found(NamedTuple):
    """What stands in ZooKeeper."""

    cluster_id: str | None
    topics: int
    number: int
    """Changes that were made here, -1 where there never was any metadata."""
    copy: Copy | None
    users: list[str]
    """Ephemeral znodes of nodes that run."""

    @property
    def is_empty(self) -> bool:
        return self.cluster_id is None and not self.topics and self.number < 0 and self.copy is None


async def look(session: Session) -> Found:
    cluster = await session.get(paths.CLUSTER_ID)
    topics = await session.children(paths.TOPICS)
    head = await session.get(paths.METADATA)
    copy = await session.get(paths.MIGRATION)
    members = await session.children(paths.BROKER_IDS) or []
    users = [paths.broker_id(int(name)) for name in members if name.isdecimal()]
    if await session.get(paths.CONTROLLER) is not None:
        users.append(paths.CONTROLLER)
    return Found(
        znodes.decode_cluster_id(paths.CLUSTER_ID, cluster[0]) if cluster is not None else None,
        len(topics or ()),
        head[1].version if head is not None else -1,
        znodes.decode_copy(paths.MIGRATION, copy[0]) if copy is not None else None,
        users,
    )


async def read(session: Session) -> tuple[Image, Position]:
    """Raises QuorumError."""
    found = await read_all(session, thorough=True)
    epoch = await session.get(paths.CONTROLLER_EPOCH)
    if epoch is None:
        raise QuorumError(f"{paths.CONTROLLER_EPOCH} is missing in ZooKeeper")
    return found.image, Position(znodes.decode_controller_epoch(paths.CONTROLLER_EPOCH, epoch[0]), found.image.offset)


# --- writing ----------------------------------------------------------------------------------------------------------


async def write(session: Session, cluster_id: str, image: Image, position: Position, epoch: int) -> None:
    """All of `image`, in the place of what an earlier attempt has left. `epoch` is the last controller's.

    1. The mark says that a copy is being made: from here on nothing starts upon it.
    2. What is there is removed, and everything written.
    3. It is read back and compared.
    4. One multi names the cluster and says that the copy is whole.

    Whoever dies in between is begun again with 1.
    """
    records = plain_records(image)
    delta = Delta(EMPTY).replay_all(records)
    image = delta.apply(position.offset, image.epoch, image.timestamp_ms)
    begun = znodes.encode_copy(Copy(cluster_id, position.epoch, position.offset, whole=False))
    await _put(session, paths.MIGRATION, begun)
    await _clear(session)
    head = Head(position.offset, image.epoch, image.timestamp_ms)
    for path, data in (
        (paths.FEATURE, znodes.encode_features({})),
        (paths.PRODUCER_IDS, b""),
        (paths.CONTROLLER_EPOCH, str(epoch).encode()),
        (paths.METADATA, znodes.encode_head(head)),
    ):
        await _put(session, path, data)
    await _do(session, plan(delta, image, records, epoch, SAME_MULTI).commit)
    written = (await read_all(session, thorough=True)).image
    if not written.same_content(image):
        raise QuorumError("what was written to ZooKeeper does not read back as the same metadata: nothing was moved")
    done = znodes.encode_copy(Copy(cluster_id, position.epoch, position.offset, whole=True))
    await session.multi([Create(paths.CLUSTER_ID, znodes.encode_cluster_id(cluster_id)), Set(paths.MIGRATION, done)])


def plain_records(image: Image) -> list[Record]:
    """Without what only a log can say: how far a move from ZooKeeper by Kafka itself had come."""
    found: list[Record] = []
    for record, version in image_records(image):
        if isinstance(record, m.RegisterControllerRecord):
            record = replace(record, zk_migration_ready=False)
        elif isinstance(record, m.RegisterBrokerRecord):
            record = replace(record, is_migrating_zk_broker=False)
        if not isinstance(record, m.ZkMigrationStateRecord):
            found.append((record, version))
    return found


async def _put(session: Session, path: str, data: bytes) -> None:
    exists = await session.get(path) is not None
    await session.multi([Set(path, data) if exists else Create(path, data)])


async def _clear(session: Session) -> None:
    doomed: list[Operation] = []
    for root in TREES:
        below = await _below(session, root)
        doomed += [Delete(path) for path in below]
    for path in SINGLE:
        if await session.get(path) is not None:
            doomed.append(Delete(path))
    await _do(session, doomed)


async def _below(session: Session, root: str) -> list[str]:
    """Everything under a node, children before their parents."""
    level, found = [root], []
    while level:
        lists = await asyncio.gather(*map(session.children, level))
        level = [f"{parent}/{name}" for parent, names in zip(level, lists) for name in names or ()]
        found += level
    return found[::-1]


async def _do(session: Session, operations: list[Operation]) -> None:
    multis = list(in_multis(operations))
    for start in range(0, len(multis), MULTIS_AT_ONCE):
        await asyncio.gather(*map(session.multi, multis[start : start + MULTIS_AT_ONCE]))
