"""What is going on, in numbers: filled by the run, read by the dashboard, the plain lines and the report."""

import time
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field

NOTES_MAX = 200

Series = list[tuple[float, float]]
"""(seconds since the start, value)"""


@dataclass(slots=True)
class NodeState:
    node_id: int
    address: str
    is_up: bool = True
    note: str = ""


@dataclass(slots=True)
class GroupState:
    """One group; `members` has each one's name, partitions and number of records."""

    name: str
    role: str
    got: int = 0
    rate: float = 0.0
    lag: int | None = None
    lags: Series = field(default_factory=list)
    members: list[tuple[str, list[int], int]] = field(default_factory=list)
    gots: Series = field(default_factory=list)


@dataclass(slots=True)
class BatchState:
    """A micro-batch that is being worked on."""

    number: int
    rows: int
    done: int
    tasks: int


@dataclass(slots=True)
class QueryState:
    """One streaming query of the pipeline."""

    name: str
    target: str
    batches: int = 0
    rows: int = 0
    rows_per_s: float = 0.0
    duration_ms: int = 0
    watermark: str = ""
    late_rows: int = 0
    ends: dict[str, dict[str, int]] = field(default_factory=dict)
    """Offsets, by topic and partition, up to which it is done."""
    durations: Series = field(default_factory=list)
    now: BatchState | None = None
    since_s: float = field(default_factory=time.monotonic)
    """When the batch before this one was done, or the query was started."""


@dataclass(slots=True)
class Status:
    born_s: float = field(default_factory=time.monotonic)
    """When the program was started; `started_s` is when the feed was, from which everything else is counted."""
    started_s: float = field(default_factory=time.monotonic)
    limit_s: float | None = None
    phase: str = "starting"
    bootstrap: str = ""
    nodes: list[NodeState] = field(default_factory=list)
    sent: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    rate: float = 0.0
    rates: Series = field(default_factory=list)
    stalled_s: float = 0.0
    slowest_s: float = 0.0
    waits: Series = field(default_factory=list)
    """The longest wait for an acknowledgement, in ms, of each half second."""
    recoveries_s: list[float] = field(default_factory=list)
    """From each kill -9 until events were acknowledged again in every partition that the broker had led."""
    groups: list[GroupState] = field(default_factory=list)
    spark: str = ""
    queries: dict[str, QueryState] = field(default_factory=dict)
    restarts: int = 0
    """How often a query has failed and gone on; also before its first batch was done."""
    fed_s: float | None = None
    """How long the feed ran; not known while it does."""
    first_window_s: float | None = None
    """How long after the program's start the first window was seen."""
    windows: dict[int, dict[str, tuple[int, int, int]]] = field(default_factory=dict)
    """Window start -> category -> (events, orders, cents), as they come out of the pipeline's topic."""
    notes: deque[tuple[float, str]] = field(default_factory=lambda: deque(maxlen=NOTES_MAX))
    keys: str = ""
    """What keys do, where there is a keyboard."""

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self.started_s

    @property
    def age_s(self) -> float:
        """Since the program was started."""
        return time.monotonic() - self.born_s

    def begin(self) -> None:
        """The feed starts: from now on everything is counted from here. What came before has times below zero."""
        before_s = self.elapsed_s
        self.started_s += before_s
        self.notes = deque(((at_s - before_s, text) for at_s, text in self.notes), maxlen=NOTES_MAX)

    def note(self, text: str) -> None:
        self.notes.append((self.elapsed_s, text))

    def group(self, name: str) -> GroupState:
        return next(group for group in self.groups if group.name == name)


def per_second(series: Iterable[tuple[float, float]], window_s: float = 2.0) -> float:
    """The slope of a growing count over its last seconds."""
    points = list(series)
    if len(points) < 2:
        return 0.0
    end_s, end = points[-1]
    start_s, start = next((point for point in points if point[0] >= end_s - window_s), points[0])
    return (end - start) / (end_s - start_s) if end_s > start_s else 0.0
