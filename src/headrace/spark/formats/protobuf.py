"""Protobuf values: the schema is a .proto file's text or a compiled descriptor set, the message chosen by name.

Fields that a message does not have set are null where presence is tracked and the type's default elsewhere; fields that
the schema does not know are passed over: messages of other versions stay readable. Compiling happens on the driver.
"""

from typing import Any

import pyarrow as pa
from google.protobuf import descriptor_pb2
from google.protobuf.message import DecodeError, EncodeError
from pyspark.sql import types as T
from pyspark.sql.pandas.types import to_arrow_type

from headrace.client.registry.proto_schemas import Messages, compile_proto, is_compiled, message_name
from headrace.client.registry.types import PROTOBUF, Schema
from headrace.client.registry.wire import prefix_of, split_message_path, split_prefix
from headrace.spark.formats.columns import build_apart, plain_rows
from headrace.spark.formats.protobuf_fields import TIMESTAMP, check_columns, fill, shape_for
from headrace.spark.formats.schemas import FormatError, SchemaSource, refusals

_F = descriptor_pb2.FieldDescriptorProto
SCALARS: dict[int, T.DataType] = {
    _F.TYPE_DOUBLE: T.DoubleType(),
    _F.TYPE_FLOAT: T.FloatType(),
    _F.TYPE_INT64: T.LongType(),
    _F.TYPE_UINT64: T.LongType(),
    _F.TYPE_INT32: T.IntegerType(),
    _F.TYPE_FIXED64: T.LongType(),
    _F.TYPE_FIXED32: T.LongType(),
    _F.TYPE_BOOL: T.BooleanType(),
    _F.TYPE_STRING: T.StringType(),
    _F.TYPE_BYTES: T.BinaryType(),
    _F.TYPE_UINT32: T.LongType(),
    _F.TYPE_ENUM: T.StringType(),
    _F.TYPE_SFIXED32: T.IntegerType(),
    _F.TYPE_SFIXED64: T.LongType(),
    _F.TYPE_SINT32: T.IntegerType(),
    _F.TYPE_SINT64: T.LongType(),
}


class ProtobufDecoder:
    """See ValueDecoder."""

    def __init__(self, messages: Messages, prefixed: bool) -> None:
        self._messages = messages
        self._prefixed = prefixed
        self.spark_schema = spark_type(messages.message.DESCRIPTOR)

    def decode(self, values: pa.Array) -> tuple[pa.Array, dict[int, str]]:
        message = self._messages.message
        parse, prefixed = message.FromString, self._prefixed
        errors: dict[int, str] = {}
        rows: list[Any] = []
        for index, value in enumerate(values.cast(pa.binary()).to_pylist()):
            row = None
            if value is not None:
                try:
                    row = parse(_without_prefix(value) if prefixed else value)
                except (DecodeError, ValueError) as error:
                    errors[index] = str(error)
            rows.append(row)
        kind = to_arrow_type(self.spark_schema, timezone="UTC")
        return build_apart(rows, kind, shape_for(message.DESCRIPTOR), errors), errors


class ProtobufEncoder:
    """See ValueEncoder. A null column leaves its field unset."""

    def __init__(self, messages: Messages, prefix: bytes) -> None:
        self._messages = messages
        self._prefix = prefix

    def encode(self, values: pa.StructArray) -> tuple[pa.Array, dict[int, str]]:
        message, prefix = self._messages.message, self._prefix
        errors: dict[int, str] = {}
        encoded: list[bytes | None] = []
        for index, row in enumerate(plain_rows(values, lambda kind: None, errors)):
            content = None
            if row is not None:
                try:
                    content = prefix + fill(message(), row).SerializeToString(deterministic=True)
                except (ValueError, TypeError, EncodeError, OverflowError) as error:
                    errors[index] = str(error)
            encoded.append(content)
        return pa.array(encoded, pa.binary()), errors


def protobuf_decoder(source: SchemaSource, name: str | None) -> ProtobufDecoder:
    return ProtobufDecoder(_messages(source, name), source.registry is not None)


def protobuf_encoder(source: SchemaSource, name: str | None, columns: T.StructType) -> ProtobufEncoder:
    messages = _messages(source, name)
    check_columns(messages.message.DESCRIPTOR, spark_type(messages.message.DESCRIPTOR), columns, source.origin)
    prefix = b""
    if source.registry is not None and source.subject is not None:
        if source.given is not None and not is_compiled(source.given):
            schema_id = source.registry.register(source.subject, Schema(source.text, PROTOBUF))
        else:
            schema_id = source.registry.latest(source.subject).schema_id
        prefix = prefix_of(schema_id) + messages.indexes()
    return ProtobufEncoder(messages, prefix)


# -- schemas


def _messages(source: SchemaSource, name: str | None) -> Messages:
    with refusals():
        return _found(source, name)


def _found(source: SchemaSource, name: str | None) -> Messages:
    if source.given is not None:
        files = source.given if is_compiled(source.given) else compile_proto(source.text, (), source.origin)
    elif source.registry is not None and source.subject is not None:
        latest = source.registry.latest(source.subject)
        files = compile_proto(latest.text, latest.parts, source.origin)
    else:
        raise FormatError(
            "valueFormat=protobuf needs the schema",
            "set valueSchema to a .proto file's text, valueSchemaFile to a"
            " .proto file or a compiled descriptor set, or valueSchemaRegistry",
        )
    return Messages(files, message_name(files, name, source.origin, "option valueMessage"))


def spark_type(descriptor: Any, path: str = "value", within: tuple[str, ...] = ()) -> T.StructType:
    if descriptor.full_name in within:
        raise FormatError(
            f"{path} is a {descriptor.full_name} within itself",
            "a column cannot hold a type within itself; leave it out of the schema",
        )
    inner = (*within, descriptor.full_name)
    return T.StructType(
        [T.StructField(field.name, _field_type(field, f"{path}.{field.name}", inner)) for field in descriptor.fields]
    )


def _field_type(field: Any, path: str, within: tuple[str, ...]) -> T.DataType:
    kind: T.DataType
    if field.message_type is not None:
        if field.message_type.GetOptions().map_entry:
            key, value = field.message_type.fields_by_name["key"], field.message_type.fields_by_name["value"]
            return T.MapType(_field_type(key, path, within), _field_type(value, path, within))
        is_time = field.message_type.full_name == TIMESTAMP
        kind = T.TimestampType() if is_time else spark_type(field.message_type, path, within)
    else:
        kind = SCALARS[field.type]
    return T.ArrayType(kind) if field.is_repeated else kind


def _without_prefix(value: bytes) -> bytes:
    """The message behind the schema's id and the path to its type, which the query has fixed already."""
    return value[split_message_path(value, split_prefix(value)[1])[1] :]
