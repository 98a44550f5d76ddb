"""What can go wrong with a schema registry and with schemas, in words for the person who reads them."""

from headrace.client.errors import ClientError


class RegistryError(ClientError):
    """The registry refuses, cannot be reached, or does not have what was asked for."""


class RegistryUnreachable(RegistryError):
    """Nobody answers, or only with failures that may pass. It says nothing about the schema or the value."""


class NoSubject(RegistryError):
    """The registry has nothing under this subject, or not this version."""


class NoSchema(RegistryError):
    """The registry does not know this schema."""


class SchemaRefused(ClientError, ValueError):
    """A schema that cannot be used. The message says what to change."""
