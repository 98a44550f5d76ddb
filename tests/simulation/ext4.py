"""A file system of its own on a loop device, whose power can be cut without touching the machine's."""

import fcntl
import os
import shutil
import struct
import subprocess
from pathlib import Path

FS_IOC_SHUTDOWN = 0x8004587D
NO_LOG_FLUSH = 2
"""The journal is not written first: what was not synced is gone, as when the cable is pulled."""


BALLAST = "ballast"


class Unavailable(Exception):
    """This machine does not let us mount, and why."""


class Ext4:
    """An ext4 image in `folder`, mounted at `folder / name`."""

    def __init__(self, folder: Path, megabytes: int = 256, name: str = "disk") -> None:
        self.image = folder / f"{name}.img"
        self.mount = folder / name
        if os.geteuid() != 0:
            raise Unavailable("mounting a loop device needs root")
        self.mount.mkdir()
        with self.image.open("wb") as file:
            file.truncate(megabytes << 20)
        # No blocks are kept back for root: a full disk is full for the broker, whoever runs it.
        _run("mkfs.ext4", "-q", "-F", "-m", "0", str(self.image))
        self.mounted = False
        self.plug_in()

    def plug_in(self) -> None:
        """Mount, replaying the journal as after a reboot."""
        _run("mount", "-o", "loop", str(self.image), str(self.mount))
        self.mounted = True

    def cut_power(self) -> None:
        """From now on every access fails, and nothing more reaches the image."""
        fd = os.open(self.mount, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.ioctl(fd, FS_IOC_SHUTDOWN, struct.pack("I", NO_LOG_FLUSH))
        finally:
            os.close(fd)

    def unplug(self) -> None:
        if self.mounted:
            _run("umount", str(self.mount))
            self.mounted = False


def _run(*command: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    except FileNotFoundError:
        raise Unavailable(f"{command[0]} is not installed") from None
    if done.returncode:
        raise Unavailable(f"{' '.join(command)}: {done.stderr.strip()}")


def fill(mount: Path, leaving_bytes: int = 0) -> Path:
    """Take all the space of a file system, or all but some; returns the file that takes it."""
    ballast = mount / BALLAST
    with ballast.open("wb", buffering=0) as file:
        if leaving_bytes:
            file.write(bytes(shutil.disk_usage(mount).free - leaving_bytes))
            return ballast
        for size in (1 << 20, 1 << 12, 1):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                continue
    return ballast


def make_room(mount: Path) -> None:
    """Give back what `fill` took, for good: an unlink that only the journal's memory knows, a power cut takes back."""
    (mount / BALLAST).unlink(missing_ok=True)
    fd = os.open(mount, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
