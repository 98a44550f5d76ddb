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
    names: dict[bytes, str | None] = {}

    def assignment(partitions: Assignment) -> Described.Assignment:
        found = []
        for topic_id in sorted(partitions) if len(partitions) > 1 else partitions:
            if topic_id not in names:
                topic = image.topics.get(topic_id)
                names[topic_id] = None if topic is None else topic.name
            name = names[topic_id]
            if name is not None:
                found.append(Described.TopicPartitions(topic_id, name, list(partitions[topic_id])))
        return Described.Assignment(found)

    return Described.DescribedGroup(
        group_id=group.group_id,
        group_state=group.state_name(committed=True),
        group_epoch=group.committed(Facts.EPOCH, FIRST_EPOCH),
        assignment_epoch=group.committed(Facts.TARGET_EPOCH, FIRST_EPOCH),
        assignor_name=most_wanted(votes),
        members=[
            Described.Member(
                member_id=member.member_id,
                instance_id=member.instance_id,
                rack_id=member.rack_id,
                member_epoch=member.epoch,
                client_id=member.client_id,
                client_host=member.client_host,
                subscribed_topic_names=sorted(member.topics),
                subscribed_topic_regex=member.regex,
                assignment=assignment(_held(member)),
                target_assignment=assignment(group.targets.committed(member.member_id) or NO_ASSIGNMENT),
                member_type=CONSUMER_MEMBER if member.classic is None else CLASSIC_MEMBER,
            )
            for member in members
        ],
    )


def _held(member: Member) -> Assignment:
    """With what it has yet to give up: it still has it."""
    held = without_epochs(member.assigned)
    if not member.revoking:
        return held
    given_up = without_epochs(member.revoking)
    return {topic_id: (*held.get(topic_id, ()), *given_up.get(topic_id, ())) for topic_id in {**held, **given_up}}
