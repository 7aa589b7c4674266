"""The shell of an embedded controller: one writer takes decisions one after the other, commits them, and tells
everybody.

A caller hands in a decision (a function of the controller) and waits. The writer takes all that wait, decides each on
top of the one before, puts their records into one batch, has it written and synced in a thread, publishes the new image
to the listeners, and only then lets the callers go on, with an answer or a KafkaError: an error too may rest on a
decision that is not durable yet. So ten requests that come while the disk syncs cost one more sync, not ten.

A listener gets every image with what changed, in order, before the callers of the decisions that made it. What it
returns, if anything, is awaited, so that whoever creates a topic finds it served.

On a full disk, with nothing left of the reserve, decisions fail with KAFKA_STORAGE_ERROR and can be asked for again.
When the log cannot be written for another reason, `UnusableMetadata` leaves `run` and ends the process: what was
decided may or may not be on the disk.

Snapshots are written beside the decisions, from an image that cannot change.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Any, Final, Generic, TypeVar, TypeVarTuple
from uuid import UUID

import trio

from kbroker.controller import snapshots
from kbroker.controller.bootstrap import write_bootstrap
from kbroker.controller.context import ConfigRules, ControllerSettings
from kbroker.controller.controller import Controller
from kbroker.controller.features import SUPPORTED_FEATURES
from kbroker.controller.metadata_log import MetadataLog, MetadataLogConfig, Staged
from kbroker.controller.producer_ids import ProducerIdBlock
from kbroker.controller.records import encode_value
from kbroker.metadata.delta import Delta
from kbroker.metadata.image import Endpoint, Image
from kbroker.runtime.log import logger
from kbroker.runtime.net_ports import Env
from kbroker.runtime.outcome import Outcome
from kbroker.storage.reserve import SpaceReserve
from wire.errors import ErrorCode, KafkaError
from wire.messages import alter_configs as legacy_configs
from wire.messages import incremental_alter_configs as incremental_configs
from wire.messages.allocate_producer_ids import AllocateProducerIdsRequest
from wire.messages.broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse
from wire.messages.broker_registration import BrokerFeatureRange, BrokerListener, BrokerRegistrationRequest
from wire.messages.controller_registration import ControllerFeatureRange, ControllerRegistrationRequest
from wire.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsResponse
from wire.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse
from wire.messages.update_features import UpdateFeaturesRequest, UpdateFeaturesResponse

R = TypeVar("R")
Arguments = TypeVarTuple("Arguments")

Listener = Callable[[Image, Delta], Awaitable[None] | None]

MAX_GROUP: Final = 1_000
"""Decisions that share one sync; more wait for the next."""

_SNAPSHOT_CHECK_SECONDS: Final = 60.0

log = logger(__name__)


class _Request(Generic[R]):
    """One decision and the task that waits for it."""

    __slots__ = ("decision", "done", "error", "may_be_long", "response")

    def __init__(self, decision: Callable[[Controller], Outcome[R]], *, may_be_long: bool) -> None:
        self.decision = decision
        self.may_be_long = may_be_long
        self.done = trio.Event()
        self.error: Exception | None = None
        self.response: R | None = None

    async def result(self) -> R:
        await self.done.wait()
        if self.error is not None:
            raise self.error
        return self.response  # type: ignore[return-value]  # set before done; None is the response of some decisions


class ControllerClient:
    """What a broker asks of the controller in its own process. `run` must be running for anything to be decided.

    image  the newest published state: durable, and known to every listener
    """

    def __init__(self, *, env: Env, controller: Controller, metadata_log: MetadataLog) -> None:
        self.image = controller.image
        self._env = env
        self._controller = controller
        self._metadata_log = metadata_log
        self._log_lock = trio.Lock()
        self._waiting: list[_Request[Any]] = []
        self._arrived = trio.Event()
        self._published = trio.Event()
        self._written = trio.Event()
        self._listeners: list[Listener] = []
        self.is_short_of_space: Callable[[], bool] = lambda: False
        self._producer_ids = ProducerIdBlock()
        self._producer_id_lock = trio.Lock()
        self._broker: tuple[int, int] | None = None

    @property
    def settings(self) -> ControllerSettings:
        """What decisions depend on."""
        return self._controller.settings

    def add_listener(self, listener: Listener) -> None:
        """Call this with every image from the next one on."""
        self._listeners.append(listener)

    # -- for ever

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Take decisions and write snapshots until cancelled. UnusableMetadata when the log cannot be written."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._write_snapshots)
            nursery.start_soon(self._write_decisions)
            task_status.started()

    async def _write_decisions(self) -> None:
        while True:
            if not self._waiting:
                self._arrived = trio.Event()
                await self._arrived.wait()
            group, self._waiting = self._waiting[:MAX_GROUP], self._waiting[MAX_GROUP:]
            await self._carry_out(group)
            await self._publish()
            for request in group:
                request.done.set()

    async def _carry_out(self, group: list[_Request[Any]]) -> None:
        """Take the decisions of a group, each on top of the one before, and commit them.

        On a full disk those that are not committed fail, and are as if nobody had asked for them.
        """
        staged: Staged | None = None
        settled, image = 0, self._controller.image  # so many of the group are committed, and this is the state then
        try:
            for number, request in enumerate(group):
                call = self._env.run_blocking if request.may_be_long else _call
                decided = await self._decide(request, call)
                if decided is None:
                    continue
                records, values = decided
                metadata_version = self._controller.image.metadata_version
                if staged is not None and not self._metadata_log.fits(values, onto=staged):
                    await self._write(staged)
                    staged, settled, image = None, number, self._controller.image
                staged = self._metadata_log.stage(values, metadata_version=metadata_version, onto=staged)
                replay = partial(self._controller.replay, offset=staged.end_offset - 1, epoch=self._metadata_log.epoch)
                await call(replay, records)
            if staged is not None:
                await self._write(staged)
        except KafkaError as error:
            log.error("metadata cannot be changed", decisions=len(group) - settled, why=error.message)
            self._controller.image = image
            for request in group[settled:]:
                request.error = error

    async def _decide(
        self, request: _Request[Any], call: Callable[..., Awaitable[Any]]
    ) -> tuple[Sequence[Any], list[bytes]] | None:
        """Take one decision; the records that it needs, as they are and encoded, or None if it needs none."""
        try:
            outcome, values = await call(self._work_out, request.decision)
        except KafkaError as error:
            request.error = error
            return None
        except Exception as error:  # noqa: BLE001 - a decision changes nothing, so a bug in it is its caller's to hear of
            request.error = error
            return None
        request.response = outcome.response
        return (outcome.records, values) if outcome.records else None

    def _work_out(self, decision: Callable[[Controller], Outcome[R]]) -> tuple[Outcome[R], list[bytes]]:
        outcome = decision(self._controller)
        metadata_version = self._controller.image.metadata_version
        return outcome, [encode_value(record, metadata_version) for record in outcome.records]

    async def _write(self, staged: Staged) -> None:
        """Errors: KAFKA_STORAGE_ERROR where the disk is full; UnusableMetadata."""
        async with self._log_lock:
            await self._env.run_blocking(
                partial(self._metadata_log.write, staged, timestamp_ms=self._env.timestamp_ms())
            )

    async def _publish(self) -> None:
        image = self._controller.image
        if image is self.image:
            return
        delta = Delta(self.image, image)
        self.image = image
        for listener in self._listeners:
            waiting = listener(image, delta)
            if waiting is not None:
                await waiting
        published, self._published = self._published, trio.Event()
        published.set()
        self._written.set()

    async def _write_snapshots(self) -> None:
        while True:
            with trio.move_on_after(_SNAPSHOT_CHECK_SECONDS):
                await self._written.wait()
            self._written = trio.Event()
            if not self._metadata_log.snapshot_is_due(now_ms=self._env.now_ms()):
                continue
            try:
                await self.write_snapshot()
            except (OSError, KafkaError) as error:
                # Without a snapshot the log only grows; the next one is tried when it is due again.
                log.error("cannot write a metadata snapshot", error=str(error))

    async def write_snapshot(self) -> snapshots.SnapshotId:
        """Write a snapshot of the published image and clean up behind it. OSError; KAFKA_STORAGE_ERROR from the log."""
        image = self.image
        self._metadata_log.note_snapshot(now_ms=self._env.now_ms())
        snapshot = await self._env.run_blocking(
            partial(self._metadata_log.write_snapshot, image, timestamp_ms=self._env.timestamp_ms())
        )
        async with self._log_lock:
            await self._env.run_blocking(
                partial(
                    self._metadata_log.adopt_snapshot,
                    snapshot,
                    timestamp_ms=self._env.timestamp_ms(),
                    now_ms=self._env.now_ms(),
                )
            )
        return snapshot

    # -- decisions

    async def decide(
        self,
        decision: Callable[[Controller], Outcome[R]],
        *,
        adds: bool = False,
        changes: bool = False,
        may_be_long: bool = False,
    ) -> R:
        """Have a decision taken, committed and published; then its response, or its KafkaError.

        While the disk is nearly full, decisions that add something are refused with KAFKA_STORAGE_ERROR. Those that
        only change something are refused once half of the reserve is spent: the rest is for deletions and starts.
        A decision that may be long, because a client chose how much is decided, is worked out in a thread. It must not
        touch the sessions of brokers: everything else that a decision sees is immutable, or changed by decisions alone.
        A caller that is cancelled stops waiting; the decision is taken all the same.
        """
        if (adds and self.is_short_of_space()) or (changes and self._metadata_log.reserve.is_half_spent):
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "the disk is nearly full")
        request = _Request(decision, may_be_long=may_be_long)
        self._waiting.append(request)
        self._arrived.set()
        return await request.result()

    async def image_at(self, offset: int) -> Image:
        """The published image, once it holds the record with this offset."""
        while self.image.offset < offset:
            await self._published.wait()
        return self.image

    async def create_topics(self, request: CreateTopicsRequest, *, is_needed: bool = False) -> CreateTopicsResponse:
        """See topics.create_topics. A topic that `is_needed` to read or to copy is made even on a nearly full disk."""
        return await self.decide(
            lambda controller: controller.create_topics(request),
            adds=not is_needed,
            changes=is_needed,
            may_be_long=True,
        )

    async def delete_topics(self, request: DeleteTopicsRequest, *, version: int) -> DeleteTopicsResponse:
        """See topics.delete_topics."""
        return await self.decide(
            lambda controller: controller.delete_topics(request, version=version), may_be_long=True
        )

    async def create_partitions(self, request: CreatePartitionsRequest) -> CreatePartitionsResponse:
        """See partitions.create_partitions."""
        return await self.decide(lambda controller: controller.create_partitions(request), adds=True, may_be_long=True)

    async def incremental_alter_configs(
        self, request: incremental_configs.IncrementalAlterConfigsRequest
    ) -> incremental_configs.IncrementalAlterConfigsResponse:
        """See configs.incremental_alter_configs."""
        return await self.decide(
            lambda controller: controller.incremental_alter_configs(request, received_by=self.settings.node_id),
            may_be_long=True,
            changes=True,
        )

    async def alter_configs(self, request: legacy_configs.AlterConfigsRequest) -> legacy_configs.AlterConfigsResponse:
        """See configs.alter_configs."""
        return await self.decide(
            lambda controller: controller.alter_configs(request, received_by=self.settings.node_id),
            changes=True,
            may_be_long=True,
        )

    async def update_features(self, request: UpdateFeaturesRequest) -> UpdateFeaturesResponse:
        """See features.update_features."""
        return await self.decide(lambda controller: controller.update_features(request), adds=True, may_be_long=True)

    async def next_producer_id(self) -> int:
        """An id that nobody ever had: out of this broker's block, or of a new one."""
        async with self._producer_id_lock:
            taken = self._producer_ids.take()
            if taken is None:
                broker_id, epoch = self._registered()
                request = AllocateProducerIdsRequest(broker_id=broker_id, broker_epoch=epoch)
                self._producer_ids.refill(
                    await self.decide(lambda controller: controller.allocate_producer_ids(request), adds=True)
                )
                taken = self._producer_ids.take()
            assert taken is not None, "a block of producer ids is never empty"
            return taken

    # -- the life of the broker in this process

    async def register_broker(
        self, *, incarnation_id: UUID, endpoints: Iterable[Endpoint], log_dirs: Iterable[UUID], rack: str | None = None
    ) -> int:
        """Register the controller and the broker of this process, fenced; returns the broker's epoch.

        An earlier incarnation of this node is known to be dead (it would hold the data directory's lock), so that what
        it led is taken from it at once.
        """
        node_id = self.settings.node_id
        as_controller = ControllerRegistrationRequest(
            controller_id=node_id,
            incarnation_id=incarnation_id,
            zk_migration_ready=False,
            listeners=[],
            features=[ControllerFeatureRange(**feature) for feature in _feature_ranges()],
        )
        as_broker = BrokerRegistrationRequest(
            broker_id=node_id,
            cluster_id=self.settings.cluster_id,
            incarnation_id=incarnation_id,
            listeners=[_listener(endpoint) for endpoint in endpoints],
            features=[BrokerFeatureRange(**feature) for feature in _feature_ranges()],
            rack=rack,
            log_dirs=list(log_dirs),
        )

        def register(controller: Controller) -> Outcome[int]:
            outcome = controller.register_broker(as_broker, self._env.now_ms(), replaces_dead=True)
            # The broker's record comes first, since its offset is its epoch.
            records = [*outcome.records, *controller.register_controller(as_controller).records]
            return Outcome(records, outcome.response.broker_epoch)

        epoch = await self.decide(register)
        self._broker = node_id, epoch
        return epoch

    async def unfence_broker(self) -> None:
        """The broker of this process serves from now on: partitions without a leader elect it."""
        answer = await self._heartbeat(want_shut_down=False)
        assert not answer.is_fenced, "the image that the broker follows is the controller's own"

    async def shut_down_broker(self) -> None:
        """The broker of this process stops: its partitions go to others or lose their leader, then it is fenced."""
        while not (await self._heartbeat(want_shut_down=True)).should_shut_down:
            pass

    async def _heartbeat(self, *, want_shut_down: bool) -> BrokerHeartbeatResponse:
        broker_id, epoch = self._registered()
        request = BrokerHeartbeatRequest(
            broker_id=broker_id,
            broker_epoch=epoch,
            current_metadata_offset=self.image.offset,
            want_fence=False,
            want_shut_down=want_shut_down,
        )
        return await self.decide(lambda controller: controller.broker_heartbeat(request, self._env.now_ms()))

    def _registered(self) -> tuple[int, int]:
        assert self._broker is not None, "the broker of this process is not registered yet"
        return self._broker

    async def close(self) -> None:
        """Sync and close the log; `run` must have ended."""
        await self._env.run_blocking(self._metadata_log.close)


def _listener(endpoint: Endpoint) -> BrokerListener:
    return BrokerListener(
        name=endpoint.name, host=endpoint.host, port=endpoint.port, security_protocol=endpoint.security_protocol
    )


async def _call(function: Callable[[*Arguments], R], *arguments: *Arguments) -> R:
    return function(*arguments)


def _feature_ranges() -> list[dict[str, Any]]:
    return [
        {"name": name, "min_supported_version": lowest, "max_supported_version": highest}
        for name, (lowest, highest) in sorted(SUPPORTED_FEATURES.items())
    ]


async def open_controller(
    env: Env,
    root: str,
    *,
    settings: ControllerSettings,
    rules: ConfigRules,
    config: MetadataLogConfig | None = None,
    clean_shutdown: bool = False,
    may_be_empty: bool = True,
    reserve: SpaceReserve | None = None,
    on_loaded: Callable[[], None] = lambda: None,
) -> ControllerClient:
    """Load the metadata log under a log directory, formatted first if it is new, and begin this process's epoch.

    on_loaded is called, in a thread, when the log is known to be whole and before the epoch begins. `reserve` is disk
    space that decisions may take on a full disk.
    Raises UnusableMetadata when the log cannot be trusted or understood; OSError.
    """

    def load() -> tuple[MetadataLog, Image]:
        if may_be_empty:
            write_bootstrap(root, disk=env.disk, timestamp_ms=env.timestamp_ms())
        metadata_log, image = MetadataLog.load(
            root,
            disk=env.disk,
            node_id=settings.node_id,
            config=config or MetadataLogConfig(),
            timestamp_ms=env.timestamp_ms(),
            clean_shutdown=clean_shutdown,
            may_be_empty=may_be_empty,
            reserve=reserve,
            report=log.warning,
        )
        on_loaded()
        bootstrap = f"{root}/{snapshots.BOOTSTRAP_FILE}"
        return metadata_log, metadata_log.begin_epoch(image, timestamp_ms=env.timestamp_ms(), bootstrap=bootstrap)

    metadata_log, image = await env.run_blocking(load)
    controller = Controller(image, settings=settings, rules=rules, new_uuid=env.new_uuid, now_ms=env.now_ms())
    return ControllerClient(env=env, controller=controller, metadata_log=metadata_log)
