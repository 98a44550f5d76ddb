"""Help in one style: what a word means, and not the type or the bounds that Python gives it."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import typer
from typer.core import TyperCommand, TyperGroup

_TYPE = re.compile(r" <[^>]*>$")
_BOUNDS = re.compile(
    r"; -?[\d.]*(?:<=?)?x(?:[<>]=?-?[\d.]+)?(?=[;\]])|(?<=\[)-?[\d.]*(?:<=?)?x(?:[<>]=?-?[\d.]+)?;"
    r" |\s*\[-?[\d.]*(?:<=?)?x(?:[<>]=?-?[\d.]+)?\]"
)


class PlainCommand(TyperCommand):
    """A command whose help names arguments by their metavar alone. A value out of bounds is still refused with them."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        rows: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                kind = "Arguments" if parameter.param_type_name == "argument" else "Options"
                rows[kind].append((_TYPE.sub("", record[0]), without_bounds(record[1])))
        for heading, records in rows.items():
            if records:
                with formatter.section(heading):
                    formatter.write_dl(records)


def without_bounds(text: str) -> str:
    """`How many.  [default: 3; 1<=x<=9]` -> `How many.  [default: 3]`."""
    return _BOUNDS.sub("", text)


class SectionedGroup(TyperGroup):
    """A group whose help has its commands under headings, in the order of `sections`; others come last."""

    sections: ClassVar[Mapping[str, Sequence[str]]] = {}

    def list_commands(self, ctx: Any) -> list[str]:
        known = [name for names in self.sections.values() for name in names]
        return sorted(super().list_commands(ctx), key=lambda name: known.index(name) if name in known else len(known))

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        left = self.list_commands(ctx)
        headed = [(heading, [name for name in names if name in left]) for heading, names in self.sections.items()]
        headed.append(("Others", [name for name in left if not any(name in names for _, names in headed)]))
        width = max(map(len, left))
        for heading, names in headed:
            if names:
                room = formatter.width - width - 6
                rows = [(name.ljust(width), self.commands[name].get_short_help_str(room)) for name in names]
                with formatter.section(heading):
                    formatter.write_dl(rows)


class CommandGroup(typer.Typer):
    """A group of commands with such help."""

    def command(
        self, name: str | None = None, *, cls: type[TyperCommand] | None = None, **options: Any
    ) -> Callable[[Any], Any]:
        return super().command(name, cls=cls or PlainCommand, **options)
