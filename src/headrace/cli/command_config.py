"""`--command-config FILE`, as Kafka's own tools have it: how to connect to brokers that want TLS or a login.

Every command that has `bootstrap` gets it here, so that none has to pass it on.
"""

import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import typer

from headrace.cli.output import SECURITY
from headrace.client.errors import ClientError, SettingRefused
from headrace.client.security import Security, read_security
from headrace.config.options import ConfigError
from headrace.config.properties import parse_properties

OPTION = typer.Option(
    None,
    "--command-config",
    metavar="FILE",
    envvar="HEADRACE_COMMAND_CONFIG",
    help="Settings of Kafka's clients (client.properties): security.protocol, ssl.*, sasl.*; others are passed over.",
    show_default=False,
)


def take_command_config(app: typer.Typer) -> None:
    """Give the option to all commands below `app` that connect."""
    for info in [*app.registered_commands, app.registered_callback]:
        if (
            info is not None
            and info.callback is not None
            and "bootstrap" in inspect.signature(info.callback).parameters
        ):
            info.callback = _configured(info.callback)
    for group in app.registered_groups:
        if group.typer_instance is not None:
            take_command_config(group.typer_instance)


def _configured(command: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(command)
    def run(*args: Any, command_config: Path | None, **options: Any) -> Any:
        # A group's callback runs before its commands: what it was given holds for them, too.
        if command_config is not None:
            SECURITY.set(read_command_config(command_config))
        return command(*args, **options)

    signature = inspect.signature(command)
    added = inspect.Parameter("command_config", inspect.Parameter.KEYWORD_ONLY, default=OPTION, annotation=Path | None)
    run.__signature__ = signature.replace(parameters=[*signature.parameters.values(), added])  # type: ignore[attr-defined]
    run.__annotations__ = {**command.__annotations__, "command_config": Path | None}
    return run


def read_command_config(path: Path) -> Security:
    """The security settings of a properties file. Raises ClientError."""
    try:
        return read_security(parse_properties(path.read_text()))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise ClientError(f"--command-config {path} cannot be read: {reason}") from None
    except ConfigError as error:
        raise ClientError(f"--command-config {path}: {error}") from None
    except SettingRefused as error:
        raise ClientError(f"--command-config {path}: {error}") from None
