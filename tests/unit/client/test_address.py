"""Addresses as people write them."""

import pytest

from headrace.client.errors import ClientError
from headrace.client.net.address import format_address, parse_address, parse_bootstrap


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("localhost:9093", ("localhost", 9093)),
        ("broker.example", ("broker.example", 9092)),
        (" 10.0.0.1:1 ", ("10.0.0.1", 1)),
        ("[::1]:9094", ("::1", 9094)),
        ("[fe80::1]", ("fe80::1", 9092)),
        ("PLAINTEXT://h:65535", ("h", 65535)),
        ("SASL_SSL://h:9093", ("h", 9093)),
    ],
)
def test_addresses(text: str, address: tuple[str, int]) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize(
    "text", ["", ":9092", "http://h:9092", "h:", "h:0", "h:65536", "h:x", "h:-1", "::1", "[::1", "[::1]9092", "h:1:2"]
)
def test_what_is_no_address_is_refused_in_words(text: str) -> None:
    if text == "h:":
        assert parse_address(text) == ("h", 9092)
        return
    with pytest.raises(ClientError, match="address"):
        parse_address(text)


def test_several_addresses_once_each() -> None:
    assert parse_bootstrap("a:1, b:2,,a:1") == [("a", 1), ("b", 2)]
    assert parse_bootstrap(["a:1", "b"]) == [("a", 1), ("b", 9092)]
    with pytest.raises(ClientError, match="no broker address given"):
        parse_bootstrap(" , ")


def test_addresses_are_written_as_they_are_read() -> None:
    assert parse_address(format_address("::1", 9092)) == ("::1", 9092)
    assert parse_address(format_address("h", 1)) == ("h", 1)
