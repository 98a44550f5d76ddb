"""Logins on a connection: what is asked in which order, brokers that cheat or hang up, and logins that run out."""

import asyncio
import base64
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import pytest

from headrace.client.errors import BrokerUnreachable, ConnectionLost, SecurityFailed
from headrace.client.net.cluster import Cluster
from headrace.client.net.connection import Connection
from headrace.client.security import Security, read_security
from headrace.errors import Err
from headrace.protocol import messages as m
from headrace.protocol.api import API, ApiKey
from tests.unit.client.fake import HANG_UP, SILENT, FakeBroker
from tests.unit.client.scram_server import Server
from tests.waiting import run, until

METADATA = m.MetadataRequest(topics=[])
SECRET = "hush-hush"


def security(mechanism: str = "PLAIN", **settings: str) -> Security:
    module = "plain.PlainLoginModule" if mechanism == "PLAIN" else "scram.ScramLoginModule"
    login = f'org.apache.kafka.common.security.{module} required username="alice" password="{SECRET}";'
    given = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": mechanism, "sasl.jaas.config": login}
    return read_security(given | settings)


class LoginBroker(FakeBroker):
    """Takes logins; `answers` are what it says to SaslAuthenticate, in turn, and the last one again and again."""

    def __init__(self, answers: Iterable[Any] = (b"",), lifetime_ms: int = 0, **options: Any) -> None:
        super().__init__(**options)
        self.answers = list(answers)
        self.lifetime_ms = lifetime_ms
        self.handlers[ApiKey.SASL_HANDSHAKE] = lambda request, version: m.SaslHandshakeResponse(mechanisms=["PLAIN"])
        self.handlers[ApiKey.SASL_AUTHENTICATE] = self.authenticate

    def authenticate(self, request: m.SaslAuthenticateRequest, version: int) -> Any:
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if callable(answer):
            answer = answer(request.auth_bytes)
        if not isinstance(answer, bytes):
            return answer
        return m.SaslAuthenticateResponse(auth_bytes=answer, session_lifetime_ms=self.lifetime_ms)


async def connect(broker: FakeBroker, how: Security | None = None) -> Connection:
    return await Connection.open(broker.host, broker.port, security=how or security())


def test_versions_come_first_then_the_handshake_then_the_login() -> None:
    async def play() -> None:
        async with LoginBroker() as broker:
            connection = await connect(broker)
            await connection.request(ApiKey.METADATA, METADATA)
            assert [(key, version) for key, version, _ in broker.seen] == [
                (ApiKey.API_VERSIONS, API[ApiKey.API_VERSIONS].latest_stable),
                (ApiKey.SASL_HANDSHAKE, 1),
                (ApiKey.SASL_AUTHENTICATE, 2),
                (ApiKey.METADATA, API[ApiKey.METADATA].latest_stable),
            ]
            assert broker.seen[1][2].mechanism == "PLAIN"
            assert broker.seen[2][2].auth_bytes == b"\0alice\0" + SECRET.encode()
            connection.close()

    run(play())


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_scram_over_a_connection_of_an_older_broker(mechanism: str) -> None:
    server = Server(mechanism.removeprefix("SCRAM-").replace("-", "").lower(), SECRET)

    async def play() -> None:
        versions = {key: (api.min_version, api.latest_stable) for key, api in API.items()} | {
            ApiKey.SASL_AUTHENTICATE: (0, 0)
        }
        async with LoginBroker([server.first, server.last], versions=versions) as broker:
            connection = await connect(broker, security(mechanism))
            assert (connection.logins, broker.count(ApiKey.SASL_AUTHENTICATE)) == (1, 2)
            connection.close()

    run(play())


def refused(code: Err, words: str | None = None) -> m.SaslAuthenticateResponse:
    return m.SaslAuthenticateResponse(error_code=code, error_message=words)


@pytest.mark.parametrize(
    ("answers", "mechanism", "words"),
    [
        (
            [refused(Err.SASL_AUTHENTICATION_FAILED, "no\x1b such user")],
            "PLAIN",
            r"refused the login of 'alice' by PLAIN \(no\? such user\)",
        ),
        (
            [refused(Err.SASL_AUTHENTICATION_FAILED)],
            "PLAIN",
            "error 58.*check username and password in sasl.jaas.config",
        ),
        ([b"r=other,s=c2FsdA==,i=4096"], "SCRAM-SHA-256", "does not extend this client's"),
        ([Server("sha256", SECRET, iterations=1).first], "SCRAM-SHA-256", "1 iterations"),
        ([Server("sha256", SECRET).first, b"v=" + base64.b64encode(bytes(32))], "SCRAM-SHA-256", "has not proved"),
        ([Server("sha256", SECRET).first, b""], "SCRAM-SHA-256", "cannot be read"),
        ([b""], "SCRAM-SHA-256", "cannot be read"),
    ],
)
def test_logins_that_fail_are_told_without_secrets(answers: list[Any], mechanism: str, words: str) -> None:
    async def play() -> None:
        async with LoginBroker(answers) as broker:
            with pytest.raises(SecurityFailed, match=words) as error:
                await connect(broker, security(mechanism))
            assert SECRET not in str(error.value)
            assert broker.count(ApiKey.METADATA) == 0

    run(play())


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (m.SaslHandshakeResponse(error_code=Err.UNSUPPORTED_SASL_MECHANISM, mechanisms=["SCRAM-SHA-512", "GSSAPI"]),
         "does not take logins by PLAIN, but SCRAM-SHA-512, GSSAPI: set sasl.mechanism"),
        (m.SaslHandshakeResponse(error_code=Err.ILLEGAL_SASL_STATE),
         "takes no logins: set security.protocol to PLAINTEXT"),
        (m.SaslHandshakeResponse(error_code=Err.UNKNOWN_SERVER_ERROR), "refused to begin a login"),
    ],
)  # fmt: skip
def test_a_handshake_that_is_refused(answer: Any, words: str) -> None:
    async def play() -> None:
        async with LoginBroker() as broker:
            broker.handlers[ApiKey.SASL_HANDSHAKE] = lambda request, version: answer
            with pytest.raises(SecurityFailed, match=words):
                await connect(broker)
            # The password must not go to a broker that has not agreed to the mechanism.
            assert broker.count(ApiKey.SASL_AUTHENTICATE) == 0

    run(play())


def test_a_broker_without_logins_is_told() -> None:
    async def play() -> None:
        async with FakeBroker(versions={ApiKey.API_VERSIONS: (0, 4), ApiKey.METADATA: (0, 12)}) as broker:
            with pytest.raises(SecurityFailed, match="takes no logins"):
                await connect(broker)

    run(play())


def test_a_broker_that_hangs_up_or_falls_silent_may_be_tried_again() -> None:
    async def play() -> None:
        async with LoginBroker([HANG_UP]) as broker:
            with pytest.raises(BrokerUnreachable, match="closed the connection during the login"):
                await connect(broker)
        async with LoginBroker([SILENT]) as broker:
            with pytest.raises(BrokerUnreachable, match="did not come to an end with the login"):
                await Connection.open(broker.host, broker.port, security=security(), timeout_s=0.2)

    run(play())


def test_a_broker_that_wants_a_login_hangs_up_on_those_without() -> None:
    async def play() -> None:
        async with FakeBroker() as broker:
            broker.handlers[ApiKey.METADATA] = lambda request, version: HANG_UP
            connection = await Connection.open(broker.host, broker.port)
            with pytest.raises(ConnectionLost, match=r"it may want a login: set security.protocol to SASL_PLAINTEXT"):
                await connection.request(ApiKey.METADATA, METADATA)

    run(play())


def test_a_wrong_password_is_tried_at_one_broker_only() -> None:
    async def play() -> None:
        async with LoginBroker([refused(Err.SASL_AUTHENTICATION_FAILED)]) as one, LoginBroker() as other:
            cluster = Cluster([one.address, other.address], security=security())
            with pytest.raises(SecurityFailed, match="refused the login"):
                await cluster.refresh(())
            assert other.connections == 0

    run(play())


def test_a_login_is_renewed_before_it_runs_out_and_nothing_comes_in_between() -> None:
    async def play() -> None:
        async with LoginBroker(lifetime_ms=50) as broker:
            connection = await connect(broker)
            done = False

            async def ask_all_the_time() -> None:
                while not done:
                    await connection.request(ApiKey.METADATA, METADATA)

            asking = [asyncio.create_task(ask_all_the_time()) for _ in range(3)]
            await broker.received(ApiKey.SASL_AUTHENTICATE, 4)
            done = True
            await asyncio.gather(*asking)
            kinds = [key for key, _, _ in broker.seen]
            behind = [after for key, after in pairwise(kinds) if key is ApiKey.SASL_HANDSHAKE]
            assert set(behind) == {ApiKey.SASL_AUTHENTICATE}
            assert kinds.count(ApiKey.METADATA) > 0 and broker.connections == 1
            assert connection.is_open and connection.logins >= 3
            connection.close()
            # A renewal may have been on its way.
            await until(lambda: not broker.open_connections, "the broker sees it closed")
            seen = len(broker.seen)
            await asyncio.sleep(0.2)
            assert len(broker.seen) == seen

    run(play())


def test_a_renewal_that_is_refused_ends_the_connection() -> None:
    async def play() -> None:
        async with LoginBroker([b"", refused(Err.SASL_AUTHENTICATION_FAILED, "changed")], lifetime_ms=50) as broker:
            connection = await connect(broker)
            broker.handlers[ApiKey.METADATA] = lambda request, version: SILENT
            # In flight for as long as it takes, as a fetch that waits for records.
            with pytest.raises(SecurityFailed, match="changed"):
                await connection.request(ApiKey.METADATA, METADATA)
            assert not connection.is_open

    run(play())
