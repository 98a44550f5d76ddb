"""Refusals, bounds, and costs that do not grow: what transcripts do not show."""

from typing import Any

import pytest
from hypothesis import given, strategies as st

from headrace.config import BrokerConfig
from headrace.coordinator import classic, offsets
from headrace.coordinator.outcome import Record, Timer
from headrace.coordinator.records import offset_commit
from headrace.coordinator.shard import GroupShard
from headrace.coordinator.shard_requests import (
    LOG_ERRORS,
    consumer_describe_refusals,
    delete_refusals,
    describe_refusals,
    fetch_refusal,
    refusal,
)
from headrace.coordinator.shard_state import ShardConfig, Timeline
from headrace.errors import Err
from headrace.protocol import messages as m
from headrace.protocol.codec import CODECS
from tests.unit.coordinator.driver import COMMANDS, Driver, Player, topic_id

COMMIT = m.OffsetCommitRequest(
    group_id="g",
    topics=[
        m.OffsetCommitRequest.OffsetCommitRequestTopic(
            name="t", partitions=[m.OffsetCommitRequest.OffsetCommitRequestPartition(partition_index=4)]
        )
    ],
)
TXN_COMMIT = m.TxnOffsetCommitRequest(
    topics=[
        m.TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic(
            name="t", partitions=[m.TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition(partition_index=4)]
        )
    ]
)
REQUESTS = [
    m.JoinGroupRequest(),
    m.SyncGroupRequest(),
    m.HeartbeatRequest(),
    m.LeaveGroupRequest(),
    COMMIT,
    TXN_COMMIT,
    m.OffsetDeleteRequest(),
    m.ConsumerGroupHeartbeatRequest(),
    m.ListGroupsRequest(),
]


def errors_in(message: object) -> set[int]:
    """All error codes of a response, wherever they stand."""
    found = {message.error_code} if hasattr(message, "error_code") else set()
    for name in ("topics", "partitions", "members"):
        for part in getattr(message, name, ()):
            found |= errors_in(part)
    return found - {0}


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda r: type(r).__name__)
def test_every_request_can_be_refused_in_every_version(request_: object) -> None:
    codec = CODECS[type(request_).__name__.replace("Request", "Response")]
    for version in codec.versions:
        response = refusal(request_, Err.NOT_COORDINATOR, version)
        decoded = codec.decode(codec.encode(response, version), version)
        if type(request_) is not m.TxnOffsetCommitRequest or version:
            assert errors_in(decoded) == {Err.NOT_COORDINATOR}, version


def test_errors_of_the_log_are_told_as_errors_of_the_coordinator() -> None:
    for error, told in LOG_ERRORS.items():
        assert errors_in(refusal(COMMIT, error, 9)) == {told}
    assert refusal(m.ConsumerGroupHeartbeatRequest(), Err.FENCED_MEMBER_EPOCH, 0, "why").error_message == "why"


def test_a_heartbeat_is_well_while_the_coordinator_loads() -> None:
    assert errors_in(refusal(m.HeartbeatRequest(), Err.COORDINATOR_LOAD_IN_PROGRESS, 4)) == set()


def test_refusals_of_groups_in_a_list() -> None:
    asked = m.OffsetFetchRequest.OffsetFetchRequestGroup(
        group_id="g", topics=[m.OffsetFetchRequest.OffsetFetchRequestTopics(name="t", partition_indexes=[3])]
    )
    # Version 1 had no place for an error but the partition.
    assert fetch_refusal(asked, Err.NOT_COORDINATOR, 1).topics[0].partitions[0].error_code == Err.NOT_COORDINATOR
    assert fetch_refusal(asked, Err.NOT_COORDINATOR, 2).error_code == Err.NOT_COORDINATOR
    for refuse in (delete_refusals, describe_refusals, consumer_describe_refusals):
        (refused,) = refuse(["g"], Err.NOT_LEADER_OR_FOLLOWER)
        assert (refused.group_id, refused.error_code) == ("g", Err.NOT_COORDINATOR)


def test_configuration_comes_from_the_brokers_options() -> None:
    config = ShardConfig.from_broker(BrokerConfig({"offsets.retention.minutes": "3", "group.max.size": "5"}, {}))
    assert (config.offsets_retention_ms, config.group_max_size) == (180_000, 5)
    assert config.consumer_assignors == ("uniform", "range")
    assert config == ShardConfig(offsets_retention_ms=180_000, group_max_size=5)


def test_ids_given_out_and_not_used_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(classic, "PENDING_MEMBERS_MAX", 3)
    player = Player()
    for _ in range(5):
        COMMANDS["join"](player, "a")
    errors = [response.error_code for _, response in player.driver.answers]
    assert errors == [Err.MEMBER_ID_REQUIRED] * 3 + [Err.GROUP_MAX_SIZE_REACHED] * 2


def test_a_client_id_too_long_for_a_member_id_is_refused() -> None:
    player = Player()
    COMMANDS["join"](player, "a" * 32_767)
    assert player.driver.answers[-1][1].error_code == Err.UNKNOWN_SERVER_ERROR


def settled(members: int) -> tuple[Driver, list[str]]:
    player = Player()
    driver = player.driver
    for i in range(members):
        COMMANDS["join"](player, f"c{i}", v="3", session="1800000", rebalance="1800000")
    driver.elapse(6000)
    group = driver.shard.classic.find("g")
    assert group is not None and len(group.members) == members
    ids = list(group.members)
    for member in [group.leader, *ids]:
        COMMANDS["sync"](player, str(member), member=member)
    assert group.state.value == "Stable"
    return driver, ids


def test_heartbeats_push_their_session_back_and_write_nothing() -> None:
    driver, ids = settled(3)
    log_end = len(driver.log)
    for i in range(100):
        driver.now_ms += 100
        request = m.HeartbeatRequest(group_id="g", generation_id=1, member_id=ids[i % 3])
        outcome = driver.ask(ids[i % 3], "heartbeat", request, 4)
        assert outcome.timers == [Timer(("session", "g", ids[i % 3]), 1_800_000)] and not outcome.records
    assert len(driver.log) == log_end


def test_one_timer_for_each_member_however_often_it_heartbeats() -> None:
    driver, ids = settled(2)
    driver.fired = 0
    for _ in range(360):
        driver.elapse(10_000)
        for member in ids:
            driver.ask(member, "heartbeat", m.HeartbeatRequest(group_id="g", generation_id=1, member_id=member), 4)
    assert driver.fired == 0
    assert sum(key[0] == "session" for key in driver.timers) == 2


def test_a_rebalance_of_thousands_answers_each_once() -> None:
    driver, ids = settled(2000)
    joins = [r for _, r in driver.answers if isinstance(r, m.JoinGroupResponse)]
    assert len(joins) == 2000 and sum(len(r.members) for r in joins) == 2000
    assert sum(isinstance(t, Timer) for t in driver.shard.leave_group(
        m.LeaveGroupRequest(group_id="g", members=[m.LeaveGroupRequest.MemberIdentity(member_id=ids[5])]),
        driver.context("x", 5), driver.now_ms).timers) == 1  # fmt: skip


def test_expiry_goes_in_steps_and_finds_everything() -> None:
    player = Player()
    player.driver = Driver(ShardConfig(offsets_retention_ms=1000))
    driver = player.driver
    for i in range(60):
        offsets = ",".join(f"t/{p}:1" for p in range(500))
        COMMANDS["commit"](player, "a", g=f"g{i}", offsets=offsets)
    driver.elapse(1000)
    steps = 0
    while True:
        outcome = driver.shard.expire(driver.now_ms)
        assert not outcome.atomic and len(outcome.records) <= 11_000
        driver.run(outcome)
        steps += 1
        if not outcome.response:
            break
    assert steps == 3
    assert driver.shard.offsets.count == 0 and not driver.shard.state.groups.live


def test_a_timeline_shows_both_the_newest_and_the_committed() -> None:
    timeline: Timeline[str, int] = Timeline(committed_end=5)
    timeline.put("a", 1, 3)
    assert (timeline.get("a"), timeline.committed("a")) == (1, 1)
    timeline.put("a", 2, 5)
    timeline.put("b", 3, 6)
    timeline.remove("a", 7)
    timeline.put("a", 4, 8)
    assert (timeline.get("a"), timeline.committed("a")) == (4, 1)
    assert dict(timeline.committed_items()) == {"a": 1}
    timeline.advance(7)
    assert dict(timeline.committed_items()) == {"a": 2, "b": 3}
    timeline.advance(8)
    assert dict(timeline.committed_items()) == {"b": 3}
    timeline.advance(9)
    assert dict(timeline.committed_items()) == {"a": 4, "b": 3}
    timeline.remove("never", 9)
    assert dict(timeline.committed_items()) == {"a": 4, "b": 3}


changes = st.lists(
    st.tuples(st.sampled_from("ab"), st.none() | st.integers(0, 3))
    | st.integers(1, 4),  # a change, or the watermark's step
    max_size=30,
)


@given(changes)
def test_what_is_committed_is_what_the_log_says_up_to_the_high_watermark(
    steps: list[tuple[str, int | None] | int],
) -> None:
    timeline: Timeline[str, int] = Timeline()
    shard = GroupShard(ShardConfig())
    log: list[tuple[str, int | None]] = []
    high_watermark = 0
    for step in steps:
        if isinstance(step, int):
            high_watermark = min(high_watermark + step, len(log))
            timeline.advance(high_watermark)
            shard.advance(high_watermark)
        else:
            key, value = step
            if value is None:
                timeline.remove(key, len(log))
            else:
                timeline.put(key, value, len(log))
            commit = None if value is None else m.OffsetCommitValue(value)
            shard.apply(len(log), -1, -1, offset_commit("g", key, 0, commit))
            log.append(step)
        for end, committed in ((len(log), False), (high_watermark, True)):
            expected = {key: value for key, value in dict(log[:end]).items() if value is not None}
            assert dict(timeline.committed_items() if committed else timeline.live) == expected
            found = {topic: value.offset for topic, _, value in shard.offsets.items("g", committed=committed)}
            assert found == expected
            for key in "ab":
                one = shard.offsets.get("g", key, 0, committed=committed)
                assert (one and one.offset) == expected.get(key)
                assert (timeline.committed(key) if committed else timeline.get(key)) == expected.get(key)


def test_a_commit_that_can_fit_no_batch_is_refused_before_all_of_it_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    made = 0

    def counted(*arguments: Any) -> Record:
        nonlocal made
        made += 1
        return offset_commit(*arguments)

    monkeypatch.setattr(offsets, "offset_commit", counted)
    shard = GroupShard(ShardConfig(batch_bytes_max=10_000))
    kind = m.OffsetCommitRequest
    for count, error in ((100, Err.NONE), (50_000, Err.UNKNOWN_SERVER_ERROR)):
        rows = [kind.OffsetCommitRequestPartition(index, 5) for index in range(count)]
        request = kind(group_id="g", topics=[kind.OffsetCommitRequestTopic(name="t", partitions=rows)])
        outcome = shard.offset_commit(request, Driver().context("a", 9), 0)
        assert [row.error_code for row in outcome.response.topics[0].partitions] == [error] * count
        assert len(outcome.records) == (0 if error else count)
    assert made < 500


def test_an_offset_belongs_to_the_topic_with_its_id() -> None:
    player = Player()
    COMMANDS["commit"](player, "a", v="10", offsets="t/0:5")
    asked = m.OffsetFetchRequest.OffsetFetchRequestGroup(
        group_id="g",
        topics=[
            m.OffsetFetchRequest.OffsetFetchRequestTopics(name="t", topic_id=i, partition_indexes=[0])
            for i in (topic_id("t"), bytes(16), topic_id("another"))
        ],
    )
    fetched = player.driver.shard.fetch_offsets(asked, False, 10)
    assert [topic.partitions[0].committed_offset for topic in fetched.topics] == [5, 5, -1]
