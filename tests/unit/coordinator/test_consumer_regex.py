"""Topic patterns against RE2/J, which Kafka uses (golden/generate/Patterns.java), and against hostile ones."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from headrace.coordinator.consumer_regex import ALPHABET, PROGRAM_MAX, TopicPattern
from headrace.errors import Err, KafkaError

GOLDEN: dict[str, Any] = json.loads(
    Path(__file__).with_name("golden").joinpath("patterns-re2j-1.8.json").read_text("utf-8")
)


def test_accepts_and_matches_what_re2j_does() -> None:
    names = GOLDEN["names"]
    wrong = []
    for pattern, expected in GOLDEN["patterns"]:
        try:
            compiled = TopicPattern(pattern)
        except KafkaError as refused:
            assert refused.error is Err.INVALID_REGULAR_EXPRESSION
            got = None
        else:
            got = [n for n, name in enumerate(names) if compiled.matches(name)]
        if got != expected:
            wrong.append((pattern, expected, got))
    assert not wrong
    assert sum(e is None for _, e in GOLDEN["patterns"]) > 150
    assert sum(bool(e) for _, e in GOLDEN["patterns"]) > 150


names = st.text(ALPHABET, max_size=12)
pieces = st.recursive(
    st.sampled_from(["a", "b", "[a-c]", "[^a]", ".", r"\d", r"\w", "-", "_"]),
    lambda inner: st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map("(?:{0[0]}|{0[1]})".format),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{1,3}"])).map("(?:{0[0]}){0[1]}".format),
    ),
    max_leaves=6,
)


@settings(max_examples=300, deadline=None)
@given(pieces, st.lists(names, min_size=5, max_size=5))
def test_agrees_with_python_where_both_have_the_syntax(pattern: str, candidates: list[str]) -> None:
    ours, theirs = TopicPattern(pattern), re.compile(pattern, re.ASCII)
    for name in candidates:
        assert ours.matches(name) == bool(theirs.fullmatch(name))


@settings(max_examples=300, deadline=None)
@given(st.text("()[]{}*+?|^$\\.-:<>Pi=ab1,QExpL", max_size=30))
def test_any_text_is_a_pattern_or_a_named_error(pattern: str) -> None:
    try:
        TopicPattern(pattern).matches("ab-1")
    except KafkaError as refused:
        assert refused.error is Err.INVALID_REGULAR_EXPRESSION


@pytest.mark.parametrize(
    "pattern",
    ["(a+)+b", "(a|a)*b", "(a*)*b", "(.*){20}b", "(a?){200}a{200}b", "(a|b)*a(a|b){12}", "(?:a{0,40}){20}b"],
)
def test_no_pattern_is_slow(pattern: str) -> None:
    compiled = TopicPattern(pattern)
    name = "a" * 249
    compiled.matches(name)
    assert compiled.work <= 250 * PROGRAM_MAX


@pytest.mark.parametrize("pattern", ["(" * 5000 + ")" * 5000, "(a{1000}){1000}", "((a{100}){100}){100}", "a" * 30000])
def test_what_would_cost_too_much_is_refused(pattern: str) -> None:
    with pytest.raises(KafkaError) as refused:
        TopicPattern(pattern)
    assert refused.value.error is Err.INVALID_REGULAR_EXPRESSION
    assert len(refused.value.message or "") < 400


def test_remembered_states_are_bounded() -> None:
    compiled = TopicPattern("(a|b)*a(a|b){14}")
    for number in range(3000):
        name = f"{number:020b}".replace("0", "a").replace("1", "b")
        assert compiled.matches(name) == (name[-15] == "a")
    assert len(compiled._states) <= 1000
