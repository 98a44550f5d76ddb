"""What tests of a broker share."""

from typing import Any

import pytest

from headrace.config.broker import HEADRACE_DEFAULTS


@pytest.fixture(params=["on", "off"], ids=["fast path", "no fast path"])
def both_ways(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Every broker of the test recognises requests that are repeated; then the same test with brokers that do not."""
    monkeypatch.setitem(HEADRACE_DEFAULTS, "fast.path", request.param)
    return request.param
