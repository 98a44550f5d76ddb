"""Turns a message's fields into straight-line Python for one version: what varies by version is decided here, once.

Shared by `decoders` and `encoders`: the source being written, its constants, and what is known about a field.
"""

from collections.abc import Callable
from typing import Any

import msgspec

from headrace.protocol.primitives import ArrayStructs
from headrace.protocol.schema import FIXED, FIXED_SIZE, Field, StructSpec, default_of

ARRAYS = {kind: ArrayStructs(code) for kind, code in FIXED.items()}


class Source:
    """Lines of one generated function, and the names that it may use."""

    def __init__(self, message: str, version: int, env: dict[str, Any]) -> None:
        self.message = message
        self.version = version
        self.env = dict(env)
        self.lines: list[str] = []
        self._names = 0

    def __call__(self, indent: int, line: str) -> None:
        self.lines.append(" " * indent + line)

    def name(self, prefix: str) -> str:
        self._names += 1
        return f"{prefix}{self._names}"

    def const(self, prefix: str, value: Any) -> str:
        name = self.name(prefix)
        self.env[name] = value
        return name

    def function(self, name: str) -> Callable[..., Any]:
        source = "\n".join(self.lines)
        exec(compile(source, f"<headrace {self.message} v{self.version} {name}>", "exec"), self.env)
        function: Callable[..., Any] = self.env[name]
        return function


class Layout:
    """The fields of structs as they stand in one version."""

    def __init__(self, version: int, flexible: bool) -> None:
        self.version = version
        self.flexible = flexible

    def plain(self, spec: StructSpec) -> list[Field]:
        return [f for f in spec.fields if self.version in f.versions and not f.is_tagged(self.version)]

    def tagged(self, spec: StructSpec) -> list[Field]:
        fields = [f for f in spec.fields if self.version in f.versions and f.is_tagged(self.version)]
        return sorted(fields, key=lambda f: f.tag or 0)

    def absent(self, spec: StructSpec) -> list[Field]:
        return [f for f in spec.fields if self.version not in f.versions]

    def compact(self, field: Field) -> bool:
        return self.flexible and not field.never_flexible

    def nullable(self, field: Field) -> bool:
        return self.version in field.nullable

    def min_size(self, field: Field) -> int:
        """The fewest bytes that one element of an array, or a field that is none, can take."""
        if field.struct is None:
            return FIXED_SIZE.get(field.element) or (1 if self.flexible else 2 if field.element == "string" else 4)
        return self.struct_min_size(field.struct)

    def struct_min_size(self, spec: StructSpec) -> int:
        size = 1 if self.flexible else 0
        for field in self.plain(spec):
            if field.is_array:
                size += 1 if self.flexible else 4
            elif field.struct is not None and self.nullable(field):
                size += 1
            else:
                size += self.min_size(field)
        return size


def is_fixed(field: Field) -> bool:
    return not field.is_array and field.element in FIXED


def has_records(spec: StructSpec) -> bool:
    return any(f.element == "records" or (f.struct is not None and has_records(f.struct)) for f in spec.fields)


def default_expression(source: Source, field: Field) -> str:
    """Source text for a fresh default value."""
    if field.default is msgspec.UNSET:
        assert field.struct is not None
        return source.const("C", field.struct.cls) + "()"
    return repr(field.default)


def default_constant(source: Source, field: Field) -> str:
    """Source text for a default value that is only compared with."""
    if field.default is msgspec.UNSET:
        return source.const("D", default_of(field))
    return repr(field.default)
