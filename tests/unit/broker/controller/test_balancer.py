"""What the balancer remembers between two looks: for how long brokers are away, and which were full."""

from headrace.broker.controller.balancer import FULL_AGAIN_MS, Balancer
from headrace.config import BrokerConfig
from headrace.metadata.disk_space import DiskSpace
from headrace.protocol.private_fields.disk_space import NO_RECORDS, FullDirectories
from tests.unit.metadata.balanced_cluster import World

SETTINGS = {"auto.balance": "true", "auto.balance.lost.broker.ms": "1000"}


def test_a_full_broker_gives_until_it_has_room_and_takes_nothing_for_a_day() -> None:
    world, disks = World(3, 6, 2), DiskSpace()
    balancer = Balancer(disks, lambda image: BrokerConfig.load(SETTINGS))

    def look(now_ms: int) -> tuple[set[int], set[int]]:
        found = balancer.look(world.image, now_ms)
        assert found is not None
        return set(found.standing.full), set(found.standing.full_lately)

    assert look(0) == (set(), set())
    disks.note(world.image.brokers[2], FullDirectories({b"d" * 16: NO_RECORDS}))
    assert look(1_000) == ({2}, set())
    assert look(3_000) == ({2}, set()), "still full: it goes on giving"
    disks.note(world.image.brokers[2], FullDirectories({}))
    assert look(5_000) == (set(), {2}), "it has room: what it holds may stay, and nothing comes back yet"
    assert look(3_000 + FULL_AGAIN_MS) == (set(), set())


def test_a_broker_counts_as_lost_when_it_has_been_away_for_long() -> None:
    world = World(3, 6, 2)
    balancer = Balancer(DiskSpace(), lambda image: BrokerConfig.load(SETTINGS))
    world.commit(world.controller.fence_broker(world.image, 2))
    lost = []
    for now_ms in (0, 999, 1_000):
        found = balancer.look(world.image, now_ms)
        assert found is not None
        lost.append(set(found.standing.lost))
    assert lost == [set(), set(), {2}]
    balancer.restart()
    found = balancer.look(world.image, 2_000)
    assert found is not None and not found.standing.lost, "a new controller waits anew"
