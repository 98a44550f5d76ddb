"""Voters, their history, what must never happen, and the quorum's messages in every version of the protocol."""

from typing import Any

import pytest

from headrace.errors import Err
from headrace.protocol.api import API, ApiKey
from headrace.raft import messages as r
from headrace.raft.types import NO_DIRECTORY, OffsetEpoch, RaftError, ReplicaKey
from headrace.raft.voters import History, Voter, VoterSet
from headrace.raft.wire import Refused, decode_reply, decode_request, encode_reply, encode_request
from tests.simulation.raft_model import Model
from tests.unit.raft.script import Script

CLUSTER = "the cluster"


def voters(*ids: int) -> VoterSet:
    return VoterSet(Model.voter(i) for i in ids)


# --- voters -----------------------------------------------------------------------------------------------------------


def test_a_majority_is_more_than_half() -> None:
    assert [voters(*range(n)).majority for n in (1, 2, 3, 4, 5)] == [1, 2, 2, 3, 3]


def test_a_vote_belongs_to_a_disk_unless_no_disk_is_named() -> None:
    named = voters(1, 2)
    assert named.has(ReplicaKey(1, Model.voter(1).directory_id))
    assert not named.has(ReplicaKey(1, b"x" * 16))
    assert not named.has(ReplicaKey(1))
    assert not named.has(ReplicaKey(3))
    static = VoterSet([Voter(1, NO_DIRECTORY, ())])
    assert static.has(ReplicaKey(1, b"x" * 16)) and not static.has(ReplicaKey(2))


def test_the_last_voter_cannot_be_removed() -> None:
    own = ReplicaKey(1, Model.voter(1).directory_id)
    assert voters(1).without(own) is None
    assert voters(1, 2).without(ReplicaKey(1, b"x" * 16)) is None
    fewer = voters(1, 2).without(own)
    assert fewer is not None and fewer.ids == [2]


def test_an_endpoint_is_found_by_listener_or_as_the_only_one() -> None:
    one = Voter(1, NO_DIRECTORY, (("A", "a", 1),))
    assert one.address("B") == ("a", 1)
    two = Voter(1, NO_DIRECTORY, (("A", "a", 1), ("B", "b", 2)))
    assert two.address("B") == ("b", 2) and two.address("C") is None


def test_what_a_record_said_is_taken_back_with_it() -> None:
    history = History("formatted")
    history.add(3, "three")
    history.add(7, "seven")
    assert (history.last, history.last_offset) == ("seven", 7)
    assert [history.at(offset) for offset in (0, 2, 3, 6, 7, 9)] == ["formatted"] * 2 + ["three"] * 2 + ["seven"] * 2
    history.truncate_from(7)
    assert history.last == "three"
    history.truncate_from(0)
    assert (history.last, history.last_offset) == ("formatted", -1)
    history.add(2, "two")
    assert history.at(2) == "two"
    history.restart(20, "snapshot")
    assert (history.last, history.last_offset) == ("snapshot", 20)


def test_the_later_epoch_then_the_longer_log_wins() -> None:
    assert OffsetEpoch(1, 5).at_least(OffsetEpoch(9, 4))
    assert not OffsetEpoch(9, 4).at_least(OffsetEpoch(1, 5))
    assert OffsetEpoch(9, 4).at_least(OffsetEpoch(9, 4))
    assert not OffsetEpoch(8, 4).at_least(OffsetEpoch(9, 4))


# --- what must not be -------------------------------------------------------------------------------------------------


def test_nothing_committed_is_ever_cut() -> None:
    script = Script()
    for line in ("start voters=1,2,3 epoch=3 leader=2 log=1:3,2:6", "records hw=5"):
        script.command(line)
    with pytest.raises(RaftError, match="below what is committed"):
        script.command("diverging 3@1")


def test_a_second_leader_of_an_epoch_is_not_followed() -> None:
    script = Script()
    for line in ("start voters=1,2,3 epoch=3 leader=2", "records hw=0"):
        script.command(line)
    assert "follower of 2" in script.command("begin leader=3 epoch=3")[-1]


def test_a_deposed_leader_does_not_claim_what_it_has_not_synced() -> None:
    script = Script()
    lines = "start voters=1,2,3|at 100|granted 2|saved|granted 2|saved|synced|write 3|begin leader=3 epoch=2"
    for line in lines.split("|"):
        out = script.command(line)
    assert not any("Fetch" in line for line in out), "its tail may be lost yet"
    assert any("Fetch from 5@1" in line for line in script.command("synced"))


def test_a_late_answer_of_an_earlier_leader_is_not_appended() -> None:
    script = Script()
    script.command("start voters=1,2,3 epoch=3 leader=2")
    late = script.sent.pop("Fetch")
    script.command("begin leader=3 epoch=4")
    answered = r.Answered(late[0], late[1], r.FetchReply(Err.NONE, r.Leadership(3, 2), 5, 0, records=["x"]))
    assert not any(isinstance(effect, r.AppendFetched) for effect in script.node.step(answered, script.now_ms))


# --- the wire ---------------------------------------------------------------------------------------------------------

ENDPOINTS = (("CONTROLLER", "host", 9093),)
KEY = ReplicaKey(2, b"d" * 16)
REQUESTS: list[r.Request] = [
    r.Vote(7, KEY, OffsetEpoch(40, 6), True, ReplicaKey(1, b"e" * 16)),
    r.Vote(7, KEY, OffsetEpoch(40, 6), False),
    r.BeginEpoch(7, 2, ENDPOINTS, ReplicaKey(1, b"e" * 16)),
    r.EndEpoch(7, 2, (KEY, ReplicaKey(3, b"f" * 16)), ENDPOINTS),
    r.Fetch(7, KEY, 40, 6, 500, 33),
    r.FetchSnapshot(7, KEY, OffsetEpoch(30, 5), 1000),
    r.AddVoter(Voter(4, b"g" * 16, ENDPOINTS), 1000, False),
    r.RemoveVoter(KEY),
    r.UpdateVoter(7, Voter(4, b"g" * 16, ENDPOINTS, (0, 1))),
]
SAID = r.Leadership(7, 2, ENDPOINTS)
REPLIES: list[tuple[r.Request, r.Reply]] = [
    (REQUESTS[0], r.VoteReply(Err.NONE, SAID, True)),
    (REQUESTS[0], r.VoteReply(Err.FENCED_LEADER_EPOCH, r.Leadership(8))),
    (REQUESTS[2], r.EpochReply(Err.INVALID_VOTER_KEY, SAID)),
    (REQUESTS[3], r.EpochReply(Err.NONE, SAID)),
    (REQUESTS[4], r.FetchReply(Err.NONE, SAID, 33, 5, records=b"batch")),
    (REQUESTS[4], r.FetchReply(Err.NONE, SAID, 33, 5, diverging=OffsetEpoch(30, 4), records=b"")),
    (REQUESTS[4], r.FetchReply(Err.NONE, SAID, 33, 5, snapshot=OffsetEpoch(30, 4), records=b"")),
    (REQUESTS[4], r.FetchReply(Err.NOT_LEADER_OR_FOLLOWER, r.Leadership(7), records=b"")),
    (REQUESTS[5], r.SnapshotReply(Err.NONE, SAID, OffsetEpoch(30, 5), 5000, 1000, b"piece")),
    (REQUESTS[8], r.VoterReply(Err.VOTER_NOT_FOUND, SAID)),
    (REQUESTS[7], r.VoterReply(Err.DUPLICATE_VOTER, r.Leadership(-1), "why")),
]


def through(codec: Any, body: Any, version: int) -> Any:
    return codec.decode(codec.encode(body, version), version)


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda one: type(one).__name__)
def test_requests_survive_the_wire(request_: r.Request) -> None:
    key, body = encode_request(request_, CLUSTER)
    version = API[key].latest_stable
    assert decode_request(key, through(API[key].request, body, version), version, CLUSTER) == request_


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda one: type(one).__name__)
def test_requests_can_be_said_in_every_version(request_: r.Request) -> None:
    """Older nodes do not know directories, endpoints or high watermarks; epochs, ids and offsets they do."""
    key, body = encode_request(request_, CLUSTER)
    lowest = 15 if key is ApiKey.FETCH else API[key].min_version
    for version in range(lowest, API[key].latest_stable + 1):
        if key is ApiKey.VOTE and version < 2 and isinstance(request_, r.Vote) and request_.pre_vote:
            continue
        if key is ApiKey.ADD_RAFT_VOTER and version < 1:
            continue
        decoded = decode_request(key, through(API[key].request, body, version), version, CLUSTER)
        for name in ("epoch", "offset", "last", "last_epoch", "leader_id", "position", "snapshot"):
            assert getattr(decoded, name, None) == getattr(request_, name, None), (version, name)


@pytest.mark.parametrize(("request_", "reply"), REPLIES, ids=lambda one: type(one).__name__)
def test_replies_survive_the_wire(request_: r.Request, reply: r.Reply) -> None:
    key, _ = encode_request(request_, CLUSTER)
    version = API[key].latest_stable
    answer = through(API[key].response, encode_reply(key, reply, version, "CONTROLLER"), version)
    assert decode_reply(request_, answer, "CONTROLLER") == reply


def test_other_clusters_and_other_topics_are_refused() -> None:
    for request in REQUESTS:
        key, body = encode_request(request, "another")
        with pytest.raises(Refused) as refused:
            decode_request(key, body, API[key].latest_stable, CLUSTER)
        assert refused.value.response.error_code == Err.INCONSISTENT_CLUSTER_ID
    for request in REQUESTS[:6]:
        key, body = encode_request(request, CLUSTER)
        for topic in body.topics:
            for name in ("topic_name", "name", "topic"):
                if hasattr(topic, name):
                    setattr(topic, name, "mine")
            if hasattr(topic, "topic_id"):
                topic.topic_id = b"t" * 16
        with pytest.raises(Refused):
            decode_request(key, body, API[key].latest_stable, CLUSTER)
