"""What comes and goes leaves nothing behind: no circles of objects that only the garbage collector would find.

The collector looks rarely once a broker runs, since each look stops the loop. So whatever can be made and removed by
the thousand (topics, connections, groups, fetch sessions, waits, producers) has to go with its last reference.
"""

import gc
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.broker.churn import COUNT, EVERYTHING, Churn
from tests.broker.loop_probe import ProbedBroker
from tests.waiting import eventually

FEW = COUNT // 3
"""What may be left of each kind: things that began before and ended meanwhile."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProbedBroker]:
    settings = {
        "log_segment_delete_delay_ms": 0,
        "group_initial_rebalance_delay_ms": 0,
        "offsets_topic_num_partitions": 1,
    }
    with ProbedBroker(tmp_path_factory.mktemp("churn"), **settings) as process:
        yield process


@pytest.mark.parametrize("churn", EVERYTHING)
def test_nothing_is_left_for_the_garbage_collector(broker: ProbedBroker, churn: Churn) -> None:
    churn(broker, f"{churn.__name__}-1")  # what is made once and stays
    eventually(lambda: not broker.call(lambda: len(broker.broker.connections)), "all connections are gone")
    broker.call(gc.collect)
    broker.call(gc.disable)
    try:
        churn(broker, f"{churn.__name__}-2")
        eventually(lambda: not broker.call(lambda: len(broker.broker.connections)), "all connections are gone")
        left = broker.call(garbage)
    finally:
        broker.call(gc.enable)
    ours = {name: count for name, count in left.items() if count > FEW}
    assert not ours, f"left in circles: {ours}"


def garbage() -> Counter[str]:
    """Objects of the broker that nothing but each other refers to."""
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        gc.collect()
        names = (f"{type(found).__module__}.{type(found).__qualname__}" for found in gc.garbage)
        return Counter(name for name in names if name.startswith(("headrace.", "uvloop.", "_asyncio.", "functools.")))
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
