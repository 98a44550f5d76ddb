"""Jars are fetched whole or not at all, here by a Maven that only pretends."""

from pathlib import Path

import pytest

from headrace.local_cluster.maven import NotFetched, fetch

ARTIFACTS = [("org.example", "one", "1.0")]
COPIES = """#!/bin/sh
for word; do case "$word" in -DoutputDirectory=*) folder="${word#*=}";; esac; done
mkdir "$folder" && cp pom.xml "$folder/one-1.0.jar"
"""


@pytest.fixture
def maven(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    command = tmp_path / "bin" / "mvn"
    command.parent.mkdir()
    command.write_text(COPIES)
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{command.parent}:/usr/bin:/bin")
    return command


@pytest.mark.parametrize("alone", [False, True])
def test_jars_are_there_as_a_whole(maven: Path, tmp_path: Path, alone: bool) -> None:
    folder = tmp_path / "cache" / "example-1.0"
    fetch(folder, ARTIFACTS, alone=alone)
    (jar,) = folder.iterdir()
    assert ("<exclusions>" in jar.read_text()) is alone and "<artifactId>one</artifactId>" in jar.read_text()
    assert list(folder.parent.iterdir()) == [folder]


def test_a_folder_that_lacks_a_jar_is_replaced_and_a_whole_one_is_left(maven: Path, tmp_path: Path) -> None:
    folder = tmp_path / "example"
    folder.mkdir()
    fetch(folder, ARTIFACTS)
    (folder / "one-1.0.jar").write_text("in use")
    fetch(folder, ARTIFACTS)
    assert (folder / "one-1.0.jar").read_text() == "in use"


def test_what_fails_is_said_and_leaves_nothing(maven: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "cache" / "example"
    maven.write_text("#!/bin/sh\necho no such artifact >&2; exit 1\n")
    with pytest.raises(NotFetched, match="no such artifact"):
        fetch(folder, ARTIFACTS)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NotFetched, match="no mvn on PATH"):
        fetch(folder, ARTIFACTS)
    assert list(folder.parent.iterdir()) == []
