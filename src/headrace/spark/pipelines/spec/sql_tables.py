"""Which tables a query reads, found without Spark: enough of SQL's shape to draw the graph and to name what is missing.

Spark's own parser has the last word in a dry run; this one only must never name a table that is not one.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

_TOKEN = re.compile(
    r"""
      (?P<skip>\s+|--[^\n]*|/\*.*?\*/)
    | (?P<text>'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.)*")
    | (?P<quoted>`(?:[^`]|``)*`)
    | (?P<word>[A-Za-z_][A-Za-z0-9_]*)
    | (?P<other>.)
    """,
    re.VERBOSE | re.DOTALL,
)
# Inside these, FROM is part of the function's own grammar: EXTRACT(year FROM at).
_FROM_FUNCTIONS = frozenset({"extract", "trim", "substring", "substr", "overlay", "position"})
_ENDS_FROM = frozenset(
    {
        "where", "group", "having", "order", "limit", "offset", "union", "intersect", "except", "minus", "window",
        "qualify", "sort", "distribute", "cluster", "set", "lateral", "pivot", "unpivot",
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Token:
    kind: str
    text: str
    line: int

    @property
    def lower(self) -> str:
        return self.text.lower()


@dataclass(frozen=True, slots=True)
class TableName:
    """`parts` of a name as SQL means it, and the line it stands on, from 1."""

    parts: tuple[str, ...]
    line: int


def tables_of(sql: str) -> list[TableName]:
    """Names in table position, without those that WITH defines; each once, in order."""
    tokens = list(_tokens(sql))
    defined = _defined_by_with(tokens)
    found: dict[tuple[str, ...], TableName] = {}
    for name in _table_positions(tokens):
        if len(name.parts) == 1 and name.parts[0].lower() in defined:
            continue
        found.setdefault(tuple(part.lower() for part in name.parts), name)
    return list(found.values())


def _tokens(sql: str) -> Iterator[Token]:
    line = 1
    for match in _TOKEN.finditer(sql):
        kind = str(match.lastgroup)
        if kind == "quoted":
            yield Token("word", match[0][1:-1].replace("``", "`"), line)
        elif kind != "skip":
            yield Token(kind, match[0], line)
        line += match[0].count("\n")


def _defined_by_with(tokens: list[Token]) -> set[str]:
    """`WITH a AS (`, `, b (x, y) AS (`: a name, maybe columns in brackets, then AS and a bracket."""
    names = set()
    for position, token in enumerate(tokens[:-2]):
        if token.kind == "word" and _previous(tokens, position) in ("with", "recursive", ","):
            after = position + 1
            if tokens[after].text == "(":
                after = _closing(tokens, after) + 1
            if after + 1 < len(tokens) and tokens[after].lower == "as" and tokens[after + 1].text == "(":
                names.add(token.lower)
    return names


def _closing(tokens: list[Token], opening: int) -> int:
    depth = 0
    for position in range(opening, len(tokens)):
        depth += (tokens[position].text == "(") - (tokens[position].text == ")")
        if depth == 0:
            return position
    return len(tokens) - 1


def _previous(tokens: list[Token], position: int) -> str:
    return tokens[position - 1].lower if position else ""


@dataclass(slots=True)
class _Scope:
    """One level of brackets: whether a FROM list goes on there, and whether FROM means something else in it."""

    in_from: bool = False
    own_from: bool = False
    expects_table: bool = False


def _table_positions(tokens: list[Token]) -> Iterator[TableName]:
    scopes = [_Scope()]
    position = 0
    while position < len(tokens):
        token, scope = tokens[position], scopes[-1]
        word = token.lower if token.kind == "word" else ""
        if token.text == "(":
            before = _previous(tokens, position)
            # A bracket in table position is a subquery or a joined list: FROM (a JOIN b ON ...).
            scopes.append(
                _Scope(
                    in_from=scope.expects_table, own_from=before in _FROM_FUNCTIONS, expects_table=scope.expects_table
                )
            )
            scope.expects_table = False
        elif token.text == ")":
            if len(scopes) > 1:
                scopes.pop()
        elif word == "join" or (word == "from" and not scope.own_from and _previous(tokens, position) != "distinct"):
            scope.in_from = scope.expects_table = True
        elif token.text == "," and scope.in_from:
            scope.expects_table = True
        elif word == "select":
            scope.in_from = scope.expects_table = False
        elif scope.expects_table and word in ("stream", "lateral") and position + 1 < len(tokens):
            pass  # STREAM orders, STREAM(orders), LATERAL (...): the table comes next
        elif scope.expects_table and token.kind == "word" and word not in ("values", "table"):
            scope.expects_table = False
            parts, after = _dotted(tokens, position)
            if after >= len(tokens) or tokens[after].text != "(":
                yield TableName(parts, token.line)
            position = after
            continue
        elif word in _ENDS_FROM or word == "values":
            scope.in_from = scope.expects_table = False
        position += 1


def _dotted(tokens: list[Token], position: int) -> tuple[tuple[str, ...], int]:
    parts = [tokens[position].text]
    position += 1
    while position + 1 < len(tokens) and tokens[position].text == "." and tokens[position + 1].kind == "word":
        parts.append(tokens[position + 1].text)
        position += 2
    return tuple(parts), position
