"""The persistent map against a dict, and that a change does not copy the whole."""

from typing import Any

from hypothesis import given, strategies as st

from headrace.metadata.persistent import PersistentMap, spread

ORDER = ["topic-6", "topic-18", "topic-30", "topic-51"]

KEYS = st.one_of(
    st.integers(0, 2000),
    st.text(max_size=4),
    st.binary(min_size=16, max_size=16),
    st.tuples(st.binary(min_size=16, max_size=16), st.integers(0, 9)),
)


@given(st.lists(st.tuples(st.dictionaries(KEYS, st.integers(), max_size=80), st.sets(KEYS, max_size=20)), max_size=8))
def test_same_as_a_dict(steps: list[tuple[dict[Any, int], set[Any]]]) -> None:
    model: dict[Any, int] = {}
    found: PersistentMap[Any, int] = PersistentMap()
    versions = []
    for changed, removed in steps:
        versions.append((found, dict(model)))
        for key in removed:
            model.pop(key, None)
        model.update(changed)
        found = found.update(changed, removed)
        assert found == model
        assert len(found) == len(model)
        assert all(key in found and found[key] == value for key, value in model.items())
    for old, then in versions:
        assert old == then, "an older version has changed"


def test_a_change_shares_all_but_a_little() -> None:
    big = PersistentMap({n: n for n in range(100_000)})
    changed = big.update({5: -5})
    fresh = [s for s, t in zip(big._shards, changed._shards) if s is not t]
    assert len(fresh) == 1
    assert len(fresh[0]) < 600
    assert len(big._shards) < 600


def test_growing_and_shrinking_rebuilds_rarely() -> None:
    """Around a limit in size, single changes must not rebuild the map each time."""
    m = PersistentMap({n: n for n in range(512)})
    for _ in range(3):
        m = m.update({10_000: 1})
        shards = len(m._shards)
        m = m.update({}, [10_000])
        assert len(m._shards) == shards


def test_what_has_lost_its_last_keys_is_as_small_as_a_new_one() -> None:
    """Keys go many at a time: with the last of them, and not with a change that may never come."""
    m = PersistentMap({n: n for n in range(10_000)})
    for start in range(0, 10_000, 50):
        m = m.update({}, range(start, start + 50))
    assert not m
    assert len(m._shards) == 1


def test_order_does_not_depend_on_the_process() -> None:
    """`hash()` is salted; a simulated run must see the same order in every process."""
    keys = [f"topic-{n}" for n in range(200)]
    assert list(PersistentMap(dict.fromkeys(keys)))[:4] == ORDER


@given(st.binary(max_size=16), st.integers(0, 1 << 31))
def test_partitions_are_spread_as_any_pair(topic_id: bytes, number: int) -> None:
    mixed = 17
    for part in (topic_id, number):
        mixed = (mixed * 31 + spread(part)) & 0xFFFFFFFFFFFF
    assert spread((topic_id, number)) == mixed ^ (mixed >> 20)
