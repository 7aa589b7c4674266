"""The states and types that a consumer group may have, as words of the command line."""

from __future__ import annotations

from argparse import ArgumentTypeError
from typing import Final

STATES: Final = (
    "PreparingRebalance",
    "CompletingRebalance",
    "Stable",
    "Dead",
    "Empty",
    "Assigning",
    "Reconciling",
    "NotReady",
)
TYPES: Final = ("Classic", "Consumer", "Share", "Streams")


def chosen(text: str | None, known: tuple[str, ...], what: str) -> list[str] | None:
    """The words of a list with commas, in Kafka's spelling whatever the case; None for no list, [] for an empty one.

    Raises ArgumentTypeError for a word that is not known.
    """
    if text is None:
        return None
    spelled = {name.lower(): name for name in known}
    found = []
    for word in (word.strip() for word in text.split(",") if text):
        if word.lower() not in spelled:
            raise ArgumentTypeError(f"{word!r} is no {what} of a group; there are {', '.join(known)}")
        found.append(spelled[word.lower()])
    return found
