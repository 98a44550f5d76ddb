"""Reports of queries added up, failures told apart."""

from typing import Any

import pytest

from headrace.cli.pipeline_view import RunDisplay, age_text, bar, dead_letter_lines, expectation_counts, line
from headrace.spark.pipelines.dataframes.spark_errors import cause_of, first_line, is_hopeless
from headrace.spark.pipelines.run.progress import QueryProgress, eta_s, overall


def report(batch: int, rows: int, **more: Any) -> dict[str, Any]:
    base = {
        "id": "q",
        "batchId": batch,
        "numInputRows": rows,
        "batchDuration": 500,
        "sources": [],
        "stateOperators": [],
    }
    return {**base, **more}


def test_batches_count_once_however_often_they_are_reported() -> None:
    progress = QueryProgress("s", "t")
    assert progress.take(report(0, 10))
    assert not progress.take(report(0, 10))
    assert progress.take(report(1, 30, observedMetrics={"expect_a": {"rows": 30, "x": 2}, "other": {"rows": 1}}))
    assert not progress.take(report(0, 10))
    assert (progress.rows_in, progress.batches, progress.batch, progress.rows_per_s) == (40, 2, 1, 40.0)
    assert progress.expectations == {"a.x": {"rows": 30, "failed": 2}}


def test_a_batch_counts_though_the_query_was_idle_before_it() -> None:
    """Spark reports idle triggers under the number of the batch that comes next."""
    progress = QueryProgress("s", "t")
    counts = {"expect_a": {"rows": 10, "x": 1}}
    idle = {"latestOffset": 3, "triggerExecution": 5}
    ran = {"addBatch": 400, "latestOffset": 3, "triggerExecution": 500}
    assert not progress.take(report(0, 0, durationMs=idle))
    assert progress.take(report(0, 10, durationMs=ran, observedMetrics=counts))
    assert not progress.take(report(1, 0, durationMs=idle))
    assert (progress.batch, progress.batches) == (0, 1)
    assert progress.take(report(1, 10, durationMs=ran, observedMetrics=counts))
    # One without rows, for the sake of a watermark, is a batch all the same.
    assert progress.take(report(2, 0, durationMs=ran))
    assert (progress.rows_in, progress.batches, progress.batch) == (20, 3, 2)
    assert progress.expectations == {"a.x": {"rows": 20, "failed": 2}}


def test_counts_in_the_form_that_connect_sends() -> None:
    progress = QueryProgress("s", "t")
    fields = [{"name": "rows"}, {"name": "x"}]
    progress.take(
        report(0, 4, observedMetrics={"expect_a": {"values": [4, 1], "schema": {"fields": fields}}, "expect_b": {}})
    )
    assert progress.expectations == {"a.x": {"rows": 4, "failed": 1}}


def test_state_watermark_and_late_rows() -> None:
    progress = QueryProgress("s", "t")
    progress.take(report(0, 1, eventTime={"watermark": "1970-01-01T00:00:00.000Z"}))
    assert progress.watermark == ""
    progress.take(
        report(
            1,
            1,
            eventTime={"watermark": "2024-01-01T00:00:00.000Z"},
            stateOperators=[{"numRowsTotal": 5, "numRowsDroppedByWatermark": 2}],
        )
    )
    assert (progress.watermark[:4], progress.state_rows, progress.late_rows) == ("2024", 5, 2)
    assert "_recent" not in progress.plain()


def test_rows_read_and_written_and_dead_letters_are_told_apart(capsys: pytest.CaptureFixture[str]) -> None:
    progress = QueryProgress("archive", "files out")
    assert progress.plain()["rows_out"] == -1
    for batch in range(2):
        metrics = {"written": {"written": 6}, "dead_letters_orders": {"count": 2}}
        progress.take(report(batch, 100, observedMetrics=metrics))
    assert (progress.rows_in, progress.rows_out, progress.dead_letters) == (200, 12, {"orders": 4})
    other = QueryProgress("screen", "the screen", rows_in=200, dead_letters={"orders": 4})
    snapshot = {"pipeline": "p", "state": "done", "elapsed_s": 1.0, "queries": [progress.plain(), other.plain()]}
    RunDisplay(quiet=False).finish(snapshot)
    header, first, second, letters, _ = capsys.readouterr().out.splitlines()
    assert header.split() == ["SINK", "STATE", "BATCHES", "READ", "WRITTEN", "DEAD", "ROWS/S", "TO"]
    assert first.split()[3:6] == ["200", "12", "4"] and second.split()[3:6] == ["200", "-", "4"]
    assert letters == "orders: 8 dead letters, one for each bad value and each of the 2 sinks that read it"
    assert "400 rows read, 12 written" in line(snapshot)


def test_a_single_dead_letter_is_one() -> None:
    query = QueryProgress("s", "t", dead_letters={"orders": 1, "clicks": 0}).plain()
    assert dead_letter_lines([query]) == ["orders: 1 dead letter"]


def test_estimates() -> None:
    assert eta_s(10, 0.25) == 30
    assert eta_s(10, None) is None and eta_s(10, 0.0) is None
    assert overall([0.5, 1.0]) == 0.75
    assert overall([0.5, None]) is None
    assert bar(0.5, 75).endswith("] 50%, 1:15 min left") or "50%, 1:15 min left" in bar(0.5, 75)
    assert "not known" in bar(None, None)
    assert [age_text(s) for s in (3.2, 75, 3700)] == ["3 s", "1:15 min", "1:01 h"]


def test_line_names_errors() -> None:
    query = QueryProgress("s", "t", state="waiting", error="gone", attempts=2).plain()
    text = line({"state": "running", "elapsed_s": 4.0, "queries": [query], "fraction": None})
    assert "retry 2 in 0 s" in text and "(gone)" in text


def test_expectations_of_several_sinks_are_shown_once() -> None:
    one = QueryProgress("a", "t", expectations={"n.x": {"rows": 5, "failed": 1}}).plain()
    two = QueryProgress("b", "t", expectations={"n.x": {"rows": 7, "failed": 2}}).plain()
    assert expectation_counts([one, two]) == {"n.x": {"rows": 7, "failed": 2}}


WRAPPED = """[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: Job aborted. SQLSTATE: XXKST
=== Streaming Query ===
Caused by: org.apache.spark.SparkException: [TASK_WRITE_FAILED] Task failed while writing rows. SQLSTATE: 58030
Caused by: org.apache.spark.SparkArithmeticException: [DIVIDE_BY_ZERO] Division by zero. Use `try_divide`. SQLSTATE: 22012
"""  # noqa: E501


@pytest.mark.parametrize(
    ("text", "cause", "hopeless"),
    [
        (WRAPPED, "Division by zero. Use `try_divide`", True),
        ("x\nTraceback (most recent call last):\n  File\nOSError: gone\n\n at java", "OSError: gone", False),
        ("x headrace expectation sane of clean failed on the row {\"a\":1} SQLSTATE: P0001\n",
         'expectation sane of clean failed on the row {"a":1}', True),
        ("[STREAM_FAILED] Query\nTraceback (most recent call last):\n"
         "headrace.spark.options.OptionError: option 'x' is wrong\n", "OptionError: option 'x' is wrong", True),
        (
            "[PYTHON_DATA_SOURCE_ERROR] Failed to plan. SQLSTATE: 38000\n"
            "Caused by: java.net.SocketTimeoutException: Timed out",
            "Timed out",
            False,
        ),
        ("Traceback (most recent call last):\nx.OptionError: where the query starts could not be kept in group 'g'",
         "OptionError: where the query starts could not be kept in group 'g'", False),
        ("java.net.ConnectException: Connection refused", "java.net.ConnectException: Connection refused", False),
    ],
)  # fmt: skip
def test_causes(text: str, cause: str, hopeless: bool) -> None:
    assert cause_of(text) == cause
    assert is_hopeless(text) is hopeless


def test_first_line_is_free_of_classes_and_states() -> None:
    assert (
        first_line("[UNRESOLVED_COLUMN.WITH_SUGGESTION] No column `x`. SQLSTATE: 42703; line 1 pos 7;\n'Project")
        == "No column `x`"
    )
