"""Fetch: where reading starts and stops, and the sessions that make it cheap."""

from typing import Any

from tests.compat.cases import Talk, case
from tests.compat.cases.metadata import NO_SUCH_ID
from tests.compat.raw import batch


def part(offset: int, partition: int = 0, max_bytes: int = 1 << 20, **more: Any) -> dict[str, Any]:
    return {"partition": partition, "fetch_offset": offset, "partition_max_bytes": max_bytes, **more}


def entry(t: Talk, label: str, *partitions: dict[str, Any]) -> dict[str, Any]:
    if t.version >= 13:
        known = f"<id of ${label}>" in t.ids.values()
        return {"topic_id": t.id_of(label) if known else NO_SUCH_ID, "partitions": list(partitions)}
    return {"topic": t.name(label), "partitions": list(partitions)}


def fetch(t: Talk, *topics: dict[str, Any], **fields: Any) -> Any:
    settings = {"max_wait_ms": 0, "min_bytes": 1, "max_bytes": 10 << 20, **fields}
    return t.ask("Fetch", topics=list(topics), **settings)


@case("Fetch")
def read_from(t: Talk) -> None:
    t.three_batches(t.topic())
    for offset in (0, 1, 2, 4, 5, 6):
        t.note(f"from {offset}")
        fetch(t, entry(t, "t", part(offset)))


@case("Fetch")
def out_of_range(t: Talk) -> None:
    t.three_batches(t.topic())
    for offset in (7, 1 << 62, -1, -2, -(1 << 63)):
        t.note(f"from {offset}")
        fetch(t, entry(t, "t", part(offset)))
    where = [{"name": t.name(), "partitions": [{"partition_index": 0, "offset": 3}]}]
    t.call("DeleteRecords", topics=where, timeout_ms=5000)
    for offset in (2, 3):
        t.note(f"from {offset} after the records before 3 were deleted")
        fetch(t, entry(t, "t", part(offset)))


@case("Fetch")
def unknown_places(t: Talk) -> None:
    t.topic()
    fetch(t, entry(t, "nowhere", part(0)), entry(t, "t", part(0), part(0, 5), part(0, -1)))
    fetch(t)
    fetch(t, entry(t, "t"))


@case("Fetch")
def byte_limits(t: Talk) -> None:
    topic = t.topic(partitions=2)
    t.three_batches(topic)
    t.three_batches(topic, 1)
    size = len(batch(b"a", b"b"))
    for limit in (0, 1, size, size + 1, 10_000):
        t.note(f"{limit} per partition")
        fetch(t, entry(t, "t", part(0, 0, limit), part(0, 1, limit)))
        t.note(f"{limit} in all")
        fetch(t, entry(t, "t", part(0, 0), part(0, 1)), max_bytes=limit)
    t.note("negative")
    fetch(t, entry(t, "t", part(0, 0, -1)))
    fetch(t, entry(t, "t", part(0, 0)), max_bytes=-1)


@case("Fetch", versions=[4, 11, 18])
def named_twice(t: Talk) -> None:
    t.three_batches(t.topic())
    fetch(t, entry(t, "t", part(0), part(3)))
    fetch(t, entry(t, "t", part(0)), entry(t, "t", part(3)))


@case("Fetch")
def isolation_levels(t: Talk) -> None:
    t.three_batches(t.topic())
    for level in (0, 1, 2, -1):
        t.note(f"level {level}")
        fetch(t, entry(t, "t", part(0)), isolation_level=level)


@case("Fetch", versions=range(9, 19))
def leader_epochs(t: Talk) -> None:
    t.three_batches(t.topic())
    for epoch in (-1, 0, 1, 99, -2):
        t.note(f"current leader epoch {epoch}")
        fetch(t, entry(t, "t", part(0, current_leader_epoch=epoch)))


@case("Fetch", versions=range(12, 19))
def last_fetched_epochs(t: Talk) -> None:
    t.three_batches(t.topic())
    for epoch, offset in ((0, 6), (0, 2), (1, 6), (5, 0), (-1, 6), (0, 7), (-2, 3)):
        t.note(f"last fetched epoch {epoch} at {offset}")
        fetch(t, entry(t, "t", part(offset, last_fetched_epoch=epoch)))


@case("Fetch")
def as_a_replica(t: Talk) -> None:
    t.three_batches(t.topic())
    for replica in (1, 99, -2):
        t.note(f"replica {replica}")
        fields = {"replica_state": {"replica_id": replica}} if t.version >= 15 else {"replica_id": replica}
        fetch(t, entry(t, "t", part(0)), **fields)


@case("Fetch", versions=range(11, 19))
def from_a_rack(t: Talk) -> None:
    t.three_batches(t.topic())
    fetch(t, entry(t, "t", part(0)), rack_id="nearby")


@case("Fetch", versions=range(12, 19))
def cluster_ids(t: Talk) -> None:
    t.three_batches(t.topic())
    fetch(t, entry(t, "t", part(0)), cluster_id="another")


@case("Fetch", versions=[4, 11, 13, 18])
def waits(t: Talk) -> None:
    t.three_batches(t.topic())
    t.note("at the end, for a moment")
    fetch(t, entry(t, "t", part(6)), max_wait_ms=20)
    t.note("for more bytes than there are")
    fetch(t, entry(t, "t", part(0)), max_wait_ms=20, min_bytes=10_000)
    t.note("not at all, whatever is asked")
    fetch(t, entry(t, "t", part(6)), max_wait_ms=-1, min_bytes=1)
    fetch(t, entry(t, "t", part(6)), max_wait_ms=60_000, min_bytes=0)
    fetch(t, entry(t, "t", part(6)), max_wait_ms=60_000, min_bytes=-1)
    t.note("an error does not wait")
    fetch(t, entry(t, "t", part(99)), max_wait_ms=60_000, min_bytes=1)


@case("Fetch", versions=range(7, 19))
def sessions(t: Talk) -> None:
    topic = t.topic(partitions=2)
    t.three_batches(topic)
    answer = fetch(t, entry(t, "t", part(0), part(0, 1)), session_id=0, session_epoch=0)
    session = answer.session_id
    t.note("nothing moved: all is sent again but the empty partition")
    fetch(t, session_id=session, session_epoch=1)
    t.note("one moved to the end")
    fetch(t, entry(t, "t", part(6)), session_id=session, session_epoch=2)
    t.note("nothing new")
    fetch(t, session_id=session, session_epoch=3)
    t.produced(topic, batch(b"new"), partition=1)
    t.note("new data in the other")
    fetch(t, session_id=session, session_epoch=4)
    t.note("an unknown partition is added")
    fetch(t, entry(t, "t", part(0, 9)), session_id=session, session_epoch=5)
    forgotten = {"topic_id": t.id_of()} if t.version >= 13 else {"topic": topic}
    t.note("and forgotten, with the other")
    fetch(t, session_id=session, session_epoch=6, forgotten_topics_data=[forgotten | {"partitions": [1, 9]}])
    t.note("a wrong epoch, twice")
    fetch(t, session_id=session, session_epoch=6)
    fetch(t, session_id=session, session_epoch=99)
    t.note("the right one")
    fetch(t, session_id=session, session_epoch=7)
    t.note("closed")
    fetch(t, session_id=session, session_epoch=-1)
    fetch(t, session_id=session, session_epoch=8)


@case("Fetch", versions=range(7, 19))
def unknown_sessions(t: Talk) -> None:
    t.topic()
    fetch(t, entry(t, "t", part(0)), session_id=123456, session_epoch=1)
    fetch(t, entry(t, "t", part(0)), session_id=123456, session_epoch=-1)
    fetch(t, entry(t, "t", part(0)), session_id=123456, session_epoch=0)
    fetch(t, entry(t, "t", part(0)), session_id=0, session_epoch=5)
    fetch(t, entry(t, "t", part(0)), session_id=0, session_epoch=-7)
    fetch(t, entry(t, "t", part(0)), session_id=-3, session_epoch=2)


@case("Fetch", versions=range(7, 19))
def sessions_over_deleted_topics(t: Talk) -> None:
    topic = t.topic()
    t.topic("other")
    answer = fetch(t, entry(t, "t", part(0)), entry(t, "other", part(0)), session_id=0, session_epoch=0)
    t.call("DeleteTopics", topics=[{"name": topic}], timeout_ms=5000)
    asked: dict[str, Any] = {"topics": [{"name": topic}], "allow_auto_topic_creation": False}
    t.until(lambda: t.call("Metadata", **asked).topics[0].error_code == 3)
    t.settle()
    fetch(t, session_id=answer.session_id, session_epoch=1)
    fetch(t, session_id=answer.session_id, session_epoch=2)


@case("Fetch", versions=[4, 9, 10, 13])
def zstd_for_clients_of_any_age(t: Talk) -> None:
    t.topic(compression_type="zstd")
    t.produced(t.name(), batch(b"a"))
    fetch(t, entry(t, "t", part(0)))


@case("Fetch", versions=[4, 11, 18])
def more_bytes_wanted_than_allowed(t: Talk) -> None:
    """It would never be enough, so the broker must not wait for it."""
    t.three_batches(t.topic())
    fetch(t, entry(t, "t", part(0)), max_wait_ms=60_000, min_bytes=100_000, max_bytes=100)
    fetch(t, entry(t, "t", part(6)), max_wait_ms=60_000, min_bytes=100_000, max_bytes=0)


@case("Fetch", versions=[5, 12, 13, 18])
def log_starts_of_replicas(t: Talk) -> None:
    t.three_batches(t.topic())
    for offset in (3, -9):
        fetch(t, entry(t, "t", part(0, log_start_offset=offset)))


@case("Fetch", versions=[7, 12, 13, 18])
def sessions_that_shrink_and_begin_anew(t: Talk) -> None:
    topic = t.topic(partitions=3)
    t.three_batches(topic)
    gone = {"topic_id": t.id_of()} if t.version >= 13 else {"topic": topic}
    session = fetch(t, entry(t, "t", part(6), part(0, 1)), session_id=0, session_epoch=0).session_id
    t.note("updated twice and forgotten at once")
    forgotten = [gone | {"partitions": [0, 0, 7]}]
    fetch(t, entry(t, "t", part(6), part(3)), session_id=session, session_epoch=1, forgotten_topics_data=forgotten)
    t.note("all is forgotten")
    forgotten = [gone | {"partitions": [0, 1, 2]}]
    fetch(t, session_id=session, session_epoch=2, forgotten_topics_data=forgotten)
    fetch(t, session_id=session, session_epoch=3)
    t.note("begun anew")
    old = fetch(t, entry(t, "t", part(6)), session_id=0, session_epoch=0).session_id
    new = fetch(t, entry(t, "t", part(3)), session_id=old, session_epoch=0).session_id
    t.note(old != new)
    fetch(t, session_id=old, session_epoch=1)
    t.note("ended with a full fetch")
    fetch(t, entry(t, "t", part(3)), session_id=new, session_epoch=-1)
    fetch(t, session_id=new, session_epoch=1)
    t.note("begun with nothing")
    session = fetch(t, session_id=0, session_epoch=0).session_id
    fetch(t, entry(t, "t", part(3)), session_id=session, session_epoch=1)


@case("Fetch", versions=[7, 12, 13, 18])
def what_sessions_tell(t: Talk) -> None:
    topic = t.topic(partitions=2)
    t.three_batches(topic)
    session = fetch(t, entry(t, "t", part(99), part(0, 1)), session_id=0, session_epoch=0).session_id
    t.note("an error is told again and again, then that it is over")
    fetch(t, session_id=session, session_epoch=1)
    fetch(t, entry(t, "t", part(6)), session_id=session, session_epoch=2)
    fetch(t, session_id=session, session_epoch=3)
    t.note("a new start of the log is told once")
    where = [{"name": topic, "partitions": [{"partition_index": 0, "offset": 3}]}]
    t.call("DeleteRecords", topics=where, timeout_ms=5000)
    fetch(t, session_id=session, session_epoch=4)
    fetch(t, session_id=session, session_epoch=5)


@case("Fetch", versions=[12, 13])
def sessions_by_name_and_by_id(t: Talk) -> None:
    t.topic()
    session = fetch(t, entry(t, "t", part(0)), session_id=0, session_epoch=0).session_id
    other = {"session_id": session, "session_epoch": 1, "max_wait_ms": 0, "min_bytes": 1, "max_bytes": 1000}
    t.ask("Fetch", 25 - t.version, topics=[], **other)
    fetch(t, session_id=session, session_epoch=1)
