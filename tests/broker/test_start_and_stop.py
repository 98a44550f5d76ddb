"""Starting, refusing to start, and stopping in the middle of work."""

import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from headrace.cli import up
from headrace.storage.checkpoints import META_PROPERTIES, MetaProperties
from tests.broker.support import (
    PATIENCE_S,
    create_topic,
    produce,
    produce_fields,
    read_log,
    snapshot,
)
from tests.compat.process import HeadraceProcess
from tests.compat.raw import Closed, Connection, Rec, batch, decode_response, encode_request
from tests.waiting import eventually

Refused = Callable[..., str]


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Iterator[Refused]:
    """Start, which must fail; returns the one line that says why. In this process: a new one costs half a second."""
    monkeypatch.setattr(up, "set_up_logging", lambda *_: None)
    interval = sys.getswitchinterval()

    def start(*arguments: str) -> str:
        code = up.main(arguments)
        out, err = capfd.readouterr()
        assert code == 1 and out == "", (code, out)
        # Warnings may come before; the reason is the last line, and there is no traceback.
        assert "Traceback" not in err
        line = err.strip().splitlines()[-1]
        assert line.startswith("headrace: "), err
        return line

    yield start
    sys.setswitchinterval(interval)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a broker that has served and stopped."""
    data = tmp_path_factory.mktemp("refusals") / "data"
    with HeadraceProcess(data) as process:
        create_topic(process.port, "t", 2)
        with Connection(process.port, PATIENCE_S) as wire:
            for partition in (0, 1):
                assert produce(wire, "t", partition, b"a", b"b")[0] == 0
    return data


# ---- refusals change nothing


def test_a_port_in_use(stopped: Path, tmp_path: Path, refused: Refused) -> None:
    before = snapshot(stopped)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert port in refused("--data", str(stopped), "--port", port)
        refused("--data", str(tmp_path / "new"), "--port", port)
        line = refused("--data", str(stopped), "--port", "0", "--metrics-port", port)
        assert port in line and "metrics" in line
    assert snapshot(stopped) == before
    assert not (tmp_path / "new").exists() or not snapshot(tmp_path / "new")


@pytest.mark.parametrize(("host", "reason"), [("nowhere.invalid", "name"), ("192.0.2.1", "cannot assign")])
def test_a_host_that_is_not_this_machine(tmp_path: Path, refused: Refused, host: str, reason: str) -> None:
    line = refused("--data", str(tmp_path / "new"), "--host", host, "--port", "0")
    assert f"cannot listen on {host}:0: " in line and reason in line and "unknown error" not in line
    assert "--host must be" in line and "--port" not in line


def test_a_folder_that_cannot_be_one(tmp_path: Path, refused: Refused) -> None:
    file = tmp_path / "file"
    file.write_text("mine")
    assert f"cannot use {file} as data folder: it is a file; choose" in refused("--data", str(file), "--port", "0")
    assert "not a directory" in refused("--data", str(file / "inside"), "--port", "0")
    assert file.read_text() == "mine"


def test_a_folder_in_use(tmp_path: Path, refused: Refused) -> None:
    with HeadraceProcess(tmp_path / "data") as process:
        create_topic(process.port, "t")
        assert process.process is not None
        # Frozen, so that whatever changes is not the running broker's own checkpoint.
        process.process.send_signal(signal.SIGSTOP)
        before = snapshot(tmp_path / "data")
        assert "in use" in refused("--data", str(tmp_path / "data"), "--port", "0")
        assert snapshot(tmp_path / "data") == before
        process.process.send_signal(signal.SIGCONT)
        with Connection(process.port, PATIENCE_S) as wire:
            assert produce(wire, "t", 0, b"x")[0] == 0


def test_a_folder_of_another_node(stopped: Path, refused: Refused) -> None:
    before = snapshot(stopped)
    assert "node" in refused("--data", str(stopped), "--port", "0", "--node-id", "7")
    assert snapshot(stopped) == before


def test_a_folder_with_a_damaged_identity(stopped: Path, refused: Refused) -> None:
    meta = stopped / "meta.properties"
    good = meta.read_bytes()
    try:
        for text in (b"version=9\n", b"\xff\xfe nonsense"):
            meta.write_bytes(text)
            before = snapshot(stopped)
            assert str(meta) in refused("--data", str(stopped), "--port", "0")
            assert snapshot(stopped) == before, text
    finally:
        meta.write_bytes(good)


def test_a_partition_in_two_log_dirs(stopped: Path, tmp_path: Path, refused: Refused) -> None:
    second = tmp_path / "second"
    shutil.copytree(stopped / "t-0", second / "t-0")
    identity = MetaProperties.decode((stopped / META_PROPERTIES).read_bytes())
    (second / META_PROPERTIES).write_bytes(identity._replace(directory_id=bytes(15) + b"x").encode())
    line = refused("--port", "0", "--set", f"log.dirs={stopped},{second}")
    assert f"{second}/t-0 is in another log dir as well: remove" in line


def test_options_that_make_no_sense(stopped: Path, refused: Refused) -> None:
    before = snapshot(stopped)
    for setting in ("no.such.option=1", "log.segment.bytes=many", "durability=never"):
        assert setting.partition("=")[0] in refused("--data", str(stopped), "--port", "0", "--set", setting)
    assert snapshot(stopped) == before


# ---- stopping


class Load(threading.Thread):
    """Writes as fast as answers come, `depth` requests in flight, until the broker hangs up."""

    def __init__(self, port: int, topic: str, partition: int, depth: int) -> None:
        super().__init__(daemon=True)
        self.port, self.topic, self.partition, self.depth = port, topic, partition, depth
        self.acknowledged: dict[int, bytes] = {}
        self.sent = 0
        self.refusals = 0
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            with Connection(self.port, PATIENCE_S) as wire:
                in_flight: list[bytes] = []
                while True:
                    while len(in_flight) < self.depth:
                        value = f"{self.partition}-{self.sent}".encode()
                        data = batch(Rec(value), base_timestamp=int(time.time() * 1000))
                        wire.send(encode_request("Produce", 9, produce_fields(self.topic, self.partition, data)))
                        in_flight.append(value)
                        self.sent += 1
                    answer = decode_response("Produce", 9, wire.receive())
                    row = answer.responses[0].partition_responses[0]
                    if row.error_code:
                        self.refusals += 1
                        in_flight.pop(0)
                    else:
                        assert row.base_offset not in self.acknowledged, "one offset, two records"
                        self.acknowledged[row.base_offset] = in_flight.pop(0)
        except (Closed, ConnectionError, TimeoutError):
            pass
        except BaseException as error:
            self.failure = error


def test_a_stop_under_load_finishes_what_it_took_and_the_next_start_recovers_nothing(tmp_path: Path) -> None:
    process = HeadraceProcess(tmp_path / "data").start()
    create_topic(process.port, "t", 3)
    loads = [Load(process.port, "t", partition, depth) for partition, depth in ((0, 1), (1, 20), (2, 200))]
    for load in loads:
        load.start()
    eventually(lambda: all(len(load.acknowledged) > 50 for load in loads), "all three write")
    assert process.stop() == 0
    for load in loads:
        load.join(PATIENCE_S)
        assert not load.is_alive() and load.failure is None and load.refusals == 0, load.failure
    assert "Traceback" not in process.output()
    assert (tmp_path / "data" / ".kafka_cleanshutdown").exists()
    before = {
        name: digest
        for name, digest in snapshot(tmp_path / "data").items()
        if re.match(r"t-\d/.*\.(log|index|timeindex)", name)
    }
    with process:
        output = process.output()
        assert not re.search("recover|truncat|invalid|damage|rebuil", output, re.IGNORECASE), output
        for load in loads:
            found = dict(read_log(process.port, "t", load.partition))
            assert found.items() >= load.acknowledged.items()
            assert len(set(found.values())) == len(found)
    after = snapshot(tmp_path / "data")
    assert before == {name: after[name] for name in before}, (
        "a start and a stop without writes leave the logs as they were"
    )


def test_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    """With a reader that never takes its answer a stop waits; who asks twice does not want to."""
    process = HeadraceProcess(tmp_path / "data").start()
    create_topic(process.port, "t")
    with Connection(process.port, PATIENCE_S) as wire:
        for _ in range(12):
            assert produce(wire, "t", 0, bytes(900_000))[0] == 0
        for number in range(12):
            fields = {
                "max_wait_ms": 0, "min_bytes": 1, "max_bytes": 50 << 20, "session_epoch": -1,
                "topics": [{"topic": "t", "partitions": [{"partition": 0, "fetch_offset": number,
                "partition_max_bytes": 50 << 20}]}],
            }  # fmt: skip
            wire.send(encode_request("Fetch", 12, fields))
        assert wire.socket.recv(1, socket.MSG_PEEK), "answers are on their way"
        assert process.process is not None
        process.process.send_signal(signal.SIGTERM)
        with pytest.raises(subprocess.TimeoutExpired):  # it waits for its reader
            process.process.wait(0.5)
        process.process.send_signal(signal.SIGINT)
        assert process.process.wait(PATIENCE_S) != 0
    with HeadraceProcess(tmp_path / "data") as again:
        assert sum(1 for _ in read_log(again.port, "t")) == 12


# ---- metrics


def test_metrics_can_be_scraped_while_topics_come_and_go(tmp_path: Path) -> None:
    process = HeadraceProcess(tmp_path / "data", args=["--metrics-port", "0"]).start()
    try:
        found = re.search(r"metrics on (http://\S+)", process.output())
        assert found is not None, process.output()
        stop = threading.Event()

        def create() -> None:
            number = 0
            while not stop.is_set():
                create_topic(process.port, f"t{number}", 3)
                number += 1

        creator = threading.Thread(target=create, daemon=True)
        creator.start()
        families = {}
        for _ in range(12):
            text = urllib.request.urlopen(found[1], timeout=PATIENCE_S).read().decode()
            families = {family.name: family for family in text_string_to_metric_families(text)}
        stop.set()
        creator.join(PATIENCE_S)
        for name in (
            "headrace_request_seconds",
            "headrace_sync_seconds",
            "headrace_connections",
            "headrace_partitions",
        ):
            assert name in families, sorted(families)
        counts = {
            sample.labels["api"]: sample.value
            for sample in families["headrace_request_seconds"].samples
            if sample.name.endswith("_count")
        }
        assert counts["CreateTopics"] > 0
        for family in families.values():
            for sample in family.samples:
                if sample.name.endswith("_bucket"):
                    assert sample.value >= 0
    finally:
        process.stop()
