"""`headrace tour`, run whole, with its pictures."""

import json
from pathlib import Path
from xml.etree import ElementTree

from headrace.cli.tour.command import PAGES
from tests.cluster.command_line import headrace
from tests.documents import ROOT

KEPT = ROOT / "docs/img/tour"


def test_the_tour_runs_whole_and_every_page_shows_what_it_says(tmp_path: Path) -> None:
    pages = json.loads(headrace("tour", "--svg", str(tmp_path / "pictures"), "--json"))
    assert list(pages) == list(PAGES)
    assert "15 replicas = 5 partitions x 3" in pages["partitions"]
    assert pages["segments"].count("00000000000000000010.timeindex") == 3, "the active segments' indexes are to be seen"
    assert "replica.placement=shifted" in pages["placement"]
    assert "4,2,3     2,3" in pages["in-sync"], "in sync without the broker that was killed"
    answers = [line.rpartition(": ")[2] for line in pages["in-sync"].splitlines() if "acks=all:" in line]
    assert answers == ["written", "written", "refused", "written", "written"]
    assert "COMMITTED" in pages["commits"]
    assert "group A: C1 reads p0, p1" in pages["groups"] and "group B: C4 reads p3" in pages["groups"]
    assert "read_committed     was given the offsets 0, 1, 6, 7" in pages["exactly-once"]
    assert "leads epoch" in pages["metadata"]
    _check_pictures(tmp_path / "pictures")


def _check_pictures(folder: Path) -> None:
    drawn = {path.name for path in folder.glob("*.svg")}
    assert drawn == {path.name for path in KEPT.glob("*.svg")}, "the guide's pictures are those that a tour draws"
    for path in folder.glob("*.svg"):
        assert ElementTree.parse(path).getroot().tag.endswith("svg")


def test_a_page_that_is_not_there_is_refused_before_anything_starts() -> None:
    assert "there is no page 'sgements'; there are partitions, segments" in headrace("tour", "sgements", code=1)
