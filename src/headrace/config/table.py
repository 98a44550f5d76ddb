"""The option tables: `tables/*.txt`, one row per option, read once when first asked for."""

import pkgutil
from functools import cache
from types import MappingProxyType

from .options import Option, Type

Table = MappingProxyType[str, Option]

_TYPES = {member.name.lower(): member for member in Type}


def _read(name: str) -> list[list[str]]:
    data = pkgutil.get_data(__package__, f"tables/{name}.txt")
    assert data is not None, f"option table {name} is missing from the package"
    return [line.split(" | ") for line in data.decode().splitlines() if line and line[0] != "#"]


def _option(cells: list[str], *, synonyms: tuple[tuple[str, int], ...], scope: str) -> Option:
    name, type_, default, checks, _, flags, doc = cells
    importance, *rest = flags.split()
    return Option(
        name=name,
        type=_TYPES[type_],
        default={"null": None, "required": None, '""': ""}.get(default, default),
        checks=checks,
        scope=scope,
        importance=importance,
        doc=doc,
        required=default == "required",
        internal="internal" in rest,
        effect="effect" in rest,
        synonyms=synonyms,
    )


def _synonyms(cell: str) -> tuple[tuple[str, int], ...]:
    """`a b*60000` -> (("a", 1), ("b", 60000)): broker options that give the default, first found wins."""
    found = []
    for word in cell.split():
        name, _, factor = word.partition("*")
        found.append((name, int(factor or 1)))
    return tuple(found)


def _with_synonyms(name: str) -> Table:
    rows = (_option(cells, synonyms=_synonyms(cells[4]), scope="topic") for cells in _read(name))
    return MappingProxyType({option.name: option for option in rows})


@cache
def broker_options() -> Table:
    """Kafka's broker options and Headrace's own."""
    rows = (_option(cells, synonyms=(), scope=cells[4]) for table in ("broker", "headrace") for cells in _read(table))
    return MappingProxyType({option.name: option for option in rows})


@cache
def headrace_options() -> Table:
    """Only the options that Kafka does not have."""
    rows = (_option(cells, synonyms=(), scope=cells[4]) for cells in _read("headrace"))
    return MappingProxyType({option.name: option for option in rows})


@cache
def topic_options() -> Table:
    return _with_synonyms("topic")


@cache
def group_options() -> Table:
    return _with_synonyms("group")


@cache
def client_metrics_options() -> Table:
    return _with_synonyms("client_metrics")
