"""`headrace pipeline`: init, dry-run, run, watch, list, stop. Spark and YAML are imported when a command needs them."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from headrace.cli.dump.report import counted
from headrace.cli.output import JSON, command_group, pairs, print_json
from headrace.terminal import print_table

if TYPE_CHECKING:
    from headrace.spark.pipelines.run.registry import RunView

app = command_group("Data pipelines on Spark: topics, files, tables.", no_args_is_help=True)

SPEC = typer.Argument(
    None, metavar="SPEC", help="The spec, or its folder. Default: pipeline.yaml here.", show_default=False
)
MASTER = typer.Option(
    None,
    "--spark",
    metavar="MASTER",
    help="Where Spark runs, in place of the spec's: local[*], spark://host:7077, yarn, k8s://..., sc://host:15002.",
)
CONF = typer.Option([], "--conf", metavar="NAME=VALUE", help="A setting of Spark; may be repeated.")
REFUSED_EXIT = 2
"""Exit code for a spec that is wrong; 1 is a run that failed."""

DETACH_LIMIT_S = 30.0


@contextmanager
def _told() -> Iterator[None]:
    """What users can mend is said in one place, without a traceback."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in ("pyspark", "yaml", "pyarrow", "py4j", "numpy", "pandas", "grpc"):
            raise
        _fail("pipelines need Spark: pip install 'headrace[spark]'", 1)
    except Exception as error:
        kind = type(error).__name__
        if kind == "SpecInvalid":
            _fail(str(error), REFUSED_EXIT)
        if kind == "MasterUnusable":
            _fail(f"headrace: {error}", REFUSED_EXIT)
        if kind in ("JavaMissing", "ExtraMissing", "AlreadyRunning", "ProjectExists", "RunFailed"):
            _fail(f"headrace: {error}", 1)
        if isinstance(error, ConnectionError) and not isinstance(error, TimeoutError):
            _fail(
                "headrace: Spark's driver is gone; its log is in the run's folder: headrace pipeline list --all --json",
                1,
            )
        if isinstance(error, OSError) and error.filename is not None:
            _fail(f"headrace: {error.filename}: {error.strerror}", 1)
        if type(error).__module__.startswith(("pyspark.", "py4j.", "grpc")):
            _fail(f"headrace: Spark failed: {str(error).strip().splitlines()[0][:500]}", 1)
        raise


def _fail(text: str, code: int) -> None:
    print(text, file=sys.stderr)
    raise typer.Exit(code)


def _settings(conf: list[str]) -> dict[str, str]:
    return pairs(conf, "--conf", "spark.executor.memory=4g")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


@app.command("init")
def init(
    folder: Path = typer.Argument(Path("my_pipeline"), metavar="FOLDER", help="Folder to make the project in."),
    template: str = typer.Option(
        "files",
        "--template",
        "-t",
        metavar="NAME",
        help=(
            "files: runs at once, on sample data. topics: from topic to topic and files. spark-pipelines: also runs"
            " with Spark's own spark-pipelines."
        ),
    ),
    name: str | None = typer.Option(None, metavar="NAME", help="The pipeline's name. Default: the folder's."),
    as_json: bool = JSON,
) -> None:
    """Make a project that runs as it is.

    With comments for the next steps.
    """
    with _told():
        from headrace.spark.pipelines.new_project import template_names, write_project

        if template not in template_names():
            _fail(f"headrace: there is no template {template}: choose {', '.join(template_names())}", REFUSED_EXIT)
        called = name or "".join(c if c.isalnum() else "_" for c in folder.resolve().name) or "my_pipeline"
        called = called if called[0].isalpha() else f"p_{called}"
        written = write_project(folder, template, called)
    if as_json:
        print_json({"pipeline": called, "folder": str(folder), "files": [str(path) for path in written]})
        return
    for path in written:
        print(f"  {path}")
    topics = "\n  headrace topic create orders orders-unreadable" if template == "topics" else ""
    print(f"\nnext:\n  cd {folder}{topics}\n  headrace pipeline dry-run\n  headrace pipeline run --once")


@app.command("dry-run")
def dry_run(
    spec: Path | None = SPEC,
    master: str | None = MASTER,
    conf: list[str] = CONF,
    no_spark: bool = typer.Option(False, "--no-spark", help="Check the spec, topics and options only, in no time."),
    graph: Path | None = typer.Option(
        None, "--graph", metavar="FILE", help="Also draw the graph: .svg, .mmd (Mermaid) or .md."
    ),
    as_json: bool = JSON,
) -> None:
    """Check everything without moving a row, and show the graph.

    Spec, topics, SQL, columns and output modes.
    """
    with _told():
        from headrace.spark.pipelines.run.start import dry_run as check, load
        from headrace.spark.pipelines.spec.graph import mermaid, svg, tree

        if _declarative(spec, "dry-run", master, conf):
            return
        pipeline = load(spec, master, _settings(conf))
        if graph is not None:
            if graph.suffix not in (".svg", ".mmd", ".md"):
                _fail(f"headrace: --graph {graph}: write a name that ends in .svg, .mmd or .md", REFUSED_EXIT)
            drawn = svg(pipeline) if graph.suffix == ".svg" else mermaid(pipeline)
            graph.write_text(f"```mermaid\n{drawn}```\n" if graph.suffix == ".md" else drawn)
        columns = check(pipeline, with_spark=not no_spark, say=_say)
        if as_json:
            print_json({"pipeline": pipeline.name, "columns": {name: dict(found) for name, found in columns.items()}})
            return
        print(tree(pipeline))
        for name, found in columns.items():
            print(f"\n{name}: {', '.join(f'{column} {kind}' for column, kind in found)}")
        parts = ("source", pipeline.sources), ("transform", pipeline.transforms), ("sink", pipeline.sinks)
        print(f"\n{pipeline.name} is fine: {', '.join(counted(len(found), noun) for noun, found in parts)}")


@app.command("run")
def run(
    spec: Path | None = SPEC,
    master: str | None = MASTER,
    conf: list[str] = CONF,
    once: bool = typer.Option(False, "--once", help="Work off what is there, then end (bounded)."),
    continuous: bool = typer.Option(False, "--continuous", help="Go on until stopped, whatever the spec says."),
    detach: bool = typer.Option(
        False, "--detach", "-d", help="Run in the background; follow it with watch, end it with stop."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print the final figures as JSON and nothing else on stdout."),
) -> None:
    """Run a pipeline.

    Ctrl-C ends it after the current batches; a second one at once. The next run goes on from there.
    """
    if once and continuous:
        _fail("headrace: --once and --continuous contradict each other", REFUSED_EXIT)
    bounded = True if once else False if continuous else None
    with _told():
        from headrace.cli.pipeline_view import RunDisplay
        from headrace.spark.pipelines.run.start import load, run as run_pipeline

        if detach:
            _detach(as_json)
            return
        if _declarative(spec, "run", master, conf):
            return
        pipeline = load(spec, master, _settings(conf))
        with RunDisplay(quiet=as_json) as display:
            outcome = run_pipeline(
                pipeline, bounded=bounded, say=_say, on_start=display.begin, on_update=display.update, show=display.show
            )
        if as_json:
            print_json(outcome.snapshot)
        else:
            display.finish(outcome.snapshot)
        if outcome.error:
            _fail(f"headrace: {outcome.error}", 1)


def _declarative(spec: Path | None, action: str, master: str | None, conf: list[str]) -> bool:
    """Run a project of Spark's own declarative pipelines, if this is one."""
    from headrace.spark.pipelines.run.declarative import is_declarative, run_declarative
    from headrace.spark.pipelines.run.registry import create_run
    from headrace.spark.pipelines.spec.load import find_spec

    path = find_spec(spec)
    if not is_declarative(path):
        return False
    where, settings = master or "local[*]", _settings(conf)
    entry = None
    if action == "run":
        entry = create_run(path.parent.name, path, master=where, mode="bounded", storage=str(path.parent))
    code = run_declarative(path, action, where, settings, entry)
    if code:
        raise typer.Exit(1)
    return True


def _detach(as_json: bool) -> None:
    """The same command as a process of its own, which the registry then shows."""
    from headrace.spark.pipelines.run.registry import list_runs, registry_folder

    words = [word for word in sys.argv[1:] if word not in ("--detach", "-d", "--json")]
    registry_folder().mkdir(parents=True, exist_ok=True)
    log = registry_folder() / f".detached-{os.getpid()}.log"
    with log.open("wb") as output:
        child = subprocess.Popen(
            [sys.executable, "-m", "headrace", *words],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    deadline = time.monotonic() + DETACH_LIMIT_S
    while time.monotonic() < deadline:
        for one in list_runs():
            if one.info.pid == child.pid and one.is_live:
                log.rename(one.folder / "output.log")
                if as_json:
                    print_json(_plain(one))
                else:
                    print(f"{one.info.run_id} runs in the background: headrace pipeline watch {one.info.run_id}")
                return
        if child.poll() is not None:
            break
        time.sleep(0.1)
    text = log.read_text(errors="replace").strip()
    log.unlink()
    _fail(text or "headrace: the run did not start", child.returncode or 1)


@app.command("list")
def list_(all_: bool = typer.Option(False, "--all", "-a", help="Ended runs too."), as_json: bool = JSON) -> None:
    """Show runs: those that go on, or all."""
    with _told():
        from headrace.spark.pipelines.run.registry import list_runs

        runs = [one for one in list_runs() if all_ or one.is_live]
    if as_json:
        print_json([_plain(one) for one in runs])
    elif not runs:
        print("no runs" if all_ else "nothing runs; headrace pipeline list --all shows ended runs")
    else:
        from headrace.cli.pipeline_view import age_text, totals

        now_ms = time.time_ns() // 1_000_000
        rows = [
            (
                one.info.run_id,
                one.state,
                one.info.mode,
                one.info.master,
                one.info.pid,
                age_text((now_ms - one.info.started_ms) / 1000),
                *totals(one.progress),
            )
            for one in runs
        ]
        print_table(
            ("RUN", "STATE", "MODE", "SPARK", "PID", "AGE", "READ", "WRITTEN", "ROWS/S"),
            rows,
            numbers=("PID", "AGE", "READ", "WRITTEN", "ROWS/S"),
        )


def _plain(run: "RunView") -> dict[str, Any]:
    from dataclasses import asdict

    return {**asdict(run.info), "state": run.state, "folder": str(run.folder), "progress": dict(run.progress)}


@app.command("watch")
def watch(
    name: str | None = typer.Argument(
        None, metavar="RUN", help="Run or pipeline. Default: the latest run.", show_default=False
    ),
    as_json: bool = typer.Option(False, "--json", help="Print the state once, as JSON."),
) -> None:
    """Follow a run of any terminal until it ends.

    Ctrl-C ends the watching, not the run.
    """
    with _told():
        from headrace.cli.pipeline_view import RunDisplay
        from headrace.spark.pipelines.run.registry import find_run, read_run

        found = find_run(name, live=False)
        if found is None:
            _fail(_no_run(name), 1)
            return
        if as_json:
            print_json(_plain(found))
            return
        with RunDisplay(quiet=False) as display:
            display.begin(found)
            while found is not None and found.is_live:
                display.update(dict(found.progress))
                time.sleep(0.5)
                found = read_run(found.folder)
        if found is not None:
            display.finish({**found.progress, "state": found.state})
            if found.state in ("failed", "lost"):
                _fail(f"headrace: {found.progress.get('error') or 'its process is gone'}", 1)


@app.command("stop")
def stop(
    name: str | None = typer.Argument(
        None, metavar="RUN", help="Run or pipeline. Default: the only one that runs.", show_default=False
    ),
    now: bool = typer.Option(False, "--now", help="Do not wait for batches that run."),
    timeout_s: float = typer.Option(60.0, "--timeout", metavar="S", help="Seconds to wait for the end."),
    as_json: bool = JSON,
) -> None:
    """End a run after its current batches, and wait until it has ended."""
    with _told():
        from headrace.spark.pipelines.run.registry import find_run, list_runs, request_stop

        live = [one for one in list_runs() if one.is_live]
        if name is None and len(live) > 1:
            _fail(
                f"headrace: several runs go on: name one of {', '.join(one.info.run_id for one in live)}", REFUSED_EXIT
            )
        found = find_run(name, live=True)
        if found is None:
            ended = find_run(name, live=False) if name is not None else None
            if ended is None:
                _fail(_no_run(name), 1)
                return
            print(f"{ended.info.run_id} has ended already: {ended.state}")
            return
        request_stop(found, now=now)
        state = _wait_for_end(found.folder, timeout_s)
    if state is None:
        _fail(
            f"headrace: {found.info.run_id} has not ended after {timeout_s:g} s; stop --now does not wait for batches",
            1,
        )
    print_json({"run": found.info.run_id, "state": state}) if as_json else print(f"{found.info.run_id}: {state}")


def _wait_for_end(folder: Path, timeout_s: float) -> str | None:
    from headrace.spark.pipelines.run.registry import read_run

    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        found = read_run(folder)
        if found is None or not found.is_live:
            return "gone" if found is None else found.state
        time.sleep(0.1)
    return None


def _no_run(name: str | None) -> str:
    from headrace.spark.pipelines.run.registry import list_runs
    from headrace.spark.pipelines.spec.problems import nearest

    runs = list_runs()
    likely = nearest(name, [n for one in runs for n in (one.info.pipeline, one.info.run_id)]) if name else None
    return f"headrace: no run {name or 'goes on'}" + (
        f"; did you mean {likely}?" if likely else ": headrace pipeline list --all shows all"
    )
