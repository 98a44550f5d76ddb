"""What DescribeConfigs tells: each option's value, where it comes from, and what stands behind it."""

from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum

import msgspec

from .broker import HEADRACE_DEFAULTS, BrokerConfig, find_option
from .options import Option, Type, Value, render
from .table import Table, broker_options, client_metrics_options, group_options, topic_options
from .topic import topic_values


class ConfigSource(IntEnum):
    """Where a value comes from, with the protocol's numbers."""

    UNKNOWN = 0
    DYNAMIC_TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    DYNAMIC_BROKER_LOGGER = 6
    CLIENT_METRICS = 7
    GROUP = 8


class Synonym(msgspec.Struct, frozen=True):
    """One place a value could come from; None hides a sensitive value."""

    name: str
    value: str | None
    source: ConfigSource


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One line of an answer. `synonyms` is always complete; whether it is sent is the request's wish."""

    name: str
    value: str | None
    source: ConfigSource
    read_only: bool = False
    sensitive: bool = False
    type: Type = Type.UNKNOWN
    doc: str | None = None
    synonyms: tuple[Synonym, ...] = ()

    @property
    def is_default(self) -> bool:
        """What answers of version 0 say in place of a source."""
        return self.source is ConfigSource.DEFAULT


# Options that say one thing in several units, strongest first.
_FAMILIES: tuple[tuple[str, ...], ...] = (
    ("log.retention.ms", "log.retention.minutes", "log.retention.hours"),
    ("log.roll.ms", "log.roll.hours"),
    ("log.roll.jitter.ms", "log.roll.jitter.hours"),
)
_FAMILY: dict[str, tuple[str, ...]] = {name: family for family in _FAMILIES for name in family} | {
    "log.flush.interval.ms": ("log.flush.interval.ms", "log.flush.scheduler.interval.ms")
}
# Options for one SASL mechanism of a listener: listener.name.<listener>.<mechanism>.<option>.
_MECHANISM_OPTIONS = (
    "sasl.jaas.config",
    "sasl.login.callback.handler.class",
    "sasl.login.class",
    "sasl.server.callback.handler.class",
    "connections.max.reauth.ms",
)
# Known to brokers only as dynamic options: described when set, never by default.
_ONLY_WHEN_SET = (
    "leader.replication.throttled.rate",
    "follower.replication.throttled.rate",
    "replica.alter.log.dirs.io.max.bytes.per.second",
)


def broker_synonyms(name: str) -> tuple[str, ...]:
    """The options that may give this broker option its value, this one included."""
    if name.startswith("listener.name.") and name.count(".") > 2:
        base = name.split(".", 3)[3]
        return name, next((option for option in _MECHANISM_OPTIONS if base.endswith(option)), base)
    return _FAMILY.get(name, (name,))


def _chain(name: str, config: BrokerConfig, sensitive: bool) -> tuple[Synonym, ...]:
    """Every set value behind a broker option, strongest first, from the first that bears its own name.

    Kafka drops what comes before that name, so an option that is only set in another unit shows no chain.
    """
    names = broker_synonyms(name)
    layers: tuple[tuple[Mapping[str, str], ConfigSource], ...] = (
        (config.dynamic_broker, ConfigSource.DYNAMIC_BROKER),
        (config.dynamic_cluster, ConfigSource.DYNAMIC_DEFAULT_BROKER),
        (config.static.raw, ConfigSource.STATIC_BROKER),
    )
    found = [
        Synonym(each, None if sensitive else layer[each], source)
        for layer, source in layers
        for each in names
        if each in layer
    ]
    options = broker_options()
    for each in names:
        option = options.get(each)
        if option is not None and each not in _ONLY_WHEN_SET:
            default = HEADRACE_DEFAULTS.get(each, option.default)
            if default is not None:
                shown = None if sensitive else render(option.parse(default))
                found.append(Synonym(each, shown, ConfigSource.DEFAULT))
    while found and found[0].name != name:
        del found[0]
    return tuple(found)


def _entry(
    name: str,
    value: str | None,
    option: Option | None,
    chain: Sequence[Synonym],
    *,
    read_only: bool = False,
) -> Entry:
    # An option nobody knows might be a plugin's password: Kafka hides it, and so do we.
    sensitive = option is None or option.sensitive
    return Entry(
        name=name,
        value=None if sensitive else value,
        source=chain[0].source if chain else ConfigSource.DEFAULT,
        read_only=read_only,
        sensitive=sensitive,
        type=Type.UNKNOWN if option is None else option.type,
        doc=None if option is None else option.doc,
        synonyms=tuple(chain),
    )


def _wanted(known: Iterable[str], asked: Iterable[str] | None) -> list[str]:
    """Null and empty both mean every option."""
    chosen = set(asked or ())
    return [name for name in known if not chosen or name in chosen]


def describe_broker(config: BrokerConfig, names: Iterable[str] | None = None) -> list[Entry]:
    """This broker's options, dynamic ones included."""
    options = broker_options()
    known = [name for name, option in options.items() if not option.internal and name not in _ONLY_WHEN_SET]
    shown = set(known)
    for layer in (config.static.raw, config.dynamic_cluster, config.dynamic_broker):
        known.extend(name for name in layer if name not in shown)
        shown.update(layer)
    return [_broker_entry(name, config) for name in _wanted(known, names)]


def _broker_entry(name: str, config: BrokerConfig) -> Entry:
    option = find_option(name)
    chain = _chain(name, config, sensitive=option is None or option.sensitive)
    value: Value = None
    if option is not None:
        # A listener's own option is not in the table, so that only a set value can be asked for.
        value = config[name] if name in broker_options() else option.parse(chain[0].value)
    exact = broker_options().get(name)
    return _entry(name, render(value), option, chain, read_only=exact is None or not exact.dynamic)


def describe_cluster_defaults(config: BrokerConfig, names: Iterable[str] | None = None) -> list[Entry]:
    """The dynamic options set for all brokers: what the broker resource with an empty name shows."""
    cluster = config.dynamic_cluster
    entries = []
    for name in _wanted(cluster, names):
        option = find_option(name)
        chain = _chain(name, config, sensitive=option is None or option.sensitive)
        defaults = [each for each in chain if each.source is ConfigSource.DYNAMIC_DEFAULT_BROKER]
        exact = broker_options().get(name)
        entries.append(_entry(name, cluster[name], option, defaults, read_only=exact is None or not exact.dynamic))
    return entries


def describe_topic(
    overrides: Mapping[str, str], config: BrokerConfig, names: Iterable[str] | None = None
) -> list[Entry]:
    """A topic's options: its overrides over the broker's defaults."""
    options = topic_options()
    values = topic_values(overrides, config)
    known = [name for name, option in options.items() if not option.internal or name in overrides]
    known.extend(name for name in overrides if name not in options)
    entries = []
    for name in _wanted(known, names):
        option = options.get(name)
        shown = render(values[name]) if option is not None else None
        chain = [Synonym(name, shown, ConfigSource.DYNAMIC_TOPIC)] if name in overrides else []
        if option is not None and option.synonyms:
            chain.extend(_chain(option.synonyms[0][0], config, option.sensitive))
        entries.append(_entry(name, shown, option, chain))
    return entries


def describe_group(
    overrides: Mapping[str, str], config: BrokerConfig, names: Iterable[str] | None = None
) -> list[Entry]:
    """A group's options; a group that does not exist has them too."""
    return _describe_table(group_options(), overrides, config, ConfigSource.GROUP, names)


def describe_client_metrics(
    overrides: Mapping[str, str], config: BrokerConfig, names: Iterable[str] | None = None
) -> list[Entry]:
    """A client metrics subscription: what is set, and the defaults, which stand behind nothing."""
    table = client_metrics_options()
    entries = []
    for name in _wanted(table, names):
        option = table[name]
        shown = render(option.parse(overrides.get(name, option.default)))
        chain = [Synonym(name, shown, ConfigSource.CLIENT_METRICS)] if name in overrides else []
        entries.append(_entry(name, shown, option, chain))
    return entries


def _describe_table(
    table: Table,
    overrides: Mapping[str, str],
    config: BrokerConfig,
    source: ConfigSource,
    names: Iterable[str] | None,
) -> list[Entry]:
    entries = []
    for name in _wanted(table, names):
        option = table[name]
        chain: list[Synonym] = []
        if option.synonyms:
            broker_name = option.synonyms[0][0]
            value: Value = config[broker_name]
            chain.extend(_chain(broker_name, config, option.sensitive))
        else:
            value = option.parse(option.default)
            chain.append(Synonym(name, render(value), ConfigSource.DEFAULT))
        if name in overrides:
            value = option.parse(overrides[name])
            chain.insert(0, Synonym(name, render(value), source))
        entries.append(_entry(name, render(value), option, chain))
    return entries


def describe_loggers(levels: Mapping[str, str], names: Iterable[str] | None = None) -> list[Entry]:
    """The broker's loggers and their levels, which live in the process and not in the metadata."""
    return [
        Entry(name=name, value=levels[name], source=ConfigSource.DYNAMIC_BROKER_LOGGER)
        for name in _wanted(levels, names)
    ]
