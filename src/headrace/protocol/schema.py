"""Field tables: what is on the wire, as facts. Reads `tables/*.txt` into fields and builds one class per struct.

A table line is `name type versions [null V] [tag N V] [= default] [key] [ignorable] [zerocopy] [flex none]`;
indentation nests the fields of a struct under the field that carries it, `struct Name` declares a shared one.
"""

import pkgutil
from types import GenericAlias
from typing import Any

import msgspec

from headrace.protocol.primitives import Buffer

FAMILIES = (
    "produce", "fetch", "offsets", "metadata", "topics", "groups", "group_offsets", "consumer_groups",
    "share_groups", "share_state", "streams_groups", "transactions", "acls", "configs", "log_dirs", "sasl",
    "tokens", "quotas", "quorum", "controller", "telemetry", "headers", "metadata_records", "group_records",
    "transaction_records", "share_records", "remote_log_records", "data",
)  # fmt: skip

# Struct codes of the types that always take the same number of bytes.
FIXED = {
    "bool": "?",
    "int8": "b",
    "int16": "h",
    "uint16": "H",
    "int32": "i",
    "uint32": "I",
    "int64": "q",
    "float64": "d",
    "uuid": "16s",
}
FIXED_SIZE = {
    "bool": 1,
    "int8": 1,
    "int16": 2,
    "uint16": 2,
    "int32": 4,
    "uint32": 4,
    "int64": 8,
    "float64": 8,
    "uuid": 16,
}
SCALARS: dict[str, Any] = {
    "bool": bool, "int8": int, "int16": int, "uint16": int, "int32": int, "uint32": int, "int64": int,
    "float64": float, "uuid": bytes, "string": str, "bytes": bytes, "records": Buffer,
}  # fmt: skip
ZERO_UUID = bytes(16)
OPEN_END = 0x7FFF  # the upper end of a range such as `3+`, and `flexible_from` of a message that never is


class Versions(msgspec.Struct, frozen=True, gc=False):
    """An inclusive range of versions."""

    low: int
    high: int

    def __contains__(self, version: int) -> bool:
        return self.low <= version <= self.high

    @classmethod
    def parse(cls, text: str) -> "Versions":
        if text.endswith("+"):
            return cls(int(text[:-1]), OPEN_END)
        low, _, high = text.partition("-")
        return cls(int(low), int(high or low))


NO_VERSIONS = Versions(1, 0)


class Field(msgspec.Struct, gc=False):
    """One field of a struct; `element` is its type without the array brackets."""

    name: str
    element: str
    is_array: bool
    versions: Versions
    nullable: Versions = NO_VERSIONS
    tag: int | None = None
    tagged: Versions = NO_VERSIONS
    default: Any = None
    ignorable: bool = False
    is_key: bool = False
    zero_copy: bool = False
    never_flexible: bool = False
    struct: "StructSpec | None" = None

    def is_tagged(self, version: int) -> bool:
        return version in self.tagged


class StructSpec(msgspec.Struct, gc=False):
    """A struct of a message, or the message itself; `cls` is the class that holds it in every version."""

    name: str
    fields: list[Field]
    cls: Any = None


class MessageHeader(msgspec.Struct, gc=False):
    """The first line of a table. It is all that the API registry needs, so bodies are parsed on first use."""

    name: str
    kind: str
    key: int
    versions: Versions
    flexible_from: int
    listeners: tuple[str, ...]
    latest_unstable: bool
    family: str
    table: str


def parse_header(table: str, family: str) -> MessageHeader:
    """Read the first line of a message's table."""
    words = table[: table.find("\n")].split() if "\n" in table else table.split()
    name, kind = words[0], words[1]
    key, flexible_from, unstable = -1, OPEN_END, False
    listeners: tuple[str, ...] = ()
    versions = NO_VERSIONS
    i = 2
    while i < len(words):
        word = words[i]
        if word == "latest-unstable":
            unstable = True
            i += 1
            continue
        value = words[i + 1]
        if word == "key":
            key = int(value)
        elif word == "versions":
            versions = Versions.parse(value)
        elif word == "flexible":
            flexible_from = OPEN_END if value == "none" else int(value[:-1])
        elif word == "listeners":
            listeners = tuple(value.split(","))
        else:
            raise AssertionError(f"{name}: unknown word {word!r}")
        i += 2
    return MessageHeader(name, kind, key, versions, flexible_from, listeners, unstable, family, table)


def load_headers() -> dict[str, MessageHeader]:
    """Every message's header by name."""
    headers: dict[str, MessageHeader] = {}
    for family in FAMILIES:
        data = pkgutil.get_data(__package__, f"tables/{family}.txt")
        assert data is not None, family
        for table in data.decode().strip().split("\n\n"):
            header = parse_header(table, family)
            headers[header.name] = header
    return headers


def _default(field: Field, text: str | None) -> Any:
    """A nullable field is null by default only where the table says so, as in Kafka."""
    if text == "null" or (field.element == "records" and not field.is_array):
        return None
    if field.is_array:
        return []
    kind = field.element
    if kind == "bool":
        return text == "true"
    if kind == "float64":
        return float(text or 0)
    if kind in FIXED and kind != "uuid":
        return int(text or "0", 0)
    if kind == "uuid":
        return ZERO_UUID
    if kind == "string":
        return (text or "").strip('"')
    return b"" if kind == "bytes" else None


def parse_field(line: str) -> Field:
    words = line.split()
    is_array = words[1].startswith("[]")
    field = Field(words[0], words[1].removeprefix("[]"), is_array, Versions.parse(words[2]))
    default = None
    i = 3
    while i < len(words):
        word = words[i]
        if word == "null":
            field.nullable = Versions.parse(words[i + 1])
            i += 2
        elif word == "tag":
            field.tag, field.tagged = int(words[i + 1]), Versions.parse(words[i + 2])
            i += 3
        elif word == "=":
            default = words[i + 1]
            i += 2
        elif word == "flex":
            field.never_flexible = words[i + 1] == "none"
            i += 2
        else:
            field.is_key |= word == "key"
            field.ignorable |= word == "ignorable"
            field.zero_copy |= word == "zerocopy"
            assert word in ("key", "ignorable", "zerocopy"), line
            i += 1
    field.default = _default(field, default)
    if default == "null":
        assert field.nullable != NO_VERSIONS, line
    elif field.element not in SCALARS and not field.is_array:
        field.default = msgspec.UNSET  # a fresh struct each time; see `default_of`
    return field


def parse_body(header: MessageHeader) -> tuple[StructSpec, dict[str, StructSpec]]:
    """The message's struct and every struct inside it by name; Kafka keeps those names unique per message."""
    root = StructSpec(header.name, [])
    structs: dict[str, StructSpec] = {}
    stack: list[tuple[int, StructSpec]] = [(0, root)]
    carriers: list[Field] = []
    for line in header.table.split("\n")[1:]:
        indent = len(line) - len(line.lstrip())
        while stack[-1][0] >= indent:
            stack.pop()
        words = line.split()
        if words[0] == "struct":
            assert words[1] not in structs, f"{header.name}: {words[1]} twice"
            structs[words[1]] = StructSpec(words[1], [])
            stack.append((indent, structs[words[1]]))
            continue
        field = parse_field(line)
        parent = stack[-1][1]
        if parent is not root and parent.name not in structs:
            structs[parent.name] = parent
        parent.fields.append(field)
        if field.element not in SCALARS:
            carriers.append(field)
            stack.append((indent, StructSpec(field.element, [])))
    for field in carriers:
        field.struct = structs[field.element]
    return root, structs


def python_type(field: Field) -> Any:
    """The annotation of a field in its class."""
    kind: Any = field.struct.cls if field.struct is not None else SCALARS[field.element]
    if field.is_array:
        kind = GenericAlias(list, (kind,))
    # Records start out null whatever the table says, since a slice is always set by hand.
    return kind | None if field.nullable != NO_VERSIONS or field.element == "records" else kind


def default_of(field: Field) -> Any:
    """The value Kafka's generated class starts with."""
    if field.default is msgspec.UNSET:
        assert field.struct is not None
        return field.struct.cls()
    return [] if field.default == [] else field.default


def build_classes(header: MessageHeader, root: StructSpec, structs: dict[str, StructSpec]) -> None:
    """Make one class per struct, innermost first; those of nested structs become attributes of the message's."""
    flexible = header.flexible_from <= header.versions.high
    done: set[str] = set()

    def build(spec: StructSpec, namespace: dict[str, Any]) -> None:
        for field in spec.fields:
            inner = field.struct
            if inner is not None and inner.name not in done:
                done.add(inner.name)
                build(inner, {"__qualname__": f"{header.name}.{inner.name}"})
        definition: list[Any] = []
        for field in spec.fields:
            if field.default is msgspec.UNSET:
                assert field.struct is not None
                default = msgspec.field(default_factory=field.struct.cls)
            elif field.default == []:
                default = msgspec.field(default_factory=list)
            else:
                default = msgspec.field(default=field.default)
            definition.append((field.name, python_type(field), default))
        if flexible:
            definition.append(("unknown_tags", dict[int, bytes] | None, None))
        if spec is root:
            namespace = {name: inner.cls for name, inner in structs.items()}
        spec.cls = msgspec.defstruct(
            spec.name, definition, gc=False, namespace=namespace, module="headrace.protocol.messages"
        )

    build(root, {})
