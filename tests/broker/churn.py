"""What comes and goes at a broker, each kind so often that a leak would show."""

from collections.abc import Callable
from typing import Protocol

from tests.broker.support import PATIENCE_S, fetch_fields, produce_fields
from tests.compat.raw import Connection, Rec, batch, encode_request
from tests.waiting import eventually

COUNT = 30


class Served(Protocol):
    """Any broker."""

    port: int


def create(wire: Connection, names: list[str]) -> None:
    rows = [{"name": name, "num_partitions": 2, "replication_factor": 1} for name in names]
    answer = wire.ask("CreateTopics", 5, {"topics": rows, "timeout_ms": 30_000})
    assert [topic.error_code for topic in answer.topics] == [0] * len(names)


def delete(wire: Connection, names: list[str]) -> None:
    answer = wire.ask("DeleteTopics", 5, {"topic_names": names, "timeout_ms": 30_000})
    assert [topic.error_code for topic in answer.responses] == [0] * len(names)


def topics(broker: Served, tag: str) -> None:
    """Made, written, read, and deleted while a reader waits."""
    names = [f"{tag}-{number}" for number in range(COUNT)]
    with Connection(broker.port, PATIENCE_S) as wire, Connection(broker.port, PATIENCE_S) as reader:
        create(wire, names)
        for name in names:
            data = batch(Rec(b"x" * 1000), producer=(7, 0, 0))
            answer = wire.ask("Produce", 9, produce_fields(name, 0, data))
            assert answer.responses[0].partition_responses[0].error_code == 0
            reader.ask("Fetch", 12, fetch_fields(name, 0, 0))
        reader.send(_waiting_fetch(names[0], 1))
        delete(wire, names)
        reader.receive()


def _waiting_fetch(topic: str, offset: int) -> bytes:
    return encode_request("Fetch", 12, fetch_fields(topic, 0, offset, max_wait_ms=20_000))


def connections(broker: Served, tag: str) -> None:
    for number in range(COUNT):
        with Connection(broker.port, PATIENCE_S) as wire:
            wire.ask("ApiVersions", 0, {})
            wire.ask("Metadata", 5, {"topics": []})
            if number % 2:
                wire.send_bytes(b"\0\0\1\0 half a frame")


def sessions(broker: Served, tag: str) -> None:
    with Connection(broker.port, PATIENCE_S) as wire:
        create(wire, [tag])
        for _ in range(COUNT):
            answer = wire.ask("Fetch", 12, fetch_fields(tag, 0, 0, session_epoch=0))
            assert answer.session_id
            closing = {"session_id": answer.session_id, "session_epoch": -1, "max_bytes": 1}
            wire.ask("Fetch", 12, fetch_fields(tag, 0, 0) | closing)
        delete(wire, [tag])


def polls(broker: Served, tag: str) -> None:
    """Reads that find nothing: by turns the wait runs out, and the connection is lost."""
    with Connection(broker.port, PATIENCE_S) as wire:
        create(wire, [tag])
        for _ in range(COUNT):
            wire.ask("Fetch", 12, fetch_fields(tag, 0, 0, max_wait_ms=1))
            with Connection(broker.port, PATIENCE_S) as reader:
                reader.send(_waiting_fetch(tag, 0))
        delete(wire, [tag])


def groups(broker: Served, tag: str) -> None:
    """Classic groups of one member that join, sync, commit, leave and are deleted."""
    with Connection(broker.port, PATIENCE_S) as wire:
        create(wire, [tag])
        names = [f"{tag}-group-{number}" for number in range(COUNT)]
        coordinator_found(wire, names[0])
        for name in names:
            join = {
                "group_id": name, "session_timeout_ms": 30_000, "rebalance_timeout_ms": 30_000, "member_id": "",
                "protocol_type": "consumer", "protocols": [{"name": "range", "metadata": b""}],
            }  # fmt: skip
            joined = wire.ask("JoinGroup", 3, join)
            assert joined.error_code == 0
            member = {"group_id": name, "generation_id": joined.generation_id, "member_id": joined.member_id}
            rows = [{"member_id": joined.member_id, "assignment": b"x"}]
            assert wire.ask("SyncGroup", 2, member | {"assignments": rows}).error_code == 0
            commit = [{"name": tag, "partitions": [{"partition_index": 0, "committed_offset": 0}]}]
            who = {
                "group_id": name,
                "generation_id_or_member_epoch": joined.generation_id,
                "member_id": joined.member_id,
            }
            answer = wire.ask("OffsetCommit", 5, who | {"topics": commit})
            assert answer.topics[0].partitions[0].error_code == 0
            assert wire.ask("LeaveGroup", 2, {"group_id": name, "member_id": joined.member_id}).error_code == 0
        answer = wire.ask("DeleteGroups", 1, {"groups_names": names})
        assert [group.error_code for group in answer.results] == [0] * COUNT
        delete(wire, [tag])


def coordinator_found(wire: Connection, group: str) -> None:
    eventually(lambda: wire.ask("FindCoordinator", 2, {"key": group}).error_code == 0, "a coordinator")
    query = {"group_id": group, "topics": []}
    eventually(lambda: wire.ask("OffsetFetch", 3, query).error_code == 0, "which has loaded")


def producers(broker: Served, tag: str) -> None:
    with Connection(broker.port, PATIENCE_S) as wire:
        create(wire, [tag])
        for _ in range(COUNT):
            answer = wire.ask("InitProducerId", 1, {"transactional_id": None, "transaction_timeout_ms": 60_000})
            data = batch(Rec(b"x"), producer=(answer.producer_id, answer.producer_epoch, 0))
            wire.ask("Produce", 9, produce_fields(tag, 0, data))
        delete(wire, [tag])


Churn = Callable[[Served, str], None]
EVERYTHING: tuple[Churn, ...] = (topics, connections, sessions, polls, groups, producers)
