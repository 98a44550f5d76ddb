"""The screen, the lines and the report: drawn from a status, at any size, with nothing lost or injected."""

import io
import re
from html.parser import HTMLParser

import pytest
from rich.console import Console

from headrace.cli.demo import refuse_unwritable
from headrace.client.errors import ClientError
from headrace.demo.charts import line_chart, nice_top, stacked_bars
from headrace.demo.check import Check
from headrace.demo.dashboard import BLOCKS, command, draw, line, sparkline
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
    found.groups = [GroupState("order-queue", "queue", 12_000, 999, 4_321, [(1, 5), (2, 9)], [("w1", [0, 1], 7), ("w2", [], 0)])]
    found.queries = {"sales": QueryState("sales", "Parquet", 3, 9_876, 2_000, 1_500, "16 s behind", durations=[(1, 1.5)])}
    found.windows = {1_800_000_000_000: {"books": (10, 2, 12_300)}, 1_800_000_005_000: {"toys": (4, 1, 1_000)}}
    found.note("kill -9 of broker 2 <script>alert(1)</script>")
    return found


def shown(status: Status, width: int, height: int) -> str:
    console = Console(width=width, height=height, color_system=None, file=io.StringIO())
    console.print(draw(status, width, height), height=height)
    return console.file.getvalue()


@pytest.mark.parametrize("size", [(120, 40), (110, 30), (90, 50)])
def test_numbers_are_whole_at_usual_sizes(status, size):
    text = shown(status, *size)
    for part in ("1,024 events/s", "12,345", "4,321", "9,876", "1.5 s", "0,1", ":1235 killed", "16 s behind", "123"):
        assert part in text


def test_every_broker_is_shown_on_a_narrow_terminal(status):
    status.nodes = [NodeState(n, f"127.0.0.1:{27_118 + n}", n != 2, "" if n != 2 else "killed") for n in (1, 2, 3)]
    assert "● :27119  ○ :27120 killed  ● :27121" in shown(status, 80, 24)


@pytest.mark.parametrize("size", [(80, 24), (40, 10), (20, 5), (300, 100)])
def test_any_size_can_be_drawn(status, size):
    assert "Headrace" in shown(status, *size)
    assert "Headrace" in shown(Status(), *size)


def test_a_line_says_how_far_things_are(status):
    text = line(status)
    for part in ("12,345 events", "order-queue 12,000 (lag 4,321)", "sales batch 3", "2 windows"):
        assert part in text


def test_sparklines_scale_to_their_highest_value():
    assert sparkline([0, 1, 2, 4]) == BLOCKS[0] + BLOCKS[2] + BLOCKS[4] + BLOCKS[7]
    assert sparkline([]) == "" and sparkline([0, 0]) == BLOCKS[0] * 2
    assert len(sparkline(range(1000), 12)) == 12


def test_slopes():
    assert per_second([(0, 0), (1, 10), (2, 30)]) == 15 and per_second([(1, 5)]) == 0 and per_second([]) == 0
    assert per_second([(0, 0), (10, 100), (11, 200)], window_s=1) == 100


class Reader(HTMLParser):
    """What a browser would load, and whether every tag is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loaded: list[str] = []
        self.texts: list[str] = []

    def handle_starttag(self, tag, attrs):
        if tag not in ("meta", "line", "rect", "i"):
            self.open.append(tag)
        self.loaded += [value for name, value in attrs if name in ("src", "href")]

    def handle_startendtag(self, tag, attrs):
        self.loaded += [value for name, value in attrs if name in ("src", "href")]

    def handle_endtag(self, tag):
        if tag not in ("line", "rect", "i"):
            assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)


@pytest.mark.parametrize("kept", [True, False])
def test_a_report_is_one_file_with_the_verdict_and_the_pictures(status, kept):
    text = report(status, [Check("group <b>", kept, "all & everything")], [("seed", "42")])
    reader = Reader()
    reader.feed(text)
    assert reader.open == [] and reader.loaded == [] and "http" not in text
    seen = " ".join(reader.texts)
    assert ("Every event is accounted for." in seen) == kept and "group <b>" in seen and "all & everything" in seen
    assert text.count("<svg") == 4 and "<script>" not in text
    assert "kill -9 of broker 2" in seen


def test_a_report_without_spark_or_measurements_is_whole():
    reader = Reader()
    reader.feed(report(Status(), [Check("group", True, "")], []))
    assert reader.open == [] and "nothing was measured" in " ".join(reader.texts)


def test_lines_stay_inside_their_frame():
    chart = line_chart({"a": [(0, 0), (30, 7), (60, 3)]}, unit="x", marks=[(30, "kill -9"), (99, "later")])
    (path,) = re.findall(r'points="([^"]+)"', chart)
    points = [tuple(map(float, pair.split(","))) for pair in path.split()]
    assert all(64 <= x <= 838 and 14 <= y <= 210 for x, y in points)
    assert chart.count('class="m"') == 2 and "later" not in chart  # the line, and its name below


def test_bars_stack_up_to_their_sum():
    chart = stacked_bars([("10:00", {"a": 3.0, "b": 1.0})], ("a", "b"), unit="€")
    heights = [float(value) for value in re.findall(r'height="([\d.]+)" fill', chart)]
    assert heights[0] == pytest.approx(3 * heights[1], rel=0.01)


@pytest.mark.parametrize("value,top", [(0, 1), (0.3, 0.5), (1, 1), (7, 10), (10, 10), (11, 20), (420, 500), (999, 1000)])
def test_axes_end_at_round_numbers(value, top):
    assert nice_top(value) == pytest.approx(top)


@pytest.mark.parametrize("right, times", [(345, "0 60 120 180 240 300"), (31, "0 5 10 15 20 25 30"), (3, "0 1 2 3"), (90_000, "0 14,400 28,800 43,200 57,600 72,000 86,400")])
def test_times_under_a_chart_are_round(right, times):
    drawn = line_chart({"a": [(0, 1), (right, 2)]}, unit="x")
    assert re.findall(r">([\d,]+) s<", drawn) == times.split()


def test_a_moment_in_a_chart_is_explained_under_it():
    assert "kill -9 of broker 2</span>" in line_chart({"a": [(0, 1), (9, 2)]}, unit="x", marks=[(3, "kill -9 of broker 2")])


def test_lines_are_not_repeated_while_nothing_moves(status):
    console = Console(width=200, color_system=None, file=io.StringIO())
    lines = Lines(console, status)
    for now_s, sent in ((0, 1), (1, 2), (LINE_S, 3), (2 * LINE_S, 3), (3 * LINE_S, 4), (4 * LINE_S, 4), (3 * LINE_S + STILL_LINE_S, 4)):
        status.sent = sent
        lines.progress(now_s)
    assert re.findall(r"([\d,]+) events,", console.file.getvalue()) == ["1", "3", "4", "4"]


def test_commands_to_try_can_be_typed_as_they_are_shown(tmp_path, monkeypatch):
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


def test_a_query_that_failed_before_its_first_batch_is_counted(tmp_path):
    status = Status()
    SparkProcess({}, tmp_path, status, {})._heard({"restarted": "sales", "error": "no worker"})
    assert status.restarts == 1 and "no worker" in status.notes[-1][1]


@pytest.mark.parametrize("name, words", [("none/out.html", "there is no folder"), ("", "that is a folder")])
def test_a_report_that_cannot_be_written_is_refused_before_the_run(tmp_path, name, words):
    with pytest.raises(ClientError, match=words):
        refuse_unwritable(tmp_path / name)
