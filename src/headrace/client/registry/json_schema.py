"""`headrace.JsonSchema`: JSON values that a schema has checked."""

import json
from typing import Any, Self

import msgspec

from headrace.client.registry.errors import SchemaRefused
from headrace.client.registry.format import RegistryLike, SchemaFormat, Subjects, needs, read_schema
from headrace.client.registry.types import JSON, RegisteredSchema

try:
    import jsonschema
    import referencing
    import referencing.jsonschema
except ImportError as missing:
    raise needs(missing.name or "jsonschema") from None


class JsonSchema(SchemaFormat[Any]):
    """A serializer and deserializer of JSON with a schema, checked both ways unless `validate` is False.

        orders = headrace.JsonSchema(type=Order, registry="http://127.0.0.1:8081")

    `schema` is the JSON Schema as text or as a dict, a file's Path, or a `Schema` with references; a `type` alone (a
    dataclass, a pydantic model, a msgspec.Struct) has one of its own. Values that are read are made into `type`.
    """

    def __init__(
        self,
        schema: Any = None,
        *,
        registry: RegistryLike = None,
        type: Any = None,
        validate: bool = True,
        subjects: str | Subjects = "topic",
        auto_register: bool = True,
        use_latest: bool = False,
    ) -> None:
        if schema is None and type is not None and not use_latest:
            schema = schema_of(type)
        if isinstance(schema, dict):
            schema = json.dumps(schema)
        read = read_schema(schema, JSON)
        self._document = None if read is None else _document(read.text, "the schema")
        self._ready: Any = None
        self._validate = validate
        self._type = type
        title = self._document.get("title") if isinstance(self._document, dict) else None
        super().__init__(
            read,
            record=title,
            registry=registry,
            subjects=subjects,
            auto_register=auto_register,
            use_latest=use_latest,
        )
        if read is not None and not read.references:
            self._own()

    @property
    def kind(self) -> str:
        return JSON

    def of_type(self, kind: Any) -> Self:
        """The same, with values made into another type."""
        return self._like(_type=kind)

    def _own(self) -> Any:
        if self._ready is None:
            if self._document is None:
                raise SchemaRefused("JsonSchema needs a schema, a type, or registry= to ask for it")
            self._ready = _validator(self._document, self._parts(), "the schema")
        return self._ready

    def _parsed(self, found: RegisteredSchema) -> Any:
        origin = f"schema {found.schema_id}"
        return _validator(_document(found.text, origin), found.parts, origin)

    def _encode(self, value: Any, parsed: Any, prefix: bytes) -> bytes:
        dump = getattr(value, "model_dump", None)
        plain = dump(mode="json") if callable(dump) else msgspec.to_builtins(value)
        self._check(plain, parsed)
        return prefix + msgspec.json.encode(plain)

    def _decode(self, data: bytes, start: int, parsed: Any) -> Any:
        plain = msgspec.json.decode(memoryview(data)[start:])
        self._check(plain, parsed)
        kind = self._type
        if kind in (None, Any, dict):
            return plain
        validate = getattr(kind, "model_validate", None)
        return validate(plain) if callable(validate) else msgspec.convert(plain, kind)

    def _check(self, plain: Any, validator: Any) -> None:
        if not self._validate:
            return
        error = jsonschema.exceptions.best_match(validator.iter_errors(plain))
        if error is not None:
            raise ValueError(f"{error.json_path}: {error.message}")


def schema_of(kind: Any) -> dict[str, Any]:
    """The schema that a type has of itself. Raises SchemaRefused."""
    own = getattr(kind, "model_json_schema", None)
    try:
        found: dict[str, Any] = own() if callable(own) else msgspec.json.schema(kind)
    except (TypeError, ValueError) as error:
        raise SchemaRefused(f"{kind!r} has no JSON Schema of its own, give schema=: {error}") from None
    # Subjects are named by the title, and only objects at the top have one.
    reference = found.get("$ref")
    if isinstance(reference, str) and "title" not in found:
        found = {"title": reference.rsplit("/", 1)[-1], **found}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **found}


def _document(text: str, origin: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise SchemaRefused(f"{origin} is not a JSON Schema: {error}") from None


def _validator(document: Any, parts: tuple[tuple[str, str], ...], origin: str) -> Any:
    """Never looks for a reference on the network: what is not among `parts` is not there."""
    known: Any = referencing.Registry()
    for name, text in parts:
        resource = referencing.Resource.from_contents(
            _document(text, f"reference '{name}'"), default_specification=referencing.jsonschema.DRAFT202012
        )
        known = known.with_resource(name, resource)
    kind = jsonschema.validators.validator_for(document, default=jsonschema.Draft202012Validator)
    try:
        kind.check_schema(document)
    except jsonschema.SchemaError as error:
        raise SchemaRefused(f"{origin} is not a valid JSON Schema: {error.message}") from None
    return kind(document, registry=known)
