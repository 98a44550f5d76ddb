"""Compiles encoders: `encode(object, write)` for one message and version, where `write` is a list's append.

Fixed fields wait until something of another kind follows and are packed in one go; records are passed on as they are.
"""

from collections.abc import Callable
from struct import Struct
from typing import Any

from headrace.protocol.compiler import ARRAYS, Layout, Source, default_constant, is_fixed
from headrace.protocol.primitives import (
    ARRAY_STRUCTS_CACHED,
    ENCODE_FAULTS,
    STRING_LENGTH_MAX,
    UVARINTS,
    Encoded,
    ProtocolError,
    encode_uvarint,
    write_tags,
)
from headrace.protocol.schema import FIXED, Field, StructSpec

Encode = Callable[[Any, Callable[[Any], object]], None]
ENV = {
    "ProtocolError": ProtocolError,
    "ENCODE_FAULTS": ENCODE_FAULTS,
    "Encoded": Encoded,
    "UV": UVARINTS,
    "encode_uvarint": encode_uvarint,
    "write_tags": write_tags,
}


def compile_encoder(root: StructSpec, version: int, flexible: bool, has_tags: bool) -> Encode:
    source = Source(root.name, version, ENV)
    writer = _EncoderWriter(source, Layout(version, flexible), has_tags)
    source(0, "def encode(r, w):")
    source(1, "try:")
    writer.struct(2, root, "r")
    writer.flush(2)
    source(2, "pass")
    source(1, "except ENCODE_FAULTS as e:")
    source(2, f"raise ProtocolError(f'{root.name} v{version} cannot be encoded: {{e}}') from e")
    return source.function("encode")


class _EncoderWriter:
    def __init__(self, source: Source, layout: Layout, has_tags: bool) -> None:
        self.out = source
        self.layout = layout
        self.has_tags = has_tags  # whether the classes have `unknown_tags`, even in versions without them
        self.prefix = f"{source.message} v{source.version}"
        self.write = "w"
        self.codes = ""
        self.values: list[str] = []

    def fail(self, text: str) -> str:
        return f"raise ProtocolError({f'{self.prefix}: {text}'!r})"

    def put(self, code: str, value: str) -> None:
        self.codes += code
        self.values.append(value)

    def packed(self, padding: str = "") -> str | None:
        """An expression for the fixed fields that wait, and for `padding` zero bytes after them."""
        codes = self.codes + padding
        if not codes:
            return None
        if not self.values:
            return repr(bytes(len(codes)))
        return f"{self.out.const('P', Struct('>' + codes).pack)}({', '.join(self.values)})"

    def flush(self, i: int) -> None:
        expression = self.packed()
        if expression is not None:
            self.out(i, f"{self.write}({expression})")
        self.codes, self.values = "", []

    def struct(self, i: int, spec: StructSpec, o: str) -> None:
        """Encode the struct in variable `o`. Fixed fields may still wait when this returns."""
        for field in self.layout.absent(spec):
            if not field.ignorable:
                self.out(i, f"if {o}.{field.name} != {default_constant(self.out, field)}:")
                self.out(i + 1, self.fail(f"{field.name} is set, and this version does not have it"))
        for field in self.layout.plain(spec):
            if is_fixed(field):
                self.put(FIXED[field.element], f"{o}.{field.name}")
            else:
                x = self.out.name("x")
                self.out(i, f"{x} = {o}.{field.name}")
                self.value(i, field, x)
        if self.layout.flexible:
            self.tag_section(i, spec, o)
        elif self.has_tags:
            self.out(i, f"if {o}.unknown_tags:")
            self.out(i + 1, self.fail("tagged fields are set, and this version does not have them"))

    def value(self, i: int, field: Field, x: str) -> None:
        if is_fixed(field):
            self.put(FIXED[field.element], x)
        elif field.is_array:
            self.array(i, field, x)
        elif field.struct is not None:
            self.inline_struct(i, field, x)
        else:
            self.sized(i, field, x, self.layout.nullable(field))

    def inline_struct(self, i: int, field: Field, x: str) -> None:
        assert field.struct is not None
        if not self.layout.nullable(field):
            self.struct(i, field.struct, x)
            return
        null = 0 if field.is_tagged(self.layout.version) else -1
        self.put("b", f"{null} if {x} is None else 1")
        self.flush(i)
        self.out(i, f"if {x} is not None:")
        self.struct(i + 1, field.struct, x)
        self.flush(i + 1)
        self.out(i + 1, "pass")

    def compact_length(self, i: int, n: str) -> None:
        self.out(i, f"{self.write}(UV[{n}] if {n} < {len(UVARINTS)} else encode_uvarint({n}))")

    def sized(self, i: int, field: Field, x: str, nullable: bool) -> None:
        """A string, bytes or records."""
        n = self.out.name("n")
        is_string = field.element == "string"
        size = self.out.name("x") if is_string else x
        compact = self.layout.compact(field)
        if compact:
            self.flush(i)
            if nullable:
                self.out(i, f"if {x} is None: {self.write}({bytes(1)!r})")
                self.out(i, "else:")
                i += 1
            self.measure(i, field, x, size, n, "+ 1")
            self.compact_length(i, n)
            self.out(i, f"{self.write}({size})")
            return
        j = i
        if nullable:
            self.out(i, f"if {x} is None: {n} = -1; {size} = b''")
            self.out(i, "else:")
            j += 1
        self.measure(j, field, x, size, n, "")
        self.put("h" if is_string else "i", n)
        self.flush(i)
        self.out(i, f"{self.write}({size})")

    def measure(self, i: int, field: Field, x: str, size: str, n: str, plus: str) -> None:
        """Set `size` to the bytes to write and `n` to their number, plus one where that is what is written."""
        if field.element == "string":
            self.out(i, f"{size} = {x}.encode()")
        self.out(i, f"{n} = len({size}) {plus}")
        if field.element == "string":
            self.out(i, f"if {n} > {STRING_LENGTH_MAX + len(plus) // 3}:")
            self.out(i + 1, self.fail(f"{field.name} is too long"))

    def array(self, i: int, field: Field, x: str) -> None:
        n = self.out.name("n")
        nullable = self.layout.nullable(field)
        if self.layout.compact(field):
            self.flush(i)
            if nullable:
                self.out(i, f"if {x} is None: {self.write}({bytes(1)!r})")
                self.out(i, "else:")
                i += 1
            self.out(i, f"{n} = len({x}) + 1")
            self.compact_length(i, n)
            self.elements(i, field, x, f"{n} - 1")
            return
        self.out(i, f"{n} = -1 if {x} is None else len({x})" if nullable else f"{n} = len({x})")
        self.put("i", n)
        self.flush(i)
        if nullable:
            self.out(i, f"if {n} > 0:")
            i += 1
        self.elements(i, field, x, n)

    def elements(self, i: int, field: Field, x: str, n: str) -> None:
        if field.element in FIXED:
            arrays = ARRAYS[field.element]
            short = self.out.const("U", arrays.packs)
            long = self.out.const("L", arrays.pack_long)
            count = self.out.name("n")
            self.out(i, f"{count} = {n}")
            self.out(i, f"if {count} < {ARRAY_STRUCTS_CACHED}: {self.write}({short}[{count}](*{x}))")
            self.out(i, f"else: {self.write}({long}({count}, {x}))")
            return
        item = self.out.name("o")
        if field.struct is not None:
            self.out(i, f"if {x}.__class__ is Encoded:")
            self.out(i + 1, f"for {item} in {x}: {self.write}({item})")
            self.out(i, "else:")
            i += 1
        self.out(i, f"for {item} in {x}:")
        if field.struct is not None:
            self.struct(i + 1, field.struct, item)
        else:
            self.sized(i + 1, field, item, nullable=False)
        self.flush(i + 1)
        self.out(i + 1, "pass")

    def tag_section(self, i: int, spec: StructSpec, o: str) -> None:
        known = self.layout.tagged(spec)
        tags = f"{o}.unknown_tags"
        if known:
            tags = self.out.name("t")
            self.out(i, f"{tags} = {o}.unknown_tags")
            waiting = self.codes, self.values
            for field in known:
                self.codes, self.values = "", []
                self.known_tag(i, field, o, tags)
            self.codes, self.values = waiting
        # No tags, nearly always: the zero that says so is packed with the fields before it.
        self.out(i, f"if not {tags}: {self.write}({self.packed('x')})")
        self.out(i, "else:")
        self.flush(i + 1)
        self.out(i + 1, f"write_tags({self.write}, {tags})")

    def known_tag(self, i: int, field: Field, o: str, tags: str) -> None:
        """Add a tagged field to `tags` if it is not its default, which is never written."""
        x, chunks, write = self.out.name("x"), self.out.name("c"), self.out.name("w")
        self.out(i, f"{x} = {o}.{field.name}")
        self.out(i, f"if {x} != {default_constant(self.out, field)}:")
        self.out(i + 1, f"{chunks} = []")
        self.out(i + 1, f"{write} = {chunks}.append")
        outer, self.write = self.write, write
        self.value(i + 1, field, x)
        self.flush(i + 1)
        self.write = outer
        self.out(i + 1, f"{tags} = {{**({tags} or {{}}), {field.tag}: b''.join({chunks})}}")
