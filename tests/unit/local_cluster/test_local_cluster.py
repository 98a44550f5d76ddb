"""A local cluster's folder: laid out once as one cluster, found again, grown, never made over other data."""

import socket
from pathlib import Path

import pytest

from headrace.config import parse_properties
from headrace.local_cluster.layout import (
    LocalClusterError,
    LocalNode,
    Wish,
    find_cluster,
    free_ports,
    open_cluster,
    refuse_taken_ports,
)
from headrace.quorum.snapshots import SnapshotId, Voter, decode_snapshot
from headrace.storage.checkpoints import MetaProperties


def properties(node: LocalNode) -> dict[str, str]:
    return parse_properties(node.properties.read_text())


def voters(node: LocalNode) -> tuple[Voter, ...] | None:
    path = node.data / "__cluster_metadata-0" / SnapshotId(0, 0).file_name
    return decode_snapshot(SnapshotId(0, 0), path.read_bytes(), str(path)).voters if path.exists() else None


def snapshot(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_three_nodes_are_one_cluster(tmp_path: Path) -> None:
    cluster = open_cluster(tmp_path / "c", Wish(3, port=9092))
    assert [node.port for node in cluster.nodes.values()] == [9092, 9093, 9094]
    assert [node.controller_port for node in cluster.nodes.values()] == [9192, 9193, 9194]
    assert cluster.bootstrap == "127.0.0.1:9092,127.0.0.1:9093,127.0.0.1:9094"
    metas = [MetaProperties.decode((node.data / "meta.properties").read_bytes()) for node in cluster.nodes.values()]
    assert {meta.cluster_id for meta in metas} == {cluster.cluster_id}
    assert [meta.node_id for meta in metas] == [1, 2, 3]
    assert len({voters(node) for node in cluster.nodes.values()}) == 1
    assert {voter.id: voter.directory_id for voter in voters(cluster.nodes[1]) or ()} == {
        m.node_id: m.directory_id for m in metas
    }
    options = properties(cluster.nodes[2])
    assert options["controller.quorum.bootstrap.servers"] == "127.0.0.1:9192,127.0.0.1:9193,127.0.0.1:9194"
    assert (options["default.replication.factor"], options["min.insync.replicas"]) == ("3", "2")
    assert options["offsets.topic.replication.factor"] == "3"


def test_a_second_start_finds_it_and_changes_nothing(tmp_path: Path) -> None:
    first = open_cluster(tmp_path, Wish(3, port=0))
    before = snapshot(tmp_path)
    again = open_cluster(tmp_path, Wish(3, port=9092))
    assert again.cluster_id == first.cluster_id and again.bootstrap == first.bootstrap
    assert snapshot(tmp_path) == before


def test_brokers_are_added_without_a_vote(tmp_path: Path) -> None:
    first = open_cluster(tmp_path, Wish(3, port=9092))
    grown = open_cluster(tmp_path, Wish(5, port=9092))
    assert list(grown.nodes) == [1, 2, 3, 4, 5]
    assert grown.cluster_id == first.cluster_id
    assert [node.port for node in grown.nodes.values()] == [9092, 9093, 9094, 9095, 9096]
    for node_id in (4, 5):
        assert grown.nodes[node_id].config.roles == {"broker"}
        assert voters(grown.nodes[node_id]) is None
        assert properties(grown.nodes[node_id])["controller.quorum.bootstrap.servers"].count(":") == 3


@pytest.mark.parametrize(
    ("brokers", "votes", "factor", "least"), [(1, 1, "1", "1"), (2, 1, "2", "1"), (4, 3, "3", "2")]
)
def test_two_brokers_have_one_voter_since_a_majority_of_two_is_two(
    tmp_path: Path, brokers: int, votes: int, factor: str, least: str
) -> None:
    cluster = open_cluster(tmp_path, Wish(brokers, port=0))
    assert len(voters(cluster.nodes[1]) or ()) == votes
    assert sum(node.is_controller for node in cluster.nodes.values()) == votes
    options = properties(cluster.nodes[1])
    assert (options["default.replication.factor"], options["min.insync.replicas"]) == (factor, least)


def test_racks_are_given_in_turn_and_one_machine_is_one_rack(tmp_path: Path) -> None:
    cluster = open_cluster(tmp_path / "a", Wish(3, port=0, racks=("r1", "r2")))
    assert [node.config["broker.rack"] for node in cluster.nodes.values()] == ["r1", "r2", "r1"]
    alone = open_cluster(tmp_path / "b", Wish(3, port=0))
    assert len({node.config["broker.rack"] for node in alone.nodes.values()}) == 1
    assert alone.nodes[1].config["broker.rack"]


def test_other_data_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "meta.properties").write_text("version=1\n")
    with pytest.raises(LocalClusterError, match="holds the data of a single broker"):
        open_cluster(tmp_path, Wish(3))
    assert [path.name for path in tmp_path.iterdir()] == ["meta.properties"]


def test_fewer_brokers_than_there_are_is_refused_with_the_way_to_have_fewer(tmp_path: Path) -> None:
    cluster = open_cluster(tmp_path, Wish(4, port=0))
    with pytest.raises(LocalClusterError) as refused:
        open_cluster(tmp_path, Wish(3, port=0))
    first, *steps = str(refused.value).splitlines()
    at = f"-b {cluster.bootstrap}"
    assert first.startswith(f"{tmp_path} holds a cluster of 4 brokers: start it with --brokers 4.")
    assert [step.strip() for step in steps] == [
        f"headrace up --brokers 4 --data {tmp_path} --detach",
        f"headrace cluster drain 4 {at}",
        f"headrace down --data {tmp_path}",
        f"rm -r {tmp_path}/node-4 {tmp_path}/node-4.properties {tmp_path}/node-4.log",
        f"headrace up --brokers 3 --data {tmp_path} --detach",
        f"headrace cluster forget 4 {at}",
    ]
    # Of those that vote, the vote is taken first; and two brokers cannot hold three replicas.
    with pytest.raises(LocalClusterError) as refused:
        open_cluster(tmp_path, Wish(2, port=0))
    text = str(refused.value)
    assert f"cluster drain 4 3 {at}" in text and f"cluster quorum remove 3 {at}" in text
    assert "quorum remove 4" not in text and f"reassign --replication-factor 2 {at}" in text


def test_a_node_of_another_cluster_is_noticed(tmp_path: Path) -> None:
    mine, other = open_cluster(tmp_path / "a", Wish(2, port=0)), open_cluster(tmp_path / "b", Wish(2, port=0))
    (mine.nodes[2].data / "meta.properties").write_bytes((other.nodes[2].data / "meta.properties").read_bytes())
    with pytest.raises(LocalClusterError, match="belong to different clusters"):
        find_cluster(tmp_path / "a")


def test_a_lost_folder_is_not_formatted_again(tmp_path: Path) -> None:
    cluster = open_cluster(tmp_path, Wish(2, port=0))
    (cluster.nodes[2].data / "meta.properties").unlink()
    with pytest.raises(LocalClusterError, match=r"node-2 is not formatted. .*--no-initial-controllers"):
        open_cluster(tmp_path, Wish(2, port=0))


def test_nodes_without_options_are_not_taken_for_new(tmp_path: Path) -> None:
    cluster = open_cluster(tmp_path, Wish(2, port=0))
    for node in cluster.nodes.values():
        node.properties.unlink()
    with pytest.raises(LocalClusterError, match=r"\.properties are missing"):
        open_cluster(tmp_path, Wish(2, port=0))


def test_a_port_that_is_taken_is_told_before_anything_is_made(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(LocalClusterError, match=f"127.0.0.1:{port}: address already in use; choose another"):
            refuse_taken_ports(tmp_path / "new", Wish(1, port=port))
        assert not (tmp_path / "new").exists()
        open_cluster(tmp_path / "old", Wish(1, port=port))
        with pytest.raises(LocalClusterError, match="is this cluster running already"):
            refuse_taken_ports(tmp_path / "old", Wish(1, port=port))
    refuse_taken_ports(tmp_path / "old", Wish(1, port=port))


def test_free_ports_differ() -> None:
    assert len(set(free_ports(20))) == 20
