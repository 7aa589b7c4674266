"""Lookup of managers by name: `kbroker.tiered.plugins`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kbroker.tiered import plugins
from kbroker.tiered.local import LocalRemoteStorage
from kbroker.tiered.plugins import METADATA_GROUP, STORAGE_GROUP, PluginError, metadata_manager_class, storage_manager

ACME = """
from kbroker.tiered.local import LocalRemoteStorage


class Storage(LocalRemoteStorage):
    pass


class Forgetful:
    def configure(self, configs): ...
    def close(self): ...


class Demanding(LocalRemoteStorage):
    def __init__(self, bucket): ...


class Metadata:
    pass
"""


@pytest.fixture
def acme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An installed third-party package with entry points."""
    (tmp_path / "acme_tier.py").write_text(ACME)
    (tmp_path / "acme_broken.py").write_text("import a_module_that_nobody_has\n")
    information = tmp_path / "acme_tier-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-tier\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text(
        f"[{STORAGE_GROUP}]\n"
        "acme = acme_tier:Storage\nacme-broken = acme_broken:Storage\nacme-gone = acme_tier:Gone\n"
        "directory = acme_tier:Forgetful\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for module in ("acme_tier", "acme_broken"):
        sys.modules.pop(module, None)


@pytest.mark.parametrize("name", [None, "", "directory"])
def test_the_default_storage_manager_is_the_directory(name: str | None) -> None:
    assert type(storage_manager(name)) is LocalRemoteStorage


@pytest.mark.parametrize("name", ["kbroker.tiered.local:LocalRemoteStorage", "kbroker.tiered.local.LocalRemoteStorage"])
def test_a_class_name_has_a_colon_or_dots(name: str) -> None:
    assert type(storage_manager(name)) is LocalRemoteStorage


@pytest.mark.parametrize("group", [STORAGE_GROUP, METADATA_GROUP])
def test_every_built_in_name_can_be_loaded(group: str) -> None:
    find = storage_manager if group == STORAGE_GROUP else metadata_manager_class
    for name in plugins.BUILT_IN[group]:
        found = find(name)
        made = found if isinstance(found, type) else type(found)
        assert f"{made.__module__}:{made.__name__}" == plugins.BUILT_IN[group][name]


def test_kafkas_metadata_manager_means_the_built_in_one() -> None:
    kafkas = "org.apache.kafka.server.log.remote.metadata.storage.TopicBasedRemoteLogMetadataManager"
    assert metadata_manager_class(kafkas) is metadata_manager_class("topic") is metadata_manager_class(None)


def test_the_project_declares_the_built_in_entry_points() -> None:
    import tomllib

    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    declared = {group: found for group, found in project["entry-points"].items() if group.startswith("kbroker.")}
    assert declared == {group: dict(found) for group, found in plugins.BUILT_IN.items()}


def test_an_entry_point_of_another_package_is_found(acme: Path) -> None:
    assert type(storage_manager("acme")).__module__ == "acme_tier"
    assert "acme" in plugins.names(STORAGE_GROUP)


def test_packages_cannot_replace_a_built_in_manager(acme: Path) -> None:
    assert type(storage_manager("directory")) is LocalRemoteStorage


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("org.apache.kafka.server.log.remote.storage.LocalTieredStorage", "class.name=directory does the same"),
        ("io.aiven.kafka.tieredstorage.RemoteStorageManager", "class.name=minio does the same"),
        ("com.example.Storage", "is a Java class"),
        ("org.example.kafka.Storage", "is a Java class"),
        ("s3", "there are acme, acme-broken, acme-gone, directory, minio"),
        (".", "there is no such manager"),
        ("acme_tier:", "there is no such manager"),
        ("acme_tier:Gone", "cannot be loaded"),
        ("acme-gone", "cannot be loaded"),
        ("nowhere.at.all", "cannot be loaded"),
        ("acme-broken", "a_module_that_nobody_has"),
        ("acme_tier:Forgetful", "copy_log_segment_data, fetch_log_segment, fetch_index, delete_log_segment_data"),
        ("acme_tier:Demanding", "without arguments"),
    ],
)
def test_an_unusable_name_gives_the_reason(acme: Path, name: str, said: str) -> None:
    with pytest.raises(PluginError) as refused:
        storage_manager(name)
    assert said in str(refused.value)
    assert name in str(refused.value)


def test_a_metadata_manager_without_the_methods_is_refused(acme: Path) -> None:
    with pytest.raises(PluginError, match="add_remote_log_segment_metadata"):
        metadata_manager_class("acme_tier:Metadata")
    with pytest.raises(PluginError, match="not a class"):
        metadata_manager_class("acme_tier:__name__")
