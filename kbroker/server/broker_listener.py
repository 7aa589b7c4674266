"""Makes the server for a broker's listeners, and applies changed settings to it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from kbroker import handlers
from kbroker.broker import Broker
from kbroker.config.rules import resource_warnings
from kbroker.metadata.delta import Delta
from kbroker.metadata.image import CLIENT_METRICS_RESOURCE, GROUP_RESOURCE, TOPIC_RESOURCE, Image
from kbroker.metadata.names import is_internal
from kbroker.runtime.event_log import get_logger
from kbroker.runtime.metrics import Metrics
from kbroker.server.dispatch import Dispatcher
from kbroker.server.tcp import Server

_WARNED_OF: Final = {TOPIC_RESOURCE: "topic", GROUP_RESOURCE: "group", CLIENT_METRICS_RESOURCE: "subscription"}
"""Resource types whose changed settings can cause a warning -> field of the log line that names the resource."""

logger = get_logger(__name__)


def server_of(broker: Broker, metrics: Metrics, chosen: Mapping[int, handlers.Handler[Any]] | None = None) -> Server:
    """The server of a broker, which follows its metadata; the caller runs it and adds listeners.

    `chosen` are the handlers that serve clients, all by default.
    """
    env, settings = broker.env, broker.settings
    dispatcher = Dispatcher(
        chosen or handlers.discover(),
        broker,
        metrics=metrics,
        env=env,
        turns=broker.turns,
        limits=settings.limits,
        quotas=broker.quotas,
    )
    server = Server(env, dispatcher, metrics=metrics, settings=settings)

    def on_image(image: Image, delta: Delta) -> None:
        if delta.changed_configs:
            server.apply(broker.settings)
            if broker.security is not None:
                broker.security.request_renewal(broker.settings)
        for kind, name in delta.changed_configs:
            what = _WARNED_OF.get(kind)
            if what is not None and not (kind == TOPIC_RESOURCE and is_internal(name)):
                for warning in resource_warnings(kind, image.configs.get((kind, name), {})):
                    logger.warning(warning, **{what: name})

    broker.metadata.add_listener(on_image)
    return server
