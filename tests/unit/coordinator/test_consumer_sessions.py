"""Sessions of many members with Apache Kafka's own coordinator (golden/generate/sessions.py), played to ours.

Every record and every answer must be Kafka's: epochs, target assignments, metadata hashes, reconciliation, patterns,
static members, classic members in consumer groups, upgrades, downgrades, timeouts, commits.
"""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from headrace.coordinator.consumer_group import ConsumerGroup
from headrace.coordinator.records import decode
from tests.unit.coordinator.driver import durable
from tests.unit.coordinator.sessions import Ours, difference

SESSIONS: list[dict[str, Any]] = json.loads(
    Path(__file__).with_name("golden").joinpath("consumer-sessions-kafka-4.3.1.json").read_text("utf-8")
)


@pytest.mark.parametrize("session", SESSIONS, ids=lambda session: f"seed{session['seed']}")
def test_decides_as_kafka(session: dict[str, Any]) -> None:
    ours = Ours(session["config"])
    for number, (command, lines) in enumerate(session["events"]):
        wrong = difference(ours, command, lines)
        assert wrong is None, f"event {number}: {command}\n{wrong}"
    live, loaded = ours.driver.shard, ours.driver.reload()
    assert durable(loaded) == durable(live)
    for group_id, group in live.state.groups.live.items():
        if isinstance(group, ConsumerGroup):
            again = loaded.state.groups.get(group_id)
            assert isinstance(again, ConsumerGroup)
            assert again.snapshot() == group.snapshot()


def test_records_are_kafkas_byte_for_byte() -> None:
    """But for the order of topics and partitions, which Kafka leaves to hash tables."""
    same = total = 0
    for session in SESSIONS:
        ours = Ours(session["config"])
        for command, lines in session["events"]:
            records, _ = ours.tell(command, lines)
            theirs = Counter(tuple(line.split(" ")[1:]) for line in lines if line.startswith("record "))
            mine = Counter((key.hex(), "-" if value is None else value.hex()) for key, value in records)
            total += mine.total()
            same += (mine & theirs).total()
    assert total > 4000
    assert same / total > 0.95


def test_sessions_have_everything_in_them() -> None:
    kinds: Counter[tuple[int, bool]] = Counter()
    errors: Counter[int] = Counter()
    for session in SESSIONS:
        for _, lines in session["events"]:
            for line in lines:
                word, *rest = line.split(" ")
                if word == "record":
                    record = decode(bytes.fromhex(rest[0]), None if rest[1] == "-" else bytes.fromhex(rest[1]))
                    assert record is not None
                    kinds[record.kind, record.value is None] += 1
                elif word == "error":
                    errors[int(rest[1])] += 1
    # Epochs, members, targets, current assignments, patterns: written and deleted. Classic groups: both ways.
    assert all(kinds[kind, False] > 4 for kind in (2, 3, 5, 6, 7, 8, 16)), kinds
    assert all(kinds[kind, True] > 4 for kind in (2, 3, 5, 6, 7, 8, 16)), kinds
    # Unknown member, fenced epoch, unreleased and fenced instance, group full, stale epoch, protocols that do not fit.
    assert {25, 110, 111, 82, 81, 113, 23} <= set(errors), errors
