"""The error for unusable metadata."""

from __future__ import annotations


class UnusableMetadata(Exception):
    """The metadata log or a snapshot has a record that this version cannot apply. The process stops with this message.

    Skipping a record is not an option: the broker would serve a different cluster state than its peers.
    """
