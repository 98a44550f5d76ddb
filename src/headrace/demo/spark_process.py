"""The pipeline's process, seen from the demo: started, listened to, and ended with all its children."""

import asyncio
import importlib.util
import json
import os
import signal
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from headrace.demo.status import BatchState, QueryState, Status

STOP_LIMIT_S = 20.0
LINE_BYTES_MAX = 1 << 20
ERROR_BYTES = 2_000

MISSING = "not installed: pip install 'headrace[spark]' adds the pipeline to the demo"


def is_installed() -> bool:
    return importlib.util.find_spec("pyspark") is not None


class SparkProcess:
    """`start`, then `order` once the brokers run, and `status` is kept up to date; `failure` says why it ended by
    itself."""

    def __init__(self, options: dict[str, Any], folder: Path, status: Status, targets: dict[str, str]) -> None:
        self.failure: str | None = None
        self._options = options
        self._errors = folder / "spark.err"
        self._status = status
        self._targets = targets
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[None] | None = None
        self._orders: dict[str, Any] | None = None
        self._is_killed = False
        """On purpose: then its end is no failure."""

    async def start(self) -> None:
        self._status.spark = "starting"
        command = [sys.executable, "-m", "headrace.demo.job", json.dumps(self._options)]
        with self._errors.open("wb") as errors:
            # A session of its own: Ctrl-C reaches the demo alone, which then ends everything in order.
            self._process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
                # Whatever PySpark leaves there when it is killed goes with the demo's folder.
                env=os.environ | {"TMPDIR": self._options["scratch"]},
                start_new_session=True,
                limit=LINE_BYTES_MAX,
            )
        self._reader = asyncio.create_task(self._read(self._process))

    def order(self, orders: dict[str, Any]) -> None:
        """What to read and to write, and where."""
        self._orders = orders
        if self._process is not None and self._process.stdin is not None and not self._process.stdin.is_closing():
            self._process.stdin.write(json.dumps(orders).encode() + b"\n")

    async def stop(self) -> None:
        """In order, by the end of its stdin; whatever is left after a while is killed, the JVM with it."""
        process = self._process
        if process is None:
            return
        if process.stdin is not None:
            process.stdin.close()
        try:
            async with asyncio.timeout(STOP_LIMIT_S):
                await process.wait()
        except TimeoutError:
            pass
        finally:
            self.kill()
            await process.wait()
            if self._reader is not None:
                await asyncio.gather(self._reader, return_exceptions=True)

    async def kill9(self) -> None:
        """Driver, JVM and workers without a word; `revive` starts another."""
        process, reader = self._process, self._reader
        assert process is not None and reader is not None
        self._is_killed = True
        self.kill()
        await process.wait()
        await reader
        for state in self._status.queries.values():
            state.now = None

    async def revive(self) -> None:
        """The same pipeline in another process: it goes on from its checkpoints."""
        self._is_killed = False
        await self.start()
        if self._orders is not None:
            self.order(self._orders)

    def kill(self) -> None:
        """At once, by the process group: the Python driver, the JVM and Python workers."""
        if self._process is not None:
            try:
                os.killpg(self._process.pid, signal.SIGKILL)
            except ProcessLookupError:
                return

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        while text := await process.stdout.readline():
            try:
                message = json.loads(text)
            except ValueError:
                continue
            self._heard(message)
        code = await process.wait()
        if code and self.failure is None and not self._is_killed:
            end = self._errors.read_bytes()[-ERROR_BYTES:].decode(errors="replace").strip()
            self.failure = f"Spark ended with code {code}: {end}"

    def _heard(self, message: dict[str, Any]) -> None:
        status = self._status
        if "session" in message:
            status.spark = f"Spark {message['session']}"
            again = "back" if status.queries else "ready"
            status.note(f"Spark {message['session']} is {again}, {status.age_s:.1f} s after the start")
        elif "started" in message:
            self._query(message["started"])
        elif "batch" in message:
            self._batch(message["batch"])
        elif "progress" in message:
            self._progress(message["progress"])
        elif "restarted" in message:
            status.note(f"query {message['restarted']} failed and goes on from its checkpoint: {message['error']}")
            status.restarts += 1
        elif "failed" in message:
            self.failure = message["failed"]

    def _query(self, name: str) -> QueryState:
        queries = self._status.queries
        if name not in queries:
            queries[name] = QueryState(name, self._targets.get(name, ""))
        return queries[name]

    def _batch(self, found: dict[str, Any]) -> None:
        state = self._query(found["query"])
        # Looked at before it was done, told of after it.
        if found["number"] >= state.batches:
            state.now = BatchState(found["number"], found["rows"], found["done"], found["tasks"])

    def _progress(self, found: dict[str, Any]) -> None:
        state = self._query(found.get("name") or "?")
        rows = found.get("numInputRows", 0)
        duration_ms = found.get("durationMs", {}).get("triggerExecution", 0)
        state.batches = found["batchId"] + 1
        state.rows += rows
        state.now, state.since_s = None, time.monotonic()
        state.late_rows += sum(row.get("numRowsDroppedByWatermark", 0) for row in found.get("stateOperators", ()))
        if rows:
            state.rows_per_s = found.get("processedRowsPerSecond", 0.0)
            state.duration_ms = duration_ms
            state.durations.append((self._status.elapsed_s, duration_ms / 1000))
        state.watermark = (
            _behind(found.get("eventTime", {}).get("watermark"), found.get("timestamp")) or state.watermark
        )
        for source in found.get("sources", ()):
            ends = source.get("endOffset")
            if isinstance(ends, str):
                ends = json.loads(ends)
            if ends:
                state.ends = ends


def _behind(watermark: str | None, now: str | None) -> str:
    """How far behind the clock the watermark is."""
    if not watermark or not now or watermark.startswith("1970"):
        return ""
    return f"{(_moment(now) - _moment(watermark)).total_seconds():.0f} s behind"


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text.replace("Z", "+00:00")).astimezone(UTC)
