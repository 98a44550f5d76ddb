"""Records into a topic and out of it, for tests that are about something else: one call each, no client to set up."""

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from headrace.client.admin.admin import Admin
    from headrace.client.api.types import Record

T = TypeVar("T")

CLIENT_ID = "headrace-testing"
"""Faults are not about requests of this client."""
LIMIT_S = 30.0
LOOK_S = 0.02

Value = bytes | str | None
Pair = tuple[Value, Value]
"""Key and value."""


class TooFewRecords(AssertionError):
    """They did not come in time; `records` are those that did."""

    def __init__(self, text: str, records: "list[Record]") -> None:
        super().__init__(text)
        self.records = records


def run_apart(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """A coroutine to its end, also where the caller is on an event loop itself: then in a thread."""
    if not _is_on_a_loop():
        return asyncio.run(work())
    done: list[T] = []
    failed: list[BaseException] = []

    def apart() -> None:
        try:
            done.append(asyncio.run(work()))
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=apart)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return done[0]


def _is_on_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def produce(bootstrap: str, topic: str, values: Iterable[Value | Pair], partition: int | None) -> list[tuple[int, int]]:
    """See `TestBroker.produce`."""
    from headrace import Producer

    async def work() -> list[tuple[int, int]]:
        async with Producer(bootstrap, client_id=CLIENT_ID) as producer:
            sent = []
            for each in values:
                key, value = each if isinstance(each, tuple) else (None, each)
                sent.append(await producer.send_soon(topic, _bytes(value), key=_bytes(key), partition=partition))
            await producer.flush()
            return [(where.partition, where.offset) for where in [await delivery for delivery in sent]]

    return run_apart(work)


def consume(bootstrap: str, topic: str, count: int | None, timeout_s: float, read_committed: bool) -> "list[Record]":
    """See `TestBroker.consume`."""
    from headrace.client.admin.admin import Admin

    async def work() -> "list[Record]":
        async with Admin(bootstrap, client_id=CLIENT_ID, retry_timeout_s=timeout_s) as admin:
            return await _read(admin, topic, count, timeout_s, read_committed)

    __tracebackhide__ = True
    try:
        return run_apart(work)
    except TooFewRecords as error:
        # A failed test shows the line that asked for records, not the loop that waited for them.
        raise error.with_traceback(None) from None


async def _read(
    admin: "Admin", topic: str, count: int | None, timeout_s: float, read_committed: bool
) -> "list[Record]":
    from headrace.client.admin.admin import EARLIEST
    from headrace.client.errors import RequestFailed

    found: list[Record] = []
    positions: dict[int, int] = {}
    missing = "no more came"
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            ends = await admin.list_offsets(topic, read_committed=read_committed)
            fresh = dict.fromkeys(ends.keys() - positions.keys(), EARLIEST)
            positions |= {index: at.offset for index, at in (await admin.list_offsets(topic, fresh)).items()}
            for index, end in ends.items():
                records, positions[index] = await _read_to(
                    admin, topic, index, positions[index], end.offset, read_committed
                )
                found += records
        except RequestFailed as error:
            if count is None:
                raise
            missing = str(error)  # the topic may still be created
        if count is None or len(found) >= count:
            return sorted(found, key=lambda record: (record.partition, record.offset))
        if time.monotonic() > deadline:
            raise TooFewRecords(f"{len(found)} of {count} records in {topic} within {timeout_s:g} s: {missing}", found)
        await asyncio.sleep(LOOK_S)


async def _read_to(
    admin: "Admin", topic: str, index: int, position: int, end: int, read_committed: bool
) -> "tuple[list[Record], int]":
    """All of one partition below `end`, and where to go on."""
    from headrace.client import raw
    from headrace.client.consume.records import visible_batches
    from headrace.records.batch import iter_headers

    found: list[Record] = []
    while position < end:
        got = await raw.fetch(admin.cluster, topic, index, position, read_committed=read_committed)
        aborted = got.aborted if read_committed else ()
        for _, batch in visible_batches(got.records, topic, index, position, aborted):
            found += batch
        position = max((header.end_offset for _, header in iter_headers(got.records)), default=position)
    return found, position


def _bytes(value: Value) -> bytes | None:
    return value.encode() if isinstance(value, str) else value
