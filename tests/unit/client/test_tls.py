"""TLS between a connection and a broker: whom a client trusts, in the words of Java's stores, and large answers."""

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import uvloop

from headrace.client.errors import BrokerUnreachable, SecurityFailed
from headrace.client.net.connection import Connection
from headrace.client.security import Security, read_security
from headrace.protocol import messages as m
from headrace.protocol.api import ApiKey
from headrace.testing.broker import TestBroker
from tests.reference.certificates import Identity
from tests.unit.client.fake import FakeBroker
from tests.waiting import run

CA = Identity("test CA")
HOSTS = ("127.0.0.1", "localhost")
SERVER = Identity("broker", CA, HOSTS)


def served(identity: Identity, folder: Path, *chain: Identity) -> ssl.SSLContext:
    (folder / "server.pem").write_text(identity.key_pem() + identity.pem + "".join(one.pem for one in chain))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.pem")
    return context


def trusting(identity: Identity, **settings: str) -> Security:
    given = {name.replace("_", "."): value for name, value in settings.items()}
    return read_security({"security.protocol": "SSL", "ssl.truststore.certificates": identity.pem, **given})


async def connect(
    context: ssl.SSLContext,
    security: Security,
    ask: Callable[[FakeBroker, Connection], Awaitable[Any]] | None = None,
    host: str = "127.0.0.1",
) -> Any:
    broker = FakeBroker()
    broker.tls = context
    async with broker:
        connection = await Connection.open(host, broker.port, security=security)
        try:
            return await ask(broker, connection) if ask else None
        finally:
            connection.close()


@pytest.mark.parametrize("runner", [asyncio.run, uvloop.run])
def test_requests_of_every_size_go_through(tmp_path: Path, runner: Callable[[Coroutine[Any, Any, None]], None]) -> None:
    async def ask(broker: FakeBroker, connection: Connection) -> None:
        topics = [f"{i:0200d}" for i in range(3000)]
        for name in topics:
            broker.add_topic(name)
        request = m.MetadataRequest(topics=[m.MetadataRequest.MetadataRequestTopic(name=name) for name in topics])
        answers = await asyncio.gather(*(connection.request(ApiKey.METADATA, request) for _ in range(4)))
        assert [[row.name for row in answer.topics] for answer in answers] == [topics] * 4

    runner(asyncio.wait_for(connect(served(SERVER, tmp_path), trusting(CA), ask), 60))


def test_names_are_checked_as_well_as_addresses(tmp_path: Path) -> None:
    run(connect(served(SERVER, tmp_path), trusting(CA), host="localhost"))
    named = served(Identity("broker", CA, ("localhost",)), tmp_path)
    run(connect(named, trusting(CA), host="localhost"))
    with pytest.raises(SecurityFailed, match=r"its certificate is not for '127\.0\.0\.1'"):
        run(connect(named, trusting(CA)))
    run(connect(named, trusting(CA, ssl_endpoint_identification_algorithm="")))


def test_what_is_in_the_store_is_trusted_be_it_a_root_or_not(tmp_path: Path) -> None:
    run(connect(served(SERVER, tmp_path), trusting(SERVER)))
    alone = Identity("self-signed", hosts=HOSTS)
    run(connect(served(alone, tmp_path), trusting(alone)))


def test_certificates_that_are_not_trusted(tmp_path: Path) -> None:
    stranger = Identity("broker", Identity("another CA"), HOSTS)
    with pytest.raises(SecurityFailed, match="nobody that this client trusts"):
        run(connect(served(stranger, tmp_path), trusting(CA)))
    # Trust is not bought by an empty host name check.
    with pytest.raises(SecurityFailed, match="nobody that this client trusts"):
        run(connect(served(stranger, tmp_path), trusting(CA, ssl_endpoint_identification_algorithm="")))
    with pytest.raises(SecurityFailed, match=r"its certificate has expired\. Renew it"):
        run(connect(served(Identity("broker", CA, HOSTS, expired=True), tmp_path), trusting(CA)))


def test_versions_and_ciphers_are_those_that_were_chosen(tmp_path: Path) -> None:
    async def agreed(broker: FakeBroker, connection: Connection) -> Any:
        assert connection._transport is not None
        return connection._transport.get_extra_info("cipher")[:2]

    context = served(SERVER, tmp_path)
    assert run(connect(context, trusting(CA), agreed))[1] == "TLSv1.3"
    suite = trusting(CA, ssl_cipher_suites="TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256")
    assert run(connect(context, suite, agreed)) == ("ECDHE-ECDSA-AES128-GCM-SHA256", "TLSv1.2")
    assert run(connect(context, trusting(CA, ssl_enabled_protocols="TLSv1.2"), agreed))[1] == "TLSv1.2"


def test_a_broker_of_ours_speaks_neither_and_says_so() -> None:
    login = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="a" password="b";'
    sasl = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.jaas.config": login}
    with TestBroker() as broker:
        host, _, port = broker.bootstrap.rpartition(":")

        async def attempt(security: Security) -> None:
            await Connection.open(host, int(port), security=security)

        with pytest.raises(BrokerUnreachable, match="may speak no TLS"):
            run(attempt(trusting(CA)))
        with pytest.raises(SecurityFailed, match="takes no logins"):
            run(attempt(read_security(sasl)))
