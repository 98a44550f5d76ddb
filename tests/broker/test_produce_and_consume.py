"""`headrace produce` and `headrace consume`, as a user pipes them."""

import json
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.compat.process import HeadraceProcess
from tests.groups.harness import create_topic

pytestmark = pytest.mark.timeout(180)


class Shell:
    """Runs commands against one broker."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap

    def __call__(self, *words: str, given: bytes = b"", fails: bool = False) -> str:
        command = [sys.executable, "-m", "headrace", *words, "--bootstrap", self._bootstrap]
        done = subprocess.run(command, input=given, capture_output=True, timeout=120, check=False)
        assert (done.returncode != 0) is fails, done
        if fails:
            assert done.stderr.count(b"\n") == 1, "one line says what is wrong"
        return (done.stderr if fails else done.stdout).decode()


@pytest.fixture(scope="module")
def shell(headrace: HeadraceProcess) -> Iterator[Shell]:
    create_topic(headrace.bootstrap, "piped", 2)
    create_topic(headrace.bootstrap, "copied", 2)
    yield Shell(headrace.bootstrap)


def test_lines_in_are_lines_out(shell: Shell) -> None:
    said = shell("produce", "piped", "-K", ":", "-H", "src=test", "-p", "1", given=b"a:one\nb:two\nc:three")
    assert said == "produced 3 records to piped (3 in partition 1)\n"
    assert shell("consume", "piped") == "one\ntwo\nthree\n"
    assert shell("consume", "piped", "--from", "-2", "--keys", "--headers") == "src=test\tb\ttwo\nsrc=test\tc\tthree\n"
    assert shell("consume", "piped", "-f", r"%p/%o %k\n", "-n", "1", "--from", "1") == "1/1 b\n"
    assert shell("consume", "piped", "--where", 'key == "c"') == "three\n"

    # What one prints as JSON, the other takes: keys, headers, partitions and timestamps are those of the original.
    printed = shell("consume", "piped", "--json")
    shell("produce", "copied", "--json-lines", given=printed.encode())
    copies = [json.loads(line) for line in shell("consume", "copied", "--json").splitlines()]
    assert [one | {"topic": "piped"} for one in copies] == [json.loads(line) for line in printed.splitlines()]

    # A group goes on where it was; what was printed is committed.
    assert shell("consume", "piped", "--group", "printers", "-n", "2") == "one\ntwo\n"
    assert shell("consume", "piped", "--group", "printers", "--until-end") == "three\n"


def test_the_first_line_that_is_no_record_is_named(shell: Shell, headrace: HeadraceProcess) -> None:
    create_topic(headrace.bootstrap, "strict", 1)
    said = shell("produce", "strict", "--json-lines", given=b'{"value": "good"}\nbad\n{"value": "x"}\n', fails=True)
    assert "standard input, line 2: 'bad' is not JSON" in said and "1 record" in said
    assert shell("consume", "strict") == "good\n"


def test_what_cannot_be_is_said_in_one_line(shell: Shell) -> None:
    assert "--from soon: write earliest" in shell("consume", "piped", "--from", "soon", fails=True)
    assert "has no partition 7" in shell("consume", "piped", "-p", "7", fails=True)
    assert "has 2 partitions" in shell("produce", "piped", "-p", "7", given=b"x", fails=True)
    assert "leave out --partitions" in shell("consume", "piped", "-g", "g", "-p", "1", fails=True)
