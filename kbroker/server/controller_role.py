"""The life of a node with process.roles=controller: it keeps the metadata log and serves other nodes.

It starts to accept connections when its log is loaded and its own registration is in the log. At its end it closes
connections first, and writes the clean-shutdown marker last.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import trio

from kbroker.config import Settings
from kbroker.controller.embedded import EmbeddedController, controller_of
from kbroker.controller.features import SUPPORTED_FEATURES
from kbroker.controller.upkeep import keep_up
from kbroker.metadata.parts import feature_ranges
from kbroker.runtime.event_log import get_logger
from kbroker.runtime.metrics import Metrics
from kbroker.runtime.net_ports import Env, Listener
from kbroker.runtime.turns import Turns
from kbroker.security.audit import authorizer_of
from kbroker.security.securing import NodeSecurity
from kbroker.server.controller_listener import serve_controller
from kbroker.storage.housekeeping import watch_space
from kbroker.storage.log_directory import LogDirectory
from wire.messages.broker_registration import Endpoint
from wire.messages.controller_registration import ControllerRegistrationRequest, ControllerRegistrationResponse

SPACE_INTERVAL_MS = 1_000
STOP_GRACE_MS = 2_000

logger = get_logger(__name__)


async def run_controller(
    env: Env,
    settings: Settings,
    directory: LogDirectory,
    listeners: Sequence[tuple[Endpoint, Sequence[Listener]]],
    *,
    metrics: Metrics,
    turns: Turns,
    stopping: trio.Event,
    on_serving: Callable[[EmbeddedController], None],
    security: NodeSecurity,
) -> None:
    """Run a controller until `stopping`. Calls on_serving when it accepts connections.

    Errors  UnusableMetadata, OSError; KafkaError if the disk fails
    """
    endpoints = [endpoint for endpoint, _ in listeners]
    controller = await controller_of(env, settings, directory, endpoints)
    if not directory.was_used:
        # This file also shows the next start that a metadata log must exist.
        await env.run_blocking(directory.checkpoints.write_recovery_points)
    async with trio.open_nursery() as nursery:
        await nursery.start(controller.run)
        request = ControllerRegistrationRequest(
            controller_id=settings.node_id,
            incarnation_id=env.new_uuid(),
            zk_migration_ready=False,
            listeners=endpoints,
            features=feature_ranges(SUPPORTED_FEATURES),
        )
        await controller.ask(request, ControllerRegistrationResponse)
        nursery.start_soon(partial(keep_up, controller, env, settings.metadata, is_followed=True))
        floor_bytes = settings.limits.kbroker_min_free_bytes
        nursery.start_soon(
            partial(
                watch_space,
                env,
                directory,
                floor_bytes=floor_bytes,
                interval_ms=SPACE_INTERVAL_MS,
                report=logger.warning,
            )
        )
        security.credentials.image = lambda: controller.publisher.image
        server = await serve_controller(
            nursery,
            controller,
            listeners,
            env=env,
            settings=settings,
            cluster_id=directory.identity.cluster_id,
            metrics=metrics,
            turns=turns,
            security=security,
            authorizer=authorizer_of(settings.authorizer, controller.publisher, now_ms=env.now_ms, turns=turns),
        )
        nursery.start_soon(security.run)
        on_serving(controller)
        await stopping.wait()
        await server.stop(grace_ms=STOP_GRACE_MS)
        nursery.cancel_scope.cancel()
    await controller.close()
    await env.run_blocking(directory.close)
    logger.info("stopped")
