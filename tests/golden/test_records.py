"""Every record and data message, byte for byte as Apache Kafka 4.3.1 writes it (tests/golden/generate made them)."""

import json
from pathlib import Path
from typing import Any

import pytest

from headrace.protocol.codec import CODECS
from tests.unit.protocol.support import from_json

VECTORS: list[dict[str, Any]] = json.loads(Path(__file__).with_name("records.json").read_text("utf-8"))
BY_MESSAGE: dict[str, list[dict[str, Any]]] = {}
for vector in VECTORS:
    BY_MESSAGE.setdefault(vector["message"], []).append(vector)


def test_every_record_and_data_message_has_vectors_of_every_version() -> None:
    kinds = ("metadata", "coordinator-key", "coordinator-value", "data")
    expected = {(c.name, v) for c in CODECS.values() if c.header.kind in kinds for v in c.versions}
    assert {(v["message"], v["version"]) for v in VECTORS} == expected


@pytest.mark.parametrize("name", BY_MESSAGE)
def test_bytes_are_kafkas(name: str) -> None:
    codec = CODECS[name]
    for vector in BY_MESSAGE[name]:
        version, data = vector["version"], bytes.fromhex(vector["hex"])
        message = from_json(codec.root, vector["json"])
        assert codec.encode(message, version).hex() == vector["hex"]
        assert codec.decode(data, version) == message


def test_the_vectors_have_a_tagged_struct_both_present_and_null() -> None:
    members = [v["json"] for v in BY_MESSAGE["ConsumerGroupMemberMetadataValue"]]
    shown = [m["classicMemberMetadata"] for m in members if "classicMemberMetadata" in m]
    assert None in shown and any(shown)
