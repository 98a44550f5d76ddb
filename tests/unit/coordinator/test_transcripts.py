"""Every transition of classic groups and offsets, as transcripts of events and effects.

After a wanted change of behaviour: HEADRACE_REWRITE=1 pytest tests/unit/coordinator/test_transcripts.py, and read the
diff.
"""

import os
from pathlib import Path

import pytest

from tests.unit.coordinator.driver import play

TRANSCRIPTS = sorted(Path(__file__).with_name("transcripts").glob("*.txt"))


@pytest.mark.parametrize("path", TRANSCRIPTS, ids=lambda path: path.stem)
def test_transcript(path: Path) -> None:
    text = path.read_text("utf-8")
    played = play(text)
    if os.environ.get("HEADRACE_REWRITE"):
        path.write_text(played, "utf-8")
    assert played == text
