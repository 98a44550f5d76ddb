"""Tables and codecs against Apache Kafka 4.3.1 itself: its schema files, and bytes its classes write right now."""

import json
import re
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest

from headrace.protocol.codec import CODECS, Codec
from headrace.protocol.compiler import has_records
from headrace.protocol.schema import NO_VERSIONS, SCALARS, Field, StructSpec, Versions
from tests.golden.generate import JARS, vectors
from tests.reference.apache import Unavailable, java, libs
from tests.unit.protocol.support import from_json

pytestmark = pytest.mark.reference


@pytest.fixture(scope="module")
def jars() -> Path:
    try:
        java()
        return libs()
    except Unavailable as missing:
        pytest.skip(str(missing))


def read_schemas(folder: Path) -> dict[str, dict[str, Any]]:
    schemas: dict[str, dict[str, Any]] = {}
    for jar in JARS:
        (path,) = folder.glob(f"kafka-{jar}-[0-9]*.jar")
        with ZipFile(path) as archive:
            for entry in archive.namelist():
                if re.search(r"(common/)?(message|metadata)/\w+\.json$", entry):
                    text = re.sub(r"^\s*//.*$", "", archive.read(entry).decode(), flags=re.M)
                    schema = json.loads(text)
                    schemas[schema["name"]] = schema
    return schemas


def versions(text: str | None) -> Versions:
    return NO_VERSIONS if text in (None, "none") else Versions.parse(text)


def default_text(field: dict[str, Any]) -> str:
    # Jackson reads a JSON null as no default at all; only the text "null" means null.
    value = field.get("default")
    return "" if value is None else str(value).lower()


def expect_default(field: dict[str, Any], kind: str, is_array: bool) -> Any:
    text = default_text(field)
    if text == "null" or (kind == "records" and not is_array):
        return None
    if is_array:
        return []
    if kind == "bool":
        return text == "true"
    if kind in ("string",):
        return text
    if kind == "uuid":
        return bytes(16)
    if kind == "bytes":
        return b""
    if kind == "float64":
        return float(text or 0)
    return int(text or "0", 0) if kind in SCALARS else "struct"


def compare_fields(codec: Codec, ours: StructSpec, theirs: list[dict[str, Any]]) -> None:
    assert [f.name.replace("_", "") for f in ours.fields] == [t["name"].lower() for t in theirs], ours.name
    for field, schema in zip(ours.fields, theirs):
        compare_field(codec, ours, field, schema)


def compare_field(codec: Codec, ours: StructSpec, field: Field, schema: dict[str, Any]) -> None:
    where = f"{codec.name}.{ours.name}.{field.name}"
    assert schema["type"] == ("[]" if field.is_array else "") + field.element, where
    tagged = versions(schema.get("taggedVersions"))
    assert field.versions == (versions(schema.get("versions")) if "versions" in schema else tagged), where
    assert field.nullable == versions(schema.get("nullableVersions")), where
    assert (field.tag, field.tagged) == (schema.get("tag"), tagged), where
    assert field.ignorable == schema.get("ignorable", False), where
    assert field.is_key == schema.get("mapKey", False), where
    assert field.never_flexible == (schema.get("flexibleVersions") == "none"), where
    expected = expect_default(schema, field.element, field.is_array)
    assert expected == "struct" if field.struct and expected not in (None, []) else field.default == expected, where
    if schema.get("fields"):
        assert field.struct is not None
        compare_fields(codec, field.struct, schema["fields"])


def test_tables_are_kafkas_schemas(jars: Path) -> None:
    schemas = {name: s for name, s in read_schemas(jars).items() if s["validVersions"] != "none"}
    assert set(CODECS) == set(schemas)
    for name, schema in schemas.items():
        codec = CODECS[name]
        assert codec.header.versions == versions(schema["validVersions"]), name
        flexible = versions(schema["flexibleVersions"])
        assert codec.flexible_from == (0x7FFF if flexible == NO_VERSIONS else flexible.low), name
        assert set(codec.header.listeners) == set(schema.get("listeners", ())), name
        assert codec.header.latest_unstable == schema.get("latestVersionUnstable", False), name
        if codec.header.kind not in ("data", "header"):
            assert codec.key == schema["apiKey"], name
        compare_fields(codec, codec.root, schema["fields"])
        for common in schema.get("commonStructs", ()):
            compare_fields(codec, codec.structs[common["name"]], common["fields"])


def test_every_message_of_every_version_is_written_as_kafka_writes_it(jars: Path) -> None:
    rows = vectors(java(), jars, CODECS.values(), seed=7, variants=3)
    assert {(r["message"], r["version"]) for r in rows} == {(c.name, v) for c in CODECS.values() for v in c.versions}
    for row in rows:
        codec, version = CODECS[row["message"]], row["version"]
        message = codec.decode(bytes.fromhex(row["hex"]), version)
        assert codec.encode(message, version).hex() == row["hex"], row
        # Kafka's JSON shows all records as empty, so messages with records are compared as bytes only.
        if not has_records(codec.root):
            assert message == from_json(codec.root, row["json"]), row
