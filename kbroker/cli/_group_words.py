"""The states and types of consumer groups on the command line."""

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
    """The words of a comma-separated list, in Kafka's spelling; None for None, [] for an empty text. Case is ignored.

    Raises ArgumentTypeError for an unknown word.
    """
    if text is None:
        return None
    spelled = {name.lower(): name for name in known}
    found = []
    for word in (word.strip() for word in text.split(",") if text):
        if word.lower() not in spelled:
            raise ArgumentTypeError(f"{word!r} is not a {what} of a group; use one of {', '.join(known)}")
        found.append(spelled[word.lower()])
    return found
