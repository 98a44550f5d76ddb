"""Offsets of one cluster as offsets of another: never behind a record that was not read."""

from hypothesis import given, strategies as st

from headrace.tools.mirror.offsets import RUNS_MAX, Run, Translation, runs_of


@given(
    st.lists(st.tuples(st.integers(1, 4), st.integers(1, 4)), min_size=1, max_size=60),
    st.integers(0, 300),
    st.integers(0, 5),
)
def test_a_reader_goes_on_with_its_next_record(gaps: list[tuple[int, int]], committed: int, cuts: int) -> None:
    """Records with gaps on both sides, written down in several pieces, against a search through all of them."""
    pairs: list[tuple[int, int]] = []
    source = target = 0
    for source_gap, target_gap in gaps:
        source, target = source + source_gap, target + target_gap
        pairs.append((source, target))
    translation = Translation()
    step = max(1, len(pairs) // (cuts + 1))
    for start in range(0, len(pairs), step):
        for run in runs_of(pairs[start : start + step]):
            translation.add(run)
            translation.add(run)  # read again after a restart
    found = translation.target_of(committed, target_start=0)
    unread = [there for here, there in pairs if here >= committed]
    read = [there for here, there in pairs if here < committed]
    assert all(there >= found for there in unread), "nothing is left out"
    assert all(there < found for there in read), "nothing comes twice"


def test_memory_is_bounded_and_what_is_forgotten_begins_at_the_start() -> None:
    translation = Translation()
    for number in range(RUNS_MAX + 10):
        translation.add(Run(number * 2, number * 3, 1))
    assert len(translation) <= RUNS_MAX
    assert translation.target_of(0, target_start=7) == 7
    assert translation.target_of(2 * RUNS_MAX, 0) == 3 * RUNS_MAX
