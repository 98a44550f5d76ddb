"""What a pipeline is: sources, transforms and sinks, each knowing where in the spec it stands. Data only."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from headrace.spark.pipelines.spec.problems import Where

REJECTED = ".rejected"
"""`from: orders.rejected` are the rows that expectations of `orders` dropped."""

WARN, DROP, FAIL = "warn", "drop", "fail"
CONTINUOUS, BOUNDED = "continuous", "bounded"
EXACTLY_ONCE = "exactly-once"


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Anything with keys of its own; `at` has the place of each key that was given."""

    where: Where
    at: Mapping[str, Where]

    def place(self, key: str) -> Where:
        return self.at.get(key, self.where)


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation(Part):
    """`check` must be true of each row; null counts as false. `action`: warn, drop or fail."""

    name: str
    check: str
    action: str = WARN


@dataclass(frozen=True, slots=True, kw_only=True)
class Watermark(Part):
    """How late rows may be, by the time in `column`, before windows close without them."""

    column: str
    delay_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueFormat(Part):
    """How a topic's values are read or written."""

    format: str
    schema: str | None = None
    schema_file: Path | None = None
    registry: str | None = None
    subject: str | None = None
    message: str | None = None
    on_error: str = "fail"
    dead_letters: str | None = None

    @property
    def is_typed(self) -> bool:
        return self.format not in ("bytes", "text")


@dataclass(frozen=True, slots=True, kw_only=True)
class Retries(Part):
    attempts: int = 5
    backoff_ms: int = 1_000
    backoff_max_ms: int = 60_000
    reset_after_ms: int = 600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkSettings(Part):
    master: str = "local[*]"
    conf: Mapping[str, str] = field(default_factory=dict)
    packages: tuple[str, ...] = ()
    jars: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Node(Part):
    """Something that rows come out of, known to SQL by its name."""

    name: str
    watermark: Watermark | None = None
    expect: tuple[Expectation, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Source(Node):
    """Exactly one of topic, pattern, files and table is given. `static` ones are read whole whenever they are
    joined."""

    topic: tuple[str, ...] = ()
    pattern: str | None = None
    files: str | None = None
    table: str | None = None
    bootstrap: str | None = None
    start: str = "earliest"
    value: ValueFormat | None = None
    format: str | None = None
    schema: str | None = None
    schema_file: Path | None = None
    static: bool = False
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def is_topic(self) -> bool:
        return bool(self.topic or self.pattern)


@dataclass(frozen=True, slots=True, kw_only=True)
class Transform(Node):
    """SQL (`sql_line` is the line of the file `sql_path` its text begins on) or a Python function."""

    inputs: tuple[str, ...]
    sql: str | None = None
    sql_path: Path | None = None
    sql_line: int = 1
    python_path: Path | None = None
    function: str | None = None
    wants_spark: bool = False
    decorated: bool = False
    """Under a decorator of pyspark.pipelines: called without arguments, reads views by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sink(Part):
    """Exactly one of topic, files, table, jdbc and console is given."""

    name: str
    from_: str
    topic: str | None = None
    bootstrap: str | None = None
    key: str | None = None
    value: str | ValueFormat | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    create_partitions: int | None = None
    delivery: str = "at-least-once"
    files: str | None = None
    format: str | None = None
    partition_by: tuple[str, ...] = ()
    table: str | None = None
    jdbc: str | None = None
    jdbc_table: str | None = None
    driver: str | None = None
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    console: int | None = None
    mode: str = "append"
    trigger_ms: int | None = None
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def input(self) -> str:
        return self.from_.removesuffix(REJECTED)

    @property
    def takes_rejected(self) -> bool:
        return self.from_.endswith(REJECTED)

    @property
    def kind(self) -> str:
        for kind in ("topic", "files", "jdbc", "table"):
            if getattr(self, kind) is not None:
                return kind
        return "console"

    @property
    def is_exactly_once(self) -> bool:
        """Whether a topic is written in transactions."""
        return self.delivery == EXACTLY_ONCE

    @property
    def target(self) -> str:
        """Where rows go, for people."""
        if self.kind == "topic":
            return f"topic {self.topic}"
        if self.kind == "files":
            return f"{self.format} files {self.files}"
        if self.kind == "table":
            return f"table {self.table}"
        return f"table {self.jdbc_table} over JDBC" if self.kind == "jdbc" else "the screen"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline(Part):
    """A checked spec. `folder` is where relative paths of it begin."""

    name: str
    folder: Path
    storage: str
    description: str = ""
    bootstrap: str = "127.0.0.1:9092"
    kafka: Mapping[str, str] = field(default_factory=dict, repr=False)
    mode: str = CONTINUOUS
    trigger_ms: int = 1_000
    spark: SparkSettings
    retries: Retries
    sources: Mapping[str, Source]
    transforms: Mapping[str, Transform]
    sinks: Mapping[str, Sink]

    @property
    def nodes(self) -> Mapping[str, Node]:
        return {**self.sources, **self.transforms}

    def checkpoint(self, sink: str) -> str:
        return f"{self.storage}/checkpoints/{sink}"
