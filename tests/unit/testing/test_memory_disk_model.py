"""The fault disk against the kernel's own file system, and its crashes against a model of what may survive."""

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from hypothesis import given, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from headrace.storage.files import Disk, RealDisk
from headrace.testing.simulator.disk import CrashMode, MemoryDisk
from headrace.testing.simulator.names import FileNode
from headrace.testing.simulator.pages import Pages

NAMES = st.sampled_from(["a", "b", "d", "d/a", "d/b", "d/e", "d/e/a", "none/a"])


class SameAsTheKernel(RuleBasedStateMachine):
    """Until something fails, a program cannot tell the two disks apart: same results, same errno."""

    @initialize()
    def begin(self) -> None:
        # In memory where there is one: real syncs would make this test wait for the machine's disk.
        shared = "/dev/shm"
        self.folder = tempfile.mkdtemp(prefix="headrace-disk-", dir=shared if Path(shared).is_dir() else None)
        self.memory = MemoryDisk()
        self.memory.make_dirs(self.folder)
        self.real = RealDisk()

    def teardown(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def both(self, call: Callable[[Disk], object]) -> None:
        results: list[object] = []
        for disk in (self.real, self.memory):
            try:
                results.append(call(disk))
            except OSError as error:
                results.append(error.errno)
        assert results[0] == results[1]

    def path(self, name: str) -> str:
        return f"{self.folder}/{name}"

    @rule(name=NAMES, data=st.binary(max_size=20), create=st.booleans())
    def append(self, name: str, data: bytes, create: bool) -> None:
        def call(disk: Disk) -> object:
            file = disk.open(self.path(name), create=create)
            file.append(data)
            size = file.size()
            file.close()
            return size

        self.both(call)

    @rule(name=NAMES, data=st.binary(min_size=1, max_size=10), position=st.integers(0, 40))
    def write_at(self, name: str, data: bytes, position: int) -> None:
        def call(disk: Disk) -> object:
            file = disk.open(self.path(name))
            file.write_at(data, position)
            result = file.read(100, 0), file.read(3, position)
            file.close()
            return result

        self.both(call)

    @rule(name=NAMES, size=st.integers(0, 40))
    def truncate(self, name: str, size: int) -> None:
        def call(disk: Disk) -> object:
            file = disk.open(self.path(name))
            file.truncate(size)
            file.append(b"+")
            file.sync()
            result = file.read(100, 0)
            file.close()
            return result

        self.both(call)

    @rule(name=NAMES, new=NAMES)
    def rename(self, name: str, new: str) -> None:
        self.both(lambda disk: disk.rename(self.path(name), self.path(new)))

    @rule(name=NAMES)
    def remove(self, name: str) -> None:
        self.both(lambda disk: disk.remove(self.path(name)))

    @rule(name=st.sampled_from(["d", "d/e", "none"]))
    def remove_tree(self, name: str) -> None:
        self.both(lambda disk: disk.remove_tree(self.path(name)))

    @rule(name=st.sampled_from(["d", "d/e"]))
    def make_dirs(self, name: str) -> None:
        self.both(lambda disk: disk.make_dirs(self.path(name)))

    @rule(name=st.sampled_from(["a", "d/a", "none/a"]), data=st.binary(max_size=20))
    def replace_bytes(self, name: str, data: bytes) -> None:
        self.both(lambda disk: disk.replace_bytes(self.path(name), data))

    @rule(name=NAMES)
    def look(self, name: str) -> None:
        path = self.path(name)
        self.both(lambda disk: (disk.exists(path), disk.is_dir(path)))
        self.both(lambda disk: list(disk.list(path)))
        self.both(lambda disk: disk.read_bytes(path))
        self.both(lambda disk: disk.sync_dir(path))

    @invariant()
    def same_tree(self) -> None:
        if hasattr(self, "folder"):
            found = {str(path): path.read_bytes() for path in Path(self.folder).rglob("*") if path.is_file()}
            assert found == self.memory.tree()


TestSameAsTheKernel = SameAsTheKernel.TestCase
TestSameAsTheKernel.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)

EFFECTS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.binary(min_size=1, max_size=1500)),
        st.tuples(st.just("write"), st.tuples(st.integers(0, 3000), st.binary(min_size=1, max_size=900))),
        st.tuples(st.just("truncate"), st.integers(0, 3000)),
        st.tuples(st.just("sync"), st.none()),
    ),
    max_size=12,
)


@settings(max_examples=200, deadline=None)
@given(effects=EFFECTS, seed=st.integers(0, 2**32), mode=st.sampled_from(list(CrashMode)))
def test_surviving_bytes_were_each_there_at_some_time(effects: list[Any], seed: int, mode: CrashMode) -> None:
    """Every surviving size and byte is one that the file had at some moment since the last sync, or a zero."""
    pages = Pages()
    versions = [b""]
    for kind, argument in effects:
        if kind == "append":
            pages.write(len(pages.cached), argument)
        elif kind == "write":
            pages.write(*argument)
        elif kind == "truncate":
            pages.truncate(argument)
        else:
            pages.sync()
            versions.clear()
        versions.append(bytes(pages.cached))
    cached = bytes(pages.cached)
    pages.crash(Random(seed), mode)
    survived = bytes(pages.cached)
    assert survived == bytes(pages.durable) and not pages.pending
    if mode is CrashMode.KEEP:
        assert survived == cached
    elif mode is CrashMode.LOSE:
        assert survived == versions[0]
    else:
        for position, byte in enumerate(survived):
            assert byte == 0 or any(position < len(v) and v[position] == byte for v in versions)
        # A byte that never changed and was never cut off since the sync is not at risk.
        shortest = min(map(len, versions))
        for position in range(shortest):
            if len({version[position] for version in versions}) == 1:
                assert survived[position] == versions[0][position]
        assert len(survived) >= shortest


class NamesAfterACrash(RuleBasedStateMachine):
    """A name shows after a crash an inode it had since its folder was last synced; no synced file is lost by moving."""

    @initialize()
    def begin(self) -> None:
        self.disk = MemoryDisk()
        for folder in ("/x", "/y"):
            self.disk.make_dirs(folder)
        self.disk.sync_all()
        self.made = 0
        self.history: dict[str, list[object]] = {f"/{f}/{n}": [None] for f in "xy" for n in "abc"}

    def look(self) -> None:
        for path, seen in self.history.items():
            seen.append(self.disk._find(path))

    @rule(folder=st.sampled_from("xy"), name=st.sampled_from("abc"))
    def create(self, folder: str, name: str) -> None:
        path = f"/{folder}/{name}"
        if self.disk.exists(path):
            return
        self.made += 1
        file = self.disk.open(path, create=True)
        file.append(b"%d" % self.made)
        file.sync()
        self.look()

    @rule(old=st.sampled_from(["/x/a", "/x/b", "/y/a"]), new=st.sampled_from(["/x/b", "/x/c", "/y/b", "/y/a"]))
    def rename(self, old: str, new: str) -> None:
        if self.disk.exists(old):
            self.disk.rename(old, new)
            self.look()

    @rule(path=st.sampled_from(["/x/a", "/x/c", "/y/b"]))
    def remove(self, path: str) -> None:
        if self.disk.exists(path):
            self.disk.remove(path)
            self.look()

    @rule(folder=st.sampled_from("xy"))
    def sync_dir(self, folder: str) -> None:
        self.disk.sync_dir(f"/{folder}")
        for path, seen in self.history.items():
            if path.startswith(f"/{folder}/"):
                del seen[:-1]

    @rule(seed=st.integers(0, 1000), mode=st.sampled_from(list(CrashMode)))
    def crash(self, seed: int, mode: CrashMode) -> None:
        before = self.disk.tree()
        safe = {
            id(seen[0])
            for seen in self.history.values()
            if len({id(node) for node in seen}) == 1 and isinstance(seen[0], FileNode)
        }
        self.disk.crash(Random(seed), mode)
        after = {path: self.disk._find(path) for path in self.history}
        for path, seen in self.history.items():
            assert any(after[path] is node for node in seen), path
        assert safe <= {id(node) for node in after.values()}
        if mode is CrashMode.KEEP:
            assert self.disk.tree() == before
        for path, seen in self.history.items():
            seen[:] = [after[path]]


TestNamesAfterACrash = NamesAfterACrash.TestCase
TestNamesAfterACrash.settings = settings(max_examples=80, stateful_step_count=25, deadline=None)
