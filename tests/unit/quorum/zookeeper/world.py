"""Znodes in memory, and quorums upon them."""

import asyncio
from random import Random

from headrace.metadata.delta import Delta
from headrace.metadata.image import Image
from headrace.metadata.records import Record
from headrace.protocol import messages as m
from headrace.quorum.zookeeper import paths, znodes
from headrace.quorum.zookeeper.operations import Operation
from headrace.quorum.zookeeper.reading import Node, Tree, image_of, lists_wanted, nodes_wanted
from headrace.quorum.zookeeper.writing import Plan, plan
from headrace.quorum.zookeeper.znodes import Head
from headrace.testing.simulator.zookeeper import ZooKeeperModel

EPOCH = 7
TOPIC = bytes(range(16))
LEVEL: Record = (m.FeatureLevelRecord(name="metadata.version", feature_level=30), 0)


def topic(name: str, topic_id: bytes, partitions: int) -> list[Record]:
    return [(m.TopicRecord(name=name, topic_id=topic_id), 0), *(partition(topic_id, n) for n in range(partitions))]


def partition(topic_id: bytes, number: int) -> Record:
    return (
        m.PartitionRecord(
            topic_id=topic_id, partition_id=number, replicas=[1, 2], isr=[1, 2], leader=1, leader_epoch=0,
            partition_epoch=0, directories=[b"\0" * 15 + b"\x01"] * 2,
        ),
        2,
    )  # fmt: skip


def new_model(seed: int = 0, loop: asyncio.AbstractEventLoop | None = None) -> ZooKeeperModel:
    """As a first node leaves it before anything is written."""
    model = ZooKeeperModel(loop or asyncio.new_event_loop(), Random(seed))
    for path in paths.PERSISTENT:
        model.ensure(path)
    model.ensure(paths.CONTROLLER_EPOCH, b"0")
    model.ensure(paths.FEATURE, znodes.encode_features({}))
    model.ensure(paths.METADATA, znodes.encode_head(Head(-1, 0, 0)))
    return model


def read_tree(model: ZooKeeperModel, *, thorough: bool = True) -> Tree:
    tree = Tree({}, {})
    while True:
        lists, nodes = lists_wanted(tree, thorough=thorough), nodes_wanted(tree)
        if not lists and not nodes:
            return tree
        for path in lists:
            tree.children[path] = model.children(path)
        for path in nodes:
            found = model.nodes.get(path)
            tree.nodes[path] = Node(found.data, found.stat.version) if found is not None else None


def read_image(model: ZooKeeperModel) -> Image:
    return image_of(read_tree(model), Head(0, 0, 0))


def planned(image: Image, records: list[Record], bytes_max: int) -> tuple[Plan, Image]:
    delta = Delta(image).replay_all(records)
    after = delta.apply(image.offset + len(records), EPOCH, 0)
    return plan(delta, after, records, EPOCH, bytes_max), after


def multis(made: Plan) -> list[list[Operation]]:
    return [*made.before, made.commit, *made.after]


def write(model: ZooKeeperModel, image: Image, records: list[Record], bytes_max: int = 1 << 30) -> Image:
    made, after = planned(image, records, bytes_max)
    for multi in multis(made):
        model.multi(0, multi)
    return after
