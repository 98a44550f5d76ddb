"""How a run goes, as plain data: what Spark reports of each query, added up. Pure: reports in, figures out."""

import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from headrace.spark.pipelines.dataframes.metrics import COUNT, DEAD_LETTERS, EXPECTATIONS, ROWS, WRITTEN

RATE_REPORTS = 10
"""Speed is shown over so many reports: one batch says little."""


@dataclass(slots=True)
class QueryProgress:
    """One sink's query. Counts are from the start of the run, over retries.

    `rows_in` are the rows read, `rows_out` those given to the sink (-1 where nobody counts them), `dead_letters` the
    values of each source that could not be read. `fraction` is None where it cannot be known.
    """

    sink: str
    target: str
    state: str = "starting"
    query_id: str = ""
    batch: int = -1
    batches: int = 0
    rows_in: int = 0
    rows_out: int = -1
    dead_letters: dict[str, int] = field(default_factory=dict)
    rows_per_s: float = 0.0
    batch_ms: int = 0
    batch_at_ms: int = 0
    watermark: str = ""
    state_rows: int = 0
    late_rows: int = 0
    attempts: int = 0
    retry_at_ms: int = 0
    error: str = ""
    fraction: float | None = None
    sources: list[dict[str, Any]] = field(default_factory=list)
    expectations: dict[str, dict[str, int]] = field(default_factory=dict)
    _recent: list[tuple[int, int]] = field(default_factory=list)

    def take(self, report: Mapping[str, Any]) -> bool:
        """Add one report of Spark's; whether it was of a batch not seen before."""
        batch, rows = int(report["batchId"]), int(report["numInputRows"] or 0)
        steps_ms = report.get("durationMs") or {}
        # A trigger that found nothing to do is reported under the number of the batch that comes next.
        is_idle = "triggerExecution" in steps_ms and "addBatch" not in steps_ms
        if is_idle or batch < self.batch or (batch == self.batch and rows == 0):
            return False
        is_new = batch > self.batch
        self.batch = batch
        self.query_id = str(report["id"])
        duration_ms = int(report.get("batchDuration") or steps_ms.get("triggerExecution", 0))
        watermark = (report.get("eventTime") or {}).get("watermark", "")
        self.watermark = "" if watermark.startswith("1970") else watermark
        self.state_rows = sum(int(one.get("numRowsTotal", 0)) for one in report.get("stateOperators") or ())
        self.sources = [_source(one) for one in report.get("sources") or ()]
        if not is_new:
            return False
        self.batches += 1
        self.rows_in += rows
        self.late_rows += sum(
            int(one.get("numRowsDroppedByWatermark", 0)) for one in report.get("stateOperators") or ()
        )
        self.batch_ms = duration_ms
        self.batch_at_ms = time.time_ns() // 1_000_000
        self._recent = [*self._recent, (rows, max(duration_ms, 1))][-RATE_REPORTS:]
        self.rows_per_s = 1000 * sum(rows for rows, _ in self._recent) / sum(ms for _, ms in self._recent)
        self._take_counts(report.get("observedMetrics") or {})
        return True

    def _take_counts(self, metrics: Mapping[str, Any]) -> None:
        """A part that was not run in this batch has no counts."""
        for name, given in metrics.items():
            counts = _by_name(given if isinstance(given, Mapping) else given.asDict())
            if name == WRITTEN:
                self.rows_out = max(self.rows_out, 0) + int(counts.get(WRITTEN) or 0)
            elif name.startswith(DEAD_LETTERS):
                source = name.removeprefix(DEAD_LETTERS)
                self.dead_letters[source] = self.dead_letters.get(source, 0) + int(counts.get(COUNT) or 0)
            elif name.startswith(EXPECTATIONS) and ROWS in counts:
                self._take_expectations(name.removeprefix(EXPECTATIONS), counts)

    def _take_expectations(self, node: str, counts: Mapping[str, Any]) -> None:
        for one, failed in counts.items():
            if one != ROWS:
                sums = self.expectations.setdefault(f"{node}.{one}", {"rows": 0, "failed": 0})
                sums["rows"] += int(counts[ROWS] or 0)
                sums["failed"] += int(failed or 0)

    def plain(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if not name.startswith("_")}


def _by_name(counts: Mapping[str, Any]) -> Mapping[str, Any]:
    """Connect sends values and their schema apart."""
    if set(counts) == {"values", "schema"}:
        return dict(zip((one["name"] for one in counts["schema"]["fields"]), counts["values"]))
    return counts


def _source(report: Mapping[str, Any]) -> dict[str, Any]:
    keys = ("description", "startOffset", "endOffset", "latestOffset", "numInputRows", "metrics")
    return {key: _decoded(report.get(key)) for key in keys}


def _decoded(value: Any) -> Any:
    """Offsets may come as JSON in a text."""
    if isinstance(value, str) and value.startswith("{"):
        try:
            return json.loads(value)
        except ValueError:
            return value
    return value


def eta_s(elapsed_s: float, fraction: float | None) -> float | None:
    """How long it will still take if it goes on as it did."""
    if fraction is None or fraction <= 0.001:
        return None
    return elapsed_s * (1 - fraction) / fraction


def overall(fractions: list[float | None]) -> float | None:
    known = [one for one in fractions if one is not None]
    return sum(known) / len(fractions) if known and len(known) == len(fractions) else None
