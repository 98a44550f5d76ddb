"""The work, part by part. Each part says what is measured, runs it in turns and holds the ratios against the goals."""

import multiprocessing
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from bench import clients, cluster, groups, load, quorums, transactions, wire
from bench.brokers import APACHE, Broker, Brokers, started
from bench.measure import median, memory_mb, percentile
from bench.report import Part, Rows

Measures: TypeAlias = dict[str, float]
SMALL, LARGE, SINGLE = (150, 100), (1000, 1000), (1, 100)  # records per batch, bytes per record
SCALES = (1, 1000, 10_000)


@dataclass
class Bench:
    brokers: Brokers
    folder: Path
    seconds: float
    rounds: int
    warm_seconds: float

    def in_turns(self, names: tuple[str, ...], run: Callable[[Broker, float], Measures]) -> Rows:
        """Warms every broker with the work itself, then lets them take turns; medians of the turns."""
        brokers = self.brokers.get(*names)
        for broker in brokers:
            run(broker, self.warm_seconds)
        turns: dict[str, list[Measures]] = {broker.name: [] for broker in brokers}
        for _ in range(self.rounds):
            for broker in brokers:
                turns[broker.name].append(run(broker, self.seconds))
        return {name: medians(many) for name, many in turns.items()}


def medians(many: list[Measures]) -> Measures:
    return {measure: median([one[measure] for one in many]) for measure in many[0]}


def rate(result: load.Rate) -> Measures:
    return {
        "MB/s": result.mb_per_s,
        "requests/s": result.requests_per_s,
        "CPU s/GB": result.cpu_s_per_gb,
        "CPU µs/request": result.cpu_us_per_request,
        "generator busy": result.generator_share,
    }


def produce_run(
    shape: tuple[int, int], partitions: int = 1, connections: int = 1, **configs: object
) -> Callable[[Broker, float], Measures]:
    records = wire.random_batch(*shape)

    def run(broker: Broker, seconds: float) -> Measures:
        own = {k: v for k, v in configs.items() if not (k == "flush_messages" and broker.name != APACHE)}
        with broker.topic("bench-produce", partitions, **own) as topic:
            requests = [wire.produce(topic, [p], records) for p in range(partitions)]
            done = load.produce(
                broker.port, broker.pid, topic, requests, len(records), seconds=seconds, connections=connections
            )
            return rate(done)

    return run


def against_kernel(part: Part, bench: Bench, shape: tuple[int, int]) -> None:
    """The kernel's own cost at this frame size, as a row and a goal."""
    frame_bytes = len(wire.random_batch(*shape))
    speed, cpu = load.kernel_cost(frame_bytes, str(bench.folder), min(bench.seconds, 3))
    part.rows["kernel alone"] = {"MB/s": speed, "CPU s/GB": cpu}
    part.goal(f"{part.name}: CPU against the kernel's own", "CPU s/GB", at_most=2.5, against="kernel alone")


def produce_small(bench: Bench) -> Part:
    part = Part("produce-small", "Produce, batches of 150 x 100 B on one connection")
    part.rows = bench.in_turns(("headrace", APACHE, "headrace-records"), produce_run(SMALL))
    part.goal("produce 150 x 100 B: MB/s", "MB/s", at_least=3)
    part.goal("produce 150 x 100 B: CPU per GB", "CPU s/GB", at_most=0.35)
    part.notes.append(
        "`headrace-records` walks every record as Kafka does; the default checks the batch's CRC and header."
    )
    against_kernel(part, bench, SMALL)
    return part


def produce_large(bench: Bench) -> Part:
    part = Part("produce-large", "Produce, batches of 1000 x 1 KB on one connection")
    part.rows = bench.in_turns(("headrace", APACHE, "headrace-records"), produce_run(LARGE, max_message_bytes=4 << 20))
    part.goal("produce 1000 x 1 KB: CPU per GB", "CPU s/GB", at_most=0.8)
    against_kernel(part, bench, LARGE)
    return part


def produce_single(bench: Bench) -> Part:
    part = Part("produce-single", "Produce, one record of 100 B per request on 16 connections")
    part.rows = bench.in_turns(("headrace", APACHE, "headrace-records"), produce_run(SINGLE, connections=16))
    part.goal("one record per request: requests/s", "requests/s", at_least=2)
    part.goal("one record per request: CPU per request", "CPU µs/request", at_most=0.4)
    return part


def percentiles(taken: list[float]) -> Measures:
    return {f"p{share * 100:g} µs": percentile(taken, share) for share in (0.5, 0.99, 0.999)} | {"max µs": taken[-1]}


def latency(bench: Bench) -> Part:
    def run(broker: Broker, seconds: float) -> Measures:
        with broker.topic("bench-latency") as topic:
            request = wire.produce(topic, [0], wire.random_batch(*SINGLE))
            return percentiles(load.latency(broker.port, topic, request, seconds=seconds))

    part = Part("latency", "Latency of producing one record, acks=all, one request at a time")
    part.rows = bench.in_turns(("headrace", APACHE, "headrace-fsync"), run)
    part.goal("produce latency: p50", "p50 µs", at_most=0.35)
    part.goal("produce latency: p99", "p99 µs", at_most=0.5)
    return part


def fetch(bench: Bench) -> Part:
    records = wire.random_batch(*LARGE)
    part = Part("fetch", "Fetch of 1 MB per request on one connection")
    with ExitStack() as stack:
        brokers = bench.brokers.get("headrace", APACHE)
        for broker in brokers:
            topic = stack.enter_context(broker.topic("bench-fetch", max_message_bytes=4 << 20))
            requests = [wire.produce(topic, [0], records)]
            load.produce(broker.port, broker.pid, topic, requests, len(records), seconds=2)

        def run(broker: Broker, seconds: float) -> Measures:
            return rate(load.fetch(broker.port, broker.pid, "bench-fetch", seconds=seconds))

        part.rows = bench.in_turns(("headrace", APACHE), run)
    part.goal("fetch: CPU per GB", "CPU s/GB", at_most=0.7)
    return part


def start(bench: Bench) -> Part:
    """From the command to the first answer, on a folder that was in use before and stopped cleanly."""
    part = Part("start", "Start, and memory when idle")
    measured: dict[str, list[Measures]] = {}
    for turn in range(bench.rounds + 1):
        for name in ("headrace", *([APACHE] if bench.brokers.with_apache else [])):
            broker = started(name, bench.folder / f"start-{name}")
            time.sleep(2)
            assert broker.process is not None
            if turn > 0:
                measured.setdefault(name, []).append({"start s": broker.start_s, **memory_mb(broker.pid)})
            broker.process.stop()
    part.rows = {name: medians(many) for name, many in measured.items()}
    part.goal("start to first answer", "start s", at_most=0.1)
    part.goal("idle memory (PSS)", "PSS MB", at_most=0.2)
    return part


def memory(bench: Bench) -> Part:
    def run(broker: Broker, seconds: float) -> Measures:
        produce_run(SMALL, connections=16)(broker, seconds)
        produce_run(LARGE, max_message_bytes=4 << 20)(broker, seconds)
        return memory_mb(broker.pid)

    part = Part("memory", "Memory after load: 16 connections of small batches, then one of large ones")
    part.rows = bench.in_turns(("headrace", APACHE), run)
    part.goal("memory under load (PSS)", "PSS MB", at_most=0.2)
    return part


def fsync(bench: Bench) -> Part:
    part = Part("fsync", "Every acknowledged record on disk: durability=fsync against flush.messages=1, 16 connections")
    for partitions in (1, 20):
        run = produce_run((10, 100), partitions, 16, flush_messages=1)
        for name, row in bench.in_turns(("headrace-fsync", APACHE), run).items():
            part.rows[f"{name}, {partitions} partitions"] = row
        part.goal(
            f"fsync, {partitions} partition{'s' * (partitions > 1)}: requests/s", "requests/s", at_least=2,
            of=f"headrace-fsync, {partitions} partitions", against=f"apache, {partitions} partitions",
        )  # fmt: skip
    return part


def real_clients(bench: Bench) -> Part:
    part = Part("clients", "Real clients at their defaults, records of 100 B")
    names = ("headrace", APACHE, "headrace-fsync")
    for title, run in clients.RUNS.items():
        rows = bench.in_turns(names, run)
        for name, row in rows.items():
            part.rows[f"{title}, {name}"] = row
        part.goal(f"{title}: records/s", "records/s", at_least=1, of=f"{title}, headrace", against=f"{title}, apache")
    return part


# While the house is being kept


def _keep_busy(port: int, stop_at: float) -> None:
    """Feeds a compacted topic and one with tight retention, some 10 MB/s each, until it is time."""
    feeds = []
    for topic, key in (("bench-compacted", b"k"), ("bench-retained", None)):
        request = wire.produce(topic, [0], wire.random_batch(100, 1000, key))
        feeds.append((load.connect(port), request))
    buffer = bytearray(1 << 16)
    while time.time() < stop_at:
        for sock, request in feeds:
            sock.sendall(request)
            load.receive_frame(sock, buffer)
        time.sleep(0.01)


@contextmanager
def housekeeping(broker: Broker, seconds: float) -> Iterator[None]:
    small = {"segment_bytes": 1 << 20}
    with (
        broker.topic("bench-compacted", cleanup_policy="compact", min_cleanable_dirty_ratio=0.01, **small),
        broker.topic("bench-retained", retention_bytes=4 << 20, **small),
    ):
        feeder = multiprocessing.get_context("spawn").Process(
            target=_keep_busy, args=(broker.port, time.time() + seconds + 3)
        )
        feeder.start()
        time.sleep(3)
        try:
            yield
        finally:
            feeder.join()


def tail(bench: Bench) -> Part:
    def run(broker: Broker, seconds: float) -> Measures:
        with housekeeping(broker, seconds), broker.topic("bench-tail") as topic:
            request = wire.produce(topic, [0], wire.random_batch(*SINGLE))
            return percentiles(load.latency(broker.port, topic, request, seconds=seconds, pause_s=0.001))

    part = Part("tail", "Latency of one record while compaction and retention run under 20 MB/s of other writes")
    part.rows = bench.in_turns(("headrace", APACHE, "headrace-fsync"), run)
    part.goal("p99.9 while compaction and retention run", "p99.9 µs", at_most=1)
    return part


# Growth


def partitions(bench: Bench) -> Part:
    """One-record requests to every partition in turn, after each has been written to once."""
    part = Part("partitions", "Cost of a request as partitions grow: one record each, round robin over all of them")
    for broker in bench.brokers.get("headrace"):
        for count in SCALES:
            with ExitStack() as stack:
                per_topic = min(count, 1000)
                topics = [
                    stack.enter_context(broker.topic(f"bench-many-{i:04}", per_topic))
                    for i in range(count // per_topic)
                ]
                records = wire.random_batch(*SINGLE)
                requests = [wire.produce(topic, [p], records) for p in range(per_topic) for topic in topics]
                work = {"topic": topics[0], "requests": requests, "payload_bytes": len(records)}
                load.produce(broker.port, broker.pid, **work, seconds=max(bench.warm_seconds, count / 2000))  # type: ignore[arg-type]
                turns = [
                    rate(load.produce(broker.port, broker.pid, **work, seconds=bench.seconds))  # type: ignore[arg-type]
                    for _ in range(bench.rounds)
                ]
                part.rows[f"{broker.name}, {count:,}"] = medians(turns) | memory_mb(broker.pid)
    for count in SCALES[1:]:
        part.goal(
            f"{count:,} partitions against 1: CPU per request", "CPU µs/request", at_most=1.5,
            of=f"headrace, {count:,}", against="headrace, 1",
        )  # fmt: skip
    return part


def connections(bench: Bench) -> Part:
    part = Part("connections", "Cost of a request as connections grow: one record each, one in flight per connection")
    records = wire.random_batch(*SINGLE)
    scales = (1, 100, 5000)
    for broker in bench.brokers.get("headrace"):
        for count in scales:
            turns = []
            for _ in range(bench.rounds):
                with broker.topic("bench-connections") as topic:
                    requests = [wire.produce(topic, [0], records)]
                    done = load.produce(
                        broker.port, broker.pid, topic, requests, len(records),
                        seconds=bench.seconds, connections=count, in_flight=1,
                    )  # fmt: skip
                    turns.append(rate(done))
            part.rows[f"{broker.name}, {count:,}"] = medians(turns) | memory_mb(broker.pid)
    for count in scales[1:]:
        part.goal(
            f"{count:,} connections against 1: CPU per request", "CPU µs/request", at_most=1.5,
            of=f"headrace, {count:,}", against="headrace, 1",
        )  # fmt: skip
    return part


PARTS: dict[str, Callable[[Bench], Part]] = {
    "produce-small": produce_small,
    "produce-large": produce_large,
    "produce-single": produce_single,
    "latency": latency,
    "fetch": fetch,
    "start": start,
    "memory": memory,
    "fsync": fsync,
    "clients": real_clients,
    "tail": tail,
    "partitions": partitions,
    "connections": connections,
    **groups.PARTS,
    **cluster.PARTS,
    **quorums.PARTS,
    **transactions.PARTS,
}
