"""Two looks at a cluster, compared, and the screen that shows it at any size."""

import io

import pytest
from rich.console import Console

from headrace.cli.tools.top_view import Screen, spark
from headrace.tools.live.rates import View, view_of
from headrace.tools.live.sample import BrokerSample, GroupSample, PartitionSample, Sample


def sample(at: float, end: int, committed: int, *, brokers: int = 3, topics: int = 2, groups: int = 1) -> Sample:
    partitions = {
        (f"topic-{number}", index): PartitionSample(index % brokers + 1, (1, 2, 3), (1, 2, 3), end, end * 100)
        for number in range(topics)
        for index in range(2)
    }
    return Sample(
        at,
        "cluster",
        1,
        {
            node: BrokerSample(node, f"127.0.0.1:{9090 + node}", None, True, 1.0, 5_000)
            for node in range(1, brokers + 1)
        },
        partitions,
        {
            f"group-{number}": GroupSample(
                f"group-{number}",
                "Stable",
                {("topic-0", 0): committed},
                end - committed,
                1.5 if end > committed else 0.0,
            )
            for number in range(groups)
        },
    )


def test_rates_are_what_happened_in_between() -> None:
    view = view_of(sample(12.0, 300, 90), sample(10.0, 100, 50))
    assert view.in_per_s == 4 * 200 / 2 and view.out_per_s == 40 / 2 and view.bytes_per_s == 4 * 20_000 / 2
    assert [(row.node_id, row.leads, row.in_per_s) for row in view.brokers] == [(1, 2, 200), (2, 2, 200), (3, 0, 0)]
    assert [row.out_per_s for row in view.topics if row.topic == "topic-0"] == [20.0]
    assert view.slow == [] and view.under_replicated == view.offline == 0


def test_at_first_there_is_nothing_to_compare_with() -> None:
    view = view_of(sample(12.0, 300, 90), None)
    assert view.in_per_s is view.out_per_s is view.brokers[0].in_per_s is None


def test_who_is_slow_is_said() -> None:
    now, before = sample(12.0, 300, 90, groups=2), sample(10.0, 100, 50, groups=2)
    now.brokers[1].is_up = False
    now.brokers[2].answer_ms = None
    now.brokers[3].answer_ms = 900.0
    now.brokers[4] = BrokerSample(4, "x", None, True, 1.0)
    now.brokers[5] = BrokerSample(5, "y", None, True, 1.0)
    now.partitions["topic-0", 0].isr = (1, 2)
    now.partitions["topic-0", 1].leader = -1
    now.groups["group-0"].seconds = 25.0
    view = view_of(now, before)
    assert view.slow == [
        "broker 1: is down",
        "broker 2: does not answer",
        "broker 3: answers after 900 ms",
        "group group-0: 210 behind, 25 s and falling back",
    ]
    assert (view.under_replicated, view.offline) == (1, 1)
    assert view.topics[0].topic == "topic-0", "what is worst comes first"
    assert view.groups[0].group == "group-0"


def drawn(screen: Screen, view: View, width: int, height: int) -> list[str]:
    out = Console(file=io.StringIO(), width=width, height=height, color_system=None)
    with out.capture() as captured:
        out.print(screen.draw(view, width, height))
    return captured.get().splitlines()


@pytest.mark.parametrize(("width", "height"), [(80, 24), (132, 50), (200, 80)])
def test_the_screen_is_never_larger_than_the_terminal(width: int, height: int) -> None:
    view = view_of(
        sample(12.0, 10**9, 0, brokers=9, topics=300, groups=100), sample(10.0, 0, 0, brokers=9, topics=300, groups=100)
    )
    screen = Screen()
    for key in ("0", "1", "2", "3", *"jjj", "s", "p"):
        screen.press(key)
        lines = drawn(screen, view, width, height)
        assert len(lines) <= height and max(map(len, lines)) <= width
        assert lines[-1].startswith("q quit") and lines[0].startswith("headrace top")
    screen.press("2")
    lines = drawn(screen, view, width, height)
    assert f"topics (1-{height - 7} of 300)" in lines[4]
    screen.press("j")
    assert "topics (2-" in drawn(screen, view, width, height)[4]


def test_each_table_has_rows_on_a_small_terminal() -> None:
    view = view_of(sample(12.0, 300, 90, topics=300, groups=100), sample(10.0, 100, 50, topics=300, groups=100))
    text = "\n".join(drawn(Screen(), view, 80, 24))
    assert "127.0.0.1:9091" in text and "topic-0" in text and "group-0" in text and "800 rec/s" not in text


def test_a_small_terminal_cuts_the_name_of_the_cluster_and_no_number() -> None:
    view = view_of(sample(12.0, 300, 90, topics=300, groups=100), sample(10.0, 100, 50, topics=300, groups=100))
    view.cluster_id = "yHJKAf4OSECkqPm2tdDH3g"
    screen = Screen()
    screen.press("p")
    first = drawn(screen, view, 80, 24)[0]
    assert "paused" in first and " 300 topics  " in first and f" {view.partitions} partitions  " in first


def test_a_line_of_blocks() -> None:
    assert (
        spark([0, 5, 10], 10) == "▁▅█"
        and spark([0, 0], 10) == "▁▁"
        and spark([1, 2, 3], 2) == "▆█"
        and spark([], 5) == ""
    )
