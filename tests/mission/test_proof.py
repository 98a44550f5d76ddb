"""`headrace proof`: replicas and in-sync replicas as fine tuning between consistency and availability."""

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from tests.cluster.command_line import headrace


def test_the_number_of_replicas_and_in_sync_replicas_tunes_consistency_against_availability(tmp_path: Path) -> None:
    picture = tmp_path / "proof.svg"
    chosen = ("--replicas", "3", "--min-in-sync", "1", "--min-in-sync", "2", "--acks", "1", "--acks", "all")
    text = headrace("proof", *chosen, "--durability", "replicated", "--svg", str(picture), "--json")
    rows, _ = json.JSONDecoder().raw_decode(text)  # behind it is the progress
    found = {(row["min_in_sync"], row["acks"]): row["stages"] for row in rows}
    assert len(found) == 4
    for stages in found.values():
        calm, one, _ = stages
        assert calm["written"] and calm["lost"] == 0 and calm["acknowledged"] > 100
        assert calm["latency_ms"] > 0 and calm["records_per_s"] > 0
        assert one["written"], "one of three replicas may be lost with writes going on"
    for least in (1, 2):
        assert found[least, "1"][1]["lost"] > 0, "acks=1: the leader was lost before its followers had the latest"
        assert found[least, "all"][1]["lost"] == 0
    alone, safe = found[1, "all"][2], found[2, "all"][2]
    assert alone["offline"] and alone["lost"] > 0, "a minimum of one: the leader committed alone and was lost"
    assert not safe["written"] and not safe["offline"] and safe["lost"] == 0, "a minimum of two refuses, and loses none"
    assert _words(picture)["2 lost: refused, none lost"] == 1


def _words(picture: Path) -> dict[str, int]:
    words: dict[str, Any] = {}
    for element in ElementTree.parse(picture).iter("{http://www.w3.org/2000/svg}text"):
        words[element.text or ""] = words.get(element.text or "", 0) + 1
    return words


def test_a_proof_of_what_is_not_there_is_refused_before_anything_starts() -> None:
    assert "--acks 2: there are 0, 1, all" in headrace("proof", "--acks", "2", code=1)
    assert "no case is left" in headrace("proof", "--quick", "--acks", "0", code=1)
