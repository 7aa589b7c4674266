"""Settings and keys of the MinIO plug-in, without a store."""

from __future__ import annotations

import os
import re
from dataclasses import fields
from pathlib import Path

import pytest

from kbroker.config.settings import declarations
from kbroker.runtime.disk import RealDisk
from kbroker.tiered.api import RetriableRemoteStorageError
from kbroker.tiered.minio import MinioRemoteStorage
from kbroker.tiered.minio_credentials import Keys, KeySource
from kbroker.tiered.minio_settings import (
    KEYS_IN_ENVIRONMENT,
    LARGEST_PART,
    MOST_PARTS,
    SMALLEST_PART,
    MinioConfigError,
    MinioSettings,
)

LEAST = {"endpoint": "127.0.0.1:9000", "bucket": "tier"}
CANARY = "canary-3f9c7d2e"


def parse(**given: str) -> MinioSettings:
    return MinioSettings.parse({**LEAST, **{name.replace("_", "."): value for name, value in given.items()}})


def keys_of(settings: MinioSettings, **environment: str) -> Keys:
    return KeySource(settings, environment=environment, disk=RealDisk()).keys()


def credentials(path: Path, text: str, *, modified_s: int) -> None:
    """Write a credentials file with this modification time."""
    path.write_text(text)
    os.utime(path, (modified_s, modified_s))


@pytest.mark.parametrize(
    ("key", "nearest"),
    [
        ("endpont", "endpoint"),
        ("bucket.name", "bucket"),
        ("secret-key", "secret.key"),
        ("part.size", "part.size.bytes"),
        ("read.timeout", "read.timeout.ms"),
        ("access_key", "access.key"),
    ],
)
def test_an_unknown_key_is_refused_with_a_suggestion(key: str, nearest: str) -> None:
    with pytest.raises(MinioConfigError, match=f"Unknown setting rsm.config.{key}; did you mean rsm.config.{nearest}?"):
        MinioSettings.parse({**LEAST, key: "1"})


def test_an_unknown_key_without_similar_ones_has_no_suggestion() -> None:
    with pytest.raises(MinioConfigError, match=re.escape("Unknown setting rsm.config.zzz") + "$"):
        MinioSettings.parse({**LEAST, "zzz": "1"})


def test_settings_added_by_the_broker_are_accepted() -> None:
    assert MinioSettings.parse({**LEAST, "log.dir": "/x", "broker.id": "1", "cluster.id": "c"}).bucket == "tier"


@pytest.mark.parametrize("missing", ["endpoint", "bucket"])
def test_endpoint_and_bucket_are_required(missing: str) -> None:
    with pytest.raises(MinioConfigError, match=f"rsm.config.{missing} is required"):
        MinioSettings.parse({key: value for key, value in LEAST.items() if key != missing})


@pytest.mark.parametrize(
    ("endpoint", "address", "secure"),
    [
        ("store:9000", "store:9000", True),
        ("http://store:9000", "store:9000", False),
        ("https://store:9000/", "store:9000", True),
        ("https://[::1]:9000", "[::1]:9000", True),
    ],
)
def test_the_scheme_of_the_endpoint_selects_tls(endpoint: str, address: str, secure: bool) -> None:
    found = parse(endpoint=endpoint)
    assert (found.endpoint, found.secure) == (address, secure)


def test_contradicting_scheme_and_setting_are_refused() -> None:
    with pytest.raises(MinioConfigError, match="contradicts"):
        parse(endpoint="http://store:9000", secure="true")
    assert not parse(secure="false").secure


@pytest.mark.parametrize(
    "endpoint", ["ftp://store", "http://store/path", "http://store?x=1", f"http://u:{CANARY}@store"]
)
def test_an_invalid_endpoint_is_refused_and_not_shown(endpoint: str) -> None:
    with pytest.raises(MinioConfigError) as caught:
        parse(endpoint=endpoint)
    assert endpoint not in str(caught.value)
    assert CANARY not in str(caught.value)


@pytest.mark.parametrize(("given", "prefix"), [("", ""), ("/", ""), ("/a/b/", "a/b"), ("a", "a")])
def test_a_prefix_has_no_slash_at_its_ends(given: str, prefix: str) -> None:
    assert parse(prefix=given).prefix == prefix


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("prefix", "a//b"),
        ("prefix", "../b"),
        ("prefix", "a/./b"),
        ("secure", "yes"),
        ("retries", "-1"),
        ("retries", "many"),
        ("call.timeout.ms", "0"),
        ("part.size.bytes", str(SMALLEST_PART - 1)),
        ("part.size.bytes", str(LARGEST_PART + 1)),
        ("connections.max", "0"),
    ],
)
def test_an_invalid_value_is_refused_with_its_key(key: str, value: str) -> None:
    with pytest.raises(MinioConfigError, match=rf"Invalid value .* for configuration rsm\.config\.{re.escape(key)}: "):
        MinioSettings.parse({**LEAST, key: value})


@pytest.mark.parametrize("size", [0, 1, 5 << 20, 1 << 30, 2 << 30, 5 << 40])
def test_no_object_has_more_parts_than_s3_takes(size: int) -> None:
    part = parse(part_size_bytes=str(SMALLEST_PART)).part_size(size)
    assert part >= SMALLEST_PART
    assert -(-size // part) <= MOST_PARTS


def test_every_setting_has_a_name_with_dots_and_a_text() -> None:
    declared = declarations(MinioSettings)
    assert len(declared) == len(fields(MinioSettings))
    assert all(re.fullmatch(r"[a-z]+(\.[a-z]+)*", one.name) and one.doc.endswith(".") for one in declared)


def test_keys_from_the_settings_come_first() -> None:
    settings = parse(access_key="a", secret_key="s", session_token="t")
    assert keys_of(settings, AWS_ACCESS_KEY_ID="x", AWS_SECRET_ACCESS_KEY="y") == Keys("a", "s", "t")


@pytest.mark.parametrize("names", KEYS_IN_ENVIRONMENT)
def test_keys_come_from_the_environment(names: tuple[str, str, str]) -> None:
    environment = dict(zip(names, ("a", "s", "t"), strict=True))
    assert keys_of(parse(), **environment) == Keys("a", "s", "t")
    del environment[names[2]]
    assert keys_of(parse(), **environment) == Keys("a", "s", None)


def test_kbrokers_environment_variables_come_first() -> None:
    environment = {name: f"{name}-value" for names in KEYS_IN_ENVIRONMENT for name in names}
    assert keys_of(parse(), **environment).access_key == "KBROKER_MINIO_ACCESS_KEY-value"


def test_an_incomplete_pair_of_keys_is_ignored() -> None:
    with pytest.raises(MinioConfigError, match="No keys for the store"):
        keys_of(parse(), MINIO_ACCESS_KEY="a", AWS_SECRET_ACCESS_KEY="s")
    for given in ({"access_key": "a"}, {"secret_key": "s"}, {"session_token": "t"}):
        with pytest.raises(MinioConfigError, match=r"go together|goes with"):
            parse(**given)


def test_missing_keys_are_an_error_at_configuration() -> None:
    manager = MinioRemoteStorage(environment={})
    with pytest.raises(MinioConfigError, match=r"rsm\.config\.access\.key.*KBROKER_MINIO_ACCESS_KEY"):
        manager.configure(LEAST)


@pytest.mark.parametrize(
    "text",
    [
        "[default]\naws_access_key_id = a\naws_secret_access_key = s=1\naws_session_token = t\n",
        "# keys\n[other]\naccess.key = x\nsecret.key = y\n[default]\naccess.key=a\nsecret.key=s=1\nsession.token=t",
        "access.key=a\nsecret.key=s=1\nsession.token=t\n",
        "# a comment\naccess.key = a\nsecret.key = s=1\nsession.token = t\n",
    ],
)
def test_keys_come_from_a_file(tmp_path: Path, text: str) -> None:
    path = tmp_path / "keys"
    path.write_text(text)
    assert keys_of(parse(credentials_file=str(path))) == Keys("a", "s=1", "t")


def test_a_file_may_have_several_sections(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("[default]\naccess.key=a\nsecret.key=s\n[tier]\naccess.key=b\nsecret.key=%(u)s\n")
    settings = parse(credentials_file=str(path), credentials_profile="tier")
    assert keys_of(settings) == Keys("b", "%(u)s")


def test_m3_a_changed_credentials_file_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    credentials(path, "access.key=a\nsecret.key=1\n", modified_s=1_000)
    source = KeySource(parse(credentials_file=str(path)), environment={}, disk=RealDisk())
    assert source.keys() == Keys("a", "1")
    credentials(path, "access.key=b\nsecret.key=2\n", modified_s=2_000)
    assert source.keys() == Keys("b", "2")


def test_m3_refused_keys_are_read_again_from_an_unchanged_file(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    credentials(path, "access.key=a\nsecret.key=1\n", modified_s=1_000)
    source = KeySource(parse(credentials_file=str(path)), environment={}, disk=RealDisk())
    assert source.keys() == Keys("a", "1")
    assert source.read_again() == Keys("a", "1")
    credentials(path, "access.key=b\nsecret.key=2\n", modified_s=1_000)
    assert source.keys() == Keys("a", "1")
    assert source.read_again() == Keys("b", "2")


def test_m3_old_keys_are_used_while_their_file_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    credentials(path, "access.key=a\nsecret.key=1\n", modified_s=1_000)
    source = KeySource(parse(credentials_file=str(path)), environment={}, disk=RealDisk())
    assert source.keys() == Keys("a", "1")
    path.unlink()
    assert source.keys() == Keys("a", "1")
    for half in ("", "access.key=b\n", "[default\nx", "\ufeff[default]\naccess.key=\nsecret.key=2"):
        credentials(path, half, modified_s=2_000)
        assert source.keys() == Keys("a", "1")
    path.write_bytes(b"access.key=\xff\xfe\nsecret.key=3\n")
    assert source.keys() == Keys("a", "1")
    credentials(path, "access.key=b\nsecret.key=2\n", modified_s=3_000)
    assert source.keys() == Keys("b", "2")


def test_a_missing_credentials_file_may_appear_later(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    source = KeySource(parse(credentials_file=str(path)), environment={}, disk=RealDisk())
    with pytest.raises(RetriableRemoteStorageError, match=re.escape(f"{path}: FileNotFoundError")):
        source.keys()
    path.write_text(f"[default]\naccess.key={CANARY}\n")
    with pytest.raises(RetriableRemoteStorageError, match=r"no keys in section \[default\]") as caught:
        source.keys()
    assert CANARY not in str(caught.value)
    path.write_text("[default]\naccess.key=a\nsecret.key=s\n")
    assert source.keys() == Keys("a", "s")


def test_k15_no_representation_shows_a_key(tmp_path: Path) -> None:
    secrets = {"access_key": f"{CANARY}-a", "secret_key": f"{CANARY}-s", "session_token": f"{CANARY}-t"}
    settings = parse(**secrets)
    source = KeySource(settings, environment={}, disk=RealDisk())
    manager = MinioRemoteStorage()
    manager.configure({**LEAST, **{name.replace("_", "."): value for name, value in secrets.items()}})
    for shown in (settings, source, source.keys(), manager):
        assert CANARY not in repr(shown)
        assert CANARY not in str(shown)
    assert CANARY not in source.hide_in(f"echo {CANARY}-a {CANARY}-s {CANARY}-t")
