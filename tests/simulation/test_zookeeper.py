"""Controllers in ZooKeeper: deposed, cut off or expired ones change nothing, and nothing acknowledged is lost."""

from asyncio import Future
from collections.abc import Callable, Sequence

import pytest

from headrace.quorum.zookeeper import paths
from headrace.quorum.zookeeper.operations import Check, Operation, Set
from tests.simulation.zookeeper_nodes import World

Send = Callable[[Sequence[Operation]], "Future[None]"]


@pytest.mark.parametrize("seed", range(6))
def test_faults_of_sessions_and_connections(seed: int) -> None:
    world = World(seed)
    world.run(for_s=45)
    assert len(world.acknowledged) > 20


def unfenced(operations: Sequence[Operation]) -> list[Operation]:
    """The fault of a controller that trusts its own knowledge of who is the controller."""
    return [
        Set(op.path, op.data) if isinstance(op, Set) and op.path != paths.CONTROLLER_EPOCH else op
        for op in operations
        if not isinstance(op, Check)
    ]


def test_writes_without_fences_are_caught() -> None:
    def broken(seed: int) -> bool:
        world = World(seed)
        for member in world.members:
            send = member.session.multi

            def multi(operations: Sequence[Operation], send: Send = send) -> "Future[None]":
                return send(unfenced(operations))

            member.session.multi = multi  # type: ignore[method-assign]
        try:
            world.run(for_s=30)
        except AssertionError:
            return True
        return False

    assert any(broken(seed) for seed in range(5))


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
