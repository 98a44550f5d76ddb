"""Writes `messages.pyi` from the tables: `python -m headrace.protocol.stubs > src/headrace/protocol/messages.pyi`."""

import sys

from headrace.protocol.codec import CODECS, Codec
from headrace.protocol.schema import NO_VERSIONS, Field, StructSpec

HEAD = '''"""Generated from the tables by `python -m headrace.protocol.stubs`; do not edit."""

import msgspec

Records = bytes | bytearray | memoryview
'''
NAMES = {
    "bool": "bool",
    "float64": "float",
    "uuid": "bytes",
    "string": "str",
    "bytes": "bytes",
    "records": "Records",
}


def annotation(message: str, field: Field) -> str:
    name = f"{message}.{field.element}" if field.struct is not None else NAMES.get(field.element, "int")
    if field.is_array:
        name = f"list[{name}]"
    return f"{name} | None" if field.nullable != NO_VERSIONS or field.element == "records" else name


def default_text(field: Field) -> str:
    if field.element == "string" and field.default == "":
        return '""'
    simple = field.default is None or isinstance(field.default, int | float)
    return repr(field.default) if simple else "..."


def class_lines(message: str, spec: StructSpec, indent: str, has_tags: bool, inner: list[str]) -> list[str]:
    lines = [f"{indent}class {spec.name}(msgspec.Struct):", *inner]
    lines += [
        f"{indent}    {field.name}: {annotation(message, field)} = {default_text(field)}" for field in spec.fields
    ]
    if has_tags:
        lines.append(f"{indent}    unknown_tags: dict[int, bytes] | None = None")
    if not spec.fields and not inner and not has_tags:
        lines.append(f"{indent}    pass")
    return lines


def message_lines(codec: Codec) -> list[str]:
    has_tags = codec.flexible_from <= codec.max_version
    inner: list[str] = []
    for spec in codec.structs.values():
        inner += [*class_lines(codec.name, spec, "    ", has_tags, []), ""]
    return class_lines(codec.name, codec.root, "", has_tags, inner)


def stub_text() -> str:
    blocks = ["\n".join(message_lines(codec)) for codec in CODECS.values()]
    return HEAD + "\n" + "\n\n".join(blocks) + "\n"


if __name__ == "__main__":
    sys.stdout.write(stub_text())
