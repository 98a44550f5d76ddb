"""A broker of one's own for tests: a process on a free port and a folder of its own, gone when the test is over."""

import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from headrace.testing import records
from headrace.testing.child import Child

if TYPE_CHECKING:
    from headrace.client.api.types import Record

_ADDRESS = re.compile(r" ready on (\S+):(\d+)")

QUICK = {"group.initial.rebalance.delay.ms": "0"}
"""What a test's broker has otherwise than one in production: a new group need not wait for more members."""


class BrokerFailed(Exception):
    """The broker did not start or stop as it should; the message ends with what it said."""


class TestBroker(Child):
    """`with TestBroker() as broker: Producer({"bootstrap.servers": broker.bootstrap})`.

    `data` is kept between `stop` and `start`, as is the port; without one a temporary folder is used and removed.
    `settings` are options of server.properties, and come before those in `QUICK`.
    """

    __test__ = False
    """Not a class of tests, whatever its name makes pytest think."""
    failed = BrokerFailed

    def __init__(self, data: str | Path | None = None, settings: Mapping[str, str] | None = None) -> None:
        self._temporary = tempfile.TemporaryDirectory(prefix="headrace-test-")
        own = Path(self._temporary.name)
        super().__init__("the broker", own / "broker.log")
        self.data = (own if data is None else Path(data)) / "data"
        self.settings = {**QUICK, **(settings or {})}
        self.host = "127.0.0.1"
        self.port = 0

    @property
    def bootstrap(self) -> str:
        """What clients call bootstrap.servers."""
        return f"{self.host}:{self.port}"

    def start(self) -> Self:
        """Returns when clients are served. Raises BrokerFailed."""
        words = ["--data", str(self.data), "--port", str(self.port)]
        for name, value in self.settings.items():
            words += ["--set", f"{name}={value}"]
        self.run(words)
        try:
            found = _ADDRESS.search(self.wait_ready())
        except BrokerFailed:
            self.kill()
            raise
        assert found is not None
        self.host, self.port = found[1], int(found[2])
        return self

    def restart(self) -> Self:
        """Stop in order and start again, on the same port and data. Faults are gone then."""
        self.stop()
        return self.start()

    def produce(self, topic: str, *values: "records.Value | records.Pair", partition: int | None = None) -> list[int]:
        """Write values, or pairs of key and value, and wait until they are acknowledged. Returns their offsets.

        Text is encoded as UTF-8. A topic that does not exist is created, as by any client.
        """
        return [offset for _, offset in records.produce(self.bootstrap, topic, values, partition)]

    def consume(
        self,
        topic: str,
        count: int | None = None,
        *,
        timeout_s: float = records.LIMIT_S,
        read_committed: bool = False,
    ) -> "list[Record]":
        """All records of a topic, by partition and offset; with `count` as soon as there are so many.

        It is no member of any group and commits nothing. Raises TooFewRecords, which is an AssertionError.
        """
        __tracebackhide__ = True
        return records.consume(self.bootstrap, topic, count, timeout_s, read_committed)

    def close(self) -> None:
        """Kill if still running, and remove what is temporary."""
        self.kill()
        self.forget()
        self._temporary.cleanup()

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
