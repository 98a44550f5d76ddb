"""`headrace tour`, run whole."""

import json

from headrace.cli.tour import PAGES
from tests.cluster.command_line import headrace


def test_the_tour_runs_whole_and_every_page_shows_what_it_says() -> None:
    pages = json.loads(headrace("tour", "--json"))
    assert list(pages) == list(PAGES)
    assert "15 replicas = 5 partitions x 3" in pages["partitions"]
    assert "00000000000000000000.timeindex" in pages["segments"] and "active" in pages["segments"]
    assert "replica.placement=shifted" in pages["placement"]
    assert "4,2,3     2,3" in pages["in-sync"], "in sync without the broker that was killed"
    assert "COMMITTED" in pages["commits"]


def test_a_page_that_is_not_there_is_refused_before_anything_starts() -> None:
    assert "there is no page 'sgements'; there are partitions, segments" in headrace("tour", "sgements", code=1)
