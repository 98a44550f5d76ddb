"""`headrace tour`, run whole, with its pictures."""

import json
import re
from pathlib import Path
from xml.etree import ElementTree

from headrace.cli.tour.command import PAGES
from tests.cluster.command_line import headrace
from tests.documents import ROOT

KEPT = ROOT / "docs/img/tour"
LIMIT_S = 240
"""It takes some 50 s, 12 of which followers are frozen."""


def test_the_tour_runs_whole_and_every_page_shows_what_it_says(tmp_path: Path) -> None:
    pages = json.loads(headrace("tour", "--svg", str(tmp_path / "pictures"), "--json", limit_s=LIMIT_S))
    assert list(pages) == list(PAGES)
    assert "15 replicas = 5 partitions x 3" in pages["partitions"]
    assert pages["segments"].count("00000000000000000010.timeindex") == 3, "the active segments' indexes are to be seen"
    assert "replica.placement=shifted" in pages["placement"]
    assert "4,2,3     2,3" in pages["in-sync"], "in sync without the broker that was killed"
    answers = [line.rpartition(": ")[2] for line in pages["in-sync"].splitlines() if "acks=all:" in line]
    assert answers == ["written", "written", "refused", "written", "written"]
    _check_copies(pages["committed"])
    assert pages["records"].count("produced 1 record to cities (1 in partition 2)") == 1, "Oslo's third record"
    assert "to the partitions 0, 1, 2, 3, 0, 1, 2, 3." in pages["records"]
    assert "seek(0) gives offset 0" in pages["commits"] and "cleanup.policy=compact" in pages["commits"]
    assert "offset 20: record 21" in pages["commits"], "the quiz: what was not committed is read again"
    doubled = [
        (words, int(times)) for words, times in re.findall(r"(.*)  acknowledged +there (\d) times", pages["again"])
    ]
    assert [words.strip() for words, _ in doubled] == ["sent again: idempotence=False"] and doubled[0][1] > 1
    assert len(re.findall(r"failed +not there", pages["again"])) == 1
    assert len(re.findall(r"the default.*acknowledged +there once", pages["again"])) == 2
    leads_and_holds = re.findall(r"^ +5  \S+ +a +up +(\d+) +(\d+) ", pages["balance"], re.M)
    assert [held > "0" for _, held in leads_and_holds] == [False, True, False], "added, given its share, drained"
    assert "group A: C1 reads p0, p1" in pages["groups"] and "group B: C4 reads p3" in pages["groups"]
    assert "read_committed     was given the offsets 0, 1, 6, 7" in pages["exactly-once"]
    assert "leads epoch" in pages["metadata"]
    _check_pictures(tmp_path / "pictures")


def _check_copies(page: str) -> None:
    """Ten seconds behind: what waited is committed by the leader alone, or refused."""
    found = re.findall(r"; (\d) committed; in sync ([\d,]+)\n  acks=all: (.*)", page)
    assert [(int(committed), len(in_sync.split(","))) for committed, in_sync, _ in found] == [
        (3, 3), (3, 3), (5, 1), (3, 1), (5, 3),
    ]  # fmt: skip
    assert [answer for _, _, answer in found] == [
        "acknowledged", "waits", "acknowledged by the leader alone", "refused, NOT_ENOUGH_REPLICAS", "acknowledged",
    ]  # fmt: skip


def _check_pictures(folder: Path) -> None:
    drawn = {path.name for path in folder.glob("*.svg")}
    assert drawn == {path.name for path in KEPT.glob("*.svg")}, "the guide's pictures are those that a tour draws"
    for path in folder.glob("*.svg"):
        assert ElementTree.parse(path).getroot().tag.endswith("svg")


def test_a_page_that_is_not_there_is_refused_before_anything_starts() -> None:
    assert "there is no page 'sgements'; there are partitions, segments" in headrace("tour", "sgements", code=1)
