"""Schemas as a registry keeps them."""

from typing import NamedTuple

AVRO, PROTOBUF, JSON = "AVRO", "PROTOBUF", "JSON"


class Reference(NamedTuple):
    """A schema that another one uses: `name` is how it is called there, an Avro type's full name or an import."""

    name: str
    subject: str
    version: int


class Schema(NamedTuple):
    """A schema's text, its kind (AVRO, PROTOBUF or JSON) and what it refers to."""

    text: str
    kind: str = AVRO
    references: tuple[Reference, ...] = ()


class RegisteredSchema(NamedTuple):
    """A schema that the registry knows by an id. `parts` are (name, text) of all that it refers to, those that others
    need first."""

    schema_id: int
    schema: Schema
    parts: tuple[tuple[str, str], ...] = ()
    subject: str | None = None
    version: int | None = None

    @property
    def text(self) -> str:
        return self.schema.text
