"""The documents of this tree as tests read them: their prose, their fenced blocks, and the commands in both."""

import re
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
DOCUMENTS = sorted(path for pattern in ("*.md", "docs/**/*.md", "deploy/*.md") for path in ROOT.glob(pattern))

_FENCE = re.compile(r"(?:^<!-- (?P<notice>(?:(?!-->).)*?) *-->\n)?^```(?P<kind>\w*)\n(?P<text>.*?)^```$", re.S | re.M)
_CODE = re.compile(r"`([^`]+)`")
_PROMPT = re.compile(r"^\w?\$ (.+?)(?: +# .*)?$", re.M)
_ID = re.compile(r"(?<![\w/-])[\w-]{22}(?![\w-])")
_NUMBER = re.compile(r"\d[\d,.:]*")
NOT_RUN, RUN_AFTER, OTHER_ROWS = "not run: ", "run after: ", "other rows: "


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
    other_rows: str
    """Why its answers have other rows than those of a broker alone, under the same headings; or nothing."""

    @property
    def commands(self) -> list[str]:
        """What a console block types; everything else in it is output."""
        return _PROMPT.findall(self.text)

    @property
    def transcript(self) -> list[tuple[str, list[str]]]:
        """Each command that a console block types, and the lines that it shows as the command's answer."""
        _, *parts = re.split(r"^\w?\$ ", self.text, flags=re.M)
        return [(command, part.splitlines()[1:]) for command, part in zip(self.commands, parts, strict=True)]


def forms(lines: Iterable[str]) -> list[str]:
    """Lines without what differs from run to run: ids, numbers, and how wide they make a column."""
    return [" ".join(_NUMBER.sub("0", _ID.sub("ID", line)).split()) for line in lines if line.strip()]


def headings(lines: Iterable[str]) -> list[str]:
    """Those of tables: words in capitals."""
    return [" ".join(line.split()) for line in lines if re.fullmatch(r"[A-Z][A-Z ]+", line.strip())]


def prose(path: Path) -> str:
    """The text of a document without its fenced blocks."""
    return _FENCE.sub("", path.read_text())


def anchors(path: Path) -> set[str]:
    """The anchors of a document's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ +(.+?) *$", prose(path), re.M)
    words = (re.sub(r"[^\w\- ]", "", heading.replace("`", "").lower()) for heading in headings)
    return {word.replace(" ", "-") for word in words}


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
            notice.removeprefix(OTHER_ROWS) if notice.startswith(OTHER_ROWS) else "",
        )


def headrace_commands(path: Path) -> Iterator[list[str]]:
    """The words of every `headrace ...`, in prose and in blocks, whether they can run or not."""
    typed = [line for block in blocks(path) for line in block.commands]
    for line in [*typed, *words_in_code(path)]:
        for part in re.split(r"&&|\|\||[|;]", line):
            if part.strip().startswith("headrace "):
                yield shlex.split(part)[1:]
