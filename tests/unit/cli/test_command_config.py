"""--command-config: on every command that connects, and what it says when the file is no good."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from headrace.cli.app import app, run
from headrace.cli.command_config import read_command_config
from headrace.client.errors import ClientError

LOGIN = 'org.apache.kafka.common.security.plain.PlainLoginModule required \\\n  username="alice" password="a\\\\\\\\b";'


def commands(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """All commands with the words that call them."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*path, name))
        yield (*path, name), command


def test_every_command_that_connects_has_it() -> None:
    connecting, configured = set(), set()
    for words, command in commands(typer.main.get_command(app)):
        names = {option for parameter in command.params for option in parameter.opts}
        if "--bootstrap-server" in names:
            connecting.add(words)
        if "--command-config" in names:
            configured.add(words)
    assert connecting == configured
    assert {("topic", "create"), ("group", "list"), ("cluster", "quorum"), ("doctor",)} <= connecting


def test_a_file_is_read_as_kafka_reads_it(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text(
        f"# mine\nclient.id=me\nsecurity.protocol = SASL_PLAINTEXT\nsasl.mechanism: PLAIN\nsasl.jaas.config={LOGIN}\n"
    )
    credentials = read_command_config(file).credentials
    assert credentials and (credentials.username, credentials.password) == ("alice", "a\\b")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "cannot be read: No such file or directory"),
        (b"\xff\xfe", "it is not text"),
        (b"security.protocol=TLS\n", "'security.protocol' is 'TLS': it must be one of"),
        (b"sasl.mechanism=PLAIN\n", "'security.protocol' is missing"),
    ],
)
def test_a_file_that_is_no_good_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes | None, words: str
) -> None:
    file = tmp_path / "client.properties"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ClientError, match=words):
        read_command_config(file)
    assert run(["topic", "list", "--command-config", str(file)]) == 1
    told = capsys.readouterr().err
    assert told.startswith(f"headrace: --command-config {file}") and told.count("\n") == 1
