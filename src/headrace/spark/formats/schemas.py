"""Where a schema comes from: the option itself, a file, or a registry."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.client.registry.blocking import BlockingRegistry
from headrace.client.registry.errors import SchemaRefused
from headrace.spark.options import OptionError
from headrace.spark.plain_errors import UserError


class FormatError(UserError, ValueError):
    """A schema that cannot be used, or columns that do not fit it. The message says what to change."""


@dataclass(frozen=True)
class SchemaSource:
    """The options' answer to "which schema": a text or bytes, a registry with a subject, or both."""

    given: bytes | None
    registry: BlockingRegistry | None
    subject: str | None
    origin: str
    """How to name the schema in messages: the option that it came from."""

    @property
    def text(self) -> str:
        assert self.given is not None
        try:
            return self.given.decode()
        except UnicodeDecodeError:
            raise FormatError(f"{self.origin} is not text in UTF-8") from None

    @classmethod
    def for_reading(cls, values: Mapping[str, Any]) -> "SchemaSource":
        topics: tuple[str, ...] = values.get("subscribe") or ()
        return cls._of(values, topics[0] if len(topics) == 1 else None)

    @classmethod
    def for_writing(cls, values: Mapping[str, Any]) -> "SchemaSource":
        return cls._of(values, values.get("topic"))

    @classmethod
    def _of(cls, values: Mapping[str, Any], topic: str | None) -> "SchemaSource":
        inline, file, url = values["valueSchema"], values["valueSchemaFile"], values["valueSchemaRegistry"]
        if inline is not None and file is not None:
            raise OptionError(
                "option 'valueSchemaFile' is set beside valueSchema", "leave one of them out", option="valueSchemaFile"
            )
        given, origin = None, "option 'valueSchema'"
        if inline is not None:
            given = inline.encode()
        elif file is not None:
            given, origin = _read(file), f"option 'valueSchemaFile' ({file})"
        subject = values["valueSchemaSubject"]
        if url is None:
            if subject is not None:
                raise OptionError(
                    "option 'valueSchemaSubject' means something only with valueSchemaRegistry",
                    "set its URL",
                    option="valueSchemaSubject",
                )
            return cls(given, None, None, origin)
        registry = BlockingRegistry(url)
        if subject is None and topic is not None:
            subject = f"{topic}-value"
        if subject is None and given is None:
            raise OptionError(
                "option 'valueSchemaSubject' is missing",
                "with several topics, or none named, the registry cannot be asked for <topic>-value; set the subject",
                option="valueSchemaSubject",
            )
        return cls(given, registry, subject, origin if given is not None else f"subject '{subject}' of {url}")


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise OptionError(
            f"option 'valueSchemaFile' is {path!r}, which cannot be read ({error.strerror})",
            "give the path of a file on the driver",
            option="valueSchemaFile",
        ) from None


@contextmanager
def refusals() -> Iterator[None]:
    """What the client says of a schema, as an error of the query's options."""
    try:
        yield
    except SchemaRefused as error:
        raise FormatError(str(error)) from None
