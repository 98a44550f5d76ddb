"""Protobuf values: the schema is a .proto file's text or a compiled descriptor set, the message chosen by name.

Fields that a message does not have set are null where presence is tracked and the type's default elsewhere; fields that
the schema does not know are passed over: messages of other versions stay readable. Compiling happens on the driver.
"""

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError, EncodeError
from pyspark.sql import types as T
from pyspark.sql.pandas.types import to_arrow_type

from headrace.spark.formats.columns import build_apart, plain_rows
from headrace.spark.formats.protobuf_fields import TIMESTAMP, check_columns, fill, shape_for
from headrace.spark.formats.registry import Schema
from headrace.spark.formats.schemas import PREFIX, FormatError, SchemaSource, split_prefix

MAIN_FILE = "value.proto"
COMPILE_LIMIT_S = 60.0
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


class _Messages:
    """A compiled schema and the message in it that values are. Picklable."""

    def __init__(self, files: bytes, name: str) -> None:
        self.files = files
        self.name = name
        self._class: Any = None

    def __getstate__(self) -> dict[str, Any]:
        return {"files": self.files, "name": self.name, "_class": None}

    @property
    def message(self) -> Any:
        """The message's class."""
        if self._class is None:
            pool = descriptor_pool.DescriptorPool()
            for file in descriptor_pb2.FileDescriptorSet.FromString(self.files).file:
                pool.Add(file)
            self._class = message_factory.GetMessageClass(pool.FindMessageTypeByName(self.name))
        return self._class

    def indexes(self) -> bytes:
        """Confluent's path to the message within its file: zigzag varints, the usual first one short."""
        path: list[int] = []
        descriptor = self.message.DESCRIPTOR
        while descriptor is not None:
            parent = descriptor.containing_type
            beside = descriptor.file.message_types_by_name if parent is None else parent.nested_types_by_name
            path.insert(0, list(beside).index(descriptor.name))
            descriptor = parent
        return b"\0" if path == [0] else b"".join(_varint(number << 1) for number in (len(path), *path))


class ProtobufDecoder:
    """See ValueDecoder."""

    def __init__(self, messages: _Messages, prefixed: bool) -> None:
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

    def __init__(self, messages: _Messages, prefix: bytes) -> None:
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
        if source.given is not None and not _is_compiled(source.given):
            schema_id = source.registry.register(source.subject, source.text, "protobuf")
        else:
            schema_id = source.registry.latest(source.subject).schema_id
        prefix = PREFIX.pack(0, schema_id) + messages.indexes()
    return ProtobufEncoder(messages, prefix)


# -- schemas


def _messages(source: SchemaSource, name: str | None) -> _Messages:
    if source.given is not None:
        files = source.given if _is_compiled(source.given) else compile_proto(source.text, (), source.origin)
    elif source.registry is not None and source.subject is not None:
        latest: Schema = source.registry.latest(source.subject)
        files = compile_proto(latest.text, latest.references, source.origin)
    else:
        raise FormatError(
            "valueFormat=protobuf needs the schema",
            "set valueSchema to a .proto file's text, valueSchemaFile to a"
            " .proto file or a compiled descriptor set, or valueSchemaRegistry",
        )
    return _Messages(files, _message_name(files, name, source.origin))


def _is_compiled(given: bytes) -> bool:
    """Whether these bytes are a descriptor set; a text that begins with an empty line looks like one at first."""
    try:
        found = descriptor_pb2.FileDescriptorSet.FromString(given)
    except DecodeError:
        return False
    return bool(found.file) and all(file.name for file in found.file)


def _message_name(files: bytes, name: str | None, origin: str) -> str:
    """The full name of the wanted message, or of the first one in the last file, which is the main one."""
    found = list(descriptor_pb2.FileDescriptorSet.FromString(files).file)
    main = found[-1]
    scope = f"{main.package}." if main.package else ""
    names: list[str] = [scope + message.name for message in main.message_type]
    if not names:
        raise FormatError(f"{origin} defines no message")
    if name is None:
        if len(names) > 1:
            raise FormatError(
                f"{origin} defines {len(names)} messages ({', '.join(names)})",
                "set option valueMessage to one of them",
            )
        return names[0]
    everything: list[str] = [full for file in found for full in _all_names(file.package, file.message_type)]
    for one in everything:
        if one == name or one == scope + name:
            return one
    raise FormatError(
        f"option 'valueMessage' is {name!r}, but {origin} defines {', '.join(everything)}",
        "set one of them",
        option="valueMessage",
    )


def _all_names(scope: str, messages: Any) -> list[str]:
    found = []
    for message in messages:
        full = f"{scope}.{message.name}" if scope else message.name
        if not message.options.map_entry:
            found += [full, *_all_names(full, message.nested_type)]
    return found


def compile_proto(text: str, references: Sequence[tuple[str, str]], origin: str) -> bytes:
    """A descriptor set of a .proto text and what it imports; protoc's own words when it does not compile."""
    try:
        import grpc_tools  # type: ignore[import-untyped]
    except ImportError:
        raise FormatError(
            "compiling a .proto needs protoc",
            "pip install grpcio-tools, or set valueSchemaFile to a descriptor set "
            "made by protoc --include_imports --descriptor_set_out",
        ) from None
    with tempfile.TemporaryDirectory(prefix="headrace-proto-") as folder:
        root = Path(folder)
        for name, content in (*references, (MAIN_FILE, text)):
            path = root / name
            if not path.resolve().is_relative_to(root.resolve()):
                raise FormatError(f"{origin} refers to {name!r}, which is no plain file name")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
        out = root / "set.bin"
        known = Path(grpc_tools.__file__).parent / "_proto"
        command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{root}", f"-I{known}", "--include_imports"]
        done = subprocess.run(
            [*command, f"--descriptor_set_out={out}", MAIN_FILE],
            capture_output=True,
            text=True,
            timeout=COMPILE_LIMIT_S,
            check=False,
        )
        if done.returncode:
            lines = [line.partition(f"{MAIN_FILE}:")[2] for line in done.stderr.splitlines() if f"{MAIN_FILE}:" in line]
            reasons = [f"line {line}" for line in lines if line[:1].isdecimal()] or lines or [done.stderr.strip()]
            raise FormatError(f"{origin} does not compile", f"{'; '.join(reasons[:3])}")
        return out.read_bytes()


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


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _without_prefix(value: bytes) -> bytes:
    """The message behind the schema's id and the path to its type, which the query has fixed already."""
    _, pos = split_prefix(value)
    try:
        count, pos = _read_varint(value, pos)
        for _ in range(count):
            _, pos = _read_varint(value, pos)
    except IndexError:
        raise ValueError("the value ends before its message begins") from None
    return value[pos:]


def _read_varint(value: bytes, pos: int) -> tuple[int, int]:
    raw = shift = 0
    while True:
        byte = value[pos]
        pos += 1
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (raw >> 1) ^ -(raw & 1), pos
        shift += 7
        if shift > 28:
            raise ValueError("the value does not begin with the path to a message")
