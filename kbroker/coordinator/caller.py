"""The sender of a request, as the group coordinator sees it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from kbroker.metadata.principal import ANONYMOUS, Principal


class Caller(NamedTuple):
    """The sender of a request.

    Shape   client_id is "" if the client sent none; client_host is a slash and the address, as Kafka formats it
    Note    may_describe tells whether it may describe a topic; None if it may describe all
    """

    client_id: str = ""
    client_host: str = ""
    api_version: int = 0
    principal: Principal = ANONYMOUS
    may_describe: Callable[[str], bool] | None = None

    def describable(self, topics: Iterable[str]) -> frozenset[str]:
        """The topics that the sender may describe. Call it on the event loop, where ACLs change."""
        return frozenset(topics if self.may_describe is None else filter(self.may_describe, topics))
