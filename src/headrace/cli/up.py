"""`headrace up`: one broker, from options in a file, the environment and the command line.

Everything that can be said wrongly is refused in one line on stderr. The first line on stdout says where the broker
is; it comes when clients can connect, so that scripts may wait for it.
"""

import argparse
import os
import sys
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from headrace import __version__
from headrace.config import BrokerConfig, ConfigError, parse_properties

if TYPE_CHECKING:
    from headrace.config.listeners import Listener

DATA = "headrace-data"
HOST, PORT = "127.0.0.1", 9092
PORT_MAX = 65535

DESCRIPTION = "Start a broker. Any Kafka client can use it at the address it prints."
EPILOG = """\
Options come from, weakest first: --config FILE (Kafka's server.properties), the environment
(HEADRACE_LOG_SEGMENT_BYTES is log.segment.bytes), the command line.
Stop it with Ctrl-C or SIGTERM; a second Ctrl-C ends it at once.

  headrace up                                       one broker on 127.0.0.1:9092, data in ./headrace-data
  headrace up --port 0 --data /tmp/try              any free port
  headrace up --host 0.0.0.0 --set advertised.listeners=PLAINTEXT://broker.example:9092
  headrace up --config server.properties --set log.retention.hours=24
"""


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(
        "headrace up", description=DESCRIPTION, epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = found.add_argument
    add("--data", metavar="DIR", help=f"data folder, made if missing [./{DATA}]")
    add("--host", metavar="HOST", help=f"address to listen on [{HOST}: this machine only]")
    add("--port", metavar="N", type=port_number, help=f"port to listen on, 0 for any free one [{PORT}]")
    add("--config", metavar="FILE", help="options in Kafka's format (server.properties)")
    add("--set", metavar="NAME=VALUE", action="append", default=[], dest="settings", help="one option, Kafka's name; may be repeated")
    add("--node-id", metavar="N", type=int, help="id of this node in its cluster [1]")
    add("--metrics-port", metavar="N", type=port_number, help="serve Prometheus metrics on this port, 0 for any free one [none]")
    add("-v", "--verbose", action="store_true", help="log details")
    return found


def main(words: Sequence[str]) -> int:
    """Parse, start, run until stopped. Returns the exit code."""
    arguments = parser().parse_args(words)
    try:
        config = load_config(arguments, os.environ)
    except ConfigError as error:
        return refuse(str(error))
    from headrace.broker.server import StartupError, run

    set_up_logging(arguments.verbose)
    warn_of_idle_options(config)
    try:
        run(config, on_ready=announce)
    except StartupError as error:
        return refuse(str(error))
    except KeyboardInterrupt:
        # Before the broker has taken over the signals there is nothing to stop in order.
        return 130
    return 0


def refuse(message: str) -> int:
    print(f"headrace: {message}", file=sys.stderr)
    return 1


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
    # First without an address of our own: `listeners` may be set anywhere, and then host and port only amend it.
    config = BrokerConfig.load(properties, env, overrides)
    if "log.dirs" not in config.raw and "log.dir" not in config.raw:
        overrides["log.dirs"] = os.path.abspath(DATA)
    if "listeners" not in config.raw:
        overrides["listeners"] = f"PLAINTEXT://{bracketed(arguments.host or HOST)}:{port_or(arguments.port, PORT)}"
    elif arguments.host is not None or arguments.port is not None:
        overrides["listeners"] = amend_listener(config, arguments.host, arguments.port)
    return BrokerConfig.load(properties, env, overrides)


def read_file(path: str) -> dict[str, str]:
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return parse_properties(file.read())
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None


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


def process_age_s() -> float:
    """Seconds since the process was started, interpreter included."""
    try:
        with open("/proc/self/stat") as file:
            started_ticks = int(file.read().rpartition(")")[2].split()[19])
        return time.clock_gettime(time.CLOCK_BOOTTIME) - started_ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, AttributeError):
        return time.process_time()


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
    """Options of Kafka's that Headrace knows but does nothing with are taken, so that files can be shared, and named."""
    import logging

    from headrace.config.broker import find_option

    idle = sorted(name for name in config.raw if (option := find_option(name)) is not None and not option.effect)
    if idle:
        logging.getLogger("headrace.config").warning("accepted, but without effect in Headrace: %s", ", ".join(idle))
