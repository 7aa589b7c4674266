"""The authorizer of a node: it follows the metadata, counts refused requests, and writes the audit log.

Each refused request is one line. Each principal has _LINES of them in _INTERVAL_MS, because a client that is refused
often asks again. A line says when they are used up, and the next one how many were left out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from kbroker.config.authorizer import AuthorizerSettings, parse_super_users
from kbroker.metadata.delta import Delta
from kbroker.metadata.image import Image
from kbroker.metadata.principal import Principal
from kbroker.metadata.publisher import MetadataPublisher
from kbroker.runtime.event_log import get_logger
from kbroker.runtime.limits import RateLimitedLog
from kbroker.runtime.metrics import Tally
from kbroker.runtime.turns import Turns
from kbroker.security.acls import StandardAuthorizer
from kbroker.security.authorizing import Operation, ResourceType

_INTERVAL_MS: Final = 10_000
_LINES: Final = 10

logger = get_logger(__name__)


class AuditedAuthorizer(StandardAuthorizer):
    """A StandardAuthorizer with an audit log; satisfies Authorizer.

    denials  the refused requests by API and type of resource
    """

    def __init__(self, settings: AuthorizerSettings, *, now_ms: Callable[[], int], turns: Turns) -> None:
        super().__init__(
            super_users=parse_super_users(settings.super_users),
            allows_without_acls=settings.allow_everyone_if_no_acl_found,
        )
        self.denials = Tally()
        self._now_ms = now_ms
        self._turns = turns
        self._log_limit = RateLimitedLog(interval_ms=_INTERVAL_MS, lines=_LINES)

    async def follow(self, image: Image, _delta: Delta) -> None:
        """Use the ACLs of a newer image."""
        for _ in self.update_in_steps(image.acls):
            if self._turns.due():
                await self._turns.next()

    def denied(
        self, principal: Principal, host: str, operation: Operation, resource_type: ResourceType, name: str, *, api: str
    ) -> None:
        """See Authorizer."""
        self.denials.add(api, resource_type.name)
        left_out = self._log_limit.admit(principal, now_ms=self._now_ms())
        if left_out is not None:
            logger.info(
                "denied",
                principal=principal,
                host=host,
                operation=operation.name,
                resource=f"{resource_type.name}:{name}",
                api=api,
                left_out=left_out,
            )
        elif self._log_limit.begins_to_leave_out(principal):
            logger.info("further denials are not logged now", principal=principal, seconds=_INTERVAL_MS // 1000)


def authorizer_of(
    settings: AuthorizerSettings, metadata: MetadataPublisher, *, now_ms: Callable[[], int], turns: Turns
) -> AuditedAuthorizer | None:
    """The authorizer that the settings ask for, which follows the metadata; None if every client may do everything."""
    if not settings.authorizer_class_name:
        return None
    made = AuditedAuthorizer(settings, now_ms=now_ms, turns=turns)
    made.update(metadata.image.acls)
    if not (made.super_users or made.count or settings.allow_everyone_if_no_acl_found):
        logger.warning(
            "every request is denied: the cluster has no ACL, and super.users is empty; set it, for instance to "
            "User:ANONYMOUS for the clients of a listener without authentication, and add ACLs with `kbroker acl`"
        )
    metadata.add_listener(made.follow)
    return made
