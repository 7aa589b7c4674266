"""The memory that the connections of a server use together."""

from __future__ import annotations

from typing import Final

from kbroker.runtime.budget import EvictingBudget, SplitBudget

_SMALL_BYTES: Final = 2 * 1024 * 1024
"""Twice the default request size of producers: such a request never waits behind larger ones for memory."""


class Memory:
    """The budgets that all connections of a server share.

    Bound  max_request_bytes: a quarter is for requests no larger than one receive that arrived only in part (`cut`).
           The rest is for larger requests (`requests`); half of it is reserved for requests of up to _SMALL_BYTES. A
           negative number means no bound. max_answer_bytes: replies that clients have not accepted yet.
           max_login_bytes: requests of connections that have not logged in; beyond it the oldest one is closed
    """

    def __init__(self, *, max_request_bytes: int, max_answer_bytes: int, max_login_bytes: int) -> None:
        quarter = max_request_bytes // 4 if max_request_bytes >= 0 else -1
        self.cut = EvictingBudget(quarter)
        self.requests = SplitBudget(3 * quarter, small_bytes=_SMALL_BYTES)
        self.answers = EvictingBudget(max_answer_bytes)
        self.logins = EvictingBudget(max_login_bytes)

    @property
    def request_bytes(self) -> int:
        """Bytes of all requests that are being received or handled."""
        return self.cut.used_bytes + self.requests.used_bytes + self.logins.used_bytes

    @property
    def evicted(self) -> int:
        """The number of connections closed to free memory."""
        return self.cut.evicted + self.answers.evicted + self.logins.evicted
