"""Values with a schema on the command line: Avro, Protobuf and JSON Schema, shown and taken as JSON."""

import base64
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import typer

from headrace.cli.records.output_lines import FORMATS, Decode, as_text, decoder_of
from headrace.client.errors import ClientError, NotReady
from headrace.client.registry.errors import RegistryUnreachable

TYPED = ("avro", "protobuf", "jsonschema")
ALL_FORMATS = (*FORMATS, *TYPED)
ALL_FORMATS_HELP = ", ".join(ALL_FORMATS)

REGISTRY = typer.Option(
    None,
    "--registry",
    metavar="URL",
    envvar="HEADRACE_REGISTRY",
    help="The schema registry, for avro, protobuf and jsonschema: http://user:password@host:8081.",
)
SCHEMA = typer.Option(
    None,
    "--schema",
    metavar="FILE",
    help="The schema of values, .avsc, .proto or .json; without --registry values are just that.",
)
MESSAGE = typer.Option(None, "--message", metavar="NAME", help="Which message of several, for protobuf.")


class Schemas:
    """What the options say about schemas."""

    def __init__(self, registry: str | None, schema: Path | None, message: str | None) -> None:
        self._registry = registry
        self._schema = schema
        self._message = message

    def decoder(self, name: str, option: str) -> Decode:
        """How bytes are shown. Raises ClientError for a format that is not known, or that lacks its schema."""
        if name not in TYPED:
            return decoder_of(name, option, ALL_FORMATS)
        made = self._format(name, option)
        deserialize, is_told = made.deserialize, False

        def decode(data: bytes) -> Any:
            nonlocal is_told
            try:
                value = waiting(deserialize, "", data)
            except RegistryUnreachable:
                raise
            except Exception as error:
                # A record that somebody else wrote in another format must not end the reading of all others.
                if not is_told:
                    print(f"{option} {name}: shown as they are: {error}", file=sys.stderr)
                is_told = True
                return as_text(data)
            return _plain(value)

        return decode

    def encoder(self, name: str, option: str, topic: str, *, is_key: bool = False) -> Callable[[bytes], bytes] | None:
        """What makes a value of the text it was given as; None where it is written as it is. Raises ClientError."""
        if name == "text":
            return None
        if name == "msgpack":
            return lambda text: msgspec.msgpack.encode(_from_json(text))
        if name == "json":
            return lambda text: msgspec.json.encode(_from_json(text, strict=True))
        if name in ("hex", "base64"):
            return _from_hex if name == "hex" else _from_base64
        if name not in TYPED:
            raise ClientError(f"{option} {name}: write one of {ALL_FORMATS_HELP}")
        made = self._format(name, option)
        if is_key:
            made = made.as_key()
        convert = _converter(made, topic) if name == "avro" else lambda value: value

        def encode(text: bytes) -> bytes:
            try:
                found: bytes = waiting(lambda: made.serialize(topic, convert(_from_json(text))))
                return found
            except ClientError:
                raise
            except Exception as error:
                raise ClientError(f"cannot be written as {name}: {error}") from None

        return encode

    def _format(self, name: str, option: str) -> Any:
        if self._registry is None and self._schema is None:
            raise ClientError(f"{option} {name} needs a schema: give --registry URL, or --schema FILE")
        from headrace.client.registry import Avro, JsonSchema, Protobuf

        if name == "avro":
            return Avro(self._schema, registry=self._registry)
        if name == "jsonschema":
            return JsonSchema(self._schema, registry=self._registry)
        return Protobuf(self._schema, message=self._message, registry=self._registry)


def waiting(call: Callable[..., Any], *args: Any) -> Any:
    """What a call returns, with the registry asked in between where it has to be."""
    while True:
        try:
            return call(*args)
        except NotReady as unready:
            learn = unready.learn
        learn()


def _converter(made: Any, topic: str) -> Callable[[Any], Any]:
    """JSON as the schema that is written with wants it, whichever the registry turns out to say."""
    from headrace.client.registry.avro_json import FromJson

    known: dict[int, tuple[Any, FromJson]] = {}

    def convert(value: Any) -> Any:
        parsed = made.written_with(topic)
        if id(parsed) not in known:
            known[id(parsed)] = parsed, FromJson(parsed)
        return known[id(parsed)][1](value)

    return convert


def _plain(value: Any) -> Any:
    if hasattr(value, "SerializeToString"):
        from headrace.client.registry.protobuf import as_dict

        return as_dict(value)
    return value


def _from_json(text: bytes, *, strict: bool = False) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        if strict:
            raise ClientError(f"{text[:60]!r} is not JSON: {error}") from None
    return text.decode(errors="replace")


def _from_hex(text: bytes) -> bytes:
    try:
        return bytes.fromhex(text.decode())
    except ValueError:
        raise ClientError(f"{text[:60]!r} is not hexadecimal") from None


def _from_base64(text: bytes) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        raise ClientError(f"{text[:60]!r} is not base64") from None
