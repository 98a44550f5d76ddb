"""Rules by which a simulated disk misbehaves: which operation, on which paths, how often, with which errno."""

import errno as errnos
import os
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal

Operation = Literal[
    "open", "read", "append", "write", "truncate", "sync", "list", "make_dirs", "rename", "remove", "sync_dir"
]
PathMatch = str | Callable[[str], bool]

# What changes the state of a disk, and hence where a power cut is worth placing.
MUTATIONS = frozenset({"open", "append", "write", "truncate", "sync", "make_dirs", "rename", "remove", "sync_dir"})


class PowerCut(BaseException):
    """The machine or the process is gone. Not an Exception: no handler of a dead process may go on."""


@dataclass(slots=True, eq=False)
class Fault:
    """Fails matching operations after letting `skip` of them pass, `times` times (None: for ever)."""

    operation: Operation
    errno: int
    path: PathMatch
    skip: int
    times: int | None
    short: bool
    """A failing append or write leaves a prefix in the page cache before the file is put back as it was."""
    hits: int = 0

    def strikes(self, operation: str, path: str) -> bool:
        if operation != self.operation or self.spent or not self._matches(path):
            return False
        if self.skip:
            self.skip -= 1
            return False
        self.hits += 1
        return True

    @property
    def spent(self) -> bool:
        return self.times is not None and self.hits >= self.times

    def error(self, path: str) -> OSError:
        return os_error(self.errno, path)

    def _matches(self, path: str) -> bool:
        return fnmatchcase(path, self.path) if isinstance(self.path, str) else self.path(path)


def os_error(number: int, path: str) -> OSError:
    """As the kernel gives it: Python turns ENOENT into FileNotFoundError and so on."""
    return OSError(number, os.strerror(number), path)


class Faults:
    """The rules in force on one disk, and the moment at which its power fails."""

    def __init__(self) -> None:
        self.rules: list[Fault] = []
        self.operations = 0
        """Mutations so far; `cut_after` counts from here."""
        self.cut_at: int | None = None
        self.dead = False
        self.on_cut: Callable[[], None] | None = None
        """Told at the very moment `cut_at` strikes, before anything else can happen."""

    def add(
        self,
        operation: Operation,
        errno: int = errnos.EIO,
        *,
        path: PathMatch = "*",
        skip: int = 0,
        times: int | None = 1,
        short: bool = False,
    ) -> Fault:
        fault = Fault(operation, errno, path, skip, times, short)
        self.rules.append(fault)
        return fault

    def clear(self) -> None:
        self.rules.clear()

    def check(self, operation: Operation, path: str) -> Fault | None:
        """Raises PowerCut when the machine is off; else the rule that this operation must fail by."""
        if self.dead:
            raise PowerCut(f"{operation} {path}: the power is off")
        if operation in MUTATIONS:
            if self.cut_at is not None and self.operations >= self.cut_at:
                self.dead = True
                if self.on_cut is not None:
                    self.on_cut()
                raise PowerCut(f"power cut at {operation} {path}")
            self.operations += 1
        for fault in self.rules:
            if fault.strikes(operation, path):
                return fault
        return None

    def power_on(self) -> None:
        self.dead = False
        self.cut_at = None
