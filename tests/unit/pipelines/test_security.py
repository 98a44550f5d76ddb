"""How a spec's topics connect: settings for all of one cluster, in one place, and shown to no other."""

from pathlib import Path
from typing import Any

from headrace.spark.pipelines.checks.options import check_options
from headrace.spark.pipelines.checks.topics import _by_broker
from headrace.spark.pipelines.spec.load import load_pipeline
from headrace.spark.pipelines.spec.topic_options import sink_options, source_options

SPEC = """\
name: secured
bootstrap: a:9093
kafka:
  security.protocol: SASL_PLAINTEXT
  sasl.mechanism: PLAIN
  sasl.jaas.config: ${LOGIN}
sources:
  orders: {topic: orders}
  elsewhere: {topic: other, bootstrap: "b:9092"}
sinks:
  out:
    from: orders
    topic: out
    options: {kafka.client.id: me}
  away: {from: elsewhere, topic: away, bootstrap: "b:9092"}
"""
LOGIN = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="alice" password="hush-hush";'


def load(folder: Path, text: str = SPEC, login: str = LOGIN) -> Any:
    (folder / "pipeline.yaml").write_text(text)
    return load_pipeline(folder / "pipeline.yaml", {"LOGIN": login})


def test_settings_hold_for_topics_of_the_same_brokers(tmp_path: Path) -> None:
    pipeline = load(tmp_path)
    shared = {"kafka.security.protocol", "kafka.sasl.mechanism", "kafka.sasl.jaas.config"}
    assert shared <= source_options(pipeline, pipeline.sources["orders"]).keys()
    assert sink_options(pipeline, pipeline.sinks["out"]).keys() >= shared | {"kafka.client.id"}
    for options in (
        source_options(pipeline, pipeline.sources["elsewhere"]),
        sink_options(pipeline, pipeline.sinks["away"]),
    ):
        assert not shared & options.keys() and options["kafka.bootstrap.servers"] == "b:9092"
    assert check_options(pipeline) == []
    found = {bootstrap: security.protocol for bootstrap, security in _by_broker(pipeline)}
    assert found == {"a:9093": "SASL_PLAINTEXT", "b:9092": "PLAINTEXT"}


def test_a_spec_shows_no_secret(tmp_path: Path) -> None:
    assert "hush-hush" not in repr(load(tmp_path))


def test_what_is_wrong_is_found_in_its_place(tmp_path: Path) -> None:
    wrong = check_options(load(tmp_path, login=LOGIN.rstrip(";")))
    assert {(one.where.line, one.where.key) for one in wrong} == {(3, "kafka.sasl.jaas.config")}
    assert all("semicolon" in one.fix and "hush-hush" not in str(one) for one in wrong)
    missing = check_options(load(tmp_path, SPEC.replace("  sasl.mechanism: PLAIN\n", "")))
    assert {(one.where.line, one.where.key) for one in missing} == {(3, "kafka")}
    own = check_options(load(tmp_path, SPEC.replace("kafka.client.id: me", "kafka.sasl.mechanism: GSSAPI")))
    assert [(one.where.key, one.message) for one in own] == [
        ("sinks.out.options.kafka.sasl.mechanism", "option 'kafka.sasl.mechanism' is 'GSSAPI'")
    ]
