"""SASL without a connection: published vectors, Kafka's JAAS text, and brokers that cheat."""

import base64
import pickle
from collections.abc import Generator

import pytest
from hypothesis import example, given, strategies as st

from headrace.client.security.jaas import JaasError, parse_jaas
from headrace.client.security.sasl import ITERATIONS_MAX, Credentials, SaslError, plain, scram
from tests.unit.client.scram_server import Server

# RFC 5802 section 5 and RFC 7677 section 3: hash, nonce, server's first, client's last, server's last.
VECTORS = [
    (
        "sha1",
        "fyko+d2lbbFgONRv9qkxdawL",
        b"n,,n=user,r=fyko+d2lbbFgONRv9qkxdawL",
        b"r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j,s=QSXCR+Q6sek8bf92,i=4096",
        b"c=biws,r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j,p=v0X8v3Bz2T0CJGbJQyF0X+HI4Ts=",
        b"v=rmF9pqV8S7suAoZWja4dJRkFsKQ=",
    ),
    (
        "sha256",
        "rOprNGfwEbeRWgbNEkqO",
        b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO",
        b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096",
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=",
        b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=",
    ),
]


@pytest.mark.parametrize(("hash_name", "nonce", "first", "server_first", "last", "server_last"), VECTORS)
def test_scram_speaks_as_the_rfcs_do(
    hash_name: str, nonce: str, first: bytes, server_first: bytes, last: bytes, server_last: bytes
) -> None:
    exchange = scram(hash_name, "user", "pencil", nonce)
    assert next(exchange) == first
    assert exchange.send(server_first) == last
    with pytest.raises(StopIteration):
        exchange.send(server_last)


def play(exchange: Generator[bytes, bytes, None], server: Server) -> None:
    last = exchange.send(server.first(next(exchange)))
    with pytest.raises(StopIteration):
        exchange.send(server.last(last))


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_names_and_passwords_are_taken_as_they_are(mechanism: str) -> None:
    hash_name = mechanism.removeprefix("SCRAM-").replace("-", "").lower()
    # Kafka does no SASLprep: a soft hyphen and a ligature stay what they are.
    password = "pa\u00adss ﬁ =,\"'"
    play(Credentials(mechanism, "a,b=c", password).exchange(), Server(hash_name, password))
    assert b"n=a=2Cb=3Dc,r=" in next(Credentials(mechanism, "a,b=c", password).exchange())


def test_each_login_has_a_nonce_of_its_own() -> None:
    credentials = Credentials("SCRAM-SHA-512", "u", "p")
    assert next(credentials.exchange()) != next(credentials.exchange())


def test_a_delegation_token_says_what_it_is() -> None:
    exchange = Credentials("SCRAM-SHA-256", "tokenid", "hmac", is_token=True).exchange()
    assert next(exchange).endswith(b",tokenauth=true")
    play(Credentials("SCRAM-SHA-256", "tokenid", "hmac", is_token=True).exchange(), Server("sha256", "hmac"))


@pytest.mark.parametrize(
    ("first", "words"),
    [
        (b"r=theirs,s=c2FsdA==,i=4096", "does not extend"),
        (b"r=mine,s=c2FsdA==,i=4096", "does not extend"),
        (b"r=minemore,s=c2FsdA==,i=4095", "4095 iterations"),
        (b"r=minemore,s=c2FsdA==,i=%d" % (ITERATIONS_MAX + 1), "iterations"),
        (b"r=minemore,s=c2FsdA==,i=9999999999", "iterations"),
        (b"r=minemore,s=c2FsdA==,i=-1", "cannot be read"),
        (b"r=minemore,s=c2FsdA==,i=99999999999999999999", "cannot be read"),
        (b"r=minemore,s=c2Fsd,i=4096", "base64"),
        (b"m=mandatory,r=minemore,s=c2FsdA==,i=4096", "cannot be read"),
        (b"r=minemore,s=" + base64.b64encode(bytes(2000)) + b",i=4096", "salt has 2000 bytes"),
        (b"e=unknown-user", "unknown-user"),
        (b"", "cannot be read"),
        (b"\xff\xfe", "not text"),
        (b"r=" + b"x" * 20_000, "20002 bytes"),
    ],
)
def test_a_first_message_that_cheats_ends_the_login(first: bytes, words: str) -> None:
    exchange = scram("sha256", "user", "pencil", "mine")
    next(exchange)
    with pytest.raises(SaslError, match=words):
        exchange.send(first)


@pytest.mark.parametrize(
    ("last", "words"),
    [
        (b"v=" + base64.b64encode(bytes(32)), "has not proved"),
        (b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4", "base64"),
        (b"", "cannot be read"),
        (b"e=invalid-proof\x1b[2J", r"invalid-proof\?\[2J"),
    ],
)
def test_a_broker_that_does_not_know_the_password_is_found_out(last: bytes, words: str) -> None:
    _, nonce, _, server_first, _, _ = VECTORS[1]
    exchange = scram("sha256", "user", "pencil", nonce)
    next(exchange)
    exchange.send(server_first)
    with pytest.raises(SaslError, match=words):
        exchange.send(last)


@given(st.binary(max_size=200))
@example(b"r=mine,s=,i=4096")
def test_no_first_message_does_more_than_end_the_login(message: bytes) -> None:
    exchange = scram("sha256", "user", "pencil", "mine")
    next(exchange)
    with pytest.raises(SaslError):
        exchange.send(message)


def test_plain_says_everything_at_once() -> None:
    exchange = plain("alice", "sécret")
    assert next(exchange) == b"\0alice\0" + "sécret".encode()
    with pytest.raises(StopIteration):
        exchange.send(b"")


def test_credentials_travel_and_are_not_shown() -> None:
    credentials = Credentials("PLAIN", "alice", "hush-hush")
    assert "hush-hush" not in repr(credentials)
    assert pickle.loads(pickle.dumps(credentials)) == credentials


# -- JAAS


@pytest.mark.parametrize(
    ("text", "options"),
    [
        (
            'a.PlainLoginModule required username="alice" password="s3cret";',
            {"username": "alice", "password": "s3cret"},
        ),
        (
            "a.PlainLoginModule  REQUIRED\n username='alice'\n password='it\"s'\n ;\n",
            {"username": "alice", "password": 'it"s'},
        ),
        (r'a.PlainLoginModule required password="a\"b\\c\x\n\101\7z";', {"password": 'a"b\\cx\nA\x07z'}),
        ('a.PlainLoginModule required password="a;b=c//d/*e*/";', {"password": "a;b=c//d/*e*/"}),
        (
            "a.PlainLoginModule required // who\n username=alice-1/x /* and */ password=p ;",
            {"username": "alice-1/x", "password": "p"},
        ),
        ('a.PlainLoginModule required username="" ;', {"username": ""}),
        ("a.PlainLoginModule optional;", {}),
    ],
)
def test_jaas_text_is_read_as_java_reads_it(text: str, options: dict[str, str]) -> None:
    found = parse_jaas(text)
    assert (found.name, found.class_name, found.options) == ("PlainLoginModule", "a.PlainLoginModule", options)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "empty"),
        ("; ", "begins with"),
        ("a.PlainLoginModule", "must come one of required"),
        ('a.PlainLoginModule username="hush"', "must come one of required"),
        ('a.PlainLoginModule required username="hush"', "semicolon"),
        ("a.PlainLoginModule required username= ;", "username has no value"),
        ("a.PlainLoginModule required password=hu sh;", "should be an option"),
        ('a.PlainLoginModule required password="hush;', "quote at character 38 is not closed"),
        ('a.PlainLoginModule required password="hu\nsh";', "not closed"),
        ("a.PlainLoginModule required; b.PlainLoginModule required;", "more than one"),
    ],
)
def test_jaas_text_that_is_wrong_is_explained_without_its_secrets(text: str, words: str) -> None:
    with pytest.raises(JaasError, match=words) as error:
        parse_jaas(text)
    assert "hu" not in str(error.value)


@given(st.text(), st.sampled_from("\"'"))
def test_any_password_can_be_quoted(password: str, quote: str) -> None:
    quoted = password.replace("\\", "\\\\").replace("\n", "\\n").replace(quote, "\\" + quote)
    assert parse_jaas(f"a.B required password={quote}{quoted}{quote};").options == {"password": password}


@given(st.text(alphabet="ab=;\"'\\/* \n", max_size=30))
def test_any_text_is_read_or_explained(text: str) -> None:
    try:
        parse_jaas("a.B required " + text)
    except JaasError as error:
        assert str(error)


def test_a_login_module_shows_no_options() -> None:
    assert "hush" not in repr(parse_jaas('a.PlainLoginModule required password="hush";'))
