"""The entry point: hands `up` to its own light parser, everything else to typer.

A broker must be ready within half a second and typer alone costs a fifth of that, so the way to `up` imports neither
it nor rich.
"""

import gc
import io
import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command and exit with its code."""
    show_what_can_be_shown()
    try:
        sys.exit(dispatch(list(sys.argv[1:] if arguments is None else arguments)))
    except KeyboardInterrupt:  # while modules were imported, which nothing else catches
        sys.exit(130)


def dispatch(words: list[str]) -> int:
    """Import what a command needs, and run it."""
    if words and words[0] == "up":
        gc.disable()  # nothing made while starting becomes garbage; the broker turns it on again once it runs
        from headrace.cli.up import main as up

        return up(words[1:])
    if words in (["version"], ["--version"]):
        from headrace.version import __version__

        print(f"headrace {__version__}")
        return 0
    from headrace.cli.app import run

    return run(words)


def show_what_can_be_shown() -> None:
    """What a terminal has no letter for, such as a folder's name, becomes a question mark and no traceback."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


if __name__ == "__main__":
    main()
