"""Every case of `cases/` is put to a Headrace broker, and its answers must be those that Apache Kafka 4.3.1 gave. With
Apache Kafka at hand the same cases are put to it again, so that the answers kept here stay what it says."""

import difflib
import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.compat.answers import APACHE_SETTLE_S, OWN, STRICT, ask_all, read, unfold
from tests.compat.cases import Case, load
from tests.compat.decided import DECIDED
from tests.compat.process import HeadraceProcess
from tests.reference.apache import ApacheKafka

CASES = load()


@pytest.fixture(scope="module")
def strict_headrace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HeadraceProcess]:
    with HeadraceProcess(tmp_path_factory.mktemp("headrace") / "strict", config=STRICT) as broker:
        yield broker


@pytest.mark.parametrize("case", [pytest.param(case, id=name) for name, case in CASES.items()])
def test_headrace_answers_as_kafka_does(case: Case, strict_headrace: HeadraceProcess) -> None:
    given = ask_all(case, strict_headrace.port)
    different = differences(case, given, read(case.api)[case.name])
    if reason := DECIDED.get(case.id):
        assert different, f"answers alike now, so this is no longer true: {reason}"
        different = differences(case, given, read(OWN)[case.id])
    assert not different, different


@pytest.mark.reference
@pytest.mark.parametrize("case", [pytest.param(case, id=name) for name, case in CASES.items()])
def test_kafka_still_answers_as_recorded(case: Case, apache: ApacheKafka) -> None:
    # Its broker follows its controller without a sign that could be waited for; a busy machine takes longer.
    for settle_s in (APACHE_SETTLE_S, 8 * APACHE_SETTLE_S, 64 * APACHE_SETTLE_S):
        different = differences(case, ask_all(case, apache.port, settle_s), read(case.api)[case.name])
        if not different:
            return
    pytest.fail(f"{different}\npython -m tests.compat.answers {case.id} records it anew")


def test_nothing_is_kept_that_is_no_longer_asked() -> None:
    kept = {f"{api}.{name}" for api in {case.api for case in CASES.values()} for name in read(api)}
    assert kept == set(CASES)
    assert set(read(OWN)) == set(DECIDED)


def differences(case: Case, given: dict[str, list[Any]], kept: dict[str, list[Any]]) -> str:
    """The first few versions that were answered otherwise than recorded, as diffs."""
    recorded = unfold(kept, case.versions)
    shown = []
    for version, answers in unfold(given, case.versions).items():
        if not alike(recorded.get(version), answers):
            lines = difflib.unified_diff(
                pretty(recorded.get(version)), pretty(answers), "recorded", "given", n=4, lineterm=""
            )
            shown.append(f"{case.id} v{version}\n" + "\n".join(lines))
    return "\n".join(shown[:2]) + (f"\nand {len(shown) - 2} more versions" if len(shown) > 2 else "")


def alike(recorded: Any, given: Any) -> bool:
    """Equal, but that where Kafka ran into an exception it did not foresee, any error is as good."""
    if isinstance(recorded, dict) and isinstance(given, dict):
        if recorded.get("error_code") == "UNKNOWN_SERVER_ERROR":
            return given.get("error_code") != "NONE"
        return recorded.keys() == given.keys() and all(alike(value, given[key]) for key, value in recorded.items())
    if isinstance(recorded, list) and isinstance(given, list):
        return len(recorded) == len(given) and all(map(alike, recorded, given))
    return bool(recorded == given)


def pretty(answers: list[Any] | None) -> list[str]:
    return [line for answer in answers or [] for line in json.dumps(answer, indent=1, ensure_ascii=False).splitlines()]
