"""The documents of this tree as tests read them: their prose, their fenced blocks, and the commands in both."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
DOCUMENTS = sorted(path for pattern in ("*.md", "docs/**/*.md", "deploy/*.md") for path in ROOT.glob(pattern))

_FENCE = re.compile(r"(?:^<!-- (?P<notice>(?:(?!-->).)*?) *-->\n)?^```(?P<kind>\w*)\n(?P<text>.*?)^```$", re.S | re.M)
_CODE = re.compile(r"`([^`]+)`")
_PROMPT = re.compile(r"^\w?\$ (.+?)(?: +# .*)?$", re.M)
NOT_RUN, RUN_AFTER = "not run: ", "run after: "


@dataclass(frozen=True)
class Block:
    """One fenced block, and what the comment just above it asks for."""

    line: int
    kind: str
    text: str
    not_run: str
    """Why it cannot run, or nothing."""
    run_after: str
    """What has to run before it, in its own language, and is of no interest to readers."""

    @property
    def commands(self) -> list[str]:
        """What a console block types; everything else in it is output."""
        return _PROMPT.findall(self.text)


def prose(path: Path) -> str:
    """The text of a document without its fenced blocks."""
    return _FENCE.sub("", path.read_text())


def words_in_code(path: Path) -> list[str]:
    """All that stands in backticks, also where a line ends within them."""
    paragraphs = (" ".join(paragraph.split()) for paragraph in prose(path).split("\n\n"))
    return [word for paragraph in paragraphs for word in _CODE.findall(paragraph)]


def blocks(path: Path) -> Iterator[Block]:
    """The fenced blocks of a document, in order."""
    text = path.read_text()
    for found in _FENCE.finditer(text):
        notice = found["notice"] or ""
        yield Block(
            text.count("\n", 0, found.start("text")),
            found["kind"],
            found["text"],
            notice.removeprefix(NOT_RUN) if notice.startswith(NOT_RUN) else "",
            notice.removeprefix(RUN_AFTER) if notice.startswith(RUN_AFTER) else "",
        )


def headrace_commands(path: Path) -> Iterator[list[str]]:
    """The words of every `headrace ...`, in prose and in blocks, whether they can run or not."""
    typed = [line for block in blocks(path) for line in block.commands]
    for line in [*typed, *words_in_code(path)]:
        for part in re.split(r"&&|\|\||[|;]", line):
            if part.strip().startswith("headrace "):
                yield shlex.split(part)[1:]
