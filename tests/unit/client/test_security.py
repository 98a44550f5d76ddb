"""Security settings by their Java names: what they come to, and every one that is wrong before anything connects."""

import os
import pickle
import shutil
import ssl
import subprocess
from pathlib import Path
from typing import Any

import pytest

from headrace.client.errors import SettingRefused
from headrace.client.security import PLAINTEXT, Security, read_security, tls
from headrace.client.security.sasl import Credentials
from headrace.client.security.tls import Tls
from headrace.platform import portable
from tests.reference.certificates import PASSWORD, Identity

CA = Identity("test CA")
CLIENT = Identity("client", CA)
PLAIN = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="alice" password="hush-hush";'
SCRAM = PLAIN.replace("plain.Plain", "scram.Scram")


def read(protocol: str = "SSL", prefix: str = "", **settings: Any) -> Security:
    given = {name.replace("_", "."): value for name, value in settings.items()}
    return read_security({"security.protocol": protocol, **given}, prefix=prefix)


def trusted(security: Security) -> list[str]:
    """Who is trusted, by name."""
    found: list[Any] = tls_of(security).context().get_ca_certs()
    return [dict(part[0] for part in one["subject"])["commonName"] for one in found]


def tls_of(security: Security) -> Tls:
    assert security.tls is not None
    return security.tls


def test_nothing_set_is_plaintext() -> None:
    assert read_security({}) == PLAINTEXT
    assert read_security({"client.id": "x", "security.protocol": "plaintext"}) == PLAINTEXT
    assert PLAINTEXT.protocol == "PLAINTEXT"


@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"])
def test_protocols_take_what_they_need_and_pass_the_rest_over(protocol: str) -> None:
    found = read(protocol, sasl_mechanism="PLAIN", sasl_jaas_config=PLAIN, ssl_truststore_certificates=CA.pem)
    assert found.protocol == protocol
    assert (found.tls is not None) == protocol.endswith("SSL")
    assert found.credentials == (Credentials("PLAIN", "alice", "hush-hush") if "SASL" in protocol else None)


def test_settings_travel_and_show_no_secret(tmp_path: Path) -> None:
    store = CLIENT.key_store(tmp_path / "k.p12")
    found = read(
        "SASL_SSL", sasl_mechanism="SCRAM-SHA-512", sasl_jaas_config=SCRAM, ssl_truststore_certificates=CA.pem,
        ssl_keystore_location=str(store), ssl_keystore_password=PASSWORD,
    )  # fmt: skip
    assert pickle.loads(pickle.dumps(found)) == found
    assert "hush-hush" not in repr(found) and PASSWORD not in repr(found)
    inline = read(ssl_keystore_key=CLIENT.key_pem(), ssl_keystore_certificate_chain=CLIENT.pem)
    assert "PRIVATE KEY" not in repr(inline)


def test_shaded_login_modules_and_tokens_are_taken() -> None:
    shaded = read("SASL_PLAINTEXT", sasl_mechanism="PLAIN", sasl_jaas_config="kafkashaded." + PLAIN)
    assert shaded.credentials and shaded.credentials.username == "alice"
    token = read(
        "SASL_PLAINTEXT", sasl_mechanism="scram-sha-256", sasl_jaas_config=SCRAM.replace(";", ' tokenauth="true";')
    )
    assert token.credentials == Credentials("SCRAM-SHA-256", "alice", "hush-hush", is_token=True)


# -- stores


def test_trust_comes_from_text_files_and_pkcs12(tmp_path: Path) -> None:
    pem = tmp_path / "ca.pem"
    pem.write_text("Bag Attributes\n    friendlyName: x\n" + CA.pem)
    assert trusted(read(ssl_truststore_location=str(pem), ssl_truststore_type="PEM")) == ["test CA"]
    assert trusted(read(ssl_truststore_location=str(pem))) == ["test CA"]
    assert trusted(read(ssl_truststore_certificates=CA.pem + Identity("other CA").pem, ssl_truststore_type="PEM")) == [
        "test CA",
        "other CA",
    ]
    # A properties file holds it on one line.
    assert trusted(read(ssl_truststore_certificates=CA.pem.replace("\n", " "))) == ["test CA"]
    p12 = CA.trust_store(tmp_path / "ca.p12")
    # Java's default type, JKS, opens PKCS#12 as well.
    for given in ({"ssl_truststore_type": "PKCS12"}, {"ssl_truststore_type": "JKS"}, {}):
        assert trusted(read(ssl_truststore_location=str(p12), ssl_truststore_password=PASSWORD, **given)) == ["test CA"]


def test_without_a_trust_store_this_machine_decides() -> None:
    context = tls_of(read()).context()
    assert context.verify_mode is ssl.CERT_REQUIRED and context.check_hostname


@pytest.mark.parametrize("in_memory", [True, False])
def test_keys_come_from_text_files_and_pkcs12(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_memory: bool) -> None:
    if not in_memory:
        monkeypatch.setattr(tls, "file_in_memory", portable.file_in_memory)
        tls._context.cache_clear()
    chain = CLIENT.pem + CA.pem
    read(ssl_keystore_key=CLIENT.key_pem(), ssl_keystore_certificate_chain=chain, ssl_keystore_type="PEM")
    read(
        ssl_keystore_key=CLIENT.key_pem("pw").replace("\n", " "),
        ssl_keystore_certificate_chain=chain,
        ssl_key_password="pw",
    )
    pem = tmp_path / "client.pem"
    pem.write_text(CLIENT.key_pem("pw") + chain)
    read(ssl_keystore_location=str(pem), ssl_key_password="pw", ssl_keystore_type="PEM")
    p12 = CLIENT.key_store(tmp_path / "client.p12")
    read(ssl_keystore_location=str(p12), ssl_keystore_password=PASSWORD, ssl_key_password=PASSWORD)


def test_a_renewed_file_is_read_again(tmp_path: Path) -> None:
    pem = tmp_path / "ca.pem"
    pem.write_text(CA.pem)
    found = read(ssl_truststore_location=str(pem))
    assert tls_of(found).context() is tls_of(found).context()
    pem.write_text(Identity("a CA that came later").pem)
    os.utime(pem, ns=(1, 1))
    assert trusted(found) == ["a CA that came later"]


def test_stores_that_cannot_be_used_are_explained(tmp_path: Path) -> None:
    cases = {
        "no.pem": (None, "which cannot be read on .*No such file.*every machine.*executor"),
        "empty.pem": (b"-----BEGIN X-----\n-----END X-----", "holds no certificate"),
        "damaged.pem": (b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----", "certificates are damaged"),
        "noise.p12": (b"\x30\x82noise", "cannot be opened"),
    }
    for name, (content, words) in cases.items():
        if content is not None:
            (tmp_path / name).write_bytes(content)
        with pytest.raises(SettingRefused, match=f"option 'kafka.ssl.truststore.location'.*{words}"):
            read(prefix="kafka.", ssl_truststore_location=str(tmp_path / name))
    p12 = CA.trust_store(tmp_path / "ca.p12")
    with pytest.raises(
        SettingRefused, match=r"ssl.truststore.location.*cannot be opened: check ssl.truststore.password"
    ) as error:
        read(ssl_truststore_location=str(p12), ssl_truststore_password="wrong-secret")
    assert "wrong-secret" not in str(error.value)


@pytest.mark.parametrize(
    ("settings", "name", "words"),
    [
        ({"ssl_keystore_key": CLIENT.key_pem("pw"), "ssl_keystore_certificate_chain": CLIENT.pem}, "ssl.key.password",
         "is missing"),
        ({"ssl_keystore_key": CLIENT.key_pem("pw"), "ssl_keystore_certificate_chain": CLIENT.pem,
         "ssl_key_password": "no"},
         "ssl.keystore.key", "check ssl.key.password"),
        ({"ssl_keystore_key": CA.key_pem(), "ssl_keystore_certificate_chain": CLIENT.pem}, "ssl.keystore.key",
         "does not belong"),
        ({"ssl_keystore_key": CLIENT.pem, "ssl_keystore_certificate_chain": CLIENT.pem}, "ssl.keystore.key",
         "without a private key"),
        ({"ssl_keystore_key": CLIENT.key_pem()}, "ssl.keystore.certificate.chain", "is missing"),
        ({"ssl_keystore_certificate_chain": CLIENT.pem}, "ssl.keystore.key", "is missing"),
        ({"ssl_keystore_password": "x"}, "ssl.keystore.location", "is missing"),
        ({"ssl_truststore_certificates": CA.pem, "ssl_truststore_type": "PKCS12"}, "ssl.truststore.type", "set PEM"),
        ({"ssl_truststore_certificates": CA.pem, "ssl_truststore_location": "/x"}, "ssl.truststore.certificates",
         "leave one"),
        ({"ssl_truststore_location": ""}, "ssl.truststore.location", "is empty"),
    ],
)  # fmt: skip
def test_stores_that_do_not_go_together(settings: dict[str, str], name: str, words: str) -> None:
    with pytest.raises(SettingRefused, match=words) as error:
        read(**settings)
    assert error.value.name == name


def test_stores_of_another_kind_than_said(tmp_path: Path) -> None:
    p12, pem = CLIENT.key_store(tmp_path / "k.p12"), tmp_path / "k.pem"
    pem.write_text(CLIENT.key_pem() + CLIENT.pem)
    with pytest.raises(SettingRefused, match=r"ssl.keystore.type.*may be PKCS12"):
        read(ssl_keystore_location=str(p12), ssl_keystore_type="PEM")
    with pytest.raises(SettingRefused, match=r"ssl.keystore.password.*cannot be used with a PEM file"):
        read(ssl_keystore_location=str(pem), ssl_keystore_password="x")
    with pytest.raises(SettingRefused, match=r"ssl.keystore.password.*is missing"):
        read(ssl_keystore_location=str(p12))
    with pytest.raises(SettingRefused, match=r"ssl.key.password.*differs"):
        read(ssl_keystore_location=str(p12), ssl_keystore_password=PASSWORD, ssl_key_password="other")


def keytool(*words: str) -> None:
    subprocess.run(["keytool", *words], check=True, capture_output=True)


@pytest.mark.skipif(shutil.which("keytool") is None, reason="needs keytool")
def test_javas_own_stores_are_read(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text(CA.pem)
    p12, jks = CLIENT.key_store(tmp_path / "client.p12"), str(tmp_path / "stores.jks")
    of_jks = ("-keystore", jks, "-storetype", "JKS", "-storepass", PASSWORD)
    keytool("-importcert", "-noprompt", "-alias", "ca", "-file", str(tmp_path / "ca.pem"), *of_jks)
    keytool("-importkeystore", "-srckeystore", str(p12), "-srcstorepass", PASSWORD, "-destkeystore", jks,
            "-deststoretype", "JKS", "-deststorepass", PASSWORD, "-destkeypass", "another")  # fmt: skip
    for kind in ({"ssl_truststore_type": "JKS"}, {}):
        assert trusted(read(ssl_truststore_location=jks, ssl_truststore_password=PASSWORD, **kind)) == ["test CA"]
    assert trusted(read(ssl_truststore_location=jks)) == ["test CA"], "as in Java: certificates are no secret"
    read(ssl_keystore_location=jks, ssl_keystore_password=PASSWORD, ssl_key_password="another")
    for settings, words in (
        ({"ssl_truststore_location": jks, "ssl_truststore_password": "no"}, "its password is another"),
        ({"ssl_keystore_location": jks, "ssl_keystore_password": PASSWORD}, "the password of its key is another"),
        ({"ssl_keystore_location": jks}, "ssl.keystore.password.*is missing"),
    ):
        with pytest.raises(SettingRefused, match=words):
            read(**settings)
    for size in (8, 30, 200, -100):
        (tmp_path / "cut.jks").write_bytes(Path(jks).read_bytes()[:size])
        with pytest.raises(SettingRefused, match=r"damaged|holds no certificate"):
            read(ssl_truststore_location=str(tmp_path / "cut.jks"))


@pytest.mark.skipif(shutil.which("keytool") is None, reason="needs keytool")
def test_jceks_is_refused_with_the_command_that_converts_it(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text(CA.pem)
    store = tmp_path / "my ca.jceks"
    keytool("-importcert", "-noprompt", "-alias", "ca", "-file", str(tmp_path / "ca.pem"), "-keystore", str(store),
            "-storetype", "JCEKS", "-storepass", PASSWORD)  # fmt: skip
    with pytest.raises(SettingRefused, match="JCEKS store, which only Java reads: convert it: ") as error:
        read(ssl_truststore_location=str(store), ssl_truststore_password=PASSWORD)
    command = str(error.value).partition("convert it: ")[2]
    subprocess.run(
        f"{command} -srcstorepass {PASSWORD} -deststorepass {PASSWORD}", shell=True, check=True, capture_output=True
    )
    found = read(ssl_truststore_location=str(tmp_path / "my ca.p12"), ssl_truststore_password=PASSWORD)
    assert trusted(found) == ["test CA"]


def test_pkcs12_without_the_package_says_which(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    store = CA.trust_store(tmp_path / "ca.p12")
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.serialization", None)
    with pytest.raises(SettingRefused, match=r"pip install 'headrace\[tls\]', or convert it to PEM"):
        read(ssl_truststore_location=str(store), ssl_truststore_password=PASSWORD)


# -- the rest of TLS


def test_versions_host_names_and_ciphers() -> None:
    found = tls_of(read(ssl_enabled_protocols="TLSv1.3", ssl_protocol="TLSv1.3")).context()
    assert (found.minimum_version, found.maximum_version) == (ssl.TLSVersion.TLSv1_3, ssl.TLSVersion.TLSv1_3)
    found = tls_of(read(ssl_endpoint_identification_algorithm="")).context()
    assert not found.check_hostname and found.verify_mode is ssl.CERT_REQUIRED
    assert tls_of(read(ssl_endpoint_identification_algorithm="HTTPS")).check_host
    suites = {
        "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384": "ECDHE-RSA-AES256-GCM-SHA384",
        "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-ECDSA-CHACHA20-POLY1305",
        "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256": "ECDHE-RSA-AES128-SHA256",
        "TLS_RSA_WITH_AES_128_GCM_SHA256": "AES128-GCM-SHA256",
    }
    found_tls = tls_of(read(ssl_cipher_suites=", ".join(suites)))
    assert (found_tls.ciphers, found_tls.versions) == (":".join(suites.values()), ("TLSv1.2",))
    chosen = {one["name"] for one in found_tls.context().get_ciphers() if one["protocol"] != "TLSv1.3"}
    assert chosen == set(suites.values())


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            {"ssl_enabled_protocols": "TLSv1.1,TLSv1.2"},
            "'ssl.enabled.protocols' is 'TLSv1.1,TLSv1.2': it must be of TLSv1.2, TLSv1.3",
        ),
        ({"ssl_protocol": "SSLv3"}, "'ssl.protocol' is 'SSLv3'"),
        ({"ssl_endpoint_identification_algorithm": "none"}, "must be https, or empty"),
        ({"ssl_cipher_suites": "TLS_AES_256_GCM_SHA384"}, "belongs to TLS 1.3"),
        ({"ssl_cipher_suites": "ECDHE-RSA-AES256-GCM-SHA384"}, "is not the name of a suite"),
        ({"ssl_cipher_suites": "TLS_MAGIC_WITH_AES_128_GCM_SHA256"}, "is not known to this machine's OpenSSL"),
        (
            {"ssl_cipher_suites": "TLS_RSA_WITH_AES_128_GCM_SHA256", "ssl_enabled_protocols": "TLSv1.3"},
            "without TLSv1.2",
        ),
        ({"ssl_provider": "BC"}, "'ssl.provider' cannot be used: .*leave it out"),
        ({"security_providers": "x"}, "'security.providers' cannot be used"),
        ({"ssl_truststore_file": "x"}, "'ssl.truststore.file' is not a setting.*did you mean 'ssl.truststore"),
        ({"sasl_kerberos_service_name": "kafka"}, "Kerberos .* is not spoken; set sasl.mechanism"),
        ({"sasl_oauthbearer_token_endpoint_url": "x"}, "OAUTHBEARER is not spoken"),
        ({"sasl_login_callback_handler_class": "x"}, "leave it out"),
        ({"sasl_client_callback_handler_class": "x"}, "no JVM"),
    ],
)
def test_settings_that_cannot_be_honoured_are_refused(settings: dict[str, str], words: str) -> None:
    with pytest.raises(SettingRefused, match=words):
        read(**settings)


# -- logins


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, "'sasl.mechanism' is missing: Kafka's default, GSSAPI, is not spoken"),
        (
            {"sasl_mechanism": "GSSAPI"},
            "'sasl.mechanism' is 'GSSAPI': it is not spoken; set one of PLAIN, SCRAM-SHA-256",
        ),
        ({"sasl_mechanism": "OAUTHBEARER"}, "'OAUTHBEARER': it is not spoken"),
        ({"sasl_mechanism": "AWS_MSK_IAM"}, "'AWS_MSK_IAM': it is not spoken"),
        ({"sasl_mechanism": "PLAIN"}, "'sasl.jaas.config' is missing: set it to .*PlainLoginModule required username"),
        (
            {"sasl_mechanism": "SCRAM-SHA-512", "sasl_jaas_config": PLAIN},
            "names PlainLoginModule: sasl.mechanism is SCRAM-SHA-512",
        ),
        (
            {"sasl_mechanism": "PLAIN", "sasl_jaas_config": PLAIN[:-1]},
            "cannot be read: it does not end with a semicolon",
        ),
        ({"sasl_mechanism": "PLAIN", "sasl_jaas_config": PLAIN.replace("username", "user")}, "has no username"),
        ({"sasl_mechanism": "PLAIN", "sasl_jaas_config": PLAIN.replace("hush-hush", "")}, "has no password"),
        ({"sasl_mechanism": "PLAIN", "sasl_jaas_config": PLAIN.replace("hush-", "hush-\\0")}, "zero byte"),
    ],
)
def test_logins_that_cannot_work_are_refused_without_showing_them(settings: dict[str, str], words: str) -> None:
    with pytest.raises(SettingRefused, match=words) as error:
        read("SASL_PLAINTEXT", **settings)
    assert "hush" not in str(error.value)


def test_settings_without_a_protocol_would_be_sent_in_the_clear() -> None:
    with pytest.raises(
        SettingRefused, match=r"'kafka.security.protocol' is missing: without it kafka.sasl.mechanism has no effect"
    ):
        read_security({"sasl.mechanism": "PLAIN"}, prefix="kafka.")
    with pytest.raises(SettingRefused, match=r"'security.protocol' is 'TLS': it must be one of PLAINTEXT, SSL"):
        read_security({"security.protocol": "TLS"})
