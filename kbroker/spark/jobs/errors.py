"""What a job refuses to do."""

from __future__ import annotations

from kbroker.spark.errors import KbrokerSourceError


class JobError(KbrokerSourceError):
    """A job cannot do what it was asked to."""


class ExportConflict(JobError):
    """An output directory that holds something else than what would be added to it."""


class ReplayConflict(JobError):
    """A target that is not as this replay left it, or that cannot hold what the source has."""


class IncompleteExport(JobError):
    """An export's directory that has not, or not yet, all that it tells of."""
