"""What groups are for, in small: a queue, publish and subscribe, and what the order of processing and committing
costs."""

import asyncio
from collections import Counter
from pathlib import Path

from headrace.client.errors import RequestFailed
from tests.compat.process import HeadraceProcess
from tests.groups.harness import Crew, describe, quiet_producer, wait_until

RECORDS = 400


def fill(crew: Crew) -> Crew:
    with quiet_producer(crew.bootstrap) as producer:
        for number in range(RECORDS):
            producer.produce(crew.topic, b"%d" % number, partition=number % crew.partitions)
    crew.sent = RECORDS
    return crew


def is_shared(crew: Crew, group: str) -> bool:
    try:
        found = asyncio.run(describe(crew.bootstrap, group))
    except RequestFailed:
        return False  # nobody has joined yet
    return found.state == "Stable" and [len(member.assignment) for member in found.members] == [2, 2]


def test_one_group_is_a_queue_and_groups_of_their_own_are_subscribers(
    either_broker: HeadraceProcess, tmp_path: Path
) -> None:
    """The same topic at the same time: workers share its records, each subscriber gets all of them."""
    crew = Crew(either_broker.bootstrap, tmp_path, "confluent-eager", "both", partitions=4)
    try:
        workers = [crew.join(group="workers"), crew.join(group="workers")]
        for worker in workers:
            wait_until(lambda w=worker: bool(w.lines()), "a worker has started")
        wait_until(lambda: is_shared(crew, "workers"), "the workers share the partitions")
        fill(crew)
        subscribers = [crew.join(group="audit"), crew.join(group="search")]
        for subscriber in subscribers:
            wait_until(lambda s=subscriber: len(s.processed()) >= RECORDS, "a subscriber has everything")
        wait_until(lambda: sum(len(w.processed()) for w in workers) >= RECORDS, "the workers are done")
        for member in crew.members:
            member.end()
        every = {(index, offset) for index, end in crew.ends().items() for offset in range(end)}
        for subscriber in subscribers:
            assert Counter(subscriber.processed()) == Counter(every)
        first, second = (worker.processed() for worker in workers)
        assert Counter(first + second) == Counter(every), "each record went to one of them"
        assert len({partition for partition, _ in first}) == len({partition for partition, _ in second}) == 2
    finally:
        crew.close()


def test_committing_before_processing_loses_records_in_a_crash(broker: HeadraceProcess, tmp_path: Path) -> None:
    """At most once: what was committed and not processed is never seen again."""
    crew = fill(Crew(broker.bootstrap, tmp_path, "confluent-eager", "at-most-once", partitions=1))
    try:
        crew.join(order="commit-first", crash_after=3).process.wait(60)
        crew.join(order="commit-first")
        crew.finish()
        lost = crew.skipped()
        assert lost and len(lost) <= 25, "exactly the batch that was committed when the member died"
        counts = Counter(record for member in crew.members for record in member.processed())
        assert set(counts.values()) == {1}, "none twice"
    finally:
        crew.close()


def test_processing_before_committing_repeats_records_after_a_crash(
    either_broker: HeadraceProcess, tmp_path: Path
) -> None:
    """At least once: what was processed and not committed comes again."""
    crew = fill(Crew(either_broker.bootstrap, tmp_path, "confluent-eager", "at-least-once", partitions=1))
    try:
        crew.join(order="process-first", crash_after=3).process.wait(60)
        crew.join(order="process-first")
        crew.finish()
        assert not crew.skipped(), "none lost"
        counts = Counter(record for member in crew.members for record in member.processed())
        doubled = {record for record, count in counts.items() if count == 2}
        assert doubled and len(doubled) <= 25, "exactly the batch that was processed when the member died"
        assert max(counts.values()) == 2
    finally:
        crew.close()
