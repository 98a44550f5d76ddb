"""What can happen to a broker's files while it is down: kinds of files by operations, drawn with dice.

Works through `headrace.storage.files.Disk`, so the same damage is done to a simulated machine and to a real folder.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random

from headrace.storage.files import Disk

METADATA_FOLDER = "__cluster_metadata-0"
_PARTITION = re.compile(r"(.+)-(\d+)")
_SEGMENT_FILE = re.compile(r"\d{20}(-\d{10})?(\.[a-z]+)")

NODE_FILES = {
    "meta.properties": "meta.properties",
    "bootstrap.checkpoint": "bootstrap",
    ".kafka_cleanshutdown": "clean mark",
    ".headrace_vouched": "vouched",
    ".lock": "lock",
    "recovery-point-offset-checkpoint": "recovery points",
    "replication-offset-checkpoint": "high watermarks",
    "log-start-offset-checkpoint": "log starts",
    "cleaner-offset-checkpoint": "cleaner offsets",
}
PARTITION_FILES = {
    "leader-epoch-checkpoint": "epochs",
    "partition.metadata": "topic id",
    "quorum-state": "quorum state",
}
SUFFIXES = {
    ".log": "log", ".index": "index", ".timeindex": "time index", ".txnindex": "transaction index",
    ".snapshot": "producers", ".checkpoint": "snapshot",
}  # fmt: skip

INTERNAL = {"__consumer_offsets": "offsets", "__transaction_state": "transactions"}
OF_COORDINATORS = frozenset({"active log", "closed log", "folder", "producers", "transaction index"})

WITNESSES = {
    "high watermarks": ("active log", "folder"),
    "active log": ("high watermarks",),
    "folder": ("high watermarks",),
}

MAY_REFUSE = frozenset(
    {"meta.properties", "bootstrap", "metadata log", "metadata snapshot", "metadata quorum state", "metadata folder"}
)
"""A node may refuse to start for these: they say who it is and what it has promised. Never for a partition's files."""


@dataclass(frozen=True)
class Target:
    """A file or folder below a log dir, and what it is."""

    kind: str
    path: str
    partition: tuple[str, int] | None = None
    """Whose files these are; None: the node's."""

    @property
    def drawn_as(self) -> str:
        """Its kind; what coordinators have written counts as a kind of its own, and is as likely as any other."""
        room = INTERNAL.get(self.partition[0]) if self.partition is not None and self.kind in OF_COORDINATORS else None
        return self.kind if room is None else f"{room} {self.kind}"


@dataclass
class Damage:
    """One thing done, in words that a failing test prints."""

    operation: str
    target: Target
    detail: str = ""
    also: tuple[str, int] | None = None
    """Another partition that was damaged by the same: the other half of a swap."""

    def __str__(self) -> str:
        return f"{self.operation} {self.target.path} ({self.target.kind}{', ' + self.detail if self.detail else ''})"

    @property
    def partitions(self) -> set[tuple[str, int]]:
        return {which for which in (self.target.partition, self.also) if which is not None}


Copy = Mapping[str, bytes]
"""A log dir as it was at some moment: every file's bytes by its path below the dir."""


def copy_of(disk: Disk, root: str) -> dict[str, bytes]:
    found: dict[str, bytes] = {}

    def walk(folder: str) -> None:
        for name in sorted(disk.list(f"{root}/{folder}" if folder else root)):
            path = f"{folder}/{name}" if folder else name
            if disk.is_dir(f"{root}/{path}"):
                walk(path)
            else:
                found[path] = disk.read_bytes(f"{root}/{path}")

    walk("")
    return found


def put_back(disk: Disk, root: str, copy: Copy) -> None:
    """The whole dir as it was."""
    for name in disk.list(root):
        remove(disk, f"{root}/{name}")
    for path, data in copy.items():
        put(disk, f"{root}/{path}", data)


def put(disk: Disk, path: str, data: bytes) -> None:
    disk.make_dirs(path.rpartition("/")[0])
    if disk.exists(path):
        disk.remove(path)
    file = disk.open(path, create=True)
    if data:
        file.append(data)
    file.sync()
    file.close()


def remove(disk: Disk, path: str) -> None:
    if disk.is_dir(path):
        disk.remove_tree(path)
    elif disk.exists(path):
        disk.remove(path)


def kind_of(path: str, files: Copy) -> Target:
    """What a file is. Closed segments are told from the active one: their damage is found in other ways."""
    folder, _, name = path.rpartition("/")
    if not folder:
        return Target(NODE_FILES.get(name, "other"), path)
    match = _PARTITION.fullmatch(folder)
    partition = (match[1], int(match[2])) if match is not None else None
    parts = _SEGMENT_FILE.fullmatch(name)
    kind = SUFFIXES.get(parts[2], "other") if parts is not None else PARTITION_FILES.get(name, "other")
    if folder == METADATA_FOLDER:
        return Target(f"metadata {kind}", path)
    if kind == "log":
        last = max(other for other in files if other.startswith(f"{folder}/") and other.endswith(".log"))
        kind = "active log" if path == last else "closed log"
    return Target(kind, path, partition)


# --- operations
# ---------------------------------------------------------------------------------------------------------


@dataclass
class Scene:
    """What an operation has to work with."""

    disk: Disk
    root: str
    dice: Random
    files: Copy
    """As they are."""
    older: Copy
    """As they were some time before."""
    targets: list[Target] = field(default_factory=list)

    def read(self, target: Target) -> bytes:
        return self.files[target.path]

    def write(self, target: Target, data: bytes) -> None:
        put(self.disk, f"{self.root}/{target.path}", data)

    def others(self, target: Target) -> list[Target]:
        """Files of the same kind, but for active segments: nothing tells whose they are, and their records do not
        say."""
        if target.kind == "active log":
            return []
        return [other for other in self.targets if other.kind == target.kind and other.path != target.path]


Operation = Callable[[Scene, Target], Damage | None]
"""None: this cannot be done to this file."""


def flip(scene: Scene, target: Target) -> Damage | None:
    data = bytearray(scene.read(target))
    if not data:
        return None
    at = scene.dice.randrange(len(data))
    bit = scene.dice.randrange(8)
    data[at] ^= 1 << bit
    scene.write(target, bytes(data))
    return Damage("flip", target, f"bit {bit} of byte {at} of {len(data)}")


def garbage(scene: Scene, target: Target) -> Damage | None:
    data = bytearray(scene.read(target))
    if not data:
        return None
    at = scene.dice.randrange(len(data))
    count = min(len(data) - at, scene.dice.choice((1, 4, 16, 64, 512)))
    data[at : at + count] = scene.dice.randbytes(count)
    scene.write(target, bytes(data))
    return Damage("garbage", target, f"{count} bytes at {at} of {len(data)}")


def zero(scene: Scene, target: Target) -> Damage | None:
    data = bytearray(scene.read(target))
    if not data:
        return None
    at = scene.dice.choice((0, scene.dice.randrange(len(data))))
    count = scene.dice.choice((len(data) - at, min(len(data) - at, 64)))
    data[at : at + count] = bytes(count)
    scene.write(target, bytes(data))
    return Damage("zero", target, f"{count} bytes at {at} of {len(data)}")


def cut(scene: Scene, target: Target) -> Damage | None:
    data = scene.read(target)
    if not data:
        return None
    at = scene.dice.choice((0, scene.dice.randrange(len(data)), len(data) - 1))
    scene.write(target, data[:at])
    return Damage("cut", target, f"at {at} of {len(data)}")


def extend(scene: Scene, target: Target) -> Damage | None:
    data = scene.read(target)
    more = scene.dice.choice(
        (bytes(scene.dice.randrange(1, 100)), scene.dice.randbytes(scene.dice.randrange(1, 100)), data[:200])
    )
    scene.write(target, data + more)
    return Damage("extend", target, f"{len(data)} by {len(more)} bytes")


def gone(scene: Scene, target: Target) -> Damage | None:
    remove(scene.disk, f"{scene.root}/{target.path}")
    return Damage("remove", target)


def folder_instead(scene: Scene, target: Target) -> Damage | None:
    path = f"{scene.root}/{target.path}"
    remove(scene.disk, path)
    scene.disk.make_dirs(path)
    return Damage("put a folder in place of", target)


def swap(scene: Scene, target: Target) -> Damage | None:
    others = [other for other in scene.others(target) if scene.read(other) != scene.read(target)]
    if not others:
        return None
    other = scene.dice.choice(others)
    scene.write(target, scene.read(other))
    scene.write(other, scene.read(target))
    return Damage("swap", target, f"with {other.path}", also=other.partition)


def duplicate(scene: Scene, target: Target) -> Damage | None:
    others = [other for other in scene.others(target) if scene.read(other) != scene.read(target)]
    if not others:
        return None
    other = scene.dice.choice(others)
    scene.write(target, scene.read(other))
    return Damage("overwrite", target, f"with a copy of {other.path}")


def from_older(scene: Scene, target: Target) -> Damage | None:
    data = scene.older.get(target.path)
    if data is None or data == scene.read(target):
        return None
    scene.write(target, data)
    return Damage("older copy", target, f"{len(data)} bytes for {len(scene.read(target))}")


FILE_OPERATIONS: tuple[Operation, ...] = (
    flip,
    flip,
    garbage,
    zero,
    cut,
    extend,
    gone,
    folder_instead,
    swap,
    duplicate,
    from_older,
)


def folder_gone(scene: Scene, target: Target) -> Damage | None:
    remove(scene.disk, f"{scene.root}/{target.path}")
    return Damage("remove folder", target)


def folder_emptied(scene: Scene, target: Target) -> Damage | None:
    for path in scene.files:
        if path.startswith(f"{target.path}/"):
            remove(scene.disk, f"{scene.root}/{path}")
    return Damage("empty folder", target)


def folder_older(scene: Scene, target: Target) -> Damage | None:
    before = {path: data for path, data in scene.older.items() if path.startswith(f"{target.path}/")}
    if not before or before == {path: data for path, data in scene.files.items() if path.startswith(f"{target.path}/")}:
        return None
    folder_emptied(scene, target)
    for path, data in before.items():
        put(scene.disk, f"{scene.root}/{path}", data)
    return Damage("older folder", target)


def folder_swap(scene: Scene, target: Target) -> Damage | None:
    others = scene.others(target)
    if not others:
        return None
    other = scene.dice.choice(others)
    folder_emptied(scene, target)
    folder_emptied(scene, other)
    for mine, theirs in ((target, other), (other, target)):
        for path, data in scene.files.items():
            if path.startswith(f"{theirs.path}/"):
                put(scene.disk, f"{scene.root}/{mine.path}{path.removeprefix(theirs.path)}", data)
    return Damage("swap folders", target, f"with {other.path}", also=other.partition)


FOLDER_OPERATIONS: tuple[Operation, ...] = (folder_gone, folder_emptied, folder_older, folder_swap)

LEFTOVERS = (".cleaned", ".swap", ".deleted", ".tmp", ".part", ".corrupt", ".cut", ".copy")


def leftover(scene: Scene, target: Target) -> Damage | None:
    """A file that interrupted work could have left, whole or not: of a segment, or of a checkpoint."""
    data = scene.read(target)
    what = scene.dice.choice(("a copy", "half", "nothing", "garbage"))
    content = {"a copy": data, "half": data[: len(data) // 2], "nothing": b"", "garbage": scene.dice.randbytes(100)}[
        what
    ]
    suffix = scene.dice.choice(LEFTOVERS)
    made = Target("leftover", target.path + suffix, target.partition)
    if scene.disk.exists(f"{scene.root}/{made.path}"):
        return None
    put(scene.disk, f"{scene.root}/{made.path}", content)
    return Damage("leave", made, what)


# --- drawing
# ------------------------------------------------------------------------------------------------------------


def draw_some(disk: Disk, root: str, dice: Random, older: Copy, kinds: frozenset[str] | None = None) -> list[Damage]:
    """One damage, or some. Nothing else is done to folders that were exchanged: only one file may tell whose they
    are. After a crash only the high watermarks tell what an active log had: never both are damaged."""
    done: list[Damage] = []
    for _ in range(dice.choice((1, 1, 1, 2, 3))):
        spared = frozenset(kind for damage in done for kind in WITNESSES.get(damage.target.kind, ()))
        done.append(draw(disk, root, dice, older, kinds, spared))
        if done[-1].operation == "swap folders":
            break
    return done


def draw(
    disk: Disk,
    root: str,
    dice: Random,
    older: Copy,
    kinds: frozenset[str] | None = None,
    spared: frozenset[str] = frozenset(),
) -> Damage:
    """Do one damage to what is in `root`. Each kind of file is as likely as any other, however many there are of it."""
    files = copy_of(disk, root)
    targets = [kind_of(path, files) for path in files]
    folders = sorted({path.rpartition("/")[0] for path in files if "/" in path})
    for folder in folders:
        match = _PARTITION.fullmatch(folder)
        if folder == METADATA_FOLDER:
            targets.append(Target("metadata folder", folder))
        elif match is not None:
            targets.append(Target("folder", folder, (match[1], int(match[2]))))
    targets = [target for target in targets if target.kind not in spared]
    scene = Scene(disk, root, dice, files, older, targets)
    while True:
        by_kind: dict[str, list[Target]] = {}
        for target in targets:
            by_kind.setdefault(target.drawn_as, []).append(target)
        choices = sorted(set(by_kind) | {"leftover"})
        if kinds is not None:
            choices = [kind for kind in choices if kind in kinds] or choices
        kind = dice.choice(choices)
        if kind == "leftover":
            target = dice.choice([target for target in targets if not target.kind.endswith("folder")])
            operation: Operation = leftover
        else:
            target = dice.choice(by_kind[kind])
            operation = dice.choice(FOLDER_OPERATIONS if kind.endswith("folder") else FILE_OPERATIONS)
        damage = operation(scene, target)
        if damage is not None:
            return damage
