"""`headrace zookeeper up`: a real ZooKeeper ensemble on this machine, for development."""

import signal
import threading
from pathlib import Path
from typing import Annotated

import typer

from headrace.cli.output import JSON, command_group, print_json
from headrace.client.errors import ClientError

app = command_group("Run ZooKeeper on this machine, for development.", no_args_is_help=True)

PORT = 2181
NODES_MAX = 9
LOOK_S = 0.5


@app.callback()
def root() -> None:
    """Run ZooKeeper on this machine, for development."""


@app.command("up")
def up(
    nodes: Annotated[int, typer.Option("--nodes", metavar="N", min=1, max=NODES_MAX, help="How many servers.")] = 1,
    data: Annotated[Path, typer.Option("--data", metavar="DIR", help="Where they keep what they know.")] = Path(
        "zookeeper-data"
    ),
    port: Annotated[
        int, typer.Option("--port", metavar="N", min=0, max=65_000, help="Of the first, for clients; 0: any free ones.")
    ] = PORT,
    as_json: bool = JSON,
) -> None:
    """Run servers until Ctrl-C. Needs Java, and Maven or Debian's package zookeeper for its jars."""
    from headrace.local_cluster.ensemble import Ensemble, Unavailable
    from headrace.local_cluster.layout import LocalClusterError, free_ports

    count = nodes if nodes == 1 else 3 * nodes
    try:
        ports = list(free_ports(count)) if port == 0 else _ports(port, nodes)
        ensemble = Ensemble(data, ports)
        ensemble.start()
    except (Unavailable, LocalClusterError) as error:
        raise ClientError(str(error)) from None
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    try:
        if as_json:
            print_json({"connect": ensemble.connect, "data": str(data), "servers": nodes})
        else:
            print(f"ZooKeeper ready on {ensemble.connect} (data in {data}); Ctrl-C stops it", flush=True)
            print(f"  headrace up --zookeeper {ensemble.connect}/headrace", flush=True)
        while not stopped.wait(LOOK_S):
            for server in ensemble.servers:
                if not server.is_running:
                    raise ClientError(f"server {server.id} has ended; {server.log} says why")
    except KeyboardInterrupt:
        pass
    finally:
        ensemble.stop()


def _ports(first: int, nodes: int) -> list[int]:
    """For clients one after the other from `first`; between servers from 700 and 1,700 above, as ZooKeeper's 2888 and
    3888 are."""
    between = [port for node in range(nodes) for port in (first + 707 + node, first + 1_707 + node)]
    return [*range(first, first + nodes), *(between if nodes > 1 else ())]
