"""Apache Kafka with a listener for each way to be secure, and what a client of each has to set."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.reference.apache import SMALL_INTERNAL_TOPICS, ApacheKafka, free_ports
from tests.reference.certificates import Identity

LISTENERS = {
    "TLS": "SSL",
    "MUTUAL": "SSL",
    "ELSEWHERE": "SSL",
    "LOGIN": "SASL_PLAINTEXT",
    "SHORT": "SASL_PLAINTEXT",
    "BOTH": "SASL_SSL",
}
"""MUTUAL wants a certificate of its clients, ELSEWHERE has one for another host, and logins of SHORT hold for
seconds."""
USER, SECRET = "alice", 'al "ice" \\ s=ecret'
SESSION_MS = 3000

_MODULES = {
    "PLAIN": "plain.PlainLoginModule",
    "SCRAM-SHA-256": "scram.ScramLoginModule",
    "SCRAM-SHA-512": "scram.ScramLoginModule",
}


def jaas(mechanism: str, password: str = SECRET, user: str = USER) -> str:
    """As people write it."""
    quoted = password.replace("\\", "\\\\").replace('"', '\\"')
    return f'org.apache.kafka.common.security.{_MODULES[mechanism]} required username="{user}" password="{quoted}";'


class SecuredKafka(ApacheKafka):
    """A combined node whose clients may come in by any of LISTENERS, or in the clear."""

    def __init__(self, folder: Path) -> None:
        scram = [f"{mechanism}=[name={USER},password={SECRET}]" for mechanism in _MODULES if "SCRAM" in mechanism]
        add = [word for one in scram for word in ("--add-scram", one)]
        super().__init__(folder, properties=SMALL_INTERNAL_TOPICS, format_args=add)
        self.ports = dict(zip(LISTENERS, free_ports(len(LISTENERS))))
        self.ca = Identity("test CA")
        self.client = Identity("client", self.ca)
        server, other = (
            Identity("broker", self.ca, hosts) for hosts in (("localhost", "127.0.0.1"), ("kafka.example",))
        )
        for name, one in (("server", server), ("other", other)):
            (folder / f"{name}.pem").write_text(one.key_pem() + one.pem)
        (folder / "ca.pem").write_text(self.ca.pem)
        users = jaas("PLAIN").replace(";", f" user_{USER}=" + jaas("PLAIN").rpartition("password=")[2])
        settings = {
            "listeners": ",".join(
                [f"PLAINTEXT://127.0.0.1:{self.port}", f"CONTROLLER://127.0.0.1:{self.controller_port}"]
                + [f"{name}://127.0.0.1:{port}" for name, port in self.ports.items()]
            ),
            "listener.security.protocol.map": ",".join(
                f"{name}:{protocol}"
                for name, protocol in {"PLAINTEXT": "PLAINTEXT", "CONTROLLER": "PLAINTEXT", **LISTENERS}.items()
            ),
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": folder / "server.pem",
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": folder / "ca.pem",
            "listener.name.mutual.ssl.client.auth": "required",
            "listener.name.elsewhere.ssl.keystore.location": folder / "other.pem",
            "listener.name.elsewhere.ssl.keystore.type": "PEM",
            "sasl.enabled.mechanisms": ",".join(_MODULES),
            "listener.name.login.sasl.enabled.mechanisms": "PLAIN",
            "listener.name.short.sasl.enabled.mechanisms": "PLAIN",
            "listener.name.short.plain.connections.max.reauth.ms": SESSION_MS,
        }
        for listener in ("login", "short", "both"):
            settings[f"listener.name.{listener}.plain.sasl.jaas.config"] = users
            for mechanism in ("scram-sha-256", "scram-sha-512"):
                settings[f"listener.name.{listener}.{mechanism}.sasl.jaas.config"] = jaas("SCRAM-SHA-256")
        with self.config_file.open("a") as file:
            file.writelines(f"{name}={_escaped(str(value))}\n" for name, value in settings.items())

    def at(self, listener: str) -> str:
        return f"127.0.0.1:{self.ports[listener]}"

    def settings(self, listener: str, mechanism: str = "PLAIN", password: str = SECRET) -> dict[str, str]:
        """What a client of a listener sets, by the names that Kafka's clients have."""
        found = {"security.protocol": LISTENERS[listener]}
        if "SSL" in found["security.protocol"]:
            found |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(self.folder / "ca.pem")}
        if "SASL" in found["security.protocol"]:
            found |= {"sasl.mechanism": mechanism, "sasl.jaas.config": jaas(mechanism, password)}
        return found


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\")


@contextmanager
def secured_kafka() -> Iterator[SecuredKafka]:
    """A running node in a folder of its own that is removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="headrace-secured-") as folder, SecuredKafka(Path(folder)) as broker:
        yield broker
