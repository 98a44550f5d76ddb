"""Records of groups and offsets: Kafka's bytes both ways, old versions, and what cannot be read."""

import gzip
import struct
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from headrace.coordinator import records
from headrace.coordinator.classic_group import ClassicGroup, in_java_order
from headrace.coordinator.records import decode, decode_offset_commit, offset_commit, record
from headrace.coordinator.shard import GroupShard
from headrace.coordinator.shard_state import ShardConfig
from headrace.protocol import messages as m
from headrace.protocol.primitives import ProtocolError

KEPT = Path(__file__).with_name("golden") / "shard-kafka-4.3.1.txt.gz"


def kafkas_records() -> set[tuple[bytes, bytes | None]]:
    """The records that Kafka's own coordinator wrote in the run that is kept."""
    found = set()
    for line in gzip.decompress(KEPT.read_bytes()).decode().splitlines():
        if line.startswith("r "):
            _, key, value = line.split(" ")
            found.add((bytes.fromhex(key), None if value == "-" else bytes.fromhex(value)))
    return found


def test_kafkas_records_are_read_and_written_the_same() -> None:
    kinds = set()
    for key, value in kafkas_records():
        read = decode(key, value)
        assert read is not None
        if read.kind == 1:
            group, topic, partition, commit = decode_offset_commit(key, value)
            assert commit == read.value_message
            again = offset_commit(group, topic, partition, commit)
            kinds.add((1, None if value is None else value[1], commit is not None and commit.topic_id != bytes(16)))
        elif value is None:
            again = record(read.key_message, None)
        else:
            assert read.value_message is not None
            again = ClassicGroup.from_record(read.key_message.group, read.value_message).record()
            kinds.add((2, value[1], bool(read.value_message.members)))
        assert (again.key, again.value) == (key, value)
    assert kinds == {(1, None, False), (1, 1, False), (1, 4, False), (1, 4, True), (2, 3, False), (2, 3, True)}


names = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
int64 = st.integers(-(2**63), 2**63 - 1)
int32 = st.integers(-(2**31), 2**31 - 1)


@given(
    names,
    names,
    int32,
    int64,
    int32,
    names,
    int64,
    st.sampled_from([-1, 7]),
    st.binary(min_size=16, max_size=16) | st.just(bytes(16)),
)
def test_the_fast_path_writes_and_reads_like_the_codec(
    group: str,
    topic: str,
    partition: int,
    offset: int,
    epoch: int,
    metadata: str,
    at: int,
    expires: int,
    topic_id: bytes,
) -> None:
    value = m.OffsetCommitValue(offset, epoch, metadata, at, expires, topic_id)
    fast = offset_commit(group, topic, partition, value)
    slow = record(m.OffsetCommitKey(group=group, topic=topic, partition=partition), value, 4 if expires == -1 else 1)
    assert (fast.key, fast.value) == (slow.key, slow.value)
    assert decode_offset_commit(fast.key, fast.value)[:3] == (group, topic, partition)
    general = decode(slow.key, slow.value)
    assert general is not None
    assert decode_offset_commit(fast.key, fast.value)[3] == general.value_message


@pytest.mark.parametrize("topic_id", [bytes(16), b"\1" * 16])
def test_most_of_a_log_is_read_without_the_codec(topic_id: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """A million commits are loaded after a restart: a fast path that no longer fits what is written costs seconds."""
    value = m.OffsetCommitValue(5, 3, "", 9, -1, topic_id)
    written = offset_commit("g", "t", 1, value)
    monkeypatch.setattr(records, "_decode_value", None)
    assert decode_offset_commit(written.key, written.value) == ("g", "t", 1, value)


@given(st.binary(max_size=40), st.none() | st.binary(max_size=60))
def test_garbage_is_refused_or_skipped_never_worse(key: bytes, value: bytes | None) -> None:
    for k in (key, b"\0\1" + key, b"\0\2" + key):
        shard = GroupShard(ShardConfig())
        shard.replay(0, -1, -1, k, value)
        try:
            decode(k, value)
        except ProtocolError:
            assert shard.skipped == 1


@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_offsets_of_older_kafkas(version: int) -> None:
    value = m.OffsetCommitValue(offset=5, metadata="m", commit_timestamp=9)
    old = record(m.OffsetCommitKey(group="g", topic="t", partition=1), value, version)
    shard = GroupShard(ShardConfig())
    shard.advance(10)
    shard.replay(3, -1, -1, old.key, old.value)
    found = shard.offsets.get("g", "t", 1, committed=True)
    assert found is not None
    assert (found.offset, found.metadata, found.commit_timestamp_ms, found.record_offset) == (5, "m", 9, 3)


def test_the_oldest_offsets_and_kinds_from_the_future() -> None:
    notes: list[str] = []
    shard = GroupShard(ShardConfig(), note=notes.append)
    shard.advance(10)
    legacy = record(
        m.LegacyOffsetCommitKey(group="g", topic="t", partition=0),
        m.LegacyOffsetCommitValue(offset=4, metadata="", commit_timestamp=1),
    )
    shard.replay(0, -1, -1, legacy.key, legacy.value)
    found = shard.offsets.get("g", "t", 0, committed=True)
    assert found is not None and found.offset == 4
    shard.replay(1, -1, -1, struct.pack(">h", 99) + b"anything", b"\0\0")
    share = record(m.ShareGroupMetadataKey(group_id="s"), m.ShareGroupMetadataValue(epoch=1))
    shard.replay(2, -1, -1, share.key, share.value)
    assert shard.skipped == 2 and len(notes) == 2
    shard.replay(3, -1, -1, legacy.key, None)
    assert shard.offsets.count == 0


@pytest.mark.parametrize("version", [0, 1, 2, 3, 4])
def test_groups_of_older_and_newer_kafkas(version: int) -> None:
    member = m.GroupMetadataValue.MemberMetadata(
        member_id="a", client_id="c", client_host="/h", session_timeout=7000, subscription=b"\0\1", assignment=b"A"
    )
    value = m.GroupMetadataValue(protocol_type="consumer", generation=3, protocol="range", leader="a", members=[member])
    made = record(m.GroupMetadataKey(group="g"), value, version)
    shard = GroupShard(ShardConfig())
    shard.replay(0, -1, -1, made.key, made.value)
    group = shard.classic.find("g")
    assert group is not None
    assert (group.generation, group.leader, group.state.value) == (3, "a", "Stable")
    # Before version 1 there was no rebalance timeout; the session's stands in for it.
    assert group.members["a"].rebalance_timeout_ms == 7000


def test_a_group_record_that_contradicts_itself_is_loaded_as_far_as_it_goes() -> None:
    member = m.GroupMetadataValue.MemberMetadata
    value = m.GroupMetadataValue(
        protocol_type="consumer",
        generation=3,
        protocol=None,
        leader="gone",
        members=[
            member(member_id="a", group_instance_id="i"),
            member(member_id="b", group_instance_id="i"),
            member(member_id="a"),
        ],
    )
    group = ClassicGroup.from_record("g", value)
    assert list(group.members) == ["a"] and group.leader == "a"
    assert group.record().value is not None


def test_names_in_the_order_of_javas_hash_map() -> None:
    # As printed by Java 17 for new HashMap of these keys.
    assert in_java_order(["range", "roundrobin", "sticky", "cooperative-sticky"]) == [
        "sticky",
        "range",
        "roundrobin",
        "cooperative-sticky",
    ]
