"""What the controller moves by itself while brokers come and go at random."""

from random import Random

import pytest

from headrace.metadata.balance.auto import Standing, next_moves, still_right
from headrace.metadata.image import Image
from tests.unit.metadata.balanced_cluster import MOVES_MAX, World

NOBODY = Standing((), (), ())


@pytest.mark.parametrize("seed", range(20))
def test_brokers_come_and_go_at_random_and_it_converges_without_moving_back_and_forth(seed: int) -> None:
    dice = Random(seed)
    world = World(4, 12, 3)
    for _ in range(30):
        nodes = list(world.image.brokers)
        match dice.choice(("lose", "lose for long", "return", "add", "nothing")):
            case "lose":
                away = [b for b in nodes if world.image.brokers[b].fenced]
                if len(nodes) - len(away) > 3:
                    world.commit(
                        world.controller.fence_broker(world.image, dice.choice(sorted(set(nodes) - set(away))))
                    )
            case "lose for long":
                world.lost |= {b for b in nodes if world.image.brokers[b].fenced}
            case "return":
                for node in [b for b in nodes if world.image.brokers[b].fenced]:
                    world.commit(world.controller.unfence_broker(world.image, node))
                    world.lost.discard(node)
            case "add" if len(nodes) < 7:
                world.register(len(nodes) + 1)
                world.commit(world.controller.unfence_broker(world.image, len(nodes) + 1))
        world.turn()
        assert len(world.image.reassigning) <= MOVES_MAX + len(world.lost) * 12
        world.catch_up(dice)
        for number, partition in world.partitions.items():
            assert len(set(partition.replicas) - set(partition.removing)) == 3, f"{number} has lost a replica"
    for node in [b.id for b in world.image.brokers.values() if b.fenced]:
        world.commit(world.controller.unfence_broker(world.image, node))
    world.lost.clear()
    world.settle(dice)
    # What was under way when the last broker came back may still end; from here on nothing is copied to where it was.
    world.copied.clear()
    world.settle(dice)
    assert world.copied == [] and all(len(p.replicas) == 3 for p in world.partitions.values())
    world.check_even()


def test_a_broker_that_was_added_gets_its_share_and_nothing_is_copied_twice() -> None:
    world, dice = World(3, 12, 2), Random(1)
    world.register(4)
    world.commit(world.controller.unfence_broker(world.image, 4))
    world.settle(dice)
    world.check_even()
    assert len(world.copied) == 6 and {node for _, node in world.copied} == {4}, (
        "no more than its share, and only there"
    )


def test_a_restart_moves_nothing_and_a_loss_that_lasts_does() -> None:
    world = World(4, 8, 2)
    world.commit(world.controller.fence_broker(world.image, 2))
    assert world.turn() == {}
    world.lost = {2}
    world.settle(Random(2))
    assert all(2 not in p.replicas and len(p.isr) == 2 for p in world.partitions.values())


def test_a_move_to_a_broker_that_is_lost_goes_elsewhere() -> None:
    world = World(3, 6, 2)
    for node in (4, 5):
        world.register(node)
        world.commit(world.controller.unfence_broker(world.image, node))
    first = world.turn()
    target = next(node for to in first.values() for node in to if node > 3)
    world.commit(world.controller.fence_broker(world.image, target))
    world.lost = {target}
    world.settle(Random(3))
    assert all(target not in p.replicas and len(p.isr) == 2 for p in world.partitions.values())


def test_drained_brokers_are_emptied_and_stay_empty() -> None:
    world, dice = World(4, 8, 2), Random(4)
    standing = Standing((), {3}, ())
    for _ in range(40):
        world.turn(standing)
        world.catch_up(dice)
    assert all(3 not in p.replicas for p in world.partitions.values())
    assert world.turn(standing) == {} and not world.image.reassigning


def test_a_full_broker_gives_one_replica_at_a_time_and_gets_none() -> None:
    world, dice = World(4, 8, 2), Random(5)
    full = Standing((), (), {1})
    held = sum(1 in p.replicas for p in world.partitions.values())
    (moved,) = world.turn(full).values()
    assert 1 not in moved
    assert world.turn(full) == {}, "the next one when that one is done"
    while world.image.reassigning:
        world.catch_up(dice)
    assert sum(1 in p.replicas for p in world.partitions.values()) == held - 1


def test_a_broker_that_was_full_lately_keeps_what_it_has_and_gets_none() -> None:
    world, dice = World(4, 8, 2), Random(6)
    lately = Standing((), (), (), {1})
    assert world.turn(lately) == {}, "it has room again: what it still holds may stay"
    kept = [n for n, p in world.partitions.items() if 1 in p.replicas]
    world.commit(world.controller.fence_broker(world.image, 2))
    for _ in range(40):
        world.turn(Standing({2}, (), (), {1}))
        world.catch_up(dice)
    assert [n for n, p in world.partitions.items() if 1 in p.replicas] == kept
    assert all(2 not in p.replicas for p in world.partitions.values())


def test_too_few_brokers_for_the_replication_factor_move_nothing() -> None:
    world = World(3, 6, 3)
    world.commit(world.controller.fence_broker(world.image, 3))
    world.lost = {3}
    assert world.turn() == {}


def test_nothing_is_known_of_an_empty_cluster() -> None:
    assert next_moves(Image(), NOBODY, MOVES_MAX) == {}


def test_bytes_decide_which_replica_moves_and_are_no_reason_to_move() -> None:
    world = World(3, 12, 1)
    sizes = {("t", n): 10 ** (n % 4) for n in world.partitions}
    assert next_moves(world.image, NOBODY, MOVES_MAX, sizes) == {}, "equally many each: bytes alone move nothing"
    world.register(4)
    world.commit(world.controller.unfence_broker(world.image, 4))
    (at, to), *_ = next_moves(world.image, NOBODY, 1, sizes).items()
    giver = world.partitions[at[1]].replicas[0]
    assert to == (4,)
    held = {n: sizes["t", n] for n, part in world.partitions.items() if part.replicas[0] == giver}
    total = sum(held.values())
    best = min(abs(total - 2 * size) for size in held.values())
    assert abs(total - 2 * sizes[at]) == best, "of the giver's replicas, the one that leaves the two most alike"


def test_a_lost_replica_goes_to_whoever_holds_least_where_numbers_are_equal() -> None:
    world = World(4, 4, 1)
    by_node = {part.replicas[0]: n for n, part in world.partitions.items()}
    sizes = {("t", by_node[node]): size for node, size in {1: 50, 2: 900, 3: 5, 4: 700}.items()}
    world.commit(world.controller.fence_broker(world.image, 1))
    assert next_moves(world.image, Standing((1,), (), ()), MOVES_MAX, sizes) == {("t", by_node[1]): (3,)}


def test_moves_that_were_overtaken_are_left_to_the_next_look() -> None:
    world = World(3, 6, 1)
    world.register(4)
    world.commit(world.controller.unfence_broker(world.image, 4))
    planned_for = world.image
    moves = next_moves(planned_for, NOBODY, 2)
    assert len(moves) == 1 and still_right(moves, planned_for, world.image) == moves
    world.turn()
    assert still_right(moves, planned_for, world.image) == {}, "it moves already"
    world = World(3, 6, 1)
    world.register(4)
    world.commit(world.controller.unfence_broker(world.image, 4))
    planned_for, moves = world.image, next_moves(world.image, NOBODY, 2)
    world.commit(world.controller.fence_broker(world.image, 4))
    assert still_right(moves, planned_for, world.image) == {}, "the taker is gone"
