"""`headrace demo --quick`: a broker's whole job in a few seconds, with proof.

Produces keyed records into a topic, kills the broker with -9 in the middle, restarts it, produces the rest, reads
everything back and compares it with what was acknowledged. The exit code is 0 only if nothing is missing or changed.
"""

import asyncio
import shutil
import tempfile
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from headrace.client.admin.admin import Admin
from headrace.client.errors import ClientError, RequestFailed
from headrace.client.net.cluster import Cluster
from headrace.client.raw import Buffer, fetch, produce
from headrace.local_cluster.process import BrokerProcess
from headrace.records.batch import BatchBuilder, iter_headers, iter_records
from headrace.terminal import console, print_table, size_text

TOPIC = "orders"
PARTITIONS = 4
CUSTOMERS = 1000
BATCH_RECORDS = 500
IN_FLIGHT = 8
SEGMENT_BYTES = 4 << 20
SETTLE_S = 10.0
"""How long a batch may be tried while the broker is away."""


Rows = dict[int, tuple[bytes | None, bytes | None]]
"""Key and value by offset."""


class DemoFailed(Exception):
    """What was promised and did not hold."""


@dataclass(slots=True)
class Batch:
    """Records of one partition, ready to send; `base_offset` is known once it is acknowledged."""

    partition: int
    data: bytes
    records: list[tuple[bytes, bytes]]
    base_offset: int = -1


@dataclass(slots=True)
class Outcome:
    """Figures for the summary."""

    before_kill: int = 0
    produce_s: float = 0.0
    produced_bytes: int = 0
    consumed: int = 0
    consumed_bytes: int = 0
    consume_s: float = 0.0
    repeated: int = 0
    restart_s: float = 0.0
    ends: dict[int, int] = field(default_factory=dict)


def prove(records: int, keep: bool) -> int:
    """Run everything; returns the exit code."""
    out = console()
    folder = Path(tempfile.mkdtemp(prefix="headrace-demo-"))
    data = folder / "data"
    broker = BrokerProcess(data, folder / "broker.log")
    started = time.perf_counter()
    try:
        # Its folder is of no interest: it goes in a moment, or is named at the end.
        out.print(f"[bold]1. Start[/]       {broker.start().replace(f'data in {data}, ', '')}")
        batches = build_batches(records)
        outcome = asyncio.run(play(broker, batches, lambda text: out.print(text)))
        print_files(data, outcome)
        broker.stop()
        out.print(f"[bold]6. Stop[/]        cleanly, {time.perf_counter() - started:.1f} s after the start")
        out.print(summary(len(batches), records))
    except (DemoFailed, ClientError, RuntimeError) as error:
        out.print(f"[red]failed:[/] {error}")
        out.print(f"The broker's log: {folder / 'broker.log'}")
        keep = True
        return 1
    finally:
        broker.kill9()
        if keep:
            out.print(f"Data and log are in {folder}; look into them with: headrace log dump {data / (TOPIC + '-0')}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    return 0


def build_batches(records: int) -> list[Batch]:
    """Orders of some customers, in batches by partition: a customer's orders share a key, so a partition, so an
    order."""
    now_ms = int(time.time() * 1000)
    keys = [b"customer-%d" % number for number in range(CUSTOMERS)]
    partition_of = [zlib.crc32(key) % PARTITIONS for key in keys]
    waiting: list[list[tuple[bytes, bytes]]] = [[] for _ in range(PARTITIONS)]
    batches: list[Batch] = []
    for number in range(records):
        customer = number * 7919 % CUSTOMERS
        partition = partition_of[customer]
        value = b'{"order": %d, "customer": %d, "cents": %d, "note": "thank you, come again"}' % (
            number,
            customer,
            number % 9999,
        )
        waiting[partition].append((keys[customer], value))
        if len(waiting[partition]) == BATCH_RECORDS:
            batches.append(_seal(partition, waiting[partition], now_ms))
            waiting[partition] = []
    batches.extend(_seal(partition, rest, now_ms) for partition, rest in enumerate(waiting) if rest)
    return batches


def _seal(partition: int, records: list[tuple[bytes, bytes]], now_ms: int) -> Batch:
    builder = BatchBuilder()
    for key, value in records:
        builder.append(now_ms, key, value)
    return Batch(partition, builder.build(), records)


async def play(broker: BrokerProcess, batches: list[Batch], say: Callable[[str], None]) -> Outcome:
    """Produce one half, kill, restart, produce the other half, read back, compare."""
    outcome = Outcome()
    middle = len(batches) // 2
    async with Admin(broker.address, connect_timeout_s=2.0, retry_timeout_s=SETTLE_S) as admin:
        made = await admin.create_topic(TOPIC, PARTITIONS, 1, {"segment.bytes": str(SEGMENT_BYTES)})
        say(
            f"[bold]2. Topic[/]       {TOPIC}: {made.partitions} partitions, replication factor"
            f" {made.replication_factor}"
        )
        began = time.perf_counter()
        await produce_all(admin.cluster, batches[:middle])
        outcome.produce_s = time.perf_counter() - began
        outcome.before_kill = sum(len(batch.records) for batch in batches[:middle])
        outcome.produced_bytes = sum(len(batch.data) for batch in batches[:middle])
        say(
            f"[bold]3. Produce[/]     {outcome.before_kill:,} keyed records acknowledged after fsync in "
            f"{outcome.produce_s:.2f} s: {_rate(outcome.before_kill, outcome.produced_bytes, outcome.produce_s)}"
        )
        acknowledged = await produce_through_kill(broker, admin.cluster, batches[middle:], outcome)
        say(
            f"[bold]4. kill -9[/]     in mid-stream, with {acknowledged:,} records acknowledged; "
            f"back in {outcome.restart_s:.2f} s, the rest produced"
        )
        await read_back(admin, batches, outcome)
        say(
            f"[bold]5. Consume[/]     {outcome.consumed:,} records in {outcome.consume_s:.2f} s: "
            f"{_rate(outcome.consumed, outcome.consumed_bytes, outcome.consume_s)}"
        )
        say(f"{'':15}every acknowledged record is where it was acknowledged, byte for byte")
        if outcome.repeated:
            # The price of a producer without an id, said where it shows.
            say(
                f"{'':15}{outcome.repeated:,} are there twice: the broker died before it could answer, so they were"
                " sent again"
            )
    return outcome


async def produce_all(cluster: Cluster, batches: list[Batch]) -> None:
    """Send every batch with acks=all, several in flight on one connection."""
    todo = iter(batches)

    async def sender() -> None:
        for batch in todo:
            batch.base_offset = (await produce(cluster, TOPIC, batch.partition, batch.data)).base_offset

    await asyncio.gather(*(sender() for _ in range(IN_FLIGHT)))


async def produce_through_kill(broker: BrokerProcess, cluster: Cluster, batches: list[Batch], outcome: Outcome) -> int:
    """Produce while the broker is killed and comes back. A batch without an acknowledgement is sent again.

    Without a producer id the repeated batch may be in the log twice; an acknowledged one is there for certain.
    """
    todo = iter(batches)
    enough = asyncio.Event()
    done = 0

    async def sender() -> None:
        nonlocal done
        for batch in todo:
            batch.base_offset = await _until_acknowledged(cluster, batch)
            done += 1
            if done > len(batches) // 3:
                enough.set()

    async def killer() -> int:
        await enough.wait()
        broker.kill9()
        acknowledged = sum(len(batch.records) for batch in batches if batch.base_offset >= 0)
        began = time.perf_counter()
        await asyncio.to_thread(broker.start)
        outcome.restart_s = time.perf_counter() - began
        return acknowledged

    acknowledged, *_ = await asyncio.gather(killer(), *(sender() for _ in range(IN_FLIGHT)))
    assert acknowledged is not None
    return outcome.before_kill + acknowledged


async def _until_acknowledged(cluster: Cluster, batch: Batch) -> int:
    deadline = time.monotonic() + SETTLE_S
    while True:
        try:
            return (await produce(cluster, TOPIC, batch.partition, batch.data)).base_offset
        except RequestFailed:
            raise
        except ClientError as error:
            if time.monotonic() > deadline:
                raise DemoFailed(f"the broker did not come back within {SETTLE_S:g} s: {error}") from None
            await asyncio.sleep(0.1)


async def read_back(admin: Admin, batches: list[Batch], outcome: Outcome) -> None:
    """Fetch every partition from its start, then compare with what was acknowledged."""
    outcome.ends = {index: found.offset for index, found in (await admin.list_offsets(TOPIC)).items()}
    began = time.perf_counter()
    fetched = await asyncio.gather(*(fetch_all(admin.cluster, index, end) for index, end in outcome.ends.items()))
    outcome.consume_s = time.perf_counter() - began
    outcome.consumed_bytes = sum(len(piece) for pieces in fetched for piece in pieces)
    stored = {index: read_rows(pieces) for index, pieces in zip(outcome.ends, fetched)}
    outcome.consumed = sum(map(len, stored.values()))
    compare(batches, stored)
    outcome.repeated = outcome.consumed - sum(len(batch.records) for batch in batches)


async def fetch_all(cluster: Cluster, partition: int, end: int) -> list[Buffer]:
    """The answers to fetches that together hold every batch below `end`."""
    pieces: list[Buffer] = []
    offset = 0
    while offset < end:
        got = await fetch(cluster, TOPIC, partition, offset, max_bytes=4 << 20)
        before = offset
        for _, header in iter_headers(got.records):
            offset = header.end_offset
        if offset == before:
            raise DemoFailed(f"{TOPIC}-{partition}: no records at offset {offset} although the log ends at {end}")
        pieces.append(got.records)
    return pieces


def read_rows(pieces: list[Buffer]) -> Rows:
    return {record.offset: (record.key, record.value) for piece in pieces for record in iter_records(piece)}


def compare(batches: list[Batch], stored: dict[int, Rows]) -> None:
    """Every acknowledged record must be at its offset, as it was sent. Raises DemoFailed."""
    for batch in batches:
        rows = stored[batch.partition]
        for offset, wanted in enumerate(batch.records, batch.base_offset):
            if rows.get(offset) != wanted:
                state = "missing" if offset not in rows else "different"
                raise DemoFailed(f"{TOPIC}-{batch.partition}: the record acknowledged at offset {offset} is {state}")


# -- what is shown


def _rate(records: int, size: int, seconds: float) -> str:
    seconds = max(seconds, 1e-9)
    return f"{records / seconds:,.0f} records/s, {size / seconds / 1e6:,.0f} MB/s"


def print_files(data: Path, outcome: Outcome) -> None:
    rows = []
    for index, end in sorted(outcome.ends.items()):
        folder = data / f"{TOPIC}-{index}"
        segments = sorted(folder.glob("*.log"))
        size = sum(path.stat().st_size for path in segments)
        rows.append(
            (f"{'':15}{folder.name}/", len(segments), segments[-1].name if segments else "-", end, size_text(size))
        )
    columns = (f"{'':15}FOLDER", "SEGMENTS", "NEWEST", "END OFFSET", "SIZE")
    print_table(columns, rows, numbers=("SEGMENTS", "END OFFSET", "SIZE"))


def summary(batches: int, records: int) -> str:
    return f"[green]All is right:[/] {records:,} records in {batches:,} batches, none lost, none changed."
