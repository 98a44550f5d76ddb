"""From znodes to metadata: which nodes to read, and the image that they make.

`wanted` names what to read next as far as that is known from what was read; asked until it names nothing, it has led
through the whole tree in a few rounds, each of which can be read at once.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from headrace.metadata.delta import Delta, ReplayError
from headrace.metadata.image import METADATA_VERSION, TOPIC_CONFIG, Image
from headrace.metadata.records import Record
from headrace.metadata.snapshot import (
    broker_record,
    config_record,
    controller_record,
    partition_record,
)
from headrace.protocol import messages as m
from headrace.quorum import QuorumError
from headrace.quorum.zookeeper import paths, znodes
from headrace.quorum.zookeeper.znodes import Assignment, Head

LISTED = (
    paths.TOPICS, paths.UNFINISHED, *paths.CONFIGS.values(), paths.BROKERS, paths.CONTROLLERS, paths.QUOTAS,
    paths.ACLS, paths.SCRAM, paths.TOKENS,
)  # fmt: skip
"""Nodes of whose children each one counts.

Topics before the marks of those that are unfinished. Listed after it, a topic that is just being made would have no
mark yet, and be taken for one that is whole.
"""


class Node(NamedTuple):
    data: bytes
    version: int


class Tree(NamedTuple):
    """What was read: nodes by path, None where there is none, and children by path."""

    nodes: dict[str, Node | None]
    children: dict[str, list[str]]


class Unfinished(NamedTuple):
    """What a controller has left behind that is no part of the metadata: topics half made or half deleted, and
    partitions that their topic does not name."""

    topics: list[str]
    partitions: list[tuple[str, int]]


def lists_wanted(tree: Tree, *, thorough: bool) -> list[str]:
    """Nodes whose children to read next. `thorough`: also what only `unfinished` looks at."""
    first = [path for path in LISTED if path not in tree.children]
    topics = [paths.partitions(name) for name in topic_names(tree)] if thorough else []
    return first + [path for path in topics if path not in tree.children]


def nodes_wanted(tree: Tree) -> list[str]:
    """Nodes whose data to read next."""
    found = [paths.LEVELS, paths.FEATURE, paths.PRODUCER_IDS]
    for parent in LISTED:
        if parent not in (paths.TOPICS, paths.UNFINISHED):
            found += [f"{parent}/{name}" for name in tree.children.get(parent, ())]
    for name in topic_names(tree):
        found.append(paths.topic(name))
        if (node := tree.nodes.get(paths.topic(name))) is not None:
            found += [paths.state(name, n) for n in znodes.decode_topic(paths.topic(name), node.data).replicas]
    return [path for path in found if path not in tree.nodes]


def topic_names(tree: Tree) -> list[str]:
    marked = set(tree.children.get(paths.UNFINISHED, ()))
    return sorted(name for name in tree.children.get(paths.TOPICS, ()) if name not in marked)


def unfinished(tree: Tree) -> Unfinished:
    partitions = []
    for name in topic_names(tree):
        node = tree.nodes.get(paths.topic(name))
        known = znodes.decode_topic(paths.topic(name), node.data).replicas if node is not None else {}
        children = tree.children.get(paths.partitions(name), ())
        partitions += [(name, int(child)) for child in children if child.isdecimal() and int(child) not in known]
    return Unfinished(sorted(tree.children.get(paths.UNFINISHED, ())), partitions)


def bare_configs(tree: Tree, image: Image) -> frozenset[str]:
    """Znodes of options that hold none, and so are no part of the metadata: Kafka makes one for each topic."""
    leaving = {paths.config(TOPIC_CONFIG, name) for name in tree.children.get(paths.UNFINISHED, ())}
    found = frozenset(
        f"{parent}/{name}"
        for kind, parent in paths.CONFIGS.items()
        for name in tree.children.get(parent, ())
        if (kind, paths.config_name(name)) not in image.configs
    )
    return found - leaving


def image_of(tree: Tree, head: Head) -> Image:
    """Raises QuorumError where znodes are missing or damaged."""
    delta = Delta(Image())
    try:
        delta.replay_all(_records(tree, _levels(tree, head)))
    except ReplayError as error:
        raise QuorumError(f"the znodes in ZooKeeper contradict each other: {error}") from None
    return delta.apply(head.offset, head.epoch, head.timestamp_ms)


def _levels(tree: Tree, head: Head) -> dict[str, int]:
    """Of features. Headrace once kept them in `/feature`, and a cluster of that time has none elsewhere. Before its
    first change (offset -1), what stands there is Kafka's."""
    for path in (paths.LEVELS, paths.FEATURE) if head.offset >= 0 else (paths.LEVELS,):
        node = tree.nodes.get(path)
        if node is not None and node.data:
            return znodes.decode_features(path, node.data)
    return {}


def _records(tree: Tree, levels: Mapping[str, int]) -> Iterator[Record]:
    for name, level in levels.items():
        yield m.FeatureLevelRecord(name=name, feature_level=level), 0
    version = levels.get(METADATA_VERSION, Image().metadata_version)
    for path, name, data in _children(tree, paths.BROKERS):
        if name.isdecimal():
            yield broker_record(znodes.decode_broker(path, int(name), data), version)
    for path, name, data in _children(tree, paths.CONTROLLERS):
        if name.isdecimal():
            yield controller_record(znodes.decode_controller_registration(path, int(name), data))
    yield from _topics(tree, version)
    names = set(topic_names(tree))
    for kind, parent in paths.CONFIGS.items():
        for path, segment, data in _children(tree, parent):
            resource = paths.config_name(segment)
            if kind == TOPIC_CONFIG and resource not in names:
                continue  # goes with what is left of its topic
            for name, value in znodes.decode_config(path, data).items():
                yield config_record(kind, resource, name, value)
    yield from _security(tree)
    block = tree.nodes.get(paths.PRODUCER_IDS)
    next_id = znodes.decode_producer_ids(paths.PRODUCER_IDS, block.data) if block is not None else -1
    if next_id >= 0:
        yield m.ProducerIdsRecord(broker_id=-1, broker_epoch=-1, next_producer_id=next_id), 0


def _topics(tree: Tree, metadata_version: int) -> Iterator[Record]:
    for name in topic_names(tree):
        path = paths.topic(name)
        assignment = znodes.decode_topic(path, _data(tree, path).data)
        yield m.TopicRecord(name=name, topic_id=assignment.topic_id), 0
        yield from _partitions(tree, name, assignment, metadata_version)


def _partitions(tree: Tree, name: str, assignment: Assignment, metadata_version: int) -> Iterator[Record]:
    for number in sorted(assignment.replicas):
        path = paths.state(name, number)
        node = _data(tree, path)
        partition = znodes.decode_state(path, node.data, node.version, number, assignment)
        yield partition_record(partition, assignment.topic_id, number, metadata_version)


def _security(tree: Tree) -> Iterator[Record]:
    for path, _, data in _children(tree, paths.QUOTAS):
        limited, quotas = znodes.decode_quotas(path, data)
        entity = [m.ClientQuotaRecord.EntityData(entity_type=kind, entity_name=name) for kind, name in limited]
        for key, value in quotas.items():
            yield m.ClientQuotaRecord(entity=entity, key=key, value=value, remove=False), 0
    for parent in (paths.ACLS, paths.SCRAM, paths.TOKENS):
        for path, _, data in _children(tree, parent):
            yield znodes.decode_kept_record(path, data)


def _children(tree: Tree, parent: str) -> Iterable[tuple[str, str, bytes]]:
    for name in sorted(tree.children.get(parent, ())):
        path = f"{parent}/{name}"
        yield path, name, _data(tree, path).data


def _data(tree: Tree, path: str) -> Node:
    node = tree.nodes.get(path)
    if node is None:
        raise QuorumError(f"{path} is missing in ZooKeeper")
    return node
