"""Requests that a client sends again and again, but for a few numbers: templates with holes.

A template is made of a request that was decoded in full. Later requests are compared with it, and only its holes are
read; what they hold is exactly what decoding would give. Beside it stands the template of the usual answer.
"""

from typing import Any, Protocol


class RequestTemplate(Protocol):
    """What the requests of one kind have in common."""

    @property
    def version(self) -> int: ...

    @property
    def prefix(self) -> bytes:
        """What stands in their frames from PREFIX_AT on, up to the first hole."""
        ...

    def match(self, buf: bytearray, pos: int, end: int) -> Any | None:
        """What the holes of the frame `buf[pos:end]` hold; None: it is no such request.

        To be asked only of a frame of this version that has the prefix.
        """
        ...
