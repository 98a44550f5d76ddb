"""The brokers under test, started when a part first asks for them and stopped at the end."""

import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.compat.process import HeadraceProcess
from tests.reference.apache import SERVER_JVM, ApacheKafka, answers_metadata, free_ports

from bench import wire

HEADRACE = {
    "headrace": {"durability": "replicated"},
    "headrace-fsync": {"durability": "fsync"},
    "headrace-records": {"durability": "replicated", "record.validation": "records"},
}
APACHE = "apache"
# Housekeeping often enough to be part of a run of seconds; the same for all.
COMMON = {"log.retention.check.interval.ms": 1000, "log.cleaner.backoff.ms": 1000, "log.segment.delete.delay.ms": 1000}
DELETED_S = 1.3  # after a topic's deletion its files go within `file.delete.delay.ms`


@dataclass
class Broker:
    name: str
    port: int
    pid: int
    start_s: float
    process: HeadraceProcess | ApacheKafka | None

    @contextmanager
    def topic(self, name: str, partitions: int = 1, **configs: object) -> Iterator[str]:
        """A topic for one run. Its files are gone, unwritten pages and all, before the next run begins."""
        wire.create_topic(self.port, name, partitions, {k.replace("_", "."): v for k, v in configs.items()})
        try:
            yield name
        finally:
            wire.delete_topic(self.port, name)
            time.sleep(DELETED_S)


class Brokers:
    def __init__(self, folder: Path, external: Mapping[str, tuple[int, int]], with_apache: bool) -> None:
        self.folder = folder
        self.with_apache = with_apache
        self.running = {name: Broker(name, port, pid, 0.0, None) for name, (port, pid) in external.items()}
        # Given a broker of one's own, that is the one to measure.
        self.has_external = bool(external)

    def get(self, *names: str) -> list[Broker]:
        """Those of these brokers that this run is about."""
        wanted = [n for n in names if n in self.running or self._may_start(n)]
        if self.has_external:
            wanted = [*(n for n in self.running if n not in names), *wanted]
        return [self.running.get(name) or self.start(name) for name in wanted]

    def _may_start(self, name: str) -> bool:
        return self.with_apache if name == APACHE else not self.has_external

    def start(self, name: str) -> Broker:
        self.running[name] = started(name, self.folder / name)
        return self.running[name]

    def stop(self, name: str) -> None:
        broker = self.running.pop(name, None)
        if broker is not None and broker.process is not None:
            broker.process.stop()
            shutil.rmtree(self.folder / name, ignore_errors=True)

    def stop_all(self) -> None:
        for name in list(self.running):
            self.stop(name)


def started(name: str, folder: Path) -> Broker:
    """Starts one and takes the time from the command to the first answer to Metadata; formatting is not counted."""
    process: HeadraceProcess | ApacheKafka
    if name == APACHE:
        process = ApacheKafka(folder, properties=COMMON, jvm=SERVER_JVM)
        if not process.data.exists():
            process.format()
    else:
        (port,) = free_ports(1)
        process = HeadraceProcess(folder / "data", config={**COMMON, **HEADRACE[name]}, port=port)
    begin = time.perf_counter()
    process.start()
    while not answers_metadata(process.port):
        time.sleep(0.005)
    return Broker(name, process.port, process.pid, time.perf_counter() - begin, process)
