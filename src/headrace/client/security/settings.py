"""The security settings of Kafka's clients, under their Java names: read and checked once, before anything connects.

What cannot be honoured is refused, with what to do instead.
"""

import difflib
from collections.abc import Mapping

from headrace.client.errors import SettingRefused
from headrace.client.security.channel import Security
from headrace.client.security.jaas import JaasError, parse_jaas
from headrace.client.security.sasl import MECHANISMS, PLAIN, Credentials
from headrace.client.security.tls import TYPES, VERSIONS, Store, Tls, openssl_ciphers

PREFIXES = ("security.", "ssl.", "sasl.")
PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")

KNOWN = (
    "security.protocol", "sasl.mechanism", "sasl.jaas.config",
    "ssl.truststore.location", "ssl.truststore.password", "ssl.truststore.type", "ssl.truststore.certificates",
    "ssl.keystore.location", "ssl.keystore.password", "ssl.keystore.type", "ssl.keystore.certificate.chain",
    "ssl.keystore.key", "ssl.key.password", "ssl.endpoint.identification.algorithm", "ssl.enabled.protocols",
    "ssl.protocol", "ssl.cipher.suites",
)  # fmt: skip

_OF_JAVA = "it chooses a part of Java's TLS, and TLS is Python's here; leave it out"
_KERBEROS = "Kerberos (GSSAPI) is not spoken; set sasl.mechanism to PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512"
_OAUTH = "OAUTHBEARER is not spoken; set sasl.mechanism to PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512"
_CALLBACK = "there is no JVM here to run it; put the login into sasl.jaas.config"
REFUSED = {
    "ssl.provider": _OF_JAVA,
    "ssl.engine.factory.class": _OF_JAVA,
    "ssl.keymanager.algorithm": _OF_JAVA,
    "ssl.trustmanager.algorithm": _OF_JAVA,
    "ssl.secure.random.implementation": _OF_JAVA,
    "security.providers": _OF_JAVA,
    "ssl.client.auth": (
        "it is a broker's setting; a client that has ssl.keystore settings shows its certificate when asked"
    ),
    "sasl.kerberos.": _KERBEROS,
    "sasl.oauthbearer.": _OAUTH,
    "sasl.client.callback.handler.class": _CALLBACK,
    "sasl.login.": "logins here have nothing to refresh and no class to run; leave it out",
}
"""Settings that Kafka's clients have and this one cannot honour; a name that ends in a dot stands for all that
follow."""

LOGIN_MODULES = {PLAIN: "PlainLoginModule"}
"""By mechanism; all others have ScramLoginModule."""


def is_security(name: str) -> bool:
    """Whether a setting is one of security."""
    return name.startswith(PREFIXES)


def read_security(given: Mapping[str, str], *, prefix: str = "") -> Security:
    """Check all settings of security in `given`, files included; others are passed over. Raises SettingRefused.

    Names are those of Kafka's Java clients. In `given` they have no prefix; in messages they do.
    """
    settings = {name: value.strip() for name, value in given.items() if is_security(name)}
    if not settings:
        return Security(prefix=prefix)
    reader = _Reader(settings, prefix)
    reader.check_names()
    protocol = reader.protocol()
    # As in Kafka, what the protocol has no use for is not looked at: jobs share their settings.
    security = Security(
        reader.tls() if protocol.endswith("SSL") else None,
        reader.credentials() if protocol.startswith("SASL") else None,
        prefix,
    )
    if security.tls is not None:
        security.tls.context()
    return security


class _Reader:
    def __init__(self, settings: Mapping[str, str], prefix: str) -> None:
        self._settings = settings
        self._prefix = prefix

    def refuse(self, name: str, verdict: str, fix: str) -> SettingRefused:
        return SettingRefused(self._prefix + name, verdict, fix)

    def get(self, name: str) -> str | None:
        value = self._settings.get(name)
        if value == "":
            raise self.refuse(name, "is empty", "set it, or leave it out")
        return value

    def one_of(self, name: str, allowed: tuple[str, ...], default: str) -> str:
        value = self.get(name) or default
        found = next((one for one in allowed if one.lower() == value.lower()), None)
        if found is None:
            raise self.refuse(name, f"is {value!r}", f"it must be one of {', '.join(allowed)}")
        return found

    def check_names(self) -> None:
        for name in self._settings:
            if name in KNOWN:
                continue
            for refused, reason in REFUSED.items():
                if name == refused or (refused.endswith(".") and name.startswith(refused)):
                    raise self.refuse(name, "cannot be used", reason)
            close = difflib.get_close_matches(name, KNOWN, n=1)
            fix = f"did you mean {self._prefix + close[0]!r}?" if close else "check its spelling, or leave it out"
            raise self.refuse(name, "is not a setting of Kafka's clients", fix)

    def protocol(self) -> str:
        if "security.protocol" not in self._settings:
            named = next(iter(self._settings))
            raise self.refuse(
                "security.protocol",
                "is missing",
                f"without it {self._prefix}{named} has no effect and everything is sent in the clear; set SSL, SASL_SSL"
                " or SASL_PLAINTEXT, or PLAINTEXT if that is what you want",
            )
        return self.one_of("security.protocol", PROTOCOLS, "PLAINTEXT")

    # -- TLS

    def tls(self) -> Tls:
        versions = self._versions()
        ciphers = ""
        if (suites := self.get("ssl.cipher.suites")) is not None:
            if "TLSv1.2" not in versions:
                raise self.refuse(
                    "ssl.cipher.suites", "is set without TLSv1.2", "those of TLS 1.3 cannot be chosen; leave it out"
                )
            versions = ("TLSv1.2",)
            try:
                ciphers = openssl_ciphers(_listed(suites))
            except ValueError as error:
                raise self.refuse("ssl.cipher.suites", "cannot be used", str(error)) from None
        self.one_of("ssl.protocol", ("TLS", *VERSIONS), "TLS")
        return Tls(self._trusted(), self._own(), self._checks_host(), versions, ciphers)

    def _checks_host(self) -> bool:
        value = self._settings.get("ssl.endpoint.identification.algorithm", "https")
        if value.lower() not in ("https", ""):
            raise self.refuse(
                "ssl.endpoint.identification.algorithm",
                f"is {value!r}",
                "it must be https, or empty to check no host names",
            )
        return value != ""

    def _versions(self) -> tuple[str, ...]:
        name = "ssl.enabled.protocols"
        given = _listed(self.get(name) or ",".join(VERSIONS))
        unknown = [one for one in given if one not in VERSIONS]
        if unknown or not given:
            raise self.refuse(
                name, f"is {','.join(given)!r}", f"it must be of {', '.join(VERSIONS)}; older ones are not safe"
            )
        return tuple(given)

    def _trusted(self) -> Store | None:
        store = "ssl.truststore"
        location, inline = self._place(store, f"{store}.certificates")
        if location is None and inline is None:
            return None
        return Store(
            self._prefix + store, location, self._password(f"{store}.password"), self._type(store, inline), inline
        )

    def _own(self) -> Store | None:
        store = "ssl.keystore"
        location, key = self._place(store, f"{store}.key")
        chain = self.get(f"{store}.certificate.chain")
        if key is not None and chain is None:
            raise self.refuse(
                f"{store}.certificate.chain", "is missing", f"{self._prefix}{store}.key needs its certificate"
            )
        if key is None and chain is not None:
            raise self.refuse(f"{store}.key", "is missing", f"{self._prefix}{store}.certificate.chain needs its key")
        if location is None and key is None:
            return None
        return Store(
            self._prefix + store,
            location,
            self._password(f"{store}.password"),
            self._type(store, key),
            chain,
            key,
            self._password("ssl.key.password"),
        )

    def _place(self, store: str, inline: str) -> tuple[str | None, str | None]:
        """Where a store is: a file or the text itself."""
        location, text = self.get(f"{store}.location"), self.get(inline)
        if location is not None and text is not None:
            raise self.refuse(inline, f"is set, and {self._prefix}{store}.location is too", "leave one of them out")
        if location is None and f"{store}.password" in self._settings:
            raise self.refuse(
                f"{store}.location", "is missing", f"{self._prefix}{store}.password has nothing to open; set it"
            )
        return location, text

    def _type(self, store: str, inline: str | None) -> str | None:
        if f"{store}.type" not in self._settings:
            return None
        found = self.one_of(f"{store}.type", TYPES, "PEM")
        if inline is not None and found != "PEM":
            raise self.refuse(f"{store}.type", f"is {found!r}", "text in place of a file is PEM; set PEM")
        return found

    def _password(self, name: str) -> str | None:
        return self._settings.get(name)

    # -- SASL

    def credentials(self) -> Credentials:
        mechanism = self._mechanism()
        text = self.get("sasl.jaas.config")
        expected = LOGIN_MODULES.get(mechanism, "ScramLoginModule")
        package = "plain" if mechanism == PLAIN else "scram"
        example = f'org.apache.kafka.common.security.{package}.{expected} required username="..." password="...";'
        if text is None:
            raise self.refuse("sasl.jaas.config", "is missing", f"set it to {example}")
        try:
            module = parse_jaas(text)
        except JaasError as error:
            raise self.refuse("sasl.jaas.config", "cannot be read", f"{error}; write {example}") from None
        if module.name != expected:
            raise self.refuse(
                "sasl.jaas.config",
                f"names {module.name}",
                f"{self._prefix}sasl.mechanism is {mechanism}; write {example}",
            )
        found = {name: module.options.get(name, "") for name in ("username", "password")}
        for name, value in found.items():
            if not value or "\0" in value:
                verdict = f"has no {name}" if not value else f"has a {name} with a zero byte"
                raise self.refuse("sasl.jaas.config", verdict, f"write {example}")
        is_token = mechanism != PLAIN and module.options.get("tokenauth", "").lower() == "true"
        return Credentials(mechanism, found["username"], found["password"], is_token)

    def _mechanism(self) -> str:
        name = "sasl.mechanism"
        given = self.get(name)
        if given is None:
            raise self.refuse(
                name, "is missing", f"Kafka's default, GSSAPI, is not spoken; set one of {', '.join(MECHANISMS)}"
            )
        if given.upper() not in MECHANISMS:
            raise self.refuse(name, f"is {given!r}", f"it is not spoken; set one of {', '.join(MECHANISMS)}")
        return given.upper()


def _listed(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]
