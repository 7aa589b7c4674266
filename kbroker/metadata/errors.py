"""The one error of metadata that cannot be used."""

from __future__ import annotations


class UnusableMetadata(Exception):
    """The metadata log or a snapshot holds what this version cannot apply; whoever meets it stops the process with this
    text.

    There is no partial answer: a broker that skipped a record would serve another cluster than its peers do.
    """
