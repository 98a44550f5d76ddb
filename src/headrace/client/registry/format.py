"""What Avro, Protobuf and JSON Schema have in common: which subject a schema has, and the id before each value.

A format never waits: what it does not know yet it raises as NotReady, and whoever called it asks where it may wait.
"""

import copy
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Generic, Self, TypeVar

from headrace.client.errors import NotReady
from headrace.client.registry.blocking import BlockingRegistry
from headrace.client.registry.client import SchemaRegistry, blocking_of
from headrace.client.registry.errors import NoSchema, NoSubject, RegistryError, SchemaRefused
from headrace.client.registry.types import RegisteredSchema, Schema
from headrace.client.registry.wire import prefix_of, split_prefix

KNOWN_MAX = 1_000
"""Topics whose subject, and ids whose schema, one serializer remembers; beyond that the oldest is asked for again."""

Subjects = Callable[[str, str | None, bool], str]
"""A subject of (topic, the record's full name, whether it is a key)."""
RegistryLike = SchemaRegistry | BlockingRegistry | str | None
K = TypeVar("K")
V = TypeVar("V")
P = TypeVar("P")

SUBJECTS: dict[str, Subjects] = {
    "topic": lambda topic, record, is_key: f"{topic}-{'key' if is_key else 'value'}",
    "record": lambda topic, record, is_key: str(record),
    "topic-record": lambda topic, record, is_key: f"{topic}-{record}",
}


class SchemaFormat(ABC, Generic[P]):
    """A serializer and deserializer by schemas; `P` is a schema made ready for use.

    Without a registry, values are just what the schema says, and have no id before them.
    """

    def __init__(
        self,
        schema: Schema | None,
        *,
        record: str | None,
        registry: RegistryLike,
        subjects: str | Subjects,
        auto_register: bool,
        use_latest: bool,
    ) -> None:
        self.registry = blocking_of(registry)
        self.schema = schema
        self.record = record
        self.auto_register = auto_register
        self.use_latest = use_latest or schema is None
        self.is_key = False
        if schema is None and self.registry is None:
            raise SchemaRefused(f"{type(self).__name__} needs a schema, or registry= to ask for it")
        if isinstance(subjects, str) and subjects not in SUBJECTS:
            raise SchemaRefused(f"subjects is {subjects!r}: write {', '.join(SUBJECTS)}, or give a function")
        self._needs_record = subjects in ("record", "topic-record")
        self._subjects: Subjects = SUBJECTS[subjects] if isinstance(subjects, str) else subjects
        self._writers: _Remembered[str, tuple[bytes, P]] = _Remembered()
        self._readers: _Remembered[int, P] = _Remembered()

    def as_key(self) -> Self:
        """The same for keys, whose schemas have subjects of their own."""
        return self._like(is_key=True)

    def _like(self, **changed: Any) -> Self:
        other = copy.copy(self)
        other.__dict__.update(changed)
        other._writers, other._readers = _Remembered(), _Remembered()
        return other

    # -- both ways

    def serialize(self, topic: str, value: Any) -> bytes | None:
        if value is None:
            return None
        if self.registry is None:
            return self._encode(value, self._own(), b"")
        known = self._writers.get(topic)
        if known is None:
            raise NotReady(partial(self._learn_writer, topic))
        prefix, parsed = known
        return self._encode(value, parsed, prefix)

    def deserialize(self, topic: str, data: bytes) -> Any:
        if self.registry is None:
            return self._decode(data, 0, self._own())
        schema_id, start = split_prefix(data)
        parsed = self._readers.get(schema_id)
        if parsed is None:
            raise NotReady(partial(self._learn_reader, schema_id))
        return self._decode(data, start, parsed)

    # -- schemas

    def _learn_writer(self, topic: str) -> None:
        """The id that values for this topic are written with."""
        assert self.registry is not None
        if self._needs_record and not self.record:
            raise SchemaRefused("the subject is named after the record, and the schema has no name: give it one, or"
                                " leave out subjects=")  # fmt: skip
        subject = self._subjects(topic, self.record, self.is_key)
        if self.use_latest:
            found = self.registry.latest(subject)
            self._check_kind(found)
            self._writers[topic] = self._prefix(found.schema_id), self._parsed(found)
            return
        schema = self._to_register(self.registry)
        if self.auto_register:
            schema_id = self.registry.register(subject, schema)
        else:
            schema_id = self._looked_up(subject, schema)
        self._writers[topic] = self._prefix(schema_id), self._own()

    def _looked_up(self, subject: str, schema: Schema) -> int:
        assert self.registry is not None
        try:
            return self.registry.lookup(subject, schema).schema_id
        except (NoSubject, NoSchema):
            raise RegistryError(
                f"the schema is not registered under {subject!r} at {self.registry.url}: register it, or leave out"
                " auto_register=False"
            ) from None

    def _learn_reader(self, schema_id: int) -> None:
        assert self.registry is not None
        found = self.registry.by_id(schema_id)
        self._check_kind(found)
        self._own_if_any()
        self._readers[schema_id] = self._parsed(found)

    def _own_if_any(self) -> None:
        """Make a schema of one's own ready while waiting is allowed: what it refers to is the registry's to say."""
        if self.schema is not None:
            self._own()

    def _check_kind(self, found: RegisteredSchema) -> None:
        if found.schema.kind != self.kind:
            raise SchemaRefused(f"schema {found.schema_id} of the registry is {found.schema.kind}, not {self.kind}")

    def _parts(self) -> tuple[tuple[str, str], ...]:
        assert self.schema is not None
        if not self.schema.references:
            return ()
        if self.registry is None:
            raise SchemaRefused("the schema refers to others of a registry: give registry=")
        return self.registry.parts(self.schema)

    def _to_register(self, registry: BlockingRegistry) -> Schema:
        assert self.schema is not None
        return self.schema

    def _prefix(self, schema_id: int) -> bytes:
        return prefix_of(schema_id)

    @property
    @abstractmethod
    def kind(self) -> str:
        """AVRO, PROTOBUF or JSON."""

    @abstractmethod
    def _own(self) -> P:
        """The schema that was given, made ready."""

    @abstractmethod
    def _parsed(self, found: RegisteredSchema) -> P:
        """A schema of the registry, made ready. Raises SchemaRefused."""

    @abstractmethod
    def _encode(self, value: Any, parsed: P, prefix: bytes) -> bytes: ...

    @abstractmethod
    def _decode(self, data: bytes, start: int, parsed: P) -> Any: ...


class _Remembered(Generic[K, V]):
    """A dict with a limit, which threads may fill while another looks."""

    def __init__(self) -> None:
        self._known: dict[K, V] = {}
        self._lock = threading.Lock()
        self.get = self._known.get

    def __setitem__(self, key: K, value: V) -> None:
        with self._lock:
            self._known[key] = value
            while len(self._known) > KNOWN_MAX:
                del self._known[next(iter(self._known))]


def read_schema(given: Any, kind: str) -> Schema | None:
    """A schema as users give it: its text, a file, or what a registry knows with its references. Raises
    SchemaRefused."""
    if given is None or isinstance(given, Schema):
        return given
    if isinstance(given, Path):
        try:
            return Schema(given.read_text(), kind)
        except (OSError, UnicodeDecodeError) as error:
            raise SchemaRefused(f"the schema cannot be read from {given}: {error}") from None
    if isinstance(given, str):
        return Schema(given, kind)
    raise SchemaRefused(f"the schema is {type(given).__name__}: give its text, a pathlib.Path, or a headrace.Schema")


def needs(module: str) -> SchemaRefused:
    """What to say where a library is missing."""
    return SchemaRefused(f"this needs {module}: pip install 'headrace[registry]'")
