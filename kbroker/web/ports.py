"""What the pages need of the node, as a Protocol: the node stands above them."""

from __future__ import annotations

from typing import Protocol

from kbroker.broker import Broker
from kbroker.broker.recovery import RecoveryProgress
from kbroker.config import Settings
from kbroker.runtime.metrics import Metrics
from kbroker.runtime.net_ports import Env
from kbroker.server.tcp import Server


class Observed(Protocol):
    """A node, from the moment at which its addresses are bound.

    Shape  broker and server are None until they are there
    Note   is_serving: connections are accepted, or have been
    """

    @property
    def env(self) -> Env: ...

    @property
    def settings(self) -> Settings: ...

    @property
    def metrics(self) -> Metrics: ...

    @property
    def broker(self) -> Broker | None: ...

    @property
    def server(self) -> Server | None: ...

    @property
    def recovery(self) -> RecoveryProgress: ...

    @property
    def is_serving(self) -> bool: ...

    @property
    def is_stopping(self) -> bool: ...
