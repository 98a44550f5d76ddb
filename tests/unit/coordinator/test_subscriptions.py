"""Subscriptions: Kafka's hashes of topics (golden/generate/Hashes.java), and patterns resolved a slice at a time."""

import json
from pathlib import Path

import msgspec

from headrace.coordinator import subscriptions
from headrace.coordinator.subscriptions import (
    Counts,
    Resolution,
    TopicHashes,
    count,
    is_homogeneous,
    topic_hash,
)
from headrace.metadata.image import Topic
from tests.unit.coordinator.sessions import make_image

GOLDEN = json.loads(Path(__file__).with_name("golden").joinpath("topic-hashes-kafka-4.3.1.json").read_text("utf-8"))


def test_hashes_are_kafkas() -> None:
    topics: dict[str, Topic] = {}
    known: dict[str, tuple[Topic, int]] = {}
    for row in GOLDEN["topics"]:
        image = make_image(1, {row["name"]: (1, row["partitions"])}, tuple(row["racks"]))
        found = image.topic_named(row["name"])
        assert found is not None
        topic = msgspec.structs.replace(found, id=bytes.fromhex(row["id"]))
        assert topic_hash(image, topic) == row["hash"]
        topics[row["name"]] = topic
        known[row["name"]] = (topic, row["hash"])
        hashes = TopicHashes()
        hashes._known = dict(known)
        ids = {t.name: t.id for t in topics.values()}
        image = msgspec.structs.replace(
            image,
            topics=image.topics.update({t.id: t for t in topics.values()}),
            topic_ids=image.topic_ids.update(ids),
        )
        assert hashes.of(image, topics) == row["group"]


def test_topics_that_do_not_exist_do_not_count() -> None:
    image = make_image(1, {"t": (1, 3)})
    hashes = TopicHashes()
    assert hashes.of(image, []) == hashes.of(image, ["nope"]) == 0
    assert hashes.of(image, ["t", "nope"]) == hashes.of(image, ["t"]) != 0


def test_a_hash_follows_its_topic() -> None:
    hashes = TopicHashes()
    before = hashes.of(make_image(1, {"t": (1, 3)}), ["t"])
    assert hashes.of(make_image(2, {"t": (1, 4)}), ["t"]) != before
    assert hashes.of(make_image(3, {"t": (1, 3)}), ["t"]) == before
    assert hashes.of(make_image(4, {"t": (2, 3)}), ["t"]) != before


def test_counts_come_and_go() -> None:
    counts: dict[str, Counts] = {}
    count(counts, ["t", "u"], by_name=1)
    count(counts, ["t"], by_regex=1)
    assert counts == {"t": Counts(1, 1), "u": Counts(1, 0)}
    count(counts, ["t", "u"], by_name=-1)
    assert counts == {"t": Counts(0, 1)}
    count(counts, ["t"], by_regex=-1)
    assert counts == {}


def test_homogeneous_by_the_counts() -> None:
    assert is_homogeneous({}, {}, 3)
    assert is_homogeneous({"t": Counts(3, 0)}, {}, 3)
    assert not is_homogeneous({"t": Counts(3, 0), "u": Counts(2, 0)}, {}, 3)
    assert is_homogeneous({"t": Counts(0, 1)}, {"t.*": 3}, 3)
    assert not is_homogeneous({"t": Counts(1, 1)}, {"t.*": 3}, 3)
    assert not is_homogeneous({"t": Counts(0, 1)}, {"t.*": 2}, 3)


def test_resolution_gives_way_to_others() -> None:
    image = make_image(7, {f"topic-{n}": (n + 1, 1) for n in range(6000)})
    resolution = Resolution(image, ["topic-.*7", "nothing"], 99)
    turns = 0
    while (found := resolution.go_on()) is None:
        turns += 1
    assert turns >= 1
    assert found["topic-.*7"].topics == {f"topic-{n}" for n in range(6000) if n % 10 == 7}
    assert found["nothing"].topics == frozenset()
    assert found["nothing"].version == 7 and found["nothing"].timestamp_ms == 99


def test_a_pattern_that_costs_too_much_matches_nothing() -> None:
    names = {"ab" * 100 + f"{n:03}": (n + 1, 1) for n in range(300)}
    image = make_image(1, names)
    notes: list[str] = []
    hostile = "(a|b)*a(a|b){100}(.|b)*(.|a){90}"
    old = subscriptions.WORK_MAX, subscriptions.WORK_PER_TOPIC_MAX
    try:
        subscriptions.WORK_MAX, subscriptions.WORK_PER_TOPIC_MAX = 50_000, 0
        resolution = Resolution(image, [hostile, ".*7"], 0, notes.append)
        while (found := resolution.go_on()) is None:
            pass
    finally:
        subscriptions.WORK_MAX, subscriptions.WORK_PER_TOPIC_MAX = old
    assert found[hostile].topics == frozenset()
    assert notes and "costs too much" in notes[0]
    assert len(found[".*7"].topics) == 30
