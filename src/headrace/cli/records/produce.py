"""`headrace produce`: records from standard input or files to a topic."""

import asyncio
import os
import stat
import sys
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from pathlib import Path

import typer

from headrace.cli.completion import topic_names
from headrace.cli.output import BOOTSTRAP, JSON, SECURITY, print_json
from headrace.cli.records.input_lines import InputRecord, LineSplitter, delimiter_of, from_json, from_line, header_of
from headrace.cli.records.typed_values import ALL_FORMATS_HELP, MESSAGE, REGISTRY, SCHEMA, Schemas
from headrace.client.api import Producer
from headrace.client.errors import ClientError, ConnectionRefused
from headrace.client.produce.deliveries import Delivery
from headrace.terminal import shown

CHUNK_BYTES = 256 << 10
TOLD_EVERY_S = 0.5

Parse = Callable[[bytes], InputRecord]
Input = bytes | Path | None
"""A record's text, a file, or standard input."""


def produce(
    topic: str = typer.Argument(..., metavar="TOPIC", help="Where to write.", autocompletion=topic_names),
    files: list[Path] | None = typer.Argument(
        None, metavar="FILE", help="Read these instead of standard input.", show_default=False
    ),
    value: list[str] | None = typer.Option(
        None, "--value", "-v", metavar="TEXT", help="Write this, and read nothing; may be repeated."
    ),
    key_separator: str | None = typer.Option(
        None, "--key-separator", "-K", metavar="TEXT", help=r"Lines are KEY TEXT VALUE, such as -K : or -K '\t'."
    ),
    key: str | None = typer.Option(None, "--key", "-k", metavar="KEY", help="The key of records that have none."),
    header: list[str] | None = typer.Option(
        None, "--header", "-H", metavar="NAME=VALUE", help="A header of every record; may be repeated."
    ),
    partition: int | None = typer.Option(
        None, "--partition", "-p", metavar="N", min=0, help="Write there, whatever the key.", show_default=False
    ),
    json_lines: bool = typer.Option(
        False, "--json-lines", help="A JSON object per line with key, value, headers, as `consume --json` writes them."
    ),
    whole: bool = typer.Option(False, "--whole", help="Each file, or all of standard input, is one record's value."),
    null: bool = typer.Option(False, "--null", "-Z", help="Empty keys and values are null: tombstones."),
    delimiter: str = typer.Option(r"\n", "--delimiter", "-D", metavar="TEXT", help="What ends a record."),
    rate: float | None = typer.Option(
        None, "--rate", metavar="N", min=0.001, help="At most so many records per second.", show_default=False
    ),
    codec: str = typer.Option("none", "--codec", "-z", metavar="CODEC", help="none, gzip, snappy, lz4 or zstd."),
    value_format: str = typer.Option(
        "text", "--value-format", metavar="FORMAT", help=f"What to make of values: {ALL_FORMATS_HELP}; JSON goes in."
    ),
    key_format: str = typer.Option("text", "--key-format", metavar="FORMAT", help="What to make of keys."),
    registry: str | None = REGISTRY,
    schema: Path | None = SCHEMA,
    message: str | None = MESSAGE,
    acks: str = typer.Option("all", "--acks", metavar="N", help="Wait for: all in-sync replicas, 1 (the leader), 0."),
    bootstrap: str = BOOTSTRAP,
    as_json: bool = JSON,
) -> None:
    """Write lines of standard input or of files to a topic.

    Ends with the input, when every record is acknowledged. At the first line that is no record it stops and says which.
    """
    if value and files:
        raise ClientError("--value and files exclude each other")
    if key_separator is not None and (json_lines or whole):
        raise ClientError("--key-separator is for lines of text: leave out --json-lines and --whole")
    if json_lines and whole:
        raise ClientError("--json-lines and --whole exclude each other")
    separator = None if key_separator is None else delimiter_of(key_separator, "--key-separator")
    end_of_line = delimiter_of(delimiter, "--delimiter")
    if not end_of_line or separator == b"":
        raise ClientError("--delimiter and --key-separator cannot be empty; --whole takes all input as one record")
    headers = tuple(header_of(text) for text in header or ())

    encode_value = Schemas(registry, schema, message).encoder(value_format, "--value-format", topic)
    encode_key = Schemas(registry, None, None).encoder(key_format, "--key-format", topic, is_key=True)

    def parse(line: bytes) -> InputRecord:
        read = from_json(line) if json_lines else from_line(line, separator, null)
        key_bytes = key.encode() if read.key is None and key is not None else read.key
        return read._replace(
            key=key_bytes if encode_key is None or key_bytes is None else encode_key(key_bytes),
            value=read.value if encode_value is None or read.value is None else encode_value(read.value),
            headers=(*headers, *read.headers),
            partition=read.partition if partition is None else partition,
        )

    producing = Producing(topic, parse, None if whole else end_of_line, rate)
    options = {"compression": codec, "acks": acks, "linger_ms": 5, "security": SECURITY.get()}
    asyncio.run(producing.run(bootstrap, [text.encode() for text in value] if value else files or [None], options))
    if as_json:
        print_json(producing.summary())
    else:
        print(producing.text())


class Producing:
    """One run of the command: what has been sent, and what became of it."""

    def __init__(self, topic: str, parse: Parse, delimiter: bytes | None, rate: float | None) -> None:
        self.topic = topic
        self.records: Counter[int] = Counter()
        self.ends: dict[int, int] = {}
        self._parse = parse
        self._delimiter = delimiter
        self._rate = rate
        self._sent = 0
        self._pending: deque[Delivery] = deque()
        self._started = self._told = time.monotonic()

    async def run(self, bootstrap: str, inputs: Sequence[Input], options: dict[str, object]) -> None:
        """Send everything. Raises ClientError for a line that is no record, once those before it are acknowledged."""
        try:
            async with Producer(bootstrap, **options) as producer:  # type: ignore[arg-type]
                await producer.partitions(self.topic)  # a topic that cannot be written is told before anything is read
                broken: ClientError | None = None
                try:
                    for one in inputs:
                        if isinstance(one, bytes):
                            await self._send(producer, one, "--value")
                        else:
                            await self._send_all(producer, one)
                except LineRefused as error:
                    broken = error
                await producer.flush()
                self._note()
                if broken is not None:
                    raise ClientError(f"{broken}. What came before it is written: {records_text(self._sent)}")
        except ConnectionRefused as error:
            raise ClientError(f"{error}. Is a broker running? Start one with: headrace up") from None
        self._tell(end="\n")

    async def _send_all(self, producer: Producer, path: Path | None) -> None:
        where = "standard input" if path is None else str(path)
        splitter = LineSplitter(self._delimiter) if self._delimiter else None
        whole = bytearray()
        number = 0
        async for chunk in chunks_of(path):
            if splitter is None:
                whole += chunk
                continue
            for line in splitter.feed(chunk):
                number += 1
                await self._send(producer, line, f"{where}, line {number}")
        rest = [bytes(whole)] if splitter is None else splitter.end()
        for line in rest:
            await self._send(producer, line, f"{where}, line {number + 1}" if splitter else where)

    async def _send(self, producer: Producer, line: bytes, where: str) -> None:
        try:
            record = self._parse(line)
        except ClientError as error:
            raise LineRefused(f"{where}: {error}") from None
        if self._rate is not None:
            await asyncio.sleep(self._started + self._sent / self._rate - time.monotonic())
        key, value, headers, partition, timestamp = record
        delivery = await producer.send_soon(
            self.topic, value, key=key, headers=headers, partition=partition, timestamp=timestamp
        )
        self._sent += 1
        self._pending.append(delivery)
        self._note()
        self._tell()

    def _note(self) -> None:
        """Count what is acknowledged. Raises what a delivery failed with."""
        while self._pending and self._pending[0].done():
            written = self._pending.popleft().result()
            self.records[written.partition] += 1
            self.ends[written.partition] = written.offset

    def _tell(self, end: str = "") -> None:
        """Progress for a person who waits for a large input."""
        now = time.monotonic()
        if sys.stderr.isatty() and not sys.stdin.isatty() and (end or now - self._told > TOLD_EVERY_S):
            self._told = now
            speed = self._sent / max(now - self._started, 0.001)
            print(f"\r{self._sent:,} records, {speed:,.0f} per second ", end=end, file=sys.stderr, flush=True)

    def summary(self) -> dict[str, object]:
        places = {
            str(at): {"records": count, "last_offset": self.ends[at]} for at, count in sorted(self.records.items())
        }
        return {"topic": self.topic, "records": self.records.total(), "partitions": places}

    def text(self) -> str:
        total = self.records.total()
        where = ", ".join(f"{count:,} in partition {at}" for at, count in sorted(self.records.items()))
        return f"produced {records_text(total)} to {shown(self.topic)}" + (f" ({where})" if total else "")


def records_text(count: int) -> str:
    return f"{count:,} record{'' if count == 1 else 's'}"


class LineRefused(ClientError):
    """A line that is no record."""


async def chunks_of(path: Path | None) -> AsyncIterator[bytes]:
    """The bytes of a file or of standard input. Raises ClientError for a file that cannot be read."""
    if path is not None:
        try:
            with path.open("rb") as file:
                while chunk := file.read(CHUNK_BYTES):
                    yield chunk
        except OSError as error:
            raise ClientError(f"cannot read {path}: {error.strerror}") from None
        return
    fd = sys.stdin.fileno()
    mode = os.fstat(fd).st_mode
    if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or os.isatty(fd)):
        while chunk := os.read(fd, CHUNK_BYTES):
            yield chunk
        return
    if os.isatty(fd):
        print("One record per line; Ctrl-D ends.", file=sys.stderr)
    async for chunk in _awaited(fd):
        yield chunk


async def _awaited(fd: int) -> AsyncIterator[bytes]:
    """What comes from a pipe or a terminal. Records that were typed leave while the next line is awaited."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=CHUNK_BYTES)
    # A copy: the transport closes what it is given. The mode it sets is shared with the shell, which expects another.
    transport, _ = await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(os.dup(fd), "rb", buffering=0)
    )
    try:
        while chunk := await reader.read(CHUNK_BYTES):
            yield chunk
    finally:
        transport.close()
        with suppress(OSError):
            os.set_blocking(fd, True)
