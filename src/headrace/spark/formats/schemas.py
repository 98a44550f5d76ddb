"""Where a schema comes from: the option itself, a file, or a registry; and Confluent's prefix that names one by id."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from struct import Struct
from typing import Any

from headrace.spark.formats.registry import Registry
from headrace.spark.options import OptionError
from headrace.spark.plain_errors import UserError

PREFIX = Struct(">bI")
"""A zero byte and the schema's id, before every value that a registry knows the schema of."""
MAGIC = 0


class FormatError(UserError, ValueError):
    """A schema that cannot be used, or columns that do not fit it. The message says what to change."""


@dataclass(frozen=True)
class SchemaSource:
    """The options' answer to "which schema": a text or bytes, a registry with a subject, or both."""

    given: bytes | None
    registry: Registry | None
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
        registry = Registry(url)
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


def split_prefix(value: bytes) -> tuple[int, int]:
    """(the schema's id, where what it describes begins). Raises ValueError on values without the prefix."""
    if len(value) < PREFIX.size or value[0] != MAGIC:
        raise ValueError("the value does not begin with a schema id: it was not written through a schema registry")
    return PREFIX.unpack_from(value)[1], PREFIX.size
