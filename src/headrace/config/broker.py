"""A broker's configuration: options from a file, the environment and the command line, parsed and checked."""

from collections.abc import Iterator, Mapping
from enum import StrEnum
from functools import cached_property
from types import MappingProxyType
from typing import Any

from . import conflicts
from .listeners import Listener, check_ports, parse_listeners, parse_protocol_map, without_brackets
from .options import ConfigError, Option, Value
from .table import broker_options, topic_options
from .topic import LogConfig, check_compaction_lags, log_config, suggestion

ENVIRONMENT_PREFIX = "HEADRACE_"

# Where Headrace's default is not Kafka's, and why.
HEADRACE_DEFAULTS: dict[str, str] = {
    # Kafka has no default for these three; a node that is told nothing is a whole cluster by itself.
    "node.id": "1",
    "process.roles": "broker,controller",
    "controller.listener.names": "CONTROLLER",
    # Acknowledged records must survive a reboot, which empties /tmp.
    "log.dir": "headrace-data",
    # A dead process is seen by its closed socket; this is only for silent loss, so it can be short.
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
    # A follower that lags holds up every acks=all: ten seconds are enough to tell a slow one from a pause.
    "replica.lag.time.max.ms": "10000",
}

# Headrace cannot do these; to take them without effect would leave a cluster open or lose data someone counts on.
REFUSED: dict[str, str] = {
    "authorizer.class.name": "authorizers are not supported, the cluster would be open to everyone",
    "create.topic.policy.class.name": "policies are Java classes and cannot be loaded",
    "alter.config.policy.class.name": "policies are Java classes and cannot be loaded",
    "client.quota.callback.class": "quota callbacks are Java classes and cannot be loaded",
    "remote.log.storage.system.enable": "tiered storage is not supported",
}

GROUP_BOUNDED = (
    "heartbeat.interval.ms",
    "session.timeout.ms",
    "assignment.interval.ms",
    "record.lock.duration.ms",
    "delivery.count.limit",
    "partition.max.record.locks",
)
"""Of `group.<kind>.`, and of a group itself: what `group.<kind>.min.` and `group.<kind>.max.` bound."""
CONTROLLER_LISTENER = "CONTROLLER"
CONSUMER_ASSIGNORS = ("uniform", "range")

# Names that texts about Kafka use, and the option that is meant. The option's own name wins where both are set.
ALIASES = {"log.segment.ms": "log.roll.ms"}

# Options that belong to plugins and to one listener start with these; the rest of the name is free.
OPEN_PREFIXES = ("config.providers.", "rsm.config.", "rlmm.config.")


class Source(StrEnum):
    """Where a value comes from, strongest first."""

    DYNAMIC_BROKER = "dynamic broker"
    DYNAMIC_DEFAULT = "dynamic cluster default"
    COMMAND_LINE = "command line"
    ENVIRONMENT = "environment"
    FILE = "file"
    DEFAULT = "default"


def find_option(name: str) -> Option | None:
    """The option a name stands for, also behind `listener.name.<listener>.` and a SASL mechanism."""
    options = broker_options()
    found = options.get(name)
    if found is None and name.startswith("listener.name."):
        rest = name.split(".", 3)
        if len(rest) == 4:
            found = options.get(rest[3]) or options.get(rest[3].partition(".")[2])
    return found


class BrokerConfig:
    """Immutable. `config["log.segment.bytes"]` is the typed value; `raw` and `sources` hold what was set."""

    def __init__(self, raw: Mapping[str, str], sources: Mapping[str, Source]) -> None:
        raw, sources = dict(raw), dict(sources)
        _join_ids(raw, sources)
        self.raw: Mapping[str, str] = MappingProxyType(raw)
        self.sources: Mapping[str, Source] = MappingProxyType(sources)
        # What dynamic configuration says, usable or not, and why a part of it is not used.
        self.dynamic_cluster: Mapping[str, str] = MappingProxyType({})
        self.dynamic_broker: Mapping[str, str] = MappingProxyType({})
        self.ignored: Mapping[str, str] = MappingProxyType({})
        self._static = self
        self._values: dict[str, Value] = {}
        for name, text in self.raw.items():
            option = find_option(name)
            if option is not None:
                self._values[name] = option.parse(text)
        if "node.id" not in raw:
            self._values["broker.id"] = self["node.id"]
        for name in list(conflicts.kafka_defaults(raw, self)):
            self._values[name] = broker_options()[name].parse(broker_options()[name].default)

    @classmethod
    def load(
        cls,
        properties: Mapping[str, str] | None = None,
        env: Mapping[str, str] | None = None,
        overrides: Mapping[str, str] | None = None,
    ) -> "BrokerConfig":
        """Read and check everything; a later argument wins. Raises ConfigError naming the option."""
        raw: dict[str, str] = {}
        sources: dict[str, Source] = {}
        layers = (
            (Source.FILE, properties or {}),
            (Source.ENVIRONMENT, _from_environment(env or {})),
            (Source.COMMAND_LINE, overrides or {}),
        )
        for source, layer in layers:
            for given, text in layer.items():
                name = ALIASES.get(given, given)
                if name in layer and name != given:
                    continue
                _check_known(name)
                raw[name] = text
                sources[name] = source
        config = cls(raw, sources)
        config.check()
        return config

    # --- values ---

    def __getitem__(self, name: str) -> Any:
        values = self._values
        if name not in values:
            option = broker_options()[name]
            values[name] = option.parse(HEADRACE_DEFAULTS.get(name, option.default))
        return values[name]

    def __contains__(self, name: str) -> bool:
        return name in self.raw or name in broker_options()

    def __iter__(self) -> Iterator[str]:
        return iter(broker_options())

    def source(self, name: str) -> Source:
        return self.sources.get(name, Source.DEFAULT)

    @property
    def static(self) -> "BrokerConfig":
        """This configuration without dynamic overrides."""
        return self._static

    def with_dynamic(self, cluster: Mapping[str, str], broker: Mapping[str, str]) -> "BrokerConfig":
        """This configuration under dynamic overrides: the broker's own over the cluster's over the static.

        A dynamic value that cannot be used is left out and reported in `ignored`: it came through the
        metadata log, where stopping this broker would not help.
        """
        static = self._static
        raw, sources = dict(static.raw), dict(static.sources)
        ignored: dict[str, str] = {}
        for source, layer in ((Source.DYNAMIC_DEFAULT, cluster), (Source.DYNAMIC_BROKER, broker)):
            for name, text in layer.items():
                option = find_option(name)
                if option is None or not option.dynamic:
                    ignored[name] = "cannot be changed while the broker runs"
                    continue
                try:
                    option.parse(text)
                except ConfigError as error:
                    ignored[name] = str(error)
                    continue
                raw[name], sources[name] = text, source
        config = BrokerConfig(raw, sources)
        config.dynamic_cluster = MappingProxyType(dict(cluster))
        config.dynamic_broker = MappingProxyType(dict(broker))
        config.ignored = MappingProxyType(ignored)
        config._static = static
        return config

    # --- what several options say together ---

    @property
    def node_id(self) -> int:
        node_id: int = self["node.id"]
        return node_id

    @property
    def roles(self) -> frozenset[str]:
        return frozenset(self["process.roles"])

    @property
    def is_broker(self) -> bool:
        return "broker" in self.roles

    @property
    def is_controller(self) -> bool:
        return "controller" in self.roles

    @property
    def log_dirs(self) -> list[str]:
        dirs: list[str] = self["log.dirs"] or self["log.dir"]
        return dirs

    @property
    def metadata_log_dir(self) -> str:
        return self["metadata.log.dir"] or self.log_dirs[0]

    @cached_property
    def protocol_map(self) -> dict[str, str]:
        found = parse_protocol_map(self["listener.security.protocol.map"])
        if "listener.security.protocol.map" not in self.raw:
            # Kafka maps controller listeners to PLAINTEXT by itself unless the map is written out.
            for name in self.controller_listener_names:
                found.setdefault(name, "PLAINTEXT")
        return found

    @property
    def controller_listener_names(self) -> list[str]:
        return [name.upper() for name in self["controller.listener.names"]]

    @cached_property
    def listeners(self) -> tuple[Listener, ...]:
        found = parse_listeners("listeners", self["listeners"], self.protocol_map)
        name = self.controller_listener_names[0] if self.controller_listener_names else CONTROLLER_LISTENER
        if self.zookeeper_connect is not None and all(listener.name != name for listener in found):
            # Kafka's files from ZooKeeper's time name none: any node may become the controller, on any free port.
            found += (Listener(name, found[0].host if found else "", 0, "PLAINTEXT"),)
        return found

    @property
    def broker_listeners(self) -> tuple[Listener, ...]:
        names = self.controller_listener_names
        return tuple(listener for listener in self.listeners if listener.name not in names)

    @property
    def controller_listeners(self) -> tuple[Listener, ...]:
        names = self.controller_listener_names
        return tuple(listener for listener in self.listeners if listener.name in names)

    @cached_property
    def advertised_listeners(self) -> tuple[Listener, ...]:
        """What clients are told; the listeners themselves when nothing is set (an empty host is for the server to
        fill)."""
        items = self["advertised.listeners"]
        if items is None:
            return self.listeners
        return parse_listeners("advertised.listeners", items, self.protocol_map)

    @property
    def inter_broker_listener(self) -> str:
        name: str | None = self["inter.broker.listener.name"]
        return name.upper() if name else self["security.inter.broker.protocol"]

    @cached_property
    def quorum_voters(self) -> dict[int, tuple[str, int]]:
        """controller.quorum.voters as id -> (host, port)."""
        found: dict[int, tuple[str, int]] = {}
        for item in self["controller.quorum.voters"]:
            node, _, address = item.partition("@")
            found[int(node)] = _host_and_port(address)
        return found

    @cached_property
    def quorum_bootstrap_servers(self) -> list[tuple[str, int]]:
        return [_host_and_port(item.strip()) for item in self["controller.quorum.bootstrap.servers"]]

    @property
    def zookeeper_connect(self) -> str | None:
        """Where the metadata is, if it is in ZooKeeper."""
        found: str | None = self["zookeeper.connect"]
        return found

    @property
    def _logs_in_to_zookeeper(self) -> bool:
        by_certificate = self["zookeeper.ssl.client.enable"] and self["zookeeper.ssl.keystore.location"]
        return bool(self["zookeeper.sasl.jaas.config"] or self["zookeeper.digest"] or by_certificate)

    @cached_property
    def max_connections_per_ip_overrides(self) -> dict[str, int]:
        """`host:count,...`; the count is after the last colon, so that IPv6 addresses work."""
        found: dict[str, int] = {}
        for item in filter(None, (part.strip() for part in self["max.connections.per.ip.overrides"].split(","))):
            host, _, count = item.rpartition(":")
            if not host or not count.strip().isdecimal():
                raise ConfigError(f"max.connections.per.ip.overrides: {item!r} is not host:count")
            found[without_brackets(host.strip())] = int(count)
        return found

    @cached_property
    def topic_defaults(self) -> Mapping[str, Value]:
        """Every topic option's value for a topic without overrides."""
        return MappingProxyType({name: self._topic_default(option) for name, option in topic_options().items()})

    def _topic_default(self, option: Option) -> Value:
        for name, factor in option.synonyms:
            value: Any = self[name]
            if value is not None:
                # Any negative retention means for ever.
                if option.name == "retention.ms" and value < 0:
                    return -1
                default: Value = value * factor if factor != 1 else value
                return default
        return option.parse(option.default)

    @cached_property
    def log_defaults(self) -> LogConfig:
        return log_config(self.topic_defaults)

    # --- checks across options ---

    def check(self) -> None:
        """Refuse combinations that Kafka refuses at start. Raises ConfigError."""
        if self["node.id"] != self["broker.id"]:
            raise ConfigError(f"broker.id: {self['broker.id']} differs from node.id, {self['node.id']}")
        for name, reason in REFUSED.items():
            if self[name]:
                raise ConfigError(f"{name}: {reason}")
        for listener in self.listeners:
            if listener.protocol != "PLAINTEXT":
                raise ConfigError(f"listeners: {listener.name} asks for {listener.protocol}, which is not supported")
        self._check_log()
        self._check_groups()
        conflicts.check(self)
        check_ports(self.listeners)
        self._check_advertised()
        # Without a word about roles the node is a cluster of its own and needs no quorum settings.
        if self.zookeeper_connect is not None:
            self._check_zookeeper(self.zookeeper_connect)
        elif "process.roles" in self.raw:
            self._check_roles()
        if self.max_connections_per_ip_overrides and self["max.connections.per.ip"] < 0:
            raise ConfigError("max.connections.per.ip: must not be negative")

    def _check_log(self) -> None:
        defaults: Mapping[str, Any] = self.topic_defaults
        if defaults["segment.ms"] < 1:
            raise ConfigError(f"log.roll.ms: {defaults['segment.ms']} is below the least allowed, 1")
        if defaults["segment.jitter.ms"] < 0:
            raise ConfigError(f"log.roll.jitter.ms: {defaults['segment.jitter.ms']} is below the least allowed, 0")
        if defaults["retention.ms"] == 0:
            raise ConfigError("log.retention.ms: must be -1 (no limit) or at least 1")
        threads = self["log.cleaner.threads"]
        if threads and self["log.cleaner.dedupe.buffer.size"] // threads <= 1 << 20:
            raise ConfigError("log.cleaner.dedupe.buffer.size: needs more than 1 MB for each of log.cleaner.threads")
        if self["replica.fetch.wait.max.ms"] > self["replica.socket.timeout.ms"]:
            raise ConfigError("replica.fetch.wait.max.ms: must not be above replica.socket.timeout.ms")
        if self["replica.fetch.wait.max.ms"] > self["replica.lag.time.max.ms"]:
            raise ConfigError("replica.fetch.wait.max.ms: must not be above replica.lag.time.max.ms")
        check_compaction_lags(defaults)

    def _check_groups(self) -> None:
        known = broker_options()
        for kind in ("consumer", "share", "streams"):
            for what in GROUP_BOUNDED:
                name, least, most = f"group.{kind}.{what}", f"group.{kind}.min.{what}", f"group.{kind}.max.{what}"
                if name not in known:
                    continue
                if self[most] < self[least]:
                    raise ConfigError(f"{most}: {self[most]} is below {least}, {self[least]}")
                if self[name] < self[least]:
                    raise ConfigError(f"{name}: {self[name]} is below {least}, {self[least]}")
                if self[name] > self[most]:
                    raise ConfigError(f"{name}: {self[name]} is above {most}, {self[most]}")
            heartbeat, session = f"group.{kind}.heartbeat.interval.ms", f"group.{kind}.session.timeout.ms"
            if self[heartbeat] >= self[session]:
                raise ConfigError(f"{heartbeat}: must be below {session}")
        for assignor in self["group.consumer.assignors"]:
            if assignor not in CONSUMER_ASSIGNORS:
                raise ConfigError(
                    f"group.consumer.assignors: {assignor!r} is none of {', '.join(CONSUMER_ASSIGNORS)}; Java classes"
                    " cannot be loaded"
                )

    def _check_advertised(self) -> None:
        names = {listener.name for listener in self.listeners}
        for listener in self.advertised_listeners:
            if "advertised.listeners" in self.raw and listener.host == "0.0.0.0":
                raise ConfigError(f"advertised.listeners: clients cannot connect to {listener}; name a real address")
            if listener.name not in names and listener.name not in self.controller_listener_names:
                raise ConfigError(f"advertised.listeners: {listener.name} is not among listeners")
        both = {"inter.broker.listener.name", "security.inter.broker.protocol"} & set(self.raw)
        if len(both) == 2:
            raise ConfigError("inter.broker.listener.name: set this or security.inter.broker.protocol, not both")
        broker = "broker" in self.roles and "process.roles" in self.raw
        if broker and self.inter_broker_listener not in {listener.name for listener in self.advertised_listeners}:
            raise ConfigError(f"inter.broker.listener.name: {self.inter_broker_listener} is not an advertised listener")

    def _check_zookeeper(self, connect: str) -> None:
        """There are no roles: every node is a broker and may become the controller."""
        if not connect:  # as of a variable that was never set: not a wish for another quorum
            raise ConfigError("zookeeper.connect: it is empty; name ZooKeeper's host:port, or leave it out for KRaft")
        for name in ("controller.quorum.voters", "controller.quorum.bootstrap.servers"):
            if self[name]:
                raise ConfigError(f"{name}: set this or zookeeper.connect, not both: metadata is in one place")
        if self.roles != {"broker", "controller"}:
            raise ConfigError("process.roles: with zookeeper.connect every node is broker,controller; leave it out")
        if self["zookeeper.set.acl"] and not self._logs_in_to_zookeeper:
            raise ConfigError(
                "zookeeper.set.acl: znodes can belong to nobody who does not log in; set zookeeper.sasl.jaas.config,"
                " zookeeper.digest, or zookeeper.ssl.client.enable with zookeeper.ssl.keystore.location"
            )
        digest = self["zookeeper.digest"]
        if digest and ":" not in digest:
            raise ConfigError("zookeeper.digest: write it as user:password")
        servers, slash, chroot = connect.partition("/")
        for server in servers.split(","):
            _, colon, port = server.strip().rpartition(":")
            if not colon or not port.isdecimal() or not 0 < int(port) < 65_536:
                raise ConfigError(f"zookeeper.connect: {server.strip()!r} is not host:port")
        if slash and (not chroot or chroot.endswith("/") or "//" in chroot):
            raise ConfigError(f"zookeeper.connect: /{chroot} is no path for a chroot")

    def _check_roles(self) -> None:
        voters = self.quorum_voters
        if not voters and not self.quorum_bootstrap_servers and self.roles != {"broker", "controller"}:
            raise ConfigError(
                "controller.quorum.bootstrap.servers: with process.roles broker or controller alone, this or "
                "controller.quorum.voters must name the controllers"
            )
        names = {listener.name for listener in self.listeners}
        controllers = set(self.controller_listener_names)
        if "controller" in self.roles:
            if voters and self.node_id not in voters:
                raise ConfigError(f"controller.quorum.voters: this controller's id {self.node_id} is not among them")
            if not controllers <= names:
                missing = ", ".join(sorted(controllers - names))
                raise ConfigError(f"controller.listener.names: {missing} is not among listeners")
            if "broker" not in self.roles and not names <= controllers:
                raise ConfigError("listeners: a node that is only a controller has only controller listeners")
        else:
            if self.node_id in voters:
                raise ConfigError(f"controller.quorum.voters: {self.node_id} is no controller and cannot vote")
            if controllers & names:
                raise ConfigError("listeners: a node that is only a broker cannot have a controller listener")
        if "broker" in self.roles and not names - controllers:
            raise ConfigError("listeners: none is left for clients; all are in controller.listener.names")


def _host_and_port(address: str) -> tuple[str, int]:
    """Of `host:port`, which the option table has checked."""
    host, _, port = address.rpartition(":")
    return without_brackets(host), int(port)


def _join_ids(raw: dict[str, str], sources: dict[str, Source]) -> None:
    """node.id and broker.id are two names of one thing; the one that is set gives the other."""
    for given, other in (("node.id", "broker.id"), ("broker.id", "node.id")):
        if given in raw and other not in raw:
            raw[other], sources[other] = raw[given], sources[given]


def _check_known(name: str) -> None:
    if find_option(name) is None and not name.startswith(OPEN_PREFIXES):
        raise ConfigError(f"Unknown option {name}{suggestion(name, broker_options())}")


def _from_environment(env: Mapping[str, str]) -> dict[str, str]:
    """HEADRACE_LOG_SEGMENT_BYTES -> log.segment.bytes."""
    mine = {key: text for key, text in env.items() if key.startswith(ENVIRONMENT_PREFIX)}
    if not mine:
        return {}
    names = {environment_name(name): name for name in (*ALIASES, *broker_options())}
    found: dict[str, str] = {}
    for key, text in mine.items():
        name = names.get(key)
        if name is not None:
            found[name] = text
        elif close := suggestion(key, names):
            # Other tools' variables share the prefix; only one that looks like a slip of the pen is refused.
            raise ConfigError(f"Unknown environment variable {key}{close}")
    return found


def environment_name(option: str) -> str:
    return ENVIRONMENT_PREFIX + option.upper().replace(".", "_").replace("-", "_")
