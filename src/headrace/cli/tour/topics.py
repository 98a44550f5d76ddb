"""The pages on topics: partitions, segments, leaders, placement."""

import io
import json
from contextlib import redirect_stdout
from typing import Any

from headrace.cli.topic_files import folders_of
from headrace.cli.tour.stage import Stage
from headrace.client.admin.admin import Admin
from headrace.pictures.logs import Folder, Segment, files_picture
from headrace.pictures.placement import steps_picture
from headrace.pictures.replicas import Placed, placements_picture, replicas_picture
from headrace.terminal import size_text


def partitions(stage: Stage) -> None:
    print(
        "A topic is split into partitions, a folder for each. Replicas are partitions times the replication factor.\n"
    )
    stage.show("topic", "create", "fifteen", "-p", "5", "-r", "3")
    stage.wait_in_sync("fifteen")
    stage.show("topic", "describe", "fifteen")
    stage.draw(
        "partitions",
        replicas_picture(
            "15 replicas = 5 partitions x 3",
            "Each replica of a partition is on another broker.",
            stage.shown_brokers(),
            stage.placed("fifteen"),
        ),
    )


def segments(stage: Stage) -> None:
    print(
        "A partition's records are in segments: a full one is closed, and another begun. Two indexes are beside each.\n"
    )
    stage.show("topic", "create", "configured-topic", "-p", "3", "-r", "1", "--set", "segment.bytes=1048576")
    values = [word for _ in range(15) for word in ("-v", "x" * 100_000)]
    for partition in range(3):
        stage.show("produce", "configured-topic", "-p", str(partition), *values, hide=True)

    async def folders(admin: Admin) -> list[dict[str, Any]]:
        return await folders_of(admin, await admin.describe_topic("configured-topic"))

    def shown() -> bool:
        """The files of an active segment follow its records every few seconds."""
        return all(index for row in stage.ask(folders) for index in row["segments"][-1]["indexes"].values())

    stage.wait("the active segments' indexes", shown)
    stage.show("topic", "describe", "configured-topic", "--files")
    drawn = [
        Folder(row["folder"].rpartition("/")[2], row["broker"], [_segment(one) for one in row["segments"]])
        for row in stage.ask(folders)
    ]
    stage.draw("segments", files_picture("configured-topic", drawn))


def _segment(row: dict[str, Any]) -> Segment:
    last = "..." if row["active"] else str(row["end_offset"] - 1)
    indexes = [(name, size_text(size)) for name, size in row["indexes"].items()]
    offsets = f"offsets {row['start_offset']} to {last}"
    return Segment(row["file"], size_text(row["size_bytes"]), offsets, row["active"], indexes)


def leaders(stage: Stage) -> None:
    print("One replica of each partition leads. Partition 0 is led by broker 1, p1 by b2, p2 by b3.\n")
    stage.show("topic", "create", "leaders", "--assignment", "1:2:3,2:3:1,3:1:2")
    stage.wait_in_sync("leaders")
    stage.show("topic", "describe", "leaders")
    stage.draw(
        "leaders",
        replicas_picture(
            "p0, p1 and p2 are led by b1, b2 and b3",
            "Every broker leads one partition and follows two: the work is shared.",
            stage.shown_brokers(1, 2, 3),
            stage.placed("leaders"),
        ),
    )
    print("Two partitions on four brokers: broker 1 leads one and follows the other.\n")
    stage.show("topic", "create", "two", "--assignment", "1:2:3:4,2:1:4:3")
    stage.wait_in_sync("two")
    stage.show("topic", "describe", "two")
    stage.draw(
        "two-on-four",
        replicas_picture(
            "Two partitions on four brokers",
            "Broker 1 leads partition 0 and follows partition 1.",
            stage.shown_brokers(),
            stage.placed("two"),
        ),
    )


def placement(stage: Stage) -> None:
    print(
        "Brokers stand in a list that alternates racks. Leaders go round robin; followers are shifted along the list.\n"
    )
    stage.show("topic", "create", "placed", "-p", "4", "-r", "3", "--dry-run")
    with redirect_stdout(io.StringIO()) as said:
        stage.show("topic", "create", "placed", "-p", "4", "-r", "3", "--dry-run", "--json")
    text = said.getvalue()
    (drawn,) = json.loads(text[text.index("[\n") :])
    kinds = [
        (f"replica.placement={how}", [Placed(n, row, row[0], row) for n, row in enumerate(rows)])
        for how, rows in drawn["placed"].items()
    ]
    words = "Brokers in a list whose neighbours are in different racks; leaders and followers go along it."
    order = [row[0] for row in drawn["placed"]["shifted"]]
    stage.draw("placement-steps", steps_picture(stage.shown_brokers(*order), drawn["placed"]["shifted"]))
    stage.draw("placement", placements_picture("Placement over racks", words, stage.shown_brokers(), kinds))
