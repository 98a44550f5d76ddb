"""Text to values and back: Kafka's types, bounds and spellings."""

import pytest

from headrace.config import ConfigError, Option, Type
from headrace.config.options import HIDDEN, is_iso_duration, render


def option(type_: Type, checks: str = "") -> Option:
    return Option("x.y", type_, None, checks, "read-only", "low", "Doc.")


@pytest.mark.parametrize(
    ("type_", "text", "value"),
    [
        (Type.BOOLEAN, " TRUE ", True),
        (Type.BOOLEAN, "false", False),
        (Type.INT, " +5 ", 5),
        (Type.INT, "-0", 0),
        (Type.INT, "-2147483648", -(1 << 31)),
        (Type.INT, "0000000000000000000000005", 5),
        (Type.LONG, "9223372036854775807", (1 << 63) - 1),
        (Type.SHORT, "32767", 32767),
        (Type.DOUBLE, "1d", 1.0),
        (Type.DOUBLE, "0x1p3", 8.0),
        (Type.DOUBLE, ".5", 0.5),
        (Type.DOUBLE, "Infinity", float("inf")),
        (Type.STRING, " a ", "a"),
        (Type.PASSWORD, "secret", "secret"),
        (Type.LIST, "", []),
        (Type.LIST, "  ", []),
        (Type.LIST, " a , b,a ", ["a", "b", "a"]),
        (Type.LIST, "a,", ["a", ""]),
        (Type.INT, None, None),
    ],
)
def test_parse(type_: Type, text: str | None, value: object) -> None:
    parsed = option(type_).parse(text)
    assert parsed == value
    assert type(parsed) is type(value)


@pytest.mark.parametrize(
    ("type_", "text", "message"),
    [
        (Type.INT, "abc", "x.y: 'abc' is not an integer"),
        (Type.INT, "", "x.y: '' is not an integer"),
        (Type.INT, "1_000", "x.y: '1_000' is not an integer"),
        (Type.INT, "1e7", "x.y: '1e7' is not an integer"),
        (Type.INT, "9" * 5000, "x.y: '9+' is not an integer"),
        (Type.INT, "2147483648", "x.y: '2147483648' does not fit in 32 bits"),
        (Type.SHORT, "40000", "does not fit in 16 bits"),
        (Type.LONG, "9223372036854775808", "does not fit in 64 bits"),
        (Type.BOOLEAN, "yes", "x.y: 'yes' is neither true nor false"),
        (Type.DOUBLE, "x", "x.y: 'x' is not a number"),
        (Type.DOUBLE, "nan", "is not a number"),
        (Type.DOUBLE, "1_0", "is not a number"),
        (Type.DOUBLE, "--1", "is not a number"),
        (Type.DOUBLE, "", "is not a number"),
    ],
)
def test_refused(type_: Type, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        option(type_).parse(text)


def test_bounds_say_what_they_are() -> None:
    with pytest.raises(ConfigError, match=r"x.y: '0' is below the least allowed, 1"):
        option(Type.INT, "1..").parse("0")
    with pytest.raises(ConfigError, match=r"x.y: '10' is above the most allowed, 9 .or -1."):
        option(Type.INT, "1..9 or:-1").parse("10")
    assert option(Type.INT, "1..9 or:-1").parse("-1") == -1


def test_allowed_values() -> None:
    with pytest.raises(ConfigError, match=r"x.y: 'c' is not allowed; allowed: a, b"):
        option(Type.STRING, "in:a,b").parse("c")
    assert option(Type.STRING, "anycase:UP,DOWN").parse("up") == "up"
    with pytest.raises(ConfigError):
        option(Type.STRING, "anycase:UP,DOWN").parse("left")


def test_distinct_lists_drop_repeats_and_refuse_gaps() -> None:
    assert option(Type.LIST, "distinct in:a,b").parse("a,b,a") == ["a", "b"]
    with pytest.raises(ConfigError, match="empty item"):
        option(Type.LIST, "distinct").parse("a,,b")
    with pytest.raises(ConfigError, match="must not be empty"):
        option(Type.LIST, "distinct nonempty").parse("")


def test_a_password_never_shows_in_an_error() -> None:
    with pytest.raises(ConfigError) as caught:
        option(Type.PASSWORD, "in:a").parse("hunter2")
    assert "hunter2" not in str(caught.value)
    assert HIDDEN in str(caught.value)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, None),
        (True, "true"),
        (False, "false"),
        (5, "5"),
        ("a", "a"),
        (["a", "b"], "a,b"),
        ([], ""),
        (1.0, "1.0"),
        (0.5, "0.5"),
        (0.001, "0.001"),
        (1e-5, "1.0E-5"),
        (12345678.9, "1.23456789E7"),
        (1e10, "1.0E10"),
        (9999999.0, "9999999.0"),
        (1.7976931348623157e308, "1.7976931348623157E308"),
        (-0.25, "-0.25"),
        (0.0, "0.0"),
        (float("inf"), "Infinity"),
        (float("nan"), "NaN"),
    ],
)
def test_render_is_javas(value: object, text: str | None) -> None:
    assert render(value) == text  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "valid"),
    [
        ("PT1H", True),
        ("P1D", True),
        ("P1DT2H3M4.5S", True),
        ("pt5s", True),
        ("PT", False),
        ("P", False),
        ("1h", False),
        ("PT-5S", False),
        ("", False),
    ],
)
def test_durations(text: str, valid: bool) -> None:
    assert is_iso_duration(text) is valid


@pytest.mark.parametrize(
    ("check", "text", "valid"),
    [
        ("voters", "1@localhost:9093,2@[::1]:9093", True),
        ("voters", "", True),
        ("voters", "1@localhost", False),
        ("voters", "a@h:1", False),
        ("voters", "1@h:70000", False),
        ("voters", "1@0.0.0.0:1", False),
        ("servers", "a:1,b:2", True),
        ("servers", "a", False),
        ("throttled", "*", True),
        ("throttled", "0:1, 1:2", True),
        ("throttled", "*,0:1", False),
        ("throttled", "0:x", False),
        ("offset-reset", "by_duration:PT1H", True),
        ("offset-reset", "by_duration:", False),
        ("offset-reset", "never", False),
    ],
)
def test_named_checks(check: str, text: str, valid: bool) -> None:
    type_ = Type.STRING if check == "offset-reset" else Type.LIST
    if valid:
        option(type_, check).parse(text)
    else:
        with pytest.raises(ConfigError, match=r"x\.y"):
            option(type_, check).parse(text)
