"""The entry point: hands `up` to its own light parser, everything else to typer.

A broker must be ready within half a second and typer alone costs a fifth of that, so the way to `up` imports neither
it nor rich.
"""

import gc
import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command and exit with its code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words and words[0] == "up":
        gc.disable()  # nothing made while starting becomes garbage; the broker turns it on again once it runs
        from headrace.cli.up import main as up

        sys.exit(up(words[1:]))
    if words in (["version"], ["--version"]):
        from headrace import __version__

        print(f"headrace {__version__}")
        sys.exit(0)
    from headrace.cli.app import run

    sys.exit(run(words))


if __name__ == "__main__":
    main()
