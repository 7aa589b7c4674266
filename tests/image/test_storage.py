"""kafka-storage format of the image: what it refuses, and what it writes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kbroker.cli import CommandFailed
from kbroker.controller.snapshots import BOOTSTRAP_FILE, read_snapshot
from kbroker.runtime.disk import RealDisk
from tests.image.tool_modules import tool_module
from wire.stored.metadata import FeatureLevelRecord, UserScramCredentialRecord

FORMAT = ("format", "--cluster-id", "MkU3OEVBNTcwNTJENDM2Qg", "--config")
AL = ("--add-scram", "SCRAM-SHA-256=[name=al,password=a]")
DIRECTORY_ID = "JEXY6aqzQY-32P5TStzaFg"


def controller_settings(file: Path, more: str) -> Path:
    """A file with the settings of a broker that is its own controller, and asks clients for SCRAM."""
    file.write_text(
        "process.roles=broker,controller\nnode.id=3\ncontroller.listener.names=CONTROLLER\n"
        "listeners=SASL_PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:0\nsasl.enabled.mechanisms=SCRAM-SHA-256\n"
        "security.inter.broker.protocol=SASL_PLAINTEXT\nsasl.mechanism.inter.broker.protocol=SCRAM-SHA-256\n"
        f"listener.security.protocol.map=SASL_PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT\n{more}"
    )
    return file


@pytest.fixture(scope="module")
def storage() -> Iterator[Any]:
    with tool_module("storage") as module:
        yield module.storage


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def file(tmp_path: Path, data: Path) -> Path:
    return controller_settings(tmp_path / "server.properties", f"log.dirs={data}\n")


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (["-r", "3.0"], "metadata.version 3.0-IV1 is not supported: kbroker supports 3.3-IV3 to "),
        (["-f", "metadata.version=99"], "metadata.version 99 is not supported"),
        (["-r", "5.0"], "Version 5.0 is not a valid version"),
        (["-f", "metadata.version=0"], "metadata.version 0 is not supported"),
        (["-f", "kraft.version=1"], "kraft.version 1 is not supported: kbroker serves no .* quorum of several voters"),
        (["-f", "share.version=1"], "share.version 1 is not supported: kbroker serves no share groups"),
        (["-f", "eligible.leader=1"], "Unsupported feature: eligible.leader. Supported features are: .*group.version"),
        (["-r", "4.2"], "4.2-IV1 include .*, share.version 1, streams.version 1, .*: add .* --feature share.version=0"),
        (["-r", "4.1", "-f", "share.version=1"], "share.version 1 is not supported"),
        (["-f", "metadata.version=26"], "4.1-IV0 include eligible.leader.replicas.version 1, which kbroker does not"),
        (["-f", "group.version=x"], "unable to parse x as a short"),
        (["-f", "group.version"], "equals sign not found"),
        (["-f", "group.version=1", "-f", "group.version=0"], "named twice"),
        (["-S", "SCRAM-SHA-256=[name=al,secret]"], "No equals sign found in SCRAM component$"),
        (["-S", "SCRAM-SHA-256=[name=al,password=]"], "You must supply one of"),
        (["-S", "SCRAM-SHA-256=[name=,password=a]"], "You must supply 'name'"),
        (["-S", "SCRAM-SHA-256=[name=al,password=a,iterations=16385]"], "must be <= 16384"),
        (["-S", "SCRAM-SHA-256=[name=al,password=a,iterations=-1]"], "Failed to parse iterations"),
        (["-S", "SCRAM-SHA-256=[name=al,password=a,salt=*]"], "Failed to decode given salt"),
        (["-I", f"3@h:1:{DIRECTORY_ID},4@h:1:{DIRECTORY_ID}"], "names 2 controllers, but kbroker has one"),
        (["-I", f"4@h:1:{DIRECTORY_ID}"], "names node 4, but this is node 3"),
        (["-I", "3@h:1"], "is not of the form id@host:port:directory"),
        (["--no-initial-controllers"], "is not supported on a controller"),
    ],
    ids=lambda each: each[-1] if isinstance(each, list) else "",
)
def test_what_cannot_be_formatted_fails(storage: Any, file: Path, data: Path, flags: list[str], reason: str) -> None:
    with pytest.raises(CommandFailed, match=reason):
        storage([*FORMAT, str(file), *flags])
    assert not data.exists()


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["-r", "3.9"], {"metadata.version": 21}),
        (["-r", "4.0-IV1"], {"metadata.version": 23, "group.version": 1}),
        (["-r", "4.0"], {"metadata.version": 25, "group.version": 1, "transaction.version": 2}),
        (["-r", "4.0", "-f", "group.version=0"], {"metadata.version": 25, "transaction.version": 2}),
        (["-f", "transaction.version=1"], {"metadata.version": 21, "group.version": 1, "transaction.version": 1}),
    ],
    ids=lambda each: each[-1] if isinstance(each, list) else "",
)
def test_a_release_sets_every_feature_to_its_default(
    storage: Any, file: Path, data: Path, flags: list[str], expected: dict[str, int]
) -> None:
    storage([*FORMAT, str(file), *flags])
    found = read_snapshot(RealDisk(), str(data / BOOTSTRAP_FILE))
    assert {each.name: each.feature_level for each in found if isinstance(each, FeatureLevelRecord)} == expected


def test_users_of_the_settings_file_are_added(storage: Any, file: Path, data: Path, tmp_path: Path) -> None:
    users = tmp_path / "users"
    file.write_text(f"{file.read_text()}kbroker.bootstrap.users.file={users}\n")
    with pytest.raises(CommandFailed, match="No such file"):
        storage([*FORMAT, str(file), *AL])
    assert not (data / "meta.properties").exists()
    users.write_text("bo=b\n")
    storage([*FORMAT, str(file), *AL])
    found = read_snapshot(RealDisk(), str(data / BOOTSTRAP_FILE))
    assert {each.name for each in found if isinstance(each, UserScramCredentialRecord)} == {"al", "bo"}


def test_an_interrupted_format_leaves_no_users_behind(storage: Any, file: Path, data: Path) -> None:
    storage([*FORMAT, str(file), "-S", "SCRAM-SHA-256=[name=old,password=a]"])
    (data / "meta.properties").unlink()  # as if it had ended before this was written
    storage([*FORMAT, str(file), *AL])
    found = read_snapshot(RealDisk(), str(data / BOOTSTRAP_FILE))
    assert {each.name for each in found if isinstance(each, UserScramCredentialRecord)} == {"al"}


def test_the_only_initial_controller_gets_its_directory_id(storage: Any, file: Path, data: Path) -> None:
    storage([*FORMAT, str(file), "-I", f"3@127.0.0.1:9093:{DIRECTORY_ID}"])
    assert f"directory.id={DIRECTORY_ID}\n" in (data / "meta.properties").read_text()


def test_without_a_file_only_the_broker_formats(storage: Any, tmp_path: Path) -> None:
    absent = str(tmp_path / "absent")  # as the start scripts of other images
    assert storage([*FORMAT, absent]) == 0
    with pytest.raises(CommandFailed, match="No such file"):
        storage([*FORMAT, absent, *AL])


def test_a_broker_needs_no_bootstrap_records(storage: Any, data: Path, tmp_path: Path) -> None:
    file = tmp_path / "broker.properties"
    file.write_text(
        f"process.roles=broker\nnode.id=4\nlog.dirs={data}\nlisteners=PLAINTEXT://127.0.0.1:0\n"
        "controller.listener.names=CONTROLLER\ncontroller.quorum.bootstrap.servers=127.0.0.1:9093\n"
        "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT\n"
    )
    with pytest.raises(CommandFailed, match="You can only use --standalone on a controller"):
        storage([*FORMAT, str(file), "--standalone"])
    storage([*FORMAT, str(file), *AL, "-I", f"3@127.0.0.1:9093:{DIRECTORY_ID}"])
    assert "node.id=4\n" in (data / "meta.properties").read_text()
    assert DIRECTORY_ID not in (data / "meta.properties").read_text()
    assert not (data / BOOTSTRAP_FILE).exists()
