"""Changing configuration: what an AlterConfigs or IncrementalAlterConfigs request does to one resource.

Pure: current overrides and a request in, changed overrides out or a KafkaError. A resource changes whole or not at all.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import IntEnum

import msgspec

from headrace.errors import Err, KafkaError

from .broker import GROUP_BOUNDED, BrokerConfig, find_option
from .options import ConfigError, Option, Type, Value, parse_list
from .table import broker_options, client_metrics_options, group_options, topic_options
from .topic import validate_topic


class Resource(IntEnum):
    """What configuration belongs to, with the protocol's numbers."""

    UNKNOWN = 0
    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class Op(IntEnum):
    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class Altered(msgspec.Struct, frozen=True):
    """`overrides` is the whole new state, `changes` what to record: None removes an option."""

    overrides: dict[str, str]
    changes: dict[str, str | None]


Change = tuple[str, int, str | None]


def alter_incrementally(
    resource: int,
    name: str,
    changes: Sequence[Change],
    current: Mapping[str, str],
    broker: BrokerConfig,
) -> Altered:
    """IncrementalAlterConfigs of one resource, as the controller decides it.

    For a broker resource the broker itself must also agree: see `check_broker_change`. Whether a topic
    exists and its name is legal is for the caller to check after this, in that order, as Kafka does.
    """
    _check_keys((key, value if op != Op.DELETE else "") for key, op, value in changes)
    wanted: dict[str, str | None] = {}
    for key, op, value in changes:
        wanted[key] = _apply(resource, key, op, value, current.get(key))
    return _finish(resource, name, wanted, current, broker)


def replace_all(
    resource: int,
    name: str,
    configs: Sequence[tuple[str, str | None]],
    current: Mapping[str, str],
    broker: BrokerConfig,
) -> Altered:
    """AlterConfigs of one resource: what is not named goes back to its default."""
    if resource == Resource.BROKER_LOGGER:
        raise KafkaError(Err.INVALID_REQUEST, "AlterConfigs does not change loggers; use IncrementalAlterConfigs")
    _check_keys(configs)
    wanted = dict(configs) | {key: None for key in current if key not in dict(configs)}
    return _finish(resource, name, wanted, current, broker)


def _check_keys(pairs: Iterable[tuple[str, str | None]]) -> None:
    seen: set[str] = set()
    without_value = []
    for key, value in pairs:
        if key in seen:
            raise KafkaError(Err.INVALID_REQUEST, f"{key} is named twice for the same resource")
        seen.add(key)
        if value is None:
            without_value.append(key)
    if without_value:
        raise KafkaError(Err.INVALID_REQUEST, f"A null value is not allowed for: {', '.join(without_value)}")


def _options(resource: int) -> Mapping[str, Option]:
    if resource == Resource.TOPIC:
        return topic_options()
    if resource == Resource.BROKER:
        return broker_options()
    # Kafka keeps no list types for groups and client metrics here: appending to those is refused.
    return {}


def _apply(resource: int, key: str, op: int, value: str | None, current: str | None) -> str | None:
    """The new text of one option, None when it is removed."""
    if op == Op.SET:
        return value
    if op == Op.DELETE:
        return None
    if op not in (Op.APPEND, Op.SUBTRACT):
        raise KafkaError(Err.INVALID_REQUEST, f"{op} is not an operation on configuration")
    option = _options(resource).get(key)
    if option is None or option.type is not Type.LIST:
        verb = "appended to" if op == Op.APPEND else "subtracted from"
        raise KafkaError(Err.INVALID_CONFIG, f"{key}: cannot be {verb}, since it is not a list")
    text = option.default if current is None else current
    items = [item for item in parse_list(text or "") if item]
    for item in _split(value or ""):
        if op == Op.APPEND and item not in items:
            items.append(item)
        elif op == Op.SUBTRACT and item in items:
            items.remove(item)
    return ",".join(items)


def _split(text: str) -> list[str]:
    """At commas; as in Java, what is empty at the end goes, unless there is nothing else."""
    items = text.split(",")
    while text and items and not items[-1]:
        items.pop()
    return items


def _finish(
    resource: int,
    name: str,
    wanted: Mapping[str, str | None],
    current: Mapping[str, str],
    broker: BrokerConfig,
) -> Altered:
    # Brokers reload what files a value names when it is written again, so for them every value is recorded.
    changes = {key: value for key, value in wanted.items() if current.get(key) != value or resource == Resource.BROKER}
    overrides = dict(current)
    for key, value in changes.items():
        if value is None:
            overrides.pop(key, None)
        else:
            overrides[key] = value
    validate(resource, name, overrides, current, broker)
    return Altered(overrides, changes)


def check_elr(name: str, changes: Mapping[str, str | None]) -> None:
    """Of a broker resource, once the broker agrees: eligible leader replicas count on one min.insync.replicas for
    all."""
    if "min.insync.replicas" not in changes:
        return
    if name:
        raise KafkaError(
            Err.INVALID_CONFIG,
            "min.insync.replicas: cannot be set for one broker while eligible leader replicas are enabled",
        )
    if changes["min.insync.replicas"] is None:
        raise KafkaError(
            Err.INVALID_CONFIG,
            "min.insync.replicas: cannot be removed from the cluster while eligible leader replicas are enabled",
        )


# --- what a resource's overrides must satisfy -----------------------------------------------------


def validate(
    resource: int, name: str, overrides: Mapping[str, str], existing: Mapping[str, str], broker: BrokerConfig
) -> None:
    """The controller's checks of a resource's whole new overrides. Raises KafkaError."""
    match resource:
        case Resource.TOPIC:
            if not name:
                raise KafkaError(Err.INVALID_REQUEST, "A topic's configuration needs the topic's name")
            validate_topic(overrides, broker, existing)
        case Resource.BROKER:
            if name and not name.removeprefix("+").isdecimal():
                raise KafkaError(Err.INVALID_REQUEST, f"{name!r} is not a broker id")
        case Resource.GROUP:
            validate_group(name, overrides, broker)
        case Resource.CLIENT_METRICS:
            validate_client_metrics(name, overrides)
        case _:
            raise KafkaError(Err.INVALID_REQUEST, f"{resource} is not a type of resource with configuration")


def check_broker_change(name: str, overrides: Mapping[str, str], broker: BrokerConfig) -> None:
    """The addressed broker's own checks of its new dynamic overrides; an empty name is all brokers.

    Every fault is INVALID_REQUEST, as in Kafka, although INVALID_CONFIG would say it better.
    """
    if name and (not name.isdecimal() or int(name) != broker.node_id):
        raise KafkaError(Err.INVALID_REQUEST, f"This is broker {broker.node_id}, not {name}")
    try:
        for key, text in overrides.items():
            _check_dynamic(key, text, for_all_brokers=not name)
        changed = broker.with_dynamic(
            broker.dynamic_cluster if name else overrides, overrides if name else broker.dynamic_broker
        )
        _check_pools(broker, changed)
        changed.check()
    except ConfigError as error:
        raise KafkaError(Err.INVALID_REQUEST, str(error)) from None


def check_other_broker_change(overrides: Mapping[str, str]) -> None:
    """What can be said of another broker's new overrides without knowing its configuration; it has looked itself."""
    try:
        for key, text in overrides.items():
            _check_dynamic(key, text, for_all_brokers=False)
    except ConfigError as error:
        raise KafkaError(Err.INVALID_REQUEST, str(error)) from None


_CLUSTER_LISTENER_OPTIONS = ("max.connection.creation.rate", "max.connections", "num.network.threads")
_ONLY_PER_LISTENER = ("ssl.keystore.", "ssl.truststore.", "ssl.key.password")


_JAVA_CLASSES = ("metric.reporters", "principal.builder.class")


def _check_dynamic(key: str, text: str, *, for_all_brokers: bool) -> None:
    option = find_option(key)
    if option is None:
        # A plugin's option, for all Kafka knows: taken, and shown as sensitive.
        return
    of_listener = key != option.name
    if not option.dynamic and not of_listener:
        raise ConfigError(f"{key}: cannot be changed while the broker runs")
    if not of_listener and key.startswith(_ONLY_PER_LISTENER):
        raise ConfigError(f"{key}: can be changed for one listener only, as listener.name.<listener>.{key}")
    per_broker = option.name not in _CLUSTER_LISTENER_OPTIONS if of_listener else option.scope == "per-broker"
    if for_all_brokers and per_broker:
        raise ConfigError(f"{key}: can be changed for one broker only, not for all")
    if key == "listeners":
        raise ConfigError(
            "listeners: this broker binds its addresses when it starts, and cannot change them while it runs"
        )
    if key in _JAVA_CLASSES and text:
        raise ConfigError(f"{key}: Java classes cannot be loaded")
    option.parse(text)


_POOLS = (
    "num.io.threads",
    "num.network.threads",
    "num.replica.fetchers",
    "num.recovery.threads.per.data.dir",
    "background.threads",
    "log.cleaner.threads",
)


def _check_pools(before: BrokerConfig, after: BrokerConfig) -> None:
    """A pool may at most double or halve in one step."""
    for name in _POOLS:
        old, new = before[name], after[name]
        if old != new and new < 1:
            raise ConfigError(f"{name}: {new} would leave nothing running")
        if old != new and not old // 2 <= new <= old * 2:
            raise ConfigError(f"{name}: {new} is more than double or less than half of the present {old}")


def validate_group(name: str, overrides: Mapping[str, str], broker: BrokerConfig) -> None:
    """A group's options stay within the brokers' `group.<kind>.min.*` and `max.*`."""
    if not name:
        raise KafkaError(Err.INVALID_REQUEST, "A group's configuration needs the group's name")
    options = group_options()
    values: dict[str, Value] = {}
    try:
        for key, text in overrides.items():
            option = options.get(key)
            if option is None:
                raise ConfigError(f"Unknown group config name: {key}")
            values[key] = option.parse(text)
            _check_group_bounds(key, values[key], broker)
        for kind in ("consumer", "share", "streams"):
            session, heartbeat = f"{kind}.session.timeout.ms", f"{kind}.heartbeat.interval.ms"
            if values.get(session, broker[f"group.{session}"]) <= values.get(heartbeat, broker[f"group.{heartbeat}"]):
                raise ConfigError(f"{session}: must be above {heartbeat}")
    except ConfigError as error:
        raise KafkaError(Err.INVALID_CONFIG, str(error)) from None


def _check_group_bounds(key: str, value: Value, broker: BrokerConfig) -> None:
    assert value is not None
    kind, _, rest = key.partition(".")
    if rest in GROUP_BOUNDED:
        least, most = f"group.{kind}.min.{rest}", f"group.{kind}.max.{rest}"
        if value < broker[least]:
            raise ConfigError(f"{key}: {value} is below {least}, {broker[least]}")
        if value > broker[most]:
            raise ConfigError(f"{key}: {value} is above {most}, {broker[most]}")
    elif key == "streams.num.standby.replicas" and value > broker["group.streams.max.standby.replicas"]:
        raise ConfigError(f"{key}: {value} is above group.streams.max.standby.replicas")


_CLIENT_MATCH_KEYS = (
    "client_instance_id",
    "client_id",
    "client_software_name",
    "client_software_version",
    "client_source_address",
    "client_source_port",
)


def validate_client_metrics(name: str, overrides: Mapping[str, str]) -> None:
    if not name:
        raise KafkaError(Err.INVALID_REQUEST, "A client metrics subscription needs a name")
    options = client_metrics_options()
    for key, text in overrides.items():
        option = options.get(key)
        if option is None:
            raise KafkaError(Err.INVALID_REQUEST, f"Unknown client metrics config name: {key}")
        try:
            value = option.parse(text)
        except ConfigError as error:
            raise KafkaError(Err.INVALID_CONFIG, str(error)) from None
        if isinstance(value, int) and not 100 <= value <= 3_600_000:
            raise KafkaError(Err.INVALID_REQUEST, f"{key}: {value} is not between 100 and 3600000")
        if key == "match" and isinstance(value, list):
            for pattern in value:
                _check_match(pattern)


def _check_match(pattern: str) -> None:
    key, equals, expression = (part.strip() for part in pattern.partition("="))
    if key in _CLIENT_MATCH_KEYS and equals:
        try:
            re.compile(expression)
            return
        except re.error:
            pass
    raise KafkaError(Err.INVALID_CONFIG, f"match: {pattern!r} is not <client attribute>=<regular expression>")


# --- loggers --------------------------------------------------------------------------------------

LEVELS = ("TRACE", "DEBUG", "INFO", "WARN", "ERROR", "FATAL")


def alter_loggers(changes: Sequence[Change], known: Callable[[str], bool]) -> dict[str, str | None]:
    """New levels by logger, None to inherit again. Loggers belong to the process: nothing is recorded."""
    _check_keys((key, value if op != Op.DELETE else "") for key, op, value in changes)
    wanted: dict[str, str | None] = {}
    for key, op, value in changes:
        if op in (Op.APPEND, Op.SUBTRACT):
            raise KafkaError(Err.INVALID_REQUEST, f"{key}: a logger's level can only be set or deleted")
        if op not in (Op.SET, Op.DELETE):
            raise KafkaError(Err.INVALID_REQUEST, f"{op} is not an operation on configuration")
        if op == Op.DELETE and key == "root":
            raise KafkaError(Err.INVALID_REQUEST, "root: the root logger must have a level")
        if not known(key):
            raise KafkaError(Err.INVALID_CONFIG, f"{key}: there is no such logger")
        if op == Op.SET and value not in LEVELS:
            raise KafkaError(Err.INVALID_CONFIG, f"{key}: {value!r} is not a level; levels: {', '.join(LEVELS)}")
        wanted[key] = value if op == Op.SET else None
    return wanted
