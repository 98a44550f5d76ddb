"""Brokers and controllers tell the active controller that they are there.

BrokerRegistration v0-4 (v2: log dirs, v3: the epoch of the last clean stop). BrokerHeartbeat v0-2 (v1: failed log dirs,
v2: cordoned ones). ControllerRegistration v0. UnregisterBroker v0.
"""

from typing import TYPE_CHECKING

from headrace.errors import Err, KafkaError
from headrace.metadata.heartbeats import BrokerState
from headrace.metadata.image import Image
from headrace.metadata.outcome import Outcome
from headrace.metadata.versions import CONTROLLER_REGISTRATION_LEVEL
from headrace.protocol import messages as m

if TYPE_CHECKING:
    from headrace.broker.controller.active import ActiveController, Caller


async def broker_registration(
    controller: "ActiveController", message: m.BrokerRegistrationRequest, caller: "Caller"
) -> m.BrokerRegistrationResponse:
    broker_id = message.broker_id

    def decide(image: Image) -> Outcome[int]:
        # This node's own broker runs in this process: an earlier one cannot be alive.
        alive = not caller.is_local and controller.in_touch(broker_id)
        return controller.core.register_broker(image, message, controller.quorum.next_offset, session_alive=alive)

    try:
        epoch = await controller.decide(decide)
    except KafkaError as error:
        if error.error is Err.DUPLICATE_BROKER_REGISTRATION:
            controller.suspect(broker_id, "another broker of this id asks to be registered")
        raise
    controller.heard_of(broker_id, epoch, caller)
    return m.BrokerRegistrationResponse(broker_epoch=epoch)


async def broker_heartbeat(
    controller: "ActiveController", message: m.BrokerHeartbeatRequest, caller: "Caller"
) -> m.BrokerHeartbeatResponse:
    # Answered without waiting for what others have written: a heartbeat must not be late because of a slow disk.
    try:
        reply, committed = controller.heartbeat(message)
    except KafkaError as error:
        if error.error is Err.KAFKA_STORAGE_ERROR:  # this node's disk is full: the broker was heard all the same
            controller.heard_of(message.broker_id, message.broker_epoch, caller)
        raise
    controller.heard_of(message.broker_id, message.broker_epoch, caller, message.current_metadata_offset)
    if committed is not None:
        await committed
    if reply.state is BrokerState.SHUTDOWN_NOW:
        # It goes now: whoever starts under this id next need not wait until this one has been silent for long.
        controller.forget(message.broker_id)
    return m.BrokerHeartbeatResponse(
        is_caught_up=reply.is_caught_up,
        is_fenced=reply.is_fenced,
        should_shut_down=reply.state is BrokerState.SHUTDOWN_NOW,
    )


async def controller_registration(
    controller: "ActiveController", message: m.ControllerRegistrationRequest, caller: "Caller"
) -> m.ControllerRegistrationResponse:
    def decide(image: Image) -> Outcome[None]:
        if image.metadata_version < CONTROLLER_REGISTRATION_LEVEL:
            raise KafkaError(Err.UNSUPPORTED_VERSION, "this metadata.version knows nothing of controllers")
        return Outcome(controller.core.register_controller(message), None)

    await controller.decide(decide)
    return m.ControllerRegistrationResponse(error_message=None)


async def unregister_broker(
    controller: "ActiveController", message: m.UnregisterBrokerRequest, caller: "Caller"
) -> m.UnregisterBrokerResponse:
    def decide(image: Image) -> Outcome[None]:
        return Outcome(controller.core.unregister_broker(image, message.broker_id), None)

    await controller.decide(decide)
    controller.forget(message.broker_id)
    return m.UnregisterBrokerResponse(error_message=None)
