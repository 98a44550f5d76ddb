"""The file format of java.util.Properties, which Kafka's configuration files are written in."""

from collections.abc import Iterator

from .options import ConfigError

_BLANKS = " \t\f"
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def parse_properties(text: str) -> dict[str, str]:
    """Keys and values of a properties text; a key given twice keeps its last value."""
    found: dict[str, str] = {}
    for line in _logical_lines(text):
        key, value = _split(line)
        found[_unescape(key)] = _unescape(value)
    return found


def _natural_lines(text: str) -> list[str]:
    # Not str.splitlines: a form feed or a Unicode separator does not end a line here.
    return text.replace("\r\n", "\n").replace("\r", "\n").split("\n")


def _logical_lines(text: str) -> Iterator[str]:
    """Lines without comments and blanks, continuations joined. A comment never continues."""
    parts: list[str] = []
    for natural in _natural_lines(text):
        line = natural.lstrip(_BLANKS)
        if not parts and (not line or line[0] in "#!"):
            continue
        if _continues(line):
            parts.append(line[:-1])
            continue
        parts.append(line)
        yield "".join(parts)
        parts = []
    if parts:
        yield "".join(parts)


def _continues(line: str) -> bool:
    """An odd number of backslashes at the end: an even one is escaped backslashes."""
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def _split(line: str) -> tuple[str, str]:
    """The key ends at the first unescaped =, : or blank; one = or : may stand among blanks after it."""
    end = 0
    while end < len(line) and line[end] not in "=:" + _BLANKS:
        end += 2 if line[end] == "\\" else 1
    rest = line[end:].lstrip(_BLANKS)
    if rest[:1] in ("=", ":"):
        rest = rest[1:].lstrip(_BLANKS)
    return line[:end], rest


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    out: list[str] = []
    position, end = 0, len(text)
    while position < end:
        char = text[position]
        position += 1
        if char != "\\":
            out.append(char)
        elif position < end:
            char = text[position]
            position += 1
            if char == "u":
                out.append(_unicode(text[position : position + 4]))
                position += 4
            else:
                out.append(_ESCAPES.get(char, char))
    # Java's escapes are UTF-16 units: two of them may make one character.
    return "".join(out).encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _unicode(digits: str) -> str:
    if len(digits) != 4 or not all(char in "0123456789abcdefABCDEF" for char in digits):
        raise ConfigError(f"properties: '\\u{digits}' needs four hexadecimal digits")
    return chr(int(digits, 16))
