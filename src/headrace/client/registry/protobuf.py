"""`headrace.Protobuf`: messages of generated classes, or of a .proto that is compiled when it is needed."""

from pathlib import Path
from typing import Any, Self

from headrace.client.registry.blocking import BlockingRegistry
from headrace.client.registry.errors import SchemaRefused
from headrace.client.registry.format import RegistryLike, SchemaFormat, Subjects, needs, read_schema
from headrace.client.registry.types import PROTOBUF, Reference, RegisteredSchema, Schema
from headrace.client.registry.wire import message_path, split_message_path, split_prefix

try:
    from google.protobuf import json_format, message_factory

    from headrace.client.registry.proto_schemas import (
        WELL_KNOWN,
        Messages,
        compile_proto,
        is_compiled,
        message_name,
        name_at,
        path_of,
        pool_of,
        text_of_file,
    )
except ImportError as missing:
    raise needs(missing.name or "protobuf") from None


class Protobuf(SchemaFormat["_Compiled"]):
    """A serializer and deserializer.

        orders = headrace.Protobuf(Order, registry="http://127.0.0.1:8081")  # from order_pb2 import Order

    `schema` is a generated class, a .proto file's text or Path (a compiled descriptor set's, too), or a `Schema` with
    references; `message` names one of several messages. Messages are written, and dicts as protobuf's JSON mapping has
    them; what is read is a message. Without a schema it is one of the class that the registry's schema describes.
    """

    def __init__(
        self,
        schema: Any = None,
        *,
        message: str | None = None,
        registry: RegistryLike = None,
        subjects: str | Subjects = "topic",
        auto_register: bool = True,
        use_latest: bool = False,
    ) -> None:
        self._message = message
        self._class: Any = None
        self._folder: Path | None = None
        self._ready: _Compiled | None = None
        read = self._read(schema)
        super().__init__(
            read,
            record=None if self._class is None else self._class.DESCRIPTOR.full_name,
            registry=registry,
            subjects=subjects,
            auto_register=auto_register,
            use_latest=use_latest,
        )
        if read is not None and not read.references:
            self._own()

    def _read(self, given: Any) -> Schema | None:
        if hasattr(given, "DESCRIPTOR"):
            self._class = given if isinstance(given, type) else type(given)
            return Schema(text_of_file(given.DESCRIPTOR.file), PROTOBUF)
        if isinstance(given, Path):
            self._folder = given.parent
        if isinstance(given, Path) and given.is_file() and is_compiled(given.read_bytes()):
            files = given.read_bytes()
            self._class = Messages(files, message_name(files, self._message, str(given))).message
            return Schema(text_of_file(self._class.DESCRIPTOR.file), PROTOBUF)
        return read_schema(given, PROTOBUF)

    @property
    def kind(self) -> str:
        return PROTOBUF

    def of_type(self, kind: Any) -> Self:
        """The same, with values read as another message."""
        if not hasattr(kind, "DESCRIPTOR"):
            raise SchemaRefused(f"Protobuf reads messages: {kind!r} is no class of one")
        return self._like(_class=kind, _ready=None)

    def deserialize(self, topic: str, data: bytes) -> Any:
        if self._class is not None and self.registry is not None:
            # Any version of a message can be read as this one: nobody has to be asked.
            _, start = split_prefix(data)
            return self._class.FromString(data[split_message_path(data, start)[1] :])
        return super().deserialize(topic, data)

    def _own(self) -> "_Compiled":
        if self._class is None:
            assert self.schema is not None
            files = compile_proto(self.schema.text, self._parts(), "the schema", self._folder)
            self._class = Messages(files, message_name(files, self._message, "the schema")).message
            self.record = self._class.DESCRIPTOR.full_name
        if self._ready is None:
            self._ready = _Compiled(b"", self._class)
        return self._ready

    def _parsed(self, found: RegisteredSchema) -> "_Compiled":
        if self._class is not None:
            return self._own()
        return _Compiled(compile_proto(found.text, found.parts, f"schema {found.schema_id}"), None)

    def _to_register(self, registry: BlockingRegistry) -> Schema:
        assert self.schema is not None
        self._own()
        if self.schema.references:
            return self.schema
        return Schema(self.schema.text, PROTOBUF, self._registered_imports(self._class.DESCRIPTOR.file, registry))

    def _registered_imports(self, file: Any, registry: BlockingRegistry) -> tuple[Reference, ...]:
        """What a file imports, each registered under its own name, as Confluent's serializers do."""
        found = []
        for imported in file.dependencies:
            if imported.name.startswith(WELL_KNOWN):
                continue
            schema = Schema(text_of_file(imported), PROTOBUF, self._registered_imports(imported, registry))
            if self.auto_register:
                registry.register(imported.name, schema)
            version = registry.lookup(imported.name, schema).version
            if version is None:
                raise SchemaRefused(f"the registry does not say which version {imported.name!r} has")
            found.append(Reference(imported.name, imported.name, version))
        return tuple(found)

    def _learn_writer(self, topic: str) -> None:
        if self.schema is not None:
            self._own()
        super()._learn_writer(topic)

    def _encode(self, value: Any, parsed: "_Compiled", prefix: bytes) -> bytes:
        kind = self._class if self._class is not None else parsed.named(self._message)
        message = value if hasattr(value, "SerializeToString") else json_format.ParseDict(value, kind())
        if message.DESCRIPTOR.full_name != kind.DESCRIPTOR.full_name:
            raise ValueError(f"it is a {message.DESCRIPTOR.full_name}, not a {kind.DESCRIPTOR.full_name}")
        if prefix:
            prefix += parsed.path_to(kind)
        return prefix + bytes(message.SerializeToString())

    def _decode(self, data: bytes, start: int, parsed: "_Compiled") -> Any:
        if self.registry is None:
            return parsed.only.FromString(data)
        path, pos = split_message_path(data, start)
        return parsed.at(path).FromString(data[pos:])


class _Compiled:
    """A schema's files and the classes of its messages, made when first met."""

    def __init__(self, files: bytes, only: Any) -> None:
        self.only = only
        self._files = files
        self._pool: Any = None
        self._classes: dict[str | tuple[int, ...] | None, Any] = {}
        self._paths: dict[Any, bytes] = {}

    def at(self, path: tuple[int, ...]) -> Any:
        found = self._classes.get(path)
        if found is None:
            found = self._classes[path] = self._of(name_at(self._files, path))
        return found

    def named(self, name: str | None) -> Any:
        found = self._classes.get(name)
        if found is None:
            found = self._classes[name] = self._of(message_name(self._files, name, "the registry's schema"))
        return found

    def path_to(self, kind: Any) -> bytes:
        found = self._paths.get(kind)
        if found is None:
            found = self._paths[kind] = message_path(path_of(kind.DESCRIPTOR))
        return found

    def _of(self, name: str) -> Any:
        if self._pool is None:
            self._pool = pool_of(self._files)
        return message_factory.GetMessageClass(self._pool.FindMessageTypeByName(name))


def as_dict(message: Any) -> Any:
    """A message as protobuf's JSON mapping has it, with the names of the .proto."""
    return json_format.MessageToDict(message, preserving_proto_field_name=True)
