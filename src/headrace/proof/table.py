"""The results as text: one line for a case, what it costs with all brokers there, and what losses lead to."""

from collections.abc import Sequence

from headrace.proof.cases import Result, Stage

COLUMNS = (
    "REPLICAS", "MIN", "ACKS", "DURABILITY", "LATENCY", "RECORDS/S", "ONE LOST", "LATENCY", "RECORDS/S", "TWO LOST",
    "LATENCY", "RECORDS/S",
)  # fmt: skip
NUMBERS = ("REPLICAS", "MIN", "LATENCY", "RECORDS/S")
MANY = 10_000


def rows(results: Sequence[Result]) -> list[tuple[str, ...]]:
    return [_row(result) for result in results]


def _row(result: Result) -> tuple[str, ...]:
    calm, *losses = result.stages
    after = [cell for stage in losses for cell in (verdict_text(stage), *_costs(stage))]
    return (str(result.replicas), str(result.min_in_sync), result.acks, result.durability, *_costs(calm), *after)


def _costs(stage: Stage) -> tuple[str, str]:
    return time_text(stage.latency_ms), rate_text(stage.records_per_s)


def verdict_text(stage: Stage) -> str:
    """What became of writing, and of what was acknowledged."""
    what = "written" if stage.written else "offline" if stage.offline else "refused"
    if stage.lost == stage.acknowledged:
        kept = "all lost"
    else:
        kept = f"{stage.lost:,} lost" if stage.lost else "none lost"
    return f"{what}, {kept}"


def time_text(milliseconds: float | None) -> str:
    return "-" if milliseconds is None else f"{milliseconds:.2f} ms"


def rate_text(records_per_s: float | None) -> str:
    if records_per_s is None:
        return "-"
    return f"{records_per_s / 1000:,.0f}k" if records_per_s >= MANY else f"{records_per_s:,.0f}"
