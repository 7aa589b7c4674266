"""The node as the pages see it: a Protocol, because the node is in a higher layer."""

from __future__ import annotations

from typing import Protocol

from kbroker.broker import Broker
from kbroker.broker.recovery import RecoveryProgress
from kbroker.config import Settings
from kbroker.metadata.image import Image
from kbroker.runtime.metrics import Metrics
from kbroker.runtime.net_ports import Env
from kbroker.runtime.turns import Turns
from kbroker.security.securing import NodeSecurity
from kbroker.server.tcp import Server
from kbroker.storage.log_directory import LogDirectory


class Observed(Protocol):
    """A node whose addresses are bound.

    Shape  broker and server are None until they are created, and on a node that is only controller
           image is the newest metadata, None until they are loaded; directory is None until it is open
           pages_address is host:port of the HTTP pages, None without them
    Note   is_serving: the node has begun to accept connections
    """

    env: Env
    settings: Settings
    metrics: Metrics
    turns: Turns
    broker: Broker | None
    server: Server | None
    recovery: RecoveryProgress
    directory: LogDirectory | None
    pages_address: str | None
    security: NodeSecurity | None
    is_serving: bool

    @property
    def image(self) -> Image | None: ...

    @property
    def is_stopping(self) -> bool: ...
