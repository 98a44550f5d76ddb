"""Schemas of values: a schema registry's client, Confluent's wire format, and Avro, Protobuf and JSON Schema.

`blocking` asks the registry; all else decides. Formats need the extra `registry` and import what they use when made.
"""

from typing import TYPE_CHECKING

from headrace.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from headrace.client.registry.avro import Avro as Avro
    from headrace.client.registry.blocking import BlockingRegistry as BlockingRegistry
    from headrace.client.registry.client import SchemaRegistry as SchemaRegistry
    from headrace.client.registry.errors import (
        NoSchema as NoSchema,
        NoSubject as NoSubject,
        RegistryError as RegistryError,
        RegistryUnreachable as RegistryUnreachable,
        SchemaRefused as SchemaRefused,
    )
    from headrace.client.registry.json_schema import JsonSchema as JsonSchema
    from headrace.client.registry.protobuf import Protobuf as Protobuf
    from headrace.client.registry.types import (
        Reference as Reference,
        RegisteredSchema as RegisteredSchema,
        Schema as Schema,
    )
else:
    __getattr__, __dir__, __all__ = lazy_exports(
        __name__,
        {
            "avro": ["Avro"],
            "blocking": ["BlockingRegistry"],
            "client": ["SchemaRegistry"],
            "errors": ["NoSchema", "NoSubject", "RegistryError", "RegistryUnreachable", "SchemaRefused"],
            "json_schema": ["JsonSchema"],
            "protobuf": ["Protobuf"],
            "types": ["Reference", "RegisteredSchema", "Schema"],
        },
    )
