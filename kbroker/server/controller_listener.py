"""Opens the listener of a controller: its dispatcher and server."""

from __future__ import annotations

from collections.abc import Sequence

import trio

from kbroker import quorum
from kbroker.config import Settings
from kbroker.controller.embedded import EmbeddedController
from kbroker.quorum import ControllerService
from kbroker.runtime.metrics import Metrics
from kbroker.runtime.net_ports import Env, Listener
from kbroker.runtime.turns import Turns
from kbroker.security.audit import AuditedAuthorizer
from kbroker.security.securing import NodeSecurity
from kbroker.server.dispatch import Dispatcher
from kbroker.server.tcp import Server
from wire.messages.broker_registration import Endpoint


async def serve_controller(
    nursery: trio.Nursery,
    controller: EmbeddedController,
    listeners: Sequence[tuple[Endpoint, Sequence[Listener]]],
    *,
    env: Env,
    settings: Settings,
    cluster_id: str,
    metrics: Metrics,
    turns: Turns,
    security: NodeSecurity,
    authorizer: AuditedAuthorizer | None,
) -> Server:
    """Accept connections of other nodes for a running controller; the caller stops the server.

    Shape  listeners are advertised addresses, each with the bound addresses for which it stands
    """
    endpoints = [endpoint for endpoint, _ in listeners]
    service = ControllerService(
        env=env,
        controller=controller,
        settings=settings,
        cluster_id=cluster_id,
        listeners=endpoints,
        turns=turns,
        authorizer=authorizer,
    )
    dispatcher = Dispatcher(quorum.discover(), service, metrics=metrics, env=env, turns=turns, limits=settings.limits)
    service.answer = dispatcher.answer
    server = Server(env, dispatcher, metrics=metrics, settings=settings)
    await nursery.start(server.run)
    for endpoint, bound in listeners:
        for listener in bound:
            listener.listen()
            server.add(listener, name=endpoint.name, security=security.of(endpoint.name))
    return server
