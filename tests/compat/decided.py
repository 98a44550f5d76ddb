"""Where Headrace answers otherwise than Kafka on purpose: case -> the reason
(docs/decisions/0003-differences-from-kafka.md).

Such a case must differ, or it leaves this list; Headrace's own answers lie in answers/Headrace.json.
"""

DECIDED = {
    "Metadata.created_on_the_way": "a topic that asking creates is there when the answer is",
    "CreateTopics.no_time_allowed": "a topic is created in a millisecond, whatever the time allowed",
    "Produce.partitions_named_twice": "a batch that was sent is appended or refused, never dropped in silence",
    "Produce.repeated_batches": (
        "a batch from further back than the last five is a duplicate, and clients take that for success"
    ),
    "Produce.offsets_that_lie": "where records are walked, offsets must be what readers and compaction take them for",
}
