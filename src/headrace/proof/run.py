"""A whole proof: one trial for each durability, one after the other, in a temporary folder."""

import asyncio
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from headrace.proof.cases import Case, Progress, Result
from headrace.proof.trial import Trial

STAGES = 3


def prove(cases: Sequence[Case], tell: Callable[[Progress], None]) -> list[Result]:
    """Raises TrialFailed, ClientError, or RuntimeError with what a broker said."""
    found: list[Result] = []
    for durability in dict.fromkeys(case.durability for case in cases):
        chosen = [case for case in cases if case.durability == durability]
        before = STAGES * len(found)

        def told(doing: str, done: int, durability: str = durability, before: int = before) -> None:
            tell(Progress(f"durability={durability}, {doing}", before + done, STAGES * len(cases)))

        with tempfile.TemporaryDirectory(prefix="headrace-proof-") as folder:
            found += asyncio.run(Trial(Path(folder), durability, chosen, told).run())
    return found
