"""The errors of jobs."""

from __future__ import annotations

from kbroker.spark.errors import KbrokerSourceError


class JobError(KbrokerSourceError):
    """A job cannot do what was requested."""


class ExportConflict(JobError):
    """The output directory contains something that the export cannot be added to."""


class ReplayConflict(JobError):
    """The target is not as this replay left it, or it cannot store the source's records."""


class IncompleteExport(JobError):
    """The directory of an export that is not complete."""
