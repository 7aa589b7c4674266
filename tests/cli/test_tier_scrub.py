"""`kbroker tier scrub`: a sound tier has no findings; missing, damaged and surplus objects are found."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from kbroker.metadata.names import REMOTE_LOG_METADATA_TOPIC
from kbroker.tiered.api import StoredObject
from kbroker.tiered.local import LocalRemoteStorage
from tests.cli.conftest import Done, Run
from tests.cli.directories import flip, starts
from tests.cli.tiered import COLD, GONE, WARM, Served, Site, TieredBroker, append_to_metadata
from wire.types import uuid_to_text

HOURS = 3_600
Scrub = Callable[..., tuple[Done, list[dict[str, Any]], dict[str, Any]]]


@pytest.fixture
def scrub(run: Run) -> Scrub:
    """The exit code of a run, its findings and notes, and its summary."""

    def scrub(site: Site, *words: object) -> tuple[Done, list[dict[str, Any]], dict[str, Any]]:
        done = run("tier", "scrub", "--data-dir", site.data, "--format", "json", *words)
        assert done.code in {0, 3}, done.err
        *found, summary = map(json.loads, done.lines)
        assert summary["findings"] == sum(each["kind"] == "finding" for each in found)
        assert (done.code == 3) == (summary["findings"] > 0)
        return done, found, summary

    return scrub


def problems(found: list[dict[str, Any]], kind: str = "finding") -> list[str]:
    return [each["problem"] for each in found if each["kind"] == kind]


def age(path: Path, seconds: int = 2 * HOURS) -> None:
    then = path.stat().st_mtime - seconds
    os.utime(path, (then, then))


# --- sound tiers ---


@pytest.mark.parametrize("words", [[], ["--deep"]])
def test_a_sound_tier_has_no_findings(scrub: Scrub, tiered_site: Site, words: list[str]) -> None:
    _, found, summary = scrub(tiered_site, *words)
    assert found == []
    stored = [path for path in tiered_site.tier.rglob("*") if path.is_file()]
    logs = [path for path in stored if path.suffix == ".log"]
    assert (summary["objects"], summary["segments"]) == (len(stored), len(logs))
    assert summary["bytes"] == sum(path.stat().st_size for path in logs)


def test_a_running_brokers_tier_has_no_findings(run: Run, tiered: Served) -> None:
    for words in (["-b", tiered.address, "--override", f"rsm.config.dir={tiered.site.tier}"], []):
        done = run("tier", "scrub", "--data-dir", tiered.site.data, "--deep", *words)
        assert (done.code, done.out) == (0, "")
        assert done.err.startswith("kbroker tier: nothing found, 0 notes; ")


# --- missing and damaged objects ---


@pytest.mark.parametrize("kind", ["log", "index", "timeindex", "snapshot", "leader-epoch-checkpoint"])
def test_a_deleted_object_is_missing(scrub: Scrub, site: Site, kind: str) -> None:
    path = site.objects(COLD, kind)[1]
    path.unlink()
    _, found, _ = scrub(site, "--deep")
    (missing,) = [each for each in found if each["problem"] == "missing"]
    assert missing["text"] == f"the {kind} is missing"
    assert (missing["topic"], missing["segment_id"]) == (COLD, path.name[21:43])
    assert problems(found) == ["missing"]


def test_a_truncated_segment_has_the_wrong_size(scrub: Scrub, site: Site) -> None:
    path = site.objects(COLD, "log")[0]
    size = path.stat().st_size
    os.truncate(path, size - 1)
    _, found, _ = scrub(site)
    assert [each["text"] for each in found] == [f"the log has {size - 1} bytes instead of {size}"]
    assert problems(found) == ["size"]


def test_a_changed_byte_is_found_by_reading(scrub: Scrub, site: Site) -> None:
    path = site.objects(COLD, "log")[1]
    position = starts(path)[3]
    flip(path, position + 100)
    assert scrub(site)[1] == []
    _, found, _ = scrub(site, "--deep")
    assert problems(found) == ["damage"]
    assert f"at byte {position}: the batch at offset " in found[0]["text"]
    assert "has a wrong CRC" in found[0]["text"]


@pytest.mark.parametrize("kind", ["index", "timeindex", "snapshot", "leader-epoch-checkpoint"])
def test_a_changed_index_is_found_by_reading(scrub: Scrub, site: Site, kind: str) -> None:
    path = site.objects(COLD, kind)[1]
    flip(path, path.stat().st_size - 2)
    assert scrub(site)[1] == []
    _, found, _ = scrub(site, "--deep")
    assert problems(found) == ["damage"]
    assert found[0]["segment_id"] == path.name[21:43]


def test_an_index_of_another_segment_is_found_without_any_checksum(scrub: Scrub, site: Site) -> None:
    """Without its manifest, an index has no checksum, but it must still match the segment."""
    first, second, *_ = site.objects(WARM, "index")
    second.write_bytes(first.read_bytes())
    second.with_suffix(".manifest.json").unlink()
    _, found, _ = scrub(site, "--deep")
    assert set(problems(found)) == {"damage"}
    assert "but the batch there ends with" in found[0]["text"] or "but no batch begins there" in found[0]["text"]


@pytest.mark.parametrize("damage", [b"", b"garbage", None], ids=["empty", "garbage", "of another segment"])
def test_a_damaged_manifest_is_found_by_reading(scrub: Scrub, site: Site, damage: bytes | None) -> None:
    """The broker does not need the manifest, but adopting the store does."""
    other, path, *_ = site.objects(COLD, "manifest.json")
    path.write_bytes(other.read_bytes() if damage is None else damage)
    assert scrub(site)[1] == []
    _, found, summary = scrub(site, "--deep")
    assert [(each["problem"], each["object"]) for each in found] == [("damage", str(path.relative_to(site.tier)))]
    assert found[0]["text"].startswith("the manifest.json is damaged: ")
    assert found[0]["segment_id"] == path.name[21:43]
    assert summary["segments"] > 2


def test_a_manifest_that_contradicts_the_metadata_is_found(scrub: Scrub, site: Site) -> None:
    path = site.objects(COLD, "manifest.json")[1]
    manifest = json.loads(path.read_bytes())
    path.write_text(json.dumps(manifest | {"end_offset": manifest["end_offset"] + 1}))
    _, found, _ = scrub(site, "--deep")
    says = f"the manifest.json has end_offset {manifest['end_offset'] + 1}, the metadata say {manifest['end_offset']}"
    assert [each["text"] for each in found] == [says]


def test_a_swapped_segment_is_found(scrub: Scrub, site: Site) -> None:
    """The size and all CRCs are correct, but the offsets are wrong."""
    _, second, third, *_ = [path for path in site.objects(COLD, "log") if path.parent.name == "0"]
    size = min(second.stat().st_size, third.stat().st_size)
    third_bytes = second.read_bytes()[:size]
    second.write_bytes(third_bytes + bytes(second.stat().st_size - size))
    third.write_bytes(third_bytes + bytes(third.stat().st_size - size))
    _, found, _ = scrub(site, "--deep")
    assert "damage" in problems(found)
    assert third.name[21:43] in {each["segment_id"] for each in found}


def test_a_missing_store_is_not_an_empty_store(run: Run, site: Site, tmp_path: Path) -> None:
    site.tier.rename(tmp_path / "elsewhere")
    done = run("tier", "scrub", "--data-dir", site.data)
    assert (done.code, done.out) == (1, "")
    assert f"{site.tier} (rsm.config.dir) does not exist; is it mounted?" in done.err


def test_in_an_empty_store_everything_is_missing(scrub: Scrub, site: Site, tmp_path: Path) -> None:
    site.tier.rename(tmp_path / "elsewhere")
    site.tier.mkdir()
    _, found, summary = scrub(site, "--deep")
    assert problems(found) == ["missing"] * 5 * summary["segments"]


# --- surplus objects ---


def test_an_old_object_of_an_unknown_segment_is_reported(scrub: Scrub, site: Site) -> None:
    known = site.objects(COLD, "log")[0]
    stranger = known.with_name(f"{7:020d}-{uuid_to_text(UUID(int=7))}.log")
    stranger.write_bytes(b"x" * 10)
    done, found, _ = scrub(site)
    assert (done.code, problems(found), problems(found, "note")) == (0, [], ["young"])
    age(stranger)
    _, found, _ = scrub(site)
    assert problems(found) == ["unknown"]
    assert found[0]["object"] == str(stranger.relative_to(site.tier))
    assert scrub(site, "--min-age-ms", 4 * HOURS * 1000)[0].code == 0
    assert scrub(site, "--topic", COLD)[1] == []
    assert scrub(site, "--delete-orphans")[0].code == 3
    assert stranger.exists()


def left_of_deleted(run: Run, site: Site) -> list[Path]:
    """Objects of a deleted topic, recreated by hand."""
    done = run("tier", "ls", "--data-dir", site.data, "--all", "--topic", GONE, "--format", "json")
    segments = [json.loads(line) for line in done.lines]
    assert segments
    made = []
    for each in segments[:2]:
        directory = site.tier / f"{GONE}-{each['topic_id']}" / "0"
        directory.mkdir(parents=True, exist_ok=True)
        for kind in ("log", "index"):
            path = directory / f"{each['start_offset']:020d}-{each['segment_id']}.{kind}"
            path.write_bytes(b"left")
            age(path)
            made.append(path)
    return made


def test_orphans_are_found_and_deleted_on_request(run: Run, scrub: Scrub, site: Site) -> None:
    left = left_of_deleted(run, site)
    _, found, _ = scrub(site)
    assert problems(found) == ["orphan"] * len(left)
    assert sorted(each["object"] for each in found) == sorted(str(path.relative_to(site.tier)) for path in left)
    assert all(path.exists() for path in left)
    done, _, summary = scrub(site, "--delete-orphans")
    assert (done.code, summary["deleted_segments"]) == (3, 2)
    assert not any(path.exists() for path in left)
    assert scrub(site)[1] == []


def test_young_orphans_are_ignored(run: Run, scrub: Scrub, site: Site) -> None:
    left = left_of_deleted(run, site)
    for path in left:
        age(path, -2 * HOURS)
    done, found, _ = scrub(site, "--delete-orphans")
    assert (done.code, problems(found, "note")) == (0, ["young"] * 2)
    assert all(path.exists() for path in left)


def test_nothing_is_deleted_if_metadata_are_unreadable(run: Run, site: Site) -> None:
    left = left_of_deleted(run, site)
    append_to_metadata(site, b"garbage")
    done = run("tier", "scrub", "--data-dir", site.data, "--delete-orphans")
    assert done.code == 1
    assert "refusing to delete: not all of the metadata can be read" in done.err
    assert all(path.exists() for path in left)


def test_a_foreign_name_is_reported(scrub: Scrub, site: Site) -> None:
    (site.tier / "notes.txt").write_text("mine")
    _, found, _ = scrub(site)
    assert [(each["problem"], each["object"]) for each in found] == [("foreign", "notes.txt")]


def test_an_unfinished_copy_is_a_note(scrub: Scrub, site: Site) -> None:
    """The last metadata record, of a finished copy, is lost: the segment stays in the state COPY_SEGMENT_STARTED."""
    (log,) = site.data.glob(f"{REMOTE_LOG_METADATA_TOPIC}-0/*.log")
    os.truncate(log, starts(log)[-1])
    done, found, _ = scrub(site, "--deep")
    assert (done.code, problems(found), problems(found, "note")) == (0, [], ["unfinished"])
    assert found[0]["text"] == "is in the state COPY_SEGMENT_STARTED"


# --- other stores ---


class StaleList(LocalRemoteStorage):
    """A store whose list omits new objects, as the list of an object store may."""

    def list_objects(self) -> Iterable[StoredObject]:  # type: ignore[override]
        return [each for each in super().list_objects() if "-0/" not in each.name and not each.name.endswith(".index")]


class Listless:
    """A store that cannot list its objects."""

    def __init__(self) -> None:
        inner = LocalRemoteStorage()
        self.configure, self.close = inner.configure, inner.close
        self.copy_log_segment_data, self.delete_log_segment_data = (
            inner.copy_log_segment_data, inner.delete_log_segment_data,
        )  # fmt: skip
        self.fetch_log_segment, self.fetch_index = inner.fetch_log_segment, inner.fetch_index


def by_class(cls: type) -> list[str]:
    return ["--override", f"remote.log.storage.manager.class.name={cls.__module__}:{cls.__qualname__}"]


def test_m6_objects_missing_from_a_stale_list_are_requested_by_name(scrub: Scrub, tiered_site: Site) -> None:
    """M6: an object that only the stale list omits is not missing."""
    done, found, summary = scrub(tiered_site, *by_class(StaleList))
    assert done.code == 0
    assert problems(found, "note") == ["stale-list"] * summary["segments"]


def test_a_store_that_cannot_list_is_an_error(run: Run, tiered_site: Site) -> None:
    done = run("tier", "scrub", "--data-dir", tiered_site.data, *by_class(Listless))
    assert done == (1, "", "kbroker tier: this storage manager cannot list its objects\n")


@pytest.mark.parametrize(
    ("words", "code", "reason"),
    [
        (["--config", "/nowhere/x"], 1, "cannot read /nowhere/x: No such file or directory"),
        (["--override", "rsm.config.dirr=/x"], 1, "dirr"),
        (["--override", "log.retention.ms=soon"], 1, "log.retention.ms"),
        (["--override", "remote.log.storage.manager.class.name=no.such.module:Class"], 1, "no.such.module"),
        (["--min-age-ms", "-1"], 2, "-1"),
        (["--min-age-ms", "old"], 2, "'old'"),
    ],
)
def test_a_failed_check_is_an_error(run: Run, tiered_site: Site, words: list[str], code: int, reason: str) -> None:
    done = run("tier", "scrub", "--data-dir", tiered_site.data, *words)
    assert (done.code, done.out) == (code, "")
    assert reason in done.err


def test_m10_commands_survive_a_damaged_batch_of_metadata(run: Run, site: Site) -> None:
    (log,) = (path for path in site.data.glob(f"{REMOTE_LOG_METADATA_TOPIC}-*/*.log") if path.stat().st_size)
    with TieredBroker(site) as served:
        whole = run("tier", "ls", "-b", served.address, "--format", "json")
        flip(log, starts(log)[-1] + 80)
        done = run("tier", "ls", "-b", served.address, "--format", "json")
        assert done.code == 0
        # If the record was of a finished deletion, its segment is listed again.
        assert len(done.lines) - len(whole.lines) in (0, 1)
        assert "kbroker tier: 1 records of the metadata topic cannot be read" in done.err
        assert done.err.count("cannot be read") == 1
