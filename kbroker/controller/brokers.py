"""The states of a broker in the controller: registered, unfenced, in controlled shutdown, fenced.

A registration starts an incarnation. Its epoch is the offset of its record, and every later request of the broker
carries that epoch. A new incarnation starts fenced and leads nothing until it has replayed its own registration and
asks to be unfenced. Then it becomes the leader of every partition that has no leader and has this broker in its ISR.
Fencing is the reverse. A controlled shutdown moves the leaders before it fences the broker.

What Apache Kafka 4.3.1 does on a combined single node, read from its metadata log (and what this module does):

- clean stop: one batch with BrokerRegistrationChange(in_controlled_shutdown) and PartitionChange(leader -1) for each
  partition that the broker leads, then BrokerRegistrationChange(fenced);
- start: RegisterBroker (fenced), then one batch with BrokerRegistrationChange(unfenced) and PartitionChange(leader =
  the broker) for each partition;
- start after kill -9: the new controller gives the dead incarnation a session of broker.session.timeout.ms (9 s) and
  refuses the new one with DUPLICATE_BROKER_REGISTRATION until that has passed; then PartitionChange(leader -1) and
  BrokerRegistrationChange(fenced), then as above.

So a restart raises leader_epoch by two in either case. There is one difference: a controller knows that the earlier
incarnation of the broker in its own process is dead, because the new process holds the lock of the data directory. It
fences that incarnation immediately instead of after nine seconds. For all other brokers only heartbeats count.

Source: Kafka's ClusterControlManager, ReplicationControlManager.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

from kbroker.controller import election
from kbroker.controller.context import Context, check_broker_epoch
from kbroker.controller.decisions import decides
from kbroker.controller.directories import offline_directories
from kbroker.controller.features import SUPPORTED_FEATURES
from kbroker.metadata.image import BrokerImage, Image
from kbroker.metadata.parts import METADATA_VERSION_FEATURE, RESERVED_DIRECTORIES, feature_ranges
from kbroker.runtime.outcome import Outcome
from wire.errors import ErrorCode, KafkaError
from wire.messages.broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse
from wire.messages.broker_registration import BrokerRegistrationRequest, BrokerRegistrationResponse
from wire.messages.controller_registration import ControllerRegistrationRequest, ControllerRegistrationResponse
from wire.messages.unregister_broker import UnregisterBrokerRequest, UnregisterBrokerResponse
from wire.refusals import refused
from wire.stored.metadata import (
    BrokerRegistrationChangeRecord,
    RegisterBrokerRecord,
    RegisterControllerRecord,
    UnregisterBrokerRecord,
)

_FENCE = 1
_UNFENCE = -1


@decides(BrokerRegistrationRequest)
def register_broker(context: Context, request: BrokerRegistrationRequest) -> Outcome[BrokerRegistrationResponse]:
    """Start or repeat an incarnation. The response's broker_epoch is the offset that the RegisterBroker record will
    have. The controller registers itself together with the broker of its process.

    Errors: INCONSISTENT_CLUSTER_ID, DUPLICATE_BROKER_REGISTRATION while another incarnation's session is live (not for
    the controller's own broker), UNSUPPORTED_VERSION for a finalized feature out of the broker's range,
    INVALID_REGISTRATION for its log directories.
    """
    image, sessions = context.image, context.sessions
    is_own = request.incarnation_id == sessions.own_incarnation
    if request.cluster_id != context.settings.cluster_id:
        raise KafkaError(
            ErrorCode.INCONSISTENT_CLUSTER_ID,
            f"Expected cluster ID {context.settings.cluster_id}, but got cluster ID {request.cluster_id}",
        )
    existing = image.brokers.get(request.broker_id)
    same = existing is not None and existing.incarnation_id == request.incarnation_id
    if existing is not None and not same and not is_own and sessions.is_live(existing.id, context.now_ms):
        raise KafkaError(ErrorCode.DUPLICATE_BROKER_REGISTRATION, "Another broker is registered with that broker id.")
    if request.is_migrating_zk_broker:
        raise KafkaError(ErrorCode.BROKER_ID_NOT_REGISTERED, "Controller does not support registering ZK brokers.")
    _check_log_dirs(image, request)
    _check_features(image, request)
    records: list[Any] = []
    if existing is not None and not same and not existing.fenced:
        records += _fencing(context, existing)
    record = RegisterBrokerRecord(
        broker_id=request.broker_id,
        incarnation_id=request.incarnation_id,
        broker_epoch=image.end_offset + len(records),
        end_points=request.listeners,
        features=request.features,
        rack=request.rack,
        log_dirs=list(request.log_dirs),
    )
    if same:
        assert existing is not None
        record.broker_epoch = existing.epoch
        record.fenced = existing.fenced
        record.in_controlled_shutdown = existing.in_controlled_shutdown
    else:
        sessions.begin(request.broker_id, context.now_ms)
    records.append(record)
    if is_own:
        sessions.own_id = request.broker_id
        records.append(_controller_record(context, request.incarnation_id))
    return Outcome(records, BrokerRegistrationResponse(broker_epoch=record.broker_epoch))


def _check_log_dirs(image: Image, request: BrokerRegistrationRequest) -> None:
    fault = None
    if not request.log_dirs:
        fault = "No directories specified in request"
    elif any(directory.int < RESERVED_DIRECTORIES for directory in request.log_dirs):
        fault = "Reserved directory ID in request"
    elif len(set(request.log_dirs)) != len(request.log_dirs):
        fault = "Duplicate directory ID in request"
    else:
        for broker in image.brokers.values():
            shared = [directory for directory in request.log_dirs if directory in broker.log_dirs]
            if broker.id != request.broker_id and shared:
                fault = f"Broker {broker.id} is already registered with directory {shared[0]}"
    if fault is not None:
        raise KafkaError(ErrorCode.INVALID_REGISTRATION, fault)


def _check_features(image: Image, request: BrokerRegistrationRequest) -> None:
    ranges = {
        feature.name: (feature.min_supported_version, feature.max_supported_version) for feature in request.features
    }
    if METADATA_VERSION_FEATURE not in ranges:
        raise KafkaError(ErrorCode.INVALID_REGISTRATION, "Request features do not contain 'metadata.version'")
    for name, level in image.features.items():
        lowest, highest = ranges.get(name, (0, 0))
        if not lowest <= level <= highest:
            raise KafkaError(
                ErrorCode.UNSUPPORTED_VERSION,
                f"Unable to register because the broker does not support finalized version {level} of {name}. The "
                f"broker wants a version between {lowest} and {highest}, inclusive.",
            )


@decides(BrokerHeartbeatRequest)
def broker_heartbeat(context: Context, request: BrokerHeartbeatRequest) -> Outcome[BrokerHeartbeatResponse]:
    """Record a heartbeat and grant what the broker asks for: to be unfenced, to be fenced, or to shut down. Replicas in
    directories that the broker reports as offline leave the ISR.

    A fenced broker is unfenced once it has replayed its own registration (current_metadata_offset is at least its
    epoch). A broker that wants to shut down hands over its leaders first; it may stop when it leads nothing and the
    other brokers have replayed that. Errors: STALE_BROKER_EPOCH, also for a broker that is not registered.
    """
    sessions = context.sessions
    broker = check_broker_epoch(context.image, request.broker_id, request.broker_epoch)
    sessions.touch(broker.id, request.current_metadata_offset, context.now_ms)
    caught_up = request.current_metadata_offset >= broker.epoch
    records: list[Any] = []
    fenced, stop = broker.fenced, False
    if broker.fenced:
        if request.want_shut_down or broker.in_controlled_shutdown:
            stop = True  # after a shutdown request, only a new incarnation can be unfenced
        elif not request.want_fence and caught_up:
            fenced = False
            records = _unfencing(context, broker)
    elif request.want_fence:
        fenced, stop = True, request.want_shut_down
        records = _fencing(context, broker)
    elif request.want_shut_down or broker.in_controlled_shutdown:
        if any(partition.leader == broker.id for _, _, partition in election.partitions(context.image)):
            records = _shutting_down(context, broker)
            sessions.begin_shutdown(broker.id, context.image.offset + len(records))
        elif not broker.in_controlled_shutdown or sessions.others_know(broker.id, context.image):
            fenced = stop = True
            records = _fencing(context, broker)
    if stop:
        sessions.close(broker.id)
    records += offline_directories(context, broker, request.offline_log_dirs)
    return Outcome(records, BrokerHeartbeatResponse(is_caught_up=caught_up, is_fenced=fenced, should_shut_down=stop))


class FenceSilentBroker:
    """The controller's own request to fence the broker whose session expired first; the response is its id. Each
    request fences one broker, so that the next decision sees the effect.
    """


@decides(FenceSilentBroker)
def fence_silent_broker(context: Context, _request: FenceSilentBroker) -> Outcome[int | None]:
    """See FenceSilentBroker."""
    broker_id = context.sessions.expired(context.image, context.now_ms)
    if broker_id is None:
        return Outcome([], None)
    return Outcome(_fencing(context, context.image.brokers[broker_id]), broker_id)


@decides(UnregisterBrokerRequest)
def unregister_broker(context: Context, request: UnregisterBrokerRequest) -> Outcome[UnregisterBrokerResponse]:
    """Remove a broker from the cluster.

    As in Kafka, a running broker can be unregistered; it registers again at its next start. The broker in the
    controller's process cannot, because it stays.

    Answers BROKER_ID_NOT_REGISTERED, and INVALID_REQUEST for the controller's own broker.
    """
    broker_id = request.broker_id
    broker = context.image.brokers.get(broker_id)
    if broker_id == context.sessions.own_id:
        text = f"Broker {broker_id} runs in the process of the controller"
        return Outcome([], refused(request, ErrorCode.INVALID_REQUEST, text))
    if broker is None:
        text = f"Broker ID {broker_id} is not currently registered"
        return Outcome([], refused(request, ErrorCode.BROKER_ID_NOT_REGISTERED, text))
    records: list[Any] = election.moves_away_from(context, broker_id)
    records.append(UnregisterBrokerRecord(broker_id=broker_id, broker_epoch=broker.epoch))
    return Outcome(records, UnregisterBrokerResponse(error_message=""))


@decides(ControllerRegistrationRequest, may_be_long=True)
def register_controller(
    _context: Context, request: ControllerRegistrationRequest
) -> Outcome[ControllerRegistrationResponse]:
    """Record a controller's addresses and features."""
    record = RegisterControllerRecord(
        controller_id=request.controller_id,
        incarnation_id=request.incarnation_id,
        zk_migration_ready=False,
        end_points=request.listeners,
        features=request.features,
    )
    return Outcome([record], ControllerRegistrationResponse())


def _controller_record(context: Context, incarnation_id: UUID) -> RegisterControllerRecord:
    return RegisterControllerRecord(
        controller_id=context.settings.node_id,
        incarnation_id=incarnation_id,
        zk_migration_ready=False,
        end_points=list(context.settings.listeners),
        features=feature_ranges(SUPPORTED_FEATURES),
    )


# -- records of each transition


def _fencing(context: Context, broker: BrokerImage) -> list[Any]:
    return [
        *election.moves_away_from(context, broker.id),
        BrokerRegistrationChangeRecord(broker_id=broker.id, broker_epoch=broker.epoch, fenced=_FENCE),
    ]


def _shutting_down(context: Context, broker: BrokerImage) -> list[Any]:
    records = election.moves_away_from(context, broker.id)
    if broker.in_controlled_shutdown:
        return records
    change = BrokerRegistrationChangeRecord(broker_id=broker.id, broker_epoch=broker.epoch, in_controlled_shutdown=1)
    return [change, *records]


def _unfencing(context: Context, broker: BrokerImage) -> list[Any]:
    change = BrokerRegistrationChangeRecord(broker_id=broker.id, broker_epoch=broker.epoch, fenced=_UNFENCE)
    brokers = {**context.image.brokers, broker.id: broker._replace(fenced=False)}
    return [change, *election.changes(context, election.leaderless(context.image), brokers=brokers)]
