"""Where committed metadata lives.

`kraft` keeps it in a log of its own, replicated by consensus among the controllers; an ensemble of ZooKeeper may do the
same later. Both offer what `Quorum` says: decisions are made by `headrace.metadata` on `tip`, which includes what is
written but not yet committed; everybody else reads `image`, which never goes back.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

from headrace.metadata.delta import Delta
from headrace.metadata.image import Image
from headrace.metadata.outcome import Outcome
from headrace.metadata.records import Record

Listener = Callable[[Delta, Image], None]
"""Called on the loop for each committed batch, in commit order, with what changed and the image after it."""


class Quorum(Protocol):
    """A place that orders metadata records, keeps them safe, and tells everybody."""

    @property
    def image(self) -> Image:
        """After the last committed record."""
        ...

    @property
    def tip(self) -> Image:
        """After the last record written, committed or not: what the next decision must be based on."""
        ...

    @property
    def next_offset(self) -> int:
        """Where the next record will stand; a new broker's epoch."""
        ...

    def append(self, records: Sequence[Record]) -> Awaitable[int]:
        """Write one atomic batch; resolves to its first offset once it is committed and `image` has it."""
        ...

    def write(self, decide: Callable[[Image], Outcome[Any]]) -> Awaitable[Any]:
        """Decide on `tip`, append what was decided, answer once it is committed."""
        ...

    def listen(self, listener: Listener) -> None: ...


class QuorumError(Exception):
    """Why this node cannot take part: one line that says what is wrong and, where there is a way, what to do."""
