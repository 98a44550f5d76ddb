"""Transitions of consumer groups, as transcripts of events and effects.

After a wanted change of behaviour: HEADRACE_REWRITE=1 pytest tests/unit/coordinator/test_consumer_transcripts.py, and
read the diff.
"""

import os
from pathlib import Path

import pytest

from tests.unit.coordinator import consumer_commands
from tests.unit.coordinator.driver import COMMANDS, play

TRANSCRIPTS = sorted(Path(__file__).with_name("transcripts_consumer").glob("*.txt"))


def test_commands_are_there() -> None:
    assert COMMANDS["beat"] is consumer_commands._beat


@pytest.mark.parametrize("path", TRANSCRIPTS, ids=lambda path: path.stem)
def test_transcript(path: Path) -> None:
    text = path.read_text("utf-8")
    played = play(text)
    if os.environ.get("HEADRACE_REWRITE"):
        path.write_text(played, "utf-8")
        return
    assert played == text
