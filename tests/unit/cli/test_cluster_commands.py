"""What the cluster commands read and refuse, and how they watch a move; the real thing is in tests/cluster."""

import asyncio
import json
from pathlib import Path
from typing import cast

import pytest

from headrace.cli.cluster import split_partition
from headrace.cli.cluster_moves import Progress, View, copies_of, parse_rate, plan_document, read_plan, watch
from headrace.cli.cluster_quorum import NO_DIRECTORY, refuse_fixed
from headrace.cli.supervisor import child_environment
from headrace.client.admin.operations import Move, Operations, Quorum, QuorumReplica
from headrace.client.errors import ClientError
from headrace.client.net.cluster import Partition, Topic


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("50MB", 50_000_000),
        ("50mb/s", 50_000_000),
        ("1.5g", 1_500_000_000),
        ("200000", 200_000),
        ("8 kB", 8_000),
        (None, None),
    ],
)
def test_rates_as_people_write_them(text: str | None, rate: int | None) -> None:
    assert parse_rate(text) == rate


@pytest.mark.parametrize("text", ["", "fast", "-5MB", "0", "5TB", "MB"])
def test_what_is_no_rate(text: str) -> None:
    with pytest.raises(ClientError, match="such as 50MB"):
        parse_rate(text)


def test_plans_are_kafkas_and_come_back_as_they_were(tmp_path: Path) -> None:
    plan = {("a-b", 0): (1, 2), ("c", 3): (2,)}
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(plan_document(plan)))
    assert read_plan(file) == plan


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "is no reassignment plan"),
        ('{"partitions": [{"topic": "t"}]}', "is no reassignment plan"),
        ('{"partitions": [{"topic": "t", "partition": 0, "replicas": [1, 1]}]}', "t-0 names a broker twice, or none"),
        ('{"partitions": [{"topic": "t", "partition": 0, "replicas": []}]}', "t-0 names a broker twice, or none"),
    ],
)
def test_what_is_no_plan(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "plan.json"
    file.write_text(text)
    with pytest.raises(ClientError, match=words):
        read_plan(file)


def test_a_plan_that_is_not_there() -> None:
    with pytest.raises(ClientError, match="cannot read /no/plan: No such file"):
        from pathlib import Path

        read_plan(Path("/no/plan"))


def test_partitions_as_people_write_them() -> None:
    assert split_partition("orders") == ("orders", None)
    assert split_partition("orders:3") == ("orders", 3)
    with pytest.raises(ClientError, match="TOPIC:PARTITION"):
        split_partition("orders:three")


def test_what_tells_nodes_apart_is_not_taken_from_the_environment() -> None:
    given = {"HEADRACE_NODE_ID": "7", "HEADRACE_LISTENERS": "x", "HEADRACE_LOG_RETENTION_HOURS": "1", "HOME": "/"}
    assert child_environment(given) == {"HEADRACE_LOG_RETENTION_HOURS": "1", "HOME": "/"}


class Moving:
    """A cluster whose moves end one look after the other."""

    def __init__(self, after: list[tuple[int, ...]]) -> None:
        self.after = after
        self.left = [Move("t", 0, (1, 2), (2,), (1,)), Move("t", 1, (1, 2), (2,), (1,)), Move("other", 0, (), (), ())]
        self.looks = 0

    async def moves(self) -> list[Move]:
        self.looks += 1
        found = list(self.left)
        if self.left[0].topic == "t":
            self.left.pop(0)
        return found

    async def replica_bytes(self, nodes: object) -> dict[tuple[int, str, int], int]:
        return {(2, "t", 0): 10, (2, "t", 1): 20}

    async def topics(self) -> list[Topic]:
        return [Topic("t", b"", False, {i: Partition(i, 2, 1, to, to, ()) for i, to in enumerate(self.after)})]


class Shown:
    def __init__(self) -> None:
        self.updates: list[object] = []

    def update(self, done: int, copied: int, to_copy: int) -> None:
        self.updates.append((done, copied))

    def close(self) -> None:
        self.updates.append("closed")


CHANGES: dict[tuple[str, int], tuple[int, ...]] = {("t", 0): (2,), ("t", 1): (2,)}
BEFORE = View({("t", 0): (1,), ("t", 1): (1,)}, {1: None, 2: None}, {("t", 0): 100, ("t", 1): 200})


async def no_sleep(seconds: float) -> None:
    return None


def test_a_move_is_watched_to_its_end_and_others_do_not_count() -> None:
    cluster, shown = Moving([(2,), (2,)]), Shown()
    asyncio.run(watch(cast(Operations, cluster), BEFORE, CHANGES, cast(Progress, shown), no_sleep))
    assert shown.updates == [(0, 30), (1, 30), (2, 300), "closed"]
    assert copies_of(BEFORE, CHANGES) == {("t", 0): [2], ("t", 1): [2]}


def test_a_move_that_was_called_off_is_told() -> None:
    with pytest.raises(ClientError, match="1 moves were called off or replaced by others meanwhile, t-1 among them"):
        asyncio.run(watch(cast(Operations, Moving([(2,), (1,)])), BEFORE, CHANGES, None, no_sleep))


def test_voters_that_are_known_by_number_alone_are_left_alone() -> None:
    def quorum_of(*directories: bytes) -> Quorum:
        voters = (QuorumReplica(node, directory, 5, 0, 0) for node, directory in enumerate(directories, 1))
        return Quorum(1, 1, 5, tuple(voters), ())

    refuse_fixed(quorum_of(b"a" * 16, b"b" * 16))
    with pytest.raises(ClientError, match=r"fixed .*kraft\.version=1"):
        refuse_fixed(quorum_of(NO_DIRECTORY, NO_DIRECTORY))
