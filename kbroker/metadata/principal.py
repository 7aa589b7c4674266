"""Who a client is, for the checks of what it may do.

Source  KafkaPrincipal of Apache Kafka 4.3.1
"""

from __future__ import annotations

from typing import Final, NamedTuple


class Principal(NamedTuple):
    """An identity; its text is "User:alice"."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


ANONYMOUS: Final = Principal("User", "ANONYMOUS")
"""The principal of clients on a listener without authentication."""
