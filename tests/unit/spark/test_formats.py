"""Typed values without Spark running: each format both ways, bad rows, other versions of a schema, and refusals."""

import datetime
import io
import json
import pickle
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st

pytest.importorskip("pyspark", reason="needs headrace[spark]")

from pyspark.sql.pandas.types import to_arrow_type

from headrace.client.registry import BlockingRegistry as Registry, RegistryError
from headrace.spark.formats import FormatError, decoder_for, encoder_for
from headrace.spark.formats.ddl import DdlError, parse_ddl
from headrace.spark.options import OptionError
from tests.registry.server import RegistryServer

NONE = dict.fromkeys(("valueSchema", "valueSchemaFile", "valueSchemaRegistry", "valueSchemaSubject", "valueMessage"))


def options(kind: str, **given: Any) -> dict[str, Any]:
    return {**NONE, "valueFormat": kind, **given}


def decode(decoder: Any, *values: bytes | None) -> tuple[list[Any], Any]:
    """Through a pickle, as tasks get it."""
    found, errors = pickle.loads(pickle.dumps(decoder)).decode(pa.array(values, pa.binary()))
    found.validate(full=True)
    assert found.type == to_arrow_type(decoder.spark_schema, timezone="UTC")
    return found.to_pylist(), errors


def encode(encoder: Any, rows: list[Any], ddl: str) -> tuple[list[Any], Any]:
    kind = to_arrow_type(parse_ddl(ddl), timezone="UTC")
    found, errors = pickle.loads(pickle.dumps(encoder)).encode(pa.array(rows, kind))
    return found.to_pylist(), errors


EVERYTHING = (
    "id BIGINT, small INT, name STRING, ok BOOLEAN, score DOUBLE, at TIMESTAMP, day DATE, price DECIMAL(10,2), "
    "raw BINARY, tags ARRAY<STRING>, address STRUCT<city: STRING, zip: INT>, "
    "lines ARRAY<STRUCT<sku: STRING, n: INT>>, more MAP<STRING, DOUBLE>"
)
ROW = {
    "id": 1 << 40, "small": -5, "name": "ä\n", "ok": False, "score": 2.5,
    "at": datetime.datetime(2024, 5, 6, 7, 8, 9, 123456, datetime.UTC), "day": datetime.date(2024, 5, 6),
    "price": Decimal("12.30"), "raw": b"\0\xff", "tags": ["a", None, "b"], "address": {"city": "X", "zip": 7},
    "lines": [{"sku": "s", "n": 1}, None, {"sku": None, "n": 2}], "more": [("k", 1.5)],
}  # fmt: skip
NULLS = dict.fromkeys(ROW)


# -- JSON


def test_json_both_ways() -> None:
    encoder = encoder_for(options("json"), parse_ddl(EVERYTHING))
    values, errors = encode(encoder, [ROW, NULLS, None], EVERYTHING)
    assert not errors and values[1] == b"{}" and values[2] is None
    document = json.loads(values[0])
    assert document["price"] == 12.3 and document["at"] == "2024-05-06T07:08:09.123456Z" and document["name"] == "ä\n"
    decoder = decoder_for(options("json", valueSchema=EVERYTHING))
    assert decode(decoder, *values) == ([ROW, NULLS, None], {})


def test_json_that_is_wrong_is_named_with_its_place_and_the_rest_goes_on() -> None:
    decoder = decoder_for(options("json", valueSchema="id INT, a STRUCT<b: ARRAY<INT>>, price DECIMAL(4,2)"))
    rows, errors = decode(
        decoder,
        b'{"id": 1}',
        b'{"id": "1"}',
        b"{",
        b'{"a": {"b": [1, true]}}',
        b'{"id": 99999999999}',
        b"\xff",
        b'{"price": 123.45}',
        b'{"id": 2, "unknown": 3}',
        b"null",
        b"",
    )
    assert rows[0] == {"id": 1, "a": None, "price": None} and rows[7]["id"] == 2 and rows[8] is None
    assert sorted(errors) == [1, 2, 3, 4, 5, 6, 9]
    assert errors[1] == "Expected `int | null`, got `str` - at `$.id`"
    assert "$.a.b[1]" in errors[3] and "$.id" in errors[4]


def test_json_nested_without_end_is_a_bad_row_and_not_the_end_of_the_job() -> None:
    decoder = decoder_for(options("json", valueSchema="id INT"))
    deep = b'{"id": 1, "unknown": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    rows, errors = decode(decoder, deep, b'{"id": 2}')
    assert rows == [None, {"id": 2}] and list(errors) == [0] and "recursion" in errors[0]


def test_json_schemas_of_registries_and_their_references() -> None:
    schema = {
        "type": "object",
        "properties": {
            "id": {"type": "integer"},
            "at": {"type": ["string", "null"], "format": "date-time"},
            "who": {"$ref": "#/definitions/person"},
            "tags": {"type": "array", "items": {"oneOf": [{"type": "null"}, {"type": "string"}]}},
            "more": {"type": "object", "additionalProperties": {"type": "number"}},
        },
        "definitions": {"person": {"type": "object", "properties": {"name": {"type": "string"}}}},
    }
    decoder = decoder_for(options("json", valueSchema=json.dumps(schema)))
    expected = "struct<id:bigint,at:timestamp,who:struct<name:string>,tags:array<string>,more:map<string,double>>"
    assert decoder.spark_schema.simpleString() == expected


@given(
    st.lists(
        st.fixed_dictionaries(
            {},
            optional={
                "id": st.none() | st.integers(-(1 << 63), (1 << 63) - 1),
                "name": st.none() | st.text(),
                "score": st.none() | st.floats(allow_nan=False, allow_infinity=False),
                "tags": st.none() | st.lists(st.none() | st.text(max_size=3), max_size=3),
            },
        ),
        max_size=8,
    )
)
@settings(max_examples=100, deadline=None)
def test_json_documents_are_read_as_they_are(documents: Any) -> None:
    decoder = decoder_for(options("json", valueSchema="id BIGINT, name STRING, score DOUBLE, tags ARRAY<STRING>"))
    rows, errors = decode(decoder, *(json.dumps(document).encode() for document in documents))
    blank = {"id": None, "name": None, "score": None, "tags": None}
    # Half a surrogate pair is JSON, but no text.
    assert all("surrogate" in reason for reason in errors.values())
    assert [row for row in rows if row is not None] == [
        {**blank, **document} for index, document in enumerate(documents) if index not in errors
    ]


# -- Avro

AVRO: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "name", "type": ["null", "string"], "default": None},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "clock", "type": {"type": "int", "logicalType": "time-millis"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}},
        {"name": "wide", "type": ["null", "int", "long"]},
        {
            "name": "lines",
            "type": {
                "type": "array",
                "items": {"type": "record", "name": "Line", "fields": [{"name": "n", "type": "int"}]},
            },
        },
        {"name": "best", "type": ["null", "Line"]},
        {"name": "more", "type": {"type": "map", "values": "double"}},
    ],
}
ORDER = {
    "id": 5, "name": "n", "kind": "B", "at": datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC), "clock": 1000,
    "price": Decimal("1.50"), "wide": 1 << 40, "lines": [{"n": 1}, {"n": 2}], "best": {"n": 3}, "more": {"k": 0.5},
}  # fmt: skip
ORDER_ROW = {**ORDER, "more": [("k", 0.5)]}


def avro_bytes(schema: Any, row: Any, prefix: bytes = b"") -> Any:
    stream = io.BytesIO()
    stream.write(prefix)
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), row)
    return stream.getvalue()


def test_avro_both_ways(tmp_path: Path) -> None:
    (tmp_path / "order.avsc").write_text(json.dumps(AVRO))
    decoder = decoder_for(options("avro", valueSchemaFile=str(tmp_path / "order.avsc")))
    kind = decoder.spark_schema
    assert kind["wide"].dataType.simpleString() == "bigint" and kind["clock"].dataType.simpleString() == "int"
    plain = {
        **AVRO,
        "fields": [f if f["name"] != "clock" else {"name": "clock", "type": "int"} for f in AVRO["fields"]],
    }
    value = avro_bytes(plain, ORDER)
    rows, errors = decode(decoder, value, None, value[:-1], value + b"x", b"")
    assert rows == [ORDER_ROW, None, None, None, None] and sorted(errors) == [2, 3, 4]
    assert "1 bytes are left over" in errors[3]
    encoder = encoder_for(options("avro", valueSchema=json.dumps(AVRO)), kind)
    found, errors = encoder.encode(
        pa.array([ORDER_ROW, None, {**ORDER_ROW, "kind": "C"}], to_arrow_type(kind, timezone="UTC"))
    )
    assert found.to_pylist()[:2] == [value, None] and list(errors) == [2]


def test_avro_values_of_older_and_newer_schemas_are_read_as_the_query_wants() -> None:
    old = {"type": "record", "name": "R", "fields": [{"name": "id", "type": "int"}, {"name": "gone", "type": "string"}]}
    new = {
        "type": "record",
        "name": "R",
        "fields": [{"name": "id", "type": "long"}, {"name": "added", "type": "string", "default": "?"}],
    }
    with RegistryServer() as registry:
        first, second = registry.add("t-value", json.dumps(old)), registry.add("t-value", json.dumps(new))
        decoder = decoder_for(options("avro", valueSchemaRegistry=registry.url, subscribe=("t",)))
        values = [
            avro_bytes(old, {"id": 1, "gone": "x"}, b"\0" + first.to_bytes(4, "big")),
            avro_bytes(new, {"id": 2, "added": "y"}, b"\0" + second.to_bytes(4, "big")),
            avro_bytes(new, {"id": 3, "added": "z"}),
        ] * 3
        rows, errors = decode(decoder, *values)
        assert rows[:3] == [{"id": 1, "added": "?"}, {"id": 2, "added": "y"}, None] and sorted(errors) == [2, 5, 8]
        assert "not written through a schema registry" in errors[2]
        assert sum(path.startswith("/schemas/ids") for _, path in registry.requests) == 2


@pytest.mark.parametrize("kind", ["timestamp-millis", "timestamp-micros", "local-timestamp-micros", "date"])
def test_avro_times_beyond_the_calendar_are_bad_rows(kind: str) -> None:
    base = "int" if kind == "date" else "long"
    field = {"name": "at", "type": {"type": base, "logicalType": kind}}
    decoder = decoder_for(options("avro", valueSchema=json.dumps({"type": "record", "name": "R", "fields": [field]})))
    plain = {"type": "record", "name": "R", "fields": [{"name": "at", "type": base}]}
    far = (1 << 31) - 1 if base == "int" else (1 << 62)
    rows, errors = decode(decoder, *[avro_bytes(plain, {"at": number}) for number in (0, far, -far)])
    assert rows[0] is not None and rows[1:] == [None, None] and sorted(errors) == [1, 2]


def test_avro_of_a_schema_that_nobody_registered_is_bad_but_a_registry_that_is_away_stops_the_job(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    schema = {"type": "record", "name": "R", "fields": [{"name": "id", "type": "int"}]}
    with RegistryServer() as registry:
        known = registry.add("t-value", json.dumps(schema))
        decoder = decoder_for(options("avro", valueSchemaRegistry=registry.url, subscribe=("t",)))
        value, unknown = (avro_bytes(schema, {"id": 1}, b"\0" + number.to_bytes(4, "big")) for number in (known, 4711))
        rows, errors = decode(decoder, value, unknown)
        assert rows == [{"id": 1}, None] and list(errors) == [1] and "Schema not found" in errors[1]
    monkeypatch.setattr("headrace.client.registry.blocking.PAUSE_S", 0.0)
    with pytest.raises(RegistryError, match="cannot be asked"):
        decode(decoder, unknown)


def test_avro_schemas_that_refer_to_others() -> None:
    address = {"type": "record", "name": "Address", "namespace": "n", "fields": [{"name": "city", "type": "string"}]}
    person = {"type": "record", "name": "Person", "namespace": "n", "fields": [{"name": "home", "type": "n.Address"}]}
    with RegistryServer() as registry:
        registry.add("address", json.dumps(address))
        number = registry.add(
            "p", json.dumps(person), references=[{"name": "n.Address", "subject": "address", "version": 1}]
        )
        decoder = decoder_for(options("avro", valueSchemaRegistry=registry.url, valueSchemaSubject="p"))
        whole = {**person, "fields": [{"name": "home", "type": address}]}
        rows, errors = decode(decoder, avro_bytes(whole, {"home": {"city": "X"}}, b"\0" + number.to_bytes(4, "big")))
        assert rows == [{"home": {"city": "X"}}] and not errors


def test_avro_is_registered_by_the_first_writer_and_read_back() -> None:
    with RegistryServer() as registry:
        settings = options("avro", valueSchemaRegistry=registry.url, topic="t", subscribe=("t",))
        ddl = "id BIGINT, at TIMESTAMP, price DECIMAL(10,2), tags ARRAY<STRING>, a STRUCT<b: INT>, m MAP<STRING, INT>"
        encoder = encoder_for(settings, parse_ddl(ddl))
        row = {"id": 1, "at": ROW["at"], "price": Decimal("1.00"), "tags": ["x", None], "a": {"b": 2}, "m": [("k", 3)]}
        values, errors = encode(encoder, [row, dict.fromkeys(row)], ddl)
        assert not errors and values[0][:5] == b"\0\0\0\0\x01"
        assert decode(decoder_for(settings), *values) == ([row, dict.fromkeys(row)], {})


# -- protobuf

PROTO = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
message Order {
  int64 id = 1;
  optional string name = 2;
  Kind kind = 3;
  google.protobuf.Timestamp at = 4;
  repeated Line lines = 5;
  map<string, double> more = 6;
  oneof either { int32 left = 7; string right = 8; }
  uint64 big = 9;
  bytes raw = 10;
  Line best = 11;
  map<int32, Line> by_number = 12;
  message Line { string sku = 1; optional int32 n = 2; }
  enum Kind { NONE = 0; GOOD = 1; }
}
"""
PROTO_DDL = (
    "id BIGINT, name STRING, kind STRING, at TIMESTAMP, lines ARRAY<STRUCT<sku: STRING, n: INT>>, more MAP<STRING,"
    " DOUBLE>, left INT, right STRING, big BIGINT, raw BINARY, best STRUCT<sku: STRING, n: INT>, by_number MAP<INT,"
    " STRUCT<sku: STRING, n: INT>>"
)
PROTO_ROW = {
    "id": -7, "name": None, "kind": "GOOD", "at": ROW["at"], "lines": [{"sku": "s", "n": None}, {"sku": "", "n": 0}],
    "more": [("k", 1.5)], "left": None, "right": "r", "big": (1 << 63) - 1, "raw": b"\0", "best": None,
    "by_number": [(3, {"sku": "x", "n": 1})],
}  # fmt: skip


def test_protobuf_both_ways() -> None:
    encoder = encoder_for(options("protobuf", valueSchema=PROTO), parse_ddl(PROTO_DDL))
    values, errors = encode(encoder, [PROTO_ROW, None], PROTO_DDL)
    assert not errors and values[1] is None
    decoder = decoder_for(options("protobuf", valueSchema=PROTO))
    assert decoder.spark_schema.simpleString() == parse_ddl(PROTO_DDL).simpleString()
    rows, errors = decode(decoder, *values, b"\xff\xff", b"")
    assert rows[0] == PROTO_ROW and rows[1] is None and rows[2] is None and list(errors) == [2]
    assert rows[3]["id"] == 0 and rows[3]["name"] is None and rows[3]["lines"] == [] and rows[3]["kind"] == "NONE"


def test_protobuf_rows_that_do_not_fit_are_named_by_field() -> None:
    encoder = encoder_for(
        options("protobuf", valueSchema=PROTO), parse_ddl("kind STRING, lines ARRAY<STRUCT<sku: STRING, n: INT>>")
    )
    ddl = "kind STRING, lines ARRAY<STRUCT<sku: STRING, n: INT>>"
    values, errors = encode(
        encoder, [{"kind": "BAD", "lines": None}, {"kind": "GOOD", "lines": [None]}, {"kind": "GOOD", "lines": []}], ddl
    )
    assert values[2] is not None and "field 'kind': 'BAD' is not one of" in errors[0] and "null" in errors[1]


def test_protobuf_through_a_registry_with_its_message_path() -> None:
    text = 'syntax = "proto3"; message A { int32 x = 1; } message B { int32 y = 1; message C { string z = 1; } }'
    with RegistryServer() as registry:
        settings = options("protobuf", valueSchema=text, valueSchemaRegistry=registry.url, topic="t", subscribe=("t",))
        for name, ddl, row, path in (("A", "x INT", {"x": 1}, b"\0"), ("B.C", "z STRING", {"z": "q"}, b"\x04\x02\0")):
            encoder = encoder_for({**settings, "valueMessage": name}, parse_ddl(ddl))
            values, _ = encode(encoder, [row], ddl)
            assert values[0].startswith(b"\0\0\0\0\x01" + path)
            decoder = decoder_for({**settings, "valueSchema": None, "valueMessage": name})
            rows, errors = decode(decoder, *values, b"\0\0\0\0\x01", b"\x01")
            assert rows[0] == row and sorted(errors) == [1, 2]


# -- refusals


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (options("json"), "needs the schema: set valueSchema"),
        (options("avro"), "needs the schema: set valueSchema to Avro's JSON"),
        (options("protobuf"), "needs the schema: set valueSchema to a .proto"),
        (options("json", valueSchema="id BIGNT"), "there is no type 'bignt'"),
        (options("json", valueSchema="m MAP<INT, INT>"), "keys of JSON objects are strings"),
        (options("json", valueSchema='{"type": "string"}'), "values must be objects"),
        (options("avro", valueSchema="{"), "is not an Avro schema in JSON"),
        (options("avro", valueSchema='{"type": "record"}'), "not a valid Avro schema"),
        (
            options("avro", valueSchema='{"type":"record","name":"R","fields":[{"name":"x","type":["int","string"]}]}'),
            "value.x is a union of int, string",
        ),
        (
            options("avro", valueSchema='{"type":"record","name":"R","fields":[{"name":"x","type":["null","R"]}]}'),
            "within itself",
        ),
        (options("protobuf", valueSchema="message {"), "does not compile: line 1:"),
        (options("protobuf", valueSchema='syntax = "proto3"; message A {} message B {}'), "set option valueMessage"),
        (
            options("protobuf", valueSchema='syntax = "proto3"; message A {}', valueMessage="C"),
            "defines A: set one of them",
        ),
        (options("json", valueSchema="a INT", valueSchemaFile="x"), "leave one of them out"),
        (options("json", valueSchemaFile="/nonexistent"), "cannot be read (No such file or directory)"),
        (options("json", valueSchema="a INT", valueSchemaSubject="s"), "only with valueSchemaRegistry"),
        (options("avro", valueSchemaRegistry="http://127.0.0.1:1", subscribe=("a", "b")), "set the subject"),
        (options("avro", valueSchemaRegistry="127.0.0.1"), "not a registry's URL"),
    ],
)
def test_schemas_that_cannot_be_used_say_what_to_change(given: Any, words: str) -> None:
    with pytest.raises((FormatError, OptionError, RegistryError)) as caught:
        decoder_for(given)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("given", "columns", "words"),
    [
        (options("avro", valueSchema=json.dumps(AVRO)), "id INT, more INT", "column 'more' is int"),
        (options("avro", valueSchema=json.dumps(AVRO)), "id BIGINT", "has a field 'kind' without a default"),
        (options("avro", valueSchema=json.dumps(AVRO)), "id BIGINT, other INT", "column 'other' is not in the schema"),
        (options("avro"), "id INT", "needs the schema to write with"),
        (options("protobuf", valueSchema=PROTO), "id STRING", "use CAST(id AS BIGINT)"),
        (options("protobuf", valueSchema=PROTO), "nope STRING", "not a field of shop.Order"),
        (options("json", valueSchema="id BIGINT"), "id STRING", "use CAST(id AS BIGINT)"),
    ],
)
def test_columns_that_do_not_fit_say_what_to_change(given: Any, columns: str, words: str) -> None:
    with pytest.raises(FormatError) as caught:
        encoder_for(given, parse_ddl(columns))
    assert words in str(caught.value)


# -- the registry


def test_the_registry_is_asked_again_when_it_stumbles_and_named_when_it_falls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.client.registry.blocking.PAUSE_S", 0)
    with RegistryServer() as registry:
        registry.add("s", '"int"')
        registry.failures = [500, 503]
        assert Registry(registry.url).latest("s").text == '"int"'
        registry.failures = [500] * 3
        with pytest.raises(RegistryError, match=r"cannot be asked for /subjects/s/.*500 \(planted\)"):
            Registry(registry.url).latest("s")
        with pytest.raises(RegistryError, match=r"no subject 'nope'.*register its schema first"):
            Registry(registry.url).latest("nope")
        with pytest.raises(RegistryError, match="Schema not found"):
            Registry(registry.url).by_id(99)
    with pytest.raises(RegistryError, match="refused"):
        Registry(registry.url).latest("s")


def test_the_registry_takes_a_name_and_a_password() -> None:
    with RegistryServer(password="me:p@ss") as registry:
        registry.add("s", '"int"')
        with pytest.raises(RegistryError, match="does not let us in"):
            Registry(registry.url).latest("s")
        assert Registry(registry.url.replace("//", "//me:p%40ss@")).latest("s").schema_id == 1


# -- DDL


def test_ddl_as_spark_reads_it() -> None:
    text = (
        "a INT NOT NULL COMMENT 'x, y', `b c`: array<map<string,struct<d:decimal(10, 2),e:timestamp_ntz>>>, f DECIMAL"
    )
    expected = "struct<a:int,b c:array<map<string,struct<d:decimal(10,2),e:timestamp_ntz>>>,f:decimal(10,0)>"
    found = parse_ddl(text)
    assert found.simpleString() == expected and not found["a"].nullable and found["f"].nullable


@pytest.mark.parametrize(
    "text", ["", "a", "a int,", "a int b int", "a array<int", "a int, a string", "a decimal(39)", "a int)", "?"]
)
def test_ddl_that_is_none(text: str) -> None:
    with pytest.raises(DdlError):
        parse_ddl(text)


def test_json_without_a_field_is_bad_only_where_the_schema_says_not_null() -> None:
    decoder = decoder_for(options("json", valueSchema="id BIGINT NOT NULL, name STRING"))
    found, errors = decode(decoder, b'{"id": 1}', b'{"name": "x"}', b'{"id": null}', b"{}")
    assert found == [{"id": 1, "name": None}, None, None, None]
    assert sorted(errors) == [1, 2, 3] and "id" in errors[1]


@pytest.mark.parametrize(
    "given",
    [
        options("json"),
        options("avro", valueSchema=json.dumps({
            "type": "record", "name": "R",
            "fields": [{"name": "at", "type": ["null", {"type": "long", "logicalType": "timestamp-micros"}]}],
        })),
        options("protobuf", valueSchema='''
            syntax = "proto3"; import "google/protobuf/timestamp.proto"; message R { google.protobuf.Timestamp at = 1; }
        '''),
    ],
    ids=lambda given: given["valueFormat"],
)  # fmt: skip
def test_times_that_cannot_be_written_are_bad_rows_and_others_the_same_from_any_zone(given: Any) -> None:
    encoder = encoder_for(given, parse_ddl("at TIMESTAMP"))
    decoder = decoder_for({**given, "valueSchema": given["valueSchema"] or "at TIMESTAMP"})
    # Berlin's clocks show 2:30 twice in this night; the last two lie behind the year 9999, there or anywhere.
    times_us = [1_729_989_000_123_456, 1_729_992_600_123_456, -1, 253_402_300_799_999_999, 1 << 58]
    column = pa.array(times_us, pa.int64()).cast(pa.timestamp("us", "Europe/Berlin"))
    values, errors = encoder.encode(pa.StructArray.from_arrays([column], ["at"]))
    assert sorted(errors) == [3, 4] and values.to_pylist()[3:] == [None, None]
    rows, errors = decoder.decode(values)
    assert not errors and rows.field("at").cast(pa.int64()).to_pylist()[:3] == times_us[:3]
