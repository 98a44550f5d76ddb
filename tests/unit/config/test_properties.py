"""java.util.Properties syntax, by the rules of its documentation."""

import pytest

from headrace.config import ConfigError, parse_properties


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a=b", {"a": "b"}),
        ("a = b", {"a": "b"}),
        ("a:b", {"a": "b"}),
        ("a : b", {"a": "b"}),
        ("a b", {"a": "b"}),
        ("a\tb c", {"a": "b c"}),
        ("a\fb", {"a": "b"}),
        ("a == b", {"a": "= b"}),
        ("a=b=c:d", {"a": "b=c:d"}),
        ("a", {"a": ""}),
        ("a=", {"a": ""}),
        ("=b", {"": "b"}),
        ("  a = b  ", {"a": "b  "}),
        ("# a=b\n! c=d\n  # e=f\n\ng=h", {"g": "h"}),
        ("a=b#c", {"a": "b#c"}),
        ("a=1\na=2", {"a": "2"}),
        ("a=1\r\nb=2\rc=3", {"a": "1", "b": "2", "c": "3"}),
        ("a=one, \\\n    two, \\\r\n\tthree", {"a": "one, two, three"}),
        ("a=b\\\\\nc=d", {"a": "b\\", "c": "d"}),
        ("a=b\\\n# still the value", {"a": "b# still the value"}),
        ("# comment \\\na=b", {"a": "b"}),
        ("a=b\\", {"a": "b"}),
        ("a=b\\\n\nc=d", {"a": "b", "c": "d"}),
        ("a\\ key\\:\\= = v", {"a key:=": "v"}),
        ("a=\\t\\n\\r\\f\\q\\\\", {"a": "\t\n\r\fq\\"}),
        ("a=\\ b", {"a": " b"}),
        ("a=\\u0041\\u00e9", {"a": "Aé"}),
        ("a=\\ud83d\\ude00", {"a": "😀"}),
        ("a=é", {"a": "é"}),
        ("a=\x0bb\u2028c", {"a": "\x0bb\u2028c"}),
        ("", {}),
    ],
)
def test_syntax(text: str, expected: dict[str, str]) -> None:
    assert parse_properties(text) == expected


@pytest.mark.parametrize("text", ["a=\\u12", "a=\\u12g4", "\\u=1"])
def test_broken_unicode_escape_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="four hexadecimal digits"):
        parse_properties(text)
