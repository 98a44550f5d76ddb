"""The ledger of a proof: what counts as written, lost and doubled."""

from headrace.proof.cases import Case, Choice, Result, Stage
from headrace.proof.ledger import Ledger, Verdict
from headrace.proof.picture import proof_picture, tone_of
from headrace.proof.table import rows, verdict_text


def sent(ledger: Ledger, count: int, *, acknowledged: int) -> list[bytes]:
    values = []
    for index in range(count):
        number, value = ledger.next_value()
        values.append(value)
        if index < acknowledged:
            ledger.acknowledge(number)
    return values


def stage(**changes: object) -> Stage:
    fields = {
        "written": True, "offline": False, "acknowledged": 10, "lost": 0, "twice": 0, "latency_ms": 0.5,
        "slowest_ms": 1.0, "records_per_s": 50_000.0,
    }  # fmt: skip
    return Stage(**{**fields, **changes})  # type: ignore[arg-type]


def test_a_record_that_was_acknowledged_and_cannot_be_read_is_lost() -> None:
    ledger = Ledger()
    values = sent(ledger, 5, acknowledged=4)
    assert ledger.judge(values) == Verdict(acknowledged=4, lost=0, twice=0, written=True)
    assert ledger.judge(values[1:]).lost == 1
    assert ledger.judge(values[:4]).lost == 0, "the fifth was never acknowledged"
    assert ledger.judge([*values, values[2]]).twice == 1


def test_written_means_acknowledged_in_this_stage_and_read_again() -> None:
    ledger = Ledger()
    before = sent(ledger, 3, acknowledged=3)
    ledger.begin_stage()
    assert not ledger.judge(before).written
    refused = sent(ledger, 2, acknowledged=0)
    assert not ledger.judge(before + refused).written, "there, but nobody was told so"
    gone = sent(ledger, 1, acknowledged=1)
    assert not ledger.judge(before + refused).written
    assert ledger.judge(before + refused + gone).written


def test_all_cases_and_some() -> None:
    assert len(Choice().cases()) == len({case.topic + case.durability for case in Choice().cases()}) == 54
    assert len(Choice(quick=True).cases()) == 8
    assert Choice(replicas=[2], min_in_sync=[3], acks=["0"], durabilities=["fsync"]).cases() == [
        Case("fsync", 2, 3, "0")
    ]


def test_verdicts_and_their_tones() -> None:
    assert verdict_text(stage()) == "written, none lost" and tone_of(stage()) == "good"
    refused = stage(written=False)
    assert verdict_text(refused) == "refused, none lost" and tone_of(refused) == "wait"
    gone = stage(written=False, offline=True, lost=10)
    assert verdict_text(gone) == "offline, all lost" and tone_of(gone) == "bad"
    assert verdict_text(stage(lost=3)) == "written, 3 lost"


def test_every_case_has_a_line_and_a_field() -> None:
    results = [Result(*case, [stage(), stage(), stage(written=False)]) for case in Choice().cases()]
    assert len(rows(results)) == 54 and rows(results)[0][:6] == ("1", "1", "0", "fsync", "0.50 ms", "50k")
    assert proof_picture(results, "").svg().count("2 lost: refused") == 54
