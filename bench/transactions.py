"""Transactions side by side: small ones on one and on many producers, with offsets, on disk; reading committed records;
and what idempotence costs. Producers are sockets of this process that speak transaction version 2."""

import select
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import crc32c

from bench import load, wire
from bench.brokers import APACHE, Broker
from bench.groups import ask, find_coordinator, receive, send
from bench.report import Part
from headrace.protocol import messages as m
from headrace.protocol.api import ApiKey

if TYPE_CHECKING:
    from bench.parts import Bench, Measures

PRODUCE_VERSION, END_VERSION, COMMIT_VERSION, INIT_VERSION, FIND_VERSION = 12, 5, 5, 5, 4
PRODUCERS = (1, 16)
RECORDS = (1, 10, 100)
RECORD_BYTES = 100
PARTITIONS = 4
TRANSACTION = 1
TRANSACTIONAL = 0x10
TRY_AGAIN = (14, 15, 16, 51)
"""The coordinator loads or moves, or the markers of the transaction before are not written yet."""
PAUSE_S = 0.001
"""Before a request is sent again. Clients pause longer: 20 ms and more."""
CRC_AT, CRC_FROM, ATTRIBUTES_AT, PRODUCER_AT = 17, 21, 21, 43


class Batch:
    """A record batch that is stamped for one producer after the other."""

    def __init__(self, records: int, attributes: int) -> None:
        self._data = bytearray(wire.random_batch(records, RECORD_BYTES))
        struct.pack_into(">h", self._data, ATTRIBUTES_AT, attributes)

    def of(self, producer_id: int, epoch: int, sequence: int) -> bytes:
        struct.pack_into(">qhi", self._data, PRODUCER_AT, producer_id, epoch, sequence)
        struct.pack_into(">I", self._data, CRC_AT, crc32c.crc32c(memoryview(self._data)[CRC_FROM:]))
        return bytes(self._data)


class Producer:
    """One transactional id: `steps` yields requests, and is sent their answers."""

    def __init__(self, port: int, topic: str, number: int, records: int, *, with_offsets: bool) -> None:
        self.sock = load.connect(port)
        self.id = f"bench-{time.time_ns()}-{number}"
        self.done = 0
        self._topic = topic
        self._partition = number % PARTITIONS
        self._batch = Batch(records, TRANSACTIONAL)
        self._with_offsets = with_offsets
        self._who = (-1, -1)

    def begin(self) -> None:
        found = m.FindCoordinatorRequest(key_type=TRANSACTION, coordinator_keys=[self.id])
        while ask(self.sock, ApiKey.FIND_COORDINATOR, FIND_VERSION, found).coordinators[0].error_code:
            time.sleep(0.1)
        request = m.InitProducerIdRequest(transactional_id=self.id, transaction_timeout_ms=60_000)
        while (answer := ask(self.sock, ApiKey.INIT_PRODUCER_ID, INIT_VERSION, request)).error_code:
            time.sleep(0.1)
        self._who = answer.producer_id, answer.producer_epoch
        if self._with_offsets:
            find_coordinator(self.sock, self.id)

    def steps(self) -> Iterator[tuple[ApiKey, int, Any]]:
        """The requests of one transaction after the other; `answered` takes their answers."""
        while True:
            yield ApiKey.PRODUCE, PRODUCE_VERSION, self._produce()
            if self._with_offsets:
                yield ApiKey.TXN_OFFSET_COMMIT, COMMIT_VERSION, self._commit()
            yield ApiKey.END_TXN, END_VERSION, self._end()
            self.done += 1

    def answered(self, key: ApiKey, answer: Any) -> int:
        """The error in an answer."""
        if key is ApiKey.PRODUCE:
            return int(answer.responses[0].partition_responses[0].error_code)
        if key is ApiKey.TXN_OFFSET_COMMIT:
            return int(answer.topics[0].partitions[0].error_code)
        if not answer.error_code:
            self._who = answer.producer_id, answer.producer_epoch
        return int(answer.error_code)

    def _produce(self) -> m.ProduceRequest:
        kind = m.ProduceRequest
        row = kind.PartitionProduceData(index=self._partition, records=self._batch.of(*self._who, 0))
        topic = kind.TopicProduceData(name=self._topic, partition_data=[row])
        return kind(transactional_id=self.id, acks=-1, timeout_ms=30_000, topic_data=[topic])

    def _commit(self) -> m.TxnOffsetCommitRequest:
        kind = m.TxnOffsetCommitRequest
        row = kind.TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=self.done)
        return kind(
            transactional_id=self.id,
            group_id=self.id,
            producer_id=self._who[0],
            producer_epoch=self._who[1],
            topics=[kind.TxnOffsetCommitRequestTopic(name=self._topic, partitions=[row])],
        )

    def _end(self) -> m.EndTxnRequest:
        return m.EndTxnRequest(
            transactional_id=self.id, producer_id=self._who[0], producer_epoch=self._who[1], committed=True
        )


def pump(producers: list[Producer], seconds: float) -> int:
    """Lets all of them work at once; returns how many transactions were committed."""
    before = sum(producer.done for producer in producers)
    poll = select.epoll()
    by_fd = {producer.sock.fileno(): (producer, producer.steps()) for producer in producers}
    asked: dict[int, tuple[ApiKey, int, Any]] = {}
    later: list[tuple[float, int]] = []
    end = time.perf_counter() + seconds
    for fd, (producer, steps) in by_fd.items():
        poll.register(fd, select.EPOLLIN)
        asked[fd] = next(steps)
        send(producer.sock, *asked[fd])
    while asked:
        now = time.perf_counter()
        while later and later[0][0] <= now:
            _, fd = later.pop(0)
            send(by_fd[fd][0].sock, *asked[fd])
        for fd, _ in poll.poll(PAUSE_S if later else 1.0):
            producer, steps = by_fd[fd]
            key, version, _ = asked[fd]
            error = producer.answered(key, receive(producer.sock, key, version))
            if error in TRY_AGAIN:
                later.append((time.perf_counter() + PAUSE_S, fd))
                continue
            if error:
                raise RuntimeError(f"{key.name} of {producer.id}: error {error}")
            step = next(steps)
            if step[0] is ApiKey.PRODUCE and now >= end:
                del asked[fd]
                continue
            asked[fd] = step
            send(producer.sock, *step)
    poll.close()
    return sum(producer.done for producer in producers) - before


def transactions_run(
    count: int, records: int, *, with_offsets: bool = False, **configs: object
) -> Callable[[Broker, float], "Measures"]:
    def run(broker: Broker, seconds: float) -> "Measures":
        own = {} if broker.name != APACHE else configs
        with broker.topic("bench-transactions", PARTITIONS, **own) as topic, ExitStack() as stack:
            producers = [Producer(broker.port, topic, n, records, with_offsets=with_offsets) for n in range(count)]
            for producer in producers:
                stack.callback(producer.sock.close)
                producer.begin()
            pump(producers, min(1.0, seconds / 4))
            done = load.measured(broker.pid, lambda: (pump(producers, seconds), 0))
            return {
                "transactions/s": done.requests_per_s,
                "CPU µs/transaction": done.cpu_us_per_request,
                "generator busy": done.generator_share,
            }

    return run


def transactions(bench: "Bench") -> Part:
    part = Part("transactions", f"Transactions over {PARTITIONS} partitions, records of {RECORD_BYTES} B, version 2")
    shapes = [
        (f"{records} records, {count} producers", "headrace", transactions_run(count, records))
        for count in PRODUCERS
        for records in RECORDS
    ]
    offsets = transactions_run(16, 10, with_offsets=True)
    shapes.append(("10 records and offsets, 16 producers", "headrace", offsets))
    synced = transactions_run(16, 10, flush_messages=1)
    shapes.append(("10 records, 16 producers, all on disk", "headrace-fsync", synced))
    for title, ours, run in shapes:
        for name, row in bench.in_turns((ours, APACHE), run).items():
            part.rows[f"{title}, {name}"] = row
        of, against = f"{title}, {ours}", f"{title}, {APACHE}"
        part.goal(f"{title}: transactions/s", "transactions/s", at_least=1.5, of=of, against=against)
        part.goal(f"{title}: CPU per transaction", "CPU µs/transaction", at_most=0.5, of=of, against=against)
    part.notes.append(
        "Headrace always syncs `__transaction_state` to disk before it answers EndTxn, whatever `durability` says;"
        " Kafka does not. A request that Kafka refuses with CONCURRENT_TRANSACTIONS is sent again after 1 ms, sooner"
        " than clients do."
    )
    return part


def committed_fetch(bench: "Bench") -> Part:
    """Half of the transactions in the log were aborted, and interleaved with the others."""
    part = Part("read-committed", "Fetch of 1 MB per request with read_committed, half of all transactions aborted")
    with ExitStack() as stack:
        for broker in bench.brokers.get("headrace", APACHE):
            topic = stack.enter_context(broker.topic("bench-committed"))
            with ExitStack() as socks:
                _write_mixed(broker.port, topic, socks)

        def run(broker: Broker, seconds: float) -> "Measures":
            done = load.fetch(broker.port, broker.pid, "bench-committed", seconds=seconds, isolation=1)
            return {"MB/s": done.mb_per_s, "CPU s/GB": done.cpu_s_per_gb}

        part.rows = bench.in_turns(("headrace", APACHE), run)
    part.goal("fetch with read_committed: CPU per GB", "CPU s/GB", at_most=0.7)
    return part


def _write_mixed(port: int, topic: str, socks: ExitStack, rounds: int = 40, megabytes: int = 1) -> None:
    producers = [Producer(port, topic, 0, 500, with_offsets=False) for _ in range(4)]
    for producer in producers:
        socks.callback(producer.sock.close)
        producer.begin()
    for number in range(rounds):
        for producer in producers:
            for sequence in range(0, 500 * 5 * megabytes, 500):
                _settled(producer, ApiKey.PRODUCE, PRODUCE_VERSION, _with_sequence(producer, sequence))
        for at, producer in enumerate(producers):
            end = producer._end()
            end.committed = (number + at) % 2 == 0
            _settled(producer, ApiKey.END_TXN, END_VERSION, end)


def _with_sequence(producer: Producer, sequence: int) -> m.ProduceRequest:
    request = producer._produce()
    request.topic_data[0].partition_data[0].records = producer._batch.of(*producer._who, sequence)
    return request


def _settled(producer: Producer, key: ApiKey, version: int, request: Any) -> None:
    while error := producer.answered(key, ask(producer.sock, key, version, request)):
        if error not in TRY_AGAIN:
            raise RuntimeError(f"{key.name} of {producer.id}: error {error}")
        time.sleep(PAUSE_S)


def idempotence(bench: "Bench") -> Part:
    """The same batches of 10 records, one at a time, with and without sequences, in short turns on one broker: what the
    machine does meanwhile meets both."""
    part = Part("idempotence", "Produce of 10 records, one request at a time: plain, and by an idempotent producer")

    def run(broker: Broker, seconds: float) -> "Measures":
        with broker.topic("bench-idempotence", len(MODES)) as topic, ExitStack() as stack:
            writers = {
                mode: OneByOne(stack.enter_context(load.connect(broker.port)), topic, at, mode == "idempotent")
                for at, mode in enumerate(MODES)
            }
            turns: dict[str, list[load.Rate]] = {mode: [] for mode in MODES}
            turn_s = seconds / TURNS
            for _ in range(TURNS):
                for mode, writer in writers.items():
                    turns[mode].append(load.measured(broker.pid, lambda: (writer.write(turn_s), 0)))  # noqa: B023
            found: Measures = {}
            for mode, rates in turns.items():
                requests = sum(rate.requests for rate in rates)
                found[f"{mode} requests/s"] = requests / sum(rate.seconds for rate in rates)
                found[f"{mode} CPU µs/request"] = 1e6 * sum(rate.broker_cpu_s for rate in rates) / requests
            return found

    for name, row in bench.in_turns(("headrace", APACHE), run).items():
        for mode in MODES:
            part.rows[f"{mode}, {name}"] = {
                measure.removeprefix(f"{mode} "): value for measure, value in row.items() if measure.startswith(mode)
            }
    part.goal(
        "idempotence: CPU per request against plain", "CPU µs/request", at_most=1.1,
        of="idempotent, headrace", against="plain, headrace",
    )  # fmt: skip
    return part


MODES = ("plain", "idempotent")
TURNS = 10


class OneByOne:
    """A producer with one request under way."""

    def __init__(self, sock: socket.socket, topic: str, partition: int, is_idempotent: bool) -> None:
        self._sock = sock
        self._topic = topic
        self._partition = partition
        self._is_idempotent = is_idempotent
        self._batch = Batch(10, 0)
        self._buffer = bytearray(1 << 16)
        self._who, self._sequence = (-1, -1), -1
        if is_idempotent:
            request = m.InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
            while (answer := ask(sock, ApiKey.INIT_PRODUCER_ID, INIT_VERSION, request)).error_code:
                time.sleep(0.1)
            self._who, self._sequence = (answer.producer_id, answer.producer_epoch), 0

    def write(self, seconds: float) -> int:
        """Returns how many requests were answered."""
        end = time.perf_counter() + seconds
        done = 0
        while time.perf_counter() < end:
            batch = self._batch.of(*self._who, self._sequence)
            self._sock.sendall(wire.produce(self._topic, [self._partition], batch))
            if error := wire.produce_error(load.receive_frame(self._sock, self._buffer), self._topic):
                raise RuntimeError(f"produce to {self._topic}: error {error}")
            done += 1
            self._sequence += 10 * self._is_idempotent
        return done


PARTS = {"transactions": transactions, "read-committed": committed_fetch, "idempotence": idempotence}
