"""Pictures are whole SVG files that say what they were given, legible on light and on dark."""

from collections import Counter
from xml.etree import ElementTree

import pytest

from headrace.pictures.balance import Share, balance_picture
from headrace.pictures.canvas import TONES, Canvas, fitting
from headrace.pictures.groups import Reading, groups_picture
from headrace.pictures.logs import (
    Folder,
    Progress,
    Segment,
    Sent,
    commits_picture,
    exactly_once_picture,
    files_picture,
)
from headrace.pictures.moments import Copies, Moment, committed_picture, in_sync_picture
from headrace.pictures.placement import steps_picture
from headrace.pictures.quorums import Controller, Log, Znode, quorums_picture
from headrace.pictures.replicas import Broker, Placed, placements_picture, replicas_picture
from headrace.pictures.sending import Attempt, Keyed, again_picture, records_picture

SVG = "{http://www.w3.org/2000/svg}"
LEGIBLE = 4.5
"""The least contrast of small letters by WCAG 2."""


def words(picture: Canvas) -> Counter[str]:
    root = ElementTree.fromstring(picture.svg())
    for element in root.iter(f"{SVG}rect"):
        right = float(element.get("x", 0)) + float(element.get("width", 0))
        bottom = float(element.get("y", 0)) + float(element.get("height", 0))
        assert right <= picture.width and bottom <= picture.height, "nothing is drawn beyond the sheet"
    return Counter(element.text or "" for element in root.iter(f"{SVG}text"))


def test_replicas_and_their_roles() -> None:
    placed = [Placed(0, (1, 2, 3), 1, (1, 2)), Placed(1, (2, 3, 1), 2, (2, 3, 1))]
    drawn = words(replicas_picture("a < b & c", "", [Broker(1, "a"), Broker(2), Broker(3, "b", is_lost=True)], placed))
    assert drawn["a < b & c"] == drawn["p0 leader"] == drawn["p1 leader"] == drawn["broker 3 lost"] == 1
    assert drawn["p0 lost"] == drawn["p1 lost"] == 1 and drawn["broker 1 · rack a"] == 1
    both = placements_picture("t", "", [Broker(1), Broker(2), Broker(3)], [("one", placed), ("two", placed)])
    assert words(both)["p0 follower 1"] == 2


def test_logs_groups_moments_and_quorums() -> None:
    drawn = words(commits_picture("t", "g", [Progress(0, 3, 2), Progress(1, 3, 3)]))
    assert drawn["offset 2"] == 2 and drawn["2"] == drawn["3"] == 1
    log = [Sent(0, "+1", "committed"), Sent(1, "marker", "marker"), Sent(2, "+9", "aborted")]
    assert words(exactly_once_picture("t", log, {"read_committed": [0], "read_uncommitted": [0, 2]}))["given"] == 3
    segment = Segment("0.log", "1 MB", "offsets 0 to ...", True, [("0.index", "8 B"), ("0.timeindex", "12 B")])
    assert words(files_picture("t", [Folder("t-0", 1, [segment] * 2), Folder("t-1", 2, [segment])]))["0.index"] == 3
    readings = [Reading("A", {"C1": [0, 1], "C2": []}), Reading("B", {"C1": [0]})]
    assert words(groups_picture("g", "", "t", 2, readings))["C2 reads nothing"] == 1
    moments = [Moment("then", 1, [1, 2], [3], True), Moment("now", 1, [1], [3], False)]
    shown = words(in_sync_picture("t", (1, 2, 3), 2, moments))
    assert shown["refused"] == shown["written"] == shown["behind"] == shown["1 of 3"] == 1
    znodes = [Znode("/controller", "{}" * 200, True)]
    assert words(quorums_picture(Log(3, [Controller(1, True, 9)], ["fact"]), znodes))["ephemeral"] == 1
    assert words(quorums_picture(Log(3, [Controller(1, True, 9)], ["fact"]), []))["not run: it needs Java"] == 1


def test_records_copies_and_what_came_of_sending_again() -> None:
    drawn = words(records_picture("t", 2, [Keyed(0, 0, "Oslo", "a"), Keyed(0, 1, "Oslo", "b"), Keyed(1, 0, None, "c")]))
    assert drawn["Oslo: b"] == drawn["key Oslo"] == drawn["no key"] == drawn["offset 1"] == 1 and drawn["offset 0"] == 2
    drawn = words(committed_picture([Copies("t", "frozen", {1: 5, 3: 3, 4: 3}, 3, [1, 3], "waits")]))
    assert drawn["2"] == 3 and drawn["4"] == 1 and drawn["acks=all: waits"] == 1
    assert drawn["broker 1  leads"] == drawn["broker 3  in sync"] == drawn["broker 4  behind"] == 1
    drawn = words(again_picture([Attempt("once", "failed", 0), Attempt("again", "acknowledged", 3)]))
    assert drawn["lost"] == drawn["failed"] == drawn["the record"] == 1 and drawn["again"] == 3


def test_placement_step_by_step_and_shares() -> None:
    order = [Broker(node, rack) for node, rack in ((2, "b"), (3, "a"), (4, "b"), (1, "a"))]
    drawn = words(steps_picture(order, [[2, 3, 4], [3, 4, 1], [4, 1, 2], [1, 2, 3]]))
    assert (drawn["leader"], drawn["follower 1"], drawn["follower 2"]) == (12, 8, 4), "each step keeps those before it"
    assert drawn["rack a"] == 2 and drawn["It starts at broker 2, which is chosen at random."] == 1
    shares = {1: Share(2, 5), 2: Share(0, 0), 3: Share(1, 4, is_lost=True)}
    drawn = words(balance_picture([("before", shares), ("after", shares)]))
    assert drawn["leads 2 of 5"] == drawn["nothing"] == drawn["lost, leads 1 of 4"] == 2


def test_words_that_do_not_fit_end_in_an_ellipsis() -> None:
    assert fitting("short", 100, 12) == "short"
    assert fitting("a long word that does not fit", 60, 12).endswith("…")


@pytest.mark.parametrize("side", ["light", "dark"])
@pytest.mark.parametrize("name", TONES)
def test_letters_are_legible_on_their_own_tone(name: str, side: str) -> None:
    fill, _, letters = getattr(TONES[name], side)
    assert contrast(fill, letters) >= LEGIBLE


def contrast(one: str, other: str) -> float:
    lighter, darker = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def _luminance(colour: str) -> float:
    shares = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [share / 12.92 if share <= 0.03928 else ((share + 0.055) / 1.055) ** 2.4 for share in shares]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
