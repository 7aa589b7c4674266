"""The APIs of the controller listener: other nodes follow the metadata log here and ask for decisions.

A file for each API with logic of its own, as in kbroker.handlers. asking.py lists the APIs that only ask for a
decision. The handlers act on a `ControllerService`, which has the attributes of a broker that the shared handlers use.

Vote, BeginQuorumEpoch, EndQuorumEpoch and the changes of voters are not served, because a kbroker controller is the
only one of its cluster.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

from kbroker.config import Settings
from kbroker.controller.embedded import EmbeddedController
from kbroker.controller.features import SUPPORTED_FEATURES
from kbroker.controller.metadata_log import MetadataLog
from kbroker.controller.port import NEWEST_VERSION, Sender
from kbroker.handlers import Context, Handler
from kbroker.handlers import discover as discover_handlers
from kbroker.metadata.image import Image
from kbroker.runtime.net_ports import Env, Part
from kbroker.runtime.purgatory import Purgatory
from kbroker.runtime.turns import Turns
from wire.errors import ErrorCode
from wire.messages.broker_registration import Endpoint

R = TypeVar("R")

METADATA_CHANGED: Final = "metadata"
"""The key under which fetches of the metadata log wait."""


class ControllerService:
    """What the handlers of the controller listener act on. It satisfies ControllerPort for requests of other nodes.

    listeners  the controller's own, by name
    purgatory  wakes METADATA_CHANGED when more of the log is committed
    answer     answers a whole request frame, for requests in an Envelope; set after the dispatcher is made
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
    ) -> None:
        self.env = env
        self.embedded = controller
        self.settings = settings
        self.cluster_id = cluster_id
        self.node_id = settings.node_id
        self.listeners: Mapping[str, Endpoint] = {endpoint.name: endpoint for endpoint in listeners}
        self.turns = turns
        self.purgatory = Purgatory()
        self.answer: Callable[[memoryview, Context], Awaitable[list[Part] | None]] | None = None
        controller.publisher.add_listener(lambda _image, _delta: self.purgatory.wake(METADATA_CHANGED))

    @property
    def controller(self) -> ControllerService:
        """Where the handlers that brokers and controllers share ask."""
        return self

    @property
    def supported_features(self) -> Mapping[str, tuple[int, int]]:
        """The lowest and highest level of each feature that this controller can finalize."""
        return SUPPORTED_FEATURES

    @property
    def active_id(self) -> int:
        """See ControllerPort."""
        return self.embedded.active_id

    @property
    def log(self) -> MetadataLog:
        """The metadata log."""
        return self.embedded.log

    @property
    def image(self) -> Image:
        """The newest committed image."""
        return self.embedded.publisher.image

    async def ask(
        self,
        request: Any,
        response: type[R],
        *,
        version: int = NEWEST_VERSION,
        is_needed: bool = False,
        sender: Sender | None = None,  # noqa: ARG002  (authorization is not implemented yet)
    ) -> R:
        """See ControllerPort."""
        return await self.embedded.decide(request, response, version=version, is_needed=is_needed)


def epoch_fault(epoch: int, current: int) -> ErrorCode:
    """FENCED_LEADER_EPOCH for the epoch of an earlier leader, UNKNOWN_LEADER_EPOCH for a later one, or NONE."""
    if epoch < current:
        return ErrorCode.FENCED_LEADER_EPOCH
    return ErrorCode.UNKNOWN_LEADER_EPOCH if epoch > current else ErrorCode.NONE


def discover() -> dict[int, Handler[Any]]:
    """The handlers of all modules of this package, by api key."""
    return discover_handlers(__name__)
