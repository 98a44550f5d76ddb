"""What a client is told of brokers it cannot reach: only clusters have those, so they are made by hand here."""

import msgspec
import pytest

from headrace.broker.handlers.metadata import TOPIC_OPERATIONS, ClientView, TopicEntries
from headrace.errors import Err
from headrace.metadata.image import LOST_DIRECTORY, UNASSIGNED_DIRECTORY, Broker, Image, Partition, Topic
from headrace.metadata.persistent import PersistentMap
from headrace.protocol import messages as m
from headrace.protocol.codec import codec

DIRECTORY, OTHER = b"d" * 16, b"o" * 16


def broker(number: int, directories: tuple[bytes, ...] = (DIRECTORY,)) -> Broker:
    return Broker(number, 0, bytes(16), (), {}, None, False, False, directories)


def partition(leader: int = 1, directories: tuple[bytes, ...] = (DIRECTORY,) * 3) -> Partition:
    return Partition((1, 2, 3), (1, 2), leader, 7, 0, directories)


def told(
    known: Partition, *, alive: set[int], registered: tuple[int, ...] = (1, 2, 3), version: int = 12
) -> dict[str, object]:
    image = Image(brokers=PersistentMap({number: broker(number) for number in registered}))
    view = ClientView(image, alive, version)
    entry = view.topic(Topic(bytes(16), "t", PersistentMap({0: known}))).partitions[0]
    return {
        "error": Err(entry.error_code), "leader": entry.leader_id, "epoch": entry.leader_epoch,
        "replicas": entry.replica_nodes, "isr": entry.isr_nodes, "offline": entry.offline_replicas,
    }  # fmt: skip


def test_all_is_well() -> None:
    assert told(partition(), alive={1, 2, 3}) == {
        "error": Err.NONE, "leader": 1, "epoch": 7, "replicas": [1, 2, 3], "isr": [1, 2], "offline": [],
    }  # fmt: skip


def test_a_follower_that_is_gone_is_offline_but_still_a_replica() -> None:
    answer = told(partition(), alive={1, 2})
    assert (answer["error"], answer["replicas"], answer["offline"]) == (Err.NONE, [1, 2, 3], [3])


def test_clients_of_version_0_take_missing_brokers_for_a_mistake() -> None:
    answer = told(partition(), alive={1, 3}, version=0)
    assert (answer["error"], answer["replicas"], answer["isr"]) == (Err.REPLICA_NOT_AVAILABLE, [1, 3], [1])
    assert told(partition(), alive={1, 2, 3}, version=0)["error"] is Err.NONE


def test_a_leader_that_is_not_registered_is_none() -> None:
    for version in (1, 5, 6, 12):
        answer = told(partition(), alive={2, 3}, registered=(2, 3), version=version)
        assert (answer["error"], answer["leader"], answer["epoch"]) == (Err.LEADER_NOT_AVAILABLE, -1, 7)
    assert told(partition(leader=-1), alive={1, 2, 3})["error"] is Err.LEADER_NOT_AVAILABLE


def test_a_leader_without_this_listener_is_named_as_such_to_those_who_know_the_error() -> None:
    assert told(partition(), alive={2, 3}, version=6)["error"] is Err.LISTENER_NOT_FOUND
    assert told(partition(), alive={2, 3}, version=5)["error"] is Err.LEADER_NOT_AVAILABLE


def test_replicas_in_directories_that_are_gone_are_offline() -> None:
    known = partition(directories=(DIRECTORY, LOST_DIRECTORY, UNASSIGNED_DIRECTORY))
    assert told(known, alive={1, 2, 3})["offline"] == [2]
    assert told(partition(directories=(DIRECTORY, DIRECTORY, OTHER)), alive={1, 2, 3})["offline"] == [3]


def test_a_registration_that_names_no_directories_is_trusted() -> None:
    assert broker(1, ()).has_online_directory(OTHER)
    assert not broker(1, ()).has_online_directory(LOST_DIRECTORY)


# ---- entries that are kept


def cluster(*topics: Topic, alive: tuple[int, ...] = (1, 2, 3)) -> Image:
    brokers = PersistentMap({number: broker(number) for number in alive})
    return Image(brokers=brokers, topics=PersistentMap({topic.id: topic for topic in topics}))


def topic(number: int, leader: int = 1) -> Topic:
    return Topic(bytes([number]) * 16, f"t{number}", PersistentMap({index: partition(leader) for index in range(3)}))


@pytest.mark.parametrize("version", codec("MetadataResponse").versions)
@pytest.mark.parametrize("with_operations", [False, True])
def test_kept_entries_are_what_the_tables_make(version: int, with_operations: bool) -> None:
    with_operations = with_operations and version >= 8
    image = cluster(topic(1), topic(2))
    view = ClientView(image, {1, 2, 3}, version)
    missing = m.MetadataResponse.MetadataResponseTopic(error_code=Err.UNKNOWN_TOPIC_OR_PARTITION, name="none")
    plain = [view.topic(topic(1)), view.topic(topic(2)), missing]
    if with_operations:
        for entry in plain:
            entry.topic_authorized_operations = TOPIC_OPERATIONS
    expected = codec("MetadataResponse").encode(m.MetadataResponse(topics=plain), version)
    entries = TopicEntries()
    for _ in range(2):
        found = entries.of(view, [*image.topics.values(), missing], with_operations)
        assert codec("MetadataResponse").encode(m.MetadataResponse(topics=found), version) == expected


def test_entries_are_made_anew_when_something_has_changed() -> None:
    entries = TopicEntries()
    first, other = topic(1), topic(2)
    image = cluster(first, other)
    one, two = entries.of(ClientView(image, {1, 2, 3}, 12), [first, other], False)
    again = entries.of(ClientView(image, {1, 2, 3}, 12), [first, other], False)
    assert again[0] is one and again[1] is two, "nothing has changed, so nothing is encoded"
    moved = topic(1, leader=2)
    changed = msgspec.structs.replace(image, topics=image.topics.update({moved.id: moved}))
    now = entries.of(ClientView(changed, {1, 2, 3}, 12), [moved, other], False)
    assert now[0] != one and now[1] is two
    lost = msgspec.structs.replace(image, brokers=PersistentMap({1: broker(1), 2: broker(2)}))
    assert entries.of(ClientView(lost, {1, 2}, 12), [first], False)[0] != one, "3 is offline"
    assert (
        entries.of(ClientView(lost, {2}, 12), [first], False)[0]
        != entries.of(ClientView(lost, {1, 2}, 12), [first], False)[0]
    )


def test_entries_of_deleted_topics_are_let_go() -> None:
    entries = TopicEntries()
    many = [topic(number) for number in range(1, 100)]
    image = cluster(*many)
    entries.of(ClientView(image, {1, 2, 3}, 12), many, False)
    left = msgspec.structs.replace(image, topics=PersistentMap({many[0].id: many[0]}))
    entries.of(ClientView(left, {1, 2, 3}, 12), many[:1], False)
    assert sum(map(len, entries._views.values())) == 1
