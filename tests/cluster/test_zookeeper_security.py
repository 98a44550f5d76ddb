"""A real ZooKeeper that is spoken to by TLS, with logins, and znodes that belong to whoever made them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from headrace.local_cluster.layout import free_ports
from headrace.testing.cluster import ClusterFailed, TestCluster
from tests.cluster.command_line import headrace
from tests.cluster.conftest import QUICK
from tests.cluster.zookeeper import ensemble
from tests.reference.certificates import PASSWORD, Identity

pytestmark = pytest.mark.reference

JAAS = 'Server {\n  org.apache.zookeeper.server.auth.DigestLoginModule required\n  user_kafka="secret";\n};\n'
MODULE = 'org.apache.zookeeper.server.auth.DigestLoginModule required username="kafka" password="{}";'


class Secured(NamedTuple):
    folder: Path
    plain: str
    """Without TLS, host:port."""
    secure: str

    def settings(self, chroot: str, **more: str) -> dict[str, str]:
        options = {name.replace("_", "."): value for name, value in more.items()}
        return {**QUICK, "zookeeper.connect": f"{self.secure}/{chroot}", **TLS, **self._trust, **options}

    @property
    def _trust(self) -> dict[str, str]:
        return {"zookeeper.ssl.truststore.location": str(self.folder / "ca.pem")}


TLS = {
    "zookeeper.ssl.client.enable": "true",
    "zookeeper.clientCnxnSocket": "org.apache.zookeeper.ClientCnxnSocketNetty",
    "zookeeper.connection.timeout.ms": "8000",
    "zookeeper.set.acl": "true",
}


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("secured")
    authority = Identity("authority")
    server, client = Identity("localhost", authority, ("127.0.0.1",)), Identity("node", authority)
    (folder / "ca.pem").write_text(authority.pem)
    (folder / "other.pem").write_text(Identity("another authority").pem)
    (folder / "server.pem").write_text(server.key_pem() + server.pem)
    client.key_store(folder / "client.p12")
    (folder / "jaas.conf").write_text(JAAS)
    (port,) = free_ports(1)
    options = [
        "serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory",
        f"secureClientPort={port}",
        f"ssl.keyStore.location={folder}/server.pem",
        "ssl.keyStore.type=PEM",
        f"ssl.trustStore.location={folder}/ca.pem",
        "ssl.trustStore.type=PEM",
        "ssl.clientAuth=want",
        "authProvider.sasl=org.apache.zookeeper.server.auth.SASLAuthenticationProvider",
        "authProvider.x509=org.apache.zookeeper.server.auth.X509AuthenticationProvider",
    ]
    properties = [f"java.security.auth.login.config={folder}/jaas.conf"]
    with ensemble(folder, options=options, system_properties=properties) as found:
        yield Secured(folder, found.connect, f"127.0.0.1:{port}")


LOGINS: dict[str, dict[str, str]] = {
    "sasl": {"zookeeper.sasl.jaas.config": MODULE.format("secret")},
    "digest": {"zookeeper.digest": "kafka:secret"},
    "x509": {"zookeeper.ssl.keystore.location": "client.p12", "zookeeper.ssl.keystore.password": PASSWORD},
}


def login(secured: Secured, way: str) -> dict[str, str]:
    found = dict(LOGINS[way])
    if way == "x509":
        found["zookeeper.ssl.keystore.location"] = str(secured.folder / "client.p12")
    return found


@pytest.mark.parametrize("way", LOGINS)
def test_a_cluster_by_tls_whose_znodes_are_its_own(secured: Secured, way: str) -> None:
    with TestCluster(1, settings={**secured.settings(way), **login(secured, way)}) as cluster:
        cluster.create_topic("kept", 2, 1, {"retention.ms": "1000"})
        status = headrace("cluster", "status", "-b", cluster.bootstrap)
        assert "is the controller in epoch 1" in status
        stranger = client(f"{secured.plain}/{way}")
        try:
            from kazoo.exceptions import NoAuthError

            owners = {acl.id.scheme for acl in stranger.get_acls("/brokers/topics/kept")[0] if acl.perms == 31}
            assert owners == {way}
            assert b"partitions" in stranger.get("/brokers/topics/kept")[0], "anybody may look"
            for path in ("/brokers/topics/kept", "/controller_epoch", "/brokers/topics/kept/partitions/0/state"):
                with pytest.raises(NoAuthError):
                    stranger.set(path, b"")
            with pytest.raises(NoAuthError):
                stranger.create("/admin/delete_topics/kept")
            with pytest.raises(NoAuthError):
                stranger.get_children("/headrace/scram")
        finally:
            stranger.stop()
            stranger.close()
        cluster.stop()
        # Again, upon what is there.
        cluster.start()
        assert set(cluster.topic("kept").partitions) == {0, 1}


def client(connect: str) -> Any:
    from kazoo.client import KazooClient

    found = KazooClient(connect)
    found.start(timeout=30)
    return found


def test_what_is_wrong_is_said_in_one_line(secured: Secured) -> None:
    def refused(settings: dict[str, str]) -> str:
        with pytest.raises(ClusterFailed) as failed, TestCluster(1, settings=settings):
            pass
        return str(failed.value)

    good = {**secured.settings("wrong"), **login(secured, "sasl")}
    other = str(secured.folder / "other.pem")
    assert "TLS with 127.0.0.1 failed" in refused({**good, "zookeeper.ssl.truststore.location": other})
    missing = refused({**good, "zookeeper.ssl.truststore.location": "/nowhere.pem"})
    assert "zookeeper.ssl.truststore.location" in missing
    assert "log in" in refused({**good, "zookeeper.sasl.jaas.config": MODULE.format("guessed")})
    assert "zookeeper.sasl.jaas.config: write" in refused({**good, "zookeeper.sasl.jaas.config": "a.B required;"})
    with TestCluster(1, settings={**secured.settings("mine"), **login(secured, "sasl")}):
        said = refused({**secured.settings("mine"), **login(secured, "digest")})
        assert "belong to another login" in said
