"""YAML with its lines kept, so that everything wrong in a spec can be pointed at. Pure: text in, values out.

`${NAME}` and `${NAME:-default}` in values are replaced by environment variables, which is where secrets belong.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from headrace.spark.pipelines.spec.problems import Problem, SpecInvalid, Where

_VARIABLE = re.compile(r"\$\$\{|\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")
NESTING_MAX = 30


@dataclass(frozen=True, slots=True)
class Scalar:
    """A value as written (`text`) and as YAML means it. `first_line` is where a text of several lines begins."""

    where: Where
    text: str
    value: str | int | float | bool | None
    first_line: int


@dataclass(frozen=True, slots=True)
class Items:
    where: Where
    items: tuple["Value", ...]

    def __iter__(self) -> Iterator["Value"]:
        return iter(self.items)


@dataclass(frozen=True, slots=True)
class Block:
    where: Where
    entries: Mapping[str, "Value"]


Value = Scalar | Items | Block


def read_document(text: str, file: Path, environment: Mapping[str, str]) -> Block:
    """The top of a spec. Raises SpecInvalid: broken YAML, keys given twice, variables that are not set."""
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        raise SpecInvalid([_broken(error, file)]) from None
    top = Where(file, 1, "")
    if node is None:
        raise SpecInvalid([Problem(top, "the file is empty", "headrace pipeline init writes an example to start from")])
    reader = _Reader(file, environment)
    found = reader.value(node, top, 0)
    if not isinstance(found, Block):
        raise SpecInvalid([Problem(top, "a spec is a map of keys", "begin with: name: my_pipeline")])
    if reader.problems:
        raise SpecInvalid(reader.problems)
    return found


def _broken(error: yaml.YAMLError, file: Path) -> Problem:
    mark = getattr(error, "problem_mark", None)
    what = getattr(error, "problem", None) or str(error)
    line = mark.line + 1 if mark is not None else 1
    fix = (
        "indent with spaces, not tabs"
        if "\\t" in what
        else "check indentation, colons and quotes here and on the line above"
    )
    return Problem(Where(file, line, ""), f"this is no YAML: {what}", fix)


class _Reader:
    def __init__(self, file: Path, environment: Mapping[str, str]) -> None:
        self.file = file
        self.environment = environment
        self.problems: list[Problem] = []

    def value(self, node: Any, where: Where, depth: int) -> Value:
        if depth > NESTING_MAX:
            raise SpecInvalid([Problem(where, "nested too deeply", "a spec has at most a few levels")])
        if isinstance(node, yaml.MappingNode):
            return self._block(node, where, depth)
        if isinstance(node, yaml.SequenceNode):
            items = [
                self.value(item, Where(self.file, item.start_mark.line + 1, f"{where.key}[{position}]"), depth + 1)
                for position, item in enumerate(node.value)
            ]
            return Items(where, tuple(items))
        return self._scalar(node, where)

    def _block(self, node: Any, where: Where, depth: int) -> Block:
        entries: dict[str, Value] = {}
        for key_node, value_node in node.value:
            name = str(key_node.value)
            place = where.child(name, key_node.start_mark.line + 1)
            if name in entries:
                first = entries[name].where.line
                self.problems.append(Problem(place, "given twice", f"keep one; the other is on line {first}"))
                continue
            entries[name] = self.value(value_node, place, depth + 1)
        return Block(where, entries)

    def _scalar(self, node: Any, where: Where) -> Scalar:
        text = str(node.value)
        filled = _VARIABLE.sub(lambda found: self._variable(found, where), text)
        # `|` and `>` begin on the line after the mark, everything else on it.
        first_line = node.start_mark.line + (2 if node.style in ("|", ">") else 1)
        tag = str(node.tag)
        if filled != text:
            # A variable may stand for a number or a flag, also in quotes, which YAML wants around braces within braces.
            tag = str(yaml.SafeLoader("").resolve(yaml.ScalarNode, filled, (True, False))).replace(":null", ":str")
        return Scalar(where, filled, _plain(tag, filled), first_line)

    def _variable(self, found: re.Match[str], where: Where) -> str:
        if found[1] is None:
            return "${"
        value = self.environment.get(found[1], found[2])
        if value is None:
            self.problems.append(
                Problem(
                    where,
                    f"the variable {found[1]} is not set",
                    f"export {found[1]}=..., or write ${{{found[1]}:-default}}",
                )
            )
            return ""
        return value


def _plain(tag: str, text: str) -> str | int | float | bool | None:
    if tag.endswith(":int"):
        try:
            return int(text.replace("_", ""), 0)
        except ValueError:
            return text
    if tag.endswith(":float"):
        try:
            return float(text.replace("_", ""))
        except ValueError:
            return text
    if tag.endswith(":bool"):
        return text.lower() in ("true", "yes", "on")
    return None if tag.endswith(":null") else text
