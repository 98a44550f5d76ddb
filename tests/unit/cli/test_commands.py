"""Topic commands, doctor and the rest, as a user types them."""

import asyncio
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from headrace import __version__
from headrace.cli import doctor
from headrace.cli.app import run
from headrace.cli.doctor import Verdict
from headrace.cli.main import main
from headrace.cli.output import pairs
from headrace.client.errors import ClientError
from headrace.client.net.cluster import Broker
from headrace.protocol import messages as m
from headrace.protocol.api import ApiKey
from headrace.terminal import print_table, size_text
from tests.compat.process import HeadraceProcess
from tests.documents import ROOT, blocks, forms
from tests.reference.apache import free_ports
from tests.unit.client.fake import SILENT, FakeBroker

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    """Run a command in this process: (exit code, stdout, stderr)."""
    monkeypatch.delenv("HEADRACE_BOOTSTRAP", raising=False)

    def call(*words: object) -> tuple[int, str, str]:
        try:
            code = run([str(word) for word in words])
        except SystemExit as stop:
            code = int(stop.code or 0)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


@pytest.fixture
def fake() -> Iterator[FakeBroker]:
    """A fake broker that runs in a thread, since commands run a loop of their own."""
    ready, stop = threading.Event(), threading.Event()
    holder = {}

    async def serve() -> None:
        async with FakeBroker() as broker:
            broker.handlers[ApiKey.DESCRIBE_LOG_DIRS] = lambda request, version: m.DescribeLogDirsResponse()
            holder["broker"] = broker
            ready.set()
            await asyncio.to_thread(stop.wait)

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert ready.wait(60)
    yield holder["broker"]
    stop.set()
    thread.join(60)


# -- topics


def test_topics_from_birth_to_death(command: Command, headrace: HeadraceProcess) -> None:
    at = ("-b", headrace.bootstrap)
    assert command("topic", "create", "cli-a", "cli-b", "-p", 3, "--set", "retention.ms=5000", *at) == (
        0,
        "created cli-a: 3 partitions, replication factor 1\ncreated cli-b: 3 partitions, replication factor 1\n",
        "",
    )
    code, out, err = command("topic", "create", "cli-a", *at)
    assert (code, out) == (1, "") and err.startswith("headrace: topic 'cli-a' was not created: ")
    assert command("topic", "create", "cli-a", "--if-not-exists", *at) == (0, "cli-a exists already\n", "")
    listed = {row["name"]: row for row in json.loads(command("topic", "list", "--json", *at)[1])}
    assert (listed["cli-a"]["partitions"], listed["cli-a"]["problem"]) == (3, "")
    assert "cli-b" in command("topic", "list", *at)[1]
    assert command("topic", "alter", "cli-a", "-p", 4, "--set", "segment.ms=9000", "--unset", "retention.ms", *at) == (
        0,
        "cli-a: segment.ms=9000, retention.ms back to its default\ncli-a: 4 partitions\n",
        "",
    )
    (described,) = json.loads(command("topic", "describe", "cli-a", "--json", *at)[1])
    assert described["configs"] == {"segment.ms": "9000"}
    assert [row["partition"] for row in described["partition_details"]] == [0, 1, 2, 3]
    assert described["partition_details"][0] == {
        "partition": 0, "leader": 1, "leader_epoch": 0, "replicas": [1], "isr": [1], "offline": [],
        "start_offset": 0, "end_offset": 0, "size_bytes": 0, "checked_ms": -1,
    }  # fmt: skip
    assert command("topic", "alter", "cli-a", "--unset", "segment.mss", *at) == (
        1, "", "headrace: --unset segment.mss: there is no such topic option (did you mean segment.ms?)\n"
    )  # fmt: skip
    code, out, err = command("topic", "create", "cli-a", "cli-c", *at)
    assert (code, out) == (1, "created cli-c: 1 partition, replication factor 1\n") and "'cli-a' was not created" in err
    text = command("topic", "describe", "cli-a", "cli-b", *at)[1]
    assert "  segment.ms=9000\n" in text and "PARTITION  LEADER  REPLICAS  IN SYNC" in text
    assert command("topic", "describe", "cli-aa", *at) == (
        1, "", "headrace: there is no topic 'cli-aa': did you mean 'cli-a'?\n"
    )  # fmt: skip
    code, out, err = command("cluster", "quorum", "remove", 1, "--yes", *at)
    assert (code, out) == (1, "") and err.startswith("headrace: node 1 is the only voter")
    assert command("topic", "delete", "cli-a", "cli-b", *at) == (0, "deleted cli-a\ndeleted cli-b\n", "")
    code, _, err = command("topic", "delete", "cli-a", *at)
    assert (code, err) == (
        1,
        "headrace: topic 'cli-a' was not deleted: there is no topic of this name [UNKNOWN_TOPIC_OR_PARTITION]\n",
    )
    assert command("topic", "delete", "cli-a", "--if-exists", *at) == (0, "there is no topic cli-a\n", "")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["topic", "create", "t", "--set", "retention.ms"], "--set retention.ms: write --set NAME=VALUE"),
        (["topic", "alter", "t"], "nothing to alter"),
        (["topic", "list", "-b", "h:x"], "'h:x' is not an address"),
    ],
)
def test_wrong_words_are_one_line(command: Command, words: list[str], message: str) -> None:
    code, out, err = command(*words)
    assert (code, out) == (1, "") and err.startswith(f"headrace: {message}") and err.count("\n") == 1


@pytest.mark.parametrize("words", [["-p", str(2**31)], ["-r", str(2**15)], ["-p", "x"]])
def test_numbers_that_no_request_can_hold_are_refused(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["topic", "create", "t", *words])
    assert stop.value.code == 2
    assert "Error: Invalid value for" in capsys.readouterr().err


def test_names_that_are_no_text_are_refused(command: Command, fake: FakeBroker) -> None:
    code, out, err = command("topic", "create", "caf\udce9", "-b", fake.address)
    assert (code, out) == (1, "")
    assert err == "headrace: this cannot be asked of a broker: 'caf\\udce9' is not written in UTF-8\n"


def test_a_broker_that_is_not_there_is_explained(command: Command) -> None:
    (port,) = free_ports(1)
    code, out, err = command("topic", "list", "-b", f"127.0.0.1:{port}")
    assert (code, out) == (1, "")
    assert (
        err == f"headrace: cannot connect to 127.0.0.1:{port}: connection refused. Is a broker running? Start one with:"
        " headrace up\n"
    )


def test_partitions_in_trouble_are_marked(command: Command, fake: FakeBroker) -> None:
    fake.add_topic("whole", 2)
    fake.add_topic("headless", 2, leader=-1)
    fake.add_topic("lagging")
    fake.topics["lagging"].partitions[0].isr_nodes = []
    listed = {
        row["name"]: row["problem"] for row in json.loads(command("topic", "list", "--json", "-b", fake.address)[1])
    }
    assert listed == {"whole": "", "headless": "2 without a leader", "lagging": "1 under-replicated"}


def test_help_names_every_command(command: Command) -> None:
    out = command("--help")[1]
    for name in ("up", "topic", "log", "doctor", "demo", "version", "--version"):
        assert name in out


def every_command() -> Iterator[tuple[tuple[str, ...], list[str]]]:
    """The words of each command, and the names of those under it."""
    from headrace.cli.app import app

    def walk(words: tuple[str, ...], command: Any) -> Iterator[tuple[tuple[str, ...], list[str]]]:
        below = getattr(command, "commands", {})
        yield words, list(below)
        for name, one in below.items():
            yield from walk((*words, name), one)

    yield from walk((), typer.main.get_command(app))


def help_at_80_columns(words: tuple[str, ...]) -> str:
    from typer.testing import CliRunner

    from headrace.cli.app import app

    if words == ("up",):  # it has a parser of its own
        from headrace.cli.up import parser

        return parser().format_help()
    return CliRunner().invoke(app, [*words, "--help"], env={"COLUMNS": "80"}).output


def test_help_fits_a_terminal_and_cuts_nothing_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    commands = dict(every_command())
    assert ("cluster", "quorum", "remove") in commands and ("up",) in commands
    for words, below in commands.items():
        lines = help_at_80_columns(words).splitlines()
        assert [line for line in lines if len(line) > 80 or "…" in line] == [], words
        listed = [line for line in lines if line.startswith("  ") and line.split()[0] in below]
        assert len(listed) >= len(below) and [line for line in listed if line.endswith("...")] == [], words


def test_every_command_has_its_place_in_the_help() -> None:
    assert "Others:" not in help_at_80_columns(())


@pytest.mark.parametrize("words", [["version"], ["--version"]])
def test_version(words: list[str]) -> None:
    done = subprocess.run([sys.executable, "-m", "headrace", *words], capture_output=True, text=True, check=True)
    assert done.stdout == f"headrace {__version__}\n"


def test_version_takes_no_other_words(command: Command) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["version", "--jsn"])
    assert stop.value.code == 2
    code, out, _ = command("version", "--help")
    assert code == 0 and "Print the version." in out


def test_a_terminal_without_the_letters_gets_others(fake: FakeBroker, tmp_path: Path) -> None:
    words = ["-m", "headrace", "doctor", "-b", fake.address, "--data", str(tmp_path / "größe")]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, env=environment, check=False, timeout=60
    )
    assert f"  + broker 1 advertises {fake.address}: reachable from here" in done.stdout
    assert "gr??e" in done.stdout and done.stderr == ""


@pytest.mark.parametrize("name, value", [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_styles_are_left_out_where_they_are_not_wanted(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    print_table(("A",), [("b",)])
    assert capsys.readouterr().out == "\x1b[1mA\x1b[0m\nb\n"
    monkeypatch.setenv(name, value)
    print_table(("A",), [("b",)])
    assert capsys.readouterr().out == "A\nb\n"


def test_ctrl_c_while_a_command_is_imported_is_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(words: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("headrace.cli.main.dispatch", interrupted)
    with pytest.raises(SystemExit) as stop:
        main(["up"])
    assert stop.value.code == 130 and capsys.readouterr().err == ""


def test_a_reader_that_stops_early_causes_no_noise(tmp_path: Path) -> None:
    log = tmp_path / "replication-offset-checkpoint"
    rows = "".join(f"topic {number} 5\n" for number in range(50_000))
    log.write_text(f"0\n50000\n{rows}")
    shell = f"{sys.executable} -m headrace log dump {log} | head -1"
    done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, check=False, timeout=30)
    assert (done.stdout.count("\n"), done.stderr) == (1, "")


# -- doctor


def test_a_healthy_cluster_and_machine(command: Command, fake: FakeBroker, tmp_path: Path) -> None:
    fake.add_topic("t", 2)
    code, out, _ = command("doctor", "-b", fake.address, "--data", tmp_path)
    assert f"broker 1 advertises {fake.address}: reachable from here" in out
    assert "1 topic, 2 partitions, all with a leader" in out
    assert "✗" not in out and code == 0


def test_an_address_that_leads_nowhere(command: Command, fake: FakeBroker, tmp_path: Path) -> None:
    (nowhere,) = free_ports(1)
    fake.advertised = "127.0.0.1", nowhere
    code, out, _ = command("doctor", "-b", fake.address, "--data", tmp_path)
    assert code == 1
    assert f"✗ broker 1 advertises 127.0.0.1:{nowhere}" in out
    assert (
        f"it advertises {nowhere}: a mapped port" in out and f"advertised.listeners=PLAINTEXT://{fake.address}" in out
    )


def test_a_broker_that_does_not_tell_of_its_disks_is_not_waited_for(
    command: Command, fake: FakeBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "ANSWER_LIMIT_S", 0.1)
    fake.handlers[ApiKey.DESCRIBE_LOG_DIRS] = lambda request, version: SILENT
    code, out, _ = command("doctor", "-b", fake.address, "--data", tmp_path)
    assert "! broker 1 does not say how full its disks are" in out and code == 0
    assert "all is well" not in out and re.search(r"nothing to mend, \d+ things? to know\n", out)


def test_brackets_are_shown(command: Command, tmp_path: Path) -> None:
    out = command("doctor", "-b", "[fe80::1]:1", "--data", tmp_path / "a[b]")[1]
    assert "Cluster at [fe80::1]:1\n" in out and f"{tmp_path}/a[b]" in out


def test_no_broker_at_all(command: Command, tmp_path: Path) -> None:
    (nowhere,) = free_ports(1)
    code, out, _ = command("doctor", "-b", f"127.0.0.1:{nowhere}", "--data", tmp_path)
    assert code == 1 and "connection refused" in out and "headrace up" in out


@pytest.mark.parametrize(
    ("broker", "bootstrap", "words"),
    [
        (Broker(1, "127.0.0.1", 9092), ("10.0.0.5", 9092), "own loopback"),
        (Broker(1, "localhost", 9092), ("db.example", 9092), "own loopback"),
        (Broker(1, "10.0.0.5", 9092), ("10.0.0.5", 19092), "mapped port"),
        (Broker(1, "a1b2c3", 9092), ("10.0.0.5", 9092), "make a1b2c3 resolve"),
        (Broker(1, "10.0.0.5", 9092), ("10.0.0.5", 9092), "just have stopped"),
    ],
)
def test_why_an_advertised_address_may_fail(broker: Any, bootstrap: tuple[str, int], words: str) -> None:
    assert words in doctor.explain_unreachable(broker, bootstrap)


def test_the_data_folder(tmp_path: Path) -> None:
    (finding,) = doctor.check_folder(tmp_path / "new" / "deeper")
    assert finding.verdict is Verdict.GOOD and "can be made" in finding.text
    (tmp_path / "file").write_text("")
    (finding,) = doctor.check_folder(tmp_path / "file")
    assert finding.verdict is Verdict.BAD
    (tmp_path / "meta.properties").write_text("version=1\nnode.id=3\ncluster.id=c\n")
    findings = list(doctor.check_folder(tmp_path))
    assert findings[-1].text == "it belongs to node 3 of cluster c"
    (tmp_path / "meta.properties").write_text("version=9\n")
    assert list(doctor.check_folder(tmp_path))[-1].verdict is Verdict.BAD


def test_the_machine() -> None:
    assert doctor.check_descriptors(256, 1024).verdict is Verdict.NOTE
    assert doctor.check_descriptors(256, 1 << 20).verdict is Verdict.GOOD
    assert doctor.check_clock(0, 0).verdict is Verdict.BAD
    now = 1_800_000_000.0
    assert doctor.check_clock(now, now + 3600).verdict is Verdict.BAD
    assert doctor.check_clock(now, now - 3600).verdict is Verdict.GOOD
    assert doctor.check_disk(Path("/")).text


# -- helpers


def test_tables_show_every_name_as_it_is_and_cut_nothing_off(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    member = "m" * 300
    print_table(
        ("GROUP", "LAG", "MEMBER"),
        [("[/]x", 5, member), ("[red]y", 1200, "-"), ("a\n\x1b[2J", 0, "é")],
        numbers=("LAG",),
    )
    assert capsys.readouterr().out.splitlines() == [
        "GROUP        LAG  MEMBER",
        f"[/]x           5  {member}",
        "[red]y      1200  -",
        "a\\n\\x1b[2J     0  é",
    ]


def test_sizes_and_pairs() -> None:
    assert [size_text(n) for n in (-1, 0, 999, 1_234, 5_600_000, 7 * 10**12)] == [
        "?",
        "0 B",
        "999 B",
        "1.2 KB",
        "5.6 MB",
        "7.0 TB",
    ]
    assert pairs(["a=b=c", " d = e "]) == {"a": "b=c", "d": "e"}
    with pytest.raises(ClientError):
        pairs(["=x"])


# -- demo


def test_the_demo_ends_well_and_cleans_up(tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-m", "headrace", "demo", "--quick", "--records", "20000"],
        capture_output=True, text=True, timeout=60, check=False, env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "All is right: 20,000 records" in done.stdout and "kill -9" in done.stdout
    # The first thing that a new user reads is what a new user gets.
    (readme,) = (block for block in blocks(ROOT / "README.md") if "headrace demo --quick" in block.commands)
    (shown,) = (answer for command, answer in readme.transcript if command == "headrace demo --quick")
    pattern = r"\n".join(".*" if line == "..." else re.escape(line) for line in forms(shown))
    assert re.fullmatch(pattern, "\n".join(forms(done.stdout.splitlines())), re.S), done.stdout
    assert list(tmp_path.iterdir()) == []
