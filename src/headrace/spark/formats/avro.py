"""Avro values: by fastavro, each as the schema it was written with says, read as the one that the query asks for.

Types are those of Spark's own Avro source, all of them nullable: a bad row has to be something. A union with null is a
nullable column, int with long a long, float with double a double; other unions have no column to go to and are refused
when the query is planned.
"""

import io
import json
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any

import fastavro
import pyarrow as pa
from pyspark.sql import types as T
from pyspark.sql.pandas.types import to_arrow_type

from headrace.client.registry.avro_schemas import Document, parse_document, read_document, reason_of
from headrace.client.registry.blocking import BlockingRegistry
from headrace.client.registry.errors import NoSchema, NoSubject
from headrace.client.registry.types import RegisteredSchema, Schema
from headrace.client.registry.wire import prefix_of, split_prefix
from headrace.spark.formats.columns import Shape, build_apart, plain_rows, shape_of
from headrace.spark.formats.schemas import FormatError, SchemaSource, refusals

PRIMITIVES: dict[str, T.DataType] = {
    "boolean": T.BooleanType(),
    "int": T.IntegerType(),
    "long": T.LongType(),
    "float": T.FloatType(),
    "double": T.DoubleType(),
    "string": T.StringType(),
    "bytes": T.BinaryType(),
    "fixed": T.BinaryType(),
    "enum": T.StringType(),
}
LOGICAL: dict[str, T.DataType] = {
    "date": T.DateType(),
    "timestamp-millis": T.TimestampType(),
    "timestamp-micros": T.TimestampType(),
    "local-timestamp-millis": T.TimestampNTZType(),
    "local-timestamp-micros": T.TimestampNTZType(),
}
WIDENED = {frozenset({"int", "long"}): "long", frozenset({"float", "double"}): "double"}
BAD_VALUE = (
    ValueError, EOFError, LookupError, TypeError, ArithmeticError, fastavro.read.SchemaResolutionError, NoSchema
)  # fmt: skip
"""What bytes of another schema, or of none, make of reading them. A registry that is away says nothing about a
value."""


class AvroDecoder:
    """See ValueDecoder."""

    def __init__(self, reader: Document, registry: BlockingRegistry | None, references: Mapping[str, Document]) -> None:
        self._reader = reader
        self._references = dict(references)
        self._registry = registry
        self._ready: tuple[Any, pa.DataType, Shape | None, dict[int, Any]] | None = None
        self.spark_schema = spark_type(reader, dict(references))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_ready": None}

    def decode(self, values: pa.Array) -> tuple[pa.Array, dict[int, str]]:
        if self._ready is None:
            parsed = _parsed(self._reader, self._references, "the schema")
            kind = to_arrow_type(self.spark_schema, timezone="UTC")
            self._ready = parsed, kind, shape_of(kind, _getters), {}
        reader, kind, shape, writers = self._ready
        errors: dict[int, str] = {}
        rows: list[Any] = []
        for index, value in enumerate(values.cast(pa.binary()).to_pylist()):
            row = None
            if value is not None:
                try:
                    row = self._decode(value, reader, writers)
                except BAD_VALUE as error:
                    errors[index] = reason_of(error)
            rows.append(row)
        return build_apart(rows, kind, shape, errors), errors

    def _decode(self, value: bytes, reader: Any, writers: dict[int, Any]) -> Any:
        writer, start = reader, 0
        if self._registry is not None:
            schema_id, start = split_prefix(value)
            if schema_id not in writers:
                writers[schema_id] = _writer(self._registry.by_id(schema_id))
            writer = writers[schema_id]
        stream = io.BytesIO(value)
        stream.seek(start)
        row = fastavro.schemaless_reader(stream, writer, None if writer is reader else reader)
        if stream.tell() != len(value):
            raise ValueError(
                f"{len(value) - stream.tell()} bytes are left over: the value was written with another schema"
            )
        return row


class AvroEncoder:
    """See ValueEncoder."""

    def __init__(self, schema: Document, references: Mapping[str, Document], prefix: bytes) -> None:
        self._schema = schema
        self._references = dict(references)
        self._prefix = prefix
        self._ready: Any = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_ready": None}

    def encode(self, values: pa.StructArray) -> tuple[pa.Array, dict[int, str]]:
        if self._ready is None:
            self._ready = _parsed(self._schema, self._references, "the schema")
        schema, prefix = self._ready, self._prefix
        errors: dict[int, str] = {}
        encoded: list[bytes | None] = []
        for index, row in enumerate(plain_rows(values, lambda kind: None, errors)):
            content = None
            if row is not None:
                stream = io.BytesIO()
                stream.write(prefix)
                try:
                    fastavro.schemaless_writer(stream, schema, row)
                    content = stream.getvalue()
                except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
                    errors[index] = reason_of(error)
            encoded.append(content)
        return pa.array(encoded, pa.binary()), errors


def avro_decoder(source: SchemaSource) -> AvroDecoder:
    document, references = None, {}
    if source.given is not None:
        document = _document(source.text, source.origin)
    elif source.registry is not None and source.subject is not None:
        latest = source.registry.latest(source.subject)
        document, references = _document(latest.text, source.origin), _references(latest)
    if document is None:
        raise FormatError(
            "valueFormat=avro needs the schema",
            "set valueSchema to Avro's JSON, valueSchemaFile to an .avsc file, or valueSchemaRegistry",
        )
    _parsed(document, references, source.origin)
    return AvroDecoder(document, source.registry, references)


def avro_encoder(source: SchemaSource, columns: T.StructType) -> AvroEncoder:
    document, references, prefix = None, {}, b""
    registry, subject = source.registry, source.subject
    if source.given is not None:
        document = _document(source.text, source.origin)
        _parsed(document, {}, source.origin)
        _check_columns(document, {}, columns, source.origin)
    if registry is not None and subject is not None:
        if document is not None:
            schema_id = registry.register(subject, Schema(json.dumps(document)))
        else:
            try:
                latest = registry.latest(subject)
                document, references, schema_id = (
                    _document(latest.text, source.origin),
                    _references(latest),
                    latest.schema_id,
                )
                _check_columns(document, references, columns, source.origin)
            except NoSubject:
                document = avro_schema_of(columns, "value")
                schema_id = registry.register(subject, Schema(json.dumps(document)))
        prefix = prefix_of(schema_id)
    if document is None:
        raise FormatError(
            "valueFormat=avro needs the schema to write with",
            "set valueSchema to Avro's JSON, valueSchemaFile, or valueSchemaRegistry",
        )
    return AvroEncoder(document, references, prefix)


def _check_columns(document: Document, references: Mapping[str, Document], columns: T.StructType, origin: str) -> None:
    """Every column must be a field of the schema, of a type that fits, and every field without a default a column."""
    schema = spark_type(document, dict(references))
    if not isinstance(schema, T.StructType):
        raise FormatError(f"the schema of {origin} is {schema.simpleString()}, but rows are records")
    known = {field.name: field for field in schema}
    for column in columns:
        field = known.pop(column.name, None)
        if field is None:
            raise FormatError(
                f"column '{column.name}' is not in the schema of {origin}", "leave it out, or add it there"
            )
        if not _fits(column.dataType, field.dataType):
            wanted = field.dataType.simpleString()
            raise FormatError(
                f"column '{column.name}' is {column.dataType.simpleString()}, the schema of {origin} says {wanted}",
                f"use CAST({column.name} AS {wanted.upper()})",
            )
    optional = {field["name"] for field in document["fields"] if "default" in field or _nullable(field["type"])}
    for name in known:
        if name not in optional:
            raise FormatError(
                f"the schema of {origin} has a field '{name}' without a default, and no column is called so", "add it"
            )


def _fits(column: T.DataType, field: T.DataType) -> bool:
    widening = {
        T.ByteType: (T.IntegerType, T.LongType),
        T.ShortType: (T.IntegerType, T.LongType),
        T.IntegerType: (T.LongType,),
        T.FloatType: (T.DoubleType,),
    }
    if isinstance(column, T.StructType) and isinstance(field, T.StructType):
        return True
    return type(column) is type(field) or isinstance(field, widening.get(type(column), ()))


# -- schemas


def _document(text: str, origin: str) -> Document:
    with refusals():
        return _without_times(read_document(text, origin))


def _references(schema: RegisteredSchema) -> dict[str, Document]:
    return {name: _document(text, f"reference '{name}'") for name, text in schema.parts}


def _without_times(node: Document) -> Document:
    """Times of day and uuids stay the numbers and strings they are written as: Spark has no types for them."""
    if isinstance(node, list):
        return [_without_times(one) for one in node]
    if not isinstance(node, dict):
        return node
    known = {key: value for key, value in node.items() if key != "logicalType" or value in (*LOGICAL, "decimal")}
    for key in ("type", "items", "values"):
        if key in known:
            known[key] = _without_times(known[key])
    if "fields" in known:
        known["fields"] = [{**field, "type": _without_times(field["type"])} for field in known["fields"]]
    return known


def _parsed(document: Document, references: Mapping[str, Document], origin: str) -> Any:
    with refusals():
        return parse_document(document, references, origin)


def _writer(schema: RegisteredSchema) -> Any:
    return _parsed(
        _document(schema.text, f"schema {schema.schema_id}"), _references(schema), f"schema {schema.schema_id}"
    )


def spark_type(
    node: Document, names: dict[str, Document], path: str = "value", within: tuple[str, ...] = ()
) -> T.DataType:
    """Spark's type for an Avro schema. `names` are types defined before, by their names."""
    if isinstance(node, list):
        return spark_type(_one_of_union(node, path), names, path, within)
    if isinstance(node, str):
        return _type_by_name(node, names, path, within)
    kind = node.get("type")
    if isinstance(kind, dict | list):
        return spark_type(kind, names, path, within)
    logical = node.get("logicalType")
    if logical == "decimal":
        return T.DecimalType(node["precision"], node.get("scale", 0))
    if logical in LOGICAL:
        return LOGICAL[logical]
    if kind == "array":
        return T.ArrayType(spark_type(node["items"], names, f"{path}[]", within))
    if kind == "map":
        return T.MapType(T.StringType(), spark_type(node["values"], names, f"{path}{{}}", within))
    if kind in ("enum", "fixed", "record", "error"):
        return _defined_type(node, names, path, within)
    if not isinstance(kind, str):
        raise FormatError(f"the schema does not say what {path} is")
    return spark_type(kind, names, path, within)


def _type_by_name(name: str, names: dict[str, Document], path: str, within: tuple[str, ...]) -> T.DataType:
    if name in PRIMITIVES:
        return PRIMITIVES[name]
    if name in within:
        raise FormatError(
            f"{path} is a {name} within a {name}", "a column cannot hold a type within itself; leave it out"
        )
    if name not in names:
        raise FormatError(f"{path} is of type {name!r}, which the schema does not define")
    return spark_type(names[name], names, path, within)


def _defined_type(
    node: Mapping[str, Any], names: dict[str, Document], path: str, within: tuple[str, ...]
) -> T.DataType:
    """A type that has a name from here on."""
    name = _full_name(node)
    names[name] = names[node["name"]] = node
    if node["type"] in ("enum", "fixed"):
        return PRIMITIVES[node["type"]]
    inner = (*within, name, node["name"])
    return T.StructType(
        [
            T.StructField(field["name"], spark_type(field["type"], names, f"{path}.{field['name']}", inner))
            for field in node["fields"]
        ]
    )


def _full_name(node: Mapping[str, Any]) -> str:
    space = node.get("namespace")
    return f"{space}.{node['name']}" if space and "." not in node["name"] else node["name"]


def _nullable(node: Document) -> bool:
    return node == "null" or (isinstance(node, list) and "null" in node)


def _one_of_union(branches: Sequence[Document], path: str) -> Document:
    left = [one for one in branches if one != "null"]
    if len(left) == 1:
        return left[0]
    if all(isinstance(one, str) for one in left) and frozenset(left) in WIDENED:
        return WIDENED[frozenset(left)]
    kinds = ", ".join(one if isinstance(one, str) else str(one.get("name") or one.get("type")) for one in left)
    raise FormatError(
        f"{path} is a union of {kinds or 'nothing but null'}",
        "a column has one type; use one of them, or one with null",
    )


def _getters(kind: pa.StructType) -> Sequence[Any]:
    return [itemgetter(field.name) for field in kind]


AVRO_NAMES: dict[type[T.DataType], Document] = {
    T.BooleanType: "boolean",
    T.ByteType: "int",
    T.ShortType: "int",
    T.IntegerType: "int",
    T.LongType: "long",
    T.FloatType: "float",
    T.DoubleType: "double",
    T.StringType: "string",
    T.BinaryType: "bytes",
    T.DateType: {"type": "int", "logicalType": "date"},
    T.TimestampType: {"type": "long", "logicalType": "timestamp-micros"},
    T.TimestampNTZType: {"type": "long", "logicalType": "local-timestamp-micros"},
}


def avro_schema_of(kind: T.DataType, name: str) -> Document:
    """An Avro schema for Spark's type, for registries that have none yet; everything may be null."""
    if isinstance(kind, T.StructType):
        fields = [
            {
                "name": field.name,
                "type": ["null", avro_schema_of(field.dataType, f"{name}_{field.name}")],
                "default": None,
            }
            for field in kind
        ]
        return {"type": "record", "name": name, "fields": fields}
    if isinstance(kind, T.ArrayType):
        return {"type": "array", "items": ["null", avro_schema_of(kind.elementType, f"{name}_item")]}
    if isinstance(kind, T.MapType):
        return {"type": "map", "values": ["null", avro_schema_of(kind.valueType, f"{name}_item")]}
    if isinstance(kind, T.DecimalType):
        return {"type": "bytes", "logicalType": "decimal", "precision": kind.precision, "scale": kind.scale}
    found = AVRO_NAMES.get(type(kind))
    if found is None:
        raise FormatError(f"{name} is {kind.simpleString()}, which Avro has no type for", "cast it to string")
    return found
