"""An audit as one self-contained HTML page without scripts, for light and dark screens and for paper."""

from __future__ import annotations

from importlib.resources import files
from typing import Final

from jinja2 import Environment, StrictUndefined

from kbroker.spark.jobs import audit_charts
from kbroker.spark.jobs.audit_report import AuditReport
from kbroker.tiered.catalogue import name_of

MAX_ROWS: Final = 1_000


def page(report: AuditReport) -> str:
    """The page's HTML."""
    # Autoescape: no name in the report becomes a part of the page.
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined)
    environment.filters |= {
        "size": audit_charts.size_text,
        "time": audit_charts.time_text,
        "number": lambda number: audit_charts.NOTHING if number is None else f"{number:,}",
        "subject": lambda finding: finding.name if finding.segment is None else name_of(finding.segment),
    }
    template = environment.from_string(files(__package__).joinpath("audit.html").read_text(encoding="utf-8"))
    return template.render(
        report=report,
        charts=list(audit_charts.charts(report.partitions)),
        kinds=audit_charts.KINDS,
        labels=audit_charts.LABELS,
        right=audit_charts.RIGHT,
        max_rows=MAX_ROWS,
    )
