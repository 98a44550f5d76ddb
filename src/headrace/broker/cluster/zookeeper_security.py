"""From the zookeeper.* options to a way to ZooKeeper: TLS from the stores that Kafka's options name, and a login."""

from collections.abc import Callable
from ssl import SSLContext

from headrace.broker.runtime import StartupError
from headrace.client.errors import SettingRefused
from headrace.client.security.jaas import JaasError, parse_jaas
from headrace.client.security.tls import VERSIONS, Store, Tls
from headrace.config import BrokerConfig
from headrace.quorum.zookeeper.session import Login, ZooKeeperOptions

JAAS = "zookeeper.sasl.jaas.config"
MODULE = "DigestLoginModule"


def zookeeper_options(config: BrokerConfig) -> ZooKeeperOptions:
    """What a configuration says of the way to ZooKeeper. Raises StartupError."""
    assert config.zookeeper_connect is not None, "asked by whoever has seen it"
    return ZooKeeperOptions(
        config.zookeeper_connect,
        config["zookeeper.session.timeout.ms"],
        config["zookeeper.connection.timeout.ms"],
        _tls(config),
        _login(config),
        config["zookeeper.set.acl"],
    )


def _tls(config: BrokerConfig) -> Callable[[], SSLContext] | None:
    if not config["zookeeper.ssl.client.enable"]:
        return None
    versions = tuple(config["zookeeper.ssl.enabled.protocols"] or VERSIONS)
    if not set(versions) <= set(VERSIONS):
        raise StartupError(f"zookeeper.ssl.enabled.protocols: of {', '.join(VERSIONS)}, and not {', '.join(versions)}")
    check_host = config["zookeeper.ssl.endpoint.identification.algorithm"].upper() == "HTTPS"
    trusted = _store(
        "zookeeper.ssl.truststore",
        config["zookeeper.ssl.truststore.location"],
        config["zookeeper.ssl.truststore.password"],
        config["zookeeper.ssl.truststore.type"],
    )
    own = _store(
        "zookeeper.ssl.keystore",
        config["zookeeper.ssl.keystore.location"],
        config["zookeeper.ssl.keystore.password"],
        config["zookeeper.ssl.keystore.type"],
    )
    tls = Tls(trusted, own, check_host, versions)
    try:
        tls.context()  # what is wrong with a file is said now, and not whenever a connection is made
    except SettingRefused as refused:
        raise StartupError(str(refused)) from None
    return tls.context


def _store(setting: str, location: str | None, password: str | None, kind: str | None) -> Store | None:
    """As in ZooKeeper, the key in a store has the store's own password."""
    return Store(setting, location, password, kind, key_password=password) if location else None


def _login(config: BrokerConfig) -> Login | None:
    if digest := config["zookeeper.digest"]:
        user, _, password = digest.partition(":")
        return Login("digest", user, password)
    if not (text := config[JAAS]):
        return None
    try:
        module = parse_jaas(text)
    except JaasError as error:
        raise StartupError(f"{JAAS}: {error}") from None
    missing = [name for name in ("username", "password") if name not in module.options]
    if module.name != MODULE or missing:
        raise StartupError(f'{JAAS}: write {MODULE} required username="..." password="...";')
    return Login("sasl", module.options["username"], module.options["password"])
