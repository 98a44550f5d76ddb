"""Plain JSON as Avro wants it: times, decimals, bytes and UUIDs of the texts that are printed for them."""

import base64
import binascii
import datetime
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from typing import Any
from uuid import UUID

from fastavro.validation import validate

_LOGICAL: dict[str, Callable[[str], Any]] = {
    "timestamp-millis": datetime.datetime.fromisoformat,
    "timestamp-micros": datetime.datetime.fromisoformat,
    "local-timestamp-millis": datetime.datetime.fromisoformat,
    "local-timestamp-micros": datetime.datetime.fromisoformat,
    "date": datetime.date.fromisoformat,
    "time-millis": datetime.time.fromisoformat,
    "time-micros": datetime.time.fromisoformat,
    "decimal": Decimal,
    "uuid": UUID,
}


class FromJson:
    """Values of one schema, as fastavro has parsed it."""

    def __init__(self, parsed: Any) -> None:
        self._parsed = parsed
        self._named: dict[str, Any] = dict(parsed.get("__named_schemas", {})) if isinstance(parsed, dict) else {}
        self._collect(parsed)

    def __call__(self, value: Any) -> Any:
        return self._made(value, self._parsed)

    def _collect(self, node: Any) -> None:
        """Types that have a name, wherever they are defined."""
        if isinstance(node, list):
            for one in node:
                self._collect(one)
        if not isinstance(node, dict):
            return
        if "name" in node and node.get("type") in ("record", "error", "enum", "fixed"):
            self._named.setdefault(node["name"], node)
        for field in node.get("fields", ()):
            self._collect(field["type"])
        for key in ("items", "values", "type"):
            if isinstance(node.get(key), dict | list):
                self._collect(node[key])

    def _made(self, value: Any, node: Any) -> Any:
        if isinstance(node, list):
            return self._of_union(value, node)
        if isinstance(node, str):
            node = self._named.get(node, {"type": node})
        kind = node["type"]
        if isinstance(kind, dict | list):
            return self._made(value, kind)
        if isinstance(value, dict) and kind in ("record", "error"):
            fields = {field["name"]: field["type"] for field in node["fields"]}
            return {name: self._made(one, fields[name]) if name in fields else one for name, one in value.items()}
        if isinstance(value, dict) and kind == "map":
            return {name: self._made(one, node["values"]) for name, one in value.items()}
        if isinstance(value, list) and kind == "array":
            return [self._made(one, node["items"]) for one in value]
        return _scalar(value, kind, node.get("logicalType")) if isinstance(value, str) else value

    def _of_union(self, value: Any, branches: list[Any]) -> Any:
        for branch in branches:
            try:
                made = self._made(value, branch)
                if validate(made, self._named.get(branch, branch) if isinstance(branch, str) else branch, None, False):
                    return made
            except (ValueError, TypeError, LookupError):
                continue
        return value


def _scalar(text: str, kind: str, logical: str | None) -> Any:
    try:
        if logical in _LOGICAL:
            return _LOGICAL[logical](text)
        if kind in ("bytes", "fixed"):
            return base64.b64decode(text, validate=True)
    except (ValueError, InvalidOperation, binascii.Error):
        raise ValueError(f"{text!r} is no {logical or kind}") from None
    return text
