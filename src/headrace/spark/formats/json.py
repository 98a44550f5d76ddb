"""JSON values: decoded by msgspec along a schema, so that a wrong type is named with its path, and encoded by it.

The schema is Spark's DDL (`id BIGINT, name STRING`) or a JSON Schema, which is also what registries keep. Fields that
are missing are null, or make a row bad where the schema says NOT NULL; fields that it does not know are passed over:
documents of other versions stay readable.
"""

import datetime
import json
from collections.abc import Sequence
from decimal import Decimal
from operator import attrgetter
from typing import Annotated, Any

import msgspec
import pyarrow as pa
from pyspark.sql import types as T
from pyspark.sql.pandas.types import to_arrow_type

from headrace.client.registry.errors import NoSubject
from headrace.client.registry.types import JSON, Schema
from headrace.client.registry.wire import prefix_of, split_prefix
from headrace.spark.formats.columns import Shape, build_apart, converter, plain_rows, shape_of
from headrace.spark.formats.ddl import DdlError, parse_ddl
from headrace.spark.formats.schemas import FormatError, SchemaSource

INTEGERS = {T.ByteType: 8, T.ShortType: 16, T.IntegerType: 32, T.LongType: 64}
PLAIN = {
    T.StringType: str,
    T.BooleanType: bool,
    T.FloatType: float,
    T.DoubleType: float,
    T.TimestampType: datetime.datetime,
    T.TimestampNTZType: datetime.datetime,
    T.DateType: datetime.date,
    T.DecimalType: Decimal,
    T.BinaryType: bytes,
}


class JsonDecoder:
    """See ValueDecoder. With a registry, values carry its prefix, and other versions of the schema are read as they
    are."""

    def __init__(self, schema: T.StructType, prefixed: bool) -> None:
        self.spark_schema = schema
        self._prefixed = prefixed
        self._ready: tuple[msgspec.json.Decoder[Any], pa.DataType, Shape | None] | None = None
        _python_type(schema, "value")

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_ready": None}

    def decode(self, values: pa.Array) -> tuple[pa.Array, dict[int, str]]:
        if self._ready is None:
            decoder = msgspec.json.Decoder(_python_type(self.spark_schema, "value"))
            kind = to_arrow_type(self.spark_schema, timezone="UTC")
            self._ready = decoder, kind, shape_of(kind, _getters)
        decoder, kind, shape = self._ready
        decode = decoder.decode
        errors: dict[int, str] = {}
        rows: list[Any] = []
        for index, value in enumerate(values.cast(pa.binary()).to_pylist()):
            row = None
            if value is not None:
                try:
                    row = decode(value[split_prefix(value)[1] :] if self._prefixed else value)
                except (msgspec.MsgspecError, ValueError, RecursionError) as error:
                    errors[index] = str(error)
            rows.append(row)
        return build_apart(rows, kind, shape, errors), errors


class JsonEncoder:
    """See ValueEncoder. Null fields are left out, as Spark's to_json does."""

    def __init__(self, prefix: bytes = b"") -> None:
        self._prefix = prefix

    def encode(self, values: pa.StructArray) -> tuple[pa.Array, dict[int, str]]:
        encode = msgspec.json.Encoder(decimal_format="number").encode
        prefix = self._prefix
        errors: dict[int, str] = {}
        encoded: list[bytes | None] = []
        for index, row in enumerate(plain_rows(values, _without_nulls, errors)):
            content = None
            if row is not None:
                try:
                    content = prefix + encode(row)
                except (msgspec.MsgspecError, ValueError, TypeError) as error:
                    errors[index] = str(error)
            encoded.append(content)
        return pa.array(encoded, pa.binary()), errors


def json_decoder(source: SchemaSource) -> JsonDecoder:
    if source.given is not None:
        schema = parse_schema(source.text, source.origin)
    elif source.registry is not None and source.subject is not None:
        schema = parse_schema(source.registry.latest(source.subject).text, source.origin)
    else:
        raise FormatError(
            "valueFormat=json needs the schema",
            "set valueSchema to Spark's DDL, such as 'id BIGINT, name STRING', "
            "or to a JSON Schema; or set valueSchemaFile or valueSchemaRegistry",
        )
    return JsonDecoder(schema, source.registry is not None)


def json_encoder(source: SchemaSource, columns: T.StructType) -> JsonEncoder:
    if source.given is not None:
        _check_columns(parse_schema(source.text, source.origin), columns, source.origin)
    if source.registry is None or source.subject is None:
        return JsonEncoder()
    if source.given is not None and source.text.lstrip().startswith("{"):
        schema_id = source.registry.register(source.subject, Schema(source.text, JSON))
    else:
        try:
            latest = source.registry.latest(source.subject)
            _check_columns(parse_schema(latest.text, source.origin), columns, source.origin)
            schema_id = latest.schema_id
        except NoSubject:
            schema_id = source.registry.register(source.subject, Schema(json.dumps(json_schema_of(columns)), JSON))
    return JsonEncoder(prefix_of(schema_id))


def _check_columns(schema: T.StructType, columns: T.StructType, origin: str) -> None:
    known = {field.name: field.dataType.simpleString() for field in schema}
    for field in columns:
        if field.name not in known:
            raise FormatError(
                f"column '{field.name}' is not in the schema of {origin}", "leave it out, or add it there"
            )
        if known[field.name] != field.dataType.simpleString():
            raise FormatError(
                f"column '{field.name}' is {field.dataType.simpleString()}, the schema of {origin} says "
                f"{known[field.name]}",
                f"use CAST({field.name} AS {known[field.name].upper()})",
            )


# -- along Spark's types


def _python_type(kind: T.DataType, path: str, nullable: bool = True) -> Any:
    """What msgspec decodes to, for a type of Spark's. What is missing is null, and bad where the schema says NOT
    NULL."""
    found = _bare_type(kind, path)
    return found | None if nullable else found


def _bare_type(kind: T.DataType, path: str) -> Any:
    bits = INTEGERS.get(type(kind))
    if bits is not None:
        return Annotated[int, msgspec.Meta(ge=-(1 << (bits - 1)), le=(1 << (bits - 1)) - 1)]
    if isinstance(kind, T.StructType):
        fields = [_field(f"f{index}", field, path) for index, field in enumerate(kind)]
        names = {f"f{index}": field.name for index, field in enumerate(kind)}
        return msgspec.defstruct("Row", fields, rename=names, gc=False, kw_only=True)
    if isinstance(kind, T.ArrayType):
        return list[_python_type(kind.elementType, f"{path}[]", kind.containsNull)]  # type: ignore[misc]
    if isinstance(kind, T.MapType):
        if not isinstance(kind.keyType, T.StringType):
            raise FormatError(
                f"{path} is {kind.simpleString()}, but the keys of JSON objects are strings", "use map<string,...>"
            )
        return dict[str, _python_type(kind.valueType, f"{path}{{}}", kind.valueContainsNull)]  # type: ignore[misc]
    plain = PLAIN.get(type(kind))
    if plain is None:
        raise FormatError(
            f"{path} is {kind.simpleString()}, which JSON values cannot be read as", "use string and cast it later"
        )
    return plain


def _field(name: str, field: T.StructField, path: str) -> tuple[str, Any] | tuple[str, Any, None]:
    kind = _python_type(field.dataType, f"{path}.{field.name}", field.nullable)
    return (name, kind, None) if field.nullable else (name, kind)


def _getters(kind: pa.StructType) -> Sequence[Any]:
    return [attrgetter(f"f{index}") for index in range(kind.num_fields)]


def _without_nulls(kind: pa.DataType) -> Any:
    if not pa.types.is_struct(kind):
        return None
    changes = {field.name: converter(field.type, _without_nulls) for field in kind}

    def convert(row: dict[str, Any]) -> dict[str, Any]:
        found = {}
        for name, value in row.items():
            if value is not None:
                change = changes[name]
                found[name] = value if change is None else change(value)
        return found

    return convert


# -- schemas


def parse_schema(text: str, origin: str) -> T.StructType:
    """Spark's DDL, or a JSON Schema if it looks like JSON."""
    if text.lstrip().startswith("{"):
        try:
            document = json.loads(text)
        except ValueError as error:
            raise FormatError(f"{origin} is neither JSON ({error}) nor Spark's DDL") from None
        found = _from_json_schema(document, document, "value")
        if not isinstance(found, T.StructType):
            raise FormatError(f"{origin} describes {found.simpleString()}", "values must be objects with properties")
        return found
    try:
        return parse_ddl(text)
    except DdlError as error:
        raise FormatError(f"{origin} is not a schema", f"{error}. Write it as 'id BIGINT, name STRING'") from None


JSON_TYPES: dict[str, T.DataType] = {
    "integer": T.LongType(),
    "number": T.DoubleType(),
    "boolean": T.BooleanType(),
    "string": T.StringType(),
}
STRING_FORMATS: dict[str, T.DataType] = {"date-time": T.TimestampType(), "date": T.DateType()}


def _from_json_schema(node: Any, root: Any, path: str) -> T.DataType:
    if "$ref" in node:
        return _from_json_schema(_referred(node["$ref"], root, path), root, path)
    choices = [one for one in node.get("oneOf", node.get("anyOf", ())) if one.get("type") != "null"]
    if len(choices) == 1:
        return _from_json_schema(choices[0], root, path)
    kind = node.get("type")
    if isinstance(kind, list):
        kinds = [one for one in kind if one != "null"]
        kind = kinds[0] if len(kinds) == 1 else None
    if kind == "object" or (kind is None and "properties" in node):
        if "properties" in node:
            properties = node["properties"].items()
            return T.StructType(
                [T.StructField(name, _from_json_schema(one, root, f"{path}.{name}")) for name, one in properties]
            )
        if isinstance(node.get("additionalProperties"), dict):
            return T.MapType(T.StringType(), _from_json_schema(node["additionalProperties"], root, f"{path}{{}}"))
    if kind == "array" and isinstance(node.get("items"), dict):
        return T.ArrayType(_from_json_schema(node["items"], root, f"{path}[]"))
    if kind == "string" and node.get("format") in STRING_FORMATS:
        return STRING_FORMATS[node["format"]]
    if kind in JSON_TYPES:
        return JSON_TYPES[kind]
    raise FormatError(f"the JSON Schema says nothing of {path} that a column could be made of", "give it one type")


def _referred(reference: str, root: Any, path: str) -> Any:
    node = root
    if not reference.startswith("#/"):
        raise FormatError(
            f"the JSON Schema's {path} refers to {reference}", "only references within it (#/...) are followed"
        )
    for part in reference[2:].split("/"):
        node = node.get(part) if isinstance(node, dict) else None
    if node is None:
        raise FormatError(f"the JSON Schema's {path} refers to {reference}, which is not there")
    return node


def json_schema_of(kind: T.DataType) -> dict[str, Any]:
    """A JSON Schema for Spark's type, for registries."""
    if isinstance(kind, T.StructType):
        properties = {field.name: json_schema_of(field.dataType) for field in kind}
        return {"type": "object", "properties": properties}
    if isinstance(kind, T.ArrayType):
        return {"type": "array", "items": json_schema_of(kind.elementType)}
    if isinstance(kind, T.MapType):
        return {"type": "object", "additionalProperties": json_schema_of(kind.valueType)}
    if type(kind) in INTEGERS:
        return {"type": "integer"}
    if isinstance(kind, T.TimestampType | T.TimestampNTZType):
        return {"type": "string", "format": "date-time"}
    if isinstance(kind, T.DateType):
        return {"type": "string", "format": "date"}
    if isinstance(kind, T.BooleanType):
        return {"type": "boolean"}
    return {"type": "number" if isinstance(kind, T.FloatType | T.DoubleType | T.DecimalType) else "string"}
