"""The document "Kafka architecture": storage, cluster, work distribution."""

import json
import re
from collections import Counter
from itertools import pairwise
from pathlib import Path

from headrace.testing.cluster import TestCluster
from tests.cluster.command_line import headrace
from tests.mission.conftest import SETTINGS


class TestControllerBroker:
    def test_partitions_are_kept_even_when_a_broker_is_added_lost_and_drained(self, tmp_path: Path) -> None:
        settings = {
            **SETTINGS, "auto.balance": "true", "auto.balance.lost.broker.ms": "1000", "auto.balance.moves.max": "100",
        }  # fmt: skip
        with TestCluster(3, folder=tmp_path / "c", settings=settings) as cluster:
            cluster.create_topic("even", 8, 2)
            cluster.add_broker()
            cluster.start(4)
            wait_even(cluster, {1, 2, 3, 4})
            cluster.kill(4)
            wait_even(cluster, {1, 2, 3})
            cluster.start(4)
            headrace("cluster", "drain", "3", "--yes", "-b", cluster.bootstrap)
            wait_even(cluster, {1, 2, 4})

    def test_a_preferred_leader_leads_again_soon_after_it_is_in_sync(self, tmp_path: Path) -> None:
        with TestCluster(3, folder=tmp_path / "c", settings=SETTINGS) as cluster:
            cluster.create_topic("preferred", assignments={0: [2, 3]})
            cluster.kill(2)
            assert cluster.leader_of("preferred", other_than=2) == 3
            cluster.start(2)
            cluster.wait_in_sync("preferred")
            cluster.wait("the preferred leader is back", lambda: cluster.partition("preferred").leader == 2)


def wait_even(cluster: TestCluster, nodes: set[int]) -> None:
    """Until exactly these brokers hold replicas, equally many and leading equally many, and nothing moves."""

    def look() -> bool:
        parts = list(cluster.topic("even").partitions.values())
        held = Counter(node for p in parts for node in p.replicas)
        leads = Counter(p.replicas[0] for p in parts)
        return (
            set(held) == nodes
            and all(len(p.replicas) == len(p.isr) == 2 and p.leader == p.replicas[0] for p in parts)
            and all(max(n.values()) - min(n.values()) <= 1 and set(n) == nodes for n in (held, leads))
        )

    cluster.wait(f"even over {sorted(nodes)}", look)


class TestPartitionAssignment:
    def test_neighbours_in_the_list_are_in_different_racks_leaders_round_robin_followers_shifted(
        self, four: TestCluster
    ) -> None:
        four.create_topic("placed", 4, 2)
        placed = {n: p.replicas for n, p in four.topic("placed").partitions.items()}
        leaders = [placed[n][0] for n in range(4)]
        assert sorted(leaders) == [1, 2, 3, 4], "round robin: each broker leads one"
        assert all(here % 2 != behind % 2 for here, behind in pairwise(leaders)), "racks alternate"
        first_followers = [placed[n][1] for n in range(4)]
        assert first_followers == leaders[1:] + leaders[:1], "from the second broker of the list on"

    def test_second_followers_start_at_the_third_broker_unless_a_rack_has_two(self, four: TestCluster) -> None:
        drawn = json.loads(
            headrace("topic", "create", "drawn", "-p", "4", "-r", "3", "--dry-run", "--json", "-b", four.bootstrap)
        )[0]
        assert drawn["replica.placement"] == "shifted"
        placed = drawn["placed"]["shifted"]
        leaders = [replicas[0] for replicas in placed]
        for n, replicas in enumerate(placed):
            assert replicas == [leaders[n], leaders[(n + 1) % 4], leaders[(n + 2) % 4]]

    def test_a_dry_run_draws_both_placements_and_the_assignment_that_makes_one(self, four: TestCluster) -> None:
        text = headrace("topic", "create", "pictured", "-p", "3", "-r", "2", "--dry-run", "-b", four.bootstrap)
        assert "pictured would be created: 6 replicas = 3 partitions x 2" in text
        assert "replica.placement=shifted (this cluster's)" in text and "replica.placement=striped\n" in text
        assert len(re.findall(r"^p\d .*LEADER", text, re.M)) == 6 and "b1 (a)" in text
        assert "pictured" not in headrace("topic", "list", "-b", four.bootstrap), "nothing is created"
        command = re.search(r"headrace (topic create pictured --assignment \S+)", text)
        assert command is not None
        headrace(*command[1].split(), "-b", four.bootstrap)
        made = ",".join(":".join(map(str, p.replicas)) for _, p in sorted(four.topic("pictured").partitions.items()))
        assert command[1].endswith(made)
