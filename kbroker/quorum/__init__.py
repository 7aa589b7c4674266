"""The APIs of the controller listener: other nodes follow the metadata log here and ask for decisions.

A file for each API with logic of its own, as in kbroker.handlers. asking.py lists the APIs that only ask for a
decision. The handlers act on a `ControllerService`, which has the attributes of a broker that the shared handlers use.

Vote, BeginQuorumEpoch, EndQuorumEpoch and the changes of voters are not served, because a kbroker controller is the
only one of its cluster.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

from kbroker.broker.change_log import ChangeLog
from kbroker.config import Settings
from kbroker.controller.embedded import EmbeddedController
from kbroker.controller.features import SUPPORTED_FEATURES
from kbroker.controller.metadata_log import MetadataLog
from kbroker.handlers import Context, Handler
from kbroker.handlers import discover as discover_handlers
from kbroker.metadata.delta import Delta
from kbroker.metadata.image import Image
from kbroker.runtime.net_ports import Env, Part
from kbroker.runtime.purgatory import Purgatory
from kbroker.runtime.turns import Turns
from kbroker.security.audit import AuditedAuthorizer
from wire.errors import ErrorCode
from wire.messages.broker_registration import Endpoint

METADATA_CHANGED: Final = "metadata"
"""The key under which fetches of the metadata log wait."""


class ControllerService:
    """What the handlers of the controller listener act on.

    controller  decides the requests of all nodes
    settings    in force, with the dynamic settings of the controller's node
    listeners   the controller's own, by name
    change_log  logs what clients change
    purgatory   wakes METADATA_CHANGED when more of the log is committed
    authorizer  decides what clients and other nodes may do; None allows everything
    answer      answers a whole request frame, for requests in an Envelope; set after the dispatcher is made
    """

    def __init__(
        self,
        *,
        env: Env,
        controller: EmbeddedController,
        settings: Settings,
        cluster_id: str,
        listeners: Sequence[Endpoint],
        turns: Turns,
        authorizer: AuditedAuthorizer | None = None,
    ) -> None:
        self.env = env
        self.controller = controller
        self._static_settings = settings
        self.cluster_id = cluster_id
        self.node_id = settings.node_id
        self.listeners: Mapping[str, Endpoint] = {endpoint.name: endpoint for endpoint in listeners}
        self.turns = turns
        self.change_log = ChangeLog(env.now_ms, turns)
        self.purgatory = Purgatory()
        self.authorizer = authorizer
        self.answer: Callable[[memoryview, Context], Awaitable[list[Part] | None]] | None = None
        self._apply_settings(self.image)
        controller.publisher.add_listener(self._on_image)

    def _on_image(self, image: Image, delta: Delta) -> None:
        if delta.changed_configs:
            self._apply_settings(image)
        self.purgatory.wake(METADATA_CHANGED)

    def _apply_settings(self, image: Image) -> None:
        cluster, own = image.broker_configs(None), image.broker_configs(self.node_id)
        self.settings = self._static_settings.with_dynamic(cluster, own)

    @property
    def supported_features(self) -> Mapping[str, tuple[int, int]]:
        """The lowest and highest level of each feature that this controller can finalize."""
        return SUPPORTED_FEATURES

    @property
    def log(self) -> MetadataLog:
        """The metadata log."""
        return self.controller.log

    @property
    def image(self) -> Image:
        """The newest committed image."""
        return self.controller.publisher.image


def epoch_fault(epoch: int, current: int) -> ErrorCode:
    """FENCED_LEADER_EPOCH for the epoch of an earlier leader, UNKNOWN_LEADER_EPOCH for a later one, or NONE."""
    if epoch < current:
        return ErrorCode.FENCED_LEADER_EPOCH
    return ErrorCode.UNKNOWN_LEADER_EPOCH if epoch > current else ErrorCode.NONE


def discover() -> dict[int, Handler[Any]]:
    """The handlers of all modules of this package, by api key."""
    return discover_handlers(__name__)
