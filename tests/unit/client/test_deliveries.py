"""What becomes of records in a batch: against a model in which each record has an outcome of its own."""

import asyncio
from typing import Any

from hypothesis import given, settings, strategies as st

from headrace.client.errors import ClientError
from headrace.client.produce.deliveries import Delivery, OpenBatch
from headrace.records.batch import iter_records, read_header
from headrace.records.builder import set_producer

ROW = st.tuples(st.integers(0, 10_000), st.none() | st.binary(max_size=9), st.none() | st.binary(max_size=9))


@settings(deadline=None)
@given(st.lists(ROW, min_size=1, max_size=30), st.sampled_from([0, 1, 2, 3, 4]))
def test_a_closed_batch_holds_what_was_appended(rows: list[Any], codec: int) -> None:
    batch = OpenBatch("t", 1, 0.0)
    grown = sum(batch.append(timestamp, key, value, ()) for timestamp, key, value in rows)
    assert batch.count == len(rows) and batch.size_bytes == 61 + grown
    view = batch.close(codec, None, transactional=False)
    set_producer(view, 5, 1, 9)
    header = read_header(view)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (5, 1, 9) and header.codec == codec
    assert header.max_timestamp == max(row[0] for row in rows)
    assert [(one.timestamp, one.key, one.value) for one in iter_records(view)] == rows


@settings(deadline=None)
@given(st.data())
def test_each_record_has_the_outcome_of_its_part(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 12))
    cuts = sorted(data.draw(st.sets(st.integers(1, count - 1)))) if count > 1 else []
    parts = list(zip([0, *cuts], [*cuts, count]))
    known = data.draw(st.lists(st.sampled_from(parts), unique=True))
    error = ClientError("refused")
    expected: dict[int, int | None] = {}

    async def play() -> None:
        batch = OpenBatch.whole("t", 0, count, 0.0)
        deliveries = [Delivery(batch, index, 77) for index in range(count)]
        called: list[int] = []
        for delivery in deliveries:
            delivery.add_done_callback(lambda one: called.append(deliveries.index(one)))
        waiting = asyncio.gather(*deliveries, return_exceptions=True)
        await asyncio.sleep(0)
        for first, end in known:
            fails = data.draw(st.booleans())
            assert not called
            batch.resolve(first, end - first, -1 if fails else 100 * first, -1, error if fails else None)
            expected.update({n: None if fails else 100 * first + n - first for n in range(first, end)})
        assert batch.is_done == (len(known) == len(parts))
        batch.abandon(error)
        expected.update({n: None for n in range(count) if n not in expected})
        found = await waiting
        assert called == list(range(count)) and batch.is_done and batch.unseen_failure is None
        for index, outcome in enumerate(found):
            if expected[index] is None:
                assert outcome is error and deliveries[index].exception() is error
            else:
                assert not isinstance(outcome, BaseException)
                assert (outcome.offset, outcome.timestamp) == (expected[index], 77)

    asyncio.run(play())


def test_one_waiter_that_is_cancelled_takes_no_other_along() -> None:
    async def play() -> None:
        batch = OpenBatch.whole("t", 0, 2, 0.0)

        async def wait(index: int) -> int:
            return (await Delivery(batch, index, 0)).offset

        first, second = asyncio.create_task(wait(0)), asyncio.create_task(wait(1))
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        batch.resolve(0, 2, 10, -1, None)
        assert await second == 11 and first.cancelled()

    asyncio.run(play())
