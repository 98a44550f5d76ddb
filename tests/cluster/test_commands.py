"""`headrace up --brokers` and `headrace cluster`, as a user runs them."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.client.admin.disk_space import LOW_SHARE
from headrace.client.admin.operations import Operations
from headrace.local_cluster.layout import find_cluster
from headrace.testing.cluster import TestCluster
from tests.cluster.command_line import LIMIT_S, headrace

READY = re.compile(r"ready on (\S+) \(data in .*, 3 nodes, started in [\d.]+ s\)")


class Up:
    """`headrace up --brokers 3` and what it prints."""

    def __init__(self, folder: Path, *words: str) -> None:
        self.folder = folder
        self.out = folder.with_suffix(".out")
        command = [
            sys.executable,
            "-m",
            "headrace",
            "up",
            "--brokers",
            "3",
            "--port",
            "0",
            "--data",
            str(folder),
            *words,
        ]
        with self.out.open("wb") as out:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out)

    def text(self) -> str:
        return self.out.read_text(errors="replace")

    def wait_for(self, pattern: str, count: int = 1) -> list[str]:
        deadline = time.monotonic() + LIMIT_S
        while len(found := re.findall(pattern, self.text())) < count:
            assert time.monotonic() < deadline and self.process.poll() is None, f"no {pattern!r} in:\n{self.text()}"
            time.sleep(0.05)
        return found

    def children(self) -> dict[int, int]:
        """node id -> process id."""
        found = {}
        for task in Path(f"/proc/{self.process.pid}/task").glob("*/children"):
            for pid in task.read_text().split():
                words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
                if match := re.search(r"node-(\d+)\.properties", " ".join(words)):
                    found[int(match[1])] = int(pid)
        return found

    def end(self, how: signal.Signals = signal.SIGINT) -> int:
        if self.process.poll() is None:
            self.process.send_signal(how)
        try:
            return self.process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Up]:
    up = Up(tmp_path / "data")
    yield up
    if up.process.poll() is None:
        up.end()


def test_up_brokers_runs_restarts_and_stops_a_cluster(started: Up) -> None:
    (bootstrap,) = started.wait_for(READY.pattern)
    started.wait_for(r"node \d leads in epoch \d+; 1, 2, 3 vote")
    children = started.children()
    assert sorted(children) == [1, 2, 3]
    assert headrace("topic", "create", "orders", "-p", "3", "-b", bootstrap).startswith(
        "created orders: 3 partitions, replication factor 3"
    )

    # A node that dies is started again, and the cluster is whole again by itself.
    os.kill(children[2], signal.SIGKILL)
    started.wait_for(r"node 2 +was ended by SIGKILL; restart 1 in 0.2 s")
    started.wait_for(r"node 2 +again up on")
    assert started.children()[2] != children[2]
    deadline = time.monotonic() + LIMIT_S
    while not (facts := json.loads(headrace("cluster", "status", "--json", "-b", bootstrap)))["healthy"]:
        assert time.monotonic() < deadline, facts
    assert {b["id"]: b["state"] for b in facts["brokers"]} == {1: "up", 2: "up", 3: "up"}
    assert len({b["rack"] for b in facts["brokers"]}) == 1

    # Ctrl-C stops everything in order; the next start finds it all again.
    assert started.end() == 0
    assert len(re.findall(r"node \d +stopped\n", started.text())) == 3, started.text()
    assert all(not Path(f"/proc/{pid}").exists() for pid in started.children().values())
    again = Up(started.folder)
    try:
        (same,) = again.wait_for(READY.pattern)
        assert same == bootstrap
        assert "orders" in headrace("topic", "list", "-b", bootstrap)
    finally:
        assert again.end(signal.SIGTERM) == 0


def test_nodes_do_not_outlive_their_supervisor(started: Up) -> None:
    started.wait_for(READY.pattern)
    children = started.children()
    started.process.kill()
    started.process.wait()
    deadline = time.monotonic() + LIMIT_S
    while any(Path(f"/proc/{pid}").exists() for pid in children.values()):
        assert time.monotonic() < deadline, "a node stayed behind alone"
        time.sleep(0.05)


def test_a_setting_that_is_wrong_is_said_once(tmp_path: Path) -> None:
    up = Up(tmp_path / "data", "--set", "log.retention.hour=1")
    assert up.process.wait(LIMIT_S) == 1
    assert up.text() == "headrace: Unknown option log.retention.hour (did you mean log.retention.hours?)\n"
    assert not (tmp_path / "data").exists()


def test_a_single_broker_does_not_start_on_a_clusters_folder(tmp_path: Path) -> None:
    from headrace.local_cluster.layout import Wish, lay_out

    lay_out(tmp_path / "c", Wish(3, port=0))
    assert "holds a local cluster" in headrace("up", "--data", str(tmp_path / "c"), "--port", "0", code=1)
    assert find_cluster(tmp_path / "c") is not None


# -- headrace cluster


def test_status_shows_brokers_partitions_and_the_quorum(cluster: TestCluster) -> None:
    cluster.create_topic("shown", 6, 2)
    text = headrace("cluster", "status", "-b", cluster.bootstrap)
    assert re.search(r"quorum: node [123] leads epoch \d+; voters 1, 2, 3; 0 observers", text), text
    assert " 0 under-replicated, 0 below min.insync.replicas, 0 offline, 0 moving" in text
    # A disk of the machine that runs low, and nothing else, may make the check fail.
    is_low = any(
        found.usable_bytes < LOW_SHARE * found.total_bytes
        for found in cluster.ask(lambda admin: Operations(admin).log_dirs(cluster.nodes))
    )
    facts = json.loads(
        headrace("cluster", "status", "--json", "--check", "-b", cluster.bootstrap, code=1 if is_low else 0)
    )
    assert sum(b["leads"] for b in facts["brokers"]) == facts["partitions"]
    assert facts["controller"] == facts["quorum"]["leader"] == cluster.quorum_leader()


def test_status_names_what_is_wrong(cluster: TestCluster) -> None:
    cluster.create_topic("wrong", 1, 3, {"min.insync.replicas": "3"})
    victim = next(node for node in cluster.nodes if node not in (cluster.leader_of("wrong"), cluster.quorum_leader()))
    cluster.kill(victim)
    cluster.wait_isr("wrong", 0, set(cluster.nodes) - {victim})
    text = headrace("cluster", "status", "--check", "-b", cluster.bootstrap, code=1)
    assert re.search(rf"{victim} .* fenced", text), text
    assert "not writable with acks=all: wrong-0" in text
    assert "under-replicated: wrong-0" in text


def test_status_with_frozen_brokers_answers_soon_and_shows_no_figures_for_them(cluster: TestCluster) -> None:
    cluster.create_topic("frozen", 3, 3)
    leader = cluster.quorum_leader()
    awake = next(node for node in cluster.nodes if node not in (leader, min(cluster.nodes)))
    for node in set(cluster.nodes) - {awake}:  # the controller among them, and the first that a client asks
        cluster.freeze(node)
    began = time.monotonic()
    text = headrace("cluster", "status", "-b", cluster.bootstrap)
    facts = json.loads(headrace("cluster", "status", "--json", "--check", "-b", cluster.bootstrap, code=1))
    spent_s = (time.monotonic() - began) / 2
    assert spent_s < 12, f"{spent_s:.1f} s"
    rows = {b["id"]: b for b in facts["brokers"]}
    assert rows[awake]["state"] == "up" and rows[awake]["size_bytes"] is not None
    for node in set(cluster.nodes) - {awake}:
        assert rows[node]["state"] in ("no answer", "fenced") and rows[node]["size_bytes"] is None
        assert re.search(rf"^ *{node} .* (no answer|fenced) .* - +-$", text, re.MULTILINE), text
    assert facts["moving"] is None and "error" in facts["quorum"] and " - moving" in text


def test_balance_spreads_replicas_and_leaders_over_a_broker_that_was_added(tmp_path: Path) -> None:
    settings = {"offsets.topic.num.partitions": "4", "auto.leader.rebalance.enable": "false"}
    with TestCluster(3, folder=tmp_path / "c", settings=settings) as cluster:
        cluster.create_topic("orders", 10, 3)
        cluster.create_topic("payments", 5, 2)
        cluster.add_broker()
        cluster.start(4)
        headrace("cluster", "balance", "--yes", "-b", cluster.bootstrap)
        for even in ("after a move", "after a restart"):
            rows = json.loads(headrace("cluster", "status", "--json", "-b", cluster.bootstrap))["brokers"]
            for what in ("leads", "replicas"):
                counts = [row[what] for row in rows]
                assert len(counts) == 4 and max(counts) - min(counts) <= 1, (even, what, counts)
            if even == "after a move":
                # Whoever was away leads nothing when it is back; there is nothing to move then, only to elect.
                cluster.restart(2)
                cluster.wait_in_sync()
                text = headrace("cluster", "balance", "--yes", "-b", cluster.bootstrap)
                assert "nothing has to move" in text and re.search(r"elected \d+ preferred leaders", text), text


def test_a_cluster_becomes_smaller_by_the_commands_that_it_names(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    up = ["up", "--port", "0", "--data", str(folder), "--set", "offsets.topic.num.partitions=1"]
    try:
        ready = json.loads(headrace(*up, "--brokers", "4", "--detach", "--json"))["ready"]
        headrace("topic", "create", "orders", "-p", "4", "-b", ready)
        headrace("down", "--data", str(folder))
        refused = headrace("up", "--brokers", "3", "--data", str(folder), code=1)
        steps = [line.split() for line in refused.splitlines() if line.startswith("  ")]
        assert steps, refused
        for command, *words in steps:
            if command == "headrace":
                headrace(*words, *(["--yes"] if "drain" in words else []))
            else:
                subprocess.run([command, *words], check=True)
        deadline = time.monotonic() + LIMIT_S
        while not (facts := json.loads(headrace("cluster", "status", "--json", "-b", ready)))["healthy"]:
            assert time.monotonic() < deadline, facts
        assert [b["id"] for b in facts["brokers"]] == [1, 2, 3] and facts["partitions"] >= 4
    finally:
        subprocess.run([sys.executable, "-m", "headrace", "down", "--now", "--data", str(folder)], check=False)


def test_replicas_are_moved_by_command(cluster: TestCluster) -> None:
    cluster.create_topic("moved", 3, 1)
    bootstrap = ["-b", cluster.bootstrap]
    plan = headrace("cluster", "reassign", "moved", "--replication-factor", "2", "--dry-run", *bootstrap)
    assert "3 partitions change, 3 replicas are copied" in plan
    assert {len(p.replicas) for p in cluster.topic("moved").partitions.values()} == {1}, "a plan alone moves nothing"
    assert "done: 3 partitions" in headrace(
        "cluster", "reassign", "moved", "-r", "2", "--yes", "--throttle", "50MB", *bootstrap
    )
    assert {len(p.replicas) for p in cluster.topic("moved").partitions.values()} == {2}
    cluster.wait_in_sync("moved")
    assert "nothing is moving" in headrace("cluster", "reassign", "--list", *bootstrap)
    # Every topic has to fit on the two that stay, so only this one is drained here.
    file = cluster.folder / "plan.json"
    rows = [{"topic": "moved", "partition": i, "replicas": [1, 2]} for i in range(3)]
    file.write_text(json.dumps({"version": 1, "partitions": rows}))
    headrace("cluster", "reassign", "--plan", str(file), "--yes", *bootstrap)
    assert {p.replicas for p in cluster.topic("moved").partitions.values()} == {(1, 2)}
    assert {p.leader for p in cluster.topic("moved").partitions.values()} == {1}
    assert "nothing has to move" in headrace("cluster", "reassign", "--plan", str(file), "--yes", *bootstrap)


def test_preferred_leaders_are_elected_by_command(cluster: TestCluster) -> None:
    cluster.create_topic("elected", assignments={0: [3, 1]})
    cluster.restart(3)
    cluster.wait_in_sync("elected")
    headrace("cluster", "elect", "elected:0", "-b", cluster.bootstrap)
    assert cluster.leader_of("elected") == 3
    assert "nothing to elect" in headrace("cluster", "elect", "--unclean", "-b", cluster.bootstrap)
    assert "there is no topic" in headrace("cluster", "elect", "missing", "-b", cluster.bootstrap, code=1)


def test_votes_are_taken_and_given_by_command(cluster: TestCluster) -> None:
    bootstrap = ["-b", cluster.bootstrap]
    node = next(n for n in cluster.nodes if n != cluster.quorum_leader())
    assert f"node {node} has no vote any more" in headrace(
        "cluster", "quorum", "remove", str(node), "--yes", *bootstrap
    )
    cluster.wait("an observer", lambda: node in {o.node_id for o in cluster.quorum().observers})
    assert "is no voter" in headrace("cluster", "quorum", "remove", str(node), "--yes", *bootstrap, code=1)
    at = f"127.0.0.1:{cluster[node].node.controller_port}"
    assert f"node {node} is a voter" in headrace("cluster", "quorum", "add", str(node), "--at", at, *bootstrap)
    facts = json.loads(headrace("cluster", "quorum", "--json", *bootstrap))
    assert sorted(v["id"] for v in facts["voters"]) == [1, 2, 3]
