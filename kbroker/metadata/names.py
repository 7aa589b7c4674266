"""Which topic names are legal, and which two of them would collide.

A topic's name becomes a directory name and part of metric names, so that the rules are narrow: 1 to 249 characters out
of ASCII letters, digits, ``.``, ``_`` and ``-``, and neither ``.`` nor ``..``. Metric names replace ``.`` by ``_``,
therefore two names that differ only so cannot live side by side. Source: Apache Kafka's ``Topic`` class; the texts are
Kafka's, because tools show them to people.
"""

from __future__ import annotations

import re

GROUP_METADATA_TOPIC = "__consumer_offsets"
TRANSACTION_STATE_TOPIC = "__transaction_state"
SHARE_GROUP_STATE_TOPIC = "__share_group_state"
CLUSTER_METADATA_TOPIC = "__cluster_metadata"
REMOTE_LOG_METADATA_TOPIC = "__remote_log_metadata"
"""Where the tier's metadata is. Clients see it as any topic, as in Kafka; the broker knows better (`is_tierable`)."""

INTERNAL_TOPICS = frozenset({GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC, SHARE_GROUP_STATE_TOPIC})

MAX_TOPIC_NAME_LENGTH = 249

_LEGAL = re.compile(r"[a-zA-Z0-9._-]+", re.ASCII)


def is_internal(name: str) -> bool:
    """Whether clients should treat the topic as the cluster's own (``IsInternal`` in Metadata)."""
    return name in INTERNAL_TOPICS


def is_tierable(name: str) -> bool:
    """Whether a topic's segments may be copied to the tier; the cluster's own topics have the setting in vain."""
    return name not in INTERNAL_TOPICS and name not in (REMOTE_LOG_METADATA_TOPIC, CLUSTER_METADATA_TOPIC)


def topic_name_fault(name: str) -> str | None:
    """Why the name is illegal, in Kafka's words, or None when it is legal."""
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
    """The name as metrics see it, or None when the name cannot collide with another."""
    if "." not in name and "_" not in name:
        return None
    return name.replace(".", "_")
