"""What a controller of several brokers does by itself: it fences silent brokers, moves leaders back to the preferred
replicas, elects leaders outside of the ISR where that is allowed, writes NoOp records for observers, and logs what
changes in the cluster.

A controller that was stopped itself (a debugger, a suspended machine) finds all sessions expired when it continues,
although the brokers' heartbeats wait in its sockets. So a controller that is late gives the brokers another session.
"""

from __future__ import annotations

from typing import Final

import trio

from kbroker.config.metadata import MetadataSettings
from kbroker.controller.brokers import FenceSilentBroker
from kbroker.controller.embedded import EmbeddedController
from kbroker.controller.event_lines import lines_of
from kbroker.controller.periodic import MAX_ELECTIONS, ElectPreferredLeaders, ElectUncleanLeaders, WriteNoOp
from kbroker.metadata.delta import Delta
from kbroker.metadata.image import Image
from kbroker.runtime.event_log import get_logger
from kbroker.runtime.net_ports import Env
from wire.errors import KafkaError

LATE_MS: Final = 1_000
"""A controller that wakes so much later than it wanted to was stopped itself."""

RETRY_MS: Final = 1_000

logger = get_logger(__name__)


async def keep_up(controller: EmbeddedController, env: Env, config: MetadataSettings, *, is_followed: bool) -> None:
    """Do all of it until cancelled; `is_followed` says whether other nodes can follow the metadata log.

    Every unfenced broker starts with a full session.
    """
    controller.sessions.restore(controller.publisher.image, env.now_ms())
    if is_followed:
        controller.publisher.add_listener(_log_changes)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(fence_silent_brokers, controller, env)
        if config.auto_leader_rebalance_enable:
            interval_ms = config.leader_imbalance_check_interval_seconds * 1_000
            nursery.start_soon(_elect_regularly, controller, env, ElectPreferredLeaders(), interval_ms)
        interval_ms = config.unclean_leader_election_interval_ms
        nursery.start_soon(_elect_regularly, controller, env, ElectUncleanLeaders(), interval_ms)
        if is_followed and config.metadata_max_idle_interval_ms:
            nursery.start_soon(_write_no_ops, controller, env, config.metadata_max_idle_interval_ms)


def _log_changes(_image: Image, delta: Delta) -> None:
    for line in lines_of(delta):
        (logger.warning if line.is_warning else logger.info)(line.event, **line.fields)


async def fence_silent_brokers(controller: EmbeddedController, env: Env) -> None:
    """Fence each broker of another process when its session expires."""
    changed = trio.Event()

    def on_image(_image: Image, delta: Delta) -> None:
        if delta.before.brokers is not delta.after.brokers:
            changed.set()

    controller.publisher.add_listener(on_image)
    while True:
        deadline_ms = controller.sessions.next_deadline_ms(controller.publisher.image)
        if deadline_ms is None:
            await changed.wait()
            changed = trio.Event()
            continue
        wake_ms = max(deadline_ms, env.now_ms())
        await env.sleep_ms(wake_ms - env.now_ms())
        late_ms = env.now_ms() - wake_ms
        if late_ms >= LATE_MS:
            logger.warning("the controller was stopped; brokers get another session", late_ms=late_ms)
            await env.sleep_ms(controller.sessions.timeout_ms)
        try:
            broker_id = await controller.ask(FenceSilentBroker(), object)
        except KafkaError as error:
            logger.error("cannot fence a silent broker; will retry", why=error.message)
            await env.sleep_ms(RETRY_MS)
            continue
        if broker_id is not None:
            logger.warning("no heartbeat of a broker", broker=broker_id, for_ms=controller.sessions.timeout_ms)


async def _elect_regularly(controller: EmbeddedController, env: Env, request: object, interval_ms: int) -> None:
    while True:
        await env.sleep_ms(interval_ms)
        if len(controller.publisher.image.brokers) < 2:
            continue
        try:
            while (elections := await controller.ask(request, int)) > 0:
                logger.info("leaders elected", kind=type(request).__name__, elections=elections)
                if elections < MAX_ELECTIONS:
                    break
        except KafkaError as error:
            logger.error("cannot elect leaders; will retry", why=error.message)


async def _write_no_ops(controller: EmbeddedController, env: Env, interval_ms: int) -> None:
    """Write a NoOp when nothing was written for an interval; none without observers."""
    while True:
        end_offset = controller.publisher.image.end_offset
        await env.sleep_ms(interval_ms)
        if controller.publisher.image.end_offset == end_offset and controller.observers.active(env.timestamp_ms()):
            try:
                await controller.ask(WriteNoOp(), object)
            except KafkaError as error:
                logger.error("cannot write a record for observers; will retry", why=error.message)
                await env.sleep_ms(RETRY_MS)
