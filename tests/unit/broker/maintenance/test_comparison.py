"""Digests of replicas: what one has not read in this pass is not taken for a difference to the others."""

import pytest

from headrace.broker.maintenance import comparison
from headrace.broker.worker import UNLIMITED
from headrace.storage import scrub
from tests.unit.broker.replicated import Brokers, run


def test_a_segment_that_was_rolled_during_a_pass_is_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    """1. A pass takes note of the segments of a replica: 0 and the active one at 10. 2. That one is closed at 20. 3.
    The pass ends, with the digest of half of the cell from 8 to 15: the other half is in the segment that it has not
    read."""
    monkeypatch.setattr(scrub, "CELL_OFFSETS", 8)
    monkeypatch.setattr(comparison, "CELL_OFFSETS", 8)

    async def scenario(brokers: Brokers) -> None:
        brokers.dictator.create([1, 2, 3])
        for end in (10, 20, 30):
            for _ in range(10):
                assert await brokers.produce(1, 1) == "NONE"
            await brokers.in_step([1, 2, 3])
            for node_id in {10: (1, 2, 3), 20: (1, 3)}.get(end, ()):
                brokers.partition(node_id).log.roll(0)
        await brokers.until(lambda: all(brokers.partition(node_id).high_watermark == 30 for node_id in (1, 2, 3)))
        scrubbers = {node_id: brokers.broker(node_id).scrubber for node_id in (1, 2, 3)}
        portions = {node_id: one._portion(None, None, 1 << 30) for node_id, one in scrubbers.items()}
        brokers.partition(2).log.roll(0)
        for node_id, one in scrubbers.items():
            await one._read(portions[node_id], UNLIMITED)
        for node_id, one in scrubbers.items():
            assert await one.comparison.different(brokers.partition(node_id)) == [], node_id

    run(scenario)
