"""A short run of the soak of the tier; `python -m compat.torture.tier_reads` runs it for longer."""

from __future__ import annotations

from pathlib import Path

import pytest

from compat.tiered.site import Site
from compat.torture.tier_reads import BROKER, CODECS, Contents, Soak


def test_every_record_in_the_tier_is_correct_or_refused(kafka_libraries: Path, tmp_path: Path) -> None:
    """M13 and D10: kills during filling and reading, then changed, cut and deleted files of the tier."""
    assert kafka_libraries.is_dir()  # the directory of the schemas for the requests
    site = Site.in_directory(tmp_path, is_kafka=False, settings=BROKER)
    site.broker.start()
    try:
        soak = Soak(site, seed=7)
        soak.produce(30, kills=1, segment_bytes=1 << 20)
        soak.read_at_random(40, kills=1)
        soak.damage(9)
        soak.read_all()
    finally:
        site.broker.kill()
    assert soak.findings == []
    assert (soak.kills, soak.damaged) == (2, 9)
    assert soak.reads == 40 + 9 + len(CODECS)


@pytest.mark.long
def test_record_contents_follow_from_their_place() -> None:
    """The verifier distinguishes places, and runs."""
    one, other = Contents(1), Contents(2)
    values = {run.value(partition, offset) for run in (one, other) for partition in (0, 1) for offset in range(100)}
    assert len(values) == 400
    assert one.value(0, 7) == Contents(1).value(0, 7)
