"""Messages to test with: from Kafka's JSON, from hypothesis, and from a seeded generator."""

import random
from base64 import b64decode, urlsafe_b64decode
from typing import Any

from hypothesis import HealthCheck, settings, strategies as st

from headrace.protocol.codec import Codec
from headrace.protocol.schema import NO_VERSIONS, ZERO_UUID, Field, StructSpec, default_of

BOUNDS = {
    "int8": (-(2**7), 2**7 - 1),
    "int16": (-(2**15), 2**15 - 1),
    "uint16": (0, 2**16 - 1),
    "int32": (-(2**31), 2**31 - 1),
    "uint32": (0, 2**32 - 1),
    "int64": (-(2**63), 2**63 - 1),
}
SCALARS: dict[str, st.SearchStrategy[Any]] = {
    **{kind: st.integers(low, high) for kind, (low, high) in BOUNDS.items()},
    "bool": st.booleans(),
    "float64": st.floats(allow_nan=False),
    "uuid": st.one_of(st.just(ZERO_UUID), st.binary(min_size=16, max_size=16)),
    "string": st.text(max_size=5),
    "bytes": st.binary(max_size=5),
    "records": st.binary(max_size=5),
}
SOME = settings(
    max_examples=30,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
)
ids = st.binary(min_size=16, max_size=16)
int16s = st.integers(-(2**15), 2**15 - 1)
int32s = st.integers(-(2**31), 2**31 - 1)
int64s = st.integers(-(2**63), 2**63 - 1)


def messages(codec: Codec, version: int) -> st.SearchStrategy[Any]:
    """Any message that the version can carry, unknown tags included."""
    return _struct(codec.root, version, codec.is_flexible(version))


def _struct(spec: StructSpec, version: int, flexible: bool) -> st.SearchStrategy[Any]:
    fields = [f for f in spec.fields if version in f.versions]
    names = [f.name for f in fields]
    values = [_value(f, version, flexible) for f in fields]
    if flexible:
        names.append("unknown_tags")
        values.append(_unknown_tags({f.tag for f in fields if f.is_tagged(version)}))
    return st.tuples(*values).map(lambda drawn: spec.cls(**dict(zip(names, drawn))))


def _unknown_tags(known: set[int | None]) -> st.SearchStrategy[Any]:
    """Tags that the version does not know, those of later versions among them."""
    tags = st.sampled_from([t for t in (0, 1, 2, 3, 127, 128, 2**31 - 1) if t not in known])
    return st.one_of(st.none(), st.dictionaries(tags, st.binary(max_size=20), min_size=1, max_size=2))


def _value(field: Field, version: int, flexible: bool) -> st.SearchStrategy[Any]:
    value = _struct(field.struct, version, flexible) if field.struct else SCALARS[field.element]
    if field.is_array:
        value = st.lists(value, max_size=2 if field.struct else 3)
    return st.one_of(value, st.none()) if version in field.nullable else value


def sample(codec: Codec, version: int, rng: random.Random, tame: bool = False) -> Any:
    """A message from a seeded generator; `tame` values also suit kio's durations, dates and error codes."""
    return _sample_struct(codec.root, version, rng, tame)


def _sample_struct(spec: StructSpec, version: int, rng: random.Random, tame: bool) -> Any:
    return spec.cls(**{f.name: _sample_value(f, version, rng, tame) for f in spec.fields if version in f.versions})


def _sample_value(field: Field, version: int, rng: random.Random, tame: bool) -> Any:
    if version in field.nullable and rng.random() < 0.25:
        return None
    if field.is_array:
        count = rng.choice((0, 1, 1, 2)) if field.struct else rng.choice((0, 1, 2, 3, 40))
        return [_sample_one(field, version, rng, tame) for _ in range(count)]
    if field.tag is not None and rng.random() < 0.3:
        return default_of(field)
    return _sample_one(field, version, rng, tame)


def _sample_one(field: Field, version: int, rng: random.Random, tame: bool) -> Any:
    if field.struct is not None:
        return _sample_struct(field.struct, version, rng, tame)
    kind = field.element
    if kind in BOUNDS:
        low, high = BOUNDS[kind]
        if tame:
            return rng.randint(0, 90) if "error_code" in field.name else rng.randint(0, min(high, 2**40))
        return rng.choice((0, low, high, -1 if low else 1, rng.randint(low, high)))
    if kind == "bool":
        return rng.random() < 0.5
    if kind == "float64":
        return rng.randint(-1000, 1000) / 8
    if kind == "uuid":
        return ZERO_UUID if rng.random() < 0.2 else rng.randbytes(16)
    size = rng.choice((0, 1, 5, 5, 126, 127, 128, 300))
    if kind == "string":
        return "".join(rng.choice("aé日😀-1") for _ in range(size // 3))
    return rng.randbytes(size)


def from_json(spec: StructSpec, node: dict[str, Any]) -> Any:
    """The message that Kafka's JSON converter printed; fields that it left out have their defaults."""
    by_name = {f.name.replace("_", ""): f for f in spec.fields}
    values: dict[str, Any] = {}
    for name, value in node.items():
        field = by_name[name.lower()]
        values[field.name] = _from_json(field, value)
    return spec.cls(**values)


def _from_json(field: Field, value: Any) -> Any:
    if value is None:
        assert field.nullable != NO_VERSIONS
        return None
    return [_one_from_json(field, v) for v in value] if field.is_array else _one_from_json(field, value)


def _one_from_json(field: Field, value: Any) -> Any:
    if field.struct is not None:
        return from_json(field.struct, value)
    if field.element == "uuid":
        return urlsafe_b64decode(value + "==")
    return b64decode(value) if field.element == "bytes" else value
