"""Objects to plain dicts and back: dataclasses, pydantic models and msgspec's Structs, for formats that know dicts."""

from collections.abc import Callable
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec

KEPT = (bytes, bytearray, datetime, date, time, UUID, Decimal)
"""What formats know themselves."""


def to_plain(value: Any) -> Any:
    """A dict of an object; what is plain already stays the same object."""
    if type(value) is dict:
        return value
    dump = getattr(value, "model_dump", None)
    if callable(dump):
        return dump()
    return msgspec.to_builtins(value, builtin_types=KEPT)


def into(kind: Any) -> Callable[[Any], Any] | None:
    """What makes a dict into this type; None where it stays as it is."""
    if kind in (None, Any, dict):
        return None
    validate = getattr(kind, "model_validate", None)
    if callable(validate):
        return validate  # type: ignore[no-any-return]
    return lambda value: msgspec.convert(value, kind, builtin_types=KEPT)
