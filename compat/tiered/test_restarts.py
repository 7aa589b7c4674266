"""Scenarios with a restart in between, combined so that each broker restarts only once."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from compat.tiered.site import (
    EARLIEST,
    EARLIEST_LOCAL,
    LATEST,
    LATEST_TIERED,
    ONLY_THE_ACTIVE_ONE,
    TIERED,
    Records,
    Site,
    Sites,
)
from compat.tiered.test_scenarios import COPIED, DELETED

# The broker's checkpoint files; none of them has the log start offsets.
CHECKPOINTS = ("replication-offset-checkpoint", "recovery-point-offset-checkpoint", ".kafka_cleanshutdown")


@dataclass(frozen=True)
class Topics:
    """Names of the topics that exist across the restart."""

    steady: str
    shortened: str
    live: str


def damage(site: Site) -> None:
    """Delete the checkpoints and the cache of the tier's indexes: a restart must work without both."""
    directory = site.broker.log_directory
    assert directory is not None
    for checkpoint in CHECKPOINTS:
        (directory / checkpoint).unlink(missing_ok=checkpoint == ".kafka_cleanshutdown")
    shutil.rmtree(directory / "remote-log-index-cache", ignore_errors=True)


@pytest.fixture(scope="module")
def restarted(sites: Sites, new_topic_name: Callable[[str], str]) -> Topics:
    """Three topics with segments in the tier, and a broker that has been stopped, damaged and restarted."""
    topics = Topics(*(new_topic_name(f"restarted-{stem}") for stem in ("steady", "shortened", "live")))
    for topic in (topics.steady, topics.shortened):
        sites.create(topic, TIERED, ONLY_THE_ACTIVE_ONE)
        sites.produce(topic, Records([0, 0, 2, 2, 4], records=2))
        sites.expect_remote(topic, (0, 3), (4, 7))
        sites.expect_local(topic, 8)
    sites.create(topics.live, remote_storage_enable="false", segment_ms="3600000")
    sites.produce(topics.live, Records([0, 2]))
    assert sites.each(lambda site: site.delete_records(topics.shortened, 5)) == 5
    sites.expect_states(topics.shortened, DELETED, COPIED)
    for site in sites.all:
        site.restart(between=damage)
        for topic in (topics.steady, topics.shortened, topics.live):
            site.await_leaders(topic)
    return topics


def test_a_restart_keeps_the_offsets_of_the_tier(sites: Sites, restarted: Topics) -> None:
    """KAFKA-15351, KAFKA-16146: the start of the log and the start of its local part are two offsets."""
    assert sites.each(lambda site: site.offset(restarted.steady, EARLIEST)) == (0, 0, -1, 0)
    assert sites.each(lambda site: site.offset(restarted.shortened, EARLIEST)) == (0, 5, -1, 0)
    sites.expect_offset(restarted.steady, LATEST_TIERED, 7)
    sites.expect_offset(restarted.shortened, LATEST_TIERED, 7)
    for topic in (restarted.steady, restarted.shortened):
        assert sites.each(lambda site, topic=topic: site.offset(topic, EARLIEST_LOCAL)) == (0, 8, -1, 0)
        assert sites.each(lambda site, topic=topic: site.offset(topic, LATEST)[1]) == 10
    sites.expect_all_read(restarted.steady, 0, 10)
    sites.expect_all_read(restarted.shortened, 5, 5)
    sites.agree_on_segments(restarted.steady)
    sites.agree_on_segments(restarted.shortened)


def test_a_segment_can_have_two_leader_epochs(sites: Sites, restarted: Topics) -> None:
    sites.produce(restarted.steady, Records([4, 6], records=3))
    sites.expect_remote(restarted.steady, (0, 3), (4, 7), (8, 12))
    epochs = sites.each(lambda site: site.epochs(restarted.steady))
    assert [start for _, start in epochs] == [0, 10]
    copied = sites.agree_on_segments(restarted.steady)[-1]
    assert copied.epochs == ((0, 8), (epochs[1][0], 10))
    sites.expect_offset(restarted.steady, LATEST_TIERED, 12, epoch=epochs[1][0])
    sites.expect_offset(restarted.steady, EARLIEST_LOCAL, 13, epoch=epochs[1][0])
    sites.expect_all_read(restarted.steady, 0, 16)
    for epoch in range(-1, epochs[1][0] + 2):
        sites.each(lambda site, epoch=epoch: site.end_of_epoch(restarted.steady, epoch))


def test_enabling_after_a_restart_copies_older_segments(sites: Sites, restarted: Topics) -> None:
    sites.produce(restarted.live, Records([4, 6]))
    sites.alter(restarted.live, remote_storage_enable="true", local_retention_bytes="1")
    sites.expect_remote(restarted.live, (0, 0), (1, 1), (2, 2))
    sites.expect_local(restarted.live, 3)
    sites.expect_all_read(restarted.live, 0, 4)
    sites.agree_on_segments(restarted.live)


def test_deleting_past_an_epoch_removes_the_epoch(sites: Sites, restarted: Topics) -> None:
    """The leader epochs reach down to the start of the log, and no further."""
    sites.produce(restarted.shortened, Records([6, 8], records=2))
    sites.expect_local(restarted.shortened, 12)
    assert sites.each(lambda site: site.delete_records(restarted.shortened, 11)) == 11
    sites.expect_states(restarted.shortened, DELETED, DELETED, DELETED, COPIED)
    sites.expect_offset(restarted.shortened, EARLIEST, 11, epoch=sites.each(_newest_epoch(restarted.shortened)))
    assert len(sites.each(lambda site: site.epochs(restarted.shortened))) == 1
    sites.expect_all_read(restarted.shortened, 11, 3)


def _newest_epoch(topic: str) -> Callable[[Site], int]:
    return lambda site: site.epochs(topic)[-1][0]
