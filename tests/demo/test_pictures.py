"""The screen, the lines and the report: drawn from a status, at any size, with nothing lost or injected."""

import io
import re
from html import unescape
from html.parser import HTMLParser
from pathlib import Path

import pytest
from rich.console import Console

from headrace.cli.demo import refuse_unwritable
from headrace.client.errors import ClientError
from headrace.demo.blocks import BLOCKS, area, sparkline
from headrace.demo.charts import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, line_chart, nice_ticks, stacked_bars
from headrace.demo.check import Check
from headrace.demo.dashboard import command, draw, hints, line
from headrace.demo.report import report
from headrace.demo.spark_process import SparkProcess
from headrace.demo.status import GroupState, NodeState, QueryState, Status, per_second
from headrace.demo.view import LINE_S, STILL_LINE_S, Lines


@pytest.fixture
def status() -> Status:
    found = Status(limit_s=60, phase="running", bootstrap="127.0.0.1:1234")
    found.nodes = [NodeState(1, "127.0.0.1:1234"), NodeState(2, "127.0.0.1:1235", False, "killed")]
    found.sent, found.rate = 12_345, 1_024
    found.rates = [(second, 1_000 + second) for second in range(60)]
    found.waits = [(1, 5.0), (2, 17.0)]
    found.groups = [
        GroupState("order-queue", "queue", 12_000, 999, 4_321, [(1, 5), (2, 9)], [("w1", [0, 1], 7), ("w2", [], 0)]),
        GroupState("spark-sales", "Spark", lag=777, lags=[(1, 90_000), (2, 777)]),
    ]
    found.queries = {
        "sales": QueryState("sales", "Parquet", 3, 9_876, 2_000, 1_500, "16 s behind", durations=[(1, 1.5)])
    }
    found.windows = {1_800_000_000_000: {"books": (10, 2, 12_300)}, 1_800_000_005_000: {"toys": (4, 1, 1_000)}}
    found.note("kill -9 of broker 2 <script>alert(1)</script>")
    return found


def shown(status: Status, width: int, height: int) -> str:
    page = io.StringIO()
    console = Console(width=width, height=height, color_system=None, file=page)
    console.print(draw(status, width, height), height=height)
    return page.getvalue()


@pytest.mark.parametrize("size", [(120, 40), (110, 30), (90, 50)])
def test_numbers_are_whole_at_usual_sizes(status: Status, size: tuple[int, int]) -> None:
    text = shown(status, *size)
    for part in ("1,024 events/s", "12,345", "4,321", "9,876", "1.5 s", "0,1", ":1235 killed", "16 s behind", "123"):
        assert part in text


@pytest.mark.parametrize("width", [112, 120, 160])
def test_what_to_try_in_another_terminal_can_be_copied(
    status: Status, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.demo.dashboard.command", lambda: ".venv/bin/headrace")
    status.bootstrap = "127.0.0.1:25048,127.0.0.1:25049"
    text = shown(status, width, 45)
    assert all(f" {hint} " in text for hint in hints(status.bootstrap))


def test_every_broker_is_shown_on_a_narrow_terminal(status: Status) -> None:
    status.nodes = [NodeState(n, f"127.0.0.1:{27_118 + n}", n != 2, "" if n != 2 else "killed") for n in (1, 2, 3)]
    assert "● :27119  ○ :27120 killed  ● :27121" in shown(status, 80, 24)


def test_a_run_past_its_time_does_not_count_against_it(status: Status) -> None:
    assert "of 1:00" in shown(status, 80, 24)
    status.started_s -= 61
    assert "running  1:01  " in shown(status, 80, 24) and "of 1:00" not in shown(status, 80, 24)


def test_what_came_before_the_feed_has_times_below_zero(status: Status) -> None:
    status.started_s -= 3
    status.note("brokers are ready")
    status.begin()
    (_, early), (at_s, text) = status.notes
    assert text == "brokers are ready" and -0.5 < at_s <= 0 and early.startswith("kill")
    assert status.notes[0][0] < -2.5 and status.elapsed_s < 0.5
    assert "0:00 brokers are ready" in shown(status, 120, 40)


def test_a_query_that_reads_what_another_writes_is_not_said_to_be_slow(status: Status) -> None:
    status.queries = {"sales": QueryState("sales", "Parquet"), "publish": QueryState("publish", "shop-revenue")}
    text = shown(status, 80, 24)
    assert "first batch, 0 s" in text and "waits for sales" in text


KEYS = "k: kill -9 a broker   w: a worker joins   l: a worker leaves   q: end"


def test_a_small_terminal_keeps_keys_and_sales(status: Status) -> None:
    status.keys = KEYS
    status.groups += [GroupState(name, "pub/sub") for name in ("audit-log", "recommender")]
    status.queries["publish"] = QueryState("publish", "shop-revenue")
    text = shown(status, 80, 24)
    for part in (KEYS, "1,024 events/s", "4,321", "777", "9,876", "16 s behind", "08:00:05", "123"):
        assert part in text
    assert len(text.splitlines()) == 24


def test_no_pane_is_empty_while_things_start() -> None:
    status = Status(phase="starting brokers", spark="starting")
    status.groups = [GroupState("order-queue", "queue"), GroupState("spark-sales", "Spark")]
    text = shown(status, 80, 24)
    for part in (
        "starting brokers, 0 s",
        "order-queue",
        "spark-sales",
        "starting, 0 s. Spark's JVM",
        "A window of 5 s is out",
    ):
        assert part in text
    assert not re.search(r"╭─ [^\n]+\n│ +│\n", text), "a pane whose first line says nothing"
    status.spark = "Spark 4.3.0"
    assert "Spark 4.3.0 is ready" in shown(status, 80, 24)
    status.queries["sales"] = QueryState("sales", "Parquet")
    assert "first batch, 0 s" in shown(status, 80, 24)


def test_rows_and_tasks_of_the_batch_at_work_are_shown(status: Status, tmp_path: Path) -> None:
    spark = SparkProcess({}, tmp_path, status, {})
    spark._heard({"batch": {"query": "sales", "number": 3, "rows": 5_432, "done": 2, "tasks": 8}})
    assert "2/8 tasks, 5,432 rows" in shown(status, 120, 40)
    spark._heard({"progress": {"name": "sales", "batchId": 3, "numInputRows": 5_432}})
    spark._heard({"batch": {"query": "sales", "number": 3, "rows": 5_432, "done": 8, "tasks": 8}})
    assert status.queries["sales"].now is None, "it is done, whatever comes late"


def test_long_events_wrap_and_are_read_to_their_end(status: Status) -> None:
    status.note("topics shop-events, shop-revenue, shop-rejects: 4 partitions, 3 copies of everything")
    text = " ".join(shown(status, 120, 30).split())
    assert "everything" in text


def test_spare_rows_go_to_charts(status: Status) -> None:
    small, large = shown(status, 140, 30), shown(status, 140, 45)
    for part in ("events/s, up to 1,059", "longest wait, up to 17 ms"):
        assert part in large and part not in small
    assert large.count("█") > small.count("█") + 100


def test_areas_show_the_highest_value_and_everything_above_zero() -> None:
    assert area([0, 4, 8], 3, 2) == ["  █", " ██"]
    assert area([1, 1000], 9, 1) == [BLOCKS[0] + BLOCKS[7]]
    rows = area([float(n) for n in range(1000)] + [5_000.0], 20, 4)
    assert [len(row) for row in rows] == [20] * 4 and rows[0].rstrip() == " " * 19 + "█"
    assert area([], 5, 2) == ["", ""] and area([0, 0], 5, 1) == ["  "]


@pytest.mark.parametrize("size", [(80, 24), (40, 10), (20, 5), (300, 100)])
def test_any_size_can_be_drawn(status: Status, size: tuple[int, int]) -> None:
    assert "Headrace" in shown(status, *size)
    assert "Headrace" in shown(Status(), *size)


def test_a_line_says_how_far_things_are(status: Status) -> None:
    text = line(status)
    for part in ("12,345 events", "order-queue 12,000 (lag 4,321)", "sales batch 3", "2 windows"):
        assert part in text


def test_sparklines_scale_to_their_highest_value() -> None:
    assert sparkline([0, 1, 2, 4], 9) == BLOCKS[0] + BLOCKS[2] + BLOCKS[4] + BLOCKS[7]
    assert sparkline([], 9) == "" and sparkline([0, 0], 9) == BLOCKS[0] * 2
    assert len(sparkline(range(1000), 12)) == 12


def test_slopes() -> None:
    assert per_second([(0, 0), (1, 10), (2, 30)]) == 15 and per_second([(1, 5)]) == 0 and per_second([]) == 0
    assert per_second([(0, 0), (10, 100), (11, 200)], window_s=1) == 100


class Reader(HTMLParser):
    """What a browser would load, and whether every tag is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loaded: list[str] = []
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("meta", "line", "rect", "i"):
            self.open.append(tag)
        self.loaded += [value or "" for name, value in attrs if name in ("src", "href")]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.loaded += [value or "" for name, value in attrs if name in ("src", "href")]

    def handle_endtag(self, tag: str) -> None:
        if tag not in ("line", "rect", "i"):
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


@pytest.mark.parametrize("kept", [True, False])
def test_a_report_is_one_file_with_the_verdict_and_the_pictures(status: Status, kept: bool) -> None:
    text = report(status, [Check("group <b>", kept, "all & everything")], [("seed", "42")])
    reader = Reader()
    reader.feed(text)
    assert reader.open == [] and reader.loaded == [] and "http" not in text
    seen = " ".join(reader.texts)
    assert ("Every event is accounted for." in seen) == kept and "group <b>" in seen and "all & everything" in seen
    assert text.count("<svg") == 6 and "<script>" not in text
    assert "kill -9 of broker 2" in seen


def test_what_happened_just_before_the_feed_has_no_minus_of_its_own(status: Status) -> None:
    status.notes.appendleft((-0.04, "topics are there"))
    text = report(status, [Check("group", True, "")], [])
    assert "-0.0 s" not in text and ">0.0 s<" in text


def tiles(text: str) -> dict[str, str]:
    return {name: value for value, name in re.findall(r'<div class="tile"><b>([^<]+)</b>([^<]+)<', text)}


def test_the_figures_that_people_ask_for_come_first(status: Status) -> None:
    status.slowest_s, status.recoveries_s, status.first_window_s, status.fed_s = 0.42, [0.3, 0.41], 12.34, 12.0
    checks = [Check("group a", True, ""), Check("group b", False, "", missing=3)]
    found = tiles(report(status, checks, []))
    assert found == {
        "events": "12,345",
        "lost": "3",
        "longest wait": "420 ms",
        "recovery": "0.4 s",
        "events/s": "1,029",
        "first window": "12.3 s",
    }
    assert tiles(report(Status(), checks[:1], [])) == {"events": "0", "lost": "0", "longest wait": "0 ms"}


def test_sparks_lag_has_an_axis_of_its_own(status: Status) -> None:
    charts = dict(re.findall(r"<h3>([^<]+)</h3>.*?(<svg.*?</svg>)", unescape(report(status, [], []))))
    assert ">10<" in charts["Lag of the groups"] and ">100,000<" not in charts["Lag of the groups"]
    assert ">100,000<" in charts["Spark's lag"]


def test_every_word_that_needs_it_is_explained_and_no_first_column_breaks_words(status: Status) -> None:
    text = report(status, [], [])
    for term in ("acknowledged", "kill -9", "recovery", "lag", "micro-batch", "window", "watermark"):
        assert re.search(rf"<dt>{term}</dt><dd>[^<]+</dd>", text), term
    assert text.count("overflow-wrap") == 1 and "td:last-child:not(.n) { overflow-wrap: anywhere; }" in text


def test_a_report_without_spark_or_measurements_is_whole() -> None:
    reader = Reader()
    reader.feed(report(Status(), [Check("group", True, "")], []))
    assert reader.open == [] and "nothing was measured" in " ".join(reader.texts)


def test_lines_stay_inside_their_frame() -> None:
    chart = line_chart({"a": [(0, 0), (30, 7), (60, 3)]}, unit="x", marks=[(30, "kill -9"), (99, "later")])
    (path,) = re.findall(r'points="([^"]+)"', chart)
    points = [tuple(map(float, pair.split(","))) for pair in path.split()]
    assert all(LEFT <= x <= WIDTH - RIGHT and TOP <= y <= HEIGHT - BOTTOM for x, y in points)
    assert chart.count('class="m"') == 2 and "later" not in chart  # the line, and its name below


def test_bars_stack_up_to_their_sum() -> None:
    chart = stacked_bars([("10:00", {"a": 3.0, "b": 1.0})], ("a", "b"), unit="€")
    heights = [float(value) for value in re.findall(r'height="([\d.]+)" fill', chart)]
    assert heights[0] == pytest.approx(3 * heights[1], rel=0.01)


@pytest.mark.parametrize(
    "value,ticks",
    [
        (0, "0 1"),
        (0.3, "0.0 0.1 0.2 0.3"),
        (1, "0.0 0.2 0.4 0.6 0.8 1.0"),
        (4.2, "0 1 2 3 4 5"),
        (7, "0 2 4 6 8"),
        (11, "0.0 2.5 5.0 7.5 10.0 12.5"),
        (420, "0 100 200 300 400 500"),
        (9_999, "0 2,000 4,000 6,000 8,000 10,000"),
    ],
)
def test_a_label_says_where_its_line_is(value: float, ticks: str) -> None:
    drawn = line_chart({"a": [(0, 0), (1, value)]}, unit="x")
    found = re.findall(r'y1="([\d.]+)" y2="[\d.]+" class="g"/><text[^>]+>([\d.,]+)<', drawn)
    assert [text for _, text in found] == ticks.split()
    numbers = [float(text.replace(",", "")) for _, text in found]
    assert numbers == pytest.approx(nice_ticks(value)) and numbers[-1] >= value
    for (y, _), number in zip(found, numbers):
        assert float(y) == pytest.approx(HEIGHT - BOTTOM - number / numbers[-1] * (HEIGHT - TOP - BOTTOM), abs=0.1)


@pytest.mark.parametrize(
    "right, times",
    [
        (345, "0 60 120 180 240 300"),
        (31, "0 5 10 15 20 25 30"),
        (3, "0 1 2 3"),
        (90_000, "0 14,400 28,800 43,200 57,600 72,000 86,400"),
    ],
)
def test_times_under_a_chart_are_round(right: int, times: str) -> None:
    drawn = line_chart({"a": [(0, 1), (right, 2)]}, unit="x")
    assert re.findall(r">([\d,]+) s<", drawn) == times.split()


def test_a_moment_in_a_chart_is_explained_under_it() -> None:
    assert "kill -9 of broker 2</span>" in line_chart(
        {"a": [(0, 1), (9, 2)]}, unit="x", marks=[(3, "kill -9 of broker 2")]
    )


def test_lines_are_not_repeated_while_nothing_moves(status: Status) -> None:
    page = io.StringIO()
    lines = Lines(Console(width=200, color_system=None, file=page), status)
    for now_s, sent in (
        (0, 1),
        (1, 2),
        (LINE_S, 3),
        (2 * LINE_S, 3),
        (3 * LINE_S, 4),
        (4 * LINE_S, 4),
        (3 * LINE_S + STILL_LINE_S, 4),
    ):
        status.sent = sent
        lines.progress(now_s)
    assert re.findall(r"([\d,]+) events,", page.getvalue()) == ["1", "3", "4", "4"]


def test_commands_to_try_can_be_typed_as_they_are_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.with_name("headrace").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.executable", str(python))
    monkeypatch.setenv("PATH", "/nowhere")
    assert command.__wrapped__() == ".venv/bin/headrace"
    python.with_name("headrace").chmod(0o755)
    monkeypatch.setenv("PATH", str(python.parent))
    assert command.__wrapped__() == "headrace"


def test_a_query_that_failed_before_its_first_batch_is_counted(tmp_path: Path) -> None:
    status = Status()
    SparkProcess({}, tmp_path, status, {})._heard({"restarted": "sales", "error": "no worker"})
    assert status.restarts == 1 and "no worker" in status.notes[-1][1]


@pytest.mark.parametrize("name, words", [("none/out.html", "there is no folder"), ("", "that is a folder")])
def test_a_report_that_cannot_be_written_is_refused_before_the_run(tmp_path: Path, name: str, words: str) -> None:
    with pytest.raises(ClientError, match=words):
        refuse_unwritable(tmp_path / name)
