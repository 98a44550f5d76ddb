"""`--watch [SECONDS]` for commands that show a state: shown again and again until Ctrl-C."""

import functools
import inspect
import sys
import time
from collections.abc import Callable
from typing import Any

import typer

from headrace.client.errors import ClientError

OPTION = typer.Option(
    None,
    "--watch",
    "-w",
    metavar="SECONDS",
    min=0.1,
    help="Show it again every so many seconds, until Ctrl-C.",
    show_default=False,
)
CLEAR = "\033[H\033[2J\033[3J"


def watched(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the option."""

    @functools.wraps(command)
    def run(*args: Any, watch: float | None, **options: Any) -> Any:
        if watch is None:
            return command(*args, **options)
        while True:
            for_people = not options.get("as_json")
            if for_people:
                print(f"{CLEAR if sys.stdout.isatty() else ''}{time.strftime('%H:%M:%S')}", flush=True)
            try:
                command(*args, **options)
            except ClientError as error:  # brokers that are away for a moment are a part of what is watched
                print(f"headrace: {error}", file=sys.stdout if for_people else sys.stderr)
            except typer.Exit:
                pass  # a bad state is what one watches for
            sys.stdout.flush()
            time.sleep(watch)

    signature = inspect.signature(command)
    added = inspect.Parameter("watch", inspect.Parameter.KEYWORD_ONLY, default=OPTION, annotation=float | None)
    run.__signature__ = signature.replace(parameters=[*signature.parameters.values(), added])  # type: ignore[attr-defined]
    run.__annotations__ = {**command.__annotations__, "watch": float | None}
    return run
