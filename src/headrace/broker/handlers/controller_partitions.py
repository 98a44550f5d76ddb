"""What brokers ask the active controller for on behalf of their partitions and producers.

AlterPartition v2-3 (v3: broker epochs of the ISR). AssignReplicasToDirs v0. AllocateProducerIds v0.
AlterPartitionReassignments v0-1, ListPartitionReassignments v0, ElectLeaders v0-2.
"""

from typing import TYPE_CHECKING

from headrace.metadata.reassignment import list_reassignments
from headrace.protocol import messages as m

if TYPE_CHECKING:
    from headrace.broker.controller import ActiveController, Caller


async def alter_partition(
    controller: "ActiveController", message: m.AlterPartitionRequest, caller: "Caller"
) -> m.AlterPartitionResponse:
    response: m.AlterPartitionResponse = await controller.decide(
        lambda image: controller.core.alter_partition(image, message, caller.version)
    )
    return response


async def assign_replicas_to_dirs(
    controller: "ActiveController", message: m.AssignReplicasToDirsRequest, caller: "Caller"
) -> m.AssignReplicasToDirsResponse:
    response: m.AssignReplicasToDirsResponse = await controller.decide(
        lambda image: controller.core.assign_replicas(image, message)
    )
    return response


async def allocate_producer_ids(
    controller: "ActiveController", message: m.AllocateProducerIdsRequest, caller: "Caller"
) -> m.AllocateProducerIdsResponse:
    response: m.AllocateProducerIdsResponse = await controller.decide(
        lambda image: controller.core.allocate_producer_ids(image, message)
    )
    return response


async def elect_leaders(
    controller: "ActiveController", message: m.ElectLeadersRequest, caller: "Caller"
) -> m.ElectLeadersResponse:
    response: m.ElectLeadersResponse = await controller.decide(
        lambda image: controller.core.elect_leaders(image, message)
    )
    return response


async def alter_partition_reassignments(
    controller: "ActiveController", message: m.AlterPartitionReassignmentsRequest, caller: "Caller"
) -> m.AlterPartitionReassignmentsResponse:
    response: m.AlterPartitionReassignmentsResponse = await controller.decide(
        lambda image: controller.core.alter_reassignments(image, message)
    )
    return response


async def list_partition_reassignments(
    controller: "ActiveController", message: m.ListPartitionReassignmentsRequest, caller: "Caller"
) -> m.ListPartitionReassignmentsResponse:
    return list_reassignments(controller.quorum.image, message)
