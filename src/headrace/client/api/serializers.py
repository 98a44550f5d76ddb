"""Values to bytes and back: bytes, text, JSON with types, or whatever a function makes of them."""

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import msgspec

from headrace.client.errors import ClientError


class SerializationFailed(ClientError):
    """A value that cannot be written, or bytes that cannot be read, with where it happened."""


@runtime_checkable
class Serializer(Protocol):
    """Makes bytes of values, and knows the topic they go to. One that has to ask somebody first raises NotReady."""

    def serialize(self, topic: str, value: Any) -> bytes | None: ...


@runtime_checkable
class Deserializer(Protocol):
    """Makes values of bytes, and knows the topic they are from. Never asked about a value that is missing. One that has
    to ask somebody first raises NotReady."""

    def deserialize(self, topic: str, data: bytes) -> Any: ...


class Str:
    """Text, in UTF-8 unless told otherwise."""

    def __init__(self, encoding: str = "utf-8") -> None:
        self._encoding = encoding

    def serialize(self, topic: str, value: Any) -> bytes | None:
        if value is None:
            return None
        if not isinstance(value, str):
            raise SerializationFailed(f"{type(value).__name__} where text is expected")
        return value.encode(self._encoding)

    def deserialize(self, topic: str, data: bytes) -> str:
        return data.decode(self._encoding)


class Json:
    """JSON. With a type (a dataclass, a pydantic model, a msgspec.Struct, `list[int]`...), values are checked and made
    into it when read."""

    def __init__(self, type: Any = Any) -> None:
        self._encoder = msgspec.json.Encoder(enc_hook=_to_builtins)
        validate = getattr(type, "model_validate_json", None)
        self._decode: Callable[[bytes], Any] = (
            validate if callable(validate) else msgspec.json.Decoder(type, dec_hook=_from_builtins).decode
        )

    def serialize(self, topic: str, value: Any) -> bytes | None:
        if value is None:
            return None
        dump = getattr(value, "model_dump_json", None)
        if callable(dump):
            return str(dump()).encode()
        return self._encoder.encode(value)

    def deserialize(self, topic: str, data: bytes) -> Any:
        return self._decode(data)


def _to_builtins(value: Any) -> Any:
    """What msgspec does not know itself: pydantic models inside of something else."""
    dump = getattr(value, "model_dump", None)
    if callable(dump):
        return dump(mode="json")
    raise NotImplementedError(f"{type(value).__name__} has no form in JSON")


def _from_builtins(kind: Any, value: Any) -> Any:
    validate = getattr(kind, "model_validate", None)
    if callable(validate):
        return validate(value)
    raise NotImplementedError(f"{kind.__name__} cannot be made from JSON")


Encode = Callable[[str, Any], bytes | None]
Decode = Callable[[str, bytes], Any]

_NAMED: dict[str, Callable[[], Any]] = {"str": Str, "json": Json}


def encoder_of(given: Any, what: str) -> Encode | None:
    """A function (topic, value) of what the option was given; None for plain bytes and text."""
    if given is None or given == "bytes":
        return None
    if isinstance(given, str):
        given = _named(given, what)
    if isinstance(given, Serializer):
        return _for(given, what).serialize  # type: ignore[no-any-return]
    if callable(given):
        return lambda topic, value: given(value)
    raise ClientError(f"{what} is {given!r}: give a function of a value, an object with serialize(topic, value), "
                      "or 'bytes', 'str' or 'json'")  # fmt: skip


def decoder_of(given: Any, what: str) -> Decode | None:
    """A function (topic, bytes) of what the option was given; None for plain bytes."""
    if given is None or given == "bytes":
        return None
    if isinstance(given, str):
        given = _named(given, what)
    if isinstance(given, Deserializer):
        return _for(given, what).deserialize  # type: ignore[no-any-return]
    if callable(given):
        return lambda topic, data: given(data)
    raise ClientError(f"{what} is {given!r}: give a function of bytes, an object with deserialize(topic, data), "
                      "or 'bytes', 'str' or 'json'")  # fmt: skip


def _for(given: Any, what: str) -> Any:
    """A format that treats keys in a way of its own says so by `as_key`."""
    as_key = getattr(given, "as_key", None)
    return as_key() if what.startswith("key_") and callable(as_key) else given


def _named(name: str, what: str) -> Any:
    if name not in _NAMED:
        raise ClientError(f"{what} is {name!r}: write bytes, str or json, or give a function")
    return _NAMED[name]()


def plain_bytes(value: Any, what: str) -> bytes | None:
    """What needs no serializer: bytes, text as UTF-8, nothing. Raises ClientError for all else."""
    if value is None or type(value) is bytes:
        return value
    if isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError as error:
            raise SerializationFailed(f"the {what} is no text that UTF-8 can hold: {error}") from None
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    fix = f": give the producer a {what}_serializer ('json'?)" if what in ("key", "value") else ""
    raise SerializationFailed(f"the {what} is {type(value).__name__}, not bytes or text{fix}")
