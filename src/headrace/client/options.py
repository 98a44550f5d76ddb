"""The options that all clients share, and how options are read: keywords, and the names that Kafka's clients have.

Each option is declared once as a field with its bounds and default. `config` takes Kafka's names (`linger.ms`), as read
from a properties file or copied from another client; a keyword wins over it. A name that nobody knows is refused.
"""

import difflib
import logging
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, TypedDict, TypeVar

import msgspec
from msgspec import Meta

from headrace.client.errors import ClientError
from headrace.client.net.address import DEFAULT_BOOTSTRAP
from headrace.client.net.cluster import Cluster
from headrace.client.security.channel import PLAINTEXT, Security

log = logging.getLogger(__name__)


class OptionRefused(ClientError, ValueError):
    """An option that does not exist, or a value that it cannot have."""


Count = Annotated[int, Meta(ge=0)]
Positive = Annotated[int, Meta(ge=1)]
Millis = Annotated[float, Meta(ge=0)]


class CommonOptions(TypedDict, total=False):
    """Keywords of every client."""

    client_id: str
    request_timeout_ms: int
    connect_timeout_ms: int
    retry_timeout_ms: int
    metadata_max_age_ms: int
    security: Security
    telemetry: Any


class CommonSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What every client can be told."""

    bootstrap: str | list[str] = DEFAULT_BOOTSTRAP
    client_id: str = "headrace"
    request_timeout_ms: Positive = 30_000
    connect_timeout_ms: Positive = 5_000
    retry_timeout_ms: Count = 30_000
    """How long a request that may be cured by trying again is tried again (default.api.timeout.ms)."""
    metadata_max_age_ms: Positive = 300_000
    security: Any = PLAINTEXT
    telemetry: Any = None
    """A `headrace.Telemetry`: spans for what is sent, received and processed."""

    def new_cluster(self) -> Cluster:
        """Connections as these settings say, none of them open yet."""
        return Cluster(
            self.bootstrap,
            client_id=self.client_id,
            connect_timeout_s=self.connect_timeout_ms / 1000,
            request_timeout_s=self.request_timeout_ms / 1000,
            retry_timeout_s=self.retry_timeout_ms / 1000,
            security=self.security,
        )


COMMON_NAMES = {
    "bootstrap.servers": "bootstrap",
    "client.id": "client_id",
    "request.timeout.ms": "request_timeout_ms",
    "socket.connection.setup.timeout.ms": "connect_timeout_ms",
    "default.api.timeout.ms": "retry_timeout_ms",
    "metadata.max.age.ms": "metadata_max_age_ms",
}

COMMON_UNUSED = frozenset(
    {
        "auto.include.jmx.reporter", "client.dns.lookup", "connections.max.idle.ms", "enable.metrics.push",
        "metadata.cluster.check.enable", "metadata.recovery.rebootstrap.trigger.ms", "metadata.recovery.strategy",
        "metric.reporters", "metrics.num.samples", "metrics.recording.level", "metrics.sample.window.ms",
        "receive.buffer.bytes", "reconnect.backoff.max.ms", "reconnect.backoff.ms", "retry.backoff.max.ms",
        "retry.backoff.ms", "send.buffer.bytes", "socket.connection.setup.timeout.max.ms", "config.providers",
    }
)  # fmt: skip
"""Options of Kafka's Java clients that have no meaning here, or one that is told in another way: accepted, and logged,
so that a configuration can be taken as it is."""

_JAVA = "org.apache.kafka.clients.consumer."
_ASSIGNORS = {
    f"{_JAVA}CooperativeStickyAssignor": "cooperative-sticky",
    f"{_JAVA}RangeAssignor": "range",
    f"{_JAVA}RoundRobinAssignor": "roundrobin",
}
"""As Java's configurations write them."""

S = TypeVar("S", bound=CommonSettings)


def read_settings(
    kind: type[S],
    names: Mapping[str, str],
    unused: frozenset[str] | set[str],
    config: Mapping[str, Any] | None,
    options: Mapping[str, Any],
) -> S:
    """Settings from Kafka's names in `config` and from keywords, which win. Raises OptionRefused."""
    fields = {field.name for field in msgspec.structs.fields(kind)}
    if config is not None and not isinstance(config, Mapping):
        raise OptionRefused(f"config is {config!r}: give a dict of Kafka's names, such as {{'linger.ms': 5}}")
    given: dict[str, Any] = {}
    keywords: dict[str, Any] = {}
    secured: dict[str, str] = {}
    for into, source in ((given, config or {}), (keywords, options)):
        for name, value in source.items():
            dotted = name.replace("_", ".")
            if name not in fields and dotted.startswith(("security.", "ssl.", "sasl.")):
                if value is not None:
                    secured[dotted] = str(value)
            elif value is not None or source is config:
                _put(into, name, value, fields, names, unused)
    if secured and "security" not in keywords:
        from headrace.client.security.settings import read_security

        given["security"] = read_security(secured)
    return _convert(kind, given | keywords)


def _put(
    into: dict[str, Any],
    name: str,
    value: Any,
    fields: set[str],
    names: Mapping[str, str],
    unused: frozenset[str] | set[str],
) -> None:
    dotted = name.replace("_", ".")
    if name in fields:
        into[name] = value
    elif dotted in names:
        into[names[dotted]] = value
    elif dotted in unused:
        log.info("option %s has no effect here", name)
    else:
        known = [*names, *unused] if "." in name else [*fields, *(one.replace(".", "_") for one in names)]
        close = difflib.get_close_matches(name, known, n=1)
        fix = f"did you mean {close[0]!r}?" if close else f"known are {', '.join(sorted(fields))}"
        raise OptionRefused(f"there is no option {name!r}: {fix}")


def _convert(kind: type[S], given: dict[str, Any]) -> S:
    for name in ("assignors", "bootstrap"):
        value = given.get(name)
        if isinstance(value, str) and name == "assignors":
            given[name] = [_ASSIGNORS.get(part, part) for part in map(str.strip, value.split(",")) if part]
        elif isinstance(value, Iterable) and not isinstance(value, str):
            given[name] = list(value)
    try:
        return msgspec.convert(given, kind, strict=False)
    except msgspec.ValidationError as error:
        words, _, place = str(error).partition(" - at `$.")
        name = place.rstrip("`").split("[")[0]
        raise OptionRefused(f"option {name or '?'} is {given.get(name)!r}: {words.replace('`', '')}") from None


def choose(name: str, value: str, allowed: tuple[str, ...]) -> str:
    """One of the allowed words, in any case. Raises OptionRefused."""
    if value.lower() not in allowed:
        close = difflib.get_close_matches(value.lower(), allowed, n=1)
        hint = f" (did you mean {close[0]}?)" if close else ""
        raise OptionRefused(f"option {name} is {value!r}{hint}: write {', '.join(allowed[:-1])} or {allowed[-1]}")
    return value.lower()
