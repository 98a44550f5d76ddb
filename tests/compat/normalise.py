"""Answers as plain trees that two correct brokers must agree on: fields at their default are left out (but for error
codes), and what may rightly differ (ids, ports, clocks, wording) is replaced by a word in angle brackets."""

import json
import struct
import time
from collections.abc import Mapping
from typing import Any

from headrace.errors import Err
from headrace.protocol.codec import CODECS
from headrace.protocol.schema import Field, StructSpec, default_of

HOUR_MS = 3_600_000
ZERO_UUID = bytes(16)
# Field name -> the word for any value that is not the field's default.
ANY = {
    "port": "<port>",
    "cluster_id": "<cluster>",
    "producer_id": "<producer>",
    "session_id": "<session>",
    "log_dir": "<folder>",
    "total_bytes": "<bytes>",
    "usable_bytes": "<bytes>",
    "finalized_features_epoch": "<offset>",
    "error_message": "<text>",
    "batch_index_error_message": "<text>",
    "documentation": "<text>",
}
# The quorum's own log differs in length from one start to the next.
ANY_IN = {
    ("DescribeQuorumResponse", "high_watermark"): "<offset>",
    ("DescribeQuorumResponse", "log_end_offset"): "<offset>",
    ("DescribeQuorumResponse", "leader_epoch"): "<epoch>",
}
# Beside an error code a message is help for people, and a list of transactions means nothing: Kafka gives them in
# some places and not in others.
BESIDE_ERRORS = ("error_message", "aborted_transactions")


class Normaliser:
    """`names` maps this case's topic names to short labels and `ids` its topic ids, so that versions compare."""

    def __init__(self, names: Mapping[str, str], ids: Mapping[bytes, str]) -> None:
        self.names = names
        self.ids = ids

    def answer(self, api: str, answer: Any) -> dict[str, Any]:
        codec = CODECS[f"{api}Response"]
        return self._struct(codec.name, codec.root, answer)

    def _struct(self, message: str, spec: StructSpec, value: Any) -> dict[str, Any]:
        out: dict[str, Any] = {}
        for field in spec.fields:
            given = getattr(value, field.name)
            if field.name in BESIDE_ERRORS and getattr(value, "error_code", 0) != 0:
                continue
            if given != default_of(field) or field.name == "error_code":
                out[field.name] = self._field(message, field, given)
        if getattr(value, "unknown_tags", None):
            out["unknown_tags"] = sorted(value.unknown_tags)
        return out

    def _field(self, message: str, field: Field, value: Any) -> Any:
        if field.is_array and value is not None:
            items = [self._value(message, field, item) for item in value]
            if field.name == "responses":
                items = merged(items)
            # Kafka hands most arrays out of hash maps, so their order carries no meaning. Lists of ids keep theirs.
            return sorted(items, key=json.dumps) if field.struct is not None else items
        return self._value(message, field, value)

    def _value(self, message: str, field: Field, value: Any) -> Any:
        if value is None:
            return None
        if field.struct is not None:
            return self._struct(message, field.struct, value)
        if word := ANY.get(field.name) or ANY_IN.get((message, field.name)):
            return word
        if field.name.endswith("error_code"):
            return Err(value).name
        if field.element == "records":
            return [describe_batch(b) for b in split_batches(bytes(value))]
        if field.element == "uuid":
            return self.ids.get(value, "<zero>" if value == ZERO_UUID else "<id>")
        if isinstance(value, str):
            return self.names.get(value, value)
        if isinstance(value, bytes | memoryview):
            return bytes(value).hex()
        return stamp(value)


def merged(topics: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Kafka lists a topic once for its good and once for its bad partitions; once for both says the same."""
    found: dict[str, dict[str, Any]] = {}
    for topic in topics:
        (parts,) = [name for name, value in topic.items() if isinstance(value, list)] or [""]
        key = json.dumps({name: value for name, value in topic.items() if name != parts})
        if parts and key in found and parts in found[key]:
            found[key][parts] = sorted(found[key][parts] + topic[parts], key=json.dumps)
        else:
            found[key if key not in found else json.dumps(topic)] = topic
    return list(found.values())


def stamp(value: Any) -> Any:
    """A time that is about now is a clock reading; any other number is meant."""
    is_now = isinstance(value, int) and abs(value - time.time() * 1000) < 2 * HOUR_MS
    return "<now>" if is_now else value


def split_batches(data: bytes) -> list[bytes]:
    """Whole batches, and a last partial one if there is any."""
    out, pos = [], 0
    while pos + 12 <= len(data):
        size = 12 + struct.unpack_from(">i", data, pos + 8)[0]
        out.append(data[pos : pos + size])
        pos += size
    return out


def describe_batch(data: bytes) -> str:
    """One line that two brokers holding the same batch must agree on."""
    if len(data) < 61 or len(data) < 12 + struct.unpack_from(">i", data, 8)[0]:
        return "partial"
    base, length, epoch, magic, _, attributes, delta = struct.unpack_from(">qiibIhi", data)
    first, last, producer, producer_epoch, sequence, count = struct.unpack_from(">qqqhii", data, 27)
    size = "" if attributes & 7 else f" size {length + 12}"  # compressors of one format differ in what they save
    who = "" if producer < 0 else f" producer epoch {producer_epoch} sequence {sequence}"
    return (
        f"{base}..{base + delta} magic {magic} epoch {epoch} attributes {attributes} count {count} "
        f"times {stamp(first)}..{stamp(last)}{size}{who}"
    )
