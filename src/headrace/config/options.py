"""What an option is: its type, its checks, and how text becomes a value and back, by Kafka's rules.

Every error names the option first, so that it can be shown as it is to the author of the value.
"""

from collections.abc import Callable
from enum import IntEnum
from typing import Any

import msgspec

Value = bool | int | float | str | list[str] | None

HIDDEN = "[hidden]"


class ConfigError(ValueError):
    """A value or a combination of values that cannot be used."""


class Type(IntEnum):
    """Option types with the numbers DescribeConfigs uses for them."""

    UNKNOWN = 0
    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


class Option(msgspec.Struct, frozen=True, gc=False):
    """One row of an option table. `default` is text, None where Kafka's default is null."""

    name: str
    type: Type
    default: str | None
    checks: str
    scope: str
    importance: str
    doc: str
    required: bool = False
    internal: bool = False
    effect: bool = False
    synonyms: tuple[tuple[str, int], ...] = ()

    @property
    def sensitive(self) -> bool:
        return self.type is Type.PASSWORD

    @property
    def dynamic(self) -> bool:
        return self.scope != "read-only"

    def parse(self, text: str | None) -> Value:
        """The checked value of `text`; raises ConfigError."""
        value = parse_text(self.name, self.type, text)
        if isinstance(value, list) and self.checks.startswith("distinct"):
            value = list(dict.fromkeys(value))
        if self.checks:
            for check in _checks(self.checks):
                complaint = check(value)
                if complaint:
                    shown = HIDDEN if self.sensitive else text
                    raise ConfigError(f"{self.name}: {shown!r} {complaint}")
        return value


def parse_text(name: str, type_: Type, text: str | None) -> Value:
    """Text to a value of the type, before any check of the option's own."""
    if text is None:
        return None
    text = text.strip()
    match type_:
        case Type.BOOLEAN:
            lowered = text.lower()
            if lowered not in ("true", "false"):
                raise ConfigError(f"{name}: {text!r} is neither true nor false")
            return lowered == "true"
        case Type.INT | Type.LONG | Type.SHORT:
            return _integer(name, type_, text)
        case Type.DOUBLE:
            return _double(name, text)
        case Type.LIST:
            return parse_list(text)
        case _:
            return text


def parse_list(text: str) -> list[str]:
    """Kafka's lists: comma-separated, blanks around items dropped, empty text is the empty list."""
    text = text.strip()
    return [item.strip() for item in text.split(",")] if text else []


_BITS = {Type.SHORT: 15, Type.INT: 31, Type.LONG: 63}


def _integer(name: str, type_: Type, text: str) -> int:
    digits = text[1:] if text[:1] in ("+", "-") else text
    # int() would also take underscores and blanks, and 20 digits are enough for any long.
    if not digits.isdecimal() or len(digits.lstrip("0")) > 20:
        raise ConfigError(f"{name}: {text!r} is not an integer")
    number = int(text)
    limit = 1 << _BITS[type_]
    if not -limit <= number < limit:
        raise ConfigError(f"{name}: {text!r} does not fit in {_BITS[type_] + 1} bits")
    return number


def _double(name: str, text: str) -> float:
    """Java's Double.parseDouble: `NaN` and `Infinity` in that spelling only, a type letter may follow."""
    body = text.lstrip("+-")
    try:
        if len(text) - len(body) > 1 or "_" in body:
            raise ValueError
        if body[:2].lower() == "0x":
            return float.fromhex(text.rstrip("dDfF") if "p" in body.lower() else "x")
        if body[:1].isalpha() and body not in ("NaN", "Infinity"):
            raise ValueError
        return float(text[:-1] if text[-1:] in ("d", "D", "f", "F") else text)
    except ValueError:
        raise ConfigError(f"{name}: {text!r} is not a number") from None


def render(value: Value) -> str | None:
    """A value as Kafka writes it in answers: lists joined by commas, doubles as Java prints them."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return ",".join(value)
    if isinstance(value, float):
        return render_double(value)
    return str(value)


def render_double(value: float) -> str:
    """Java's Double.toString: scientific below 1e-3 and from 1e7, at least one digit after the point."""
    if value != value:
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "Infinity" if value > 0 else "-Infinity"
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        text = format(value, "f") if "e" in repr(value) else repr(value)
        return text if "." in text else text + ".0"
    mantissa, _, exponent = _scientific(value).partition("e")
    return f"{mantissa if '.' in mantissa else mantissa + '.0'}E{int(exponent)}"


def _scientific(value: float) -> str:
    """Shortest digits that read back as the value, in scientific form."""
    for digits in range(17):
        text = format(value, f".{digits}e")
        if float(text) == value:
            return text
    return format(value, ".16e")


# --- checks ---------------------------------------------------------------------------------------

Check = Callable[[Any], str | None]
_compiled: dict[str, tuple[Check, ...]] = {}


def _checks(text: str) -> tuple[Check, ...]:
    """The checks column, compiled once: `0..`, `1..9 or:-1`, `in:a,b`, `anycase:A,B`, and named ones."""
    found = _compiled.get(text)
    if found is None:
        words = text.split()
        allowed = [int(word[3:]) for word in words if word.startswith("or:")]
        found = tuple(_check(word, allowed) for word in words if not word.startswith("or:"))
        _compiled[text] = found
    return found


def _check(word: str, also: list[int]) -> Check:
    kind, _, rest = word.partition(":")
    if kind == "in":
        return _one_of(rest.split(","))
    if kind == "anycase":
        return _one_of_any_case(rest.split(","))
    if kind in _NAMED:
        return _NAMED[kind]
    low, dots, high = word.partition("..")
    assert dots, f"unknown check {word!r} in an option table"
    return _between(float(low) if low else None, float(high) if high else None, also)


def _number(bound: float) -> str:
    return str(int(bound)) if bound == int(bound) else str(bound)


def _between(low: float | None, high: float | None, also: list[int]) -> Check:
    suffix = "".join(f" (or {extra})" for extra in also)

    def check(value: Any) -> str | None:
        if value is None or value in also:
            return None
        # NaN passes, as it does in Kafka.
        if low is not None and value < low:
            return f"is below the least allowed, {_number(low)}{suffix}"
        if high is not None and value > high:
            return f"is above the most allowed, {_number(high)}{suffix}"
        return None

    return check


def _one_of(allowed: list[str]) -> Check:
    def check(value: Any) -> str | None:
        if value is None:
            return None
        items = value if isinstance(value, list) else [value]
        wrong = next((item for item in items if item not in allowed), None)
        return None if wrong is None else f"is not allowed; allowed: {', '.join(allowed)}"

    return check


def _one_of_any_case(allowed: list[str]) -> Check:
    lowered = [item.lower() for item in allowed]

    def check(value: Any) -> str | None:
        if value is not None and value.lower() in lowered:
            return None
        return f"is not allowed; allowed in any case: {', '.join(allowed)}"

    return check


def _no_empty_items(value: Any) -> str | None:
    """Repeated items are dropped when parsed, but a missing one is a mistake."""
    return "has an empty item" if value and "" in value else None


def _nonempty(value: Any) -> str | None:
    return "must not be empty" if value is not None and not value else None


def _nonnull(value: Any) -> str | None:
    return "must not be null" if value is None else None


def _throttled(value: Any) -> str | None:
    if not value or value == ["*"]:
        return None
    for item in value:
        partition, colon, replica = item.partition(":")
        if not (colon and partition.strip().isdecimal() and replica.strip().isdecimal()):
            return "must be * or a list of partition:broker pairs"
    return None


def _address(text: str) -> bool:
    host, _, port = text.strip().rpartition(":")
    # Nobody can connect to the address that means every interface.
    return host not in ("", "0.0.0.0") and port.isdecimal() and int(port) <= 65535


def _voters(value: Any) -> str | None:
    for item in value or ():
        node, at, address = item.partition("@")
        if not (at and node.isdecimal() and _address(address)):
            return "must be a list of id@host:port"
    return None


def _servers(value: Any) -> str | None:
    return None if all(_address(item) for item in value or ()) else "must be a list of host:port"


def _offset_reset(value: Any) -> str | None:
    if value in ("earliest", "latest"):
        return None
    kind, _, duration = (value or "").partition(":")
    if kind == "by_duration" and is_iso_duration(duration):
        return None
    return "must be latest, earliest or by_duration:PnDTnHnMn.nS"


def is_iso_duration(text: str) -> bool:
    """Whether java.time.Duration would read this as a duration that is not negative."""
    from re import IGNORECASE, fullmatch

    found = fullmatch(r"P(?:(\d+)D)?(?:(T)(?:(\d+)H)?(?:(\d+)M)?(?:(\d+)(?:[.,]\d{0,9})?S)?)?", text, IGNORECASE)
    if not found:
        return False
    days, time, *parts = found.groups()
    return any(part is not None for part in parts) if time else days is not None


_NAMED: dict[str, Check] = {
    "distinct": _no_empty_items,
    "nonempty": _nonempty,
    "nonnull": _nonnull,
    "throttled": _throttled,
    "voters": _voters,
    "servers": _servers,
    "offset-reset": _offset_reset,
}
