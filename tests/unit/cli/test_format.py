"""`headrace format`: new folders only, one line either way."""

from pathlib import Path

import pytest

from headrace.cli.main import main
from headrace.quorum.snapshots import SnapshotId, decode_snapshot
from headrace.storage.checkpoints import decode_uuid

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


DIRECTORIES = ("JEXY6aqzQY-32P5TStzaFg", "MvDxzVmcRsaTz33bUuRU6A", "07R5amHmR32VDA6jHkGbTA")
FIRST = ",".join(f"{n}@127.0.0.1:{19190 + n}:{directory}" for n, directory in zip((7, 8, 9), DIRECTORIES))


def snapshot_voters(folder: Path) -> dict[int, bytes]:
    path = folder / "__cluster_metadata-0/00000000000000000000-0000000000.checkpoint"
    found = decode_snapshot(SnapshotId(0, 0), path.read_bytes(), str(path))
    assert found.kraft_version == 1 and found.voters is not None
    return {voter.id: voter.directory_id for voter in found.voters}


def test_the_first_controllers_begin_with_the_same_voters(properties: Path, tmp_path: Path) -> None:
    properties.write_text(
        properties.read_text().replace("servers=127.0.0.1:19193", "servers=127.0.0.1:19193,127.0.0.1:19198")
    )
    assert run("--config", str(properties), "--cluster-id", CLUSTER, "--initial-controllers", FIRST) == 0
    assert snapshot_voters(tmp_path / "data") == dict(zip((7, 8, 9), map(decode_uuid, DIRECTORIES)))
    assert f"directory.id={DIRECTORIES[0]}\n" in (tmp_path / "data/meta.properties").read_text()


def test_a_later_controller_and_a_broker_begin_without_voters(tmp_path: Path) -> None:
    where = ["--bootstrap-controllers", "127.0.0.1:19193", "--cluster-id", CLUSTER]
    assert run("--data", str(tmp_path / "broker"), "--node-id", "4", *where) == 0
    late = [
        "--data",
        str(tmp_path / "late"),
        "--node-id",
        "5",
        "--controller-port",
        "19195",
        "--no-initial-controllers",
    ]
    assert run(*late, *where) == 0
    for name in ("broker", "late"):
        assert not list((tmp_path / name).glob("__cluster_metadata-0/*.checkpoint"))
        assert (tmp_path / name / "bootstrap.checkpoint").exists()


def test_fixed_voters_are_left_to_the_configuration(tmp_path: Path) -> None:
    voters = ["--voters", "1@127.0.0.1:19191,2@127.0.0.1:19192"]
    assert run("--data", str(tmp_path / "d"), "--node-id", "2", *voters, "--cluster-id", CLUSTER) == 0
    assert not list((tmp_path / "d").glob("__cluster_metadata-0/*.checkpoint"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--standalone", "--no-initial-controllers"], "only one of them"),
        (["--initial-controllers", FIRST], "--cluster-id: all nodes of a cluster need the same one"),
        (
            ["--initial-controllers", "7@host:19193", "--cluster-id", CLUSTER],
            "'7@host:19193' is not ID@HOST:PORT:DIRECTORY-ID",
        ),
        (["--initial-controllers", "7@h:1:short", "--cluster-id", CLUSTER], "22 base-64 characters"),
        (
            ["--initial-controllers", FIRST.replace("7@", "6@"), "--cluster-id", CLUSTER],
            "node 7 is not among the first controllers, 6, 8, 9",
        ),
        (["--initial-controllers", FIRST.replace("8@", "9@"), "--cluster-id", CLUSTER], "the same node id"),
        (
            ["--initial-controllers", FIRST.replace(DIRECTORIES[1], DIRECTORIES[0]), "--cluster-id", CLUSTER],
            "the same directory id",
        ),
        (["--set", "controller.quorum.voters=7@127.0.0.1:19193", "--standalone"], "so the voters are fixed"),
        (
            ["--set", "controller.quorum.bootstrap.servers=127.0.0.1:19193,127.0.0.1:19194", "--cluster-id", CLUSTER],
            "say how the quorum begins",
        ),
        (
            ["--set", "process.roles=broker", "--set", "listeners=PLAINTEXT://127.0.0.1:0", "--standalone"],
            "this node is no controller",
        ),
    ],
)
def test_what_cannot_be_meant_is_refused(
    properties: Path, tmp_path: Path, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("--config", str(properties), *words) == 1
    assert message in capsys.readouterr().err
    assert not (tmp_path / "data").exists()
