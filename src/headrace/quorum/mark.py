"""`.headrace_metadata`: how far this node's metadata is known to have come, kept beside the folder that holds it.

A log whose end was cut off, an older copy of it and an emptied folder all look like a log that never got further. This
mark tells them apart: what is below it was committed, and was on this disk. Kafka ignores the file. It is
written up to a second late, so it never vouches for more than there is.
"""

import asyncio
import logging
from asyncio import TimerHandle
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from crc32c import crc32c

from headrace.storage.checkpoints import encode_uuid
from headrace.storage.files import Disk

logger = logging.getLogger("headrace.quorum")

FILE_NAME = ".headrace_metadata"
WRITE_DELAY_S = 1.0
_TITLE = "headrace-metadata 1"


class Mark(NamedTuple):
    """`end_offset` is exclusive; `epoch` is the latest that this node has known."""

    end_offset: int = 0
    epoch: int = 0


def encode_mark(mark: Mark, directory_id: bytes) -> bytes:
    text = f"{_TITLE} {encode_uuid(directory_id)} {mark.end_offset} {mark.epoch}"
    return f"{text} {crc32c(text.encode())}\n".encode()


def read_mark(disk: Disk, log_dir: str, directory_id: bytes) -> Mark:
    """The last mark of this directory. A damaged one vouches for nothing, and one of a directory that was here before,
    too."""
    path = f"{log_dir}/{FILE_NAME}"
    try:
        directory, mark = decode_mark(disk.read_bytes(path))
    except FileNotFoundError:
        return Mark()
    except ValueError as error:
        logger.warning("%s is damaged (%s), going on without it", path, error)
        return Mark()
    return mark if directory == encode_uuid(directory_id) else Mark()


def decode_mark(data: bytes) -> tuple[str, Mark]:
    """The directory's id, as it is written, and the mark. Raises ValueError."""
    text, _, crc = data.decode("ascii", "replace").strip().rpartition(" ")
    if not crc.isdigit() or int(crc) != crc32c(text.encode()):
        raise ValueError("its checksum is wrong")
    title, directory, *numbers = text.rsplit(" ", 3)
    if title != _TITLE:
        raise ValueError(f"{title!r} is no version that is known here")
    return directory, Mark(*map(int, numbers))


class Marker:
    """Writes the mark soon after what it says has changed, and at the end."""

    def __init__(
        self, disk: Disk, log_dir: str, directory_id: bytes, now: Callable[[], Mark],
        run_in_thread: Callable[[Callable[[], Any]], Awaitable[Any]],
    ) -> None:  # fmt: skip
        self._disk = disk
        self._path = f"{log_dir}/{FILE_NAME}"
        self._directory_id = directory_id
        self._now = now
        self._run_in_thread = run_in_thread
        self._written = read_mark(disk, log_dir, directory_id)
        self._timer: TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    def changed(self, *_: object) -> None:
        """Something was committed, or an epoch began."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(WRITE_DELAY_S, self._start)

    def _start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._write(), name="metadata mark")

    async def _write(self) -> None:
        self._timer = None
        mark = self._now()
        if mark == self._written:
            return
        data = encode_mark(mark, self._directory_id)
        try:
            await self._run_in_thread(lambda: self._disk.replace_bytes(self._path, data))
            self._written = mark
        except OSError as error:  # it vouches for less then
            logger.warning("cannot write %s: %s", self._path, error)

    async def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            await self._task
        await self._write()
