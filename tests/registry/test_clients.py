"""Producers, consumers, listeners and commands with schemas: the registry is asked while nobody else waits."""

import asyncio
import json
import re
import ssl
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import headrace
import headrace.sync
from headrace.cli.records.typed_values import waiting
from headrace.client.registry import RegistryUnreachable, SchemaRefused
from headrace.testing.broker import TestBroker
from tests.client.support import QUICK, read, run
from tests.reference.certificates import Identity
from tests.registry.server import RegistryServer

ORDER = """{"type": "record", "name": "Order", "fields": [
    {"name": "id", "type": "long"}, {"name": "note", "type": ["null", "string"], "default": null}]}"""


@dataclass
class Order:
    id: int
    note: str | None = None


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[RegistryServer]:
    monkeypatch.setattr("headrace.client.registry.blocking.PAUSE_S", 0)
    with RegistryServer() as server:
        yield server


def test_records_with_a_schema_there_and_back(broker: TestBroker, registry: RegistryServer) -> None:
    async def work(topic: str) -> None:
        orders = headrace.Avro(ORDER, registry=registry.url, type=Order)
        keys = headrace.Avro('"string"', registry=registry.url)
        async with headrace.Producer(broker.bootstrap, value_serializer=orders, key_serializer=keys) as producer:
            await asyncio.gather(*(producer.send(topic, Order(n), key="k") for n in range(10)))
            await producer.send(topic, None, key="k")
        async with headrace.Consumer(
            topic, bootstrap=broker.bootstrap, value_deserializer=orders, key_deserializer=keys, **QUICK
        ) as consumer:
            records = await read(consumer, 11)
        assert sorted(record.value.id for record in records[:10]) == list(range(10))
        assert records[10].value is None and {record.key for record in records} == {"k"}
        assert set(registry.subjects) == {f"{topic}-value", f"{topic}-key"}
        assert sum(path.startswith("/schemas/ids") for _, path in registry.requests) <= 2

    run(broker, work)


def test_a_registry_that_is_away_loses_no_record(broker: TestBroker, registry: RegistryServer) -> None:
    async def work(topic: str) -> None:
        orders = headrace.Avro(ORDER, registry=registry.url)
        async with headrace.Producer(broker.bootstrap, value_serializer=orders) as producer:
            for n in range(3):
                await producer.send(topic, {"id": n})
        reading = headrace.Avro(registry=headrace.SchemaRegistry(registry.url, user="other"))  # knows nothing yet
        async with headrace.Consumer(
            topic, bootstrap=broker.bootstrap, value_deserializer=reading, **QUICK
        ) as consumer:
            registry.failures = [503] * 3
            with pytest.raises(RegistryUnreachable, match="503"):
                await read(consumer, 1)
            assert [record.value["id"] for record in await read(consumer, 3)] == [0, 1, 2]

    run(broker, work)


def test_what_cannot_be_read_is_named_and_passed_by_seek(broker: TestBroker, registry: RegistryServer) -> None:
    async def work(topic: str) -> None:
        orders = headrace.Avro(ORDER, registry=registry.url)
        async with headrace.Producer(broker.bootstrap) as producer:
            await producer.send(topic, b"plain")
            await producer.send(topic, b"\0\0\0\x10\0unknown schema")
            await producer.send(topic, await asyncio.to_thread(waiting, orders.serialize, topic, {"id": 1}))
        async with headrace.Consumer(topic, bootstrap=broker.bootstrap, value_deserializer=orders, **QUICK) as consumer:
            for offset, words in ((0, "not written through a schema registry"), (1, "Schema not found")):
                with pytest.raises(headrace.RecordUnreadable, match=words):
                    await read(consumer, 1)
                consumer.seek((topic, 0), offset + 1)
            assert (await read(consumer, 1))[0].value == {"id": 1, "note": None}

    run(broker, work)


def test_the_same_without_await(broker: TestBroker, registry: RegistryServer) -> None:
    orders = headrace.Avro(ORDER, registry=headrace.sync.SchemaRegistry(registry.url), type=Order)

    async def work(topic: str) -> None:
        def inside() -> None:
            with headrace.sync.Producer(broker.bootstrap, value_serializer=orders) as producer:
                for n in range(3):
                    producer.send_soon(topic, Order(n))
            with headrace.sync.Consumer(
                topic, bootstrap=broker.bootstrap, value_deserializer=orders, **QUICK
            ) as consumer:
                found: list[Order] = []
                while len(found) < 3:
                    found += [record.value for record in consumer.poll(0.5)]
            assert found == [Order(0), Order(1), Order(2)]

        await asyncio.to_thread(inside)

    run(broker, work)


def test_a_listener_reads_and_sends_by_schemas_and_puts_aside_what_has_none(registry: RegistryServer) -> None:
    app = headrace.App("billing")
    orders = headrace.Avro(ORDER, registry=registry.url)
    got: list[Order] = []

    @app.listener("orders", value_deserializer=orders, value_serializer=orders, send_to="bills", dead_letter="dlq")
    async def bill(order: Order) -> Order:
        got.append(order)
        return Order(order.id + 100)

    async def work() -> None:
        written = await asyncio.to_thread(waiting, orders.serialize, "orders", Order(7, "x"))
        async with app.test() as test:
            test.send("orders", written)
            test.send("orders", b"no schema")
            test.send("orders", b"\0\0\0\x10\0unknown schema")
            await test.settled()
            (sent,) = test.records("bills")
            assert waiting(orders.deserialize, "bills", sent.value) == {"id": 107, "note": None}
            assert [record.value for record in test.records("dlq")] == [b"no schema", b"\0\0\0\x10\0unknown schema"]

    asyncio.run(work())
    assert got == [Order(7, "x")] and "bills-value" in registry.subjects


def test_commands_show_and_take_typed_values(broker: TestBroker, registry: RegistryServer, tmp_path: Path) -> None:
    def shell(*words: str, given: str = "") -> str:
        command = [sys.executable, "-m", "headrace", *words, "--bootstrap", broker.bootstrap]
        done = subprocess.run(command, input=given, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    with headrace.sync.Admin(broker.bootstrap) as admin:
        for name in ("events", "copies", "messages", "packed"):
            admin.create_topic(name, 1, 1)
    schema = tmp_path / "event.avsc"
    schema.write_text("""{"type": "record", "name": "Event", "fields": [
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "sum", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "note", "type": ["null", "string"], "default": null}]}""")
    typed = ("--value-format", "avro", "--registry", registry.url)
    line = '{"at":"2026-11-18T12:00:00Z","sum":"1.50","note":"x"}'
    other = '{"at":"2026-11-18T13:00:00Z","sum":"20.00","note":null}'
    shell("produce", "events", *typed, "--schema", str(schema), given=f"{line}\n{other}\n")
    assert shell("consume", "events", *typed) == f"{line}\n{other}\n"
    assert shell("consume", "events", *typed, "--where", "value.note == 'x'") == f"{line}\n"
    # What was printed goes in again, by the schema that the registry has by now.
    registry.add("copies-value", schema.read_text())
    shell("produce", "copies", *typed, "--json-lines", given=shell("consume", "events", *typed, "--json"))
    assert shell("consume", "copies", *typed) == f"{line}\n{other}\n"
    proto = tmp_path / "event.proto"
    proto.write_text('syntax = "proto3"; message Event { int64 id = 1; string note = 2; }')
    plain = ("--value-format", "protobuf", "--schema", str(proto))
    shell("produce", "messages", *plain, given='{"id": 5, "note": "n"}\n')
    assert json.loads(shell("consume", "messages", *plain)) == {"id": "5", "note": "n"}
    shell("produce", "packed", "--value-format", "msgpack", given='{"a": [1]}\n')
    assert shell("consume", "packed", "--value-format", "msgpack") == '{"a":[1]}\n'


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("consume", "t", "--value-format", "avro"), "give --registry URL, or --schema FILE"),
        (("consume", "t", "--value-format", "avr"), "write one of text, json, msgpack, hex, base64, avro"),
        (("produce", "t", "--value-format", "protobuf"), "give --registry URL, or --schema FILE"),
        (("produce", "t", "--value-format", "avro", "--schema", "/nonexistent"), "cannot be read from /nonexistent"),
        (("produce", "t", "-v", "1", "--value-format", "avro", "--registry", "http://127.0.0.1:1"), "cannot be asked"),
    ],
)
def test_commands_say_what_is_missing(broker: TestBroker, words: tuple[str, ...], said: str) -> None:
    command = [sys.executable, "-m", "headrace", *words, "--bootstrap", broker.bootstrap]
    if "-v" in words:
        with headrace.sync.Admin(broker.bootstrap) as admin:
            admin.create_topic("t", 1, 1)
    done = subprocess.run(command, input="1\n", capture_output=True, text=True, check=False)
    assert done.returncode == 1 and said in " ".join(done.stderr.split()) and "Traceback" not in done.stderr


# -- the registry's client


def test_secured_registries_are_checked_and_their_words_are_plain(tmp_path: Path) -> None:
    authority = Identity("authority")
    own = Identity("registry", authority, ("127.0.0.1",))
    for name, text in (("ca", authority.pem), ("own", own.pem + own.key_pem())):
        (tmp_path / name).write_text(text)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "own")
    with RegistryServer(password="me:secret", tls=context) as server:
        server.add("s", '"int"')
        good = headrace.sync.SchemaRegistry(server.url, user="me", password="secret", ca=str(tmp_path / "ca"))
        assert good.latest("s").text == '"int"' and "secret" not in repr(good)
        with pytest.raises(headrace.RegistryError, match=r"cannot be trusted.*give ca="):
            headrace.sync.SchemaRegistry(server.url).latest("s")
        with pytest.raises(headrace.RegistryError, match="does not let us in"):
            headrace.sync.SchemaRegistry(server.url, ca=str(tmp_path / "ca")).latest("s")
    with pytest.raises(headrace.RegistryError, match="write https://"):
        headrace.sync.SchemaRegistry("http://h", ca=str(tmp_path / "ca"))
    with pytest.raises(headrace.RegistryError, match="cannot be used"):
        headrace.sync.SchemaRegistry("https://h", ca=str(tmp_path / "none"))


def test_a_registry_that_sends_elsewhere_does_not_get_the_password_there(registry: RegistryServer) -> None:
    registry.failures = [302]
    with pytest.raises(headrace.RegistryError, match="has moved"):
        headrace.sync.SchemaRegistry(registry.url, user="me", password="x").latest("s")
    assert len(registry.requests) == 1


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: headrace.Avro(), "needs a schema, or registry="),
        (lambda: headrace.Avro("{"), "not an Avro schema in JSON"),
        (lambda: headrace.Avro({"type": "record"}), "not a valid Avro schema"),
        (lambda: headrace.Avro('"int"', registry="http://h", subjects="topics"), "subjects is 'topics'"),
        (lambda: headrace.Protobuf("message {"), "does not compile"),
        (lambda: headrace.Protobuf('syntax = "proto3"; message A {} message B {}'), "set message= to one of them"),
        (lambda: headrace.JsonSchema('{"type": "nothing"}'), "not a valid JSON Schema"),
        (lambda: headrace.Avro(Path("/nonexistent")), "cannot be read from /nonexistent"),
        (lambda: headrace.Avro(5), "give its text, a pathlib.Path"),
    ],
)
def test_schemas_that_cannot_be_used_say_what_to_change(make: "type[object]", words: str) -> None:
    with pytest.raises(SchemaRefused, match=re.escape(words)):
        make()
