"""Legal and colliding topic names.

A topic's name becomes a directory name and part of metric names, so the rules are narrow: 1 to 249 ASCII letters,
digits, ``.``, ``_`` and ``-``, and neither ``.`` nor ``..``. Metric names replace ``.`` by ``_``, so two names that
differ only in these characters cannot coexist. Source: Apache Kafka's ``Topic`` class; the messages are Kafka's,
because tools show them to users.
"""

from __future__ import annotations

import re
from typing import Final

GROUP_METADATA_TOPIC: Final = "__consumer_offsets"
TRANSACTION_STATE_TOPIC: Final = "__transaction_state"
SHARE_GROUP_STATE_TOPIC: Final = "__share_group_state"
CLUSTER_METADATA_TOPIC: Final = "__cluster_metadata"
REMOTE_LOG_METADATA_TOPIC: Final = "__remote_log_metadata"
"""The topic of the tier's metadata. Clients see a normal topic, as in Kafka; for the broker see `is_tierable`."""

INTERNAL_TOPICS: Final = frozenset({GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC, SHARE_GROUP_STATE_TOPIC})

MAX_TOPIC_NAME_LENGTH: Final = 249

_LEGAL: Final = re.compile(r"[a-zA-Z0-9._-]+", re.ASCII)


def is_internal(name: str) -> bool:
    """Whether clients should treat the topic as internal (``IsInternal`` in Metadata)."""
    return name in INTERNAL_TOPICS


def is_tierable(name: str) -> bool:
    """Whether the topic's segments may be copied to the tier; for internal topics the setting has no effect."""
    return name not in INTERNAL_TOPICS and name not in (REMOTE_LOG_METADATA_TOPIC, CLUSTER_METADATA_TOPIC)


def topic_name_fault(name: str) -> str | None:
    """Why the name is illegal, in Kafka's words, or None if it is legal."""
    if not name:
        return "Topic name is invalid: the empty string is not allowed"
    if name in {".", ".."}:
        return f"Topic name is invalid: '{name}' is not allowed"
    if len(name) > MAX_TOPIC_NAME_LENGTH:
        reason = f"the length of '{name}' is longer than the max allowed length {MAX_TOPIC_NAME_LENGTH}"
        return f"Topic name is invalid: {reason}"
    if _LEGAL.fullmatch(name) is None:
        reason = f"'{name}' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"
        return f"Topic name is invalid: {reason}"
    return None


def collision_key(name: str) -> str | None:
    """The name as metrics see it, or None if it cannot collide with another."""
    if "." not in name and "_" not in name:
        return None
    return name.replace(".", "_")
