"""``bootstrap.checkpoint``: written by the format step into the root of the log directory, and read at the first start.

The file has the snapshot format. It holds the first records of an empty metadata log: metadata.version, and what else
the formatting tool was given (SCRAM credentials, other features). Kafka's own tool writes the same file.

Source: KIP-778, KIP-900; Kafka's BootstrapDirectory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final
from uuid import UUID

from kbroker.config.properties import parse_properties
from kbroker.config.values import ConfigError
from kbroker.controller import snapshots
from kbroker.controller.features import METADATA_VERSION, NEW_CLUSTER, require_supported
from kbroker.controller.scram import secret_record
from kbroker.metadata.errors import UnusableMetadata
from kbroker.metadata.image import Record
from kbroker.runtime.ports import Disk
from kbroker.security.sasl.scram import MECHANISMS, credential_of, is_portable, new_salt, salted_password
from wire.errors import ErrorCode, KafkaError, Malformed
from wire.stored.metadata import FeatureLevelRecord, UserScramCredentialRecord

BOOTSTRAP_ITERATIONS: Final = 8_192
MAX_USERS_BYTES: Final = 1 << 20


def bootstrap_records(disk: Disk, path: str | None) -> list[Record]:
    """The first records of an empty log. Without the file, the feature levels of a new cluster."""
    if path is None or not disk.exists(path):
        return _new_cluster()
    try:
        contents = snapshots.read_snapshot(disk, path)
    except Malformed as error:
        raise UnusableMetadata(f"the bootstrap records cannot be read: {error}") from error
    levels = {one.name: one.feature_level for one in contents if isinstance(one, FeatureLevelRecord)}
    require_supported(levels, path)
    return contents


def _new_cluster(levels: Mapping[str, int] = NEW_CLUSTER) -> list[Record]:
    return [FeatureLevelRecord(name=name, feature_level=level) for name, level in levels.items() if level]


def users_of(disk: Disk, path: str | None, new_uuid: Callable[[], UUID]) -> list[Record]:
    """The credentials of the users in kbroker.bootstrap.users.file. It takes milliseconds for each of them.

    Errors  INVALID_CONFIG; OSError
    """
    if path is None:
        return []
    file = disk.open(path, writable=False)
    try:
        data = file.pread(min(file.size(), MAX_USERS_BYTES + 1), 0)
    finally:
        file.close()
    try:
        if len(data) > MAX_USERS_BYTES:
            raise ConfigError(f"{path} has more than {MAX_USERS_BYTES} bytes")
        passwords = parse_properties(data, file_name=path)
    except ConfigError as error:
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"kbroker.bootstrap.users.file: {error}") from error
    records: list[Record] = []
    for user, password in passwords.items():
        why = None
        if not password:  # do not show the name: it may be a password
            why = "a user has no password: each line is of the form name=password"
        elif not is_portable(user) or not is_portable(password):
            why = f"the name or the password of {user!r} is empty, or changed by SASLprep"
        if why is not None:
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"kbroker.bootstrap.users.file: {why}")
        for mechanism in MECHANISMS.values():
            salt = new_salt(new_uuid().bytes)
            salted = salted_password(mechanism, password, salt, BOOTSTRAP_ITERATIONS)
            made = credential_of(mechanism, salted, salt, BOOTSTRAP_ITERATIONS)
            records.append(UserScramCredentialRecord(name=user, mechanism=mechanism.number, **made._asdict()))
    return [*records, secret_record(new_uuid)] if records else []


def write_bootstrap(
    root: str,
    *,
    disk: Disk,
    timestamp_ms: int,
    more: Callable[[], list[Record]] = list,
    levels: Mapping[str, int] = NEW_CLUSTER,
) -> None:
    """Write ``bootstrap.checkpoint`` as the format step does, unless it exists, with more records after the levels."""
    path = f"{root}/{snapshots.BOOTSTRAP_FILE}"
    if not disk.exists(path):
        snapshots.write_snapshot(
            disk,
            path,
            [*_new_cluster(levels), *more()],
            metadata_version=METADATA_VERSION,
            epoch=0,
            last_contained_log_timestamp=0,
            timestamp_ms=timestamp_ms,
        )
