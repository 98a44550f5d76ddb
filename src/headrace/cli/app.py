"""The typer application: every command and its help. `up` is listed here and parsed in `up`."""

import json
import sys
from collections.abc import Sequence
from contextlib import nullcontext, redirect_stdout
from pathlib import Path
from typing import Annotated, ClassVar

import typer

from headrace.cli import cluster, config, dlq, doctor, group, log, pipeline, topic, transaction, zookeeper
from headrace.cli.command_config import take_command_config
from headrace.cli.output import JSON, command_group, print_json
from headrace.cli.plain_help import SectionedGroup
from headrace.cli.proof import proof
from headrace.cli.records import consume, produce
from headrace.cli.run import run_app
from headrace.cli.tools import archive
from headrace.cli.tools.bench import bench
from headrace.cli.tools.mirror import mirror
from headrace.cli.tools.sql import sql
from headrace.cli.tools.top import top
from headrace.cli.tour.command import tour
from headrace.client.errors import ClientError
from headrace.protocol.primitives import ProtocolError
from headrace.version import __version__


class Headrace(SectionedGroup):
    sections: ClassVar = {
        "See it": ("demo", "tour", "proof"),
        "Run it": ("up", "down", "logs", "format", "zookeeper"),
        "Records": ("produce", "consume", "export", "import", "mirror", "sql", "bench"),
        "Your programs": ("run", "dlq", "pipeline"),
        "Look after it": ("doctor", "top", "topic", "group", "transaction", "cluster", "config", "log", "version"),
    }


app = command_group(
    "Kafka's job in Python: a broker that every Kafka client can use, and the tools around it.",
    name="headrace",
    cls=Headrace,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def root(
    show_version: Annotated[bool, typer.Option("--version", help="Print the version and exit.", is_eager=True)] = False,
) -> None:
    """Kafka's job in Python: a broker that every Kafka client can use, and the tools around it."""
    if show_version:
        version(as_json=False)
        raise typer.Exit


# `main` hands `up` over before typer is imported; this entry is for `headrace --help`.
@app.command("up", add_help_option=False, context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
def up(context: typer.Context) -> None:
    """Start a broker or a cluster; `headrace up -h` says how."""
    from headrace.cli.up import main

    raise typer.Exit(main(context.args))


DATA = Annotated[Path, typer.Option("--data", metavar="DIR", help="The data folder that `up --detach` was given.")]


@app.command("down")
def down(
    data: DATA = Path("headrace-data"),
    now: Annotated[
        bool, typer.Option("--now", help="Kill it: nothing acknowledged is lost, the next start takes longer.")
    ] = False,
    as_json: bool = JSON,
) -> None:
    """Stop what `up --detach` has started."""
    from headrace.cli.detached import stop

    stopped = stop(data, now=now)
    if stopped is None:
        raise ClientError(f"nothing that was started with --detach runs in {data}; choose another folder with --data")
    if as_json:
        print_json({"stopped": stopped, "data": str(data)})
    else:
        print(f"stopped process {stopped}, data in {data}")


@app.command("logs")
def logs(
    data: DATA = Path("headrace-data"),
    lines: Annotated[int, typer.Option("--lines", "-n", metavar="N", min=0, help="How many lines to begin with.")] = 40,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what comes, until Ctrl-C.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print each line as a JSON string.")] = False,
) -> None:
    """Show what a detached broker or cluster says."""
    from headrace.cli.detached import log_lines

    for line in log_lines(data, lines, follow):
        print(json.dumps(line) if as_json else line, flush=True)


app.add_typer(topic.app, name="topic")
app.add_typer(group.app, name="group")
app.add_typer(transaction.app, name="transaction")
app.add_typer(dlq.app, name="dlq")
app.add_typer(cluster.app, name="cluster")
app.add_typer(zookeeper.app, name="zookeeper")
app.add_typer(config.app, name="config")
app.add_typer(log.app, name="log")
app.add_typer(pipeline.app, name="pipeline")
app.command("doctor")(doctor.doctor)
app.command("produce")(produce.produce)
app.command("run")(run_app)
app.command("consume")(consume.consume)
app.command("export")(archive.export_topic)
app.command("import")(archive.import_file)
app.command("sql")(sql)
app.command("bench")(bench)
app.command("mirror")(mirror)
app.command("top")(top)
app.command("tour")(tour)
app.command("proof")(proof)


@app.command("format")
def format_folders(
    config: Annotated[
        str | None, typer.Option(metavar="FILE", help="Options in Kafka's format (server.properties).")
    ] = None,
    data: Annotated[str | None, typer.Option(metavar="DIR", help="Data folder, in place of log.dirs.")] = None,
    node_id: Annotated[int | None, typer.Option(metavar="N", help="Id of this node, in place of node.id.")] = None,
    cluster_id: Annotated[
        str | None, typer.Option(metavar="ID", help="Id of the cluster, 22 characters; random if not given.")
    ] = None,
    setting: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="One option; may be repeated.")
    ] = None,
    voters: Annotated[
        str | None, typer.Option(metavar="ID@HOST:PORT,...", help="As for `up`: the controllers, if they never change.")
    ] = None,
    bootstrap_controllers: Annotated[
        str | None, typer.Option(metavar="HOST:PORT,...", help="As for `up`: where to find the controllers otherwise.")
    ] = None,
    controller_port: Annotated[
        int | None, typer.Option(metavar="N", help="As for `up`: be a controller too, on this port.")
    ] = None,
    host: Annotated[str | None, typer.Option(metavar="HOST", help="As for `up`: address to listen on.")] = None,
    standalone: Annotated[
        bool, typer.Option("--standalone", help="Begin a quorum with this controller alone.")
    ] = False,
    initial_controllers: Annotated[
        str | None,
        typer.Option(metavar="ID@HOST:PORT:DIRECTORY-ID,...", help="Begin a quorum with these; the same on each."),
    ] = None,
    no_initial_controllers: Annotated[
        bool, typer.Option("--no-initial-controllers", help="Join a quorum that exists, without a vote at first.")
    ] = False,
    random_id: Annotated[
        bool, typer.Option("--random-id", help="Print an id for a new cluster or directory, and do nothing.")
    ] = False,
    as_json: bool = JSON,
) -> None:
    """Format new data folders for one node of a cluster.

    Its configuration names the controllers. Existing data is never touched.
    """
    from headrace.cli import format as formatting

    if random_id:
        made = formatting.random_id()
        print_json({"id": made}) if as_json else print(made)
        return
    given = {
        "--config": config, "--data": data, "--node-id": node_id, "--voters": voters, "--host": host,
        "--bootstrap-controllers": bootstrap_controllers, "--controller-port": controller_port,
    }  # fmt: skip
    words = [word for name, value in given.items() if value is not None for word in (name, str(value))]
    words += [word for one in setting or [] for word in ("--set", one)]
    done = formatting.format_folders(words, cluster_id, standalone, initial_controllers, no_initial_controllers)
    if as_json:
        print_json(done._asdict())
    else:
        what = "formatted" if done.formatted else "already formatted, nothing changed:"
        print(f"{what} {', '.join(done.log_dirs)} for node {done.node_id} of cluster {done.cluster_id}")


@app.command("demo")
def demo(
    time: Annotated[
        str | None, typer.Option("--for", metavar="TIME", help="Run for 60s, 5m, 1h, then check every event.")
    ] = None,
    report: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write an HTML report with plots; implies --for 60s.")
    ] = None,
    rate: Annotated[float, typer.Option(metavar="N", min=1, max=20_000, help="Events per second, on average.")] = 1_000,
    seed: Annotated[int, typer.Option(metavar="N", min=0, help="The same seed gives the same events.")] = 42,
    brokers: Annotated[int, typer.Option(metavar="N", min=1, max=9, help="How many brokers to run.")] = 3,
    no_spark: Annotated[bool, typer.Option("--no-spark", help="Leave the pipeline out.")] = False,
    keep: Annotated[bool, typer.Option("--keep", help="Leave data and logs for you to look at.")] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="Only a few seconds' proof that kill -9 loses nothing.")
    ] = False,
    records: Annotated[
        int, typer.Option(metavar="N", min=1_000, max=10_000_000, help="How many records --quick produces.")
    ] = 200_000,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the verdict as JSON, and what happens meanwhile on stderr.")
    ] = False,
) -> None:
    """The main job, live: brokers, events, groups and a pipeline.

    With --for or --report every event is then checked against what came out.
    """
    with redirect_stdout(sys.stderr) if as_json else nullcontext():
        code = _run_demo(time, report, rate, seed, brokers, no_spark, keep, quick, records)
    if as_json:
        print_json({"kept": code == 0, "report": None if report is None else str(Path(report).absolute())})
    raise typer.Exit(code)


def _run_demo(
    time: str | None,
    report: str | None,
    rate: float,
    seed: int,
    brokers: int,
    no_spark: bool,
    keep: bool,
    quick: bool,
    records: int,
) -> int:
    if quick:
        from headrace.demo.quick import prove

        return prove(records, keep)
    from headrace.cli.demo import demo as run_demo, duration_s
    from headrace.demo.run import Options

    limit = time or ("60s" if report else None)
    options = Options(duration_s(limit) if limit else None, rate, seed, not no_spark)
    return run_demo(options, Path(report) if report else None, brokers, keep)


@app.command("version")
def version(as_json: bool = JSON) -> None:
    """Print the version."""
    print_json({"version": __version__}) if as_json else print(f"headrace {__version__}")


take_command_config(app)


def _is_text(word: str) -> bool:
    try:
        word.encode()
    except UnicodeEncodeError:  # bytes of the command line that are no UTF-8
        return False
    return True


def run(words: Sequence[str]) -> int:
    """Run a command; failures of the outside world become one line on stderr."""
    try:
        app(args=list(words), prog_name="headrace")
    except ClientError as error:
        print(f"headrace: {error}", file=sys.stderr)
        return 1
    except ProtocolError as error:  # what was asked for cannot even be written down
        broken = next((word for word in words if not _is_text(word)), None)
        reason = error if broken is None else f"{broken!a} is not written in UTF-8"
        print(f"headrace: this cannot be asked of a broker: {reason}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0
