"""A short run of `python -m compat.torture.spark`, which `make soak` runs for longer."""

from __future__ import annotations

from pathlib import Path

from compat.tiered.site import Site
from compat.torture.spark import torture


def test_streams_survive_kills_of_driver_and_broker(tiered_site: Site, tmp_path: Path) -> None:
    """The files have every record of a tiered topic exactly once, and the other topic at least once."""
    run = torture(tiered_site, tmp_path / "driver", seed=11, records=500, kills=2)
    assert run.findings == []
    assert (run.driver_kills, run.broker_kills) == (2, 2)
