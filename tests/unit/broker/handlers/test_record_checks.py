"""Records that are looked into in a thread: what another connection sends meanwhile is neither taken for them nor mixed
up."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from headrace.broker.handlers.produce.record_checks import FEW_BYTES
from headrace.records.layout import iter_headers
from headrace.records.reader import iter_records
from tests.compat.raw import Rec, batch
from tests.unit.broker.answers import T, codes
from tests.unit.broker.sim import Sim, produce, run


class HeldThreads:
    """The second and the fourth piece of work wait until the test lets them go on."""

    def __init__(self, sim: Sim) -> None:
        self._inner = sim.broker.runtime.run_in_thread
        self._held = {2: asyncio.Event(), 4: asyncio.Event()}
        self._count = 0
        sim.broker.runtime.run_in_thread = self._run  # type: ignore[method-assign]

    def _run(self, work: Callable[..., Any], *arguments: Any) -> Any:
        self._count += 1
        held = self._held.get(self._count)
        return (
            self._inner(work, *arguments)
            if held is None
            else asyncio.ensure_future(self._later(held, work, *arguments))
        )

    async def _later(self, held: asyncio.Event, work: Callable[..., Any], *arguments: Any) -> Any:
        await held.wait()
        return await self._inner(work, *arguments)

    def let_go(self, number: int) -> None:
        self._held[number].set()


def keyed(value: bytes) -> bytes:
    return batch(Rec(value, key=b"k"))


def values(sim: Sim, index: int) -> list[bytes]:
    """Only the first letters of each."""
    log = sim.partition(T, index).log
    piece = log.read(0, 10 << 20, log.end_offset)
    assert piece is not None
    data = piece.read()
    piece.release()
    found = []
    for position, header in iter_headers(memoryview(data)):
        found += [bytes(record.value or b"")[:5] for record in iter_records(data[position : position + header.size])]
    return found


@pytest.mark.parametrize("size", [20, FEW_BYTES], ids=["small", "looked into as well"])
def test_what_was_found_of_one_request_is_not_taken_for_that_of_another(size: int) -> None:
    """1. A request has large batches for two partitions; the first is looked into. 2. While the second is, another
    request comes, with batches for the same partitions at the same places in its bytes. 3. Each has to be stored as it
    was sent."""

    async def scenario(sim: Sim) -> None:
        await sim.create(T, 2, cleanup_policy="compact")
        threads = HeldThreads(sim)
        async with await sim.wire() as one, await sim.wire() as other:
            one.send("Produce", 8, produce(T, keyed(b"one-0" + bytes(FEW_BYTES)), keyed(b"one-1" + bytes(FEW_BYTES))))
            await sim.quiet()
            other.send("Produce", 8, produce(T, keyed(b"two-0" + bytes(size)), keyed(b"two-1" + bytes(size))))
            await sim.quiet()
            threads.let_go(2)
            assert codes(await one.receive()) == ["NONE", "NONE"]
            threads.let_go(4)
            assert codes(await other.receive()) == ["NONE", "NONE"]
        assert [sorted(values(sim, index)) for index in (0, 1)] == [[b"one-0", b"two-0"], [b"one-1", b"two-1"]]
        assert not sim.broker.environment.prepared, "kept for nothing"

    run(scenario)
