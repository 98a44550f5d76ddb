"""All features of a release at once, as `kafka-features upgrade --release-version` asks; the answers are Apache Kafka
4.3.1's."""

import pytest

from headrace.errors import Err
from headrace.metadata.versions import KNOWN_FEATURES, KRAFT_VERSION, SERVED_FEATURES
from headrace.protocol import messages as m
from tests.unit.metadata.cases import features
from tests.unit.metadata.paper_cluster import Cluster

UPGRADE, SAFE, UNSAFE = 1, 2, 3
RELEASES: dict[str, dict[str, int]] = {
    "3.9-IV0": {"metadata.version": 21, "kraft.version": 1},
    "4.0-IV1": {"metadata.version": 23, "kraft.version": 1, "group.version": 1},
    "4.0-IV3": {"metadata.version": 25, "kraft.version": 1, "group.version": 1, "transaction.version": 2},
    "4.3-IV0": {
        "metadata.version": 30, "kraft.version": 1, "group.version": 1, "transaction.version": 2,
        "eligible.leader.replicas.version": 1, "share.version": 1, "streams.version": 1,
    },
}  # fmt: skip
"""What `kafka-features version-mapping` says, but for zeros."""


def cluster_at(release: str) -> Cluster:
    cluster = Cluster(2)
    for name, level in RELEASES[release].items():
        if name != KRAFT_VERSION:
            cluster.commit([(m.FeatureLevelRecord(name=name, feature_level=level), 0)])
    return cluster


def asked(release: str, kind: int) -> list[tuple[str, int, int]]:
    """Upgrades name no zeros, downgrades do."""
    zeros = {} if kind == UPGRADE else dict.fromkeys(KNOWN_FEATURES, 0)
    return [(name, level, kind) for name, level in {**zeros, **RELEASES[release]}.items()]


def finalized(cluster: Cluster) -> dict[str, int]:
    return {**cluster.image.features, KRAFT_VERSION: 1}


@pytest.mark.parametrize(("old", "new"), [("3.9-IV0", "4.0-IV1"), ("4.0-IV1", "4.3-IV0"), ("4.3-IV0", "4.3-IV0")])
def test_a_release_is_upgraded_to_as_a_whole(old: str, new: str) -> None:
    cluster = cluster_at(old)
    assert cluster.answer(features(*asked(new, UPGRADE), validate_only=True)).error_code == 0
    assert finalized(cluster) == RELEASES[old]
    assert cluster.answer(features(*asked(new, UPGRADE))).error_code == 0
    assert finalized(cluster) == RELEASES[new]


def test_levels_of_what_is_not_served_are_kept_like_others() -> None:
    cluster = cluster_at("4.3-IV0")
    assert "share.version" not in SERVED_FEATURES
    for name, level, kind, refused in (
        ("transaction.version", 1, UPGRADE, "Can't downgrade the version of this feature without"),
        ("transaction.version", 3, UPGRADE, "Local controller 1 only supports versions 0-2"),
        ("transaction.version", 1, SAFE, ""),
        ("share.version", 0, SAFE, ""),
        ("share.version", 2, UPGRADE, "Local controller 1 only supports versions 0-1"),
        ("other.version", 1, UPGRADE, "Local controller 1 does not support this feature."),
    ):
        answer = cluster.answer(features((name, level, kind)))
        assert answer.error_code == (Err.INVALID_UPDATE_VERSION if refused else 0)
        assert refused in (answer.error_message or "")
    assert cluster.image.features["transaction.version"] == 1 and "share.version" not in cluster.image.features


@pytest.mark.parametrize(("release", "kind", "refused"), [
    ("4.0-IV3", UPGRADE, "Invalid update version 25 for feature metadata.version. Can't downgrade the version"),
    ("4.0-IV3", SAFE, "Unsupported metadata.version downgrade from 30 to 25. Refusing to perform"),
    ("4.0-IV3", UNSAFE, "Unsupported metadata.version downgrade from 30 to 25. Unsafe metadata downgrade"),
    ("4.3-IV0", SAFE, ""),
])  # fmt: skip
def test_a_release_is_not_gone_back_from_where_that_could_lose_something(release: str, kind: int, refused: str) -> None:
    cluster = cluster_at("4.3-IV0")
    answer = cluster.answer(features(*asked(release, kind)))
    assert answer.error_code == (Err.INVALID_UPDATE_VERSION if refused else 0)
    assert refused in (answer.error_message or "")
    assert finalized(cluster) == RELEASES["4.3-IV0"]
