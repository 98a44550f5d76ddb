"""Keywords that an app or a listener does not have: refused where they are written, and told where they belong."""

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from headrace.client.api.options import ConsumerOptions
from headrace.client.options import COMMON_NAMES, COMMON_UNUSED, CommonOptions, CommonSettings, read_settings
from headrace.listeners.core.retry import ListenerRefused
from headrace.listeners.spec import ListenerSpec


def common_options(
    name: str, bootstrap: str | Iterable[str] | None, config: Mapping[str, Any] | None, options: Mapping[str, Any]
) -> dict[str, Any]:
    """An app's options are those that all clients share: its consumers, its producers and its administration get them,
    each the same. Raises OptionRefused and ListenerRefused."""
    _refuse_consumers(options)
    given = {"client.id": name, **config} if isinstance(config, Mapping) else config or {"client.id": name}
    settings = read_settings(CommonSettings, COMMON_NAMES, COMMON_UNUSED, given, {**options, "bootstrap": bootstrap})
    return msgspec.structs.asdict(settings)


def refuse_unknown_keywords(unknown: Iterable[str]) -> None:
    """Keywords that `App.listener` does not know."""
    _refuse_consumers(unknown)
    for name in unknown:
        close = difflib.get_close_matches(name, ListenerSpec.__dataclass_fields__, n=1)
        hint = f"did you mean {close[0]!r}?" if close else "help(headrace.App.listener) shows what it has"
        raise ListenerRefused(f"a listener has no option {name!r}: {hint}")


def _refuse_consumers(names: Iterable[str]) -> None:
    for name in names:
        if name in ConsumerOptions.__annotations__ and name not in CommonOptions.__annotations__:
            raise ListenerRefused(
                f"{name} is an option of a listener's consumer: write @app.listener(..., consumer={{{name!r}: ...}})"
            )
