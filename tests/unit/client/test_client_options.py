"""Options of the public clients: keywords, Kafka's names, and what is refused before anything connects."""

import subprocess
import sys
from typing import Any, get_type_hints

import msgspec
import pytest

import headrace
from headrace.client.api.options import (
    CONSUMER_NAMES,
    CONSUMER_UNUSED,
    PRODUCER_NAMES,
    PRODUCER_UNUSED,
    ConsumerOptions,
    ConsumerSettings,
    ProducerOptions,
    ProducerSettings,
)
from headrace.client.api.serializers import Json


@pytest.mark.parametrize(
    ("options", "settings", "names", "unused"),
    [
        (ProducerOptions, ProducerSettings, PRODUCER_NAMES, PRODUCER_UNUSED),
        (ConsumerOptions, ConsumerSettings, CONSUMER_NAMES, CONSUMER_UNUSED),
    ],
)
def test_keywords_settings_and_names_are_the_same(options: Any, settings: Any, names: Any, unused: Any) -> None:
    fields = {field.name for field in msgspec.structs.fields(settings)}
    assert set(get_type_hints(options)) | {"bootstrap"} == fields
    assert set(names.values()) <= fields and not set(names) & set(unused)


def test_kafkas_names_are_taken_and_keywords_win() -> None:
    config = {"bootstrap.servers": "b:1", "linger.ms": "7", "acks": "1", "enable.idempotence": "false", "retries": 3}
    producer = headrace.Producer(config=config, linger_ms=9)
    assert producer.settings.bootstrap == "b:1" and producer.settings.linger_ms == 9
    assert producer.settings.retries == 3 and producer.settings.idempotence is False
    config = {"group.id": "g", "enable.auto.commit": "false", "partition.assignment.strategy": "range, roundrobin"}
    consumer = headrace.Consumer("t", config=config | {"key.deserializer": "org.apache.X"}, bootstrap=["a:1", "b:2"])
    assert consumer.settings.group == "g" and consumer.settings.auto_commit is False
    assert consumer.settings.assignors == ("range", "roundrobin") and consumer.settings.bootstrap == ["a:1", "b:2"]
    java = (
        "org.apache.kafka.clients.consumer.CooperativeStickyAssignor, org.apache.kafka.clients.consumer.RangeAssignor"
    )
    consumer = headrace.Consumer("t", config={"partition.assignment.strategy": java})
    assert consumer.settings.assignors == ("cooperative-sticky", "range")
    assert headrace.Producer(enable_idempotence=True).settings.idempotence is True  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"linger": 5}, "did you mean 'linger_ms'"),
        ({"config": {"linger.mss": 5}}, "did you mean 'linger.ms'"),
        ({"zzz": 5}, "there is no option 'zzz': known are acks"),
        ({"linger_ms": -1}, "option linger_ms is -1"),
        ({"batch_bytes": "many"}, "option batch_bytes is 'many'"),
        ({"acks": "some"}, "write 'all', 1 or 0"),
        ({"acks": 1, "idempotence": True}, "idempotence needs acks='all'"),
        ({"retries": 0, "transactional_id": "t"}, "idempotence needs retries above 0"),
        ({"max_in_flight": 9, "idempotence": True}, "max_in_flight of at most 5"),
        ({"compression": "zstdd"}, r"did you mean zstd\?"),
        ({"partitioner": "random"}, "write sticky or round_robin"),
        ({"value_serializer": "yaml"}, "write bytes, str or json"),
        ({"value_serializer": 5}, "value_serializer is 5"),
        ({"config": {"ssl.truststore.location": "x"}}, "security.protocol"),
        ({"config": "linger.ms=5"}, "config is 'linger.ms=5': give a dict"),
        ({"bootstrap": 5}, "option bootstrap is 5"),
        ({"transactional_id": ""}, "option transactional_id is empty"),
    ],
)
def test_bad_options_say_what_to_do(options: dict[str, Any], words: str) -> None:
    with pytest.raises(headrace.ClientError, match=words):
        headrace.Producer(**options)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"group": ""}, "option group is empty"),
        ({"group": "g", "instance_id": ""}, "option instance_id is empty"),
        ({"assignors": ["stiky"]}, "write cooperative-sticky, range or roundrobin"),
        ({"assignors": []}, "write cooperative-sticky, range or roundrobin"),
        ({"on_assigned": 5}, "option on_assigned is 5: give a function"),
        ({"auto_offset_reset": "first"}, "write earliest, latest, none"),
    ],
)
def test_bad_options_of_consumers_say_what_to_do(options: dict[str, Any], words: str) -> None:
    with pytest.raises(headrace.ClientError, match=words):
        headrace.Consumer("t", **options)


def test_idempotence_gives_way_to_what_rules_it_out() -> None:
    assert headrace.Producer()._idempotent
    for options in ({"acks": 1}, {"acks": 0}, {"retries": 0}, {"max_in_flight": 10}, {"idempotence": False}):
        assert not headrace.Producer(**options)._idempotent


def test_json_is_checked_against_types() -> None:
    class Order(msgspec.Struct):
        cents: int

    json = Json(Order)
    data = json.serialize("t", Order(5))
    assert data == b'{"cents":5}' and json.deserialize("t", data) == Order(5)
    with pytest.raises(msgspec.ValidationError):
        json.deserialize("t", b'{"cents":"5"}')


def test_the_package_is_imported_without_its_parts() -> None:
    check = (
        "import sys, headrace; assert not [m for m in sys.modules if m.startswith('headrace.client')];"
        "headrace.Producer; assert 'headrace.client.consume.consumer' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", check], check=True)


def test_an_admin_takes_the_options_of_the_other_clients() -> None:
    admin = headrace.Admin("127.0.0.1:1", request_timeout_ms=1500, config={"client.id": "me", "retries": "3"})
    assert (admin.cluster.request_timeout_s, admin.cluster.client_id) == (1.5, "me")
    assert headrace.Admin(bootstrap_servers="127.0.0.1:2", retry_timeout_s=2.5).cluster.retry_timeout_s == 2.5
    with pytest.raises(headrace.OptionRefused, match="did you mean 'request_timeout_ms'"):
        headrace.Admin(request_timout_ms=1)
    with pytest.raises(headrace.OptionRefused, match="request_timeout_ms is 'soon'"):
        headrace.Admin(request_timeout_ms="soon")
