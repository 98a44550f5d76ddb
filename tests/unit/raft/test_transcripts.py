"""The rules of the quorum as transcripts: what happens to one node, and what it then does. HEADRACE_REWRITE=1 rewrites
them."""

import os
from pathlib import Path

import pytest

from tests.unit.raft.script import Script

FOLDER = Path(__file__).parent / "transcripts"


def played(text: str) -> str:
    script = Script()
    lines = []
    for line in text.splitlines():
        if line.startswith("  "):
            continue
        lines.append(line)
        if line and not line.startswith("#"):
            lines += script.command(line)
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.txt")), ids=lambda path: path.stem)
def test_transcript(path: Path) -> None:
    text = path.read_text()
    found = played(text)
    if os.environ.get("HEADRACE_REWRITE"):
        path.write_text(found)
        return
    assert found == text
