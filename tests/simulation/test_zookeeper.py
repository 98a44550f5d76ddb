"""Controllers in ZooKeeper: deposed, cut off or expired ones change nothing, and nothing acknowledged is lost."""

from asyncio import Future
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from headrace.metadata import isr
from headrace.metadata.image import Partition
from headrace.quorum.zookeeper import paths
from headrace.quorum.zookeeper.operations import Operation, Set
from tests.simulation.zookeeper_nodes import World, without_epoch_check

Send = Callable[[Sequence[Operation]], "Future[None]"]
Faulty = Callable[[Sequence[Operation]], list[Operation]]


@pytest.mark.parametrize("seed", range(6))
def test_faults_of_sessions_and_connections(seed: int) -> None:
    world = World(seed)
    world.run(for_s=45)
    assert len(world.acknowledged) > 20
    assert world.shrunk > 10


def without_chain(operations: Sequence[Operation]) -> list[Operation]:
    """The fault of a controller whose writes do not depend on the ones before."""
    return [Set(op.path, op.data) if isinstance(op, Set) and op.path == paths.METADATA else op for op in operations]


def without_both(operations: Sequence[Operation]) -> list[Operation]:
    return without_chain(without_epoch_check(operations))


@pytest.mark.parametrize("faulty", [without_epoch_check, without_both])
def test_writes_without_fences_are_caught(faulty: Faulty) -> None:
    def broken(seed: int) -> bool:
        world = World(seed)
        for member in world.members:
            send = member.session.multi

            def multi(operations: Sequence[Operation], send: Send = send) -> "Future[None]":
                return send(faulty(operations))

            member.session.multi = multi  # type: ignore[method-assign]
        try:
            world.run(for_s=30)
        except AssertionError:
            return True
        return False

    assert any(broken(seed) for seed in range(20))


def test_watches_that_are_not_set_again_are_caught() -> None:
    def broken(seed: int) -> bool:
        world = World(seed)
        for member in world.members:
            member.session.renew_watches = False
        try:
            world.run(for_s=30)
        except AssertionError:
            return True
        return False

    assert any(broken(seed) for seed in range(5))


def test_an_isr_that_a_deposed_leader_may_shrink_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def unchecked(partition: Partition, proposal: Any, leader: int, members: list[tuple[int, int]]) -> Partition:
        return partition

    monkeypatch.setattr(isr, "_checked", unchecked)

    def broken(seed: int) -> bool:
        try:
            World(seed).run(for_s=30)
        except AssertionError as error:
            return "had the ISR of" in str(error)
        return False

    assert any(broken(seed) for seed in range(5))
