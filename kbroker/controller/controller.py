"""The controller: it decides on the newest state, and replays records into that state.

A decision (decisions.py) is a function of its request and of this state, and does not change the metadata. The single
writer (embedded.py) appends the records and passes them to `replay`, which creates the next image. It is ahead of the
published one by the records that are not synced yet, so that each decision sees the previous ones. Only the broker
sessions, the observers and the quota of mutations are not in the log: they depend on the clock of this process, and a
new controller restarts them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

from kbroker.config.rules import ConfigRules
from kbroker.controller.context import Context, ControllerSettings
from kbroker.controller.decisions import discover
from kbroker.controller.mutation_quota import MutationQuota
from kbroker.controller.observers import QuorumObservers
from kbroker.controller.port import NEWEST_VERSION, Sender
from kbroker.controller.sessions import BrokerSessions
from kbroker.metadata.image import Image
from kbroker.runtime.outcome import Outcome


class Controller:
    """The state that decisions are made on.

    image      the state after all replayed records
    decisions  by request class
    sessions   which brokers are alive
    observers  which nodes follow the metadata log
    mutation_quota  what clients have used of controller_mutation_rate
    """

    def __init__(
        self,
        image: Image,
        *,
        settings: ControllerSettings,
        rules: ConfigRules,
        new_uuid: Callable[[], UUID],
        now_ms: int,
    ) -> None:
        self.image = image
        self.settings = settings
        self.decisions = discover()
        self._rules = rules
        self._new_uuid = new_uuid
        self.observers = QuorumObservers()
        self.mutation_quota = MutationQuota(settings.quota_windows, max_clients=settings.max_quota_clients)
        self.sessions = BrokerSessions(settings.broker_session_timeout_ms)
        self.sessions.restore(image, now_ms)

    def replay(self, records: Sequence[Any], *, offset: int, epoch: int) -> Image:
        """Replay these records, the last of which has this offset. Returns the new image."""
        self.image = self.image.apply(records, offset=offset, epoch=epoch)
        return self.image

    def decide(
        self,
        request: Any,
        *,
        now_ms: int,
        timestamp_ms: int,
        version: int = NEWEST_VERSION,
        sender: Sender | None = None,
    ) -> Outcome[Any]:
        """Make the decision for a request of a client, in its version, or of the broker itself. Errors: KafkaError."""
        mutations = self.mutation_quota.of(sender, self.image.client_quotas, now_ms)
        context = Context(
            self.image,
            self.settings,
            self._rules,
            self._new_uuid,
            self.sessions,
            self.observers,
            mutations,
            now_ms,
            timestamp_ms,
            version,
        )
        outcome = self.decisions[type(request)](context, request)
        if mutations.throttle_time_ms:
            outcome.response.throttle_time_ms = mutations.throttle_time_ms
        return outcome
