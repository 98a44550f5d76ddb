"""JAAS text as Kafka's clients take it in `sasl.jaas.config`: one login module, a flag, options, a semicolon.

Quotes and escapes are those of Java's tokenizer. Errors name places and options, never values: these are passwords.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

FLAGS = ("required", "requisite", "sufficient", "optional")
_ESCAPES = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_ESCAPED = re.compile(r"\\([0-3][0-7]{0,2}|[4-7][0-7]?|.)", re.DOTALL)
_TOKEN = re.compile(
    r"""(?P<skip>\s+|//[^\n]*|/\*.*?\*/)
    |"(?P<double>(?:[^"\\\n]|\\.)*)"
    |'(?P<single>(?:[^'\\\n]|\\.)*)'
    |(?P<sign>[=;])
    |(?P<word>[^\s=;"']+)""",
    re.DOTALL | re.VERBOSE,
)


class JaasError(ValueError):
    """Text that is no JAAS configuration; the message says where."""


@dataclass(frozen=True, slots=True)
class LoginModule:
    """A Java class by its full name, and what it is given."""

    class_name: str
    options: Mapping[str, str] = field(repr=False)

    @property
    def name(self) -> str:
        """Without the package: vendors that shade Kafka's client put another in front."""
        return self.class_name.rpartition(".")[2]


def parse_jaas(text: str) -> LoginModule:
    """The one module of a client's configuration. Raises JaasError."""
    tokens = list(_tokens(text))
    if not tokens:
        raise JaasError("it is empty")
    found, rest = _module(tokens)
    if rest:
        raise JaasError("it holds more than one login module, and a client has one")
    return found


Token = tuple[bool, str]
"""Whether it is `=` or `;` itself, and the text."""


def _module(tokens: list[Token]) -> tuple[LoginModule, list[Token]]:
    (is_sign, class_name), *rest = tokens
    if is_sign:
        raise JaasError(f"it begins with {class_name!r} rather than the name of a login module")
    if not rest or rest[0][1].lower() not in FLAGS:
        raise JaasError(f"behind the login module must come one of {', '.join(FLAGS)}")
    position = 1
    options: dict[str, str] = {}
    while position < len(rest):
        is_sign, key = rest[position]
        if is_sign and key == ";":
            return LoginModule(class_name, options), rest[position + 1 :]
        if is_sign or rest[position + 1 : position + 2] != [(True, "=")]:
            # What stands there may be the rest of a password that was not quoted.
            raise JaasError(f'word {position + 2} of it should be an option, written name="value"')
        if position + 2 >= len(rest) or rest[position + 2][0]:
            raise JaasError(f'option {key} has no value: write {key}="..."')
        options[key] = rest[position + 2][1]
        position += 3
    raise JaasError("it does not end with a semicolon")


def _tokens(text: str) -> Iterator[Token]:
    position = 0
    while position < len(text):
        found = _TOKEN.match(text, position)
        if found is None:
            raise JaasError(f"the quote at character {position + 1} is not closed on its line")
        position = found.end()
        kind = found.lastgroup
        if kind in ("double", "single"):
            yield False, _ESCAPED.sub(_unescaped, found[kind])
        elif kind != "skip":
            yield kind == "sign", found[0]


def _unescaped(found: re.Match[str]) -> str:
    code = found[1]
    return chr(int(code, 8)) if code.isdecimal() and code[0] in "01234567" else _ESCAPES.get(code, code)
