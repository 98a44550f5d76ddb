"""What a query says of partitions, offsets and times, so that only those are read.

From the syntax tree that DuckDB's `json_serialize_sql` gives. Everything here is conservative: DuckDB applies the whole
WHERE itself, so what is not understood costs time and is never wrong. Only conditions that must hold for a row to count
are taken: those of WHERE, joined by AND, that compare a column with a constant. No row of an outer join that lacks its
partner can fulfil one either.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

Node = Mapping[str, Any]
Evaluate = Callable[[Node, str], Any]
"""A constant expression's value as the type of a column, None if it has none."""

COLUMNS = ("topic", "partition", "offset", "timestamp", "key", "value", "headers", "key_bytes", "value_bytes")
PRUNED = {"partition", "offset", "timestamp"}
MIRRORED = {
    "COMPARE_GREATERTHAN": "COMPARE_LESSTHAN",
    "COMPARE_LESSTHAN": "COMPARE_GREATERTHAN",
    "COMPARE_GREATERTHANOREQUALTO": "COMPARE_LESSTHANOREQUALTO",
    "COMPARE_LESSTHANOREQUALTO": "COMPARE_GREATERTHANOREQUALTO",
    "COMPARE_EQUAL": "COMPARE_EQUAL",
}
# Whose value is the same in every row; `now` is the time at which a query begins.
STEADY_FUNCTIONS = {
    "+", "-", "*", "/", "now", "current_timestamp", "get_current_timestamp", "today", "current_date", "date_trunc",
    "trunc", "to_timestamp", "epoch_ms", "make_timestamptz", "make_timestamp", "make_date", "to_years", "to_months",
    "to_weeks", "to_days", "to_hours", "to_minutes", "to_seconds", "to_milliseconds", "to_microseconds",
}  # fmt: skip
STEADY_CLASSES = {"CONSTANT", "CAST", "FUNCTION", "TYPE"}


@dataclass
class Span:
    """Whole numbers low <= x <= high."""

    low: int | None = None
    high: int | None = None

    def narrow(self, comparison: str, value: int) -> None:
        if comparison in ("COMPARE_GREATERTHAN", "COMPARE_GREATERTHANOREQUALTO", "COMPARE_EQUAL"):
            low = value + 1 if comparison == "COMPARE_GREATERTHAN" else value
            self.low = low if self.low is None else max(self.low, low)
        if comparison in ("COMPARE_LESSTHAN", "COMPARE_LESSTHANOREQUALTO", "COMPARE_EQUAL"):
            high = value - 1 if comparison == "COMPARE_LESSTHAN" else value
            self.high = high if self.high is None else min(self.high, high)

    def hull(self, other: "Span") -> "Span":
        return Span(
            None if self.low is None or other.low is None else min(self.low, other.low),
            None if self.high is None or other.high is None else max(self.high, other.high),
        )


@dataclass
class Wanted:
    """What a query needs of one topic at most."""

    partition: Span = field(default_factory=Span)
    partitions: frozenset[int] | None = None
    """By IN."""
    offset: Span = field(default_factory=Span)
    timestamp: Span = field(default_factory=Span)
    """In microseconds."""

    def hull(self, other: "Wanted") -> "Wanted":
        listed = self.partitions
        if listed is not None and other.partitions is not None:
            listed = listed | other.partitions
        else:
            listed = None
        return Wanted(
            self.partition.hull(other.partition),
            listed,
            self.offset.hull(other.offset),
            self.timestamp.hull(other.timestamp),
        )

    def has_partition(self, number: int) -> bool:
        low, high = self.partition.low, self.partition.high
        return (
            (low is None or number >= low)
            and (high is None or number <= high)
            and (self.partitions is None or number in self.partitions)
        )


def tables_of(tree: Node, evaluate: Evaluate) -> dict[tuple[str, ...], Wanted]:
    """Each table that the query names (by the parts of its name), and what it needs of it in all places together."""
    local = {name for node in _walk(tree) for name in _cte_names(node)}
    found: dict[tuple[str, ...], Wanted] = {}
    for select in (node for node in _walk(tree) if node.get("type") == "SELECT_NODE"):
        sources = list(_sources(select.get("from_table")))
        for source in sources:
            if source.get("type") != "BASE_TABLE":
                continue
            path = table_path(source)
            if len(path) == 1 and path[0] in local:
                wanted = Wanted()
            else:
                wanted = _wanted(select.get("where_clause"), source, len(sources) == 1, evaluate)
            found[path] = found[path].hull(wanted) if path in found else wanted
    return found


def columns_of(tree: Node) -> frozenset[str]:
    """The columns of topics that the query can need. All, where it does not name them."""
    named: set[str] = set()
    for node in _walk(tree):
        if node.get("class") == "STAR":
            return frozenset(COLUMNS)
        if node.get("class") == "COLUMN_REF":
            named.update(str(name).lower() for name in node["column_names"])
        # `using (key)` and natural joins name columns without a reference.
        named.update(str(name).lower() for name in node.get("using_columns") or ())
        if node.get("ref_type") == "NATURAL":
            return frozenset(COLUMNS)
    # A table's own name as a column is a struct of the whole row.
    whole_rows = {node.get("alias") or table_path(node)[-1] for node in _walk(tree) if node.get("type") == "BASE_TABLE"}
    if any(
        node.get("class") == "COLUMN_REF" and len(node["column_names"]) == 1 and node["column_names"][0] in whole_rows
        for node in _walk(tree)
    ):
        return frozenset(COLUMNS)
    return frozenset(named & set(COLUMNS))


def table_path(source: Node) -> tuple[str, ...]:
    """The parts of a table's name: `orders`, or `orders.v1` in two."""
    parts = (source.get("catalog_name"), source.get("schema_name"), source.get("table_name"))
    return tuple(str(part) for part in parts if part)


def _walk(node: Any) -> Iterator[Node]:
    waiting = [node]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict):
            yield one
            waiting.extend(one.values())
        elif isinstance(one, list):
            waiting.extend(one)


def _cte_names(node: Node) -> list[str]:
    ctes = node.get("cte_map")
    return [entry["key"] for entry in ctes.get("map", ())] if isinstance(ctes, dict) else []


def _sources(node: Any) -> Iterator[Node]:
    """What a FROM joins, subqueries as one each."""
    if not isinstance(node, dict):
        return
    if node.get("type") == "JOIN":
        yield from _sources(node.get("left"))
        yield from _sources(node.get("right"))
    else:
        yield node


def _wanted(where: Any, source: Node, alone: bool, evaluate: Evaluate) -> Wanted:
    wanted = Wanted()
    alias = source.get("alias") or source.get("table_name")
    for condition in _conjuncts(where):
        kind = condition.get("type")
        if kind in MIRRORED:
            for column, constant, comparison in (
                (condition["left"], condition["right"], kind),
                (condition["right"], condition["left"], MIRRORED[str(kind)]),
            ):
                _narrow(wanted, _column(column, alias, alone), str(comparison), constant, evaluate)
        elif kind == "COMPARE_BETWEEN":
            name = _column(condition["input"], alias, alone)
            _narrow(wanted, name, "COMPARE_GREATERTHANOREQUALTO", condition["lower"], evaluate)
            _narrow(wanted, name, "COMPARE_LESSTHANOREQUALTO", condition["upper"], evaluate)
        elif kind == "COMPARE_IN" and _column(condition["children"][0], alias, alone) == "partition":
            values = [_value(one, "partition", evaluate) for one in condition["children"][1:]]
            if all(isinstance(value, int) for value in values):
                numbers = frozenset(values)
                wanted.partitions = numbers if wanted.partitions is None else wanted.partitions & numbers
    return wanted


def _conjuncts(node: Any) -> Iterator[Node]:
    if not isinstance(node, dict):
        return
    if node.get("type") == "CONJUNCTION_AND":
        for child in node["children"]:
            yield from _conjuncts(child)
    else:
        yield node


def _column(node: Node, alias: Any, alone: bool) -> str | None:
    """The column of this table that an expression is, if it is one that reading can be narrowed by."""
    if node.get("class") != "COLUMN_REF":
        return None
    names = [str(name).lower() for name in node["column_names"]]
    if names[-1] not in PRUNED:
        return None
    if len(names) == 1:
        return names[0] if alone else None
    return names[-1] if len(names) == 2 and names[0] == str(alias).lower() else None


def _narrow(wanted: Wanted, name: str | None, comparison: str, constant: Node, evaluate: Evaluate) -> None:
    if name is None:
        return
    value = _value(constant, name, evaluate)
    if isinstance(value, int):
        span: Span = getattr(wanted, name)
        span.narrow(comparison, value)


def _value(node: Node, column: str, evaluate: Evaluate) -> Any:
    return evaluate(node, column) if _is_steady(node) else None


def _is_steady(node: Node) -> bool:
    """Whether an expression has the same value in every row."""
    for one in _walk(node):
        kind = one.get("class")
        if kind is not None and kind not in STEADY_CLASSES:
            return False
        if kind == "FUNCTION" and one.get("function_name") not in STEADY_FUNCTIONS:
            return False
    return True
