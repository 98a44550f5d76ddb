"""The commands that `headrace` has, as tests hold documents and files against them."""

import re

import typer

from headrace.cli.app import app
from headrace.cli.up import parser


def options_of(words: list[str]) -> tuple[set[str], list[str]]:
    """The options of the command that `words` begin with, and the words behind its name."""
    if words[0] == "up":
        return {name for action in parser()._actions for name in action.option_strings}, words[1:]
    command = typer.main.get_command(app)
    rest = list(words)
    while (inner := getattr(command, "commands", None)) and rest and not rest[0].startswith("-"):
        assert rest[0] in inner, f"no command {' '.join(words)}"
        command = inner[rest.pop(0)]
    own = {name for one in command.params for name in (*one.opts, *one.secondary_opts)}
    return own | {"-h", "--help", "--install-completion", "--command-config"}, rest


def unknown_options(words: list[str]) -> list[str]:
    """Those of a command's options that it does not have; `words` are what follows `headrace`."""
    known, rest = options_of(words)
    return [word for word in rest if re.match("--?[a-z]", word) and word.partition("=")[0] not in known]
