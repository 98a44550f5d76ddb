"""Metadata in znodes is the metadata: whatever is written is read back, whole or not at all."""

import json

import pytest
from hypothesis import given, settings

from headrace.metadata.image import EMPTY, Image
from headrace.metadata.records import Record
from headrace.protocol import messages as m
from headrace.quorum import QuorumError
from headrace.quorum.zookeeper import paths, znodes
from headrace.quorum.zookeeper.operations import Check, Create, Set, in_multis, size_of
from headrace.quorum.zookeeper.reading import image_of, unfinished
from headrace.quorum.zookeeper.znodes import Head
from tests.unit.metadata.history import histories
from tests.unit.quorum.zookeeper.world import (
    LEVEL,
    TOPIC,
    multis,
    new_model,
    partition,
    planned,
    read_image,
    read_tree,
    topic,
    write,
)


def new_partitions(records: list[Record]) -> list[Record]:
    """Of a random history: a controller never writes a partition that is there anew, and begins with epoch 0."""
    seen: set[tuple[bytes, int]] = set()
    found: list[Record] = []
    for record, version in records:
        if isinstance(record, m.PartitionRecord):
            if (record.topic_id, record.partition_id) in seen:
                continue
            seen.add((record.topic_id, record.partition_id))
            record.partition_epoch = 0
        found.append((record, version))
    return found


@settings(max_examples=60, deadline=None)
@given(histories(40))
def test_what_is_written_is_read_back(history: list[Record]) -> None:
    model, image = new_model(), EMPTY
    for record in new_partitions(history):
        image = write(model, image, [record])
    assert read_image(model).same_content(image)


@settings(max_examples=30, deadline=None)
@given(histories(30))
def test_one_batch_is_as_good_as_many(history: list[Record]) -> None:
    model = new_model()
    image = write(model, EMPTY, new_partitions(history))
    assert read_image(model).same_content(image)


def test_znodes_are_kafkas() -> None:
    model = new_model()
    config = m.ConfigRecord(resource_type=2, resource_name="orders", name="retention.ms", value="1000")
    ids = m.ProducerIdsRecord(broker_id=1, broker_epoch=5, next_producer_id=2000)
    image = write(model, EMPTY, [LEVEL, *topic("orders", TOPIC, 1), (config, 0), (ids, 0)])
    change = m.PartitionChangeRecord(topic_id=TOPIC, partition_id=0, isr=[2], leader=2, adding_replicas=[3])
    write(model, image, [(change, 2)])

    def node(path: str) -> object:
        return json.loads(model.nodes[path].data)

    assert node("/brokers/topics/orders") == {
        "version": 3, "topic_id": "AAECAwQFBgcICQoLDA0ODw", "partitions": {"0": [1, 2]},
        "adding_replicas": {"0": [3]}, "removing_replicas": {},
    }  # fmt: skip
    state = "/brokers/topics/orders/partitions/0/state"
    assert node(state) == {"controller_epoch": 7, "leader": 2, "version": 1, "leader_epoch": 1, "isr": [2]}
    assert model.nodes[state].stat.version == 1, "the partition epoch"
    assert node("/config/topics/orders") == {"version": 1, "config": {"retention.ms": "1000"}}
    assert node("/feature") == {"version": 2, "status": 1, "features": {}}
    levels = {"version": 2, "status": 1, "features": {"metadata.version": {"max_version_level": 30}}}
    assert node("/headrace/features") == levels
    assert node("/latest_producer_id_block") == {
        "version": 1, "broker": 1, "block_start": "1000", "block_end": "1999",
    }  # fmt: skip


def test_each_write_of_a_state_expects_the_version_before_it() -> None:
    image = write(new_model(), EMPTY, [LEVEL, *topic("t", TOPIC, 1)])
    change = m.PartitionChangeRecord(topic_id=TOPIC, partition_id=0, isr=[1])
    made, _ = planned(image, [(change, 2), (change, 2)], 1 << 30)
    assert [(op.path, op.version) for op in made.commit if isinstance(op, Set)] == [
        ("/brokers/topics/t/partitions/0/state", 0),
        ("/brokers/topics/t/partitions/0/state", 1),
    ]


def test_a_large_change_shows_whole_or_not_at_all() -> None:
    """Wherever its controller dies."""
    start = [LEVEL, *topic("old", bytes(15) + b"\x09", 30), *topic("grown", bytes(15) + b"\x08", 2)]
    grown = [partition(bytes(15) + b"\x08", n) for n in range(2, 30)]
    for records in (
        topic("new", TOPIC, 40),
        [(m.RemoveTopicRecord(topic_id=bytes(15) + b"\x09"), 0)],
        grown,
        [*topic("new", TOPIC, 40), *grown],
    ):
        model = new_model()
        before = write(model, EMPTY, start)
        made, after = planned(before, records, 2_000)
        assert len(multis(made)) > 3
        committed = False
        for multi in multis(made):
            assert read_image(model).same_content(after if committed else before)
            model.multi(0, multi)
            committed = committed or multi is made.commit
        assert read_image(model).same_content(after)
        left = unfinished(read_tree(model))
        assert left.topics == [] and left.partitions == []


def test_what_a_dead_controller_left_half_done_is_found() -> None:
    model = new_model()
    before = write(model, EMPTY, [LEVEL, *topic("grown", bytes(15) + b"\x08", 2)])
    for multi in planned(before, topic("new", TOPIC, 40), 2_000)[0].before:
        model.multi(0, multi)
    for multi in planned(before, [partition(bytes(15) + b"\x08", n) for n in range(2, 30)], 2_000)[0].before[:1]:
        model.multi(0, multi)
    left = unfinished(read_tree(model))
    assert left.topics == ["new"]
    assert left.partitions[0] == ("grown", 2)


def test_a_missing_or_damaged_znode_is_named() -> None:
    model = new_model()
    write(model, EMPTY, [LEVEL, *topic("t", TOPIC, 1)])
    path = paths.state("t", 0)
    whole = model.nodes.pop(path)
    with pytest.raises(QuorumError, match=f"{path} is missing"):
        read_image(model)
    model.nodes[path] = whole._replace(data=b"?")
    with pytest.raises(QuorumError, match="is not what Kafka writes there"):
        read_image(model)


def test_multis_stay_below_their_limit() -> None:
    operations = [Create(f"/a/{n}", b"x" * 100) for n in range(50)]
    made = list(in_multis(operations, 1_000))
    assert [op for multi in made for op in multi] == operations
    assert all(sum(map(size_of, multi)) <= 1_000 for multi in made)
    assert size_of(Check("/a", 1)) > len("/a")


def test_features_of_version_1_are_understood() -> None:
    data = b'{"version":1,"status":1,"features":{"f":{"min_version_level":1,"max_version_level":3}}}'
    assert znodes.decode_features("/feature", data) == {"f": 3}


def test_an_image_of_nothing() -> None:
    assert read_image(new_model()).same_content(Image())


def test_levels_where_they_once_stood_are_read_until_they_are_written_elsewhere() -> None:
    model = new_model()
    model.multi(0, [Set(paths.FEATURE, znodes.encode_features({"metadata.version": 29, "group.version": 1}))])
    assert dict(image_of(read_tree(model), Head(-1, 0, 0)).features) == {}, "Kafka's, before the first change"
    image = read_image(model)
    assert dict(image.features) == {"metadata.version": 29, "group.version": 1}
    write(model, image, [LEVEL])
    assert dict(read_image(model).features) == {"metadata.version": 30, "group.version": 1}
