"""Public names of a package whose modules are imported when a name is first used (PEP 562).

A broker uses a client's connections but none of its administration; a Spark worker decodes but joins no group. With
this, a package can offer everything by name and still cost each of them only what it uses.
"""

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any


def lazy_exports(
    package: str, homes: Mapping[str, Sequence[str]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """A package's `__getattr__`, `__dir__` and `__all__`; `homes` has the public names of each of its modules.

    The package names the same modules and names in an `if TYPE_CHECKING` block, for type checkers and editors.
    """
    home_of = {name: f"{package}.{module}" for module, names in homes.items() for name in names}

    def get(name: str) -> Any:
        home = home_of.get(name)
        if home is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(home), name)

    def names() -> list[str]:
        return sorted(home_of)

    return get, names, names()
