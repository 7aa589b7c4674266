"""`kbroker tier scrub` with concurrent changes and stale lists: it reports no false findings."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, ClassVar

import pytest
from kafka import TopicPartition
from kafka.admin import KafkaAdminClient

from kbroker.metadata.names import REMOTE_LOG_METADATA_TOPIC
from kbroker.spark.client import BrokerClient
from kbroker.spark.metadata_fetching import CatalogueFollower
from kbroker.tiered.api import DELETED, IndexType, RemoteLogSegmentMetadata, StoredObject
from kbroker.tiered.catalogue import partition_of
from kbroker.tiered.local import LocalRemoteStorage
from tests.cli.conftest import Run
from tests.cli.directories import flip, starts
from tests.cli.tiered import COLD, Served, Site, TieredBroker


class Changing(LocalRemoteStorage):
    """A store to which something happens once: when it has been listed, or before the first index is read. What
    `unlisted` names the list does not have, and what `remembered` has it does, as one that is old.
    """

    once_listed: ClassVar[Callable[[], None] | None] = None
    once_read: ClassVar[Callable[[], None] | None] = None
    unlisted: ClassVar[frozenset[str]] = frozenset()
    remembered: ClassVar[tuple[StoredObject, ...]] = ()

    def list_objects(self) -> Iterator[StoredObject]:
        found = [each for each in super().list_objects() if each.name not in self.unlisted]
        names = {each.name for each in found}
        happens, Changing.once_listed = Changing.once_listed, None
        if happens is not None:
            happens()
        yield from [*found, *(each for each in self.remembered if each.name not in names)]

    def fetch_index(self, metadata: RemoteLogSegmentMetadata, index_type: IndexType) -> bytes:
        happens, Changing.once_read = Changing.once_read, None
        if happens is not None:
            happens()
        return super().fetch_index(metadata, index_type)


@pytest.fixture(autouse=True)
def _nothing_happens() -> Iterator[None]:
    yield
    Changing.once_listed = Changing.once_read = None
    Changing.unlisted, Changing.remembered = frozenset(), ()


class ScrubRun:
    """The output of a run of scrub. Shape: found are its findings and notes, summary is its last line."""

    def __init__(self, run: Run, site: Site, *words: object) -> None:
        by_class = f"remote.log.storage.manager.class.name={Changing.__module__}:{Changing.__qualname__}"
        done = run("tier", "scrub", "--data-dir", site.data, "--override", by_class, "--format", "json", *words)
        self.code, self.err = done.code, done.err
        assert self.code in {0, 3}, done.err
        found = list(map(json.loads, done.lines))
        self.found: list[dict[str, Any]] = found[:-1]
        self.summary: dict[str, Any] = found[-1]

    def problems(self, kind: str = "finding") -> list[str]:
        return [each["problem"] for each in self.found if each["kind"] == kind]


def source_of(served: Served, *, by_broker: bool) -> list[str]:
    return ["-b", served.address] if by_broker else []


def log_names(site: Site) -> list[str]:
    return [str(path.relative_to(site.tier)) for path in site.objects(COLD, "log")]


def deleted(served: Served) -> int:
    """The number of deleted segments in the broker's metadata. The files contain an event earlier."""
    with BrokerClient({"bootstrap_servers": [served.address]}) as client:
        segments = CatalogueFollower(client).read().segments.values()
    return sum(each.state is DELETED and partition_of(each)[0] == COLD for each in segments)


def expire(served: Served, *, through: int) -> None:
    """Call DeleteRecords, and wait until the metadata have the first segments as deleted."""
    paths = served.site.objects(COLD, "log")
    offset = int(paths[through].name[:20])
    with closing(KafkaAdminClient(bootstrap_servers=served.address)) as admin:
        admin.delete_records({TopicPartition(COLD, 0): offset})
    served.until("the segments leave the tier", lambda: deleted(served) == through)
    assert served.site.objects(COLD, "log") == paths[through:]


def delete_topic(served: Served) -> None:
    count = len(log_names(served.site))
    with closing(KafkaAdminClient(bootstrap_servers=served.address)) as admin:
        admin.delete_topics([COLD])
    served.until("the topic leaves the tier", lambda: deleted(served) == count)


@pytest.fixture
def served(site: Site) -> Iterator[Served]:
    with TieredBroker(site) as served:
        yield served


# --- deletions ---


@pytest.mark.parametrize("by_broker", [True, False])
def test_segments_that_expire_before_the_read_are_not_findings(run: Run, served: Served, by_broker: bool) -> None:
    Changing.once_read = lambda: expire(served, through=2)
    scrub = ScrubRun(run, served.site, "--deep", "-t", COLD, *source_of(served, by_broker=by_broker))
    assert (scrub.code, scrub.problems(), scrub.summary["deleted_meanwhile"]) == (0, [], 2)


def test_a_topic_deleted_during_the_read_is_not_a_finding(run: Run, served: Served) -> None:
    count = len(log_names(served.site))
    Changing.once_read = lambda: delete_topic(served)
    scrub = ScrubRun(run, served.site, "--deep", *source_of(served, by_broker=True))
    assert (scrub.code, scrub.problems(), scrub.summary["deleted_meanwhile"]) == (0, [], count)


def test_expired_segments_missing_from_a_stale_list_are_not_findings(run: Run, served: Served) -> None:
    """The list lacks their indexes, so scrub requests them by name, after they are deleted."""
    first, second = log_names(served.site)[:2]
    Changing.unlisted = frozenset(name.replace(".log", ".index") for name in (first, second))
    Changing.once_read = lambda: expire(served, through=2)
    scrub = ScrubRun(run, served.site, "-t", COLD, *source_of(served, by_broker=True))
    assert (scrub.code, scrub.problems(), scrub.summary["deleted_meanwhile"]) == (0, [], 2)


def test_damage_in_remaining_segments_is_reported(run: Run, served: Served) -> None:
    """The damaged segment stays finished; the segments before it expire."""
    damaged, lost = served.site.objects(COLD, "log")[2:4]
    flip(damaged, starts(damaged)[3] + 100)

    def happens() -> None:
        expire(served, through=2)
        lost.unlink()

    Changing.once_read = happens
    scrub = ScrubRun(run, served.site, "--deep", "-t", COLD, *source_of(served, by_broker=True))
    assert (scrub.code, scrub.problems()) == (3, ["damage", "unreadable"])
    assert [each["segment_id"] for each in scrub.found] == [path.name[21:43] for path in (damaged, lost)]


def test_findings_are_reported_even_if_metadata_become_unreadable(run: Run, site: Site, tmp_path: Path) -> None:
    """Scrub warns that it cannot know whether the segments were deleted during the check."""
    lost = site.objects(COLD, "log")[1]

    def happens() -> None:
        (site.data / f"{REMOTE_LOG_METADATA_TOPIC}-0").rename(tmp_path / "elsewhere")
        lost.unlink()

    Changing.once_read = happens
    scrub = ScrubRun(run, site, "--deep", "-t", COLD)
    assert (scrub.code, scrub.problems()) == (3, ["unreadable"])
    assert "kbroker tier: some findings may be of segments that the broker deleted during the check: " in scrub.err


# --- orphans ---


@pytest.mark.parametrize("by_broker", [True, False])
def test_segments_deleted_after_the_list_leave_no_orphans(run: Run, served: Served, by_broker: bool) -> None:
    """The list has their old objects, and the metadata have them as deleted at the second read."""
    Changing.once_listed = lambda: expire(served, through=2)
    words = ["--min-age-ms", 0, "--delete-orphans", *source_of(served, by_broker=by_broker)]
    scrub = ScrubRun(run, served.site, *words)
    assert (scrub.code, scrub.problems(), scrub.summary["deleted_segments"]) == (0, [], 0)


def listed(site: Site) -> Iterable[StoredObject]:
    storage = LocalRemoteStorage()
    storage.configure({"dir": str(site.tier)})
    return list(storage.list_objects())


def test_m6_deleted_objects_in_a_stale_list_are_not_orphans(run: Run, served: Served) -> None:
    """M6: the list is from before the deletion; the objects do not exist when scrub requests them by name."""
    Changing.remembered = tuple(listed(served.site))
    expire(served, through=2)
    words = ["--min-age-ms", 0, "--delete-orphans", *source_of(served, by_broker=True)]
    scrub = ScrubRun(run, served.site, *words)
    assert (scrub.code, scrub.problems(), scrub.summary["deleted_segments"]) == (0, [], 0)
    assert "stale-list" in scrub.problems("note")  # and perhaps "unfinished", while the broker copies a segment


# --- damage that an old list hides ---


def unlisted(path: Path, site: Site) -> None:
    Changing.unlisted = frozenset({str(path.relative_to(site.tier))})


@pytest.mark.parametrize("kind", ["index", "timeindex", "snapshot", "leader-epoch-checkpoint"])
@pytest.mark.parametrize("words", [[], ["--deep"]])
def test_m6_a_damaged_unlisted_index_is_found(run: Run, site: Site, kind: str, words: list[str]) -> None:
    """M6: scrub requests it by name; the store's error is a finding and does not stop the run."""
    path = site.objects(COLD, kind)[1]
    flip(path, path.stat().st_size - 2)
    unlisted(path, site)
    scrub = ScrubRun(run, site, *words)
    assert (scrub.code, scrub.problems()) == (3, ["damage"])
    assert scrub.found[0]["segment_id"] == path.name[21:43]
    assert scrub.found[0]["text"].startswith(f"the {kind} cannot be read: ")
    assert scrub.summary["segments"] == len(list(site.tier.rglob("*.log")))


@pytest.mark.parametrize("words", [[], ["--deep"]])
def test_m6_a_truncated_unlisted_log_is_found(run: Run, site: Site, words: list[str]) -> None:
    path = site.objects(COLD, "log")[1]
    path.write_bytes(path.read_bytes()[:-1])
    unlisted(path, site)
    scrub = ScrubRun(run, site, *words)
    assert (scrub.code, scrub.problems()) == (3, ["size"])
    assert scrub.found[0]["segment_id"] == path.name[21:43]


def test_m6_a_damaged_unlisted_log_is_found_by_reading(run: Run, site: Site) -> None:
    path = site.objects(COLD, "log")[1]
    flip(path, starts(path)[3] + 100)
    unlisted(path, site)
    scrub = ScrubRun(run, site, "--deep")
    assert (scrub.code, scrub.problems(), scrub.problems("note")) == (3, ["damage"], ["stale-list"])
    assert "has a wrong CRC" in scrub.found[1]["text"]


def test_m6_a_nonexistent_unlisted_object_is_missing(run: Run, site: Site) -> None:
    path = site.objects(COLD, "index")[1]
    path.unlink()
    scrub = ScrubRun(run, site, "--deep")
    assert (scrub.code, scrub.problems(), scrub.summary["deleted_meanwhile"]) == (3, ["missing"], 0)
