"""kill -9 under load, again and again: what was acknowledged is there, where it was said to be, and only once."""

import threading
import time
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import confluent_kafka
import pytest

from tests.broker.support import PATIENCE_S, create_topic, end_offset, produce, read_log
from tests.compat.process import HeadraceProcess
from tests.compat.raw import Closed, Connection
from tests.librdkafka import STEADY
from tests.waiting import eventually

PARTITIONS = 3
TOPIC = "t"


class Plain(threading.Thread):
    """One batch after another without a producer id. What was not answered may be there, or not."""

    def __init__(self, port: int, partition: int, seed: int) -> None:
        super().__init__(daemon=True)
        self.port, self.partition = port, partition
        self.dice = Random(seed)
        self.name = f"plain{partition}-{seed}"
        self.acknowledged: dict[int, bytes] = {}
        self.attempted: set[bytes] = set()
        self.stopping = threading.Event()
        self.failure: BaseException | None = None

    def run(self) -> None:
        number = 0
        while not self.stopping.is_set():
            try:
                with Connection(self.port, PATIENCE_S) as wire:
                    while not self.stopping.is_set():
                        number += 1
                        self._write(wire, number)
            except (Closed, OSError):
                time.sleep(0.01)  # the broker is down
            except BaseException as error:
                self.failure = error
                return

    def _write(self, wire: Connection, number: int) -> None:
        count = self.dice.randint(1, 5)
        values = [f"{self.name}:{number}:{at}:".encode() + bytes(self.dice.randrange(2000)) for at in range(count)]
        self.attempted.update(values)
        error, base_offset = produce(wire, TOPIC, self.partition, *values)
        assert error == 0, error
        for at, value in enumerate(values):
            assert base_offset + at not in self.acknowledged, "an offset was given out twice"
            self.acknowledged[base_offset + at] = value


class Idempotent(threading.Thread):
    """librdkafka with a producer id: every record exactly once, through every restart."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__(daemon=True)
        self.delivered: dict[tuple[int, int], bytes] = {}
        self.undelivered: list[str] = []
        self.sent: set[bytes] = set()
        self.stopping = threading.Event()
        self.producer = confluent_kafka.Producer(
            {
                **STEADY, "bootstrap.servers": bootstrap, "enable.idempotence": True, "acks": "all", "linger.ms": 1,
                "message.timeout.ms": 120_000, "reconnect.backoff.ms": 10, "reconnect.backoff.max.ms": 100,
                "retry.backoff.ms": 20, "log_level": 0, "logger": _Silent(),
            }
        )  # fmt: skip

    def _report(self, error: Any, message: Any) -> None:
        if error is not None:
            self.undelivered.append(str(error))
        else:
            key = message.partition(), message.offset()
            if key in self.delivered:
                self.undelivered.append(f"offset given out twice: {key}")
            self.delivered[key] = message.value()

    def run(self) -> None:
        dice = Random(9)
        number = 0
        while not self.stopping.is_set():
            number += 1
            value = f"idempotent:{number}:".encode() + bytes(dice.randrange(300))
            try:
                self.producer.produce(TOPIC, value, partition=dice.randrange(PARTITIONS), on_delivery=self._report)
                self.sent.add(value)
            except BufferError:
                self.producer.poll(0.1)
            self.producer.poll(0.0005 if number % 50 else 0.005)


class _Silent:
    """librdkafka tells a lot about brokers that go away."""

    def log(self, *arguments: object) -> None: ...


def kill_in_a_loop(folder: Path, rounds: int, seed: int, **config: str) -> None:
    dice = Random(seed)
    broker = HeadraceProcess(
        folder / "data", config={name.replace("_", "."): value for name, value in config.items()}
    ).start()
    create_topic(broker.port, TOPIC, PARTITIONS)
    plain = [Plain(broker.port, partition, seed) for partition in range(PARTITIONS)]
    idempotent = Idempotent(broker.bootstrap)
    writers: list[Any] = [*plain, idempotent]
    for writer in writers:
        writer.start()

    def progress() -> list[int]:
        return [*(len(writer.acknowledged) for writer in plain), len(idempotent.delivered)]

    def has_gone_on(before: list[int]) -> bool:
        return all(now > then for now, then in zip(progress(), before))

    try:
        for _ in range(rounds):
            eventually(partial(has_gone_on, progress()), "everybody gets on", 60)
            time.sleep(dice.random() * 0.5)
            broker.kill9()
            broker.start()
        for writer in writers:
            writer.stopping.set()
        for writer in writers:
            writer.join(PATIENCE_S)
        assert [writer.failure for writer in plain] == [None] * len(plain)
        assert idempotent.producer.flush(60) == 0, "librdkafka could not deliver everything"
        assert "Traceback" not in broker.output()
        check(broker, plain, idempotent)
        assert broker.stop() == 0
        broker.start()
        check(broker, plain, idempotent)
    finally:
        for writer in writers:
            writer.stopping.set()
        broker.kill9()


def check(broker: HeadraceProcess, plain: list[Plain], idempotent: Idempotent) -> None:
    assert idempotent.undelivered == []
    assert set(idempotent.delivered.values()) == idempotent.sent
    with Connection(broker.port, PATIENCE_S) as wire:
        for partition in range(PARTITIONS):
            log = dict(read_log(broker.port, TOPIC, partition))
            assert list(log) == list(range(end_offset(wire, TOPIC, partition)))
            values = list(log.values())
            assert len(set(values)) == len(values), "a record is there twice"
            expected = dict(plain[partition].acknowledged)
            expected.update({o: value for (p, o), value in idempotent.delivered.items() if p == partition})
            lost = {offset: value[:40] for offset, value in expected.items() if log.get(offset) != value}
            assert not lost, (
                f"{len(lost)} acknowledged records are not where they were said to be: {dict(list(lost.items())[:3])}"
            )
            strange = set(values) - plain[partition].attempted - idempotent.sent
            assert not strange, "records that nobody sent"


@pytest.mark.parametrize("fast_path", ["on", "off"])
def test_kill_under_load(tmp_path: Path, fast_path: str) -> None:
    kill_in_a_loop(tmp_path, rounds=2, seed=1, fast_path=fast_path)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(10))
def test_kill_under_load_many_times(tmp_path: Path, seed: int) -> None:
    kill_in_a_loop(tmp_path, rounds=15, seed=seed, log_segment_bytes=str(1 << 20), log_index_interval_bytes="100")


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(3))
def test_kill_with_kafkas_durability(tmp_path: Path, seed: int) -> None:
    """kill -9 leaves the page cache: nothing is lost without fsync either."""
    kill_in_a_loop(tmp_path, rounds=10, seed=100 + seed, durability="replicated")
