"""`headrace pipeline` as users type it: a project from init, a run in the background, seen and stopped from
elsewhere."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from headrace.cli.pipeline import app

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LIMIT_S = 250


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return os.environ | {"HEADRACE_RUNS": str(tmp_path / "runs"), "COLUMNS": "200"}


def headrace(environment: dict[str, str], *words: str, cwd: Path, code: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "headrace", "pipeline", *words],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout if code == 0 else done.stderr


@pytest.fixture
def here(tmp_path: Path, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Commands in this process, for those that need no Spark."""
    monkeypatch.chdir(tmp_path)

    def call(*words: str, code: int = 0) -> str:
        done = CliRunner().invoke(app, words, env=environment)
        assert done.exit_code == code, done.output
        return done.output

    return call


def test_project_from_init_runs_in_the_background_until_stopped(
    spark: "SparkSession", tmp_path: Path, environment: dict[str, str], here: Callable[..., str]
) -> None:
    assert "headrace pipeline run --once" in here("init", "shop")
    project = tmp_path / "shop"
    started = headrace(environment, "run", "--detach", "--spark", "local[2]", cwd=project)
    run_id = started.split()[0]
    assert run_id.startswith("shop-")

    refused = headrace(environment, "run", cwd=project, code=1)
    assert "is already running" in refused and run_id in refused

    state = wait_for_rows(here, 200)
    assert state["state"] == "running"
    counts = next(query for query in state["progress"]["queries"] if query["sink"] == "orders_by_country")[
        "expectations"
    ]
    assert counts["clean.positive_amount"] == {"rows": 200, "failed": 12}
    assert run_id in here("list")

    assert headrace(environment, "stop", "shop", cwd=tmp_path).strip() == f"{run_id}: stopped"
    assert "nothing runs" in here("list")
    assert "stopped" in here("list", "--all")
    assert "shop: stopped" in here("watch", run_id)
    assert spark.read.parquet(str(project / "out/orders")).count() == 188
    assert spark.read.json(str(project / "out/rejected")).count() == 12


def wait_for_rows(here: Callable[..., str], rows: int) -> dict[str, Any]:
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        state: dict[str, Any] = json.loads(here("watch", "--json"))
        assert state["state"] in ("starting", "running"), state
        queries = state["progress"]["queries"]
        if queries and all(query["rows_in"] >= rows for query in queries):
            return state
        time.sleep(0.2)
    raise AssertionError(f"no {rows} rows within {LIMIT_S} s")


def test_bad_specs_and_commands_end_at_once_and_say_why(tmp_path: Path, here: Callable[..., str]) -> None:
    assert "headrace pipeline init" in here("run", code=2)
    here("init", "shop")
    assert "is there already" in here("init", "shop", code=1)
    assert "there is no template nothing" in here("init", "x", "--template", "nothing", code=2)
    spec = tmp_path / "shop" / "pipeline.yaml"
    spec.write_text(spec.read_text().replace("partition_by", "partion_by"))
    refused = here("run", "--once", "shop", code=2)
    assert "shop/pipeline.yaml:" in refused and "did you mean 'partition_by'?" in refused
    spec.write_text(spec.read_text().replace("partion_by", "partition_by"))
    assert "contradict" in here("run", "--once", "--continuous", "shop", code=2)
    assert "no run shop" in here("stop", "shop", code=1)
    assert "nothing runs" in here("list")


def test_files_that_cannot_be_read_or_written_are_told_in_a_line(tmp_path: Path, here: Callable[..., str]) -> None:
    (tmp_path / "file").touch()
    assert here("init", "file", code=1) == "headrace: file: File exists\n"
    here("init", "shop")
    assert "--graph g.png: write a name that ends in .svg" in here(
        "dry-run", "shop", "--no-spark", "--graph", "g.png", code=2
    )
    assert "none/g.svg: No such file" in here("dry-run", "shop", "--no-spark", "--graph", "none/g.svg", code=1)
    sql = tmp_path / "shop" / "sql" / "per_minute.sql"
    sql.write_bytes(b"SELECT 1\n-- gr\xfc\xdfe\n")
    assert "per_minute.sql:2: this is not written in UTF-8" in here("dry-run", "shop", "--no-spark", code=2)
    (tmp_path / "shop" / "pipeline.yaml").write_bytes(b"\xff\xfe\x00")
    assert "pipeline.yaml:1: this is not written in UTF-8" in here("dry-run", "shop", "--no-spark", code=2)


def test_a_place_without_spark_is_told_before_spark_starts(here: Callable[..., str], tmp_path: Path) -> None:
    here("init", "shop")
    spec = tmp_path / "shop" / "pipeline.yaml"
    spec.write_text(spec.read_text().replace("master: local[*]", "master: spark://127.0.0.1:1"))
    refused = here("run", "shop", code=2)
    assert "spark.master: spark://127.0.0.1:1 cannot be reached (127.0.0.1:1: Connection refused)" in refused
    assert "start it (sbin/start-master.sh), or correct the address" in refused
    # What the command line says is not blamed on a line of the spec.
    refused = here("run", "shop", "--spark", "localhost", code=2)
    assert refused.startswith(
        "headrace: 'localhost' is not a place where Spark could run: write local[*], spark://host:7077"
    )


def test_dry_run_without_spark_draws_the_graph(tmp_path: Path, here: Callable[..., str]) -> None:
    here("init", "shop")
    shown = here("dry-run", "shop", "--no-spark", "--graph", "graph.svg")
    assert "clean: SQL, 2 expectations" in shown and "shop is fine" in shown
    assert (tmp_path / "graph.svg").read_text().startswith("<svg")
    here("dry-run", "shop", "--no-spark", "--graph", "graph.md")
    assert (tmp_path / "graph.md").read_text().startswith("```mermaid\nflowchart LR")


def test_without_the_extra_one_line_says_what_to_install(tmp_path: Path, environment: dict[str, str]) -> None:
    code = (
        "import sys; sys.modules['yaml'] = None; sys.modules['pyspark'] = None; from headrace.cli.main import main;"
        " main(['pipeline', 'run', '--once'])"
    )
    (tmp_path / "pipeline.yaml").write_text("name: x\n")
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr.strip()) == (1, "pipelines need Spark: pip install 'headrace[spark]'")
