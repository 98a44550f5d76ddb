"""What type checkers are told is what the tables say."""

from pathlib import Path

from headrace.protocol import stubs


def test_messages_pyi_is_up_to_date() -> None:
    path = Path(stubs.__file__).with_name("messages.pyi")
    assert path.read_text() == stubs.stub_text(), "run: python -m headrace.protocol.stubs > " + str(path)
