"""`headrace pipeline` where it needs no Spark: what it says of runs that have ended, and of specs."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from headrace.cli.pipeline import app
from headrace.spark.pipelines.run.declarative import _environment
from headrace.spark.pipelines.run.registry import RunEntry, create_run
from headrace.spark.pipelines.spec.problems import Where, no_column

SPEC = """\
name: small
sources:
  orders: {files: ., format: json, schema: id BIGINT}
sinks:
  out: {from: orders, files: out}
  screen: {from: orders, console: true}
"""


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HEADRACE_RUNS", str(tmp_path / "runs"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "runs"


def ended_run(state: str) -> RunEntry:
    entry = create_run("shop", Path("pipeline.yaml"), master="local[*]", mode="bounded", storage="s")
    entry.write_progress({"state": state, "queries": []})
    return entry


def test_stopping_a_run_that_has_ended_says_so(runs: Path) -> None:
    run_id = ended_run("done").info.run_id
    for name in (run_id, "shop"):
        done = CliRunner().invoke(app, ["stop", name])
        assert (done.exit_code, done.output) == (0, f"{run_id} has ended already: done\n")
    done = CliRunner().invoke(app, ["stop", "shopp"])
    assert done.exit_code == 1 and "did you mean shop?" in done.output


def test_one_of_a_kind_is_counted_in_the_singular(runs: Path) -> None:
    Path("pipeline.yaml").write_text(SPEC)
    done = CliRunner().invoke(app, ["dry-run", "--no-spark"])
    assert "small is fine: 1 source, 0 transforms, 2 sinks" in done.output


def test_an_unknown_column_is_one_line_with_the_nearest_name() -> None:
    where = Where(Path("pipeline.yaml"), 7, "transforms.clean")
    columns = ["o.amount", "o.at", "c.country"]
    assert str(no_column(where, "amout", columns)) == (
        "pipeline.yaml:7: transforms.clean: there is no column amout; did you mean 'amount'?"
    )
    assert no_column(where, "o.amout", columns).message == "there is no column o.amout; did you mean 'o.amount'?"
    assert no_column(where, "zzz", columns).message == "there is no column zzz; columns: o.amount, o.at, c.country"
    assert no_column(where, "zzz", []).message == "there is no column zzz"


def test_sparks_own_engine_keeps_its_warnings_in_the_runs_log(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", "-Dmine=1")
    entry = ended_run("starting")
    found = _environment(entry)
    assert found["SPARK_SUBMIT_OPTS"].startswith("-Dmine=1 -Dlog4j2.configurationFile=file:/")
    assert f"-Dheadrace.log.file={entry.log_file}" in found["SPARK_SUBMIT_OPTS"]
