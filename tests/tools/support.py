"""Commands as a user types them, and topics with everything that a record can have."""

import asyncio
import io
import itertools
import json
import os
from collections.abc import Awaitable, Callable
from contextlib import redirect_stderr, redirect_stdout
from typing import Any, NamedTuple, TypeVar

import headrace
from headrace.cli.main import dispatch
from headrace.testing.broker import TestBroker
from headrace.tools.ranges import create_and_await
from tests.client.support import read_all

T = TypeVar("T")
_numbers = itertools.count()

ODD: list[tuple[bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]] = [
    (b"k", b"v", ()),
    (None, b"no key", ()),
    (b"", b"", (("empty", b""), ("null", None), ("twice", b"1"), ("twice", b"2"))),
    (b"tombstone", None, ()),
    (None, None, ()),
    (bytes(range(256)), b"\xff\xfe not UTF-8 \x00", (("bytes", b"\x80\x81"),)),
    ("schlüssel".encode(), b'{"base64": "eA=="}', (("ümlaut", "ä".encode()),)),
    (b'"quoted"\n', b"line\nbreak\r\n\t", ()),
]


def new_name(what: str = "tools") -> str:
    return f"{what}-{os.getpid()}-{next(_numbers)}"


class Done(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


def cli(*words: str, check: bool = True) -> Done:
    """One command to its end, in this process: a new one costs more than most commands."""
    out, err = io.TextIOWrapper(io.BytesIO()), io.TextIOWrapper(io.BytesIO())
    with redirect_stdout(out), redirect_stderr(err):
        try:
            code = dispatch(list(words))
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        out.flush()
        err.flush()
    done = Done(code, out.buffer.getvalue().decode(), err.buffer.getvalue().decode())
    assert not check or done.returncode == 0, done.stderr + done.stdout
    return done


def cli_json(*words: str) -> Any:
    return json.loads(cli(*words, "--json").stdout)


def refused(*words: str) -> str:
    """What a command that fails says: one line, and no traceback."""
    done = cli(*words, check=False)
    assert done.returncode != 0 and "Traceback" not in done.stderr, done.stderr + done.stdout
    return done.stderr


def within(work: Callable[[], Awaitable[T]]) -> T:
    async def limited() -> T:
        async with asyncio.timeout(120):
            return await work()

    return asyncio.run(limited())


def create(broker: TestBroker, partitions: int = 2, **configs: str) -> str:
    name = new_name()

    async def work() -> None:
        async with headrace.Admin(broker.bootstrap) as admin:
            settings = dict(configs)
            await create_and_await(admin, name, partitions, settings)

    within(work)
    return name


def fill(broker: TestBroker, topic: str, records: list[Any], partitions: int = 2, first_ms: int | None = None) -> None:
    """Records as ODD has them, in turn to each partition, a second apart from `first_ms` on."""

    async def work() -> None:
        async with headrace.Producer(broker.bootstrap, linger_ms=5) as producer:
            for index, (key, value, headers) in enumerate(records):
                await producer.send_soon(
                    topic,
                    value,
                    key=key,
                    headers=headers,
                    partition=index % partitions,
                    timestamp=None if first_ms is None else first_ms + 1000 * index,
                )
            await producer.flush()

    within(work)


def many(count: int) -> list[Any]:
    return [(b"key-%d" % (i % 97), b'{"number": %d, "text": "%s"}' % (i, b"x" * 40), ()) for i in range(count)]


def contents(broker: TestBroker, topic: str, *, offsets: bool = True) -> dict[int, list[tuple[Any, ...]]]:
    """What readers with read_committed see, by partition."""
    found: dict[int, list[tuple[Any, ...]]] = {}
    for record in within(lambda: read_all(broker, topic, isolation_level="read_committed")):
        row = (record.timestamp, record.key, record.value, tuple(record.headers))
        found.setdefault(record.partition, []).append((record.offset, *row) if offsets else row)
    return found
