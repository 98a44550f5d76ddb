"""A consumer that pauses when it is given too much too soon is given it at the pace of applications; nobody else is."""

import asyncio
from typing import Any

import pytest

from headrace.broker.handlers.fetch.held import HeldFetch
from headrace.config.broker import HEADRACE_DEFAULTS
from headrace.protocol import messages as m
from headrace.replication import fetch_pacing as pacing
from headrace.replication.fetch_pacing import AT_ONCE_S, BURST, EASED_S, FASTEST, SLOWEST, FetchPacing, may_pause
from tests.compat.raw import batch
from tests.unit.broker.sim import Sim, Wire, alive, fetch, no_collector, produce, run

T = "t"
MB = 1_000_000
BATCH_BYTES = 2 * 100_000
FULL = BATCH_BYTES + 10_000


class Reader:
    """Asks for more as soon as it has what it asked for, until it has enough for now."""

    def __init__(self) -> None:
        self.pace = FetchPacing()
        self.now = 1000.0

    def burst(self, count: int = 10) -> float:
        """How long was it held, in all?"""
        held = 0.0
        for _ in range(count):
            hold_s = self.pace.hold_s(MB, self.now)
            held += hold_s
            self.now += hold_s + 0.001
        return held


def test_who_does_not_pause_is_never_held() -> None:
    reader = Reader()
    assert reader.burst(10_000) == 0
    for pause_s in (AT_ONCE_S, 0.5, 0.9, 1.4, 30.0):
        reader.now += pause_s
        assert reader.burst() == 0


def test_one_that_pauses_is_slowed_down_until_it_does_not() -> None:
    reader = Reader()
    rates = []
    for _ in range(5):
        reader.burst()
        reader.now += 1.0
        reader.burst(1)
        rates.append(reader.pace.rate)
    assert rates == [FASTEST, FASTEST / 2, SLOWEST, SLOWEST, SLOWEST]
    began = reader.now
    reader.burst(100)
    assert 100 * MB / (reader.now - began) == pytest.approx(SLOWEST, rel=0.05)


def test_a_pause_after_a_few_answers_is_no_sign() -> None:
    reader = Reader()
    for _ in range(20):
        reader.burst(BURST)  # of which the first comes after the pause
        reader.now += 1.0
    assert reader.pace.rate == 0


def test_it_is_eased_when_the_pauses_are_over() -> None:
    reader = Reader()
    for _ in range(2):
        reader.burst()
        reader.now += 1.0
        reader.burst(1)
    assert reader.pace.rate == FASTEST / 2
    for rate in (FASTEST / 2, FASTEST, 0.0):
        reader.burst(2)
        assert reader.pace.rate == rate
        reader.now += EASED_S


@pytest.mark.parametrize(
    ("software", "expected"),
    [
        ("librdkafka", True), ("confluent-kafka-python", True), ("rust-rdkafka", True), ("apache-kafka-java", False),
        ("aiokafka", False), ("headrace", False), ("", False),
    ],
)  # fmt: skip
def test_only_one_client_is_known_to_pause(software: str, expected: bool) -> None:
    assert may_pause(software) is expected


# ---- in a broker


WAIT_MS = 500
HELD_MS = 150
"""More than a network takes here; less than a batch is held at the rate below."""


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pacing, "FASTEST", 1.0 * MB)
    monkeypatch.setattr(pacing, "SLOWEST", 1.0 * MB)
    monkeypatch.setitem(HEADRACE_DEFAULTS, "fetch.pacing", "on")


async def filled(sim: Sim, batches: int = 30) -> Wire:
    await sim.create(T, max_message_bytes=str(2 * MB))
    wire = await sim.wire()
    for _ in range(batches):
        await wire.ask("Produce", 9, produce(T, batch(bytes(BATCH_BYTES))))
    return wire


async def introduced(sim: Sim, software: str) -> Wire:
    wire = await sim.wire()
    await wire.ask("ApiVersions", 3, {"client_software_name": software, "client_software_version": "1"})
    return wire


async def read(sim: Sim, wire: Wire, first: int, count: int) -> list[float]:
    """Reads so many batches, one for each request, and says after how many ms each came."""
    taken = []
    for offset in range(first, first + count):
        before = sim.now_ms()
        answer: m.FetchResponse = await wire.ask(
            "Fetch", 12, fetch(T, offset, partition_bytes=FULL, max_wait_ms=WAIT_MS)
        )
        assert records_at(answer) == offset
        taken.append(sim.now_ms() - before)
    return taken


def records_at(answer: Any) -> int:
    records = answer.responses[0].partitions[0].records
    assert len(records) > BATCH_BYTES
    return int.from_bytes(records[:8], "big")


@pytest.mark.usefixtures("slow", "both_ways")
@pytest.mark.parametrize("software", ["librdkafka", "apache-kafka-java"])
def test_records_come_at_a_pace_after_a_pause(software: str) -> None:
    async def scenario(sim: Sim) -> None:
        await filled(sim)
        wire = await introduced(sim, software)
        begin = await read(sim, wire, 0, 10)
        await asyncio.sleep(1.0)
        later = await read(sim, wire, 10, 10)
        assert max(begin) < HELD_MS
        if software == "librdkafka":
            assert min(later[1:]) > HELD_MS, "all but the one that the pause came before"
        else:
            assert max(later) < HELD_MS

    run(scenario)


@pytest.mark.usefixtures("slow")
def test_nobody_is_held_where_that_was_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(HEADRACE_DEFAULTS, "fetch.pacing")

    async def scenario(sim: Sim) -> None:
        await filled(sim)
        wire = await introduced(sim, "librdkafka")
        await read(sim, wire, 0, 10)
        await asyncio.sleep(1.0)
        begin = sim.now_ms()
        await read(sim, wire, 10, 10)
        assert sim.now_ms() - begin < HELD_MS
        assert all(connection.pacing is None for connection in sim.broker.connections)

    run(scenario)


@pytest.mark.usefixtures("slow")
def test_an_answer_that_is_not_full_is_not_held() -> None:
    async def scenario(sim: Sim) -> None:
        await filled(sim)
        wire = await introduced(sim, "librdkafka")
        await read(sim, wire, 0, 10)
        await asyncio.sleep(1.0)
        await read(sim, wire, 10, 3)
        before = sim.now_ms()
        answer = await wire.ask("Fetch", 12, fetch(T, 29, partition_bytes=MB))
        assert records_at(answer) == 29 and sim.now_ms() - before < HELD_MS

    run(scenario)


@pytest.mark.usefixtures("slow")
def test_nobody_is_held_for_longer_than_it_is_ready_to_wait() -> None:
    async def scenario(sim: Sim) -> None:
        await filled(sim)
        wire = await introduced(sim, "librdkafka")
        for wait_ms in (0, 40):
            first = 0
            for pause_s in (0.0, 1.0):
                await asyncio.sleep(pause_s)
                for offset in range(first, first + 10):
                    before = sim.now_ms()
                    query = fetch(T, offset, partition_bytes=FULL, max_wait_ms=wait_ms)
                    assert records_at(await wire.ask("Fetch", 12, query)) == offset
                    assert sim.now_ms() - before < HELD_MS + wait_ms
                first += 10

    run(scenario)


async def held(sim: Sim) -> Wire:
    """A reader whose next request has come and is not answered yet."""
    await filled(sim)
    wire = await introduced(sim, "librdkafka")
    await read(sim, wire, 0, 10)
    await asyncio.sleep(1.0)
    await read(sim, wire, 10, 2)
    wire.send("Fetch", 12, fetch(T, 12, partition_bytes=FULL, max_wait_ms=WAIT_MS))
    while not any(connection.waiting for connection in sim.broker.connections):
        await asyncio.sleep(0)
    return wire


@pytest.mark.usefixtures("slow")
def test_one_that_leaves_while_it_is_held_leaves_nothing_behind() -> None:
    async def scenario(sim: Sim) -> None:
        with no_collector():
            wire = await held(sim)
            assert alive(HeldFetch) == 1
            wire.close()
            await asyncio.sleep(1)
            assert alive(HeldFetch) == 0
        assert all(segment.handle.pins == 0 for segment in sim.partition(T).log.segments)
        assert not any(connection.waiting for connection in sim.broker.connections)

    run(scenario)


@pytest.mark.usefixtures("slow")
def test_a_topic_that_goes_meanwhile_is_told() -> None:
    async def scenario(sim: Sim) -> None:
        wire = await held(sim)
        await sim.delete(T)
        answer = await wire.receive()
        assert answer.responses[0].partitions[0].error_code == 3

    run(scenario)
