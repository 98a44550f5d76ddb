"""Compiles decoders: `decode(buf, pos, end) -> (object, pos)` for one message and version.

Why it is safe without checking every byte: `pos` only grows; each length and count is compared with what remains
before anything is made of it; and a fixed field that runs past `end` is caught by the last comparison, at worst
having read a neighbour's bytes in the same buffer and thrown them away.
"""

from collections.abc import Callable
from struct import Struct
from typing import Any

from headrace.protocol.compiler import ARRAYS, Layout, Source, default_expression, has_records, is_fixed
from headrace.protocol.primitives import (
    ARRAY_STRUCTS_CACHED,
    DECODE_FAULTS,
    STRING_LENGTH_MAX,
    ProtocolError,
    long_uvarint,
    read_tags,
)
from headrace.protocol.schema import FIXED, FIXED_SIZE, Field, StructSpec

Decode = Callable[[Any, int, int], tuple[Any, int]]
ENV = {
    "ProtocolError": ProtocolError,
    "DECODE_FAULTS": DECODE_FAULTS,
    "long_uvarint": long_uvarint,
    "read_tags": read_tags,
}


def compile_decoder(root: StructSpec, version: int, flexible: bool) -> Decode:
    source = Source(root.name, version, ENV)
    writer = _DecoderWriter(source, Layout(version, flexible))
    source(0, "def decode(b, pos, end):")
    source(1, "try:")
    if has_records(root):
        source(2, "view = memoryview(b)")
    writer.struct(2, root, "r")
    source(2, "if pos > end:")
    source(3, writer.fail("the message is cut short"))
    source(2, "return r, pos")
    source(1, "except DECODE_FAULTS as e:")
    source(2, f"raise ProtocolError(f'{root.name} v{version}: {{e}}') from None")
    return source.function("decode")


class _DecoderWriter:
    def __init__(self, source: Source, layout: Layout) -> None:
        self.out = source
        self.layout = layout
        self.prefix = f"{source.message} v{source.version}"

    def fail(self, text: str) -> str:
        return f"raise ProtocolError({f'{self.prefix}: {text}'!r})"

    def struct(self, i: int, spec: StructSpec, target: str) -> None:
        """Decode a struct into the variable `target`."""
        values: dict[str, str] = {}
        self.fields(i, self.layout.plain(spec), values)
        tags = self.tag_section(i, spec, values) if self.layout.flexible else None
        present = [f.name in values for f in spec.fields]
        last = max((n for n, here in enumerate(present) if here), default=-1)
        arguments = [
            values[f.name] if f.name in values else default_expression(self.out, f) for f in spec.fields[: last + 1]
        ]
        self.out(i, f"{target} = {self.out.const('C', spec.cls)}({', '.join(arguments)})")
        if tags is not None:
            count, unknown = tags
            self.out(i, f"if {count}: {target}.unknown_tags = {unknown}")

    def fields(self, i: int, fields: list[Field], values: dict[str, str]) -> None:
        """Decode untagged fields in order, reading runs of fixed sizes, and a length after one, in one go."""
        n = 0
        while n < len(fields):
            codes, names = "", []
            while n < len(fields) and is_fixed(fields[n]):
                field = fields[n]
                codes += FIXED[field.element]
                values[field.name] = self.out.name("v")
                names.append(values[field.name])
                n += 1
            length = None
            following = fields[n] if n < len(fields) else None
            if following is not None and not self.layout.compact(following) and self.has_length(following):
                length = self.out.name("n")
                codes += "h" if following.element == "string" and not following.is_array else "i"
                names.append(length)
            if codes:
                self.unpack(i, codes, names)
            if following is not None:
                values[following.name] = self.out.name("v")
                self.value(i, following, values[following.name], length)
                n += 1

    @staticmethod
    def has_length(field: Field) -> bool:
        return field.is_array or field.struct is None

    def unpack(self, i: int, codes: str, names: list[str]) -> None:
        if codes == "?":
            self.out(i, f"{names[0]} = b[pos] != 0")
            self.out(i, "pos += 1")
            return
        packer = Struct(">" + codes)
        unpack = self.out.const("S", packer.unpack_from)
        self.out(i, f"{', '.join(names)}{',' if len(names) == 1 else ''} = {unpack}(b, pos)")
        self.out(i, f"pos += {packer.size}")

    def value(self, i: int, field: Field, x: str, length: str | None) -> None:
        """Decode a field of varying size. `length` names its length or count if that is already read."""
        if is_fixed(field):
            self.unpack(i, FIXED[field.element], [x])
        elif field.is_array:
            self.array(i, field, x, length)
        elif field.struct is not None:
            self.inline_struct(i, field, x)
        else:
            self.sized(i, field, x, length, self.layout.nullable(field))

    def inline_struct(self, i: int, field: Field, x: str) -> None:
        assert field.struct is not None
        if not self.layout.nullable(field):
            self.struct(i, field.struct, x)
            return
        present = self.out.name("n")
        self.out(i, f"{present} = b[pos]")
        self.out(i, "pos += 1")
        # A signed byte for plain fields, negative being null; an unsigned varint for tagged ones, zero being null.
        null = f"{present} == 0" if field.is_tagged(self.layout.version) else f"{present} > 127"
        self.out(i, f"if {null}: {x} = None")
        self.out(i, "else:")
        self.struct(i + 1, field.struct, x)

    def uvarint(self, i: int, n: str) -> None:
        self.out(i, f"{n} = b[pos]")
        self.out(i, "pos += 1")
        self.out(i, f"if {n} > 127: {n}, pos = long_uvarint(b, pos, {n})")

    def null(self, i: int, field: Field, x: str, nullable: bool) -> None:
        if nullable:
            self.out(i, f"{x} = None")
        else:
            self.out(i, self.fail(f"{field.name} must not be null"))

    def sized(self, i: int, field: Field, x: str, length: str | None, nullable: bool) -> None:
        """A string, bytes or records."""
        start = self.out.name("p")
        if length is None:
            n = self.out.name("n")
            self.out(i, f"{n} = b[pos]")
            self.out(i, "pos += 1")
            self.out(i, f"if {n} > 127:")
            self.out(i + 1, f"{n}, pos = long_uvarint(b, pos, {n})")
            if field.element == "string":
                self.out(i + 1, f"if {n} > {STRING_LENGTH_MAX + 1}:")
                self.out(i + 2, self.fail(f"{field.name} is too long"))
            self.out(i, f"if {n}:")
            self.out(i + 1, f"{start} = pos")
            self.out(i + 1, f"pos += {n} - 1")
        else:
            self.out(i, f"if {length} >= 0:")
            self.out(i + 1, f"{start} = pos")
            self.out(i + 1, f"pos += {length}")
        self.out(i + 1, "if pos > end:")
        self.out(i + 2, self.fail(f"{field.name} runs past the end"))
        # What is not UTF-8 is read as Java reads it: a client's name in Latin-1 is no reason to turn it away.
        form = {"string": "str(b[{}:pos], 'utf-8', 'replace')", "bytes": "bytes(b[{}:pos])", "records": "view[{}:pos]"}
        self.out(i + 1, f"{x} = {form[field.element].format(start)}")
        self.out(i, "else:")
        self.null(i + 1, field, x, nullable)

    def array(self, i: int, field: Field, x: str, length: str | None) -> None:
        if length is None:
            length = self.out.name("n")
            self.uvarint(i, length)
            self.out(i, f"if {length}:")
            self.out(i + 1, f"{length} -= 1")
        else:
            self.out(i, f"if {length} >= 0:")
        i += 1
        # An element of no bytes could repeat two billion times; the tables have none, and none would pass.
        least = max(1, self.layout.min_size(field))
        self.out(i, f"if {length} * {least} > end - pos:" if least > 1 else f"if {length} > end - pos:")
        self.out(i + 1, self.fail(f"{field.name} has more elements than bytes follow"))
        if field.element in FIXED:
            arrays = ARRAYS[field.element]
            short = self.out.const("U", arrays.unpacks)
            long = self.out.const("L", arrays.unpack_long)
            self.out(i, f"if {length} < {ARRAY_STRUCTS_CACHED}: {x} = list({short}[{length}](b, pos))")
            self.out(i, f"else: {x} = list({long}({length}, b, pos))")
            self.out(i, f"pos += {length} * {FIXED_SIZE[field.element]}")
        else:
            item = self.out.name("o")
            self.out(i, f"{x} = []")
            self.out(i, f"for _ in range({length}):")
            if field.struct is not None:
                self.struct(i + 1, field.struct, item)
            else:
                self.element(i + 1, field, item)
            self.out(i + 1, f"{x}.append({item})")
        self.out(i - 1, "else:")
        self.null(i, field, x, self.layout.nullable(field))

    def element(self, i: int, field: Field, item: str) -> None:
        """A string or bytes as an array's element; those are never null."""
        length = None
        if not self.layout.compact(field):
            length = self.out.name("n")
            self.unpack(i, "h" if field.element == "string" else "i", [length])
        self.sized(i, field, item, length, nullable=False)

    def tag_section(self, i: int, spec: StructSpec, values: dict[str, str]) -> tuple[str, str]:
        """Decode tagged fields; returns the variables of their count and of the unknown ones."""
        known = self.layout.tagged(spec)
        for field in known:
            values[field.name] = self.out.name("v")
            self.out(i, f"{values[field.name]} = {default_expression(self.out, field)}")
        count, unknown = self.out.name("t"), self.out.name("u")
        self.out(i, f"{count} = b[pos]")
        self.out(i, "pos += 1")
        if not known:
            self.out(i, f"if {count}: {unknown}, pos = read_tags(b, pos, end, {count})")
            return count, unknown
        tag, size, stop = self.out.name("k"), self.out.name("s"), self.out.name("e")
        self.out(i, f"if {count}:")
        self.out(i + 1, f"{unknown} = None")
        self.out(i + 1, f"if {count} > 127: {count}, pos = long_uvarint(b, pos, {count})")
        self.out(i + 1, f"if {count} * 2 > end - pos:")
        self.out(i + 2, self.fail("more tagged fields than bytes follow"))
        self.out(i + 1, f"for _ in range({count}):")
        i += 2
        self.uvarint(i, tag)
        self.uvarint(i, size)
        self.out(i, f"{stop} = pos + {size}")
        self.out(i, f"if {stop} > end:")
        self.out(i + 1, self.fail("a tagged field runs past the end"))
        for n, field in enumerate(known):
            self.out(i, f"{'if' if n == 0 else 'elif'} {tag} == {field.tag}:")
            self.value(i + 1, field, values[field.name], None)
            self.out(i + 1, f"if pos != {stop}:")
            self.out(i + 2, self.fail(f"{field.name} is not as long as its tag says"))
        self.out(i, "else:")
        self.out(i + 1, f"if {unknown} is None: {unknown} = {{}}")
        self.out(i + 1, f"{unknown}[{tag}] = bytes(b[pos:{stop}])")
        self.out(i + 1, f"pos = {stop}")
        return count, unknown
