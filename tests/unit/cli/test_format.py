"""`headrace format`: new folders only, one line either way."""

from pathlib import Path

import pytest

from headrace.cli.main import main

CLUSTER = "J4Xp-MglQCGEKHxnoCSzLQ"


def run(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["format", *words])
    return int(ended.value.code or 0)


@pytest.fixture
def properties(tmp_path: Path) -> Path:
    file = tmp_path / "server.properties"
    file.write_text(
        "process.roles=broker,controller\nnode.id=7\ncontroller.quorum.bootstrap.servers=127.0.0.1:19193\n"
        "listeners=PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:19193\ncontroller.listener.names=CONTROLLER\n"
        f"log.dirs={tmp_path}/data\n"
    )
    return file


def test_formats_a_new_folder_and_leaves_a_formatted_one_alone(
    properties: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("--config", str(properties), "--cluster-id", CLUSTER) == 0
    assert capsys.readouterr().out == f"formatted {tmp_path}/data for node 7 of cluster {CLUSTER}\n"
    before = {path: path.read_bytes() for path in (tmp_path / "data").rglob("*") if path.is_file()}
    assert (tmp_path / "data/meta.properties") in before and (tmp_path / "data/bootstrap.checkpoint") in before
    assert run("--config", str(properties)) == 0
    assert "nothing changed" in capsys.readouterr().out
    assert before == {path: path.read_bytes() for path in (tmp_path / "data").rglob("*") if path.is_file()}


def test_refuses_a_folder_with_other_data_and_a_wrong_id(
    properties: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("--config", str(properties), "--cluster-id", "short") == 1
    assert "22 base-64 characters" in capsys.readouterr().err
    (tmp_path / "data").mkdir()
    (tmp_path / "data/thesis.tex").write_text("years of work")
    assert run("--config", str(properties)) == 1
    assert "thesis.tex" in capsys.readouterr().err
    assert (tmp_path / "data/thesis.tex").read_text() == "years of work"


def test_refuses_to_change_the_cluster_of_a_formatted_folder(
    properties: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("--config", str(properties)) == 0
    capsys.readouterr()
    assert run("--config", str(properties), "--cluster-id", CLUSTER) == 1
    assert CLUSTER in capsys.readouterr().err
