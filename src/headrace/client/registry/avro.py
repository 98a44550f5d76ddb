"""`headrace.Avro`: values by Avro schemas, each read as the schema it was written with says."""

import io
import json
from functools import partial
from typing import Any, Self

from headrace.client.errors import NotReady
from headrace.client.registry.conversion import into, to_plain
from headrace.client.registry.errors import SchemaRefused
from headrace.client.registry.format import RegistryLike, SchemaFormat, Subjects, needs, read_schema
from headrace.client.registry.types import AVRO, RegisteredSchema

try:
    import fastavro

    from headrace.client.registry.avro_schemas import name_of, parse_document, parse_registered, read_document
except ImportError as missing:
    raise needs(missing.name or "fastavro") from None


class Avro(SchemaFormat[Any]):
    """A serializer and deserializer.

        orders = headrace.Avro(schema, registry="http://127.0.0.1:8081", type=Order)
        headrace.Producer(value_serializer=orders)
        headrace.Consumer("orders", value_deserializer=orders)

    `schema` is Avro's JSON as text or as a dict, a file's Path, or a `Schema` with references. Values that are read are
    made into it by Avro's rules for evolution, whichever they were written with; without it they stay as they were
    written. `type` makes them a dataclass, a pydantic model or a msgspec.Struct; these and dicts can be written.
    """

    def __init__(
        self,
        schema: Any = None,
        *,
        registry: RegistryLike = None,
        type: Any = None,
        subjects: str | Subjects = "topic",
        auto_register: bool = True,
        use_latest: bool = False,
    ) -> None:
        if isinstance(schema, dict | list):
            schema = json.dumps(schema)
        read = read_schema(schema, AVRO)
        self._document = None if read is None else read_document(read.text, "the schema")
        self._ready: Any = None
        self._into = into(type)
        super().__init__(
            read,
            record=name_of(self._document),
            registry=registry,
            subjects=subjects,
            auto_register=auto_register,
            use_latest=use_latest,
        )
        if read is not None and not read.references:
            self._own()

    @property
    def kind(self) -> str:
        return AVRO

    def of_type(self, kind: Any) -> Self:
        """The same, with values made into another type."""
        return self._like(_into=into(kind))

    def _own(self) -> Any:
        if self._ready is None:
            if self._document is None:
                raise SchemaRefused("Avro needs a schema, or registry= to ask for it")
            parts = {name: read_document(text, f"reference '{name}'") for name, text in self._parts()}
            self._ready = parse_document(self._document, parts, "the schema")
        return self._ready

    def written_with(self, topic: str) -> Any:
        """The schema that values for a topic are written with, as fastavro has parsed it. Raises NotReady."""
        if self.registry is None:
            return self._own()
        known = self._writers.get(topic)
        if known is None:
            raise NotReady(partial(self._learn_writer, topic))
        return known[1]

    def _parsed(self, found: RegisteredSchema) -> Any:
        return parse_registered(found)

    def _encode(self, value: Any, parsed: Any, prefix: bytes) -> bytes:
        stream = io.BytesIO()
        stream.write(prefix)
        fastavro.schemaless_writer(stream, parsed, to_plain(value))
        return stream.getvalue()

    def _decode(self, data: bytes, start: int, parsed: Any) -> Any:
        stream = io.BytesIO(data)
        stream.seek(start)
        value = fastavro.schemaless_reader(stream, parsed, self._ready if self.registry is not None else None)
        if stream.tell() != len(data):
            raise ValueError(f"{len(data) - stream.tell()} bytes are left over: it was written with another schema")
        return value if self._into is None else self._into(value)
