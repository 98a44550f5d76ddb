"""The option tables against Kafka 4.3.1's own definitions, dumped from its jars to `data/kafka_options.json`."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace.config.broker import GROUP_BOUNDED
from headrace.config.options import Option, Type
from headrace.config.table import (
    broker_options,
    client_metrics_options,
    group_options,
    headrace_options,
    topic_options,
)
from headrace.config.topic import LogConfig, log_config

KAFKA = json.loads((Path(__file__).parents[1] / "data" / "kafka_options.json").read_text())

TABLES = {
    "broker": (broker_options, KAFKA["broker"] + KAFKA["broker_dynamic_def"]),
    "topic": (topic_options, KAFKA["topic"]),
    "group": (group_options, KAFKA["group"]),
    "client_metrics": (client_metrics_options, KAFKA["client_metrics"]),
}


def facts(option: Option) -> dict[str, Any]:
    return {
        "name": option.name,
        "type": option.type.name.lower(),
        "default": option.default,
        "required": option.required,
        "importance": option.importance,
        "internal": option.internal,
    }


def kafka_facts(row: dict[str, Any]) -> dict[str, Any]:
    wanted = ("name", "type", "importance", "internal")
    return {key: row[key] for key in wanted} | {
        "default": row.get("default"),
        "required": row.get("required", False),
    }


def kafka_checks(row: dict[str, Any]) -> str:
    """Kafka's validator in the notation of our tables."""
    validator = row.get("validator")
    if validator is None:
        return ""
    match validator["kind"]:
        case "Range":
            return "..".join(f"{validator[key]:g}" if key in validator else "" for key in ("min", "max"))
        case "ValidString":
            return "in:" + ",".join(validator["validStrings"])
        case "CaseInsensitiveValidString":
            return "anycase:" + ",".join(validator["validStrings"])
        case "ValidList":
            words = ["distinct"]
            if validator["validString"]:
                words.append("in:" + ",".join(validator["validString"]))
            words += [] if validator["isEmptyAllowed"] else ["nonempty"]
            words += [] if validator["isNullAllowed"] else ["nonnull"]
            return " ".join(words)
        case kind:
            return {
                "LambdaValidator": "1..9 or:-1",
                "NonNullValidator": "nonnull",
                "NonEmptyString": "nonempty",
                "ControllerQuorumBootstrapServersValidator": "servers",
                "ControllerQuorumVotersValidator": "voters",
                "ThrottledReplicaListValidator": "throttled",
                "Validator": "offset-reset",
            }[kind]


@pytest.mark.parametrize("name", TABLES)
def test_names_types_defaults_are_kafkas(name: str) -> None:
    table, rows = TABLES[name]
    own = headrace_options() if name == "broker" else {}
    ours = {option.name: facts(option) for option in table().values() if option.name not in own}
    assert ours == {row["name"]: kafka_facts(row) for row in rows}


def spell(checks: str) -> str:
    """Bounds as %g prints them, so that 1048576 and 1.04858e+06 compare."""
    low, dots, high = checks.partition("..")
    if not dots or " " in checks:
        return checks
    return "..".join(f"{float(bound):g}" if bound else "" for bound in (low, high))


@pytest.mark.parametrize("name", TABLES)
def test_bounds_and_allowed_values_are_kafkas(name: str) -> None:
    table, rows = TABLES[name]
    assert {row["name"]: spell(table()[row["name"]].checks) for row in rows} == {
        row["name"]: kafka_checks(row) for row in rows
    }


def test_bounds_are_exact() -> None:
    for table, rows in TABLES.values():
        for row in rows:
            validator = row.get("validator") or {}
            for bound, step in (("min", -1), ("max", 1)):
                if bound in validator and row["type"] in ("int", "long", "short"):
                    option = table()[row["name"]]
                    assert option.parse(str(validator[bound])) == validator[bound]
                    with pytest.raises(ValueError, match=option.name):
                        option.parse(str(validator[bound] + step))


def test_update_modes_are_kafkas() -> None:
    ours = {option.name: option.scope for option in broker_options().values() if option.dynamic}
    assert {name: scope for name, scope in ours.items() if name not in headrace_options()} == KAFKA["modes"]


def test_topic_synonyms_are_kafkas() -> None:
    """Kafka's converters were asked what a 3 in the broker option becomes in the topic option."""
    ours = {
        option.name: [[name, str(3 * factor)] for name, factor in option.synonyms]
        for option in topic_options().values()
        if option.synonyms
    }
    assert ours == KAFKA["topic_synonyms"]


def test_every_option_says_what_it_does() -> None:
    without_effect = "Accepted for compatibility; has no effect in Headrace"
    for table, _ in TABLES.values():
        for option in table().values():
            assert option.doc.endswith("."), option.name
            assert option.effect == (not option.doc.startswith(without_effect)), option.name


def test_every_default_passes_its_own_checks() -> None:
    for table, _ in TABLES.values():
        for option in table().values():
            if not option.required and option.default is not None:
                option.parse(option.default)


def test_log_config_defaults_are_the_tables() -> None:
    values = {name: option.parse(option.default) for name, option in topic_options().items()}
    assert log_config(values) == LogConfig()


def test_password_options_are_sensitive() -> None:
    assert broker_options()["ssl.key.password"].sensitive
    assert not broker_options()["log.dir"].sensitive
    assert {option.type for option in broker_options().values() if option.sensitive} == {Type.PASSWORD}


# Read through properties of BrokerConfig, which have names of their own.
READ_BY_PROPERTY = {
    "controller.listener.names",
    "controller.quorum.bootstrap.servers",
    "controller.quorum.voters",
    "inter.broker.listener.name",
    "listener.security.protocol.map",
    "max.connections.per.ip.overrides",
    "metadata.log.dir",
    "process.roles",
    "security.inter.broker.protocol",
}
# Bounds of other options, checked with them.
BOUNDS = {f"group.consumer.{bound}.{what}" for bound in ("min", "max") for what in GROUP_BOUNDED}


def test_options_with_an_effect_are_read_by_somebody() -> None:
    package = Path(headrace.__file__).parent
    sources = [file.read_text() for file in package.rglob("*.py") if "config" not in file.relative_to(package).parts]
    read = {name for text in sources for name in re.findall(r'"([a-z0-9.]+)"', text)} | READ_BY_PROPERTY | BOUNDS
    defaults = {
        name for table in (topic_options(), group_options()) for option in table.values() for name, _ in option.synonyms
    }
    silent = [name for name, option in broker_options().items() if option.effect and name not in read | defaults]
    assert not silent, f"nothing reads {silent}"
