"""Which lines of the product a run of the tests reaches, with a floor for each package: a part of `make test`.

Only what runs in pytest's own processes is seen, not the brokers, Spark workers and commands that tests start.
"""

import os
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import pytest
from slipcover import Slipcover

SWITCH = "HEADRACE_COVERAGE"
"""In the environment of a run that measures."""

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "headrace"
LEFT_OUT = ("client/columnar/kernels.py", "spark/pipelines/templates/")
"""Numba compiles the first and must see it as written; the second are projects for users, which Spark runs."""
NEVER = 2**31 - 1
WORTHWHILE = 200
"""Lines that were seen and still have their mark."""
SKIPPED_SHARE_MAX = 0.01

Lines = dict[str, set[int]]
"""Of each file, by its path in the package."""


def begin() -> "Recorder":
    """Record from here on. What is imported already (pytest loads Headrace's own plugin) is left out."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        del os.environ[SWITCH]  # processes that tests start need not measure: nobody asks them
    recorder = Recorder()
    sys.meta_path.insert(0, recorder)
    return recorder


class Recorder:
    """Finds the modules of the product and loads each with a mark on every line."""

    def __init__(self) -> None:
        # Its own way to take marks away begins whenever a line was met often, which disturbs what a test measures.
        self._slipcover = Slipcover(d_miss_threshold=NEVER)
        loaded = [module for name, module in sys.modules.items() if name.partition(".")[0] == "headrace"]
        self._too_late = {_in_package(Path(module.__file__)) for module in loaded if module.__file__}

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name.partition(".")[0] != "headrace":
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and type(spec.loader) is SourceFileLoader and is_measured(Path(spec.loader.path)):
            spec.loader = _Loader(spec.loader.name, spec.loader.path, self._slipcover)
        return spec

    def forget_seen(self) -> None:
        """Take the marks off lines that were seen, so that they cost nothing any more. To find the functions that have
        them costs more than a few marks do."""
        if sys.version_info < (3, 12):  # later ones do so by themselves
            if sum(map(len, self._slipcover.newly_seen.values())) >= WORTHWHILE:
                self._slipcover.deinstrument_seen()

    def lines(self) -> tuple[Lines, Lines]:
        """Of the modules that were imported: all lines, and those that were seen."""
        known, seen = _lines_in(self._slipcover)
        return {file: lines | seen[file] for file, lines in known.items()}, seen

    def lines_never_imported(self, imported: Lines) -> Lines:
        but = [str(SOURCE / file) for file in (*imported, *self._too_late)]
        missing, _ = _lines_in(Slipcover(source=[str(SOURCE)], omit=but))
        return {file: lines for file, lines in missing.items() if is_measured(SOURCE / file)}


def _lines_in(slipcover: Slipcover) -> tuple[Lines, Lines]:
    """Those that were missed and those that were seen."""
    files = {_in_package(ROOT / name): file for name, file in slipcover.get_coverage()["files"].items()}
    missing = {file: set(lines["missing_lines"]) for file, lines in files.items()}
    return missing, {file: set(lines["executed_lines"]) for file, lines in files.items()}


class _Loader(SourceFileLoader):
    """The compiled file beside the source stays as it is: marks are set on what was read from it."""

    def __init__(self, name: str, path: str, slipcover: Slipcover) -> None:
        super().__init__(name, path)
        self._slipcover = slipcover

    def get_code(self, fullname: str) -> CodeType | None:
        code = super().get_code(fullname)
        return None if code is None else self._slipcover.instrument(code)

    def exec_module(self, module: ModuleType) -> None:
        self._slipcover.register_module(module)
        super().exec_module(module)


def is_measured(path: Path) -> bool:
    return path.is_relative_to(SOURCE) and not _in_package(path).startswith(LEFT_OUT)


def _in_package(path: Path) -> str:
    return path.relative_to(SOURCE).as_posix()


def package_of(file: str) -> str:
    """`storage`, of the broker each room (`broker/net`), and `headrace` for modules outside of packages."""
    folders = file.split("/")[:-1]
    return "/".join(folders[: 2 if folders[:1] == ["broker"] else 1]) or "headrace"


def shares(lines: Lines, seen: Lines) -> dict[str, float]:
    """Per cent of each package's lines that were seen."""
    known: dict[str, int] = defaultdict(int)
    reached: dict[str, int] = defaultdict(int)
    for file, numbers in lines.items():
        known[package_of(file)] += len(numbers)
        reached[package_of(file)] += len(numbers & seen.get(file, set()))
    return {package: 100 * reached[package] / count for package, count in sorted(known.items()) if count}


def floors() -> dict[str, float]:
    table: dict[str, float] = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["headrace"]["coverage"]
    return table


def below(measured: Mapping[str, float], wanted: Mapping[str, float]) -> list[str]:
    """A line for each package that has fallen below its floor, and for each floor without a package."""
    found = [
        f"coverage: {package} is at {share:.1f} %, below its floor of {wanted[package]:g} % in pyproject.toml"
        for package, share in measured.items()
        if share < wanted.get(package, 0.0)
    ]
    found += [f"coverage: {name} has a floor in pyproject.toml and no code" for name in wanted.keys() - measured.keys()]
    return sorted(found)


class Plugin:
    """Gathers what every process of the run has seen, and judges at the end."""

    def __init__(self, config: pytest.Config, recorder: Recorder) -> None:
        self._config = config
        self._recorder = recorder
        self._known: Lines = defaultdict(set)
        self._seen: Lines = defaultdict(set)
        self._file = ""
        self._verdict: list[str] = []

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        file = item.nodeid.partition("::")[0]
        if file != self._file:
            self._file = file
            self._recorder.forget_seen()

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        # A process that has crashed says nothing, and the run fails anyway.
        self._add(*getattr(node, "workeroutput", {}).get("coverage", ({}, {})))

    def _add(self, known: Mapping[str, Iterable[int]], seen: Mapping[str, Iterable[int]]) -> None:
        for mine, theirs in ((self._known, known), (self._seen, seen)):
            for file, lines in theirs.items():
                mine[file].update(lines)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        parts = self._recorder.lines()
        if (output := getattr(self._config, "workeroutput", None)) is not None:
            output["coverage"] = [{file: list(lines) for file, lines in part.items()} for part in parts]
            return
        self._add(*parts)
        self._add(self._recorder.lines_never_imported(self._known), {})
        measured = shares(self._known, self._seen)
        self._verdict = [_summary(self._known, self._seen, measured)]
        if new := measured.keys() - floors().keys():
            self._verdict.append(f"coverage: no floor in pyproject.toml yet for {', '.join(sorted(new))}")
        reason = self._why_not_judged(exitstatus)
        if reason:
            self._verdict.append(f"coverage: not compared with the floors, since {reason}")
        elif bad := below(measured, floors()):
            self._verdict += bad
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def _why_not_judged(self, exitstatus: int) -> str:
        config = self._config
        if config.args_source is not config.ArgsSource.TESTPATHS or config.option.keyword:
            return "this is a part of the tests"
        if exitstatus not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
            return "the run was cut short"
        reporter: Any = config.pluginmanager.get_plugin("terminalreporter")
        stats = reporter.stats
        skipped = len(stats.get("skipped", ()))
        if skipped > SKIPPED_SHARE_MAX * len(stats.get("passed", ())):
            return f"{skipped} tests were skipped"
        return ""

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        for line in self._verdict:
            terminalreporter.write_line(line)


def _summary(lines: Lines, seen: Lines, measured: Mapping[str, float]) -> str:
    count = sum(map(len, lines.values()))
    reached = sum(len(numbers & seen.get(file, set())) for file, numbers in lines.items())
    each = ", ".join(f"{package} {share:.1f}" for package, share in measured.items())
    return f"coverage: {100 * reached / count:.1f} % of {count:,} lines ({each})"
