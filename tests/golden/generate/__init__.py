"""Makes golden vectors with Apache Kafka's own classes."""

import json
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from zipfile import ZipFile

from headrace.protocol.codec import CODECS, Codec

SOURCE = Path(__file__).with_name("Vectors.java")
JARS = [
    "clients",
    "metadata",
    "group-coordinator",
    "transaction-coordinator",
    "share-coordinator",
    "raft",
    "storage",
]


def java_classes(libs: Path) -> dict[str, str]:
    """Kafka's generated class for each of our messages that the jars have, by our name."""
    found: dict[str, str] = {}
    for jar in JARS:
        (path,) = libs.glob(f"kafka-{jar}-[0-9]*.jar")
        with ZipFile(path) as archive:
            for entry in archive.namelist():
                if entry.endswith("JsonConverter.class") and "$" not in entry:
                    name = entry.removesuffix("JsonConverter.class").replace("/", ".")
                    simple = name.rpartition(".")[2]
                    found[simple.removesuffix("Data") if simple not in CODECS else simple] = name
    return found


def vectors(java: str, libs: Path, codecs: Iterable[Codec], seed: int, variants: int) -> list[dict[str, Any]]:
    """Run the generator for these messages."""
    classes = java_classes(libs)
    names = "\n".join(classes[codec.name] for codec in codecs)
    command = [java, "-cp", f"{libs}/*", str(SOURCE), str(seed), str(variants)]
    run = subprocess.run(command, input=names, capture_output=True, text=True, check=False, timeout=240)
    if run.returncode:
        raise RuntimeError(run.stderr[-2000:])
    rows = [json.loads(line) for line in run.stdout.splitlines()]
    for row in rows:
        if row["message"] not in CODECS:
            row["message"] = row["message"].removesuffix("Data")
    return rows
