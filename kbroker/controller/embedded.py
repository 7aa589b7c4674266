"""The runtime of an embedded controller: a single writer makes decisions one after the other, commits them, and
publishes the result.

A caller submits a request and waits. The writer takes the waiting requests (at most MAX_GROUP) and decides each on the
state after the previous one. It puts their records into one batch, writes and syncs it in a thread, and publishes the
new image. After that the callers get their response or KafkaError. An error waits too, because it may depend on a
decision that is not durable yet. So ten requests that arrive during a sync cost one more sync, not ten.

On a full disk, when the reserve is used up, decisions fail with KAFKA_STORAGE_ERROR and can be retried. If writing the
log fails for another reason, `run` raises `UnusableMetadata` and the process ends, because it is unknown whether the
decisions are on the disk.

Snapshots are written concurrently with decisions, from an immutable image.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeVar, TypeVarTuple

import trio

from kbroker.config import Settings
from kbroker.config.metadata import MetadataSettings
from kbroker.config.rules import ConfigRules
from kbroker.controller import snapshots
from kbroker.controller.bootstrap import users_of, write_bootstrap
from kbroker.controller.context import ControllerSettings
from kbroker.controller.controller import Controller
from kbroker.controller.decisions import Decision
from kbroker.controller.metadata_leader import MetadataLeader, Staged
from kbroker.controller.metadata_loading import load_metadata_log
from kbroker.controller.port import NEWEST_VERSION, Sender
from kbroker.controller.records import MAX_BATCH_BYTES, encode_value
from kbroker.controller.snapshot_task import write_snapshots
from kbroker.metadata.image import Image
from kbroker.metadata.publisher import MetadataPublisher
from kbroker.runtime.event_log import get_logger
from kbroker.runtime.net_ports import Env
from kbroker.runtime.outcome import Outcome
from kbroker.storage.log_directory import LogDirectory
from kbroker.storage.plans import DirectoryState
from kbroker.storage.reserve import SpaceReserve
from kbroker.storage.rewriting import marking
from wire.errors import ErrorCode, KafkaError
from wire.messages.broker_registration import Endpoint

R = TypeVar("R")
Arguments = TypeVarTuple("Arguments")

MAX_GROUP: Final = 1_000
"""The most decisions that share one sync; the others wait for the next one."""

logger = get_logger(__name__)


@dataclass(eq=False, slots=True)
class _Waiting:
    """One request and the task that waits for its decision; the response or the error is set before `done`."""

    request: Any
    decision: Decision[Any, Any]
    version: int
    sender: Sender | None
    done: trio.Event = field(default_factory=trio.Event)
    error: Exception | None = None
    response: Any = None


class EmbeddedController:
    """The controller in the broker's own process; satisfies ControllerPort. It decides only while `run` is running.

    publisher  publishes each state when it is durable
    decisions  by request class
    log        the metadata log; it may be read at any time below the end of the published image
    sessions   which brokers are alive
    observers  which nodes follow the metadata log
    mutation_quota  what clients have used of controller_mutation_rate
    """

    def __init__(
        self, *, env: Env, controller: Controller, leader: MetadataLeader, is_short_of_space: Callable[[], bool]
    ) -> None:
        self.publisher = MetadataPublisher(controller.image)
        self.sessions = controller.sessions
        self.observers = controller.observers
        self.mutation_quota = controller.mutation_quota
        self._env = env
        self._controller = controller
        self.decisions = controller.decisions
        self._leader = leader
        self.log = leader.log
        self._is_short_of_space = is_short_of_space
        self._log_lock = trio.Lock()
        self._waiting: list[_Waiting] = []
        self._arrived = trio.Event()

    # -- background tasks

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Make decisions and write snapshots until cancelled. UnusableMetadata if the log cannot be written."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(write_snapshots, self._env, self.log, self.publisher, self._log_lock)
            nursery.start_soon(self._write_decisions)
            task_status.started()

    async def _write_decisions(self) -> None:
        while True:
            if not self._waiting:
                self._arrived = trio.Event()
                await self._arrived.wait()
            group, self._waiting = self._waiting[:MAX_GROUP], self._waiting[MAX_GROUP:]
            await self._carry_out(group)
            await self.publisher.publish(self._controller.image)
            for waiting in group:
                waiting.done.set()

    async def _carry_out(self, group: list[_Waiting]) -> None:
        """Make the decisions of a group, each on the state after the previous one, and commit them.

        On a full disk, the decisions that are not committed fail and have no effect.
        """
        staged: Staged | None = None
        settled, image = 0, self._controller.image  # the number of committed decisions, and the state after them
        try:
            for number, waiting in enumerate(group):
                call = self._env.run_blocking if waiting.decision.may_be_long(waiting.request) else _call
                decided = await self._decide(waiting, call)
                if decided is None:
                    continue
                records, values = decided
                metadata_version = self._controller.image.metadata_version
                if staged is not None and not self._leader.fits(values, onto=staged):
                    await self._write(staged)
                    staged, settled, image = None, number, self._controller.image
                staged = self._leader.stage(values, metadata_version=metadata_version, onto=staged)
                replay = partial(self._controller.replay, offset=staged.end_offset - 1, epoch=self.log.epoch)
                await call(replay, records)
            if staged is not None:
                await self._write(staged)
        except KafkaError as error:
            logger.error("cannot write metadata", decisions=len(group) - settled, why=error.message)
            self._controller.image = image
            for waiting in group[settled:]:
                waiting.error = error

    async def _decide(
        self, waiting: _Waiting, call: Callable[..., Awaitable[Any]]
    ) -> tuple[Sequence[Any], list[bytes]] | None:
        """Make one decision. Returns its records, as objects and encoded, or None if it has none or failed."""
        try:
            outcome, values = await call(self._work_out, waiting, self._env.now_ms())
        except Exception as error:  # noqa: BLE001 - a decision changes nothing, so its caller gets even a bug
            waiting.error = error
            return None
        waiting.response = outcome.response
        return (outcome.records, values) if outcome.records else None

    def _work_out(self, waiting: _Waiting, now_ms: int) -> tuple[Outcome[Any], list[bytes]]:
        outcome = self._controller.decide(
            waiting.request,
            now_ms=now_ms,
            timestamp_ms=self._env.timestamp_ms(),
            version=waiting.version,
            sender=waiting.sender,
        )
        metadata_version = self._controller.image.metadata_version
        return outcome, [encode_value(record, metadata_version) for record in outcome.records]

    async def _write(self, staged: Staged) -> None:
        """Errors: KAFKA_STORAGE_ERROR if the disk is full; UnusableMetadata."""
        async with self._log_lock:
            await self._env.run_blocking(partial(self._leader.write, staged, timestamp_ms=self._env.timestamp_ms()))

    # -- decisions

    @property
    def active_id(self) -> int:
        """See ControllerPort."""
        return self._controller.settings.node_id

    async def ask(
        self,
        request: Any,
        response: type[R],
        *,
        version: int = NEWEST_VERSION,
        is_needed: bool = False,
        sender: Sender | None = None,
    ) -> R:
        """See ControllerPort.

        On a nearly full disk, decisions that add data are refused with KAFKA_STORAGE_ERROR, unless the request
        `is_needed` to read or copy data. Decisions that change data are refused once half of the reserve is used.
        If the caller is cancelled, its request is withdrawn; a decision that has begun is still made.
        """
        decision = self.decisions[type(request)]
        adds = decision.adds and not is_needed
        changes = decision.changes or is_needed
        if (adds and self._is_short_of_space()) or (changes and self.log.reserve.is_half_spent):
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "the disk is nearly full")
        waiting = _Waiting(request, decision, version, sender)
        self._waiting.append(waiting)
        self._arrived.set()
        try:
            await waiting.done.wait()
        finally:
            if not waiting.done.is_set() and waiting in self._waiting:
                self._waiting.remove(waiting)  # a caller that asks again must not fill the queue of a writer that hangs
        if waiting.error is not None:
            raise waiting.error
        assert isinstance(waiting.response, response)
        return waiting.response

    async def close(self) -> None:
        """Sync and close the log; `run` must have ended."""
        await self._env.run_blocking(self.log.close)


async def _call(function: Callable[[*Arguments], R], *arguments: *Arguments) -> R:
    return function(*arguments)


async def open_controller(
    env: Env,
    root: str,
    *,
    settings: ControllerSettings,
    rules: ConfigRules,
    config: MetadataSettings,
    max_batch_bytes: int = MAX_BATCH_BYTES,
    clean_shutdown: bool = False,
    may_be_empty: bool = True,
    first_records: Callable[[], list[Any]] = list,
    reserve: SpaceReserve | None = None,
    is_short_of_space: Callable[[], bool] = lambda: False,
    on_failure: Callable[[OSError], None] | None = None,
    on_loaded: Callable[[], None] = lambda: None,
) -> EmbeddedController:
    """Load the metadata log under a log directory, formatting it first if it is new, and start this process's epoch.

    first_records gives more records for a new log, in a thread. on_loaded is called, in a thread, after the log is
    validated and before the epoch starts. `reserve` is disk space that decisions may use on a full disk;
    is_short_of_space tells whether the disk is nearly full. on_failure is called if the log cannot be written, maybe in
    a thread.
    Raises UnusableMetadata if the log is inconsistent or of an unknown version; OSError.
    """

    def load() -> tuple[MetadataLeader, Image]:
        if may_be_empty:
            write_bootstrap(root, disk=env.disk, timestamp_ms=env.timestamp_ms(), more=first_records)
        metadata_log, image = load_metadata_log(
            root,
            disk=env.disk,
            node_id=settings.node_id,
            config=config,
            max_batch_bytes=max_batch_bytes,
            timestamp_ms=env.timestamp_ms(),
            clean_shutdown=clean_shutdown,
            may_be_empty=may_be_empty,
            reserve=reserve,
            state=DirectoryState(on_failure),
            report=logger.warning,
        )
        on_loaded()
        bootstrap = f"{root}/{snapshots.BOOTSTRAP_FILE}"
        leader = MetadataLeader(metadata_log, node_id=settings.node_id)
        image = leader.begin_epoch(
            image, disk=env.disk, timestamp_ms=env.timestamp_ms(), new_uuid=env.new_uuid, bootstrap=bootstrap
        )
        return leader, image

    leader, image = await env.run_blocking(load)
    controller = Controller(image, settings=settings, rules=rules, new_uuid=env.new_uuid, now_ms=env.now_ms())
    return EmbeddedController(env=env, controller=controller, leader=leader, is_short_of_space=is_short_of_space)


async def controller_of(
    env: Env, settings: Settings, directory: LogDirectory, listeners: Sequence[Endpoint]
) -> EmbeddedController:
    """Open the controller of a node in its log directory; `listeners` are its advertised addresses.

    Errors  UnusableMetadata, OSError
    """
    return await open_controller(
        env,
        directory.path,
        settings=ControllerSettings.of(settings, directory.identity.cluster_id, listeners=listeners),
        rules=ConfigRules(settings),
        config=settings.metadata,
        clean_shutdown=directory.was_clean,
        may_be_empty=not directory.was_used,
        first_records=partial(users_of, env.disk, settings.sasl.kbroker_bootstrap_users_file, env.new_uuid),
        on_failure=marking(directory.disk, directory.path),
        on_loaded=directory.begin,
        reserve=directory.reserve,
        is_short_of_space=lambda: directory.state.is_short_of_space,
    )
