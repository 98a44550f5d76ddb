"""Jars that Maven fetches once, into a folder that later runs find."""

import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path

Artifact = tuple[str, str, str]
"""Group, name, version."""

ALONE = "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"


class NotFetched(Exception):
    """The jars are not there; the message says what failed or is missing."""


def fetch(folder: Path, artifacts: Iterable[Artifact], *, alone: bool = False) -> None:
    """These jars and what they need, or just these with `alone`. Raises NotFetched."""
    maven = shutil.which("mvn")
    if maven is None:
        raise NotFetched("there is no mvn on PATH to fetch them")
    without = ALONE if alone else ""
    dependencies = "".join(
        f"<dependency><groupId>{g}</groupId><artifactId>{a}</artifactId><version>{v}</version>{without}</dependency>"
        for g, a, v in artifacts
    )
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as work:
        Path(work, "pom.xml").write_text(
            "<project><modelVersion>4.0.0</modelVersion><groupId>headrace</groupId><artifactId>jars</artifactId>"
            f"<version>1</version><packaging>pom</packaging><dependencies>{dependencies}</dependencies></project>"
        )
        fetched = Path(work, "jars")
        command = [maven, "-q", "-B", "dependency:copy-dependencies", f"-DoutputDirectory={fetched}"]
        done = subprocess.run(command, cwd=work, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise NotFetched(f"mvn could not fetch them: {(done.stdout + done.stderr).strip()[-500:]}")
        # One rename, so that a broken download never looks like a whole one. What another process has fetched
        # meanwhile may be in use.
        if not _names(fetched) <= _names(folder):
            shutil.rmtree(folder, ignore_errors=True)
            fetched.rename(folder)


def _names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()} if folder.is_dir() else set()
