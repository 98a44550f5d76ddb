"""A consumer group as ConsumerGroupDescribe shows it: what is below the high watermark."""

from collections.abc import Callable, Mapping

from headrace.coordinator.assignors import ASSIGNORS, NO_ASSIGNMENT, Assignment
from headrace.coordinator.consumer_group import FIRST_EPOCH, ConsumerGroup, Facts
from headrace.coordinator.consumer_members import Member, without_epochs
from headrace.metadata.image import Image
from headrace.protocol import messages as m

Described = m.ConsumerGroupDescribeResponse

CLASSIC_MEMBER = 0
CONSUMER_MEMBER = 1


def described(
    group: ConsumerGroup, most_wanted: Callable[[Mapping[str, int]], str], image: Image
) -> Described.DescribedGroup:
    members = [member for _, member in group.members.committed_items()]
    wanted = [member.assignor for member in members]
    votes = {name: wanted.count(name) for name in ASSIGNORS if name in wanted}
    return Described.DescribedGroup(
        group_id=group.group_id,
        group_state=group.state_name(committed=True),
        group_epoch=group.committed(Facts.EPOCH, FIRST_EPOCH),
        assignment_epoch=group.committed(Facts.TARGET_EPOCH, FIRST_EPOCH),
        assignor_name=most_wanted(votes),
        members=[_member(member, group.targets.committed(member.member_id), image) for member in members],
    )


def _member(member: Member, target: Assignment | None, image: Image) -> Described.Member:
    """With what it has yet to give up: it still has it."""
    held = {topic_id: list(partitions) for topic_id, partitions in without_epochs(member.assigned).items()}
    for topic_id, partitions in without_epochs(member.revoking).items():
        held[topic_id] = held.get(topic_id, []) + list(partitions)
    return Described.Member(
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        member_epoch=member.epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=sorted(member.topics),
        subscribed_topic_regex=member.regex,
        assignment=_assignment({t: tuple(p) for t, p in held.items()}, image),
        target_assignment=_assignment(target or NO_ASSIGNMENT, image),
        member_type=CONSUMER_MEMBER if member.classic is None else CLASSIC_MEMBER,
    )


def _assignment(assignment: Assignment, image: Image) -> Described.Assignment:
    topics = ((image.topics.get(topic_id), partitions) for topic_id, partitions in sorted(assignment.items()))
    return Described.Assignment(
        topic_partitions=[
            Described.TopicPartitions(topic_id=topic.id, topic_name=topic.name, partitions=list(partitions))
            for topic, partitions in topics
            if topic is not None
        ]
    )
