"""The same requests at the same times to this shard and to Apache Kafka's own: every answer and record alike.

Clients mostly do what clients do and sometimes something else. A run is made by its seed; a failing seed is a test.
One run is kept with what Kafka 4.3.1 did (golden/shard-kafka-4.3.1.txt.gz), for machines without its jars; after a
wanted change: HEADRACE_REWRITE=1 pytest tests/unit/coordinator/test_against_kafka.py.
"""

import gzip
import os
import random
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from headrace.coordinator.classic_group import ClassicGroup, in_java_order
from headrace.coordinator.outcome import Outcome
from headrace.coordinator.shard_state import ShardConfig
from headrace.errors import Err
from headrace.protocol import messages as m
from headrace.protocol.codec import CODECS
from tests.reference.apache import Unavailable, run_java
from tests.unit.coordinator.driver import Driver, show, subscription, topic_id

STEPS = 400
KEPT_SEED = 9
KEPT = Path(__file__).with_name("golden") / "shard-kafka-4.3.1.txt.gz"
SEEDS = range(4)
PROTOCOLS = [
    [("range", subscription("t"))],
    [("range", subscription("t", "u"))],
    [("roundrobin", subscription("t")), ("range", subscription("u"))],
    [("range", subscription("u")), ("roundrobin", subscription("t"))],
    [("sticky", b"\0\1"), ("roundrobin", b""), ("range", subscription("t", "old"))],
    [("range", b"\0\1\0")],
]


class JavaOrder(dict[str, Any]):
    """Iterates like java.util.HashMap, in whose order Kafka picks leaders and writes members."""

    def __iter__(self) -> Any:
        return iter(in_java_order(super().keys()))

    def values(self) -> Any:
        return [self[key] for key in self]

    def items(self) -> Any:
        return [(key, self[key]) for key in self]


class Client:
    """One consumer: what it believes of itself."""

    def __init__(self, name: str, group: str, dice: random.Random) -> None:
        self.name = name
        self.group = group
        self.instance = dice.choice([None, None, f"i{dice.randrange(3)}"])
        self.member_id = ""
        self.generation = -1
        self.state = "out"
        self.protocols = dice.choice(PROTOCOLS)
        self.protocol_name = ""
        self.leads = False
        self.others: list[str] = []
        self.waiting = ""


class Walk:
    """A random walk, and the script of it for Kafka."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        size = self.dice.choice([3, 2**31 - 1])
        self.driver = Driver(
            ShardConfig(group_max_size=size, offsets_retention_ms=60_000, offset_metadata_max_bytes=10)
        )
        self.driver.new_id = self.new_id  # type: ignore[method-assign]
        self.script = [f"group.max.size={size} offsets.retention.minutes=1 offset.metadata.max.bytes=10"]
        self.clients = [Client(f"c{i}", "g" if i else "h", self.dice) for i in range(5)]
        self.requests: dict[str, tuple[Client, Any, int]] = {}
        self.answers: list[dict[str, Any]] = [{}]
        self.records: list[list[tuple[str, str]]] = [[]]

    def new_id(self) -> str:
        self.driver.ids += 1
        return f"00000000-0000-4000-8000-{self.driver.ids:012x}"

    def step(self) -> None:
        before = len(self.driver.log)
        dice = self.dice
        roll = dice.random()
        if roll < 0.25:
            ms = dice.choice([1, 7, 500, 2900, 3100, dice.randrange(12_000), dice.randrange(40_000)])
            self.script.append(f"pass {ms}")
            self.driver.elapse(ms)
        elif roll < 0.28:
            self.script.append("expire")
            while True:
                outcome = self.driver.shard.expire(self.driver.now_ms)
                self.driver.run(outcome)
                if not outcome.response:
                    break
        elif roll < 0.30:
            producer, commit = dice.choice([7, 8]), dice.random() < 0.6
            self.script.append(f"marker {producer} {'commit' if commit else 'abort'}")
            self.driver.marker(producer, commit)
            before += 1
        elif roll < 0.31:
            label = f"x{len(self.script)}"
            self.script.append(f"delete-groups {label} g,h")
            outcome = self.driver.shard.delete_groups(["g", "h"], self.driver.now_ms)
            outcome.response = m.DeleteGroupsResponse(results=outcome.response)
            self.driver.run(outcome, label)
        elif roll < 0.32:
            name = dice.choice(["t", "u"])
            high, low = topic_id(name)[:8].hex(), topic_id(name)[8:].hex()
            self.script.append(f"topic-deleted {name} {high} {low}")
            outcome = Outcome()
            self.driver.shard.offsets.topics_deleted({name: topic_id(name)}, outcome)
            self.driver.run(outcome)
        else:
            self.act(dice.choice(self.clients))
        self.records.append(
            [(k.hex(), "-" if v is None else v.hex()) for k, v, _ in self.driver.log[before:] if k is not None]
        )
        answers: dict[str, Any] = {}
        for label, response in self.driver.answers:
            answers[label] = response
            if label in self.requests:
                self.learn(*self.requests[label][:2], response)
        self.driver.answers.clear()
        self.look(answers)
        self.answers.append(answers)

    def look(self, answers: dict[str, Any]) -> None:
        shard = self.driver.shard
        for group in ("g", "h"):
            answers[f"describe-{group}"] = m.DescribeGroupsResponse(groups=shard.describe_groups([group], 6))
            for stable in (False, True):
                asked = m.OffsetFetchRequest.OffsetFetchRequestGroup(group_id=group, topics=None)
                fetched = shard.fetch_offsets(asked, stable, 9)
                fetched.topics.sort(key=lambda topic: topic.name)
                for topic in fetched.topics:
                    topic.partitions.sort(key=lambda p: p.partition_index)
                label = f"fetch-{group}-{str(stable).lower()}"
                answers[label] = m.OffsetFetchResponse(groups=[fetched])
        listed = sorted(shard.list_groups([], []), key=lambda group: group.group_id)
        answers["list"] = m.ListGroupsResponse(groups=listed)

    def act(self, client: Client) -> None:
        dice = self.dice
        if client.waiting and dice.random() < 0.9:
            return
        if dice.random() < 0.85:
            kind = {"out": "join", "sync": "sync", "stable": "heartbeat"}[client.state]
            if client.state == "stable" and dice.random() < 0.3:
                kind = dice.choice(["commit", "commit", "leave", "change", "restart", "txn"])
        else:
            kind = dice.choice(
                ["join", "sync", "heartbeat", "leave", "commit", "simple", "txn", "ghost", "delete", "remove"]
            )
        getattr(self, kind)(client)

    def send(self, client: Client, method: str, request: Any, version: int) -> None:
        label = f"{client.name}.{len(self.script)}"
        codec = CODECS[type(request).__name__]
        data = codec.encode(request, version)
        self.script.append(f"{method} {client.name} {label} {version} {data.hex()}")
        self.requests[label] = (client, request, version)
        if method in ("join_group", "sync_group"):
            client.waiting = label
        # As decoded, since that is what a broker would see.
        request = codec.decode(data, version)
        if method == "offset_commit" and version >= 10:
            for topic in request.topics:
                topic.name = topic.topic_id.decode().rstrip("_")
        context = self.driver.context(client.name, version)
        outcome = getattr(self.driver.shard, method)(request, context, self.driver.now_ms)
        self.driver.run(outcome, label, getattr(request, "producer_id", -1))

    def learn(self, client: Client, request: Any, response: Any) -> None:
        if isinstance(response, m.JoinGroupResponse | m.SyncGroupResponse):
            client.waiting = ""
        error = getattr(response, "error_code", 0)
        if isinstance(response, m.JoinGroupResponse):
            if error == Err.MEMBER_ID_REQUIRED:
                client.member_id = response.member_id
            elif error == 0:
                client.member_id, client.generation = response.member_id, response.generation_id
                client.leads = response.leader == client.member_id
                client.others = [member.member_id for member in response.members]
                client.protocol_name = response.protocol_name or "range"
                client.state = "sync"
        elif isinstance(response, m.SyncGroupResponse) and error == 0:
            client.state = "stable"
        if error in (Err.UNKNOWN_MEMBER_ID, Err.ILLEGAL_GENERATION, Err.FENCED_INSTANCE_ID, Err.GROUP_MAX_SIZE_REACHED):
            client.member_id, client.state = "", "out"
        elif error == Err.REBALANCE_IN_PROGRESS:
            client.state = "out"

    def join(self, client: Client) -> None:
        dice = self.dice
        version = dice.choice([0, 1, 3, 4, 5, 6, 7, 8, 9]) if client.instance is None else dice.choice([5, 7, 8, 9])
        request = m.JoinGroupRequest(
            group_id=client.group,
            session_timeout_ms=6000 + dice.randrange(30_000),
            rebalance_timeout_ms=dice.randrange(20_000) if version else -1,
            member_id=client.member_id,
            group_instance_id=client.instance,
            protocol_type="consumer" if dice.random() < 0.97 else dice.choice(["connect", ""]),
            protocols=[m.JoinGroupRequest.JoinGroupRequestProtocol(name=n, metadata=d) for n, d in client.protocols],
        )
        self.send(client, "join_group", request, version)

    def change(self, client: Client) -> None:
        client.protocols = self.dice.choice(PROTOCOLS)
        self.join(client)

    def restart(self, client: Client) -> None:
        client.member_id, client.state, client.waiting = "", "out", ""
        self.join(client)

    def sync(self, client: Client) -> None:
        assignment = m.SyncGroupRequest.SyncGroupRequestAssignment
        named = [*client.others, "nobody"] if client.leads else []
        if named and self.dice.random() < 0.1:
            named.pop(0)
        request = m.SyncGroupRequest(
            group_id=client.group,
            generation_id=client.generation - (self.dice.random() < 0.05),
            member_id=client.member_id,
            group_instance_id=client.instance,
            protocol_type="consumer" if self.dice.random() < 0.95 else "other",
            protocol_name=client.protocol_name or "range",
            assignments=[assignment(member_id=x, assignment=f"{x}!{len(self.script)}".encode()) for x in named],
        )
        self.send(client, "sync_group", request, 5)

    def heartbeat(self, client: Client) -> None:
        request = m.HeartbeatRequest(
            group_id=client.group,
            generation_id=client.generation - (self.dice.random() < 0.05),
            member_id=client.member_id,
            group_instance_id=client.instance,
        )
        self.send(client, "heartbeat", request, 4)

    def leave(self, client: Client) -> None:
        identity = m.LeaveGroupRequest.MemberIdentity
        if client.instance is None and self.dice.random() < 0.5:
            request = m.LeaveGroupRequest(group_id=client.group, member_id=client.member_id)
            self.send(client, "leave_group", request, self.dice.choice([0, 2]))
        else:
            members = [identity(member_id=client.member_id, group_instance_id=client.instance)]
            if self.dice.random() < 0.2:
                members.append(identity(member_id="nobody"))
            self.send(client, "leave_group", m.LeaveGroupRequest(group_id=client.group, members=members), 5)
        client.member_id, client.state = "", "out"

    def remove(self, client: Client) -> None:
        members = [m.LeaveGroupRequest.MemberIdentity(member_id="", group_instance_id=client.instance)]
        self.send(client, "leave_group", m.LeaveGroupRequest(group_id=client.group, members=members), 4)

    def commit(self, client: Client, *, simple: bool = False) -> None:
        dice = self.dice
        version = dice.choice([2, 4, 7, 8, 9, 10]) if client.instance is None or simple else dice.choice([7, 9, 10])
        metadata = ["", None, "note", "é€😀", "😀" * 5, "😀" * 6, "x" * 11]
        partition = m.OffsetCommitRequest.OffsetCommitRequestPartition
        request = m.OffsetCommitRequest(
            group_id=client.group,
            generation_id_or_member_epoch=-1 if simple else client.generation,
            member_id="" if simple else client.member_id,
            group_instance_id=None if simple else client.instance,
            retention_time_ms=30_000 if version <= 4 and dice.random() < 0.5 else -1,
            topics=[
                m.OffsetCommitRequest.OffsetCommitRequestTopic(
                    name=name if version < 10 else "",
                    topic_id=topic_id(name) if version >= 10 else bytes(16),
                    partitions=[
                        partition(
                            partition_index=dice.randrange(3),
                            committed_offset=dice.randrange(1000),
                            committed_leader_epoch=dice.choice([-1, 4]) if version >= 6 else -1,
                            committed_metadata=dice.choice(metadata[: self.lengths(client)]),
                        )
                    ],
                )
                for name in dice.choice([["t"], ["t", "u"], ["old"]])
            ],
        )
        self.send(client, "offset_commit", request, version)

    def lengths(self, client: Client) -> int:
        """How many of the metadata to choose from. Kafka keeps a group in memory when its first commit was refused
        for its metadata, until it is restarted; Headrace does not, so the first commit has none that is too long."""
        return 7 if client.group in self.driver.shard.state.groups.live else 2

    def simple(self, client: Client) -> None:
        self.commit(client, simple=True)

    def txn(self, client: Client) -> None:
        known = self.dice.random() < 0.5
        request = m.TxnOffsetCommitRequest(
            transactional_id="tx",
            group_id=client.group,
            producer_id=self.dice.choice([7, 8]),
            producer_epoch=0,
            generation_id=client.generation if known else -1,
            member_id=client.member_id if known else "",
            group_instance_id=client.instance if known else None,
            topics=[
                m.TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic(
                    name=self.dice.choice(["t", "u"]),
                    partitions=[
                        m.TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition(
                            partition_index=self.dice.randrange(3),
                            committed_offset=self.dice.randrange(1000),
                            committed_metadata=self.dice.choice(["m", None, "y" * 11][: self.lengths(client)]),
                        )
                    ],
                )
            ],
        )
        self.send(client, "txn_offset_commit", request, 4)

    def ghost(self, client: Client) -> None:
        request = m.HeartbeatRequest(
            group_id=self.dice.choice([client.group, "nowhere"]), generation_id=1, member_id="nobody"
        )
        self.send(client, "heartbeat", request, 2)

    def delete(self, client: Client) -> None:
        request = m.OffsetDeleteRequest(
            group_id=client.group,
            topics=[
                m.OffsetDeleteRequest.OffsetDeleteRequestTopic(
                    name=name, partitions=[m.OffsetDeleteRequest.OffsetDeleteRequestPartition(partition_index=1)]
                )
                for name in ("t", "old")
            ],
        )
        self.send(client, "offset_delete", request, 0)


VERSIONS = {
    "describe": ("DescribeGroupsResponse", 6),
    "fetch": ("OffsetFetchResponse", 9),
    "list": ("ListGroupsResponse", 5),
}


def kafkas(walk: Walk, text: str) -> tuple[list[dict[str, Any]], list[list[tuple[str, str]]]]:
    answers: list[dict[str, Any]] = [{}]
    records: list[list[tuple[str, str]]] = [[]]
    for line in text.splitlines():
        kind, *words = line.split(" ")
        if kind == "=":
            answers.append({})
            records.append([])
        elif kind == "r":
            records[-1].append((words[0], words[1]))
        else:
            label = words[0]
            if label in walk.requests:
                _, request, version = walk.requests[label]
                name = type(request).__name__.replace("Request", "Response")
            else:
                name, version = VERSIONS.get(label.split("-")[0], ("DeleteGroupsResponse", 2))
            answers[-1][label] = CODECS[name].decode(bytes.fromhex(words[1]), version)
    return answers, records


def over_the_wire(response: Any, version: int) -> Any:
    codec = CODECS[type(response).__name__]
    return codec.decode(codec.encode(response, version), version)


@pytest.fixture
def java_order(monkeypatch: pytest.MonkeyPatch) -> None:
    make = ClassicGroup.__init__

    def make_in_java_order(self: ClassicGroup, *args: Any, **kwargs: Any) -> None:
        make(self, *args, **kwargs)
        self.members = JavaOrder()

    monkeypatch.setattr(ClassicGroup, "__init__", make_in_java_order)


def walk_from(seed: int) -> Walk:
    walk = Walk(seed)
    for _ in range(STEPS):
        script_before = len(walk.script)
        walk.step()
        if len(walk.script) == script_before:  # a client that waits did nothing
            walk.answers.pop()
            walk.records.pop()
    return walk


def run_kafka(walk: Walk, folder: Path) -> str:
    script = folder / "script"
    script.write_text("\n".join(walk.script))
    try:
        return run_java(Path(__file__).with_name("Shard.java").read_text("utf-8"), str(script))
    except Unavailable as missing:
        pytest.skip(str(missing))


@pytest.mark.reference
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.usefixtures("java_order")
def test_same_as_kafka(seed: int, tmp_path: Path) -> None:
    walk = walk_from(seed)
    compare(walk, *kafkas(walk, run_kafka(walk, tmp_path)))


@pytest.mark.usefixtures("java_order")
def test_same_as_kafka_was(tmp_path: Path) -> None:
    walk = walk_from(KEPT_SEED)
    if os.environ.get("HEADRACE_REWRITE"):
        kept = "\n".join(walk.script) + "\n\n" + run_kafka(walk, tmp_path)
        # mtime=0: the same run gives the same file.
        KEPT.write_bytes(gzip.compress(kept.encode(), mtime=0))
    script, _, printed = gzip.decompress(KEPT.read_bytes()).decode().partition("\n\n")
    assert walk.script == script.split("\n"), "the clients of this run act differently now: rewrite it"
    compare(walk, *kafkas(walk, printed))


def compare(walk: Walk, answers: list[dict[str, Any]], records: list[list[tuple[str, str]]]) -> None:
    unanswered: dict[str, Any] = {}
    seen: dict[str, int] = defaultdict(int)
    assert len(answers) == len(walk.answers)
    for i, (theirs, ours) in enumerate(zip(answers, walk.answers, strict=True)):
        step = f"step {i}: {walk.script[i]}"
        for label, response in theirs.items():
            version = (
                walk.requests[label][2] if label in walk.requests else VERSIONS.get(label.split("-")[0], ("", 2))[1]
            )
            assert label in ours, f"{step}\nno answer to {label}: {response}"
            assert show(over_the_wire(ours[label], version)) == show(response), f"{step}\n{label}"
            assert over_the_wire(ours[label], version) == response, f"{step}\n{label}"
            seen[type(response).__name__] += 1
        unanswered |= {label: response for label, response in ours.items() if label not in theirs}
        # Kafka writes the tombstone of an offset twice when a transaction has one pending over it.
        assert sorted(set(walk.records[i])) == sorted(set(records[i])), step
    # Whoever waited in vain in Kafka, because it asked again or was removed, gets an answer here.
    for label, response in unanswered.items():
        assert isinstance(response, m.JoinGroupResponse | m.SyncGroupResponse), label
        assert response.error_code in (Err.REBALANCE_IN_PROGRESS, Err.UNKNOWN_MEMBER_ID), (label, response)
    assert seen["JoinGroupResponse"] > 10 and seen["SyncGroupResponse"] > 5
