"""Times in buckets: close to what sorting all of them says."""

import itertools

from hypothesis import given, strategies as st

from headrace.tools.loadtest.histogram import Histogram


@given(
    st.lists(st.integers(0, 10**11), min_size=1, max_size=300), st.sampled_from([1.0, 50.0, 90.0, 99.0, 99.9, 100.0])
)
def test_percentiles_are_within_one_per_cent(values: list[int], percent: float) -> None:
    histogram = Histogram()
    for value in values:
        histogram.add(value)
    exact = sorted(values)[max(1, -(-len(values) * percent // 100).__int__()) - 1]
    assert exact <= histogram.percentile(percent) <= exact * 1.01 + 1
    assert histogram.percentile(100.0) == histogram.maximum == max(values)
    assert histogram.minimum == min(values) and histogram.total == sum(values)


@given(st.lists(st.integers(0, 10**10), min_size=1, max_size=200), st.integers(1, 30))
def test_rows_count_everything_once(values: list[int], lines: int) -> None:
    histogram = Histogram()
    for value in values:
        histogram.add(value)
    rows = list(histogram.rows(lines))
    assert sum(count for _, _, count in rows) == len(values) and len(rows) <= lines + 1
    assert all(high == low for (_, high, _), (low, _, _) in itertools.pairwise(rows))


def test_clocks_that_differ_do_not_count_below_zero() -> None:
    histogram = Histogram()
    histogram.add(-5)
    assert histogram.maximum == histogram.percentile(50) == 0
