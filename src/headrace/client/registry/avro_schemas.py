"""Avro schemas as fastavro wants them, with the types of other schemas that they name."""

import json
from collections.abc import Mapping
from typing import Any

import fastavro
from fastavro.schema import SchemaParseException

from headrace.client.registry.errors import SchemaRefused
from headrace.client.registry.types import RegisteredSchema

Document = Any
"""A schema as JSON has it: a name, a list, or a dict."""


def read_document(text: str, origin: str) -> Document:
    """Raises SchemaRefused."""
    try:
        return json.loads(text)
    except ValueError as error:
        raise SchemaRefused(f"{origin} is not an Avro schema in JSON: {error}") from None


def parse_document(document: Document, parts: Mapping[str, Document], origin: str) -> Any:
    """What fastavro reads and writes by. `parts` define types that `document` names. Raises SchemaRefused."""
    names: dict[str, Any] = {}
    try:
        for part in parts.values():
            fastavro.parse_schema(part, named_schemas=names)
        return fastavro.parse_schema(document, named_schemas=names)
    except (SchemaParseException, KeyError, TypeError, ValueError) as error:
        raise SchemaRefused(f"{origin} is not a valid Avro schema: {reason_of(error)}") from None


def parse_registered(found: RegisteredSchema) -> Any:
    """A schema of a registry with what it refers to."""
    origin = f"schema {found.schema_id}"
    parts = {name: read_document(text, f"reference '{name}'") for name, text in found.parts}
    return parse_document(read_document(found.text, origin), parts, origin)


def name_of(document: Document) -> str | None:
    """The full name of the record, enum or fixed that a schema is."""
    if not isinstance(document, dict) or "name" not in document:
        return None
    name, space = str(document["name"]), document.get("namespace")
    return f"{space}.{name}" if space and "." not in name else name


def reason_of(error: BaseException) -> str:
    """Why a schema or a value was refused, in a line."""
    if isinstance(error, EOFError):
        return "the value ends in the middle of a record"
    text = str(error).strip()
    return f"{type(error).__name__}: {text}" if isinstance(error, KeyError | IndexError) or not text else text
