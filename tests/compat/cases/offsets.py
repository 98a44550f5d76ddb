"""Where offsets lie: ListOffsets, OffsetForLeaderEpoch, DeleteRecords."""

from typing import Any

from tests.compat.cases import Talk, case
from tests.compat.raw import FIXED_MS, Rec, batch


def where(topic: str, *partitions: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"name": topic, "partitions": list(partitions)}]


def at(timestamp: int, partition: int = 0, **more: Any) -> dict[str, Any]:
    return {"partition_index": partition, "timestamp": timestamp, **more}


@case("ListOffsets")
def specials(t: Talk) -> None:
    t.three_batches(t.topic(partitions=2))
    for number in (-1, -2, -3, -4, -5, -6, -7, -100):
        t.note(f"timestamp {number}")
        t.ask(replica_id=-1, topics=where(t.name(), at(number), at(number, 1)))


@case("ListOffsets")
def times(t: Talk) -> None:
    t.three_batches(t.topic())
    for after in (-1, 0, 1, 10, 11, 20, 21):
        t.note(f"{after} ms after the first")
        t.ask(replica_id=-1, topics=where(t.name(), at(FIXED_MS + after)))
    t.ask(replica_id=-1, topics=where(t.name(), at(0)))
    t.ask(replica_id=-1, topics=where(t.name(), at((1 << 63) - 1)))


@case("ListOffsets", versions=[1, 7, 11])
def times_inside_batches(t: Talk) -> None:
    topic = t.topic()
    t.produced(topic, batch(Rec(b"a", None, 30), Rec(b"b", None, 10), Rec(b"c", None, 20)))
    t.produced(topic, batch(Rec(b"d", None, 5), Rec(b"e", None, 30)))
    for after in (0, 6, 15, 25, 30, 31):
        t.note(f"{after} ms")
        t.ask(replica_id=-1, topics=where(topic, at(FIXED_MS + after)))
    if t.version >= 7:
        t.note("the largest timestamp")
        t.ask(replica_id=-1, topics=where(topic, at(-3)))


@case("ListOffsets")
def unknown_places(t: Talk) -> None:
    t.topic()
    t.ask(replica_id=-1, topics=where(t.name("nowhere"), at(-1)))
    t.ask(replica_id=-1, topics=where(t.name(), at(-1, 5), at(-1, -1)))
    t.ask(replica_id=-1, topics=where("a b", at(-1)))
    t.ask(replica_id=-1, topics=[])


@case("ListOffsets")
def named_twice(t: Talk) -> None:
    t.three_batches(t.topic())
    t.ask(replica_id=-1, topics=where(t.name(), at(-1), at(-2)))


@case("ListOffsets")
def replicas(t: Talk) -> None:
    t.three_batches(t.topic())
    for replica in (-1, -2, -3, 1, 99):
        t.note(f"replica {replica}")
        t.ask(replica_id=replica, topics=where(t.name(), at(-1)))


@case("ListOffsets", versions=range(2, 12))
def isolation_levels(t: Talk) -> None:
    t.three_batches(t.topic())
    for level in (0, 1, 2):
        t.note(f"level {level}")
        t.ask(replica_id=-1, isolation_level=level, topics=where(t.name(), at(-1)))


@case("ListOffsets", versions=range(4, 12))
def leader_epochs(t: Talk) -> None:
    t.three_batches(t.topic())
    for epoch in (-1, 0, 1, -2):
        t.note(f"epoch {epoch}")
        t.ask(replica_id=-1, topics=where(t.name(), at(-1, current_leader_epoch=epoch)))


@case("ListOffsets")
def after_deleting_records(t: Talk) -> None:
    t.three_batches(t.topic())
    t.call("DeleteRecords", topics=where(t.name(), {"partition_index": 0, "offset": 4}), timeout_ms=5000)
    for timestamp in (-2, -1, FIXED_MS):
        t.ask(replica_id=-1, topics=where(t.name(), at(timestamp)))


@case("ListOffsets", versions=[1, 7, 8, 11])
def logs_without_times_or_records(t: Talk) -> None:
    t.topic("empty")
    t.topic("timeless")
    t.produced(t.name("timeless"), batch(b"a", base_timestamp=-1), batch(b"b", base_timestamp=-1))
    t.three_batches(t.topic("cut"))
    t.call("DeleteRecords", topics=where(t.name("cut"), {"partition_index": 0, "offset": 6}), timeout_ms=5000)
    for label in ("empty", "timeless", "cut"):
        for timestamp in (-1, -2, -3, -4, 0, FIXED_MS, 1 << 50):
            t.note(f"{label} {timestamp}")
            t.ask(replica_id=-1, topics=where(t.name(label), at(timestamp)))


@case("ListOffsets", versions=[1, 4, 11])
def topics_named_twice(t: Talk) -> None:
    t.three_batches(t.topic("a"))
    t.three_batches(t.topic("b"))
    a, b = t.name("a"), t.name("b")
    t.ask(replica_id=-1, topics=where(a, at(-1)) + where(b, at(-1)) + where(a, at(-1, 1)))
    t.ask(replica_id=-1, topics=where(a))
    t.ask(replica_id=-1, topics=where(a, at(-1)) + where(a, at(-1)))


def epochs(topic: str, *asked: tuple[int, int, int]) -> list[dict[str, Any]]:
    """Pairs of (partition, current leader epoch, leader epoch)."""
    parts = [{"partition": p, "current_leader_epoch": current, "leader_epoch": e} for p, current, e in asked]
    return [{"topic": topic, "partitions": parts}]


@case("OffsetForLeaderEpoch")
def ends_of_epochs(t: Talk) -> None:
    t.three_batches(t.topic(partitions=2))
    for epoch in (0, 1, 99, -1, -2):
        t.note(f"epoch {epoch}")
        t.ask(topics=epochs(t.name(), (0, -1, epoch), (1, -1, epoch)))


@case("OffsetForLeaderEpoch")
def current_epochs(t: Talk) -> None:
    t.three_batches(t.topic())
    for current in (0, 1, -2):
        t.note(f"current epoch {current}")
        t.ask(topics=epochs(t.name(), (0, current, 0)))


@case("OffsetForLeaderEpoch")
def epochs_of_unknown_places(t: Talk) -> None:
    t.topic()
    t.ask(topics=epochs(t.name("nowhere"), (0, -1, 0)))
    t.ask(topics=epochs(t.name(), (5, -1, 0), (-1, -1, 0)))
    t.ask(topics=epochs(t.name(), (0, -1, 0), (0, -1, 1)))
    t.ask(topics=[])


@case("OffsetForLeaderEpoch", versions=[3, 4])
def epochs_for_replicas(t: Talk) -> None:
    t.topic()
    for replica in (-1, -2, 1, 99):
        t.ask(replica_id=replica, topics=epochs(t.name(), (0, -1, 0)))


@case("DeleteRecords")
def records_deleted(t: Talk) -> None:
    topic = t.topic(partitions=2)
    t.three_batches(topic)
    for offset in (0, 3, 1, 3, 6, 7, -1, -2, 1 << 62):
        t.note(f"before {offset}")
        t.ask(topics=where(topic, {"partition_index": 0, "offset": offset}), timeout_ms=5000)
    t.note("an empty partition")
    t.ask(topics=where(topic, {"partition_index": 1, "offset": -1}), timeout_ms=5000)
    t.produced(topic, batch(b"next"))
    t.ask("ListOffsets", 1, replica_id=-1, topics=where(topic, at(-1)))


@case("DeleteRecords")
def records_deleted_nowhere(t: Talk) -> None:
    topic = t.topic()
    asked = {"partition_index": 0, "offset": 0}
    t.ask(topics=where(t.name("nowhere"), asked), timeout_ms=5000)
    t.ask(topics=where(topic, asked | {"partition_index": 4}, asked | {"partition_index": -1}), timeout_ms=5000)
    t.ask(topics=where(topic, asked, asked), timeout_ms=5000)
    t.ask(topics=where("a b", asked), timeout_ms=5000)
    t.ask(topics=[], timeout_ms=5000)
    t.ask(topics=where(topic, asked), timeout_ms=0)


@case("DeleteRecords")
def records_of_compacted_topics(t: Talk) -> None:
    for label, policy in (("compact", "compact"), ("both", "compact,delete"), ("neither", "")):
        topic = t.topic(label, cleanup_policy=policy)
        t.produced(topic, batch(Rec(b"v", b"k"), Rec(b"v", b"k")))
        t.ask(topics=where(topic, {"partition_index": 0, "offset": 1}), timeout_ms=5000)


@case("DeleteRecords")
def records_deleted_twice_over(t: Talk) -> None:
    topic = t.topic(partitions=2)
    t.three_batches(topic)
    first, second = {"partition_index": 0, "offset": 2}, {"partition_index": 0, "offset": 1}
    t.ask(topics=where(topic, first, second), timeout_ms=5000)
    t.ask(topics=where(topic, second) + where(topic, {"partition_index": 1, "offset": -1}), timeout_ms=5000)
    t.ask(topics=where(topic), timeout_ms=5000)
    t.ask("ListOffsets", 1, replica_id=-1, topics=where(topic, at(-2)))
