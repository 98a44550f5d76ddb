"""`headrace sql`: a query of DuckDB in which the names of topics are tables."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from headrace.client.admin.admin import Admin, Resource
from headrace.client.errors import ClientError
from headrace.client.net.background import LoopThread
from headrace.client.security.channel import PLAINTEXT, Security
from headrace.tools.ranges import FROM_EARLIEST, PartitionRange, Start, no_topic, ranges_of
from headrace.tools.sql.predicates import COLUMNS, Wanted, columns_of, tables_of

ROWS_AT_ONCE = 2_048
FILE_NAME = re.compile(r"[/*]|\.(parquet|csv|json|jsonl|ndjson|tsv|gz|db)$")
_EXPRESSIONS = {
    "topic": "topic",
    "partition": "partition",
    "offset": '"offset"',
    "timestamp": "timestamp",
    "key": "decode_or_null(key)",
    "value": "json_or_text(decode_or_null(value))",
    "headers": "headers",
    "key_bytes": "key",
    "value_bytes": "value",
}
_SOURCES = {"key_bytes": "key", "value_bytes": "value"}
_MACROS = """
create macro decode_or_null(data) as try(decode(data));
create macro json_or_text(content) as case when json_valid(content) then content::json else to_json(content) end;
"""


@dataclass
class TopicRead:
    """What was read of a topic, for `--explain` and scripts."""

    topic: str
    ranges: list[PartitionRange]
    offsets_held: int
    """How many offsets the topic has in all."""
    rows: int = 0
    missing: int = 0


class Query:
    """One query. A context manager; iterate over `batches()` once."""

    def __init__(
        self,
        text: str,
        bootstrap: str,
        security: Security = PLAINTEXT,
        *,
        committed: bool = True,
        ordered: bool = False,
        memory_limit: str | None = None,
    ) -> None:
        self._duckdb = _duckdb()
        self._text = text
        self._bootstrap = bootstrap
        self._security = security
        self._committed = committed
        self._ordered = ordered
        self._thread = LoopThread("headrace-sql")
        self._con = self._duckdb.connect(":memory:", config={"autoinstall_known_extensions": "false"})
        self._scans: dict[str, Any] = {}
        self._reads: dict[str, TopicRead] = {}
        if memory_limit is not None:
            self._execute("set memory_limit = $limit", {"limit": memory_limit})
        self._execute(_MACROS)

    def __enter__(self) -> "Query":
        try:
            self._prepare()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._scans.clear()
        self._con.close()
        self._thread.close()

    @property
    def reads(self) -> list[TopicRead]:
        """What of each topic is, or was, read."""
        for name, read in self._reads.items():
            if (scan := self._scans.get(name)) is not None:
                read.rows, read.missing = scan.rows, scan.missing
        return list(self._reads.values())

    def batches(self) -> Iterator[Any]:
        """The result as `pyarrow.RecordBatch`es, as it is made. Raises ClientError."""
        try:
            if hasattr(self._con, "fetch_record_batch"):  # DuckDB 1
                yield from self._con.execute(self._text).fetch_record_batch(ROWS_AT_ONCE)
            else:
                yield from self._con.sql(self._text).to_arrow_reader(ROWS_AT_ONCE)
        except (self._duckdb.Error, OSError) as error:
            raise _refused(error) from None

    # -- inside

    def _prepare(self) -> None:
        tree = self._tree()
        tables = tables_of(tree, self._evaluate)
        names = sorted(columns_of(tree))
        self._thread.run(self._open(tables, names))

    async def _open(self, tables: dict[tuple[str, ...], Wanted], names: list[str]) -> None:
        async with Admin(self._bootstrap, security=self._security) as admin:
            known = {topic.name for topic in await admin.list_topics(include_internal=True)}
            for path, wanted in tables.items():
                topic = ".".join(path)
                if topic in known:
                    await self._add(admin, path, topic, wanted, names)
                elif len(path) == 1 and not FILE_NAME.search(topic) and not self._is_table(topic):
                    raise ClientError(no_topic(topic, sorted(known)))

    def _is_table(self, name: str) -> bool:
        """Tables of DuckDB's own, and names that the query defines for itself."""
        return bool(re.search(rf'\b{re.escape(name)}"?\s+(\([^)]*\)\s+)?as\b', self._text, re.I)) or bool(
            self._execute("select 1 from duckdb_views() where view_name = $name", {"name": name}).fetchall()
        )

    async def _add(self, admin: Admin, path: tuple[str, ...], topic: str, wanted: Wanted, names: list[str]) -> None:
        from headrace.tools.sql.scan import TopicScan

        held = await ranges_of(admin, topic, committed=self._committed)
        needed = await self._pruned(admin, topic, wanted, held)
        sources = sorted({_SOURCES.get(name, name) for name in names})
        scan = TopicScan(self._bootstrap, self._security, topic, sources, lambda: needed, committed=self._committed)
        self._scans[topic] = scan
        self._reads[topic] = TopicRead(topic, needed, sum(one.offsets for one in held))
        number = len(self._scans)
        self._con.register(f"headrace_scan_{number}", scan)
        # Columns that the query does not name are there as nulls, so that its errors are about what it says.
        shown = ", ".join(f'{_EXPRESSIONS[name] if name in names else "null"} as "{name}"' for name in COLUMNS)
        if len(path) == 2:
            self._execute(f"create schema if not exists {_quoted(path[0])}")
        self._execute(f"create view {'.'.join(map(_quoted, path))} as select {shown} from headrace_scan_{number}")

    async def _pruned(
        self, admin: Admin, topic: str, wanted: Wanted, held: list[PartitionRange]
    ) -> list[PartitionRange]:
        chosen = frozenset(one.partition for one in held if wanted.has_partition(one.partition))
        if not chosen:
            return []
        start, end = FROM_EARLIEST, Start(word="latest")
        if wanted.timestamp.low is not None:
            # The first record of that time or later: none before it is, in whatever order the times are.
            start = Start(time_ms=max(0, wanted.timestamp.low // 1000))
        if wanted.timestamp.high is not None and (self._ordered or await _is_stamped_by_broker(admin, topic)):
            end = Start(time_ms=max(0, wanted.timestamp.high // 1000 + 1))
        ranges = await ranges_of(admin, topic, start, end, chosen, committed=self._committed)
        low, high = wanted.offset.low, wanted.offset.high
        found = []
        for one in ranges:
            first = one.start_offset if low is None else max(one.start_offset, low)
            last = one.end_offset if high is None else min(one.end_offset, high + 1)
            found.append(PartitionRange(topic, one.partition, min(first, max(last, first)), max(last, first)))
        return found

    def _tree(self) -> Any:
        rows = self._execute("select json_serialize_sql($text::varchar)", {"text": self._text}).fetchall()
        tree = json.loads(rows[0][0])
        if tree.get("error"):
            said = str(tree.get("error_message", ""))
            if "Only SELECT" in said:
                raise ClientError("headrace sql only reads: write one SELECT")
            raise ClientError(_hinted(said))
        if len(tree["statements"]) != 1:
            raise ClientError("write one SELECT at a time")
        return tree

    def _evaluate(self, node: Any, column: str) -> Any:
        """A constant's value: microseconds for a time, else a whole number. None for what is neither."""
        template = json.loads(self._execute("select json_serialize_sql('select 1')").fetchall()[0][0])
        template["statements"][0]["node"]["select_list"] = [node]
        try:
            text = self._con.execute(
                "select json_deserialize_sql($tree::json)", {"tree": json.dumps(template)}
            ).fetchall()[0][0]
            wanted = f"epoch_us(cast(({text}) as timestamptz))" if column == "timestamp" else f"({text})"
            value = self._con.execute(f"select {wanted}").fetchall()[0][0]
        except self._duckdb.Error:
            return None
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def _execute(self, text: str, parameters: dict[str, Any] | None = None) -> Any:
        try:
            return self._con.execute(text, parameters) if parameters else self._con.execute(text)
        except self._duckdb.Error as error:
            raise _refused(error) from None


async def _is_stamped_by_broker(admin: Admin, topic: str) -> bool:
    rows = await admin.describe_configs(Resource.TOPIC, topic, ["message.timestamp.type"])
    return any(row.value == "LogAppendTime" for row in rows)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _refused(error: Exception) -> ClientError:
    return ClientError(_hinted(str(error)))


def _hinted(said: str) -> str:
    text = said.strip()
    if re.search(r"at or near \"(offset|>|<|=|,|between|from)\"", text) and "offset" in text:
        text += '\noffset is a word of SQL: write "offset", in double quotes'
    return text


def _duckdb() -> Any:
    try:
        import duckdb
        import pyarrow  # noqa: F401
    except ImportError as missing:
        raise ClientError(f"headrace sql needs {missing.name}: pip install 'headrace[sql]'") from None
    return duckdb
