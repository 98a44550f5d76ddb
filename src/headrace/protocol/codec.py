"""Codecs: one per message, found by name, compiled per version on first use.

Importing this reads the first line of each table; a table's body is parsed when its message is first needed.
"""

from collections.abc import Iterable
from typing import Any

from headrace.protocol.decoders import Decode, compile_decoder
from headrace.protocol.encoders import Encode, compile_encoder
from headrace.protocol.primitives import Buffer, ProtocolError, UnsupportedVersion
from headrace.protocol.schema import (
    MessageHeader,
    StructSpec,
    build_classes,
    load_headers,
    parse_body,
)


class Codec:
    """Encodes and decodes one message in all its versions."""

    __slots__ = (
        "_decoders",
        "_encoders",
        "_entry_encoders",
        "_root",
        "_structs",
        "flexible_from",
        "header",
        "key",
        "max_version",
        "min_version",
        "name",
    )

    def __init__(self, header: MessageHeader) -> None:
        self.header = header
        self.name = header.name
        self.key = header.key
        self.min_version = header.versions.low
        self.max_version = header.versions.high
        self.flexible_from = header.flexible_from
        self._root: StructSpec | None = None
        self._structs: dict[str, StructSpec] = {}
        self._decoders: dict[int, Decode] = {}
        self._encoders: dict[int, Encode] = {}
        self._entry_encoders: dict[tuple[str, int], Encode] = {}

    def __repr__(self) -> str:
        return f"<Codec {self.name} v{self.min_version}-{self.max_version}>"

    @property
    def root(self) -> StructSpec:
        """The message's fields, with its classes built."""
        if self._root is None:
            root, structs = parse_body(self.header)
            build_classes(self.header, root, structs)
            self._root, self._structs = root, structs
        return self._root

    @property
    def structs(self) -> dict[str, StructSpec]:
        """The structs inside the message by name."""
        assert self.root is not None
        return self._structs

    @property
    def struct(self) -> Any:
        """The message's class."""
        return self.root.cls

    @property
    def versions(self) -> range:
        return range(self.min_version, self.max_version + 1)

    def is_flexible(self, version: int) -> bool:
        return version >= self.flexible_from

    def decoder(self, version: int) -> Decode:
        """`decode(buf, pos, end) -> (object, pos)`; `end` is inside `buf`, and what follows `pos` is the caller's."""
        decode = self._decoders.get(version)
        if decode is None:
            self._check(version)
            decode = self._decoders[version] = compile_decoder(self.root, version, self.is_flexible(version))
        return decode

    def encoder(self, version: int) -> Encode:
        """`encode(object, write)`, where `write` is usually a list's append."""
        encode = self._encoders.get(version)
        if encode is None:
            self._check(version)
            has_tags = self.flexible_from <= self.max_version
            encode = compile_encoder(self.root, version, self.is_flexible(version), has_tags)
            self._encoders[version] = encode
        return encode

    def encode_entry(self, entry: Any, version: int) -> bytes:
        """One of the structs inside the message, to be put into an `Encoded` array."""
        name = type(entry).__name__
        encode = self._entry_encoders.get((name, version))
        if encode is None:
            self._check(version)
            has_tags = self.flexible_from <= self.max_version
            encode = compile_encoder(self.structs[name], version, self.is_flexible(version), has_tags)
            self._entry_encoders[name, version] = encode
        chunks: list[Any] = []
        encode(entry, chunks.append)
        return b"".join(chunks)

    def decode(self, buf: Buffer, version: int, pos: int = 0, end: int | None = None) -> Any:
        """The message that fills buf[pos:end] exactly."""
        if end is None:
            end = len(buf)
        elif end > len(buf):
            raise ProtocolError(f"{self.name} v{version}: the buffer ends before the message")
        message, stop = self.decoder(version)(buf, pos, end)
        if stop != end:
            raise ProtocolError(f"{self.name} v{version}: {end - stop} bytes are left over")
        return message

    def encode(self, message: Any, version: int) -> bytes:
        chunks: list[Any] = []
        self.encoder(version)(message, chunks.append)
        try:
            return b"".join(chunks)
        except TypeError as e:
            raise ProtocolError(f"{self.name} v{version} cannot be encoded: {e}") from e

    def _check(self, version: int) -> None:
        if not self.min_version <= version <= self.max_version:
            raise UnsupportedVersion(
                f"{self.name} has versions {self.min_version} to {self.max_version}, not {version}"
            )


CODECS: dict[str, Codec] = {name: Codec(header) for name, header in load_headers().items()}


def codec(message: type | str) -> Codec:
    """The codec of a message, by its class or its name."""
    return CODECS[message if isinstance(message, str) else message.__name__]


def of_kind(kind: str, families: Iterable[str] | None = None) -> list[Codec]:
    """Codecs of one kind, in the order of the tables."""
    return [c for c in CODECS.values() if c.header.kind == kind and (families is None or c.header.family in families)]
