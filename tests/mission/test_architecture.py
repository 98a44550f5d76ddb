"""The document "Kafka architecture": storage, cluster, work distribution."""

import json
import re
from collections import Counter
from itertools import pairwise
from pathlib import Path

import confluent_kafka as confluent
import pytest

from headrace.testing.cluster import TestCluster
from tests.cluster.command_line import headrace
from tests.librdkafka import STEADY
from tests.mission.conftest import SETTINGS
from tests.mission.records import produce
from tests.waiting import eventually


class TestStorage:
    def test_n_partitions_make_n_folders_and_15_replicas_are_5_partitions_times_3(self, four: TestCluster) -> None:
        four.create_topic("fifteen", 5, 3)
        text = headrace("topic", "describe", "fifteen", "-b", four.bootstrap)
        assert "15 replicas = 5 partitions x 3" in text
        eventually(
            lambda: sum(len(list(node.data.glob("fifteen-*"))) for node in four.nodes.values()) == 15, "15 folders"
        )

    def test_configured_topic_has_three_folders_with_segments_and_both_indexes(self, four: TestCluster) -> None:
        headrace(
            "topic", "create", "configured-topic", "-p", "3", "-r", "1", "--set", "segment.bytes=1048576",
            "-b", four.bootstrap,
        )  # fmt: skip
        four.wait_in_sync("configured-topic")
        for partition in range(3):
            produce(four.bootstrap, "configured-topic", [bytes(100_000)] * 15, partition=partition)
        folders = json.loads(
            headrace("topic", "describe", "configured-topic", "--files", "--json", "-b", four.bootstrap)
        )
        names = [Path(folder["folder"]).name for folder in folders[0]["folders"]]
        assert names == [f"configured-topic-{partition}" for partition in range(3)]
        for folder in folders[0]["folders"]:
            first, *_, last = folder["segments"]
            assert not first["active"] and last["active"], "full, closed, and a new one begun"
            assert first["file"] == "00000000000000000000.log" and first["size_bytes"] <= 1_048_576
            assert int(last["file"].partition(".")[0]) == last["start_offset"] > 0, "named after its first offset"
            assert list(first["indexes"]) == ["00000000000000000000.index", "00000000000000000000.timeindex"]


class TestInSyncReplicas:
    def test_followers_fall_behind_the_leader_alone_commits_and_a_minimum_of_two_refuses(self, tmp_path: Path) -> None:
        """The documents' eleven seconds are shorter here. Broker 1 is the only controller, and is not frozen."""
        settings = {**SETTINGS, "replica.lag.time.max.ms": "1000", "broker.session.timeout.ms": "60000"}
        with TestCluster(3, folder=tmp_path / "c", settings=settings, voters=1) as cluster:
            for topic, least in (("alone", "1"), ("pair", "2")):
                cluster.create_topic(topic, configs={"min.insync.replicas": least}, assignments={0: [1, 2, 3]})
                produce(cluster.bootstrap, topic, [b"on three"])
            for follower in (2, 3):
                cluster.freeze(follower)
            # The write makes followers be behind; it is committed by the leader alone, and is all there is.
            produce(cluster[1].address, "alone", [b"on one"])
            cluster.wait_isr("alone", 0, {1})
            with pytest.raises(confluent.KafkaException, match=r"NOT_ENOUGH_REPLICAS|MSG_TIMED_OUT"):
                produce_once(cluster[1].address, "pair", b"refused")
            for follower in (2, 3):
                cluster.thaw(follower)
            cluster.wait_isr("alone", 0, {1, 2, 3})
            cluster.wait_isr("pair", 0, {1, 2, 3})
            produce(cluster.bootstrap, "pair", [b"on three again"])


def produce_once(bootstrap: str, topic: str, value: bytes) -> None:
    """Without sending again. Raises what the broker said."""
    failed: list[confluent.KafkaError] = []
    producer = confluent.Producer(
        {
            **STEADY,
            "bootstrap.servers": bootstrap,
            "acks": "all",
            "retries": 0,
            "message.timeout.ms": 8_000,
            "log_level": 0,
        }
    )
    producer.produce(topic, value, callback=lambda error, message: failed.append(error) if error else None)
    producer.flush(60)
    if failed:
        raise confluent.KafkaException(failed[0])


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
        topics = four.ask(lambda admin: admin.list_topics())
        assert "pictured" not in {topic.name for topic in topics}, "nothing is created"
        command = re.search(r"headrace (topic create pictured --assignment \S+)", text)
        assert command is not None
        headrace(*command[1].split(), "-b", four.bootstrap)
        made = ",".join(":".join(map(str, p.replicas)) for _, p in sorted(four.topic("pictured").partitions.items()))
        assert command[1].endswith(made)
