"""The files in `deploy/`, parsed."""

import json
import re
import shlex
from collections.abc import Mapping
from configparser import RawConfigParser
from typing import Any, NamedTuple

import yaml

from headrace.cli.up import load_config, parser
from headrace.config import BrokerConfig
from tests.documents import ROOT, blocks

DEPLOY = ROOT / "deploy"


class Instruction(NamedTuple):
    """One of a Dockerfile: `COPY`, and what follows."""

    name: str
    text: str

    @property
    def words(self) -> list[str]:
        return json.loads(self.text) if self.text.startswith("[") else shlex.split(self.text)


def stages() -> list[list[Instruction]]:
    """The instructions of each stage of the Dockerfile; each begins with its FROM."""
    text = re.sub(r"^\s*#.*\n", "", (DEPLOY / "Dockerfile").read_text(), flags=re.M)
    found: list[list[Instruction]] = []
    for line in re.sub(r"\\\n\s*", " ", text).splitlines():
        if line.strip():
            name, _, rest = line.partition(" ")
            if name == "FROM":
                found.append([])
            found[-1].append(Instruction(name, rest.strip()))
    return found


def of(stage: list[Instruction], name: str) -> list[Instruction]:
    return [one for one in stage if one.name == name]


def image_environment() -> dict[str, str]:
    """What the image sets for the broker."""
    pairs = (word.partition("=") for one in of(stages()[-1], "ENV") for word in one.words)
    return {name: value for name, _, value in pairs if name.startswith("HEADRACE_")}


def config_of(words: list[str], environment: Mapping[str, str]) -> BrokerConfig:
    """What `headrace` reads from a command line and an environment. Raises ConfigError for what it would refuse."""
    assert words[0] == "up"
    return load_config(parser().parse_args(words[1:]), environment)


def compose() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    return loaded


def unit() -> RawConfigParser:
    found = RawConfigParser(delimiters=("=",), comment_prefixes=("#", ";"))
    found.optionxform = str  # type: ignore[assignment,method-assign]
    found.read(DEPLOY / "headrace.service")
    return found


def typed() -> list[list[str]]:
    """The commands of the README, in words."""
    return [shlex.split(line) for block in blocks(DEPLOY / "README.md") for line in block.commands]
