"""Values that confluent-kafka's serializers write are read here, and the other way round, through a real registry."""

import datetime
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.schema_registry import (
    Schema as TheirSchema,
    SchemaReference,
    SchemaRegistryClient,
    record_subject_name_strategy,
    topic_record_subject_name_strategy,
)
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

import headrace
import headrace.sync
from headrace.cli.records.typed_values import waiting
from headrace.client.registry import NoSchema, NoSubject
from headrace.client.registry.proto_schemas import Messages, compile_proto

pytestmark = pytest.mark.reference

_numbers = itertools.count()

ORDER = """{"type": "record", "name": "Order", "namespace": "shop", "fields": [
    {"name": "id", "type": "long"},
    {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
    {"name": "note", "type": ["null", "string"], "default": null},
    {"name": "raw", "type": "bytes"}]}"""
AT = datetime.datetime(2026, 11, 18, 12, 30, tzinfo=datetime.UTC)
ROW: dict[str, Any] = {"id": 7, "at": AT, "price": Decimal("12.50"), "note": "x", "raw": b"\0\xff"}
PROTO = """syntax = "proto3"; package shop;
message First { int32 n = 1; }
message Order { int64 id = 1; Line best = 2; message Line { string sku = 1; } }"""
JSON_ORDER = """{"$schema": "http://json-schema.org/draft-07/schema#", "title": "Order", "type": "object",
    "properties": {"id": {"type": "integer"}, "note": {"type": "string"}}, "required": ["id"]}"""


@dataclass
class Order:
    id: int
    at: datetime.datetime
    price: Decimal
    raw: bytes
    note: str | None = None


@pytest.fixture
def topic() -> str:
    return f"orders-{next(_numbers)}"


@pytest.fixture(scope="module")
def theirs(registry_url: str) -> SchemaRegistryClient:
    # Its default is to wait for an answer for ever, and Apicurio now and then never answers a path that it does not
    # have (`associations/`). A request that times out is tried again.
    return SchemaRegistryClient({"url": registry_url, "timeout": 10})


def value_of(topic: str, field: str = MessageField.VALUE) -> SerializationContext:
    return SerializationContext(topic, field)


def test_avro_both_ways_and_the_same_bytes(registry_url: str, theirs: Any, topic: str) -> None:
    ours = headrace.Avro(ORDER, registry=registry_url, type=Order)
    written = waiting(ours.serialize, topic, Order(**ROW))
    assert written == AvroSerializer(theirs, ORDER)(ROW, value_of(topic))
    assert AvroDeserializer(theirs)(written, value_of(topic)) == ROW
    assert waiting(ours.deserialize, topic, written) == Order(**ROW)
    assert waiting(headrace.Avro(registry=registry_url).deserialize, topic, written) == ROW
    assert ours.serialize(topic, None) is None


def test_keys_have_subjects_of_their_own(registry_url: str, theirs: Any, topic: str) -> None:
    key = headrace.Avro('"string"', registry=registry_url).as_key()
    written = waiting(key.serialize, topic, "a")
    assert written == AvroSerializer(theirs, '"string"')("a", value_of(topic, MessageField.KEY))
    assert headrace.sync.SchemaRegistry(registry_url).versions(f"{topic}-key") == [1]


@pytest.mark.parametrize(
    ("ours", "theirs_strategy"),
    [("record", record_subject_name_strategy), ("topic-record", topic_record_subject_name_strategy)],
)
def test_subjects_are_named_as_confluents_are(
    registry_url: str, theirs: Any, topic: str, ours: str, theirs_strategy: Callable[..., str]
) -> None:
    schema = f'{{"type": "record", "name": "R{topic[7:]}", "namespace": "n", "fields": []}}'
    waiting(headrace.Avro(schema, registry=registry_url, subjects=ours).serialize, topic, {})
    subject = theirs_strategy(value_of(topic), f"n.R{topic[7:]}")
    assert subject in headrace.sync.SchemaRegistry(registry_url).subjects()
    written = AvroSerializer(
        theirs, schema, conf={"subject.name.strategy": theirs_strategy, "auto.register.schemas": False}
    )({}, value_of(topic))
    assert waiting(headrace.Avro(registry=registry_url).deserialize, topic, written) == {}


def test_avro_of_other_versions_is_read_as_the_reader_wants(registry_url: str, theirs: Any, topic: str) -> None:
    old = '{"type": "record", "name": "R", "fields": [{"name": "id", "type": "int"}, {"name": "gone", "type": "int"}]}'
    new = """{"type": "record", "name": "R", "fields": [
        {"name": "id", "type": "long"}, {"name": "added", "type": "string", "default": "?"}]}"""
    written = AvroSerializer(theirs, old)({"id": 1, "gone": 2}, value_of(topic))
    assert waiting(headrace.Avro(new, registry=registry_url).deserialize, topic, written) == {"id": 1, "added": "?"}
    assert AvroDeserializer(theirs, new)(written, value_of(topic)) == {"id": 1, "added": "?"}
    # A producer that writes with whatever is the newest.
    headrace.sync.SchemaRegistry(registry_url).register(f"{topic}-value", headrace.Schema(new))
    latest = headrace.Avro(registry=registry_url)
    written = waiting(latest.serialize, topic, {"id": 3})
    assert AvroDeserializer(theirs)(written, value_of(topic)) == {"id": 3, "added": "?"}


def test_schemas_that_refer_to_others(registry_url: str, theirs: Any, topic: str) -> None:
    address = '{"type": "record", "name": "Address", "namespace": "n", "fields": [{"name": "city", "type": "string"}]}'
    person = '{"type": "record", "name": "P", "namespace": "n", "fields": [{"name": "home", "type": "n.Address"}]}'
    registry = headrace.sync.SchemaRegistry(registry_url)
    registry.register(f"{topic}-address", headrace.Schema(address))
    schema = headrace.Schema(person, references=(headrace.Reference("n.Address", f"{topic}-address", 1),))
    ours = headrace.Avro(schema, registry=registry)
    written = waiting(ours.serialize, topic, {"home": {"city": "X"}})
    same = TheirSchema(person, "AVRO", [SchemaReference("n.Address", f"{topic}-address", 1)])
    assert written == AvroSerializer(theirs, same)({"home": {"city": "X"}}, value_of(topic))
    assert waiting(headrace.Avro(registry=registry).deserialize, topic, written) == {"home": {"city": "X"}}
    assert waiting(ours.deserialize, topic, written) == {"home": {"city": "X"}}


def test_protobuf_both_ways_and_the_same_bytes(registry_url: str, theirs: Any, topic: str) -> None:
    message = Messages(compile_proto(PROTO, (), "PROTO"), "shop.Order").message
    order = message(id=7, best={"sku": "s"})
    ours = headrace.Protobuf(message, registry=registry_url)
    written = waiting(ours.serialize, topic, order)
    assert written == ProtobufSerializer(message, theirs, {"use.deprecated.format": False})(order, value_of(topic))
    read = ProtobufDeserializer(message, {"use.deprecated.format": False}, theirs)(written, value_of(topic))
    assert read == order and ours.deserialize(topic, written) == order
    unknown = waiting(headrace.Protobuf(registry=registry_url).deserialize, topic, written)
    assert unknown.DESCRIPTOR.full_name == "shop.Order" and unknown.best.sku == "s"


def test_protobuf_of_a_text_and_of_a_message_within_another(registry_url: str, theirs: Any, topic: str) -> None:
    ours = headrace.Protobuf(PROTO, message="Order.Line", registry=registry_url)
    written = waiting(ours.serialize, topic, {"sku": "q"})
    assert written[5:8] == b"\x04\x02\x00" and ours.deserialize(topic, written).sku == "q"
    line = Messages(compile_proto(PROTO, (), "PROTO"), "shop.Order.Line").message
    back = ProtobufSerializer(line, theirs, {"use.deprecated.format": False})(line(sku="z"), value_of(f"{topic}-b"))
    assert back[5:8] == written[5:8] and ours.deserialize(topic, back).sku == "z"
    assert waiting(headrace.Protobuf(registry=registry_url).deserialize, topic, back).sku == "z"


def test_protobuf_that_imports_registers_what_it_imports(registry_url: str, theirs: Any, topic: str) -> None:
    money = 'syntax = "proto3"; package m; message Money { int64 cents = 1; }'
    bill = f"""syntax = "proto3"; package m; import "{topic}/money.proto"; import "google/protobuf/timestamp.proto";
        message Bill {{ Money sum = 1; google.protobuf.Timestamp at = 2; }}"""
    message = Messages(compile_proto(bill, [(f"{topic}/money.proto", money)], "bill"), "m.Bill").message
    ours = headrace.Protobuf(message, registry=registry_url)
    written = waiting(ours.serialize, topic, {"sum": {"cents": "5"}, "at": "2026-11-18T00:00:00Z"})
    assert f"{topic}/money.proto" in headrace.sync.SchemaRegistry(registry_url).subjects()
    found = waiting(headrace.Protobuf(registry=registry_url).deserialize, topic, written)
    assert found.sum.cents == 5 and found.at.seconds > 0


def test_json_schema_both_ways(registry_url: str, theirs: Any, topic: str) -> None:
    ours = headrace.JsonSchema(JSON_ORDER, registry=registry_url)
    written = waiting(ours.serialize, topic, {"id": 1, "note": "x"})
    assert JSONDeserializer(JSON_ORDER, schema_registry_client=theirs)(written, value_of(topic)) == {
        "id": 1,
        "note": "x",
    }
    back = JSONSerializer(JSON_ORDER, theirs)({"id": 2}, value_of(topic))
    assert back[:5] == written[:5]
    assert waiting(headrace.JsonSchema(registry=registry_url).deserialize, topic, back) == {"id": 2}
    with pytest.raises(ValueError, match=r"\$\.id: 'one' is not of type 'integer'"):
        ours.serialize(topic, {"id": "one"})
    broken = written[:5] + b'{"note": "no id"}'
    with pytest.raises(ValueError, match="'id' is a required property"):
        waiting(ours.deserialize, topic, broken)


def test_json_schema_of_a_type(registry_url: str, topic: str) -> None:
    ours = headrace.JsonSchema(type=Order, registry=registry_url, subjects="record")
    order = Order(1, AT, Decimal("1.5"), b"\0")
    assert waiting(ours.deserialize, topic, waiting(ours.serialize, topic, order)) == order
    assert "Order" in headrace.sync.SchemaRegistry(registry_url).subjects()


def test_what_the_registry_says_of_subjects_and_compatibility(registry_url: str, topic: str) -> None:
    registry = headrace.sync.SchemaRegistry(registry_url)
    one = headrace.Schema('{"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}')
    two = headrace.Schema('{"type": "record", "name": "R", "fields": [{"name": "b", "type": "int"}]}')
    schema_id = registry.register(topic, one)
    assert registry.register(topic, one) == schema_id and registry.versions(topic) == [1]
    assert registry.lookup(topic, one).schema_id == schema_id and registry.latest(topic).version == 1
    registry.set_compatibility("BACKWARD", topic)
    assert registry.compatibility(topic) == "BACKWARD" and registry.compatibility() in ("NONE", "BACKWARD")
    assert registry.is_compatible(topic, one) and not registry.is_compatible(topic, two)
    with pytest.raises(headrace.RegistryError, match="would break readers of other versions"):
        registry.register(topic, two)
    with pytest.raises(NoSubject, match="register its schema first"):
        registry.latest("nobody")
    with pytest.raises(NoSubject, match="no such version"):
        registry.version(topic, 9)
    with pytest.raises(NoSchema):
        registry.by_id(987_654)
    with pytest.raises(headrace.RegistryError, match="not registered under"):
        waiting(headrace.Avro(ORDER, registry=registry, auto_register=False).serialize, topic, ROW)
    assert registry.delete_subject(topic) == [1] and topic not in registry.subjects()


def test_without_a_registry_values_are_just_what_the_schema_says(tmp_path: Path) -> None:
    (tmp_path / "order.avsc").write_text(ORDER)
    avro = headrace.Avro(tmp_path / "order.avsc")
    written = avro.serialize("t", ROW)
    assert written is not None and written[0] == 14 and avro.deserialize("t", written) == ROW
    (tmp_path / "line.proto").write_text('syntax = "proto3"; message Line { string sku = 1; }')
    (tmp_path / "order.proto").write_text(
        'syntax = "proto3"; import "line.proto"; message Order { repeated Line lines = 1; }'
    )
    proto = headrace.Protobuf(tmp_path / "order.proto")
    assert proto.deserialize("t", proto.serialize("t", {"lines": [{"sku": "a"}]}) or b"").lines[0].sku == "a"
