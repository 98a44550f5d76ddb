"""The directory tree as two copies: what the kernel shows and what is on the platter.

Creations, renames and removals wait in a journal until their folder is synced; a power cut decides which of them
had become durable. A rename is atomic, and two changes of one name never swap places.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from headrace.testing.simulator.pages import CrashMode, Pages


class FileNode:
    """An inode: lives as long as a name, a durable name or an open handle refers to it."""

    __slots__ = ("modified_ms", "pages")

    def __init__(self, modified_ms: int) -> None:
        self.pages = Pages()
        self.modified_ms = modified_ms


class FolderNode:
    __slots__ = ("durable", "entries", "modified_ms")

    def __init__(self, modified_ms: int) -> None:
        self.entries: dict[str, Node] = {}
        self.durable: dict[str, Node] = {}
        self.modified_ms = modified_ms


Node = FileNode | FolderNode


@dataclass(slots=True, frozen=True, eq=False)
class Change:
    """One atomic change of the tree: a name taken away, a name given, or both (rename)."""

    removed: tuple[FolderNode, str] | None
    added: tuple[FolderNode, str, Node] | None

    def folders(self) -> Iterator[FolderNode]:
        if self.removed is not None:
            yield self.removed[0]
        if self.added is not None:
            yield self.added[0]

    def keys(self) -> Iterator[tuple[int, str]]:
        if self.removed is not None:
            yield id(self.removed[0]), self.removed[1]
        if self.added is not None:
            yield id(self.added[0]), self.added[1]

    def moves_between_folders(self) -> bool:
        return self.removed is not None and self.added is not None and self.removed[0] is not self.added[0]

    def show(self) -> None:
        if self.removed is not None:
            del self.removed[0].entries[self.removed[1]]
        if self.added is not None:
            self.added[0].entries[self.added[1]] = self.added[2]

    def persist(self) -> None:
        if self.removed is not None:
            self.removed[0].durable.pop(self.removed[1], None)
        if self.added is not None:
            self.added[0].durable[self.added[1]] = self.added[2]


class Names:
    """The root folder and the journal of changes that no folder sync has made durable yet."""

    def __init__(self) -> None:
        self.root = FolderNode(0)
        self.journal: list[Change] = []

    def change(self, removed: tuple[FolderNode, str] | None, added: tuple[FolderNode, str, Node] | None) -> None:
        change = Change(removed, added)
        change.show()
        self.journal.append(change)

    def sync(self, folder: FolderNode) -> None:
        """Make durable what happened in one folder, with the changes elsewhere that those stand on."""
        needed = self._dependencies()
        chosen: set[int] = set()
        for index in range(len(self.journal) - 1, -1, -1):
            if index in chosen or any(touched is folder for touched in self.journal[index].folders()):
                chosen.add(index)
                chosen.update(needed[index])
        self._persist(chosen)
        self.journal = [change for index, change in enumerate(self.journal) if index not in chosen]

    def sync_all(self) -> None:
        self._persist(set(range(len(self.journal))))
        self.journal.clear()

    def crash(self, rng: Random, mode: CrashMode) -> None:
        count = len(self.journal)
        if mode is CrashMode.LOSE:
            survivors: set[int] = set()
        elif mode is CrashMode.KEEP:
            survivors = set(range(count))
        elif mode is CrashMode.JOURNALED:
            survivors = set(range(rng.randint(0, count)))
        else:
            chance = rng.choice((0.1, 0.5, 0.9))
            survivors = set()
            for index, needed in enumerate(self._dependencies()):
                if rng.random() < chance and needed <= survivors:
                    survivors.add(index)
        self._persist(survivors)
        self.journal.clear()
        for folder in self.folders(durable=True):
            folder.entries = dict(folder.durable)

    def folders(self, *, durable: bool) -> list[FolderNode]:
        found = [self.root]
        for folder in found:
            names = folder.durable if durable else folder.entries
            found.extend(node for node in names.values() if isinstance(node, FolderNode))
        return found

    def files(self) -> list[FileNode]:
        """Every file that has a name, shown or durable; each once, in an order that depends on names only."""
        found: dict[int, FileNode] = {}
        seen: dict[int, FolderNode] = {}

        def walk(folder: FolderNode) -> None:
            if id(folder) in seen:
                return
            seen[id(folder)] = folder
            for names in (folder.durable, folder.entries):
                for name in sorted(names):
                    node = names[name]
                    if isinstance(node, FileNode):
                        found.setdefault(id(node), node)
                    else:
                        walk(node)

        walk(self.root)
        # A journaled change may hold the only way to a file (renamed, then removed): it can come back.
        for change in self.journal:
            if change.added is not None:
                node = change.added[2]
                if isinstance(node, FileNode):
                    found.setdefault(id(node), node)
                else:
                    walk(node)
        return list(found.values())

    def _persist(self, chosen: set[int]) -> None:
        for index in sorted(chosen):
            self.journal[index].persist()

    def _dependencies(self) -> list[set[int]]:
        """For each change the earlier ones it cannot survive without."""
        last_of_name: dict[tuple[int, str], int] = {}
        maker_of: dict[int, int] = {}
        needed: list[set[int]] = []
        for index, change in enumerate(self.journal):
            keys = list(change.keys())
            before = {last_of_name[key] for key in keys if key in last_of_name}
            if change.moves_between_folders():
                # Else a node could leave a durable folder for one that was never made.
                before.update(maker_of[id(folder)] for folder in change.folders() if id(folder) in maker_of)
            needed.append(before)
            last_of_name.update(dict.fromkeys(keys, index))
            if change.added is not None and isinstance(change.added[2], FolderNode):
                maker_of[id(change.added[2])] = index
        return needed

    def copy(self) -> "Names":
        """The same tree and journal in new nodes."""
        twins: dict[int, Node] = {}

        def twin(node: Node) -> Node:
            known = twins.get(id(node))
            if known is not None:
                return known
            if isinstance(node, FileNode):
                file = twins[id(node)] = FileNode(node.modified_ms)
                file.pages = node.pages.copy()
                return file
            folder = FolderNode(node.modified_ms)
            twins[id(node)] = folder
            folder.entries = {name: twin(child) for name, child in node.entries.items()}
            folder.durable = {name: twin(child) for name, child in node.durable.items()}
            return folder

        def twin_folder(node: FolderNode) -> FolderNode:
            folder = twin(node)
            assert isinstance(folder, FolderNode)
            return folder

        names = Names()
        names.root = twin_folder(self.root)
        for change in self.journal:
            removed = None if change.removed is None else (twin_folder(change.removed[0]), change.removed[1])
            added = None
            if change.added is not None:
                folder, name, node = change.added
                added = (twin_folder(folder), name, twin(node))
            names.journal.append(Change(removed, added))
        return names
