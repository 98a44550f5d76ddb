"""The wheel as users get it: built by `make dist`, installed into an environment of its own, and put to work.

Everything is fetched from where this machine gets its packages; where it cannot get any, the tests are skipped.
"""

import ast
import importlib.metadata
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from email.parser import HeaderParser
from functools import cached_property
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.compat.process import HeadraceProcess

ROOT = Path(__file__).parents[2]
UV = [sys.executable, "-m", "uv"]
OWN = {"headrace", "pyspark_headrace", "pyspark_headrace_log"}
DEVELOPMENT = "dev"
"""The extra for this checkout, not for users."""

BROUGHT_BY_OTHERS = {"py4j", "llvmlite", "pytest"}
"""Imported, but not for the wheel to ask for: PySpark and numba each pin the one that they come with, and it is pytest
that loads `headrace.testing.plugin`."""

WHEELS_MAX_BYTES = 30_000_000
IMPORT_MAX_S = 0.1
COMMAND_LIMIT_S = 240

PRODUCE_AND_FETCH = """
import asyncio, sys
from headrace.client import Admin, raw
from headrace.records.builder import build_batch
from headrace.records.reader import Record, iter_records

async def main(bootstrap):
    async with Admin(bootstrap) as admin:
        await admin.create_topic("orders", partitions=1)
        rows = [Record(0, 1_700_000_000_000, b"customer-7", b"one coffee")]
        assert (await raw.produce(admin.cluster, "orders", 0, build_batch(rows))).base_offset == 0
        fetched = await raw.fetch(admin.cluster, "orders", 0, 0)
        print([(record.key, record.value) for record in iter_records(fetched.records)])

asyncio.run(main(sys.argv[1]))
"""

CPU_OF_IMPORT = """
import time
before = time.process_time()
import headrace
print(time.process_time() - before)
"""


def run(*command: str | Path) -> str:
    """What a command that must succeed says, on both of its outputs."""
    done = subprocess.run(
        [str(word) for word in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=COMMAND_LIMIT_S,
    )
    assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stdout[-3000:]}"
    return done.stdout


class Wheel:
    """The file that `make dist` built, and what its metadata says."""

    def __init__(self, file: Path) -> None:
        self.file = file
        with zipfile.ZipFile(file) as archive:
            self.names = {name for name in archive.namelist() if not name.endswith("/")}
            metadata = next(name for name in self.names if name.endswith(".dist-info/METADATA"))
            self.metadata = HeaderParser().parsestr(archive.read(metadata).decode())

    @cached_property
    def extras(self) -> list[str]:
        return [extra for extra in self.metadata.get_all("Provides-Extra", []) if extra != DEVELOPMENT]

    def requirements(self, extra: str = "") -> set[str]:
        """Names that the wheel asks for here: always, or only with this extra."""
        rows = [Requirement(row) for row in self.metadata.get_all("Requires-Dist", [])]

        def asked(extra: str) -> set[str]:
            here = (row for row in rows if row.marker is None or row.marker.evaluate({"extra": extra}))
            return {canonicalize_name(row.name) for row in here}

        return asked(extra) - asked("") if extra else asked("")


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that `make dist` filled."""
    run(*UV, "--version")
    probe = [*UV, "pip", "install", "--dry-run", "--python", sys.executable, "--reinstall", "hatchling"]
    answer = subprocess.run(probe, capture_output=True, text=True, timeout=COMMAND_LIMIT_S)
    if answer.returncode:
        pytest.skip(f"no package can be fetched here: {answer.stderr[-300:]}")
    folder = tmp_path_factory.mktemp("dist")
    run("make", "-C", ROOT, "dist", f"VENV={sys.prefix}", f"DIST={folder}")
    return folder


@pytest.fixture(scope="module")
def wheel(dist: Path) -> Wheel:
    (file,) = dist.glob("*.whl")
    return Wheel(file)


@pytest.fixture(scope="module")
def environment(wheel: Wheel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment that has the wheel and what it needs, without extras and without pip."""
    folder = tmp_path_factory.mktemp("clean") / "venv"
    run(*UV, "venv", "--python", sys.executable, folder)
    run(*UV, "pip", "install", "--python", folder / "bin" / "python", wheel.file)
    return folder / "bin"


def third_party_imports() -> Iterator[tuple[Path, str]]:
    """(file, package) for each import in the source of what is neither ours nor Python's, also inside functions."""
    for file in sorted((ROOT / "src").rglob("*.py")):
        if "templates" in file.parts:
            continue
        for node in ast.walk(ast.parse(file.read_bytes())):
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and not node.level and node.module:
                modules = [node.module]
            for module in modules:
                top = "google.protobuf" if module.startswith("google.protobuf") else module.partition(".")[0]
                if top not in sys.stdlib_module_names and top not in OWN:
                    yield file, top


def test_dist_is_one_sdist_and_one_wheel(dist: Path, wheel: Wheel) -> None:
    built = sorted(file.name for file in dist.glob("headrace-*"))
    version = wheel.metadata["Version"]
    assert built == [f"headrace-{version}-py3-none-any.whl", f"headrace-{version}.tar.gz"]


def test_the_sdist_has_nothing_of_who_works_in_the_checkout(dist: Path, tmp_path: Path) -> None:
    """An environment by another name than `.venv`, and the data of a broker that was started there."""
    listed = run("git", "-C", ROOT, "ls-files", "--cached", "--others", "--exclude-standard").splitlines()
    ours = {name for name in listed if (ROOT / name).exists()}
    for name in (*ours, "venv/pyvenv.cfg", "headrace-data/orders-0/00000000000000000000.log"):
        copy = tmp_path / "checkout" / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes((ROOT / name).read_bytes() if name in ours else b"private")
    run(*UV, "build", "--sdist", "--out-dir", tmp_path, tmp_path / "checkout")
    (file,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(file) as archive:
        packed = {member.name.partition("/")[2] for member in archive.getmembers() if member.isfile()}
    hidden = {name for name in ours if name.startswith(".")}
    assert packed - {"PKG-INFO", ".gitignore"} == ours - hidden


def test_every_file_of_the_source_is_in_the_wheel_and_nothing_else(wheel: Wheel) -> None:
    # With files not added yet, which the build takes too; without those deleted but still in the index.
    listed = run("git", "-C", ROOT, "ls-files", "--cached", "--others", "--exclude-standard", "src").splitlines()
    source = {name.removeprefix("src/") for name in listed if (ROOT / name).exists()}
    assert {name for name in source if not name.endswith(".py")}, "no tables, no templates: not what git lists"
    packed = {name for name in wheel.names if not name.partition("/")[0].endswith(".dist-info")}
    assert packed == source


def test_a_broker_from_the_wheel_takes_and_gives_records(environment: Path, tmp_path: Path) -> None:
    # -I leaves out the current folder and PYTHONPATH, by which this checkout could be found instead.
    home = run(environment / "python", "-I", "-c", "import headrace; print(headrace.__file__)")
    assert Path(home).is_relative_to(environment.parent)
    command = [str(environment / "python"), "-I", str(environment / "headrace")]
    broker = HeadraceProcess(tmp_path / "data", headrace=command).start()
    try:
        said = run(environment / "python", "-I", "-c", PRODUCE_AND_FETCH, broker.bootstrap)
    except BaseException:
        broker.kill9()
        raise
    assert broker.stop() == 0
    assert said.strip() == "[(b'customer-7', b'one coffee')]"


def test_each_extra_installs_what_it_is_for(wheel: Wheel, environment: Path) -> None:
    assert {"spark", "tls", "all"} <= set(wheel.extras)
    for extra in wheel.extras:
        # Resolved and not installed: Spark and its Java are half a gigabyte.
        asked = f"headrace[{extra}] @ {wheel.file.as_uri()}"
        said = run(*UV, "pip", "install", "--dry-run", "--python", environment / "python", asked)
        rows = [row.split("==")[0].removeprefix(" + ") for row in said.splitlines() if row.startswith(" + ")]
        expected = wheel.requirements(extra)
        if extra == "all":
            expected = set().union(*(wheel.requirements(other) for other in wheel.extras)) - {"headrace"}
        missing = expected - {canonicalize_name(row) for row in rows}
        assert not missing, f"headrace[{extra}] would not install {missing}:\n{said}"


def test_every_package_that_the_source_imports_is_asked_for_by_the_wheel(wheel: Wheel) -> None:
    asked = set().union(wheel.requirements(), *(wheel.requirements(extra) for extra in wheel.extras))
    asked |= BROUGHT_BY_OTHERS
    providers = importlib.metadata.packages_distributions()
    unasked = {}
    for file, package in third_party_imports():
        names = ["protobuf"] if package == "google.protobuf" else providers.get(package, [package])
        if asked.isdisjoint(canonicalize_name(name) for name in names):
            unasked[package] = str(file.relative_to(ROOT))
    assert not unasked


def test_the_base_install_downloads_less_than_30_mb(wheel: Wheel, tmp_path: Path) -> None:
    # The wheels themselves, as a user without a cache downloads them: unpacked they are about three times as large.
    run(sys.executable, "-m", "pip", "download", "--only-binary", ":all:", "--dest", tmp_path, wheel.file)
    sizes = {file.name: file.stat().st_size for file in tmp_path.iterdir()}
    assert wheel.file.name in sizes and len(sizes) > len(wheel.requirements())
    assert sum(sizes.values()) < WHEELS_MAX_BYTES, sizes


def test_importing_headrace_takes_less_than_a_tenth_of_a_second(environment: Path) -> None:
    # CPU time, and the best of three: what else the machine does is not the question.
    times = [float(run(environment / "python", "-I", "-c", CPU_OF_IMPORT)) for _ in range(3)]
    assert min(times) < IMPORT_MAX_S, times
