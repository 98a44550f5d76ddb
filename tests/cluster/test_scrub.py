"""On real processes: one bit of a leader's closed segment is flipped while it runs, and repaired by command."""

import subprocess
import sys
from pathlib import Path

from headrace.records.layout import iter_headers
from headrace.storage.checking import verify_file
from headrace.storage.files import RealDisk
from headrace.testing.cluster import TestCluster
from tests.cluster.one_partition import assert_all_is_read, segments, write_segments


def headrace(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "headrace", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def batches(cluster: TestCluster, node_id: int, topic: str) -> dict[int, bytes]:
    found = {}
    for path in segments(cluster, node_id, topic):
        data = path.read_bytes()
        for position, header in iter_headers(data):
            found[header.base_offset] = data[position : position + header.size]
    return found


def flip(path: Path, position: int) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ 4]))


def test_a_flipped_bit_of_a_running_leader_is_found_and_repaired(cluster: TestCluster) -> None:
    topic = "rotten"
    write_segments(cluster, topic)
    leader = cluster.leader_of(topic, 0)
    path = segments(cluster, leader, topic)[1]
    before = batches(cluster, leader, topic)
    flip(path, 200_000)
    offline = headrace("log", "scrub", str(cluster[leader].data))
    assert offline.returncode == 1 and path.name in offline.stdout, offline
    done = headrace("cluster", "scrub", "--topic", topic, "--wait", "--bootstrap-server", cluster.bootstrap)
    assert done.returncode == 0, done
    row = next(line for line in done.stdout.splitlines() if line.split()[0] == str(leader)).split()
    assert row[1] == "done" and row[-4:-1] != ["0", "0", "0"], done.stdout
    cluster.wait_in_sync()
    for node_id in cluster.nodes:
        assert batches(cluster, node_id, topic) == before, f"node {node_id}"
        for part in segments(cluster, node_id, topic):
            assert verify_file(RealDisk(), str(part), int(part.stem), part.stat().st_size) is None
    said = cluster[leader].node.log.read_text()
    assert "another in-sync replica is to lead" in said and "are here again" in said
    assert_all_is_read(cluster, topic)
    described = headrace("topic", "describe", topic, "--bootstrap-server", cluster.bootstrap)
    assert "CHECKED" in described.stdout and "never" not in described.stdout, described.stdout
    whole = headrace("log", "scrub", str(cluster[leader].data))
    assert whole.returncode == 0 and "all whole" in whole.stdout, whole
