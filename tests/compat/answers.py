"""Answers kept: what Apache Kafka 4.3.1 said to every case, one JSON file per API under `answers/`, versions that
answer alike folded together. `python -m tests.compat.answers` asks a live Apache Kafka again and rewrites them; with
`--own` it asks Headrace the cases that it answers otherwise on purpose, whose answers lie in `Headrace.json`."""

import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.compat.cases import Case, hold, load
from tests.compat.process import HeadraceProcess
from tests.reference.apache import apache_kafka

FOLDER = Path(__file__).with_name("answers")
OWN = "Headrace"
STRICT = {
    "node.id": 1, "record.validation": "records", "durability": "replicated", "group.initial.rebalance.delay.ms": 0,
}  # fmt: skip
"""What Kafka does always: read every record of a batch, and count it as stored once it is written."""
APACHE_SETTLE_S = 0.12  # its broker follows its controller within milliseconds; this is ample


def ask_all(case: Case, port: int, settle_s: float = 0.0) -> dict[str, list[Any]]:
    """Every version's answers, folded."""
    return fold({version: hold(case, version, port, settle_s) for version in case.versions})


def fold(by_version: dict[int, list[Any]]) -> dict[str, list[Any]]:
    """{3: a, 4: a, 5: b} as {"3-4": a, "5": b}; `a` repeated later is written again, for ease of reading."""
    runs: list[tuple[list[int], list[Any]]] = []
    for version, answers in sorted(by_version.items()):
        if runs and runs[-1][1] == answers:
            runs[-1][0].append(version)
        else:
            runs.append(([version], answers))
    return {span(versions): answers for versions, answers in runs}


def span(versions: Sequence[int]) -> str:
    return str(versions[0]) if len(versions) == 1 else f"{versions[0]}-{versions[-1]}"


def unfold(folded: dict[str, list[Any]], versions: Sequence[int]) -> dict[int, list[Any]]:
    out: dict[int, list[Any]] = {}
    for text, answers in folded.items():
        low, _, high = text.partition("-")
        out |= {v: answers for v in versions if int(low) <= v <= int(high or low)}
    return out


def read(api: str) -> dict[str, dict[str, list[Any]]]:
    file = FOLDER / f"{api}.json"
    return json.loads(file.read_text()) if file.exists() else {}


def write(api: str, cases: dict[str, dict[str, list[Any]]]) -> None:
    """One answer per line: short enough to review in a diff, and to find by eye."""
    FOLDER.mkdir(exist_ok=True)
    lines = ["{"]
    for name, folded in sorted(cases.items()):
        lines.append(f" {json.dumps(name)}: {{")
        for text, answers in folded.items():
            rows = ",\n".join("   " + json.dumps(answer, ensure_ascii=False) for answer in answers)
            lines.append(f'  "{text}": [\n{rows}\n  ],')
        lines[-1] = lines[-1].removesuffix(",")
        lines.append(" },")
    lines[-1] = lines[-1].removesuffix(",")
    (FOLDER / f"{api}.json").write_text("\n".join([*lines, "}"]) + "\n")


def record(wanted: Sequence[str]) -> None:
    with apache_kafka() as broker:
        for case in load().values():
            if wanted and not any(word in case.id for word in wanted):
                continue
            kept = read(case.api)
            try:
                kept[case.name] = ask_all(case, broker.port, APACHE_SETTLE_S)
            except AssertionError as error:
                print(f"{case.id} NOT RECORDED: {error}")
                continue
            write(case.api, kept)
            print(case.id)


def record_own(wanted: Sequence[str]) -> None:
    kept = {name: folded for name, folded in read(OWN).items() if name in wanted}
    with tempfile.TemporaryDirectory() as folder, HeadraceProcess(Path(folder, "data"), config=STRICT) as broker:
        for name in wanted:
            kept[name] = ask_all(load()[name], broker.port)
            print(name)
    write(OWN, kept)


if __name__ == "__main__":
    if "--own" in sys.argv:
        from tests.compat.decided import DECIDED

        record_own(list(DECIDED))
    else:
        record(sys.argv[1:])
