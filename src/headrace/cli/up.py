"""`headrace up`: one node, or a local cluster, from options in a file, the environment and the command line.

Everything that can be said wrongly is refused in one line on stderr. The first line on stdout says where the broker
is; it comes when clients can connect, so that scripts may wait for it.
"""

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from headrace.config import BrokerConfig, ConfigError, parse_properties
from headrace.platform import end_with_parent, process_age_s
from headrace.version import __version__

if TYPE_CHECKING:
    from headrace.config.listeners import Listener

Run = Callable[[BrokerConfig, Callable[[Any], None]], None]
"""Runs a broker until it is stopped; the second argument is called once clients are served."""

DATA = "headrace-data"
HOST, PORT = "127.0.0.1", 9092
PORT_MAX = 65535
BROKERS_MAX = 64
ENDS = ("stop", "kill")
"""What becomes of a supervised node when its supervisor is gone: SIGTERM, or SIGKILL where nothing is worth keeping."""

DESCRIPTION = "  Start a broker, or a cluster of them. Any Kafka client can use it at the\n  address it prints."
EPILOG = """\
Options come from, weakest first: --config FILE (Kafka's server.properties),
the environment (HEADRACE_LOG_SEGMENT_BYTES is log.segment.bytes), the command
line. Stop it with Ctrl-C or SIGTERM; a second Ctrl-C ends it at once.

One broker on 127.0.0.1:9092, data in ./headrace-data:
  headrace up
Any free port, another folder:
  headrace up --port 0 --data /tmp/try
For other machines, which know this one by a name:
  headrace up --host 0.0.0.0 --set advertised.listeners=PLAINTEXT://b.lan:9092
With a file of Kafka's:
  headrace up --config server.properties --set log.retention.hours=24
A cluster on this machine, ports 9092 to 9094, in the background:
  headrace up --brokers 3 --detach
One that keeps its metadata in ZooKeeper, `headrace zookeeper up` runs one:
  headrace up --zookeeper 127.0.0.1:2181/headrace
One node of three machines, whose folder `headrace format` has made:
  headrace up --node-id 2 --voters 1@a:9093,2@b:9093,3@c:9093
"""


class Formatter(argparse.RawDescriptionHelpFormatter):
    """Help that looks like that of the other commands, which would take a tenth of a second longer to load."""

    def add_usage(self, usage: str | None, actions: Any, groups: Any, prefix: str | None = None) -> None:
        super().add_usage(usage, actions, groups, "Usage: ")


class OneLineParser(argparse.ArgumentParser):
    """Says what is wrong in one line, where argparse prints all options before it."""

    def error(self, message: str) -> NoReturn:
        from headrace.config.topic import suggestion

        words = message.partition("unrecognized arguments: ")[2].split()
        meant = suggestion(words[0], self._option_string_actions) if words else ""
        self.exit(2, f"headrace: {message.removeprefix('argument ')}{meant}; see {self.prog} --help\n")


def parser() -> argparse.ArgumentParser:
    found = OneLineParser(
        "headrace up",
        usage="%(prog)s [OPTIONS]",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=Formatter,
        add_help=False,
    )
    add = found.add_argument_group("Options").add_argument
    add("--data", metavar="DIR", help=f"Data folder, made if missing.  [default: ./{DATA}]")
    add("--host", metavar="HOST", help=f"Address to listen on.  [default: {HOST}, this machine only]")
    add("--port", metavar="N", type=port_number, help=f"Port to listen on, 0 for any free one.  [default: {PORT}]")
    add("--config", metavar="FILE", help="Options in Kafka's format (server.properties).")
    add(
        "--set",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        dest="settings",
        help="One option, by Kafka's name; may be repeated.",
    )
    add("--node-id", metavar="N", type=int, help="Id of this node in its cluster.  [default: 1]")
    add(
        "--metrics-port",
        metavar="N",
        type=port_number,
        help="Serve Prometheus metrics on this port, 0 for any free one.",
    )
    add(
        "--detach",
        action="store_true",
        help="Go on in the background once clients can connect; `headrace down` stops it.",
    )
    add("-v", "--verbose", action="store_true", help="Log details.")
    add("--json", action="store_true", dest="as_json", help="Say where the broker is as JSON, in one line.")
    add_cluster_options(found, add)
    add("-h", "--help", action="help", help="Show this message and exit.")
    return found


def add_cluster_options(found: argparse.ArgumentParser, add_general: Callable[..., object]) -> None:
    local = found.add_argument_group("A cluster on this machine").add_argument
    local(
        "--brokers",
        metavar="N",
        type=broker_count,
        help="Run so many brokers, each a process with a folder in --data; they are restarted if they crash.",
    )
    add_general(
        "--zookeeper",
        metavar="HOST:PORT,.../PATH",
        help="Keep the metadata in ZooKeeper instead of KRaft (zookeeper.connect).",
    )
    local("--racks", metavar="R,...", help="Racks to give to them in turn.  [default: this machine is one rack]")
    add = found.add_argument_group("One node of a cluster").add_argument
    add(
        "--voters", metavar="ID@HOST:PORT,...", help="The controllers, if they never change (controller.quorum.voters)."
    )
    add(
        "--bootstrap-controllers",
        metavar="HOST:PORT,...",
        help="Where to find the controllers otherwise (controller.quorum.bootstrap.servers).",
    )
    add("--controller-port", metavar="N", type=port_number, help="Be a controller too, on this port.")
    add("--roles", metavar="ROLE,...", help="Broker, controller or both (process.roles).")
    add("--rack", metavar="R", help="Where this broker stands (broker.rack).")
    add("--supervised", nargs="?", choices=ENDS, const="stop", help=argparse.SUPPRESS)


def main(words: Sequence[str], run: Run | None = None) -> int:
    """Parse, start, run until stopped. Returns the exit code. `run`: otherwise than by `server.run`."""
    arguments = parser().parse_args(words)
    if arguments.data == "":
        return refuse("--data is empty: name a folder")
    if arguments.detach:
        return detach(arguments, words)
    if arguments.brokers is not None:
        return run_cluster(arguments)
    if arguments.racks is not None:
        return refuse("--racks goes with --brokers; for one node say --rack")
    if arguments.supervised:
        die_with_parent(arguments.supervised)
    try:
        config = load_config(arguments, os.environ)
        refuse_a_clusters_folder(config)
    except ConfigError as error:
        return refuse(str(error))
    from headrace.broker import server
    from headrace.quorum import QuorumError

    set_up_logging(arguments.verbose)
    warn_of_idle_options(config)
    try:
        (run or server.run)(config, announce_json if arguments.as_json else announce)
    except (server.StartupError, QuorumError) as error:
        return refuse(str(error))
    except KeyboardInterrupt:
        # Before the broker has taken over the signals there is nothing to stop in order.
        return 130
    return 0


def detach(arguments: argparse.Namespace, words: Sequence[str]) -> int:
    """Start the same once more, in the background."""
    from pathlib import Path

    from headrace.cli.detached import start

    try:
        folder = (
            arguments.data or DATA if arguments.brokers is not None else load_config(arguments, os.environ).log_dirs[0]
        )
        without = [word for word in words if word not in ("--detach", "--json")]
        return start(without, Path(folder), as_json=arguments.as_json)
    except ConfigError as error:
        return refuse(str(error))
    except OSError as error:
        return refuse(f"cannot use {error.filename}: {error.strerror}; choose another folder with --data")


def refuse(message: str) -> int:
    print(f"headrace: {message}", file=sys.stderr)
    return 1


# -- a local cluster


def run_cluster(arguments: argparse.Namespace) -> int:
    """Lay the cluster out, if it is new, and run it until stopped."""
    import gc
    from pathlib import Path

    from headrace.cli.supervisor import supervise
    from headrace.local_cluster.layout import LocalClusterError, Wish, open_cluster, refuse_taken_ports

    gc.enable()
    alone = ("config", "node_id", "voters", "bootstrap_controllers", "controller_port", "roles", "rack")
    for name in alone:
        if getattr(arguments, name) is not None:
            return refuse(f"--{name.replace('_', '-')} is about one node and cannot go with --brokers")
    racks = [rack.strip() for rack in (arguments.racks or "").split(",") if rack.strip()]
    place = {"zookeeper.connect": arguments.zookeeper} if arguments.zookeeper is not None else {}
    wish = Wish(arguments.brokers, port_or(arguments.port, PORT), arguments.host or HOST, racks, place)
    try:
        # What is wrong with a setting is said once, here, and not by every node.
        BrokerConfig.load(overrides={**place, **dict(map(split_setting, arguments.settings))})
        refuse_taken_ports(Path(arguments.data or DATA), wish)
        cluster = open_cluster(Path(arguments.data or DATA), wish)
        if arguments.port and arguments.port not in {node.port for node in cluster.nodes.values()}:
            raise LocalClusterError(
                f"--port {arguments.port}: {cluster.folder} has its ports already, as {cluster.bootstrap}; start it"
                " without --port"
            )
    except (ConfigError, LocalClusterError) as error:
        return refuse(str(error))
    except OSError as error:
        return refuse(
            f"cannot make a cluster in {error.filename or arguments.data or DATA}: {error.strerror}; choose another"
            " folder with --data"
        )
    words = [word for setting in arguments.settings for word in ("--set", setting)]
    if arguments.verbose:
        words.append("--verbose")
    return supervise(cluster, words, arguments.metrics_port, as_json=arguments.as_json)


def refuse_a_clusters_folder(config: BrokerConfig) -> None:
    for path in config.log_dirs:
        if os.path.exists(f"{path}/node-1.properties"):
            raise ConfigError(
                f"{path} holds a local cluster: start it with --brokers, or choose another folder with --data"
            )


def die_with_parent(how: str) -> None:
    """Ask the kernel for an end when the supervisor is gone, however it went: a node must not stay behind alone."""
    import signal

    end_with_parent(signal.SIGKILL if how == "kill" else signal.SIGTERM)


# -- configuration


def load_config(arguments: argparse.Namespace, env: Mapping[str, str]) -> BrokerConfig:
    """Join file, environment and command line. Raises ConfigError."""
    properties = read_file(arguments.config) if arguments.config else {}
    overrides = dict(map(split_setting, arguments.settings))
    if arguments.data is not None:
        overrides["log.dirs"] = os.path.abspath(arguments.data)
    if arguments.node_id is not None:
        overrides["node.id"] = str(arguments.node_id)
    if arguments.metrics_port is not None:
        overrides["metrics.port"] = str(arguments.metrics_port)
    host, roles = join_cluster(arguments, overrides)
    # First without an address of our own: `listeners` may be set anywhere, and then host and port only amend it.
    config = BrokerConfig.load(properties, env, overrides)
    if roles is not None:
        overrides["process.roles"] = roles
    if "log.dirs" not in config.raw and "log.dir" not in config.raw:
        overrides["log.dirs"] = os.path.abspath(DATA)
    if "listeners" not in config.raw:
        overrides["listeners"] = ",".join(new_listeners(config, roles, host, arguments))
    elif arguments.host is not None or arguments.port is not None:
        overrides["listeners"] = amend_listener(config, arguments.host, arguments.port)
    return BrokerConfig.load(properties, env, overrides)


def join_cluster(arguments: argparse.Namespace, overrides: dict[str, str]) -> tuple[str, str | None]:
    """What the options about a cluster say in Kafka's words; returns the address to listen on and the roles, if they
    say anything about them. Raises ConfigError."""
    voters, bootstrap = arguments.voters, arguments.bootstrap_controllers
    host: str = arguments.host or HOST
    if arguments.rack is not None:
        overrides["broker.rack"] = arguments.rack
    roles: str | None = arguments.roles
    if arguments.zookeeper is not None:
        if voters is not None or bootstrap is not None or roles is not None:
            raise ConfigError("--zookeeper: give this, or --voters, --bootstrap-controllers and --roles, not both")
        overrides["zookeeper.connect"] = arguments.zookeeper
        return host, None
    if voters is None and bootstrap is None:
        return host, roles
    if voters is not None and bootstrap is not None:
        raise ConfigError("--voters: give this or --bootstrap-controllers, not both")
    if arguments.node_id is None:
        raise ConfigError("--node-id: a node of a cluster needs a number of its own")
    if voters is not None:
        overrides["controller.quorum.voters"] = voters
        mine = BrokerConfig.load(overrides={"controller.quorum.voters": voters}).quorum_voters.get(arguments.node_id)
        votes = mine is not None
        if mine is not None and arguments.host is None:
            # Others reach this node's controller there, so they will its broker.
            host = mine[0]
    else:
        overrides["controller.quorum.bootstrap.servers"] = bootstrap
        votes = arguments.controller_port is not None
    return host, roles or ("broker,controller" if votes else "broker")


def new_listeners(config: BrokerConfig, roles: str | None, host: str, arguments: argparse.Namespace) -> list[str]:
    """Where to listen when `listeners` says nothing: for clients and, as one of several controllers, for the others."""
    found = []
    mine_to_do = config.roles if roles is None else {role.strip() for role in roles.split(",")}
    if "controller" not in mine_to_do or "broker" in mine_to_do:
        found.append(f"PLAINTEXT://{bracketed(host)}:{port_or(arguments.port, PORT)}")
    mine = config.quorum_voters.get(config.node_id)
    port = arguments.controller_port if arguments.controller_port is not None else mine[1] if mine else None
    if port is not None and "controller" in mine_to_do:
        name = config.controller_listener_names[0]
        found.append(f"{name}://{bracketed(mine[0] if mine else host)}:{port}")
    elif config.zookeeper_connect is not None:
        found.append(f"{config.controller_listener_names[0]}://{bracketed(host)}:0")
    return found


def read_file(path: str) -> dict[str, str]:
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            found = parse_properties(file.read())
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    for name, value in found.items():  # what stands in comments does no harm
        if not f"{name}{value}".isascii() and any("\udc80" <= letter <= "\udcff" for letter in name + value):
            raise ConfigError(
                f"cannot read {path}: {name.encode(errors='replace').decode()[:40]} is not written in UTF-8"
            )
    return found


def split_setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise ConfigError(f"--set {text}: write --set NAME=VALUE, such as --set log.retention.hours=24")
    return name.strip(), value.strip()


def amend_listener(config: BrokerConfig, host: str | None, port: int | None) -> str:
    """`listeners` as configured, with another host or port for the one that clients use."""
    mine = config.broker_listeners
    if len(mine) != 1:
        raise ConfigError(f"--host and --port: {len(mine)} client listeners are configured; change listeners itself")

    def shown(listener: "Listener") -> str:
        if listener is not mine[0]:
            return str(listener)
        new_host = listener.host if host is None else host
        return f"{listener.name}://{bracketed(new_host)}:{port_or(port, listener.port)}"

    return ",".join(map(shown, config.listeners))


def port_or(port: int | None, otherwise: int) -> int:
    return otherwise if port is None else port


def bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def broker_count(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= BROKERS_MAX:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of brokers between 1 and {BROKERS_MAX}")
    return int(text)


def port_number(text: str) -> int:
    if not text.isdecimal() or int(text) > PORT_MAX:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port between 0 and {PORT_MAX}")
    return int(text)


# -- what the user sees


def announce(ready: Any) -> None:
    """The one line that scripts wait for."""
    print(
        f"Headrace {__version__} ready on {ready.address} "
        f"(data in {ready.data}, node {ready.node_id}, started in {process_age_s():.2f} s)",
        flush=True,
    )


def announce_json(ready: Any) -> None:
    """The same for scripts that read JSON."""
    import json

    facts = {"ready": ready.address, "data": str(ready.data), "node": ready.node_id, "started_s": process_age_s()}
    print(json.dumps(facts), flush=True)


def set_up_logging(verbose: bool) -> None:
    """Plain lines on stderr: time, level, where, what."""
    import logging

    logging.addLevelName(logging.WARNING, "WARN")
    logging.addLevelName(logging.CRITICAL, "FATAL")
    logging.basicConfig(
        level=logging.DEBUG if verbose else logging.INFO,
        format="%(asctime)s.%(msecs)03d %(levelname)-5s %(name)s: %(message)s",
        datefmt="%H:%M:%S",
        stream=sys.stderr,
    )
    logging.getLogger("asyncio").setLevel(logging.WARNING)


def warn_of_idle_options(config: BrokerConfig) -> None:
    """Options of Kafka's that Headrace knows but does nothing with are taken, so that files can be shared, and
    named."""
    import logging

    from headrace.config.broker import find_option

    idle = sorted(name for name in config.raw if (option := find_option(name)) is not None and not option.effect)
    if idle:
        logging.getLogger("headrace.config").warning("accepted, but without effect in Headrace: %s", ", ".join(idle))
