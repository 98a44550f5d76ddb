"""`headrace up`: options from everywhere, refusals in one line, and the life of the process."""

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.cli.up import load_config, main, parser
from headrace.config import BrokerConfig, ConfigError
from headrace.local_cluster.process import BrokerProcess


def load(*words: str, env: dict[str, str] | None = None) -> BrokerConfig:
    return load_config(parser().parse_args(words), env or {})


def address(config: BrokerConfig) -> list[str]:
    return [str(listener) for listener in config.listeners]


def test_defaults_are_safe(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    config = load()
    assert address(config) == ["PLAINTEXT://127.0.0.1:9092"]
    assert config.log_dirs == [str(tmp_path / "headrace-data")]
    assert (config.node_id, config["metrics.port"]) == (1, -1)


def test_the_command_line_wins_over_the_environment_and_that_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text("log.retention.hours=1\nnum.partitions=2\nlog.dirs=/file\nnode.id=5\n")
    env = {"HEADRACE_LOG_RETENTION_HOURS": "2", "HEADRACE_NUM_PARTITIONS": "3", "HOME": "/"}
    config = load("--config", str(file), "--set", "log.retention.hours=4", "--data", str(tmp_path / "d"), env=env)
    assert config["log.retention.hours"] == 4
    assert config["num.partitions"] == 3
    assert config.node_id == 5
    assert config.log_dirs == [str(tmp_path / "d")]


@pytest.mark.parametrize(
    ("words", "listeners"),
    [
        (["--port", "0"], ["PLAINTEXT://127.0.0.1:0"]),
        (["--host", "0.0.0.0"], ["PLAINTEXT://0.0.0.0:9092"]),
        (["--host", "::1", "--port", "9093"], ["PLAINTEXT://[::1]:9093"]),
        (["--set", "listeners=PLAINTEXT://:1234"], ["PLAINTEXT://:1234"]),
        (["--set", "listeners=PLAINTEXT://h:1234", "--port", "9"], ["PLAINTEXT://h:9"]),
        (["--set", "listeners=PLAINTEXT://h:1234", "--host", "i"], ["PLAINTEXT://i:1234"]),
        (
            ["--set", "listeners=PLAINTEXT://h:1,CONTROLLER://h:2", "--port", "0"],
            ["PLAINTEXT://h:0", "CONTROLLER://h:2"],
        ),
    ],
)
def test_where_it_listens(words: list[str], listeners: list[str]) -> None:
    assert address(load("--data", "/d", *words)) == listeners


VOTERS = "1@a:9093,2@127.0.0.2:9094"


@pytest.mark.parametrize(
    ("words", "roles", "listeners"),
    [
        # Others reach a voter's broker where they reach its controller, unless --host says otherwise.
        (
            ["--node-id", "2", "--voters", VOTERS],
            {"broker", "controller"},
            ["PLAINTEXT://127.0.0.2:9092", "CONTROLLER://127.0.0.2:9094"],
        ),
        (
            ["--node-id", "2", "--voters", VOTERS, "--host", "0.0.0.0", "--port", "7"],
            {"broker", "controller"},
            ["PLAINTEXT://0.0.0.0:7", "CONTROLLER://127.0.0.2:9094"],
        ),
        (
            ["--node-id", "2", "--voters", VOTERS, "--roles", "controller"],
            {"controller"},
            ["CONTROLLER://127.0.0.2:9094"],
        ),
        (["--node-id", "3", "--voters", VOTERS], {"broker"}, ["PLAINTEXT://127.0.0.1:9092"]),
        (["--node-id", "3", "--bootstrap-controllers", "a:1,b:2"], {"broker"}, ["PLAINTEXT://127.0.0.1:9092"]),
        (
            ["--node-id", "3", "--bootstrap-controllers", "a:1,b:2", "--controller-port", "5", "--rack", "r"],
            {"broker", "controller"},
            ["PLAINTEXT://127.0.0.1:9092", "CONTROLLER://127.0.0.1:5"],
        ),
    ],
)
def test_one_node_of_a_cluster(words: str, roles: Any, listeners: list[str]) -> None:
    config = load("--data", "/d", *words)
    assert config.roles == roles
    assert address(config) == listeners
    assert config["broker.rack"] == ("r" if "--rack" in words else None)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--voters", VOTERS], "--node-id: a node of a cluster needs a number"),
        (["--node-id", "1", "--voters", VOTERS, "--bootstrap-controllers", "a:1"], "not both"),
        (["--node-id", "1", "--voters", "a:9093"], "controller.quorum.voters"),
        (
            ["--node-id", "9", "--voters", VOTERS, "--roles", "broker,controller"],
            "this controller's id 9 is not among them",
        ),
        (["--node-id", "1", "--voters", VOTERS, "--roles", "broker"], "1 is no controller and cannot vote"),
    ],
)
def test_a_node_that_cannot_be_of_its_cluster(words: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load("--data", "/d", *words)


def test_a_listener_in_the_environment_counts() -> None:
    assert address(load("--data", "/d", env={"HEADRACE_LISTENERS": "PLAINTEXT://:7"})) == ["PLAINTEXT://:7"]


def test_host_and_port_do_not_choose_among_several_listeners() -> None:
    words = [
        "listeners=PLAINTEXT://h:1,INSIDE://h:2",
        "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,INSIDE:PLAINTEXT",
    ]
    with pytest.raises(ConfigError, match="2 client listeners are configured"):
        load("--set", words[0], "--set", words[1], "--port", "0")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--set", "log.retention.hour=1"], "Unknown option log.retention.hour (did you mean log.retention.hours?)"),
        (["--set", "num.partitions=many"], "num.partitions: 'many' is not an integer"),
        (["--set", "num.partitions"], "--set num.partitions: write --set NAME=VALUE"),
        (["--config", "/no/such/file"], "cannot read /no/such/file: No such file or directory"),
        (["--set", "listeners=PLAINTEXT:9092"], "listeners: 'PLAINTEXT:9092' is not NAME://host:port"),
        (["--zookeeper", ""], "zookeeper.connect: it is empty"),
        (["--zookeeper", "", "--brokers", "3"], "zookeeper.connect: it is empty"),
        (["--zookeeper", "", "--detach"], "zookeeper.connect: it is empty"),
    ],
)
def test_what_is_said_wrongly_is_refused_in_one_line(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"headrace: {message}")
    assert captured.err.count("\n") == 1


def test_its_help_looks_like_that_of_the_other_commands(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--help"])
    shown = capsys.readouterr().out
    assert not caught.value.code
    assert shown.startswith("Usage: headrace up [OPTIONS]\n\n  Start a broker")
    assert "\n\nOptions:\n  --data DIR " in shown
    assert re.search(r"\n  -h, --help +Show this message and exit\.\n", shown)


@pytest.mark.parametrize(
    "words, message",
    [
        (["--port", "65536"], "--port: '65536' is not a port between 0 and 65535"),
        (["--port", "x"], "--port: 'x' is not a port between 0 and 65535"),
        (["--hots", "1"], "unrecognized arguments: --hots 1 (did you mean --host?)"),
        (["extra"], "unrecognized arguments: extra"),
    ],
)
def test_wrong_arguments_exit_with_2_and_one_line(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(words)
    assert caught.value.code == 2
    assert capsys.readouterr().err == f"headrace: {message}; see headrace up --help\n"


@pytest.mark.parametrize(
    "words, message",
    [
        (["--data", ""], "--data is empty"),  # an unset variable in a script: not the current folder
        (["--racks", "a,b"], "--racks goes with --brokers"),
    ],
)
def test_words_that_would_be_passed_over_are_refused(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 1
    assert capsys.readouterr().err.startswith(f"headrace: {message}")


def test_a_file_that_is_not_utf_8_is_refused_but_for_its_comments(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "server.properties"
    file.write_bytes(b"# gr\xf6\xdfe\nlog.dirs=/data/\xff\n")
    assert main(["--config", str(file)]) == 1
    assert capsys.readouterr().err == f"headrace: cannot read {file}: log.dirs is not written in UTF-8\n"
    file.write_bytes(b"# gr\xf6\xdfe\nlog.segment.bytes=x\n")
    assert main(["--config", str(file)]) == 1
    assert "log.segment.bytes: 'x'" in capsys.readouterr().err


def test_the_way_to_up_imports_neither_typer_nor_rich() -> None:
    check = (
        "import sys, headrace.cli.main, headrace.cli.up, headrace.broker.server;"
        "found = {'typer', 'rich', 'click'} & set(sys.modules); assert not found, found"
    )
    subprocess.run([sys.executable, "-c", check], check=True)


# -- with a process


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    process = BrokerProcess(tmp_path / "data", tmp_path / "broker.log")
    yield process
    process.kill9()


def test_the_first_line_says_where_and_a_stop_is_clean(broker: BrokerProcess, tmp_path: Path) -> None:
    line = broker.start()
    assert re.fullmatch(
        rf"Headrace \S+ ready on 127\.0\.0\.1:{broker.port} \(data in {re.escape(str(tmp_path / 'data'))}, node 1,"
        r" started in \d+\.\d\d s\)",
        line,
    )
    with socket.create_connection(("127.0.0.1", broker.port), timeout=5):
        pass
    broker.stop()
    assert "Traceback" not in broker.log.read_text()
    assert (tmp_path / "data" / ".kafka_cleanshutdown").exists()


def test_ctrl_c_stops_it_too(broker: BrokerProcess) -> None:
    broker.start()
    assert broker.process is not None
    broker.process.send_signal(signal.SIGINT)
    assert broker.process.wait(20) == 0


def run_up(*words: str, **options: Any) -> Any:
    done = subprocess.run(
        [sys.executable, "-m", "headrace", "up", *words],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
        **options,
    )
    return done.returncode, done.stdout, done.stderr


def test_a_port_in_use_is_told(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        code, out, err = run_up("--port", str(port), "--data", str(tmp_path / "data"))
    assert (code, out) == (1, "")
    last = err.strip().splitlines()[-1]
    assert last.startswith("headrace: ") and str(port) in last and "in use" in last
    assert "Traceback" not in err


def test_a_folder_in_use_is_told(broker: BrokerProcess, tmp_path: Path) -> None:
    broker.start()
    code, out, err = run_up("--port", "0", "--data", str(tmp_path / "data"))
    assert (code, out) == (1, "")
    assert err.strip().splitlines()[-1].startswith("headrace: ") and str(tmp_path / "data") in err
    assert "Traceback" not in err


def test_the_folder_of_another_node_is_refused(broker: BrokerProcess, tmp_path: Path) -> None:
    broker.start()
    broker.stop()
    code, out, err = run_up("--port", "0", "--data", str(tmp_path / "data"), "--node-id", "2")
    assert (code, out) == (1, "")
    assert err.strip().splitlines()[-1].startswith("headrace: ") and "Traceback" not in err


@pytest.mark.skipif(os.getuid() == 0, reason="root may write anywhere")
def test_a_folder_without_rights_is_told(tmp_path: Path) -> None:
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o500)
    code, out, err = run_up("--port", "0", "--data", str(locked / "data"))
    assert (code, out) == (1, "")
    assert err.startswith("headrace: ") and "Traceback" not in err


def test_a_file_in_place_of_the_folder_is_told(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("not a folder")
    code, out, err = run_up("--port", "0", "--data", str(tmp_path / "data"))
    assert (code, out) == (1, "")
    assert err.strip().splitlines()[-1].startswith("headrace: ") and "Traceback" not in err


def test_options_without_effect_are_named_and_taken(broker: BrokerProcess, tmp_path: Path) -> None:
    config = tmp_path / "server.properties"
    config.write_text("num.network.threads=3\nlog.retention.hours=5\n")
    environment = {**os.environ, "HEADRACE_KAFKA_LIBS": "/anywhere"}
    with subprocess.Popen(
        [sys.executable, "-m", "headrace", "up", "--port", "0", "--data", str(tmp_path / "d"), "--config", str(config)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
    ) as process:  # fmt: skip
        assert process.stdout is not None and " ready on " in process.stdout.readline()
        process.terminate()
        _, err = process.communicate(timeout=20)
    assert "without effect in Headrace: num.network.threads\n" in err
    assert process.returncode == 0


def test_a_disk_that_takes_nothing_is_told_in_a_line(tmp_path: Path) -> None:
    limited = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (50, 50)); from headrace.cli.main import main;"
        " main(sys.argv[1:])"
    )
    words = ["up", "--port", "0", "--data", str(tmp_path / "data")]
    done = subprocess.run(
        [sys.executable, "-c", limited, *words], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"headrace: cannot use {tmp_path}/data: file too large\n"
