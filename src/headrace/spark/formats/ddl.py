"""Spark's DDL for types, `id BIGINT NOT NULL, tags ARRAY<STRING>`, read without a JVM.

PySpark asks the JVM to read it, which the processes that plan and run data sources have no way to.
"""

import re

from pyspark.sql import types as T

from headrace.spark.plain_errors import UserError

NAMES: dict[str, T.DataType] = {
    "boolean": T.BooleanType(),
    "tinyint": T.ByteType(),
    "byte": T.ByteType(),
    "smallint": T.ShortType(),
    "short": T.ShortType(),
    "int": T.IntegerType(),
    "integer": T.IntegerType(),
    "bigint": T.LongType(),
    "long": T.LongType(),
    "float": T.FloatType(),
    "real": T.FloatType(),
    "double": T.DoubleType(),
    "string": T.StringType(),
    "binary": T.BinaryType(),
    "date": T.DateType(),
    "timestamp": T.TimestampType(),
    "timestamp_ltz": T.TimestampType(),
    "timestamp_ntz": T.TimestampNTZType(),
}
_TOKEN = re.compile(r"\s*(`(?:[^`]|``)+`|'(?:[^'\\]|\\.)*'|[A-Za-z0-9_]+|[<>(),:])")


class DdlError(UserError, ValueError):
    """What is wrong, and where."""


class _Reader:
    def __init__(self, text: str) -> None:
        self.tokens: list[str] = []
        pos, text = 0, text.rstrip()
        while pos < len(text):
            found = _TOKEN.match(text, pos)
            if found is None:
                raise DdlError(f"cannot read {text[pos:].strip()[:20]!r}")
            self.tokens.append(found[1])
            pos = found.end()
        self.at = 0

    @property
    def next(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def take(self) -> str:
        token = self.next
        if not token:
            raise DdlError("it ends in the middle")
        self.at += 1
        return token

    def expect(self, token: str) -> None:
        found = self.take()
        if found != token:
            raise DdlError(f"{token!r} is expected where {found!r} stands")

    def skip(self, *words: str) -> bool:
        """Whether these words come next; if so they are passed over."""
        ahead = [token.lower() for token in self.tokens[self.at : self.at + len(words)]]
        if ahead != list(words):
            return False
        self.at += len(words)
        return True


def parse_ddl(text: str) -> T.StructType:
    """The fields of a row. Raises DdlError."""
    reader = _Reader(text)
    fields = _fields(reader, end="")
    if not fields:
        raise DdlError("it names no field")
    return T.StructType(fields)


def _fields(reader: _Reader, end: str) -> list[T.StructField]:
    fields: list[T.StructField] = []
    while reader.next != end:
        if fields:
            reader.expect(",")
        name = reader.take()
        if name[0] == "`":
            name = name[1:-1].replace("``", "`")
        elif not (name[0].isalnum() or name[0] == "_"):
            raise DdlError(f"a field's name is expected where {name!r} stands")
        reader.skip(":")
        kind = _type(reader)
        nullable = not reader.skip("not", "null")
        if reader.skip("comment"):
            reader.take()
        if any(field.name == name for field in fields):
            raise DdlError(f"there are two fields {name!r}")
        fields.append(T.StructField(name, kind, nullable))
    return fields


def _type(reader: _Reader) -> T.DataType:
    word = reader.take().lower()
    if word == "array":
        reader.expect("<")
        element = _type(reader)
        reader.expect(">")
        return T.ArrayType(element)
    if word == "map":
        reader.expect("<")
        key = _type(reader)
        reader.expect(",")
        value = _type(reader)
        reader.expect(">")
        return T.MapType(key, value)
    if word == "struct":
        reader.expect("<")
        fields = _fields(reader, end=">")
        reader.expect(">")
        return T.StructType(fields)
    if word in ("decimal", "dec", "numeric"):
        return _decimal(reader)
    kind = NAMES.get(word)
    if kind is None:
        raise DdlError(f"there is no type {word!r}")
    return kind


def _decimal(reader: _Reader) -> T.DecimalType:
    if not reader.skip("("):
        return T.DecimalType(10, 0)
    numbers = [reader.take()]
    if reader.skip(","):
        numbers.append(reader.take())
    reader.expect(")")
    if not all(number.isdecimal() for number in numbers) or not 1 <= int(numbers[0]) <= 38:
        raise DdlError(f"decimal({','.join(numbers)}) is no type: precision is 1 to 38")
    return T.DecimalType(*map(int, numbers))
