"""kio, generated from the same schemas by other hands, reads what we write and writes what we read."""

import dataclasses
import datetime
import io
import random
from enum import Enum
from typing import Any
from uuid import UUID

import pytest
from kio.schema.index import schema_name_map
from kio.serial import entity_reader, entity_writer
from kio.static.constants import EntityType

from headrace.protocol.codec import CODECS, Codec
from headrace.protocol.schema import StructSpec
from tests.unit.protocol.support import sample

EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
MILLISECOND = datetime.timedelta(milliseconds=1)


def snake(name: str) -> str:
    return "".join("_" + c.lower() if c.isupper() else c for c in name).lstrip("_")


def kio_class(codec: Codec, version: int) -> Any:
    """kio's class for one version of a message, or None."""
    kind = codec.header.kind
    base = codec.name.removesuffix("Request" if kind == "request" else "Response" if kind == "response" else "")
    entity = {
        "request": EntityType.request,
        "response": EntityType.response,
        "header": EntityType.header,
    }.get(kind, EntityType.data)
    path = schema_name_map.get(snake(base), {}).get(version, {}).get(entity)
    if path is None:
        return None
    module, _, name = path.partition(":")
    return getattr(__import__(module, fromlist=[name]), name)


def plain(value: Any) -> Any:
    """kio's value in our terms."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, datetime.timedelta):
        return value // MILLISECOND
    if isinstance(value, datetime.datetime):
        return (value - EPOCH) // MILLISECOND
    if isinstance(value, UUID):
        return value.bytes
    if isinstance(value, tuple):
        return [plain(v) for v in value]
    if dataclasses.is_dataclass(value):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    return value


def compare(spec: StructSpec, ours: Any, theirs: dict[str, Any], where: str) -> None:
    """Every field kio knows has the value that we gave it; kio has None for a uuid of zeros and a date of -1."""
    for name, value in theirs.items():
        # kio calls timeout_ms of milliseconds timeout, of type timedelta.
        wanted = {name.replace("_", ""), name.replace("_", "") + "ms"}
        field = next(f for f in spec.fields if f.name.replace("_", "") in wanted)
        mine = getattr(ours, field.name)
        where_now = f"{where}.{name}"
        if field.struct is None:
            if value is None and mine in (bytes(16), -1):
                continue
            if field.element == "uuid" and field.is_array:
                value = [v or bytes(16) for v in value] if value is not None else None
            assert mine == value, where_now
        elif mine is None or value is None:
            assert mine is None and value is None, where_now
        elif field.is_array:
            assert len(mine) == len(value), where_now
            for one, other in zip(mine, value):
                compare(field.struct, one, other, where_now)
        else:
            compare(field.struct, mine, value, where_now)


# kio has no records of logs and two files of the broker's own; golden vectors from Kafka cover those.
KINDS_KIO_LACKS = {"metadata", "coordinator-key", "coordinator-value"}
MESSAGES_KIO_LACKS = {"ProducerSnapshot", "QuorumStateData"}


def kio_has(codec: Codec) -> bool:
    return codec.header.kind not in KINDS_KIO_LACKS and codec.name not in MESSAGES_KIO_LACKS


def test_what_kio_lacks_is_known() -> None:
    for codec in CODECS.values():
        for version in codec.versions:
            assert (kio_class(codec, version) is not None) == kio_has(codec), (codec.name, version)


@pytest.mark.parametrize("codec", [codec for codec in CODECS.values() if kio_has(codec)], ids=lambda c: c.name)
def test_kio_agrees(codec: Codec) -> None:
    for version in codec.versions:
        theirs = kio_class(codec, version)
        label = f"{codec.name} {version}"
        read, write = entity_reader(theirs), entity_writer(theirs)
        rng = random.Random(label)
        for _ in range(4):
            message = sample(codec, version, rng, tame=True)
            encoded = codec.encode(message, version)
            entity, size = read(encoded, 0)
            assert size == len(encoded), label
            compare(codec.root, message, plain(entity), label)
            buffer = io.BytesIO()
            write(buffer, entity)
            assert buffer.getvalue() == encoded, label
