"""Reads all znodes that hold metadata, or the changes since some are known."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import NamedTuple, TypeVar

from headrace.metadata.image import TOPIC_CONFIG, Image
from headrace.quorum import QuorumError
from headrace.quorum.snapshots import Batch, decode_batches
from headrace.quorum.zookeeper import paths, reading, znodes
from headrace.quorum.zookeeper.client import Session
from headrace.quorum.zookeeper.operations import Delete, Operation, in_multis
from headrace.quorum.zookeeper.reading import Node, Tree, Unfinished

T = TypeVar("T")

READS_AT_ONCE = 500
ATTEMPTS = 20
PAUSE_S = 0.02


class Snapshot(NamedTuple):
    image: Image
    number: int
    """How many changes it has: the version of `/headrace/metadata`."""
    unfinished: Unfinished
    bare_configs: frozenset[str]


async def read_all(session: Session, *, thorough: bool) -> Snapshot:
    """Metadata as it stands. While others write, what is read at different times may not fit together: every change
    counts in `/headrace/metadata`, and a reading during which it moved is made again."""
    problem = QuorumError("metadata changes faster than it can be read")
    for attempt in range(ATTEMPTS):
        before = await session.get(paths.METADATA)
        tree = await _read_tree(session, thorough)
        after = await session.get(paths.METADATA)
        if before is None or after is None:
            raise QuorumError(f"{paths.METADATA} is missing in ZooKeeper")
        if before[1] == after[1]:
            head = znodes.decode_head(paths.METADATA, before[0])
            try:
                image = reading.image_of(tree, head)
                bare = reading.bare_configs(tree, image)
                return Snapshot(image, before[1].version, reading.unfinished(tree), bare)
            except QuorumError as error:  # or the last of a deleted topic went meanwhile
                problem = error
        await asyncio.sleep(PAUSE_S * attempt)
    raise problem


async def _read_tree(session: Session, thorough: bool) -> Tree:
    tree = Tree({}, {})
    while True:
        lists, nodes = reading.lists_wanted(tree, thorough=thorough), reading.nodes_wanted(tree)
        if not lists and not nodes:
            return tree
        for path, children in await _all(lists, session.children):
            if children is None and path in reading.LISTED:
                # It is made before anything else. If it were taken for empty, brokers would delete what they have.
                raise QuorumError(f"{path} is missing in ZooKeeper")
            tree.children[path] = children or []
        for path, found in await _all(nodes, session.get):
            tree.nodes[path] = Node(found[0], found[1].version) if found is not None else None


async def _all(paths_wanted: list[str], ask: Callable[[str], Awaitable[T]]) -> list[tuple[str, T]]:
    found: list[tuple[str, T]] = []
    for start in range(0, len(paths_wanted), READS_AT_ONCE):
        some = paths_wanted[start : start + READS_AT_ONCE]
        found += zip(some, await asyncio.gather(*map(ask, some)))
    return found


async def changes_since(session: Session, known: int, number: int) -> list[tuple[int, Batch]] | None:
    """The batches of records by which change `known` becomes `number`; None where not all are kept."""
    numbers = range(known + 1, number + 1)
    found = await asyncio.gather(*(session.get(paths.change(one)) for one in numbers))
    batches = []
    for one, node in zip(numbers, found):
        if node is None or not node[0]:
            return None
        batches += [(one, batch) for batch in decode_batches(node[0], paths.change(one))]
    return batches


async def leftovers(session: Session, found: Snapshot) -> list[list[Operation]]:
    """Multis that remove what a controller has left half done, in order."""
    multis: list[list[Operation]] = []
    orphans: list[Operation] = []
    for name, number in found.unfinished.partitions:
        if await session.get(paths.state(name, number)) is not None:
            orphans.append(Delete(paths.state(name, number)))
        orphans.append(Delete(paths.partition(name, number)))
    multis += in_multis(orphans)
    for name in found.unfinished.topics:
        multis += await _of_topic(session, name)
    return multis


async def _of_topic(session: Session, name: str) -> list[list[Operation]]:
    doomed: list[Operation] = []
    children = await session.children(paths.topic(name))
    if children is not None:
        numbers = await session.children(paths.partitions(name)) or []
        for number in numbers:
            parts = await session.children(f"{paths.partitions(name)}/{number}") or []
            doomed += [Delete(f"{paths.partitions(name)}/{number}/{part}") for part in parts]
            doomed.append(Delete(f"{paths.partitions(name)}/{number}"))
        doomed += [Delete(f"{paths.topic(name)}/{child}") for child in children]
        doomed.append(Delete(paths.topic(name)))
    config = paths.config(TOPIC_CONFIG, name)
    if await session.get(config) is not None:
        doomed.append(Delete(config))
    return list(in_multis([*doomed, Delete(paths.unfinished(name))]))
