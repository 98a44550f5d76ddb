"""Assignors against Kafka's own decisions (golden/generate/Assignors.java) and against what they promise."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

from hypothesis import given, settings, strategies as st

from headrace.coordinator.assignors import ASSIGNORS, Assignment, MemberSpec

GOLDEN: list[dict[str, Any]] = json.loads(
    Path(__file__).with_name("golden").joinpath("assignors-kafka-4.3.1.json").read_text("utf-8")
)
FIRST_TOPIC = 3


def topic_id(number: int) -> bytes:
    return (number + FIRST_TOPIC).to_bytes(16, "big")


def assignment(shown: dict[str, list[int]]) -> Assignment:
    return {topic_id(int(t)): tuple(partitions) for t, partitions in shown.items()}


def test_decides_exactly_as_kafka() -> None:
    assert len(GOLDEN) > 300
    assert {(c["assignor"], c["homogeneous"]) for c in GOLDEN} == {
        (name, same) for name in ASSIGNORS for same in (True, False)
    }
    for number, case in enumerate(GOLDEN):
        members = {
            member_id: MemberSpec([topic_id(t) for t in spec["topics"]], assignment(spec["old"]), spec["instance"])
            for member_id, spec in case["members"].items()
        }
        counts = {topic_id(t): count for t, count in enumerate(case["counts"])}
        target = ASSIGNORS[case["assignor"]](members, counts, case["homogeneous"])
        expected = {member_id: assignment(shown) for member_id, shown in case["target"].items()}
        assert {m: dict(target.get(m, {})) for m in members} == expected, f"case {number}"


member_ids = st.integers(0, 40).map("m{:02}".format)
topic_sets = st.sets(st.integers(0, 4), min_size=1).map(lambda ts: frozenset(topic_id(t) for t in ts))
partition_counts = st.lists(st.integers(1, 12), min_size=5, max_size=5).map(
    lambda counts: {topic_id(t): c for t, c in enumerate(counts)}
)


def check_valid(target: dict[str, Assignment], members: dict[str, MemberSpec], counts: dict[bytes, int]) -> None:
    """Every partition of a subscribed topic has exactly one owner, and that owner subscribes to it."""
    owned = Counter((t, p) for a in target.values() for t, partitions in a.items() for p in partitions)
    subscribed = {t for spec in members.values() for t in spec.topic_ids}
    assert owned == Counter({(t, p): 1 for t in subscribed for p in range(counts[t])})
    for member_id, given_partitions in target.items():
        assert set(given_partitions) <= set(members[member_id].topic_ids)
        assert all(list(p) == sorted(p) and p for p in given_partitions.values())


def size(assigned: Assignment) -> int:
    return sum(map(len, assigned.values()))


def moved(before: dict[str, Assignment], after: dict[str, Assignment]) -> int:
    """Partitions that a member that is still there had to give up."""
    return sum(
        len(set(partitions) - set(after[m].get(t, ())))
        for m, had in before.items()
        if m in after
        for t, partitions in had.items()
    )


@settings(max_examples=150, deadline=None)
@given(st.data(), st.sampled_from(sorted(ASSIGNORS)), st.booleans(), partition_counts)
def test_always_valid_whatever_changes(data: Any, name: str, same_topics: bool, counts: dict[bytes, int]) -> None:
    target: dict[str, Assignment] = {}
    for _ in range(4):
        ids = data.draw(st.sets(member_ids, min_size=1, max_size=9))
        common = data.draw(topic_sets)
        members = {
            m: MemberSpec(common if same_topics else data.draw(topic_sets), target.get(m, {})) for m in sorted(ids)
        }
        homogeneous = len({spec.topic_ids for spec in members.values()}) == 1
        target = ASSIGNORS[name](members, counts, homogeneous)
        check_valid(target, members, counts)
        backwards = dict(reversed(list(members.items())))
        assert ASSIGNORS[name](backwards, counts, homogeneous) == target, "the order of members decides nothing"
        counts = {t: c + data.draw(st.integers(0, 2)) for t, c in counts.items()}


@settings(max_examples=150, deadline=None)
@given(st.lists(st.sets(member_ids, min_size=1), min_size=2, max_size=5), topic_sets, partition_counts)
def test_uniform_is_balanced_and_sticky(
    groups: list[set[str]], topics: frozenset[bytes], counts: dict[bytes, int]
) -> None:
    target: dict[str, Assignment] = {}
    for ids in groups:
        members = {m: MemberSpec(topics, target.get(m, {})) for m in ids}
        before = {m: spec.assignment for m, spec in members.items()}
        target = ASSIGNORS["uniform"](members, counts, True)
        check_valid(target, members, counts)
        sizes = [size(a) for a in target.values()]
        assert max(sizes) - min(sizes) <= 1
        least, one_more = divmod(sum(sizes), len(sizes))
        excess = sorted((size(a) for a in before.values()), reverse=True)
        must_move = sum(max(0, have - least - (place < one_more)) for place, have in enumerate(excess))
        # Members come by name, not by what they have, so each member that may keep one more can cost one move.
        assert moved(before, target) <= must_move + one_more
    again = {m: MemberSpec(topics, a) for m, a in target.items()}
    assert ASSIGNORS["uniform"](again, counts, True) == target, "nothing changed, nothing moves"


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(member_ids, topic_sets, min_size=1, max_size=9), partition_counts)
def test_mixed_subscriptions_settle(subscriptions: dict[str, frozenset[bytes]], counts: dict[bytes, int]) -> None:
    members = {m: MemberSpec(topics) for m, topics in subscriptions.items()}
    target = ASSIGNORS["uniform"](members, counts, False)
    for topic in {t for topics in subscriptions.values() for t in topics}:
        loads = [size(target[m]) for m, topics in subscriptions.items() if topic in topics]
        owners = [size(target[m]) for m in target if topic in target[m]]
        assert max(owners) - min(loads) <= 1, "no subscriber waits while an owner has two more"
    again = {m: MemberSpec(subscriptions[m], target[m]) for m in members}
    assert ASSIGNORS["uniform"](again, counts, False) == target


def test_range_gives_equal_topics_alike() -> None:
    both = [topic_id(0), topic_id(1)]
    target = ASSIGNORS["range"]({m: MemberSpec(both) for m in "abc"}, dict.fromkeys(both, 7), True)
    assert target == {
        "a": dict.fromkeys(both, (0, 1, 2)),
        "b": dict.fromkeys(both, (3, 4)),
        "c": dict.fromkeys(both, (5, 6)),
    }


def test_range_keeps_static_members_where_they_were() -> None:
    topics = [topic_id(0)]
    first = {
        "z": MemberSpec(topics, instance_id="one"),
        "y": MemberSpec(topics, instance_id="two"),
        "a": MemberSpec(topics),
    }
    restarted = {
        "b": MemberSpec(topics, instance_id="one"),
        "c": MemberSpec(topics, instance_id="two"),
        "a": MemberSpec(topics),
    }
    before = ASSIGNORS["range"](first, {topics[0]: 5}, True)
    after = ASSIGNORS["range"](restarted, {topics[0]: 5}, True)
    assert (before["z"], before["y"], before["a"]) == (after["b"], after["c"], after["a"])


def test_a_large_group_is_cheap() -> None:
    """5,000 members and 20,000 partitions: the work grows with their number, not with its square."""
    topics = [topic_id(t) for t in range(20)]
    counts = dict.fromkeys(topics, 1000)
    everyone = {f"member-{n:05}": MemberSpec(topics) for n in range(5000)}
    target = ASSIGNORS["uniform"](everyone, counts, True)
    assert {size(a) for a in target.values()} == {4}
    stays = {m: MemberSpec(topics, target[m]) for m in list(everyone)[1:]}
    after = ASSIGNORS["uniform"](stays, counts, True)
    assert moved({m: target[m] for m in stays}, after) == 0
