"""`--where`: which records are wanted, as an expression over their fields, such as `value.amount > 10 and key == "a"`.

It is written like Python and read as a tree of which only comparisons, `and`, `or`, `not`, arithmetic and fields are
taken: nothing in it can be called, so that an expression from somewhere else can do no harm.
"""

import ast
import operator
from collections.abc import Callable
from typing import Any

import msgspec

from headrace.client.api.types import Record
from headrace.client.errors import ClientError

Test = Callable[[Record], bool]
Evaluate = Callable[[dict[str, Any]], Any]

EXPRESSION_CHARACTERS_MAX = 2_000
FIELDS = ("topic", "partition", "offset", "timestamp", "key", "value", "headers")
_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge, ast.In: lambda a, b: a in b, ast.NotIn: lambda a, b: a not in b,
    ast.Is: operator.is_, ast.IsNot: operator.is_not,
}  # fmt: skip
_ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Div: operator.truediv, ast.Mod: operator.mod,
}  # fmt: skip


class _Missing:
    """A field that a record does not have. Whatever it is compared with, the answer is no."""

    def _never(self, other: object) -> bool:
        return False

    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __contains__ = _never
    __hash__ = None  # type: ignore[assignment]

    def __bool__(self) -> bool:
        return False


MISSING = _Missing()


def where(expression: str, show_value: Callable[[bytes], Any] | None = None) -> Test:
    """The test that an expression describes; `show_value` reads values that are neither JSON nor text. Raises
    ClientError for what is not one."""
    if len(expression) > EXPRESSION_CHARACTERS_MAX:
        raise ClientError(f"--where: an expression has at most {EXPRESSION_CHARACTERS_MAX} characters")
    try:
        tree = ast.parse(expression.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ClientError(
            f"--where {expression}: not an expression; write it like 'value.amount > 10 and key == \"a\"'"
        ) from None
    evaluate = _compiled(tree.body)

    def test(record: Record) -> bool:
        try:
            return bool(evaluate(_fields(record, show_value)))
        except (TypeError, ZeroDivisionError):  # such as a text that is compared with a number
            return False

    return test


def _fields(record: Record, show_value: Callable[[bytes], Any] | None) -> dict[str, Any]:
    value = record.value
    return {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "key": _content(record.key, as_json=False),
        "value": _content(value, as_json=True) if show_value is None or value is None else show_value(value),
        "headers": {name: _content(content, as_json=False) for name, content in record.headers},
    }


def _content(data: bytes | None, *, as_json: bool) -> Any:
    """JSON where it is some, else text, else bytes."""
    if data is None:
        return None
    if as_json:
        try:
            return msgspec.json.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError):
            pass
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data


def _compiled(node: ast.expr) -> Evaluate:
    match node:
        case ast.Constant(value=value):
            return lambda fields: value
        case ast.Name(id=name):
            if name not in FIELDS:
                raise ClientError(f"--where: there is no field {name!r}; there are {', '.join(FIELDS)}")
            return lambda fields: fields[name]
        case ast.Attribute(value=of, attr=name):
            return _item(_compiled(of), lambda fields: name)
        case ast.Subscript(value=of, slice=index):
            return _item(_compiled(of), _compiled(index))
        case ast.BoolOp(op=kind, values=values):
            return _combined(kind, [_compiled(value) for value in values])
        case ast.Compare():
            return _compared(node)
        case ast.Tuple(elts=elements) | ast.List(elts=elements):
            parts = [_compiled(element) for element in elements]
            return lambda fields: [part(fields) for part in parts]
        case _:
            return _computed(node)


def _computed(node: ast.expr) -> Evaluate:
    match node:
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            of = _compiled(operand)
            return lambda fields: not of(fields)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            of = _compiled(operand)
            return lambda fields: -of(fields)
        case ast.BinOp(left=left, op=kind, right=right) if type(kind) in _ARITHMETIC:
            a, b, operate = _compiled(left), _compiled(right), _ARITHMETIC[type(kind)]
            return lambda fields: operate(a(fields), b(fields))
        case _:
            raise ClientError(f"--where: {ast.unparse(node)!r} is more than a comparison of fields can be")


def _item(of: Evaluate, index: Evaluate) -> Evaluate:
    def found(fields: dict[str, Any]) -> Any:
        value, at = of(fields), index(fields)
        if isinstance(value, dict):
            return value.get(at, MISSING)
        if isinstance(value, list | str) and isinstance(at, int) and -len(value) <= at < len(value):
            return value[at]
        return MISSING

    return found


def _combined(kind: ast.boolop, parts: list[Evaluate]) -> Evaluate:
    if isinstance(kind, ast.And):
        return lambda fields: all(part(fields) for part in parts)
    return lambda fields: any(part(fields) for part in parts)


def _compared(node: ast.Compare) -> Evaluate:
    sides = [_compiled(side) for side in (node.left, *node.comparators)]
    tests = [_COMPARE[type(kind)] for kind in node.ops]

    def holds(fields: dict[str, Any]) -> bool:
        values = [side(fields) for side in sides]
        if any(value is MISSING for value in values):
            return False
        return all(test(a, b) for test, a, b in zip(tests, values, values[1:], strict=False))

    return holds
