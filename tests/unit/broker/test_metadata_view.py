"""What a client is told of brokers it cannot reach: only clusters have those, so they are made by hand here."""

from headrace.broker.handlers.metadata import ClientView
from headrace.errors import Err
from headrace.metadata.image import LOST_DIRECTORY, UNASSIGNED_DIRECTORY, Broker, Image, Partition, Topic
from headrace.metadata.persistent import PersistentMap

DIRECTORY, OTHER = b"d" * 16, b"o" * 16


def broker(number: int, directories: tuple[bytes, ...] = (DIRECTORY,)) -> Broker:
    return Broker(number, 0, bytes(16), (), {}, None, False, False, directories)


def partition(leader: int = 1, directories: tuple[bytes, ...] = (DIRECTORY,) * 3) -> Partition:
    return Partition((1, 2, 3), (1, 2), leader, 7, 0, directories)


def told(known: Partition, *, alive: set[int], registered: tuple[int, ...] = (1, 2, 3), version: int = 12) -> dict[str, object]:
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
